"""Workers on a machine without a GPU: one at a time, with controls, second looks and baselines."""

from pathlib import Path

import pytest

from tests.doubles.vllm.script import Script
from tests.plugin.conftest import Suite


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    """A suite of a control and a server, two cases each."""
    return Suite(tmp_path)


def outcomes(suite: Suite) -> dict[tuple[str, str], str]:
    """What the last run said."""
    verdicts = suite.verdict().verdicts
    return {(one.case_id, one.metric): one.outcome.value for one in verdicts}


def values(suite: Suite) -> dict[tuple[str, str], float | None]:
    """What the last run measured of what no machine moves."""
    verdicts = suite.verdict().verdicts
    moves = ("_ms", "_per_s", "_ratio", "_w", "_token", "_s")
    return {
        (one.case_id, one.metric): one.value
        for one in verdicts
        if not one.metric.endswith(moves) or one.metric.startswith("acceptance")
    }


def test_workers_record_and_judge_as_a_plain_run_does(suite: Suite) -> None:
    recorded = suite.record("--specreg-workers=2")
    assert "--specreg-workers: 1 at once, because of the processors: " in recorded.stdout
    assert sorted(suite.recorded()) == [
        f"vllm-{method}-tiny-toy-c{load}" for method in ("eagle3", "none") for load in (1, 4)
    ]
    plain = suite.run("tests/perf", "-q", "--specreg-inconclusive=warn-speed")
    before, measured = outcomes(suite), values(suite)
    many = suite.run(
        "tests/perf", "-q", "--specreg-inconclusive=warn-speed", "--specreg-workers=auto"
    )
    assert outcomes(suite).keys() == before.keys(), plain.stdout + many.stdout
    assert values(suite) == measured
    assert "lossless_frac" in {metric for _, metric in outcomes(suite)}
    assert "servers ran for" in many.stdout
    logs = {path.name for path in max(suite.runs.iterdir()).glob("logs/*.log")}
    assert {
        "vllm-eagle3-tiny.log",
        "vllm-none-tiny.log",
        "vllm-none-tiny-beside-vllm-eagle3-tiny.log",
    } <= logs


def test_a_loss_is_looked_at_again_on_a_fresh_launch_of_a_worker(suite: Suite) -> None:
    suite.record()
    suite.script = Script(acceptance_probs=(0.3, 0.2, 0.1))
    done = suite.run("tests/perf", "-q", "-k", "eagle3 and acceptance", "--specreg-workers=2")
    assert done.returncode == 1, done.stdout
    assert "REGRESSED" in set(outcomes(suite).values())
    logs = {path.name for path in max(suite.runs.iterdir()).glob("logs/*.log")}
    assert "vllm-eagle3-tiny-launch2.log" in logs


def test_an_attached_server_has_no_workers(suite: Suite) -> None:
    done = suite.run(
        "tests/perf", "-q", "--specreg-attach=http://127.0.0.1:9", "--specreg-workers=2"
    )
    assert done.returncode == 4
    assert "--specreg-attach with --specreg-workers" in done.stderr
