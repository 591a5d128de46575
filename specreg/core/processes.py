"""Start child processes, exchange messages with them, and end them with all their descendants.

A server's workers may leave its process group or outlive their parent. So each program that is
started here has a supervisor process as its parent, below which all of its descendants stay. The
supervisor also writes the program's log, and ends the program if specreg itself is killed. A
program may start further ones in the same way, as a shard on a cluster does. They are descendants
of the outermost supervisor too.

The temporary folder of a child is made after its supervisor has started, and removed before its
supervisor ends. So the supervisor can always remove the folder, whenever specreg is killed.

Messages are lines of JSON. specreg writes them to the child's standard input and reads the child's
from its standard output. Other output of the child goes to its log.
"""

import asyncio
import atexit
import contextlib
import errno
import io
import itertools
import json
import math
import os
import re
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO, TypeVar

import msgspec
import psutil

from specreg.core.descendants import SUPERVISOR_PROGRAM, end_all, living
from specreg.core.errors import UnkillableError
from specreg.core.files import replace_file
from specreg.core.readable import readable_block
from specreg.core.redaction import hide_secrets_of, known_secrets
from specreg.core.shared_memory import shared_files
from specreg.core.supervisor import DONE, NESTED_S, SETTLE, Start, Started, run_quietly

_GRACE_S = 5.0
"""How long a process may take to end by itself before it is killed, if a caller sets no time."""
_KILL_S = 10.0
"""How long to wait for killed processes to end; usually long enough."""
_GONE_S = 20.0
"""How much longer a killed process may take to free its memory before it counts as unkillable."""
_REAPED_S = 5.0
"""How long to wait for the exit status of a process after the kill."""
_STATUS_BYTES = 16
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


@dataclass(slots=True, kw_only=True, eq=False)
class Program:
    """A program that a supervisor has started. It is used like a `subprocess.Popen`.

    Attributes:
        status: the pipe in which its supervisor says its exit status. It doesn't block.
        stdin: what specreg writes to it; None if it has no input.
        stdout: what specreg reads from it; None if specreg doesn't.
        returncode: its exit status; None as long as none is known.
    """

    args: Sequence[str]
    pid: int
    status: io.FileIO
    stdin: IO[bytes] | None = None
    stdout: IO[bytes] | None = None
    returncode: int | None = None

    def poll(self) -> int | None:
        """Return its exit status; None if it still runs."""
        if self.returncode is None and not self.status.closed:
            with contextlib.suppress(BlockingIOError):
                digits = os.read(self.status.fileno(), _STATUS_BYTES)
                # A supervisor that is killed says nothing, and its program is killed with it.
                self.returncode = int(digits or -signal.SIGKILL)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, and return its exit status.

        Args:
            timeout: how long to wait, in seconds; None for as long as it takes.

        Raises:
            subprocess.TimeoutExpired: it still runs after that time.
        """
        if self.poll() is None:
            poller = select.poll()
            poller.register(self.status, select.POLLIN)
            poller.poll(None if timeout is None else 1000 * timeout)

        status = self.poll()
        if status is None:
            raise subprocess.TimeoutExpired(list(self.args), timeout or 0.0)
        return status

    def kill(self) -> None:
        """Kill it, without its descendants. Nothing happens if it has ended."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


@dataclass(slots=True, kw_only=True, eq=False)
class Outside:
    """Processes that a program starts elsewhere, as the client of a container's daemon does.

    Attributes:
        stop: the command that asks them to end, and kills those that don't within a time.
        remove: the command that kills them at once. It also runs if there are none any more.
        find: returns the id of the first of them; None as long as there is none.
        _first: the process that `find` found.
    """

    stop: Sequence[str]
    remove: Sequence[str]
    find: Callable[[], int | None]
    _first: psutil.Process | None = None

    def ids(self) -> list[int]:
        """Return the ids of those that live."""
        with contextlib.suppress(psutil.Error):
            if self._first is None:
                first_id = self.find()
                self._first = None if first_id is None else psutil.Process(first_id)
            if self._first is not None and self._first.status() != psutil.STATUS_ZOMBIE:
                return [self._first.pid, *living(self._first.pid)]
        return []

    def kill(self) -> None:
        """Kill them, and return once they have ended, or after a while."""
        run_quietly(self.remove)

        # Without its daemon, the command does nothing.
        survivors = []
        for process_id in self.ids():
            with contextlib.suppress(psutil.Error):
                survivor = psutil.Process(process_id)
                survivor.kill()
                survivors.append(survivor)

        psutil.wait_procs(survivors, timeout=_KILL_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisedProcess:
    """A started process. If it exchanges messages with specreg, it ends when its input is closed.

    Attributes:
        popen: the process.
        supervisor: its parent, which writes its log, removes the files of its descendants in
            /dev/shm, and ends all of them if specreg is killed.
        orders: what specreg writes to the supervisor, and the supervisor answers.
        temporary: its temporary folder, which `clean_up` removes, or the supervisor if specreg is
            killed; None if it has none.
        outside: what it starts outside of its descendants; None if it starts nothing there.
    """

    popen: Program
    supervisor: subprocess.Popen[bytes]
    orders: io.BufferedIOBase
    log_path: Path
    temporary: Path | None
    outside: Outside | None = None

    def send(self, message: object) -> None:
        """Send the process a message. Nothing happens if it has ended."""
        _write(self.popen.stdin, msgspec.json.encode(message) + b"\n")

    def receive(self, kind: type[_MessageT]) -> _MessageT | None:
        """Wait for the next message of the process, and return it; None if the process has ended.

        Raises:
            msgspec.DecodeError: the message isn't of that type.
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


_RUNNING: dict[int, SupervisedProcess] = {}
"""The processes that were started and not stopped yet, by the ids of their supervisors."""


_ORDER_NUMBERS = itertools.count(1)


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
    outside: Outside | None = None,
) -> SupervisedProcess:
    """Start a command in a session of its own, so that Ctrl-C reaches specreg and not the command.

    Args:
        command: the program and its arguments.
        environment: all of its variables.
        log_path: the file that gets the beginning and the end of what it prints, without secrets.
            It may be in the temporary folder.
        cwd: its working folder.
        temporary: a path from `new_temporary`, at which a folder is made for it. `clean_up` removes
            the folder. None if it needs no folder.
        files: the texts of files that are written for it, by their paths in the temporary folder.
        messages: what takes its standard output instead of the log: `subprocess.PIPE`, or a file.
            Its standard input is a pipe then. None if its output is logged and it has no input.
        outside: what it starts outside of its descendants; None if it starts nothing there.

    Raises:
        OSError: the program can't be run, or the folder, a file or the log can't be written.
    """
    # The log must not show what the command is given as a secret.
    hide_secrets_of(environment, command)

    with contextlib.ExitStack() as passed:
        # What the supervisor gets is closed here, so that a pipe ends with the last process that
        # has it.
        log_read, log_write = map(passed.enter_context, _new_pipe())
        status, status_write = _new_pipe()
        passed.enter_context(status_write)
        our_socket, supervisor_socket = socket.socketpair()
        passed.enter_context(supervisor_socket)
        with our_socket:
            orders = our_socket.makefile("rwb")
        pass_fds = [file.fileno() for file in (supervisor_socket, log_read, status_write)]
        folders = () if temporary is None else (str(temporary.absolute()),)
        # The program inherits the standard streams of its supervisor.
        supervisor = subprocess.Popen(  # noqa: S603 - our own arguments, no shell
            (
                *(sys.executable, "-I", "-S", "-c", SUPERVISOR_PROGRAM, _IMPORT_ROOT),
                *(*map(str, pass_fds), *folders),
            ),
            stdin=subprocess.DEVNULL if messages is None else subprocess.PIPE,
            stdout=log_write if messages is None else messages,
            stderr=log_write,
            pass_fds=pass_fds,
            start_new_session=True,
            cwd="/",
        )

    process = SupervisedProcess(
        popen=Program(
            args=command, pid=-1, status=status, stdin=supervisor.stdin, stdout=supervisor.stdout
        ),
        supervisor=supervisor,
        orders=orders,
        log_path=log_path,
        temporary=temporary,
        outside=outside,
    )
    try:
        if temporary is not None:
            temporary.mkdir(mode=0o700)
        for path, text in files.items():
            replace_file(path, text.encode())
        # The supervisor expects the log to exist.
        log_path.write_bytes(b"")
        process.popen.pid = _start_program(process, environment, cwd)
    except BaseException:
        # The supervisor ends what it may have started already.
        clean_up(process)
        raise

    _RUNNING[supervisor.pid] = process
    return process


def _new_pipe() -> tuple[io.FileIO, io.FileIO]:
    """Return the read end, which doesn't block, and the write end of a new pipe."""
    read_fd, write_fd = os.pipe()
    os.set_blocking(read_fd, False)
    return io.FileIO(read_fd, "rb"), io.FileIO(write_fd, "wb")


def _start_program(process: SupervisedProcess, environment: Mapping[str, str], cwd: Path) -> int:
    """Let a supervisor start its program, and return the program's process id.

    Raises:
        OSError: the program can't be run, or the supervisor has ended.
    """
    command = process.popen.args

    # Variables and arguments may be secret, so they aren't among the supervisor's own arguments,
    # which a list of processes shows.
    start = Start(
        command=command,
        environment=dict(environment),
        cwd=str(cwd.absolute()),
        log_path=str(process.log_path.absolute()),
        secrets=known_secrets(),
        shared=tuple(shared_files()),
        remove=() if process.outside is None else tuple(process.outside.remove),
    )
    _tell(process, json.dumps(start))
    answer = process.orders.readline()
    if not answer:
        raise OSError(errno.ECHILD, "its supervisor has ended", command[0])
    started = Started(*json.loads(answer))
    if started.errno:
        raise OSError(started.errno, os.strerror(started.errno), started.filename)
    return started.pid


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
        command: the program and its arguments.
        log_path: as in `start_process`.
        environment: all of its variables. None for the variables of this process, with the folders
            from which this process imports as `PYTHONPATH`.
        temporary: as in `start_process`.
        output: a file that keeps its messages. None if the caller receives them.

    Raises:
        OSError: as in `start_process`.
        UnkillableError: as in `stop_process`.
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
        grace_s: how long it may take to end by itself, in seconds.

    Raises:
        UnkillableError: some of the processes can't be killed.
    """
    try:
        if process.outside is not None:
            run_quietly(process.outside.stop)
        _signal_all(process, signal.SIGTERM, grace_s)
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
        _RUNNING.pop(process.supervisor.pid, None)

    if survivor_ids:
        # A process that held much memory, as on a GPU, needs seconds to free it.
        survivor_ids = end_all(process.supervisor.pid, signal.SIGKILL, _GONE_S)
    if process.outside is not None:
        survivor_ids += process.outside.ids()
    if survivor_ids:
        survivors = ", ".join(map(describe_process, survivor_ids))
        waited_s = _KILL_S + _GONE_S
        raise UnkillableError(
            f"{survivors}: still there {waited_s:g} s after it was killed, and nothing can be"
            " measured beside it; see what it waits for in the kernel's log (dmesg), and end it, or"
            " start the machine anew"
        )


def clean_up(process: SupervisedProcess) -> None:
    """Remove the temporary folder of a process that has ended, and end its supervisor.

    The supervisor completes the log.
    """
    # The folder goes first: whenever specreg is killed, the supervisor is there to remove it.
    if process.temporary is not None:
        shutil.rmtree(process.temporary, ignore_errors=True)
    _tell(process, DONE)

    for stream in (process.orders, process.popen.stdin, process.popen.stdout):
        # The reader may have been killed before it read all.
        with contextlib.suppress(ConnectionError):
            if stream is not None:
                stream.close()

    process.supervisor.wait()
    process.popen.poll()
    process.popen.status.close()


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
    if not process.orders.closed:
        order = f"{SETTLE} {next(_ORDER_NUMBERS)}"
        _tell(process, order)
        # The supervisor repeats the order as its answer. An interrupt may have left an earlier
        # answer unread. If the supervisor is gone, the connection has ended.
        with contextlib.suppress(ConnectionError):
            while process.orders.readline().decode().strip() not in {"", order}:
                pass


def _kill(process: SupervisedProcess) -> list[int]:
    """Kill a process and its descendants, and return the ids of those that survive."""
    if process.outside is not None:
        process.outside.kill()
    return _signal_all(process, signal.SIGKILL, _KILL_S, nested_after_s=NESTED_S)


def _signal_all(
    process: SupervisedProcess,
    number: signal.Signals,
    within_s: float,
    *,
    nested_after_s: float = math.inf,
) -> list[int]:
    """Signal a process and its descendants as `end_all` does, and return the ids of the survivors.

    Before that the supervisor notes what they have in /dev/shm.
    """
    return end_all(
        process.supervisor.pid,
        number,
        within_s,
        look=lambda: settle_log(process),
        nested_after_s=nested_after_s,
    )


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


def describe_process(process_id: int) -> str:
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
    if process.supervisor.returncode is not None:
        # Another process may have got the id of a supervisor that has ended.
        return frozenset()
    ids = set(living(process.supervisor.pid))
    if process.outside is not None:
        ids.update(process.outside.ids())
    return frozenset(ids)


def our_ids() -> frozenset[int]:
    """Return the ids of all processes that were started and not stopped, and their descendants."""
    all_ids: set[int] = set()
    for process in _RUNNING.values():
        all_ids |= process_ids(process)
    return frozenset(all_ids)


def _tell(process: SupervisedProcess, order: str) -> None:
    """Send a line to the supervisor of a process."""
    _write(process.orders, f"{order}\n".encode())


def _write(pipe: IO[bytes] | io.BufferedIOBase | None, content: bytes) -> None:
    """Write to a process. Nothing happens if it has ended, like a supervisor that was killed."""
    with contextlib.suppress(ConnectionError):
        if pipe is not None:
            pipe.write(content)
            pipe.flush()
