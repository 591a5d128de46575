"""Which prompts a run replays, and what it is compared with then."""

import msgspec

from specreg.figures import Figures
from specreg.verdict import Outcome
from tests.plugin.conftest import Suite


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


def test_fewer_prompts_than_rounds_are_refused(suite: Suite) -> None:
    done = suite.run("tests/perf", "-q", "--num-prompts=1")

    assert done.returncode == 4
    assert "--num-prompts 1: 'vllm-none-tiny-toy-c1' needs 2 or more" in done.stderr


def test_a_baseline_is_of_the_prompts_of_the_matrix(suite: Suite) -> None:
    arguments = ("--update-baselines", "--reason", "x", "--num-prompts=6")
    done = suite.run("tests/perf", "-q", *arguments)

    assert done.returncode == 4
    assert "--update-baselines with --num-prompts: a baseline is of as many" in done.stderr
