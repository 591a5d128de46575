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

from specreg.measurement.journal import load_journal
from tests.doubles.vllm.script import Script
from tests.faults.running import MARK, lives, marked, wait_until
from tests.plugin.conftest import Suite, decided
from tests.unit.builders.sharded_runs import CASES, CHOSEN, TIER

KILLS = int(os.environ.get("SPECREG_KILLS", "10"))


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suite:
    """A suite whose processes are marked."""
    made = Suite(tmp_path)
    made.write_tier(TIER)
    made.script = Script(step_ms=5.0)
    monkeypatch.setenv(MARK, str(tmp_path))
    return made


def finished(folder: Path) -> set[str]:
    """The cases whose measurements have ended, by the journals in a folder."""
    found: set[str] = set()
    for path in folder.rglob("journal.jsonl"):
        found |= {key.case_id for key in load_journal(path)}
    return found


@pytest.mark.parametrize("seed", range(KILLS))
def test_a_worker_that_is_killed_loses_no_finished_case(suite: Suite, seed: int) -> None:
    random_s = random.Random(seed).uniform(0.0, 12.0)  # noqa: S311 - a moment, no secret
    run = suite.start(*CHOSEN, "-n", "2")
    wait_until(lambda: any(suite.runs.glob("*/shards/*/plan.json")), 120)
    (folder,) = suite.runs.iterdir()
    time.sleep(random_s)
    workers = [one for one in psutil.Process(run.pid).children() if lives(one)]
    before = finished(folder)
    if workers:
        workers[seed % len(workers)].send_signal(signal.SIGKILL)
    output, _ = run.communicate(timeout=240)
    wait_until(lambda: not marked(suite.folder), 20)
    verdict = decided(folder)
    assert {one.case_id for one in verdict.verdicts} == CASES, output
    lost = {one.case_id for one in verdict.verdicts if one.outcome == "INVALID"}
    assert not lost & before, output
    for one in verdict.verdicts:
        assert one.outcome != "INVALID" or "died before it was done" in one.explanation, one


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
    died = [one for one in suite.runs.glob("*-2of2") if (one / "plan.json").exists()]
    done = suite.merge(*suite.runs.glob("*-1of2"), *died, into=into)
    verdict = decided(into)
    assert {one.case_id for one in verdict.verdicts} == CASES, done.stdout + done.stderr
    valid = {one.case_id for one in verdict.verdicts if one.outcome != "INVALID"}
    assert valid >= finished(suite.runs), done.stdout
    if valid != CASES:
        assert "shard 2/2" in done.stdout
        assert done.returncode == 10
