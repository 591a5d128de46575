"""Which prompts a run replays, and what it is compared with then."""

import shutil

import msgspec

from specreg.measurement.figures import Figures
from specreg.verdicts.judge import Outcome
from tests.plugin.conftest import ROOT, Suite


def test_a_run_of_fewer_prompts_is_compared_prompt_by_prompt(recorded_suite: Suite) -> None:
    done = recorded_suite.run("tests/perf", "-q", "-k", "eagle3 and c4", "--num-prompts=6")

    assert done.returncode == 0, done.stdout
    by_metric = {one.metric: one.outcome for one in recorded_suite.verdict().verdicts}
    assert by_metric.pop("lossless_frac") is Outcome.PASS
    speeds = {metric for metric in by_metric if not metric.startswith("acceptance")}
    assert len(speeds) == 4
    assert {by_metric[metric] for metric in speeds} == {Outcome.NOT_COMPARABLE}
    assert {by_metric[metric] for metric in by_metric.keys() - speeds} == {Outcome.PASS}
    assert (
        "--num-prompts left 6 prompts of a case: acceptance was compared over those" in done.stdout
    )
    assert "--update-baselines" not in done.stdout
    (path,) = recorded_suite.runs.glob("*/figures/*.json")
    figures = msgspec.json.decode(path.read_bytes(), type=Figures)
    assert figures.timing is not None
    assert figures.timing.requests == 6


def test_a_prompt_longer_than_the_context_is_refused_before_a_server_starts(suite: Suite) -> None:
    text = (suite.folder / "cpu.toml").read_text()
    suite.write_tier(text.replace("[cases.tol", "max_model_len_tokens = 60\n[cases.tol"))

    done = suite.run("tests/perf", "-q", "-k", "eagle3 and c1")

    assert done.returncode == 4, done.stdout
    assert "dataset 'toy': prompt '" in done.stderr
    assert "'vllm-eagle3-tiny-toy-c1' has 60, and" in done.stderr
    assert not list(suite.runs.glob("*/logs/*"))


def test_what_cannot_be_held_against_the_context_is_said(suite: Suite) -> None:
    """The bytes of the prompts alone don't show that they fit, and there is no tokenizer."""
    target = suite.folder / "target"
    shutil.copytree(ROOT / "fixtures/models/tiny/target", target)
    (target / "tokenizer.json").unlink()
    text = (suite.folder / "cpu.toml").read_text()
    text = text.replace("[cases.tol", "max_model_len_tokens = 200\n[cases.tol")
    suite.write_tier(text.replace('"fixtures/models/tiny/target"', f'"{target}"'))

    done = suite.run("tests/perf", "-q", "-k", "eagle3 and c1 and acceptance_length")

    assert done.returncode == 11, done.stdout
    assert "dataset 'toy': whether its prompts fit into the context of" in done.stdout
    assert "tokenizer.json is missing; name a folder that has it" in done.stdout
