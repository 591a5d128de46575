"""Start child processes, exchange messages with them, and end them with all their descendants.

A server's workers may leave its process group or outlive their parent, so each process that is
started here carries a mark in its environment, which its descendants inherit. And we may be killed
ourselves, so a supervisor stands beside each: it writes the log, and ends the process then. What is
started here may start processes here in its turn, as a shard on a cluster does: each has the marks
of all above it, so that the outermost supervisor finds them all. The
signals that end a run become a `KeyboardInterrupt` each, so that it ends its processes itself.

A message is a line of JSON of a type that both sides know: ours go to the child's standard input,
its own to its standard output; what it prints for people goes to its log.
"""

import _thread
import asyncio
import atexit
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import traceback
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import IO, TypeVar

import msgspec
import psutil

from specreg.core import supervisor
from specreg.core.errors import UnkillableError
from specreg.core.readable import readable_block
from specreg.core.redaction import known_secrets, learn
from specreg.core.supervisor import Session, end_all, living, shared_files, started_ticks

_ASKED_S = 5.0
"""How long a process that is asked to end may take before it is killed, unless told otherwise."""
_KILL_S = 10.0
_GONE_S = 20.0
"""How long a killed process may take to give back its memory before it counts as unkillable."""
_REAPED_S = 5.0
_EXEC_S = 0.2
_MESSAGE_BYTES = 256 * 2**20
_TAIL_BYTES = 64 * 1024
_START_BYTES = 4 * 2**20
_TAIL_LINES = 40
_LINE_CHARACTERS = 1000
_HELD_KIB = re.compile(r"^Pss_(?:Anon|Shmem): *(\d+) kB", re.MULTILINE)
_HERE = str(Path(__file__).parents[2])
"""The folder that holds specreg, for a process that knows of no other."""

SIGNALLED: list[int] = []
"""The signals that interrupted, by number."""
_MOMENT_S = 0.01
_IDLE_S = 0.002
"""How much of a moment a thread that waits may compute."""
_BUSY_S = 1.0
"""How long a run that doesn't come to wait goes on after a signal."""
_PENDING: list[tuple[float, tuple[CodeType, int] | None, float]] = []
"""Of a signal that has yet to interrupt: when it came; place and CPU time at the last look."""

_MessageT = TypeVar("_MessageT")


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisedProcess:
    """A started process; one that exchanges messages with us ends with its input.

    Attributes:
        popen: the process; session: by which its descendants are known.
        supervisor: writes its log, removes what they leave in /dev/shm, and ends all of them when
            we are killed.
    """

    popen: subprocess.Popen[bytes]
    session: Session
    supervisor: subprocess.Popen[bytes]
    log_path: Path

    def send(self, message: object) -> None:
        """Send it a message; do nothing if it has ended."""
        _write(self.popen.stdin, msgspec.json.encode(message) + b"\n")

    def receive(self, kind: type[_MessageT]) -> _MessageT | None:
        """Wait for its next message; None where it ended."""
        stdout = self.popen.stdout
        line = stdout.readline() if stdout is not None else b""
        return msgspec.json.decode(line, type=kind) if line else None

    @contextlib.asynccontextmanager
    async def reader(self) -> AsyncIterator[asyncio.StreamReader]:
        """Return its messages, a line each, for the running event loop."""
        reader = asyncio.StreamReader(limit=_MESSAGE_BYTES)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), self.popen.stdout
        )
        try:
            yield reader
        finally:
            transport.close()

    def last_lines(self) -> str:
        """The end of what it has printed for people so far."""
        settle_log(self)
        return log_tail(self.log_path)


_RUNNING: dict[str, SupervisedProcess] = {}
"""The processes that were started and not stopped, by their marks."""


def start_process(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    log_path: Path,
    cwd: Path,
    temporary: Sequence[Path] = (),
    messages: int | IO[bytes] | None = None,
) -> SupervisedProcess:
    """Start a command in a session of its own, so that Ctrl-C reaches us and not it.

    Its `environment` is whole, but for the mark. `log_path` gets the first and the last of both
    output streams, without secrets. The supervisor removes the `temporary` folders where the caller
    can't. `messages`, `subprocess.PIPE` or a file, takes its standard output in place of the log;
    its standard input is a pipe then.

    Raises:
        OSError: the program can't be run, or the log not be written.
    """
    mark = uuid.uuid4().hex
    # setproctitle, which vLLM's workers call, writes over the environment that /proc shows.
    marks = supervisor.marks_below(os.environ, mark)
    marked = {**environment, supervisor.VARIABLE: marks, "SPT_NOENV": "1"}
    learn(environment, command)
    startup_message = {"secrets": known_secrets(), "shared": tuple(shared_files())}
    log_path.write_bytes(b"")
    hears, speaks = os.pipe()
    try:
        arguments = (_HERE, mark, str(hears), str(log_path.absolute()), *map(str, temporary))
        # In a session of its own, without our streams: it would keep pytest's pipes open.
        guard = subprocess.Popen(  # noqa: S603 - our own arguments, no shell
            (sys.executable, "-I", "-S", "-c", supervisor.MAIN, *arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, supervisor.VARIABLE: supervisor.supervisor_marks(os.environ)},
            pass_fds=(hears,),
            start_new_session=True,
            cwd="/",
        )
        try:
            # Not as arguments, which show in a list of processes.
            _tell(guard, json.dumps(startup_message))
            popen = subprocess.Popen(  # noqa: S603 - our own arguments, no shell
                command,
                env=marked,
                stdin=subprocess.DEVNULL if messages is None else subprocess.PIPE,
                stdout=speaks if messages is None else messages,
                stderr=speaks,
                start_new_session=True,
                cwd=cwd,
            )
            session = Session(mark, popen.pid, started_ticks(popen.pid))
            _tell(guard, f"{session.leader} {session.started}")
        except BaseException as error:
            if not isinstance(error, Exception):
                # Interrupted after the fork: the child can be found by its mark alone.
                time.sleep(_EXEC_S)
                end_all(Session(mark), signal.SIGKILL, _KILL_S)
            _dismiss(guard)
            raise
    finally:
        os.close(speaks)
        os.close(hears)
    _RUNNING[mark] = SupervisedProcess(
        popen=popen, session=session, supervisor=guard, log_path=log_path
    )
    return _RUNNING[mark]


@contextlib.contextmanager
def child_process(
    command: Sequence[str],
    *,
    log_path: Path,
    environment: Mapping[str, str] | None = None,
    temporary: Sequence[Path] = (),
    output: IO[bytes] | None = None,
) -> Iterator[SupervisedProcess]:
    """Run a program that exchanges messages with us for as long as the context lasts.

    As `start_process`, but with our environment and modules without one, and `output`, a file that
    keeps its messages; without it they are received.
    """
    child_environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = start_process(
        command,
        environment=child_environment if environment is None else environment,
        log_path=log_path,
        cwd=Path.cwd(),
        temporary=temporary,
        messages=output or subprocess.PIPE,
    )
    try:
        yield process
    finally:
        stop_process(process)
        _close(process.popen)


def stop_process(process: SupervisedProcess, *, asked_s: float = _ASKED_S) -> None:
    """End the process and all its descendants: asked first, killed later, then waited for.

    All that they printed is on disk then. Ctrl-C meanwhile kills whatever else runs, too.

    Args:
        process: what to end.
        asked_s: how long it may take to end by itself, in seconds.

    Raises:
        UnkillableError: some of them live all the same.
    """
    try:
        settle_log(process)
        end_all(process.session, signal.SIGTERM, asked_s)
    except KeyboardInterrupt:  # a second Ctrl-C, as a rule: then kill at once
        kill_running()
        raise
    finally:
        survivors = _kill(process)
        # A process stuck in the kernel, or held by a debugger, never ends.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.popen.wait(_REAPED_S)
        _RUNNING.pop(process.session.mark, None)
        _dismiss(process.supervisor)
    if survivors:
        survivors = end_all(process.session, signal.SIGKILL, _GONE_S)
        process.popen.poll()  # reaps it
    if survivors:
        raise UnkillableError(
            f"{', '.join(map(describe, survivors))}: still there {_KILL_S + _GONE_S:g} s after it"
            " was killed, and nothing can be measured beside it; see what it waits for in the"
            " kernel's log (dmesg), and end it, or start the machine anew"
        )


@atexit.register
def kill_running() -> None:
    """Kill at once all that was started and not stopped; runs at our own exit too."""
    for process in tuple(_RUNNING.values()):
        _kill(process)


def settle_log(process: SupervisedProcess) -> None:
    """Return once all that was printed so far is on disk; at once without a supervisor.

    What they have in /dev/shm is noted, too, to be removed should they not.
    """
    guard = process.supervisor
    if guard.stdout is not None and not guard.stdout.closed:
        _tell(guard, supervisor.SETTLE)
        guard.stdout.readline()


def _kill(process: SupervisedProcess) -> list[int]:
    """Kill what is left; return the survivors."""
    settle_log(process)
    return end_all(process.session, signal.SIGKILL, _KILL_S, nested_after_s=supervisor.NESTED_S)


def log_end(path: Path) -> str:
    """The last 64 KiB of a log, whatever bytes it holds."""
    with path.open("rb") as log:
        log.seek(max(0, os.fstat(log.fileno()).st_size - _TAIL_BYTES))
        return log.read(_TAIL_BYTES).decode(errors="replace")


def log_start(path: Path) -> str:
    """The first 4 MiB of a log, whatever bytes it holds: what a server says until it is ready."""
    with path.open("rb") as log:
        return log.read(_START_BYTES).decode(errors="replace")


def log_tail(path: Path) -> str:
    """The last 40 lines of a log, of its last 64 KiB: fit to be shown, and none of them long."""
    lines = log_end(path).splitlines()[-_TAIL_LINES:]
    return readable_block("\n".join(lines), line_characters=_LINE_CHARACTERS)


def describe(pid: int) -> str:
    """Describe a process as far as we may see it: `process 4242 (python, user ada)`."""
    try:
        process = psutil.Process(pid)
        return f"process {pid} ({process.name()}, user {process.username()})"
    except psutil.Error:
        return f"process {pid} (of another user or container)"


def resident_bytes(process: SupervisedProcess) -> int:
    """The memory that the process and its descendants hold; what they share is counted once.

    Anonymous and shared memory, by proportional set sizes; of a process that doesn't tell its own,
    all that is resident. Pages of files, such as libraries, don't count: they aren't held.
    """
    return sum(map(_resident_bytes, process_ids(process)))


def _resident_bytes(pid: int) -> int:
    with contextlib.suppress(OSError):
        smaps_rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        return 1024 * sum(map(int, _HELD_KIB.findall(smaps_rollup)))
    with contextlib.suppress(psutil.Error):
        return int(psutil.Process(pid).memory_info().rss)
    return 0


def process_ids(process: SupervisedProcess) -> frozenset[int]:
    """The ids of the process and its descendants."""
    return frozenset(living(process.session))


def our_ids() -> frozenset[int]:
    """The ids of all processes that we started and haven't stopped, with their descendants."""
    return frozenset[int]().union(*map(process_ids, _RUNNING.values()))


def _tell(guard: subprocess.Popen[bytes], line: str) -> None:
    _write(guard.stdin, f"{line}\n".encode())


def _write(pipe: IO[bytes] | None, content: bytes) -> None:
    """Write to a process; ignore one that is gone, such as a killed supervisor."""
    with contextlib.suppress(BrokenPipeError):
        if pipe is not None:
            pipe.write(content)
            pipe.flush()


def _dismiss(guard: subprocess.Popen[bytes]) -> None:
    """Let a supervisor write what it has read, and end."""
    _tell(guard, supervisor.DONE)
    _close(guard)
    guard.wait()


def _close(popen: subprocess.Popen[bytes]) -> None:
    """Close our ends of its pipes; it may have ended before it read all."""
    for stream in (popen.stdin, popen.stdout):
        with contextlib.suppress(BrokenPipeError):
            if stream is not None:
                stream.close()


def interrupt_on_signals() -> None:
    """Let a cancelled job or a closed terminal end a run as Ctrl-C does, with its servers.

    Not under nohup, which has the signal ignored. Of two in a row asyncio, which takes Ctrl-C for
    itself where no other handler was set, made one: the second must find the first's cleaning up.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) in {signal.SIG_DFL, signal.default_int_handler}:
            signal.signal(number, _interrupt)


def check_signalled() -> None:
    """Raise `KeyboardInterrupt` if a signal came: Python drops one that a finalizer raises."""
    if SIGNALLED:
        raise KeyboardInterrupt


def _interrupt(number: int, frame: FrameType | None) -> None:
    """End the run where it waits: a moment later it is there still, and has computed nothing.

    Elsewhere it could have opened a file that nothing closes yet, or be half through an import, and
    a finalizer would drop the exception: then it is looked at again. One that is busy for a second
    ends wherever it is, but never in a finalizer.
    """
    now_s = time.monotonic()
    used_s = time.thread_time()
    code_position = None if frame is None else (frame.f_code, frame.f_lasti)
    since_s, last_place, last_used_s = _PENDING.pop() if _PENDING else (now_s, None, used_s)
    waits = code_position == last_place and used_s - last_used_s < _IDLE_S
    is_early = not waits and now_s - since_s < _BUSY_S
    if is_early or any(
        walked_frame.f_code.co_name == "__del__" for walked_frame, _ in traceback.walk_stack(frame)
    ):
        _PENDING.append((since_s, code_position, used_s))
        _thread.start_new_thread(_again, (number,))
        return
    SIGNALLED.append(number)
    raise KeyboardInterrupt


def _again(number: int) -> None:
    """Give the process the signal once more; `threading.Timer` takes locks that it may hold."""
    time.sleep(_MOMENT_S)
    os.kill(os.getpid(), number)
