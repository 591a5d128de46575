"""A worker, or a whole run, that is killed at a seeded moment: what had ended stays.

`SPECREG_KILLS=50 nox -s shards -- -k killed` kills as many times.
"""

import contextlib
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from specreg.runs.ledger import read_ledger
from tests.doubles.vllm.script import Script
from tests.faults.running import MARK, lives, marked, wait_until
from tests.plugin.conftest import Suite, decided
from tests.unit.builders.sharded_runs import CASES, CHOSEN, TIER

KILLS = int(os.environ.get("SPECREG_KILLS", "10"))


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suite:
    """A suite whose processes are marked."""
    new_suite = Suite(tmp_path)
    new_suite.write_tier(TIER)
    new_suite.script = Script(step_ms=5.0)
    monkeypatch.setenv(MARK, str(tmp_path))
    return new_suite


def finished(folder: Path) -> set[str]:
    """The cases whose measurements have ended, by the ledgers in a folder."""
    finished_cases: set[str] = set()
    for path in folder.rglob("ledger.jsonl"):
        finished_cases |= {key.case_id for key in read_ledger(path).measured}
    return finished_cases


@pytest.mark.parametrize("seed", range(KILLS))
def test_a_worker_that_is_killed_loses_no_finished_case(suite: Suite, seed: int) -> None:
    random_s = random.Random(seed).uniform(0.0, 12.0)  # noqa: S311 - a moment, no secret
    run = suite.start(*CHOSEN, "-n", "2")
    wait_until(lambda: any(suite.runs.glob("*/shards/*/plan.json")), 120)
    (folder,) = suite.runs.iterdir()
    time.sleep(random_s)
    workers = [process for process in psutil.Process(run.pid).children() if lives(process)]
    before = finished(folder)
    if workers:
        workers[seed % len(workers)].send_signal(signal.SIGKILL)
    output, _ = run.communicate(timeout=240)
    wait_until(lambda: not marked(suite.folder), 20)
    verdict = decided(folder)
    assert {metric_verdict.case_id for metric_verdict in verdict.verdicts} == CASES, output
    lost = {
        metric_verdict.case_id
        for metric_verdict in verdict.verdicts
        if metric_verdict.outcome == "INVALID"
    }
    assert not lost & before, output
    for metric_verdict in verdict.verdicts:
        assert (
            metric_verdict.outcome != "INVALID"
            or "died before it was done" in metric_verdict.explanation
        ), metric_verdict


@pytest.mark.parametrize("seed", range(KILLS))
def test_a_shard_that_is_killed_loses_no_finished_case(suite: Suite, seed: int) -> None:
    random_s = random.Random(seed).uniform(0.0, 12.0)  # noqa: S311 - a moment, no secret
    assert suite.run(*CHOSEN, "--specreg-shard=1/2").returncode == 11
    run = suite.start(*CHOSEN, "--specreg-shard=2/2")
    with contextlib.suppress(subprocess.TimeoutExpired):
        run.communicate(timeout=2.0 + random_s)
    run.kill()
    run.communicate()
    wait_until(lambda: not marked(suite.folder), 20)
    into = suite.folder / "merged"
    died = [path for path in suite.runs.glob("*-2of2") if (path / "plan.json").exists()]
    done = suite.merge(*suite.runs.glob("*-1of2"), *died, into=into)
    verdict = decided(into)
    assert {metric_verdict.case_id for metric_verdict in verdict.verdicts} == CASES, (
        done.stdout + done.stderr
    )
    valid = {
        metric_verdict.case_id
        for metric_verdict in verdict.verdicts
        if metric_verdict.outcome != "INVALID"
    }
    assert valid >= finished(suite.runs), done.stdout
    if valid != CASES:
        assert "shard 2/2" in done.stdout
        assert done.returncode == 10
