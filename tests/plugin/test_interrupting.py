"""A run that is cut short takes its servers with it."""

import contextlib
import json
import signal
import subprocess

import psutil
import pytest

from tests.doubles.screen import lines_of
from tests.doubles.vllm.script import Fault, Script
from tests.faults.running import MARK, marked, wait_until
from tests.plugin.conftest import Suite, decided

SLOW = Script(step_ms=20.0)
"""A run takes long enough to be cut short."""


def start(suite: Suite, *arguments: str) -> subprocess.Popen[str]:
    """The suite in a process of its own; it and its servers carry the suite's folder as a mark."""
    return suite.start("-q", "tests/perf", *arguments, **{MARK: str(suite.folder)})


def servers(suite: Suite) -> int:
    """How many of the suite's servers run."""
    count = 0
    for process in marked(suite.folder):
        with contextlib.suppress(psutil.Error):  # it went away meanwhile
            count += "vllm.entrypoints" in " ".join(process.cmdline())
    return count


def has_measured(suite: Suite) -> bool:
    """Whether a case of the run was measured."""
    return any(b'"Measured"' in path.read_bytes() for path in suite.runs.glob("*/ledger.jsonl"))


def test_a_run_that_is_interrupted_while_a_pair_starts_leaves_neither(suite: Suite) -> None:
    suite.script = Script(fault=Fault.NEVER_READY)
    with start(suite, "-k", "eagle3 and c1") as run:
        wait_until(lambda: servers(suite) > 1)  # so the second began before the first was ready
        run.send_signal(signal.SIGINT)
        output, _ = run.communicate(timeout=60)

    assert run.returncode in {pytest.ExitCode.INTERRUPTED, -signal.SIGINT}, output
    assert not marked(suite.folder)


ALARM = """
import signal
import pytest

def fail(*_):
    pytest.fail("Timeout from the plugin")

@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol():
    signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, 15.0)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
"""
"""Ends a test as pytest-timeout does by its method `signal`."""


def test_a_case_that_hangs_is_ended_by_the_alarm_of_a_plugin(suite: Suite) -> None:
    suite.script = Script(step_ms=5000.0)
    (suite.folder / "alarm_plugin.py").write_text(ALARM)
    suite.python_path = suite.folder
    with start(suite, "-k", "eagle3 and c1 and acceptance", "-p", "alarm_plugin") as run:
        output, _ = run.communicate(timeout=150)

    assert run.returncode == pytest.ExitCode.TESTS_FAILED, output
    assert "Timeout from the plugin" in output
    assert "INTERNALERROR" not in output
    assert not marked(suite.folder)
    (ledger,) = suite.runs.glob("*/ledger.jsonl")
    lines = ledger.read_bytes().splitlines()
    assert lines
    assert all(json.loads(line)["type"] != "Measured" for line in lines)
    assert decided(ledger.parent).exit_status == pytest.ExitCode.TESTS_FAILED


def test_a_run_under_nohup_goes_on_after_ctrl_c_and_is_ended_by_sigterm(suite: Suite) -> None:
    """What a shell has ignored for it stays ignored, as POSIX wants of a job behind it."""
    suite.script = SLOW
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        run = start(suite)
    finally:
        signal.signal(signal.SIGINT, before)
    with run:
        wait_until(lambda: servers(suite) > 0)
        run.send_signal(signal.SIGINT)
        wait_until(lambda: has_measured(suite))
        run.send_signal(signal.SIGTERM)
        output, _ = run.communicate(timeout=60)

    assert run.returncode == pytest.ExitCode.INTERRUPTED, output
    assert not marked(suite.folder)


def test_ctrl_c_in_a_terminal_leaves_it_in_order(suite: Suite) -> None:
    """Nothing is written below the summary by a thread that goes on."""
    suite.script = SLOW

    shown = suite.run_in_terminal("tests/perf", interrupt_once="measuring vllm-none")

    assert not any("case 1 of 4:" in line for line in lines_of(shown))
    end = shown.partition("= specreg: tier cpu")[2]
    assert "no tests ran" in end.splitlines()[-1]
    assert "lost sys.stderr" not in end


RED = """
import pytest

@pytest.mark.family("acceptance")
def test_red(control, server, case, metric):
    assert metric is None
"""


def test_a_recording_that_x_stops_says_so_and_how_to_go_on(suite: Suite) -> None:
    red = suite.folder / "test_red.py"
    red.write_text(RED)
    update = ("--update-baselines", "--reason=test", "--specreg-launches=1", "-k", "eagle3 and c1")

    done = suite.run("tests/perf", str(red), "-x", *update)

    assert "no baseline was written: -x or --maxfail stopped the run" in done.stdout
    assert "type the same command with --specreg-resume" in done.stdout
    assert not suite.recorded()


def test_an_interrupted_recording_writes_nothing_until_it_is_continued(suite: Suite) -> None:
    suite.script = Script(step_ms=8.0)
    update = ("--update-baselines", "--reason=test", "--specreg-launches=1", "-k", "eagle3")
    with start(suite, *update) as run:
        wait_until(lambda: has_measured(suite))
        run.send_signal(signal.SIGINT)
        output, _ = run.communicate(timeout=60)

    assert "no baseline was written: the run was interrupted" in output
    assert not suite.recorded()

    suite.script = Script()
    done = suite.run("tests/perf", "-q", *update, "--specreg-resume")
    assert done.returncode == 0, done.stdout
    assert "taken over from the interrupted run: vllm-eagle3-tiny-toy-c1\n" in done.stdout
    assert set(suite.recorded()) == {"vllm-eagle3-tiny-toy-c1", "vllm-eagle3-tiny-toy-c4"}
