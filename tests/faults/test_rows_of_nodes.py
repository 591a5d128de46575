"""The faults of servers that span nodes, here two of one machine; each test is named by its row."""

import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.doubles.vllm.script import Script
from tests.faults.running import CASES, MATRIX, ROOT, Hurt, lives, print_time, wait_until

NODES = (
    "--specreg-nodes=127.0.0.1,localhost",
    "--specreg-node-command=env NODE={host}",
)
SPREAD = "parallel = { tensor = 2, nodes = 2 }"
SCRIPTED = 'OMP_NUM_THREADS = "1"'
"""A variable of the case, beside which the way to the scripted server stands: all nodes get it."""
LOGS = ("-2-node1", "-2", "-node1", "")


@pytest.fixture
def run(tmp_path: Path) -> Hurt:
    """A run whose server has a part on another node."""
    way = f'PYTHONPATH = "{ROOT / "tests" / "scripted"}"'
    matrix = MATRIX.replace(SCRIPTED, f"{SCRIPTED}, {way}")
    return Hurt(folder=tmp_path, settings=SPREAD, matrix=matrix)


def part_of(run: Hurt) -> psutil.Process:
    """The engine's process on the other node."""
    (part,) = [one for one in run.processes() if "--headless" in one.cmdline()]
    return part


def outpost_of(run: Hurt) -> psutil.Process:
    """What started it there."""
    (outpost,) = [one for one in run.processes() if "specreg.servers.outpost" in one.cmdline()]
    return outpost


@pytest.mark.parametrize("victim", [part_of, outpost_of], ids=["part", "connection"])
def test_row_04_a_part_that_is_gone_in_the_run(
    run: Hurt, victim: Callable[[Hurt], psutil.Process]
) -> None:
    with run.start(*NODES) as pytest_run:
        wait_until(run.is_measuring(CASES[1]))
        victim(run).kill()
        output, _ = pytest_run.communicate(timeout=run.patience_s)
    assert [run.attempts(case) for case in CASES] == [1, 2, 1]
    assert "its part on localhost ended with status" in output
    assert run.logs() == [f"vllm-ngram-tiny{part}.log" for part in LOGS]
    assert run.left() == []


def test_row_06_pytest_is_killed(run: Hurt) -> None:
    with run.start(*NODES) as pytest_run:
        wait_until(run.is_measuring())
        part = part_of(run)
        pytest_run.kill()
        took_s = wait_until(lambda: not run.left(), within_s=10)
        print_time(took_s)
        assert took_s < 5
    assert not lives(part)


def test_row_06_pytest_is_killed_and_a_part_is_deaf(run: Hurt) -> None:
    """On one machine the far end is killed with all else here, and its own watchdog goes on."""
    run.script = Script(step_ms=8.0, ignore_sigterm=True)
    with run.start(*NODES) as pytest_run:
        wait_until(run.is_measuring())
        part = part_of(run)
        pytest_run.kill()
        print_time(wait_until(lambda: not run.left(), within_s=15))
    assert not lives(part)


def test_row_07_ctrl_c(run: Hurt) -> None:
    with run.start(*NODES) as pytest_run:
        wait_until(run.is_measuring(CASES[1]))
        part = part_of(run)
        pytest_run.send_signal(signal.SIGINT)
        output, _ = pytest_run.communicate(timeout=run.patience_s)
    assert pytest_run.returncode == 2
    assert "--specreg-resume" in output
    assert not lives(part)
    assert run.left() == []


def test_row_07_ctrl_c_twice(run: Hurt) -> None:
    """Each is asked for 5 s by the first alone."""
    run.script = Script(step_ms=8.0, ignore_sigterm=True)
    with run.start(*NODES) as pytest_run:
        wait_until(run.is_measuring())
        part = part_of(run)
        pytest_run.send_signal(signal.SIGINT)
        time.sleep(0.3)
        pytest_run.send_signal(signal.SIGINT)
        took_s = wait_until(lambda: not run.left())
    print_time(took_s, 5)
    assert not lives(part)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "parallel.nodes = 2: --specreg-nodes names none; name as many, this one first"),
        (
            (*NODES, "--specreg-workers=auto"),
            "--specreg-nodes with --specreg-workers: each worker measures on GPUs of one machine",
        ),
        (
            ("--specreg-nodes=192.0.2.1,localhost", NODES[1]),
            "--specreg-nodes: '192.0.2.1' isn't this machine",
        ),
        (
            (NODES[0], "--specreg-node-command=ssh"),
            "--specreg-node-command 'ssh': doesn't say {host}",
        ),
    ],
    ids=["no-nodes", "workers", "another-first", "no-host"],
)
def test_what_cannot_be_is_said_before_anything_starts(
    run: Hurt, arguments: tuple[str, ...], words: str
) -> None:
    done = run.run(*arguments)
    assert done.returncode == 4
    assert words in done.stdout
    assert run.logs() == []
