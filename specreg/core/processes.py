"""Start child processes, exchange messages with them, and end them with all their descendants.

A server's workers may leave its process group or outlive their parent. So each process that is
started here gets a mark in its environment, which its descendants inherit and by which they are
found. Each child has a supervisor process, which writes the child's log, and ends the child if
specreg itself is killed. A child may start further processes in the same way, as a shard on a
cluster does. These inherit the marks of all processes above them, so the outermost supervisor finds
all of them.

The temporary folder of a child is made after its supervisor has started, and removed before its
supervisor ends. So the supervisor can always remove the folder, whenever specreg is killed.

Messages are lines of JSON. specreg writes them to the child's standard input and reads the child's
from its standard output. Other output of the child goes to its log.
"""

import asyncio
import atexit
import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO, TypeVar

import msgspec
import psutil

from specreg.core.errors import UnkillableError
from specreg.core.files import replace_file
from specreg.core.readable import readable_block
from specreg.core.redaction import hide_secrets_of, known_secrets
from specreg.core.sessions import (
    VARIABLE,
    Session,
    end_all,
    living,
    marks_below,
    started_ticks,
    supervisor_marks,
)
from specreg.core.shared_memory import shared_files
from specreg.core.supervisor import DONE, EXEC_S, MAIN, NESTED_S, SETTLE

_GRACE_S = 5.0
"""How long a process may take to end by itself before it is killed, if a caller sets no time."""
_KILL_S = 10.0
"""How long to wait for killed processes to end; usually long enough."""
_GONE_S = 20.0
"""How much longer a killed process may take to free its memory before it counts as unkillable."""
_REAPED_S = 5.0
"""How long to wait for the exit status of a process after the kill."""
_MESSAGE_BYTES = 256 * 2**20
"""The longest line of messages that is read in an event loop."""
_TAIL_BYTES = 64 * 1024
_START_BYTES = 4 * 2**20
_TAIL_LINES = 40
_LINE_CHARACTERS = 1000
_HELD_KIB = re.compile(r"^Pss_(?:Anon|Shmem): *(\d+) kB", re.MULTILINE)
_IMPORT_ROOT = str(Path(__file__).parents[2])
"""The folder from which a supervisor imports specreg."""

NO_FILES: Mapping[Path, str] = MappingProxyType({})

_MessageT = TypeVar("_MessageT")


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisedProcess:
    """A started process. If it exchanges messages with specreg, it ends when its input is closed.

    Attributes:
        popen: The process.
        session: Identifies its descendants.
        supervisor: The process that writes its log, removes the files of its descendants in
            /dev/shm, and ends all of them if specreg is killed.
        log_path: Its log.
        temporary: Its temporary folder, which `clean_up` removes, or the supervisor if specreg is
            killed; None if it has none.
    """

    popen: subprocess.Popen[bytes]
    session: Session
    supervisor: subprocess.Popen[bytes]
    log_path: Path
    temporary: Path | None

    def send(self, message: object) -> None:
        """Send the process a message. Nothing happens if it has ended."""
        _write(self.popen.stdin, msgspec.json.encode(message) + b"\n")

    def receive(self, kind: type[_MessageT]) -> _MessageT | None:
        """Wait for the next message of the process, and return it; None if the process has ended.

        Args:
            kind: The type of the message.

        Raises:
            msgspec.DecodeError: The message isn't of that type.
        """
        stdout = self.popen.stdout
        line = stdout.readline() if stdout is not None else b""
        return msgspec.json.decode(line, type=kind) if line else None

    @contextlib.asynccontextmanager
    async def reader(self) -> AsyncIterator[asyncio.StreamReader]:
        """Yield a reader of the process's messages, a line each, for the running event loop."""
        reader = asyncio.StreamReader(limit=_MESSAGE_BYTES)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), self.popen.stdout
        )
        try:
            yield reader
        finally:
            transport.close()

    def last_lines(self) -> str:
        """Return the last lines of the process's log."""
        settle_log(self)
        return log_tail(self.log_path)


_RUNNING: dict[str, SupervisedProcess] = {}
"""The processes that were started and not stopped yet, by their marks."""


def new_temporary(prefix: str = "specreg-") -> Path:
    """Return the path of a temporary folder that doesn't exist yet, for `start_process`.

    Its name can't be guessed, and is short, because the length of a Unix socket's path is limited.
    """
    return Path(tempfile.gettempdir(), prefix + secrets.token_urlsafe(6))


def start_process(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    log_path: Path,
    cwd: Path,
    temporary: Path | None = None,
    files: Mapping[Path, str] = NO_FILES,
    messages: int | IO[bytes] | None = None,
) -> SupervisedProcess:
    """Start a command in a session of its own, so that Ctrl-C reaches specreg and not the command.

    Args:
        command: The program and its arguments.
        environment: All of its variables. The mark and `SPT_NOENV` are added to them.
        log_path: The file that gets the beginning and the end of what it prints, without secrets.
            It may be in the temporary folder.
        cwd: Its working folder.
        temporary: A path from `new_temporary`, at which a folder is made for it. `clean_up` removes
            the folder. None if it needs no folder.
        files: The texts of files that are written for it, by their paths in the temporary folder.
        messages: What takes its standard output instead of the log: `subprocess.PIPE`, or a file.
            Its standard input is a pipe then. None if its output is logged and it has no input.

    Raises:
        OSError: The program can't be run, or the folder, a file or the log can't be written.
    """
    mark = uuid.uuid4().hex
    marked_environment = {
        **environment,
        VARIABLE: marks_below(os.environ, mark),
        # setproctitle, which vLLM's workers call, writes over the environment that /proc shows.
        "SPT_NOENV": "1",
    }
    # The log must not show what the command is given as a secret.
    hide_secrets_of(environment, command)
    log_read_fd, log_write_fd = os.pipe()
    try:
        supervisor = _start_supervisor(mark, log_read_fd, log_path, temporary)
        try:
            if temporary is not None:
                temporary.mkdir(mode=0o700)
            for path, text in files.items():
                replace_file(path, text.encode())
            # The supervisor opens the log once it has read the first line of its input, and the log
            # must exist then.
            log_path.write_bytes(b"")
            # Secrets aren't among the arguments, because a list of processes shows those.
            startup_message = {"secrets": known_secrets(), "shared": tuple(shared_files())}
            _tell(supervisor, json.dumps(startup_message))
            popen = subprocess.Popen(  # noqa: S603 - our own arguments, no shell
                command,
                env=marked_environment,
                stdin=subprocess.DEVNULL if messages is None else subprocess.PIPE,
                stdout=log_write_fd if messages is None else messages,
                stderr=log_write_fd,
                start_new_session=True,
                cwd=cwd,
            )
            session = Session(mark, popen.pid, started_ticks(popen.pid))
            _tell(supervisor, f"{session.leader} {session.started}")
        except BaseException as error:
            if not isinstance(error, Exception):
                # An interrupt may come after the fork, before the child's process id is known here.
                # Then the child can be found only by its mark, and shows the mark only once it runs
                # its own program.
                time.sleep(EXEC_S)
                end_all(Session(mark), signal.SIGKILL, _KILL_S)
            _dismiss(supervisor, temporary)
            raise
    finally:
        # The log ends when the last process that prints into it has closed its end of the pipe.
        os.close(log_write_fd)
        os.close(log_read_fd)
    process = SupervisedProcess(
        popen=popen, session=session, supervisor=supervisor, log_path=log_path, temporary=temporary
    )
    _RUNNING[mark] = process
    return process


def _start_supervisor(
    mark: str, log_read_fd: int, log_path: Path, temporary: Path | None
) -> subprocess.Popen[bytes]:
    """Start the supervisor of a process that is about to be started."""
    arguments = [_IMPORT_ROOT, mark, str(log_read_fd), str(log_path.absolute())]
    if temporary is not None:
        arguments.append(str(temporary.absolute()))
    return subprocess.Popen(  # noqa: S603 - our own arguments, no shell
        (sys.executable, "-I", "-S", "-c", MAIN, *arguments),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # With our standard error it would keep pytest's pipes open.
        stderr=subprocess.DEVNULL,
        env={**os.environ, VARIABLE: supervisor_marks(os.environ)},
        pass_fds=(log_read_fd,),
        start_new_session=True,
        cwd="/",
    )


@contextlib.contextmanager
def child_process(
    command: Sequence[str],
    *,
    log_path: Path,
    environment: Mapping[str, str] | None = None,
    temporary: Path | None = None,
    output: IO[bytes] | None = None,
) -> Iterator[SupervisedProcess]:
    """Run a program that exchanges messages with specreg for as long as the context lasts.

    Args:
        command: The program and its arguments.
        log_path: As in `start_process`.
        environment: All of its variables. None for the variables of this process, with the folders
            from which this process imports as `PYTHONPATH`.
        temporary: As in `start_process`.
        output: A file that keeps its messages. None if the caller receives them.

    Raises:
        OSError: As in `start_process`.
        UnkillableError: As in `stop_process`.
    """
    if environment is None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = start_process(
        command,
        environment=environment,
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


def stop_process(process: SupervisedProcess, *, grace_s: float = _GRACE_S) -> None:
    """End a process and all its descendants, and clean up after it; see `end_process`."""
    try:
        end_process(process, grace_s=grace_s)
    finally:
        clean_up(process)


def end_process(process: SupervisedProcess, *, grace_s: float = _GRACE_S) -> None:
    """End a process and all its descendants, and return once all that they printed is on disk.

    They get SIGTERM first, and SIGKILL if some are left after a while. An interrupt meanwhile kills
    them at once, with all other processes that specreg has started. The supervisor goes on until
    `clean_up`, so that the temporary folder is removed even if specreg is killed before.

    Args:
        process: The process.
        grace_s: How long it may take to end by itself, in seconds.

    Raises:
        UnkillableError: Some of the processes can't be killed.
    """
    try:
        settle_log(process)
        end_all(process.session, signal.SIGTERM, grace_s)
    except KeyboardInterrupt:
        # As a rule this is the second Ctrl-C, whose sender doesn't want to wait.
        kill_running()
        raise
    finally:
        # This runs after a normal end too, because a descendant may have ignored SIGTERM.
        survivor_ids = _kill(process)
        # A process that is stuck in the kernel, or held by a debugger, never ends.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.popen.wait(_REAPED_S)
        settle_log(process)
        _RUNNING.pop(process.session.mark, None)
    if survivor_ids:
        # A process that held much memory, as on a GPU, needs seconds to free it.
        survivor_ids = end_all(process.session, signal.SIGKILL, _GONE_S)
        # Polling reaps the process, which is a zombie otherwise.
        process.popen.poll()
    if survivor_ids:
        survivors = ", ".join(map(describe, survivor_ids))
        waited_s = _KILL_S + _GONE_S
        raise UnkillableError(
            f"{survivors}: still there {waited_s:g} s after it was killed, and nothing can be"
            " measured beside it; see what it waits for in the kernel's log (dmesg), and end it, or"
            " start the machine anew"
        )


def clean_up(process: SupervisedProcess) -> None:
    """Remove the temporary folder of a process that has ended, and end its supervisor."""
    _dismiss(process.supervisor, process.temporary)


@atexit.register
def kill_running() -> None:
    """Kill all processes that were started and not stopped. This also runs when specreg exits."""
    for process in tuple(_RUNNING.values()):
        _kill(process)


def settle_log(process: SupervisedProcess) -> None:
    """Return once all that was printed so far is on disk.

    The supervisor also notes which files the processes have in /dev/shm, and removes them later if
    the processes don't. If the supervisor is gone, this returns at once.
    """
    supervisor = process.supervisor
    if supervisor.stdout is not None and not supervisor.stdout.closed:
        _tell(supervisor, SETTLE)
        # The supervisor answers with an empty line. If it is gone, the pipe has ended.
        supervisor.stdout.readline()


def _kill(process: SupervisedProcess) -> list[int]:
    """Kill a process and its descendants, and return the ids of those that survive."""
    settle_log(process)
    return end_all(process.session, signal.SIGKILL, _KILL_S, nested_after_s=NESTED_S)


def log_end(path: Path) -> str:
    """Return the last 64 KiB of a log, with a replacement for each byte that isn't UTF-8."""
    with path.open("rb") as log:
        log.seek(max(0, os.fstat(log.fileno()).st_size - _TAIL_BYTES))
        return log.read(_TAIL_BYTES).decode(errors="replace")


def log_start(path: Path) -> str:
    """Return the first 4 MiB of a log, which hold what a server prints until it is ready."""
    with path.open("rb") as log:
        return log.read(_START_BYTES).decode(errors="replace")


def log_tail(path: Path) -> str:
    """Return the last 40 lines of a log, without control characters and secrets.

    The middle of a long line is left out.
    """
    lines = log_end(path).splitlines()[-_TAIL_LINES:]
    return readable_block("\n".join(lines), line_characters=_LINE_CHARACTERS)


def describe(process_id: int) -> str:
    """Describe a process: `process 4242 (python, user ada)`.

    The name and the user of a process of another user or container may not be visible.
    """
    try:
        process = psutil.Process(process_id)
        return f"process {process_id} ({process.name()}, user {process.username()})"
    except psutil.Error:
        return f"process {process_id} (of another user or container)"


def resident_bytes(process: SupervisedProcess) -> int:
    """Return how much memory a process and its descendants hold, in bytes.

    Anonymous and shared memory counts, by the proportional set size, so that memory which several
    processes share counts once. Pages of files, such as libraries, don't count, because the kernel
    drops them when it needs memory. If the proportional size of a process can't be read, its
    resident size counts.
    """
    return sum(_resident_bytes(process_id) for process_id in process_ids(process))


def _resident_bytes(process_id: int) -> int:
    """Return how much memory one process holds, in bytes; 0 if it has ended."""
    with contextlib.suppress(OSError):
        smaps_rollup = Path(f"/proc/{process_id}/smaps_rollup").read_text()
        held_kib = [int(number) for number in _HELD_KIB.findall(smaps_rollup)]
        return 1024 * sum(held_kib)
    # Another user's process, or a kernel without that file.
    with contextlib.suppress(psutil.Error):
        return int(psutil.Process(process_id).memory_info().rss)
    return 0


def process_ids(process: SupervisedProcess) -> frozenset[int]:
    """Return the ids of a process and its descendants."""
    return frozenset(living(process.session))


def our_ids() -> frozenset[int]:
    """Return the ids of all processes that were started and not stopped, and their descendants."""
    all_ids: set[int] = set()
    for process in _RUNNING.values():
        all_ids |= process_ids(process)
    return frozenset(all_ids)


def _tell(supervisor: subprocess.Popen[bytes], line: str) -> None:
    """Send a line to a supervisor."""
    _write(supervisor.stdin, f"{line}\n".encode())


def _write(pipe: IO[bytes] | None, content: bytes) -> None:
    """Write to a process. Nothing happens if it has ended, like a supervisor that was killed."""
    with contextlib.suppress(BrokenPipeError):
        if pipe is not None:
            pipe.write(content)
            pipe.flush()


def _dismiss(supervisor: subprocess.Popen[bytes], temporary: Path | None) -> None:
    """Remove a process's temporary folder, and end its supervisor, which completes the log."""
    # The folder goes first: whenever specreg is killed, the supervisor is there to remove it.
    if temporary is not None:
        shutil.rmtree(temporary, ignore_errors=True)
    _tell(supervisor, DONE)
    _close(supervisor)
    supervisor.wait()


def _close(popen: subprocess.Popen[bytes]) -> None:
    """Close this side of a process's pipes. The process may have ended before it read all."""
    for stream in (popen.stdin, popen.stdout):
        with contextlib.suppress(BrokenPipeError):
            if stream is not None:
                stream.close()
