"""Nothing that was started is left, whatever it did to get away."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from specreg.core.descendants import living
from specreg.core.processes import (
    SupervisedProcess,
    child_process,
    process_ids,
    resident_bytes,
    settle_log,
    start_process,
    stop_process,
)
from specreg.core.shared_memory import SHARED_MEMORY, remove_shared, shared_files, used_by
from tests.unit import builders
from tests.unit.builders.processes import lives
from tests.unit.builders.started_servers import at_most

# Starts a child in a session of its own, and ends before it.
PARENT = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", sys.argv[1]], start_new_session=True)
"""
# Ignores SIGTERM, and says its process id.
DEAF = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(os.getpid(), flush=True)
time.sleep(120)
"""

KILLED = "os.kill(os.getpid(), signal.SIGKILL)"

SLEEPING = """
import os, time
print(os.getpid(), flush=True)
time.sleep(120)
"""

# Its child begins anew without an environment, in the same session.
FORGETFUL = """
import subprocess, sys, time
child = subprocess.Popen(("env", "-i", "/bin/sleep", "120"))
print(child.pid, flush=True)
time.sleep(float(sys.argv[1]))
"""
# Its first thread ends, and another goes on.
HEADLESS = """
import ctypes, os, threading, time
threading.Thread(target=time.sleep, args=(120,)).start()
print(os.getpid(), flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""
# Starts programs that ignore SIGTERM, each with a log and a folder of its own.
STARTING = f"""
import contextlib, os, pathlib, signal, sys, time
from specreg.core import processes
from specreg.core.errors import UnkillableError
from specreg.core.processes import start_process, stop_process
folder = pathlib.Path(sys.argv[1])
def start(name):
    log_path, temporary = folder / name, folder / (name + "-temporary")
    command = (sys.executable, "-c", {DEAF!r})
    process = start_process(
        command, environment=os.environ, log_path=log_path, cwd=folder, temporary=temporary
    )
    while not log_path.read_text().endswith("\\n"):
        time.sleep(0.01)
    return process
"""


def start(folder: Path, *program: str, **environment: str) -> SupervisedProcess:
    return start_process(
        (sys.executable, "-c", *program),
        environment=os.environ | environment,
        log_path=folder / "log",
        cwd=folder,
    )


def await_pid(log_path: Path) -> int:
    with at_most(10):
        while not (log := log_path.read_text()).endswith("\n"):
            time.sleep(0.01)
    return int(log)


def test_a_deaf_grandchild_in_its_own_session_is_gone(tmp_path: Path) -> None:
    log_path = tmp_path / "log"
    process = start(tmp_path, PARENT, DEAF)
    grandchild = await_pid(log_path)
    process.popen.wait()  # from here on nobody is the grandchild's parent but init
    assert os.getsid(grandchild) == grandchild != process.popen.pid
    stop_process(process)
    assert not lives(grandchild)
    assert not lives(process.popen.pid)
    assert process.popen.returncode is not None


@pytest.mark.parametrize("marked_s", [0.0, 120.0], ids=["leader-ended", "leader-lives"])
def test_a_child_that_wrote_over_its_environment_is_gone(tmp_path: Path, marked_s: float) -> None:
    """As setproctitle does; it stays in our session, though."""
    log_path = tmp_path / "log"
    process = start(tmp_path, FORGETFUL, str(marked_s))
    child = await_pid(log_path)
    with at_most(10):
        while psutil.Process(child).name() != "sleep":
            time.sleep(0.01)
    assert psutil.Process(child).environ() == {}
    if not marked_s:
        process.popen.wait()
    stop_process(process)
    assert not lives(child)
    assert process.popen.returncode is not None


# Its grandchild begins anew without an environment, in a session of its own, and ends with a third.
DAEMON = """
import os, signal, subprocess, sys, time
if os.fork():
    time.sleep(120)
os.setsid()
if os.fork():
    os._exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.setsid()
daemon = "import os, time; print(os.getpid(), flush=True); time.sleep(120)"
os.execve(sys.executable, (sys.executable, "-c", daemon), {})
"""


@pytest.mark.parametrize("ends", ["stopped", "killed"])
def test_a_daemon_that_keeps_nothing_of_its_server_is_gone(tmp_path: Path, ends: str) -> None:
    """Neither session nor environment nor parent."""
    if ends == "stopped":
        process = start(tmp_path, DAEMON)
        daemon = await_pid(tmp_path / "log")
        stop_process(process)
    else:
        program = STARTING.replace(repr(DEAF), repr(DAEMON)) + f"start('log')\n{KILLED}"
        command = (sys.executable, "-c", program, str(tmp_path))
        subprocess.run(command, check=False, cwd=builders.ROOT)
        daemon = await_pid(tmp_path / "log")
    with at_most(8):
        while lives(daemon):
            time.sleep(0.01)


def test_a_process_whose_first_thread_ended_is_gone(tmp_path: Path) -> None:
    """It looks like one that only waits to be reaped, and can't be before its last thread ends."""
    process = start(tmp_path, HEADLESS)
    process_id = await_pid(tmp_path / "log")
    while psutil.Process(process_id).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    assert process.popen.poll() is None
    assert process_ids(process) == {process_id}
    with at_most(8):
        stop_process(process)
    assert process.popen.returncode is not None


SPARING = f"""{STARTING}
processes._KILL_S, processes._GONE_S, processes._REAPED_S = 0.5, 1.0, 0.5
try:
    stop_process(start("log"), grace_s=0.5)
except UnkillableError as error:
    print(error)
"""


def test_what_cannot_be_killed_is_named_and_not_waited_for(tmp_path: Path) -> None:
    path = f"{builders.ROOT / 'tests/faults/unkillable'}:{builders.ROOT}"
    done = subprocess.run(
        (sys.executable, "-c", SPARING, str(tmp_path)),
        env=os.environ | {"PYTHONPATH": path, "UNKILLABLE": "SIG_IGN"},
        check=True,
        capture_output=True,
        text=True,
        timeout=40,
    )
    process_id = await_pid(tmp_path / "log")
    assert not lives(process_id), "its supervisor isn't planted"
    assert done.stdout.startswith(f"process {process_id} ({psutil.Process().name()}, user ")
    assert "): still there 1.5 s after" in done.stdout


# Stops two on Ctrl-C, one after the other.
INTERRUPTED = f"""{STARTING}
with contextlib.ExitStack() as stack:
    for name in "ab":
        stack.callback(stop_process, start(name))
    print(flush=True)
    time.sleep(60)
"""


def test_a_second_ctrl_c_waits_for_no_server_of_several(tmp_path: Path) -> None:
    """Each is asked for 5 s else."""
    command = (sys.executable, "-c", INTERRUPTED, str(tmp_path))
    with subprocess.Popen(
        command, cwd=builders.ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as run:
        assert run.stdout is not None
        run.stdout.readline()
        run.send_signal(signal.SIGINT)
        time.sleep(1)
        assert [lives(await_pid(tmp_path / name)) for name in "ab"] == [True, True]
        run.send_signal(signal.SIGINT)
        run.wait(timeout=4)
    assert [lives(await_pid(tmp_path / name)) for name in "ab"] == [False, False]


@pytest.mark.parametrize("end", ["", KILLED], ids=["at-our-end", "killed"])
def test_what_is_left_ends_with_us(tmp_path: Path, end: str) -> None:
    """By its supervisor where we are killed, which removes its temporary folder in any case."""
    log_path = tmp_path / "log"
    program = f"{STARTING}print(start('log').supervisor.pid, flush=True)\n{end}"
    command = (sys.executable, "-c", program, str(tmp_path))
    done = subprocess.run(command, check=False, cwd=builders.ROOT, capture_output=True)
    assert done.returncode == (-signal.SIGKILL if end else 0)
    process_id = await_pid(log_path)
    assert end or not lives(process_id), "it is killed before we end"
    with at_most(30):
        while lives(process_id) or lives(int(done.stdout)):
            time.sleep(0.01)
    assert not (tmp_path / "log-temporary").exists()


def test_a_supervisor_goes_with_what_it_watches(tmp_path: Path) -> None:
    process = start(tmp_path, SLEEPING)
    process_id = await_pid(tmp_path / "log")
    assert living(process.supervisor.pid) == [process_id]
    stop_process(process)
    assert process.supervisor.returncode == 0
    assert not lives(process_id)
    assert process_ids(process) == frozenset()


def test_a_supervisor_that_is_killed_takes_its_program_with_it(tmp_path: Path) -> None:
    process = start(tmp_path, SLEEPING)
    process_id = await_pid(tmp_path / "log")
    process.supervisor.kill()
    with at_most(5):
        assert process.popen.wait() == -signal.SIGKILL
        settle_log(process)
        stop_process(process)
    assert not lives(process_id)


def test_both_streams_go_to_the_log_without_a_secret(tmp_path: Path) -> None:
    """Nor is it in the list of processes; the program leads its own session."""
    program = (
        "import os, sys, time; print('out', os.getcwd(), flush=True);"
        "print('err', os.getsid(0) == os.getpid(), file=sys.stderr);"
        "w = sys.stdout.write; w(os.environ['MY_TOKEN'][:4]); sys.stdout.flush(); time.sleep(0.5);"
        "w(os.environ['MY_TOKEN'][4:] + '\\nhttp://me:planted-2@host\\n'); sys.exit(7)"
    )
    secret = {"MY_TOKEN": "planted-1"}
    process = start(tmp_path, program, **secret)
    assert "planted-1" not in " ".join(psutil.Process(process.supervisor.pid).cmdline())
    process.popen.wait()
    stop_process(process)
    expected = f"out {tmp_path}\nerr True\nHIDDEN\nhttp://me:HIDDEN@host\n"
    assert (tmp_path / "log").read_text() == expected
    assert process.popen.returncode == 7


def test_a_program_that_is_not_there_is_an_error_of_the_system(tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        start_process(
            (str(tmp_path / "no-such-program"),),
            environment={},
            log_path=temporary / "log",
            cwd=tmp_path,
            temporary=temporary,
        )
    assert not temporary.exists()


def test_a_temporary_folder_is_its_owner_s_and_goes_with_the_process(tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    config = temporary / "files/config"
    process = start_process(
        (sys.executable, "-c", "print('said')"),
        environment=os.environ,
        log_path=temporary / "log",
        cwd=tmp_path,
        temporary=temporary,
        files={config: "a text"},
    )
    assert temporary.stat().st_mode & 0o777 == 0o700
    assert config.read_text() == "a text"
    process.popen.wait()
    assert process.last_lines() == "said"
    stop_process(process)
    assert not temporary.exists()


# Holds some memory, in a child of a session of its own too; says when it does.
HOLDING = """
import os, subprocess, sys, time
held = bytearray(b"x" * 40 * 2**20)
if len(sys.argv) > 1:
    child = (sys.executable, "-c", sys.argv[1])
    subprocess.Popen(child, stdout=subprocess.PIPE, start_new_session=True).stdout.readline()
print(os.getpid(), flush=True)
time.sleep(120)
"""


def test_the_memory_of_all_its_processes_is_counted(tmp_path: Path) -> None:
    process = start(tmp_path, HOLDING, HOLDING)
    try:
        await_pid(tmp_path / "log")
        held_mib = resident_bytes(process) / 2**20
        ids = process_ids(process)
    finally:
        stop_process(process)
    assert 2 * 40 < held_mib < 2 * 40 + 60
    assert len(ids) == 2
    assert process.popen.pid in ids
    assert resident_bytes(process) == 0


def test_all_that_was_said_is_on_disk_once_it_is_asked_for(tmp_path: Path) -> None:
    process = start(tmp_path, "print('said'); print('no end', end='')")
    process.popen.wait()
    for end in (settle_log, stop_process, settle_log):
        end(process)
        assert (tmp_path / "log").read_text() == "said\nno end"


class Word(msgspec.Struct):
    text: str


# Gives each message back, louder, and prints one for people.
LOUD = """
import json, sys
print("hello", file=sys.stderr, flush=True)
for line in sys.stdin:
    print(json.dumps({"text": json.loads(line)["text"].upper()}), flush=True)
"""


def test_a_child_takes_and_gives_messages_and_prints_into_its_log(tmp_path: Path) -> None:
    command = (sys.executable, "-c", LOUD)
    with child_process(command, log_path=tmp_path / "log") as child:
        for text in ("one", "two"):
            child.send(Word(text))
            assert child.receive(Word) == Word(text.upper())
        assert child.last_lines() == "hello"
        child.popen.kill()
        child.popen.wait()
        child.send(Word("x" * 2**20))
        assert child.receive(Word) is None
    path = tmp_path / "kept"
    with (
        path.open("wb") as output,
        child_process(command, log_path=tmp_path / "log", output=output) as child,
    ):
        child.send(Word("one"))
        while not path.read_bytes().endswith(b"\n"):
            time.sleep(0.01)
    assert msgspec.json.decode(path.read_bytes()) == {"text": "ONE"}


# Has a file there: open, mapped alone, or as glibc makes a semaphore: mapped under another name,
# which is then taken away. Says so, and waits.
SHARING = """
import mmap, os, sys
name = sys.argv[1] + ("-first" if sys.argv[2] == "linked" else "")
file = open(name, "w+b")
file.truncate(mmap.PAGESIZE)
if sys.argv[2] == "linked":
    os.link(name, sys.argv[1])
    os.unlink(name)
if sys.argv[2] != "open":
    held = mmap.mmap(file.fileno(), mmap.PAGESIZE)
    file.close()
print(flush=True)
sys.stdin.read()
"""


@pytest.fixture
def shared() -> Iterator[Path]:
    path = SHARED_MEMORY / f"specreg-test-{uuid.uuid4().hex[:8]}"
    yield path
    path.unlink(missing_ok=True)


@pytest.mark.parametrize("how", ["open", "mapped", "linked"])
def test_what_a_process_leaves_in_shared_memory_goes_with_it_and_not_before(
    shared: Path, how: str
) -> None:
    command = (sys.executable, "-c", SHARING, str(shared), how)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert shared.name in shared_files()
        assert used_by([process.pid]) == {shared.name}
        remove_shared([shared.name])
        assert shared.exists(), "it is in use"
    assert shared.exists()
    assert used_by([process.pid]) == set()
    remove_shared([shared.name, "no-such-file"])
    assert not shared.exists()


# Makes a semaphore every 25 ms and keeps it, as a server does that starts many processes.
MAKING = """
import itertools, os, signal, sys, time
from _multiprocessing import SemLock
if sys.argv[2] == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(os.getpid(), flush=True)
kept = []
for number in itertools.count():
    kept.append(SemLock(1, 1, 1, f"/{sys.argv[1]}-{number}", False))
    time.sleep(0.025)
"""
# Starts it, and is killed.
MAKING_RUN = f"""{STARTING.partition("def start")[0]}
log_path = folder / "log"
start_process(
    (sys.executable, "-c", {MAKING!r}, *sys.argv[2:4]),
    environment=os.environ, log_path=log_path, cwd=folder,
)
while not log_path.read_text().endswith("\\n"):
    time.sleep(0.01)
time.sleep(float(sys.argv[4]))
{KILLED}
"""


@pytest.mark.parametrize("moment_ms", range(100, 130, 5))
@pytest.mark.parametrize("hears", ["hears", "deaf"])
def test_no_semaphore_is_left_of_a_server_that_makes_them_all_the_time(
    tmp_path: Path, hears: str, moment_ms: int
) -> None:
    """Whether specreg ends it or is killed itself."""
    names = []
    for ends in ("stopped", "killed"):
        name = f"specreg-test-{uuid.uuid4().hex[:8]}"
        names.append(name)
        if ends == "stopped":
            process = start(tmp_path, MAKING, name, hears)
            server = await_pid(tmp_path / "log")
            time.sleep(moment_ms / 1000)
            stop_process(process, grace_s=0.3)
        else:
            arguments = (str(tmp_path), name, hears, str(moment_ms / 1000))
            command = (sys.executable, "-c", MAKING_RUN, *arguments)
            subprocess.run(command, check=False, cwd=builders.ROOT)
            server = await_pid(tmp_path / "log")
        with at_most(10):
            while lives(server):
                time.sleep(0.01)
    with at_most(5):
        while any(name in file for name in names for file in shared_files()):
            time.sleep(0.05)
