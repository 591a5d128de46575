"""A recorded run, judged anew by the baselines that it was judged by, has the verdicts it had."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from specreg.suite.judged_again import judge_again
from specreg.suite.options import Options
from tests.doubles.vllm.script import Script
from tests.plugin.conftest import ROOT, Suite, decided

EAGLE3 = ("tests/perf", "-q", "-k", "eagle3")


def differing(suite: Suite, folder: Path | None = None) -> list[object]:
    """The verdicts of a run, or else of the last one, that are others now."""
    options = Options(
        matrix=str(suite.folder),
        baselines=str(suite.baselines),
        runs=str(suite.runs),
        history=str(suite.folder / "history"),
    )
    folder = folder or max(suite.runs.iterdir())
    run, _ = judge_again(ROOT, options, folder, {}, frozenset())
    now = {(one.case_id, one.metric): one for one in run.result().verdicts}
    then = {(one.case_id, one.metric): one for one in decided(folder).verdicts}
    assert then
    assert now.keys() == then.keys()
    return [(then[key], now[key]) for key in then if then[key] != now[key]]


@pytest.mark.parametrize(
    "arguments",
    [
        EAGLE3,
        (*EAGLE3, "--num-prompts=4"),
        (*EAGLE3, "--engine=vllm"),
        (*EAGLE3, "--specreg-launches=2"),
        ("tests/perf", "-q", "-k", "acceptance or lossless", "-n", "2"),
        ("tests/perf", "-q", "-k", "speedup or lossless"),
    ],
    ids=["usual", "prompts", "engine", "launches", "workers", "checks"],
)
def test_the_verdicts_are_equal(recorded_suite: Suite, arguments: Sequence[str]) -> None:
    done = recorded_suite.run(*arguments)
    assert recorded_suite.runs.exists(), done.stdout
    assert differing(recorded_suite) == []


def test_a_loss_that_a_further_launch_confirmed_is_found_again(recorded_suite: Suite) -> None:
    recorded_suite.script = Script(acceptance_probs=(0.3, 0.3, 0.3))
    done = recorded_suite.run(*EAGLE3)
    assert done.returncode == 1, done.stdout
    assert differing(recorded_suite) == []


def test_a_night_is_compared_with_the_nights_before_it(recorded_suite: Suite) -> None:
    for _ in range(2):
        recorded_suite.run(*EAGLE3)
    assert differing(recorded_suite) == []


def test_a_run_that_was_merged_is_judged_again(recorded_suite: Suite) -> None:
    for number in (1, 2):
        recorded_suite.run("tests/perf", "-q", f"--specreg-shard={number}/2")
    into = recorded_suite.folder / "merged"
    done = recorded_suite.merge(*recorded_suite.runs.iterdir(), into=into)
    assert done.returncode in {0, 10}, done.stderr
    assert differing(recorded_suite, into) == []
