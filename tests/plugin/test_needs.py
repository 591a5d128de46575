"""What the machine lacks, and what a budget leaves."""

import textwrap
from pathlib import Path

import msgspec
import pytest

from specreg.baselines.schema import baseline_path, record_baseline
from specreg.measurement.figures import Figures
from specreg.telemetry.identity import current_environment
from specreg.verdicts.judge import Outcome
from tests.doubles.nvml.device import ScriptedGpu
from tests.doubles.vllm.script import Fault, Script
from tests.plugin.conftest import Suite
from tests.unit import builders

H100 = ScriptedGpu(memory_total_bytes=80 * 2**30)
SIZED = """
    needs_gpus = 1

    [models.small]
    target = "fixtures/models/tiny/target"
    target_gib = 1

    [models.large]
    target = "fixtures/models/tiny/target"
    target_gib = 60

    [[cases]]
    engine = "vllm"
    methods = ["none"]
    models = "small"
    dataset = "toy"
    concurrency = [1]
    prompts = 10
    rounds = 2
    output_cap_tokens = 8

    [[cases]]
    engine = "vllm"
    methods = ["none"]
    models = "large"
    dataset = "toy"
    concurrency = [1]
    prompts = 10
    rounds = 2
    output_cap_tokens = 8
"""


def with_a_gpu(suite: Suite) -> Suite:
    """The suite on a machine whose driver shows a GPU of 80 GiB."""
    suite.gpus = (H100,)
    suite.write_tier(textwrap.dedent(SIZED))
    return suite


def test_a_case_that_does_not_fit_is_skipped_and_the_others_run(suite: Suite) -> None:
    """So it is with `--specreg-require-tier`: the machine has what the tier as a whole needs."""
    done = with_a_gpu(suite).run("tests/perf", "-q", "-rs", "--specreg-require-tier")

    assert done.returncode == 11, done.stdout
    assert "vllm-none-large-toy-c1 needs 1 GPU(s) of 160 GiB, this machine has 80" in done.stdout
    verdict = suite.verdict()
    assert {one.case_id for one in verdict.verdicts} == {"vllm-none-small-toy-c1"}
    assert {one.metric for one in verdict.verdicts} >= {"ttft_p50_ms", "tpot_p50_ms"}
    assert set(verdict.skipped) == {"vllm-none-large-toy-c1"}
    assert not verdict.complete


def recorded(suite: Suite) -> Suite:
    """The suite with speeds of two cases on this machine, of other settings than its own."""
    environment = current_environment(needs_gpus=0)
    for name in ("vllm-none-tiny-toy-c4", "vllm-eagle3-tiny-toy-c4"):
        baseline = builders.baseline({"throughput_tokens_per_s": 100.0}, environment=environment)
        record_baseline(baseline_path(suite.baselines, environment.name, name), baseline)
    return suite


def test_a_budget_that_is_too_small_is_refused_with_the_least(suite: Suite) -> None:
    """Two servers take half a minute each to start, a prompt 20 tokens at 100 per second.

    Warming up takes 20 prompts on each server, and the least that is measured 2, once more for
    what is proved: 46 prompts of 0.2 s.
    """
    arguments = ("-q", "-k", "eagle3 and c4", "--specreg-budget-gpu-min=1.1")
    done = recorded(suite).run("tests/perf", *arguments)

    assert done.returncode == 4
    assert "--specreg-budget-gpu-min 1.1: the run takes about 1.2 at least" in done.stderr
    assert not list(suite.runs.glob("*/logs"))


def test_a_budget_chooses_the_prompts_of_what_is_asked_for(suite: Suite) -> None:
    """Six prompts are 4 more than the least, each three times: 2.4 s more."""
    done = recorded(suite).run(
        *("tests/perf", "-q", "-k", "eagle3 and c4 and acceptance_length"),
        "--specreg-budget-gpu-min=1.248",
    )

    assert done.returncode == 11, done.stdout
    assert "--specreg-budget-gpu-min left 6 prompts of a case" in done.stdout
    (path,) = suite.runs.glob("*/figures/*.json")
    figures = msgspec.json.decode(path.read_bytes(), type=Figures)
    assert figures.timing is not None
    assert figures.timing.requests == 6
    assert not suite.verdict().complete


HUB = """
    needs_gpus = 0

    [models.far]
    target = "org/target"

    [models.near]
    target = "fixtures/models/tiny/target"

    [[cases]]
    engine = "vllm"
    methods = ["none"]
    models = "far"
    dataset = "toy"
    concurrency = [1]
    prompts = 10
    rounds = 2
    output_cap_tokens = 8

    [[cases]]
    engine = "vllm"
    methods = ["none"]
    models = "near"
    dataset = "toy"
    concurrency = [1]
    prompts = 10
    rounds = 2
    output_cap_tokens = 8
"""
FAR = "vllm-none-far-toy-c1"
REFUSED = "Connection refused"
OFFLINE = "not in the hub's cache, and HF_HUB_OFFLINE is set; unset it, or fetch the model where"


@pytest.fixture
def of_hub(suite: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suite:
    """The suite with a model of a hub that can't be reached, and one of a folder."""
    suite.write_tier(textwrap.dedent(HUB))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    return suite


@pytest.mark.parametrize(
    ("offline", "options", "words"),
    [
        ("", (), REFUSED),
        ("1", ("--specreg-require-tier",), OFFLINE),
    ],
)
def test_a_case_whose_model_cannot_be_fetched_is_skipped_before_a_server_starts(
    of_hub: Suite,
    monkeypatch: pytest.MonkeyPatch,
    offline: str,
    options: tuple[str, ...],
    words: str,
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", offline)

    done = of_hub.run("tests/perf", "-q", "-rs", "-k", "acceptance or throughput", *options)

    assert done.returncode == 11, done.stdout
    assert "hub model 'org/target': " in done.stdout
    assert words in done.stdout.replace("\n", "")
    verdict = of_hub.verdict()
    assert set(verdict.skipped) == {FAR}
    assert {one.case_id for one in verdict.verdicts} == {"vllm-none-near-toy-c1"}
    assert not verdict.complete
    assert not list(of_hub.runs.rglob("*far*.log"))


def test_a_required_tier_is_invalid_where_a_model_cannot_be_fetched(of_hub: Suite) -> None:
    done = of_hub.run("tests/perf", "-q", "-k", "throughput", "--specreg-require-tier")

    assert done.returncode == 10, done.stdout
    verdict = of_hub.verdict()
    (far,) = (one for one in verdict.verdicts if one.case_id == FAR)
    assert far.outcome is Outcome.INVALID
    assert far.reason.startswith("hub model 'org/target': ")
    assert verdict.skipped == {}
    assert not list(of_hub.runs.rglob("*far*.log"))


@pytest.mark.parametrize(
    ("options", "status", "outcomes"),
    [((), 0, {}), (("--specreg-require-tier",), 10, {"INVALID": 1})],
    ids=["any-tier", "required"],
)
def test_a_model_that_the_server_cannot_fetch_is_known_by_its_log(
    suite: Suite, options: tuple[str, ...], status: int, outcomes: dict[str, int]
) -> None:
    said = "huggingface_hub.errors.GatedRepoError: 401 Client Error."
    suite.script = Script(fault=Fault.EXIT_AT_START, exit_log=said)

    done = suite.run("tests/perf", "-q", "-rs", "-k", "throughput and none and c1", *options)

    assert done.returncode == status, done.stdout
    assert "model can't be fetched; check the model's name" in done.stdout.replace("\n", "")
    assert suite.verdict().outcomes == outcomes
    assert not suite.verdict().complete
    assert set(suite.verdict().skipped) == (set() if status else {"vllm-none-tiny-toy-c1"})
