"""Supervise what we start: find its processes, write its log, and end it when we are killed.

Run with the standard library alone, as `MAIN` says: `MARK DESCRIPTOR LOG [FOLDER …]`, the mark of
the processes, the end of the pipe that they print into, their log, and folders that go with us.

Input: a line of JSON with `secrets`, never to be written, and `shared`, what lay in /dev/shm
before; a line with the id and the start of the process that leads the session, once there is one;
`settle`, which is answered with a line once all that was printed is on disk, and what they have in
/dev/shm noted; then `done`. An input that ends without that word has lost who wrote it, to SIGKILL
as a rule: then the processes are ended. What they leave is removed in either case. No other process
holds the other end of the input: Python's pipes aren't handed on to other programs.
"""

import contextlib
import fcntl
import functools
import io
import json
import math
import os
import select
import shutil
import signal
import struct
import sys
import termios
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from specreg.core.redaction import hide, hide_bytes

VARIABLE = "SPECREG_PROCESS_MARK"
"""The environment variable that has the marks of all supervised processes above a process.

They are separated by slashes, the outermost first; the last one is of the process itself, or of the
supervised process that started it.
"""
DONE = "done"
SETTLE = "settle"
NESTED_S = 6.0
"""How long a supervisor leaves the processes of an inner supervisor to that one.

It is more than the inner one takes to ask them, so that the inner one can clean up after them.
"""
_ASKED_S = 2.0
_KILLED_S = 30.0
_POLL_S = 0.05
_PIECE_BYTES = 2**20
KEPT_BYTES = 8 * 2**20
"""How much of a log's beginning is kept, and of its end."""
SECRET_BYTES = 4096
"""How long a secret may be that a long line isn't cut in; longer ones that are known count, too."""
_LONG_LINE_BYTES = 2**20
_LEFT_OUT = b"\n[specreg: %d bytes are left out here]\n"
_IDLE_S = 0.1
_SELDOM = 20
FOLDER = Path("/dev/shm")  # noqa: S108 - it is what glibc's shm_open and sem_open use
_PREFIX = f"{FOLDER}/"


class Session(NamedTuple):
    """The processes of a session, and all others that carry its mark.

    Attributes:
        mark: one of the marks in their environment; see `VARIABLE`.
        leader, started: the id of the process that leads the session, and its start in ticks, as
            another may get its number; -1 before there is one.
    """

    mark: str
    leader: int = -1
    started: int = -1


class Members(NamedTuple):
    """The ids of the living processes of a session.

    Attributes:
        direct: those that only the session's own supervisor looks after.
        nested: those that an inner supervisor looks after, and these inner supervisors.
    """

    direct: frozenset[int]
    nested: frozenset[int]


class _Process(NamedTuple):
    pid: int
    session: int
    marks: tuple[str, ...]


def marks_below(environment: Mapping[str, str], mark: str) -> str:
    """The value of `VARIABLE` for a child with a mark of its own."""
    outer_marks = environment.get(VARIABLE, "")
    return f"{outer_marks}/{mark}" if outer_marks else mark


def supervisor_marks(environment: Mapping[str, str]) -> str:
    """The value of `VARIABLE` for a supervisor, which none of its own processes' signals reach.

    An outer supervisor takes it for nested, so it lets it finish.
    """
    return marks_below(environment, "supervisor")


def started_ticks(pid: int) -> int:
    """When a process started, in the kernel's ticks since boot; OSError if there is none."""
    return int(_stat(pid)[19])


def members(session: Session) -> Members:
    """The living processes of a session; other users' can't be read.

    A process that wrote over its environment, or began anew without one, is known by its session:
    each supervised process leads a session of its own, so nobody else's processes are in there.
    The number of a session isn't given away before its last process ended; one that another
    process leads is another's.
    """
    leader = session.leader
    with contextlib.suppress(OSError):
        if leader >= 0 and started_ticks(leader) != session.started:
            leader = -1
    processes = list(_living_processes())
    own_sessions = {process.session for process in processes if process.marks[-1] == session.mark}
    own_sessions.add(leader)
    nested_sessions = {
        process.session for process in processes if session.mark in process.marks[:-1]
    }
    nested_sessions -= own_sessions
    return Members(
        direct=frozenset(process.pid for process in processes if process.session in own_sessions),
        nested=frozenset(
            process.pid for process in processes if process.session in nested_sessions
        ),
    )


def living(session: Session) -> list[int]:
    """The ids of all living processes of a session, nested ones too."""
    direct, nested = members(session)
    return sorted(direct | nested)


def end_all(
    session: Session, number: signal.Signals, within_s: float, *, nested_after_s: float = math.inf
) -> list[int]:
    """Signal all processes, new ones too, until none is left or time is up.

    Args:
        session: the processes.
        number: the signal; each process gets it once.
        within_s: how long to wait until none is left, in seconds.
        nested_after_s: how long to wait for the processes of inner supervisors before they get the
            signal as well, in seconds.

    Returns:
        The ids of the survivors.
    """
    began_s = time.monotonic()
    signalled = set[int]()
    while True:
        direct, nested = members(session)
        elapsed_s = time.monotonic() - began_s
        if not (direct or nested) or elapsed_s >= within_s:
            return sorted(direct | nested)
        targets = direct
        if elapsed_s >= nested_after_s:
            targets |= nested
        for pid in targets - signalled:
            with contextlib.suppress(OSError):  # it ended, or runs as another user
                os.kill(pid, number)
        signalled |= targets
        time.sleep(_POLL_S)


def _all_pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _living_processes() -> Iterator[_Process]:
    for pid in _all_pids():
        with contextlib.suppress(OSError):
            fields = _stat(pid)
            state = fields[0]
            session = int(fields[3])
            threads = int(fields[17])
            # Its first thread may have ended while others go on, and hold files and memory.
            if state in {b"Z", b"X"} and threads <= 1:
                continue
            yield _Process(pid, session, _marks_of(pid))


def _marks_of(pid: int) -> tuple[str, ...]:
    """Return the marks in a process's environment; a single empty one if there are none to see."""
    environment = b""
    # That of another user can't be read, nor that of a process whose first thread has ended.
    with contextlib.suppress(OSError):
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    name = f"{VARIABLE}=".encode()
    for variable in environment.split(b"\0"):
        if variable.startswith(name):
            marks = variable.removeprefix(name).decode(errors="replace")
            return tuple(marks.split("/"))
    return ("",)


def _stat(pid: int) -> list[bytes]:
    """Return a process's fields as of proc_pid_stat(5), from the state on, without its name."""
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()


def shared_files() -> frozenset[str]:
    """Return the names of all files in /dev/shm; none where there is no such folder."""
    with contextlib.suppress(OSError):
        return frozenset(path.name for path in FOLDER.iterdir())
    return frozenset()


def shared_by(session: Session, before: Collection[str]) -> set[str]:
    """Return the names of the processes' files in /dev/shm that weren't there before."""
    return set(used_by(living(session)).difference(before))


def used_by(pids: Iterable[int] | None = None) -> frozenset[str]:
    """Return the names of files there that processes (None: any we may see) have open or mapped.

    By their numbers: glibc maps a semaphore under a name that it then changes for its own.
    """
    numbers = {
        number for pid in (_all_pids() if pids is None else pids) for number in _numbers(pid)
    }
    names = set[str]()
    for name in shared_files() if numbers else ():
        with contextlib.suppress(OSError):
            stat = (FOLDER / name).lstat()
            names.update({name} if (stat.st_dev, stat.st_ino) in numbers else ())
    return frozenset(names)


def _numbers(pid: int) -> Iterator[tuple[int, int]]:
    """Yield device and inode of each file that a process has open or mapped there."""
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if str(link.readlink()).startswith(_PREFIX):
                    yield link.stat().st_dev, link.stat().st_ino
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/maps").read_bytes().splitlines():
            # proc_pid_maps(5) has the device, in hexadecimal, and the inode before the path.
            fields, is_there, _ = line.partition(_PREFIX.encode())
            if is_there:
                device, inode = fields.split()[-2:]
                major, minor = (int(part, 16) for part in device.split(b":"))
                yield os.makedev(major, minor), int(inode)


def remove_shared(names: Iterable[str]) -> None:
    """Remove files of processes that ended, but for those that other processes use."""
    shared_left = shared_files().intersection(names)
    for name in shared_left - used_by() if shared_left else ():
        with contextlib.suppress(OSError):
            (FOLDER / name).unlink()


class BoundedLog:
    """A file that keeps the first and, up to twice as much, the last bytes that it is given.

    What is dropped in a flood is neither searched for secrets nor written: that would take time.
    Secrets are hidden in whole lines. A line that is too long to wait for is cut only where no
    secret is cut with it.
    """

    def __init__(
        self,
        path: Path,
        hide: Callable[[bytes], bytes],
        *,
        kept_bytes: int = KEPT_BYTES,
        secret_bytes: int = SECRET_BYTES,
    ) -> None:
        """Open the file, which is there.

        Args:
            path: the file.
            hide: takes the secrets out of whole lines.
            kept_bytes: how much is kept of the beginning, and of the end.
            secret_bytes: how long a secret may be, with what marks it as one.
        """
        self._file = path.open("r+b", buffering=0)
        self._hide = hide
        self._kept_bytes = kept_bytes
        self._secret_bytes = secret_bytes
        self._head_bytes = path.stat().st_size
        self._left_out_bytes = 0
        self._waiting = bytearray()
        self._tail = bytearray()
        self.waits = False
        """Whether something came since the last `write`."""

    def take(self, content: bytes) -> None:
        """Take what was printed."""
        self._waiting += content
        self.waits = True
        most_bytes = 2 * self._kept_bytes
        if len(self._waiting) > most_bytes and self._head_bytes < self._kept_bytes:
            self.write()
            most_bytes += _LONG_LINE_BYTES  # a line that still waits for its end
        if len(self._waiting) > most_bytes:
            self._drop_waiting()

    def write(self, *, unfinished: bool = False) -> None:
        """Write what came to disk; what a full disk refuses is written once there is room.

        An unfinished last line too, if asked for, which is written anew once it is whole.
        """
        self.waits = False
        self._tail += self._hide(self._take_lines())
        room = max(0, self._kept_bytes - self._head_bytes)
        if len(self._tail) > room + 2 * self._kept_bytes:
            end = len(self._tail) - self._kept_bytes
            self._left_out_bytes += end - room
            del self._tail[room:end]
        try:
            self._append(self._tail[:room])
            self._head_bytes += len(self._tail[:room])
            del self._tail[:room]
            cut = _LEFT_OUT % self._left_out_bytes if self._left_out_bytes else b""
            hidden_rest = self._hide(bytes(self._waiting)) if unfinished else b""
            self._append(cut + self._tail + hidden_rest)
        except OSError:
            return

    def close(self) -> None:
        """Write all that came to disk, and close the file."""
        self._tail += self._hide(bytes(self._waiting))
        self._waiting.clear()
        self.write()
        self._file.close()

    def _take_lines(self) -> bytes:
        end = 1 + max(self._waiting.rfind(b"\n"), self._waiting.rfind(b"\r"))
        if len(self._waiting) - end > _LONG_LINE_BYTES:  # too long to wait for its end
            end = max(end, self._end_of_whole_secrets(len(self._waiting)))
        lines = bytes(self._waiting[:end])
        del self._waiting[:end]
        return lines

    def _drop_waiting(self) -> None:
        """Drop what came in a flood but for its end, and what is written of the end so far."""
        latest = len(self._waiting) - self._kept_bytes
        end = 1 + self._waiting.rfind(b"\n", 0, latest)
        if not end:
            end = self._end_of_whole_secrets(latest) or len(self._waiting)
        self._left_out_bytes += len(self._tail) + end
        self._tail.clear()
        del self._waiting[:end]

    def _end_of_whole_secrets(self, latest: int) -> int:
        """Find the last place where what waits can be cut without cutting a secret.

        A secret is cut where both parts without their secrets aren't the whole without its secrets.
        The whole goes so far beyond the place that a secret which begins before it ends in it.

        Returns:
            The place, `latest` at most, or 0 where none was found.
        """
        latest = min(latest, len(self._waiting) - self._secret_bytes)
        first = max(0, latest - 2 * self._secret_bytes)
        complete = bytes(self._waiting[first : latest + self._secret_bytes])
        hidden = self._hide(complete)
        for end in range(latest - first, 0, -1)[: self._secret_bytes]:
            if self._hide(complete[:end]) + self._hide(complete[end:]) == hidden:
                return first + end
        return 0

    def _append(self, content: bytes | bytearray) -> None:
        """Replace all that follows the file's beginning."""
        self._file.truncate(self._head_bytes)
        self._file.seek(self._head_bytes)
        bytes_left = memoryview(bytes(content))
        while bytes_left:
            bytes_left = bytes_left[self._file.write(bytes_left) :]


class _LogPipe:
    """The pipe that the processes print into, read so that none of them ever waits for us."""

    def __init__(self, descriptor: int, log: BoundedLog) -> None:
        os.set_blocking(descriptor, False)
        self._sources = [descriptor]
        self._descriptor = descriptor
        self._log = log
        self._due_s = 0.0

    def read(self, besides: Sequence[int] = (), within_s: float | None = None) -> list[int]:
        """Read what the processes printed; return which of `besides` can be read."""
        wait_s = _IDLE_S if self._log.waits else within_s
        ready, _, _ = select.select([*self._sources, *besides], [], [], wait_s)
        if self._log.waits and (not ready or time.monotonic() >= self._due_s):
            # Under heavy output write rarely: most is dropped, and the writer isn't blocked.
            began_s = time.monotonic()
            self._log.write()
            ended_s = time.monotonic()
            self._due_s = ended_s + max(_IDLE_S, _SELDOM * (ended_s - began_s))
        if self._descriptor in ready:
            self._take(_PIECE_BYTES)
        return [descriptor for descriptor in ready if descriptor != self._descriptor]

    def settle(self) -> None:
        """Write to disk all that was printed so far, and nothing printed later."""
        size = fcntl.ioctl(self._descriptor, termios.FIONREAD, bytes(4))
        left_bytes = int(struct.unpack("i", size)[0])
        while left_bytes > 0 and self._sources:
            left_bytes -= self._take(left_bytes)
        self._log.write(unfinished=True)

    def _take(self, most_bytes: int) -> int:
        content = os.read(self._descriptor, most_bytes)
        if content:
            self._log.take(content)
        else:
            self._sources = []
        return len(content)


def main() -> None:
    """Supervise until the input says that all is done, or ends without that word."""
    # An orderly end comes as an order; a cancelled job's signals come to all of its processes.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    mark, descriptor, log_path, *folders = sys.argv[1:]
    orders = io.FileIO(0)  # unbuffered: what select doesn't know of would wait for ever
    startup = json.loads(orders.readline() or '{"secrets": [], "shared": []}')
    without_secrets = functools.partial(hide, secrets=startup["secrets"])
    longest_bytes = max((len(os.fsencode(secret)) for secret in startup["secrets"]), default=0)
    log = BoundedLog(
        Path(log_path),
        functools.partial(hide_bytes, hide=without_secrets),
        secret_bytes=max(SECRET_BYTES, longest_bytes),
    )
    pipe = _LogPipe(int(descriptor), log)
    session = Session(mark)
    shared = set[str]()
    while True:
        if not pipe.read([orders.fileno()]):
            continue
        order = orders.readline().decode().strip()
        if order == SETTLE:
            shared |= shared_by(session, startup["shared"])
            pipe.settle()
            with contextlib.suppress(OSError):
                os.write(1, b"\n")
        elif order and order != DONE:
            session = Session(mark, *map(int, order.split()))
        else:
            break
    if not order:  # a process blocked on a full pipe can't exit: keep reading while ending them
        end = threading.Thread(target=_end, args=(session, shared, startup["shared"]))
        end.start()
        while end.is_alive():
            pipe.read(within_s=_POLL_S)
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
    remove_shared(shared)
    pipe.settle()
    log.close()


def _end(session: Session, shared: set[str], shared_before: Collection[str]) -> None:
    shared |= shared_by(session, shared_before)
    end_all(session, signal.SIGTERM, _ASKED_S)
    shared |= shared_by(session, shared_before)
    end_all(session, signal.SIGKILL, _KILLED_S, nested_after_s=NESTED_S)


MAIN = (
    "import sys; sys.path.append(sys.argv.pop(1)); from specreg.core.supervisor import main; main()"
)
"""For `python -I -S -c`, with the folder that holds specreg as its first argument."""
