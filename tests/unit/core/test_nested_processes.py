"""A run that is itself supervised, as a shard on Ray is, leaves nothing when the outer one dies."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from specreg.core.shared_memory import SHARED_MEMORY
from tests.faults.running import MARK, marked, wait_until
from tests.unit import builders

# Holds a file in shared memory and says that it runs.
HOLDING = """
import os, pathlib, signal, subprocess, sys, time
folder, shared = pathlib.Path(sys.argv[1]), open(sys.argv[2], "wb")
def ignore(*numbers):
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)
def go_on():
    (folder / "ready").write_text("")
    while True:
        time.sleep(0.02)
        try:
            (folder / "temporary" / f"made-{time.monotonic_ns()}").write_text("")
        except OSError:
            pass
"""
SERVERS = {
    "ignores-term": HOLDING + "ignore(signal.SIGTERM)\ngo_on()",
    "ignores-term-and-int": HOLDING + "ignore(signal.SIGTERM, signal.SIGINT)\ngo_on()",
    "forks": HOLDING + "ignore(signal.SIGTERM)\nos.fork()\ngo_on()",
    "daemonizes": HOLDING
    + "ignore(signal.SIGTERM)\nif os.fork():\n    os._exit(0)\nos.setsid()\nif os.fork():\n"
    "    os._exit(0)\ngo_on()",
    "is-stopped": HOLDING
    + "(folder / 'ready').write_text('')\nos.kill(os.getpid(), signal.SIGSTOP)\ngo_on()",
}
# The run: starts the server, as pytest does.
RUN = """
import os, pathlib, sys, time
from specreg.core.interrupts import interrupt_on_signals
from specreg.core.processes import start_process, stop_process
interrupt_on_signals()
folder, program, shared = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
temporary = folder / "temporary" / "of-server"
server = start_process(
    (sys.executable, "-c", program, str(folder), shared),
    environment=os.environ,
    log_path=temporary / "log",
    cwd=folder,
    temporary=temporary,
)
try:
    time.sleep(120)
finally:
    stop_process(server)
"""
# Ends a process, and is killed before it has removed the temporary folder.
ENDING = """
import os, pathlib, sys, time
from specreg.core.processes import end_process, start_process
folder = pathlib.Path(sys.argv[1])
temporary = folder / "temporary"
process = start_process(
    (sys.executable, "-c", "pass"),
    environment=os.environ,
    log_path=temporary / "log",
    cwd=folder,
    temporary=temporary,
)
end_process(process)
(folder / "ready").write_text("")
time.sleep(120)
"""
# What runs the run, as a task of Ray does.
TASK = f"""
import os, pathlib, sys
from specreg.core.processes import start_process, stop_process
temporary = pathlib.Path(sys.argv[1], "temporary")
run = start_process(
    (sys.executable, "-c", {RUN!r}, *sys.argv[1:]),
    environment=os.environ,
    log_path=temporary / "log",
    cwd=pathlib.Path({str(builders.ROOT)!r}),
    temporary=temporary,
)
try:
    run.popen.wait()
finally:
    stop_process(run)
"""


@pytest.fixture
def shared() -> Iterator[Path]:
    path = SHARED_MEMORY / f"specreg-test-{uuid.uuid4().hex[:8]}"
    yield path
    path.unlink(missing_ok=True)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder whose name marks the processes of a test; what a failed test left is killed."""
    yield tmp_path
    for process in marked(tmp_path):
        process.kill()


@pytest.mark.parametrize(
    ("number", "server"),
    [
        *((signal.SIGKILL, server) for server in SERVERS),
        (signal.SIGTERM, "ignores-term"),
        (signal.SIGINT, "ignores-term"),
        (signal.SIGINT, "ignores-term-and-int"),
    ],
)
def test_a_task_that_is_killed_leaves_nothing_of_its_run(
    folder: Path, shared: Path, number: signal.Signals, server: str
) -> None:
    command = (sys.executable, "-c", TASK, str(folder), SERVERS[server], str(shared))
    environment = os.environ | {MARK: str(folder)}
    with subprocess.Popen(command, cwd=builders.ROOT, env=environment) as task:
        wait_until((folder / "ready").exists, 20)
        task.send_signal(number)
        task.wait(20)
    wait_until(lambda: not marked(folder), 20)
    time.sleep(0.5)
    assert not marked(folder)
    assert not (folder / "temporary").exists()
    assert not shared.exists()


def test_a_task_that_is_killed_after_its_run_has_ended_leaves_no_folder(folder: Path) -> None:
    """It packs the run then, which takes a while."""
    command = (sys.executable, "-c", ENDING, str(folder))
    environment = os.environ | {MARK: str(folder)}
    with subprocess.Popen(command, cwd=builders.ROOT, env=environment) as task:
        wait_until((folder / "ready").exists, 20)
        assert (folder / "temporary/log").exists()
        task.kill()
    wait_until(lambda: not (folder / "temporary").exists(), 20)
    wait_until(lambda: not marked(folder), 20)


# Starts a process with a folder and a file of its own, and says that it is about to.
BEGINNING = """
import os, pathlib, sys
from specreg.core.processes import new_temporary, start_process
temporary = new_temporary()
print(flush=True)
process = start_process(
    (sys.executable, "-c", "import time; time.sleep(120)"),
    environment=os.environ,
    log_path=temporary / "log",
    cwd=pathlib.Path(sys.argv[1]),
    temporary=temporary,
    files={temporary / "files/config": "text"},
)
process.popen.wait()
"""


@pytest.mark.parametrize("moment_ms", range(0, 60, 3))
def test_a_start_that_is_killed_at_any_moment_leaves_nothing(folder: Path, moment_ms: int) -> None:
    command = (sys.executable, "-c", BEGINNING, str(folder))
    environment = os.environ | {MARK: str(folder), "TMPDIR": str(folder)}
    with subprocess.Popen(
        command, cwd=builders.ROOT, env=environment, stdout=subprocess.PIPE
    ) as starter:
        assert starter.stdout is not None
        starter.stdout.readline()
        time.sleep(moment_ms / 1000)
        starter.kill()
    # A process that is about to run its program shows no mark for a moment.
    wait_until(lambda: not marked(folder) and not list(folder.iterdir()), 20)
