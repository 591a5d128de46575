"""What the machine lacks, and what a GPU's power is good for."""

import re
from pathlib import Path

import pytest

from specreg.verdicts.verdict import Outcome
from tests.doubles.nvml.device import Answer, ScriptedGpu
from tests.doubles.vllm.script import Fault, Script
from tests.plugin.conftest import MATRIX, Suite, cases_of

HERE = '"fixtures/models/tiny/target"'
CASE = {"methods": ["none"], "prompts": 10, "power_s": 0, "output_cap_tokens": 8}
SMALL, LARGE, FAR = (f"vllm-none-{name}-toy-c1" for name in ("small", "large", "far"))


def on_a_gpu(suite: Suite, **models: str) -> Suite:
    """The suite on a machine whose driver shows a GPU of 80 GiB, with a case of each model."""
    suite.gpus = (ScriptedGpu(memory_total_bytes=80 * 2**30),)
    tables = (f"[models.{name}]\ntarget = {target}" for name, target in models.items())
    cases = (cases_of(name, **CASE) for name in models)
    suite.write_tier("\n".join(("needs_gpus = 1", *tables, *cases)))
    return suite


@pytest.mark.parametrize("is_required", [False, True], ids=["any-tier", "required"])
def test_a_case_that_cannot_run_here_is_skipped_before_a_server_starts(
    gpu_suite: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_required: bool
) -> None:
    """One doesn't fit; the model of another can't be fetched, which a required tier wants to be."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    models = {"small": HERE, "large": f"{HERE}\ntarget_gib = 60", "far": '"org/target"'}
    options = ("--specreg-require-tier",) if is_required else ()

    done = on_a_gpu(gpu_suite, **models).run(
        "tests/perf", "-q", "-rs", "-k", "throughput or ttft", *options
    )

    assert done.returncode == (10 if is_required else 11), done.stdout
    assert f"{LARGE}: 1 GPU(s) of 155 GiB needed, this machine has 80" in done.stdout
    assert "MODEL_NOT_FETCHED: hub model 'org/target': " in done.stdout
    assert "Connection refused" in done.stdout.replace("\n", "")
    verdict = gpu_suite.verdict()
    assert set(verdict.skipped) == ({LARGE} if is_required else {LARGE, FAR})
    judged = {
        (metric_verdict.case_id, metric_verdict.outcome) for metric_verdict in verdict.verdicts
    }
    invalid = {(FAR, Outcome.INVALID)} if is_required else set()
    assert judged == {(SMALL, Outcome.NO_BASELINE)} | invalid
    assert not verdict.complete
    assert not list(gpu_suite.runs.rglob("*far*.log"))


@pytest.mark.parametrize("options", [(), ("--specreg-require-tier",)], ids=["any-tier", "required"])
def test_a_model_that_the_server_cannot_fetch_is_known_by_its_log(
    suite: Suite, options: tuple[str, ...]
) -> None:
    log = "huggingface_hub.errors.GatedRepoError: 401 Client Error."
    suite.script = Script(fault=Fault.EXIT_AT_START, exit_log=log)

    done = suite.run("tests/perf", "-q", "-rs", "-k", "throughput and none and c1", *options)

    assert done.returncode == (10 if options else 0), done.stdout
    assert "MODEL_NOT_FETCHED: server 'vllm-none-tiny'" in done.stdout.replace("\n", "")
    assert "model can't be fetched; check the model's name" in done.stdout.replace("\n", "")
    assert suite.verdict().outcomes == ({"INVALID": 1} if options else {})
    assert set(suite.verdict().skipped) == (set() if options else {"vllm-none-tiny-toy-c1"})


def test_a_machine_that_nothing_fits_leaves_the_reasons(suite: Suite) -> None:
    suite.write_tier(MATRIX.replace("needs_gpus = 0", "needs_gpus = 1"))
    done = suite.run("tests/perf", "-q")

    assert done.returncode == 0
    assert "Nothing was judged: tier 'cpu' needs 1 GPU(s), this machine has 0" in done.stdout
    (folder,) = suite.runs.iterdir()
    assert r"needs 1 GPU\(s\)" in (folder / "report.md").read_text()
    assert len(suite.verdict().skipped) == 4


def test_a_window_that_is_too_short_is_said_and_shown(gpu_suite: Suite) -> None:
    done = on_a_gpu(gpu_suite, tiny=HERE).run(
        "tests/perf", "-q", "-rs", "-k", "energy_j_per_token or power_w"
    )
    verdict = gpu_suite.verdict()
    assert verdict.outcomes == {"NOT_COMPARABLE": 2}
    assert all(
        "and 10 s are needed" in metric_verdict.explanation for metric_verdict in verdict.verdicts
    )
    rows = [line for line in done.stdout.splitlines() if line.startswith("vllm-none-tiny-")]
    assert re.search(r" (39|40)\d(\.\d)? ", rows[-1])  # W, idle: 4 s of slow reads
    assert len(list(gpu_suite.runs.glob("*/power/vllm-none-tiny-toy-c1.jsonl"))) == 1


def test_nothing_is_recorded_from_a_scripted_gpu(gpu_suite: Suite) -> None:
    done = on_a_gpu(gpu_suite, tiny=HERE).run(
        "tests/perf", "-q", "--update-baselines", "--specreg-launches=1"
    )
    assert done.returncode != 0
    assert "is a device that a test made up; measure on a real one" in done.stdout
    assert not gpu_suite.recorded()


MISMATCH = Answer("nvmlInit", 18)


@pytest.mark.parametrize(
    ("needs_gpus", "options"),
    [(0, ()), (1, ()), (1, ("--specreg-require-tier",))],
    ids=["no-tier-named", "tier-needs-gpus", "tier-required"],
)
def test_a_broken_driver_is_not_taken_for_a_machine_without_a_gpu(
    gpu_suite: Suite, needs_gpus: int, options: tuple[str, ...]
) -> None:
    """Without a tier that is named; and with one that needs a GPU."""
    gpu_suite.driver_answers = (MISMATCH,)
    gpu_suite.write_tier(MATRIX.replace("needs_gpus = 0", f"needs_gpus = {needs_gpus}"))
    typed = gpu_suite.command("tests/perf", "-q", "-k", "eagle3", *options)
    if not needs_gpus:
        typed = tuple(word for word in typed if word != "--specreg-tier=cpu")

    assert gpu_suite.gpu_python is not None
    command = ("pytest", "--assert=plain", *typed[3:])
    done = gpu_suite.gpu_python.run(command, gpu_suite.environment())

    assert done.returncode == 4, done.stdout
    output = " ".join((done.stdout + done.stderr).split())
    assert "of different versions, as after an upgrade; reload the driver or reboot" in output
    assert "--specreg-tier=cpu" in output
    assert not list(gpu_suite.runs.rglob("*.log"))


def test_the_cpus_tier_runs_by_its_name_where_the_driver_does_not_work(gpu_suite: Suite) -> None:
    gpu_suite.driver_answers = (MISMATCH,)
    done = gpu_suite.run("tests/perf", "-q", "-k", "acceptance_length and c1")
    assert "NO_BASELINE" in done.stdout, done.stdout
    assert "reload the driver" not in done.stdout


def test_cases_run_on_a_gpu_whose_memory_is_not_known_and_it_is_said_once(gpu_suite: Suite) -> None:
    gpu_suite = on_a_gpu(gpu_suite, small=f"{HERE}\ntarget_gib = 60")
    gpu_suite.gpus = (ScriptedGpu(answers=(Answer("nvmlDeviceGetMemoryInfo", 4),)),)

    done = gpu_suite.run("tests/perf", "-q", "-k", "throughput")

    assert "NO_BASELINE" in done.stdout, done.stdout
    assert (done.stdout + done.stderr).count("give it with --specreg-gpu-memory=GIB") == 1
    done = gpu_suite.run("tests/perf", "-q", "-k", "throughput", "--specreg-gpu-memory=80")
    need = "1 GPU(s) of 155 GiB needed, this machine has 80 GiB"
    assert f"Nothing was judged: {need}" in done.stdout
    assert "give it with" not in done.stdout + done.stderr
