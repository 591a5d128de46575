"""Supervise what we start: find its processes, write its log, and end it when we are killed.

Run with the standard library alone, as `MAIN` says: `MARK DESCRIPTOR LOG [FOLDER …]`, the mark of
the processes, the end of the pipe that they print into, their log, and folders that go with us.

Input: first a line of JSON, `Handover`; a line with the id and the start of the process that leads
the session, once there is one; `settle`, which is answered with a line once all that was printed is
on disk; then `done`. An input that ends without that word has lost who wrote it, to SIGKILL as a
rule: then the processes are ended, and what they leave is removed. No other process holds the other
end of the input: Python's pipes aren't handed on to other programs.
"""

import contextlib
import fcntl
import functools
import io
import json
import os
import select
import shutil
import signal
import struct
import sys
import termios
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import NamedTuple

from specreg.core.logs import BoundedLog
from specreg.core.redaction import hide_said

VARIABLE = "SPECREG_PROCESS_MARK"
"""The environment variable by whose value the descendants of a server are known."""
DONE, SETTLE = "done", "settle"
_ASKED_S, _KILLED_S, _POLL_S = 2.0, 30.0, 0.05
_PIECE_BYTES = 2**20
_IDLE_S, _SELDOM = 0.1, 20
_DEAD = {"Z", "X"}
FOLDER = Path("/dev/shm")  # noqa: S108 - it is what glibc's shm_open and sem_open use
_PREFIX = f"{FOLDER}/"
_GONE = " (deleted)"
_Number = tuple[int, int]
"""Of a file: its device and its inode."""


class Leader(NamedTuple):
    """The process that leads a session, and when it started, as another may get its number."""

    pid: int
    started: int


NO_LEADER = Leader(-1, -1)


class _Stat(NamedTuple):
    state: str
    session: int
    threads: int
    started: int


def leader_of(pid: int) -> Leader:
    """A process that runs, or that wasn't waited for yet.

    Raises:
        OSError: there is none.
    """
    return Leader(pid, _stat(pid).started)


def living(mark: str, leader: Leader) -> list[int]:
    """The processes of the leader's session or with the mark; other users' can't be read.

    The number of a session isn't given away before its last process ended; one that another
    process leads is another's.
    """
    with contextlib.suppress(OSError):
        if leader != NO_LEADER and leader_of(leader.pid) != leader:
            leader = NO_LEADER
    marked = f"{VARIABLE}={mark}".encode()
    pids = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
    return [pid for pid in pids if _is_ours(pid, marked, leader)]


def shared_by(mark: str, leader: Leader, before: Collection[str]) -> set[str]:
    """The names of what the processes have in /dev/shm now and wasn't there before."""
    names = used_by(living(mark, leader))
    return {name for name in names if name.partition("/")[0] not in before}


def kill_all(mark: str, leader: Leader, within_s: float) -> list[int]:
    """Kill what is left, and what is born meanwhile, again and again; what lives all the same."""
    deadline = time.monotonic() + within_s
    while (pids := living(mark, leader)) and time.monotonic() < deadline:
        _signal(pids, signal.SIGKILL)
        time.sleep(_POLL_S)
    return pids


def ask_all(mark: str, leader: Leader, within_s: float) -> None:
    """Ask each that runs, or is born meanwhile, to end, once; and wait for them."""
    deadline, asked = time.monotonic() + within_s, set[int]()
    while (pids := living(mark, leader)) and time.monotonic() < deadline:
        _signal(set(pids) - asked, signal.SIGTERM)
        asked.update(pids)
        time.sleep(_POLL_S)


def _signal(pids: Collection[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):  # it ended, or runs as another user
            os.kill(pid, number)


def _is_ours(pid: int, marked: bytes, leader: Leader) -> bool:
    try:
        stat = _stat(pid)
        # Its first thread may have ended: the others go on, and hold what they hold.
        if stat.state in _DEAD and stat.threads <= 1:
            return False
        if stat.session == leader.pid:
            return True
        return marked in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _stat(pid: int) -> _Stat:
    """As proc_pid_stat(5) numbers them; the name, in brackets, may hold any character."""
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    session, threads, started = (int(fields[at]) for at in (3, 17, 19))
    return _Stat(fields[0].decode(), session, threads, started)


def shared_files() -> frozenset[str]:
    """The names of all that lies there; nothing where there is no such folder."""
    with contextlib.suppress(OSError):
        return frozenset(path.name for path in FOLDER.iterdir())
    return frozenset()


def used_by(pids: Iterable[int]) -> frozenset[str]:
    """The names of what processes have open or mapped there, as far as one may look.

    glibc maps a semaphore under a name that it then changes for its own: it is known by its number
    alone.
    """
    used = [one for pid in pids for one in (*_opened(pid), *_mapped(pid))]
    named = {path.removeprefix(_PREFIX) for path, _ in used if not path.endswith(_GONE)}
    renamed = {number for path, number in used if path.endswith(_GONE)}
    return frozenset(named | (_names_of(renamed) if renamed else set()))


def used_by_anybody() -> frozenset[str]:
    """The names of what any process uses, as far as one may look."""
    return used_by(int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())


def remove_shared(names: Iterable[str]) -> None:
    """Remove files of processes that ended, but for those that other processes use."""
    left = [name for name in names if (FOLDER / name).exists()]
    if left:
        used = used_by_anybody()
        for name in left:
            if name not in used:
                with contextlib.suppress(OSError):
                    (FOLDER / name).unlink()


def _names_of(numbers: AbstractSet[_Number]) -> set[str]:
    """The files there that have these."""
    names = set()
    for name in shared_files():
        with contextlib.suppress(OSError):
            if _number((FOLDER / name).lstat()) in numbers:
                names.add(name)
    return names


def _number(stat: os.stat_result) -> _Number:
    return stat.st_dev, stat.st_ino


def _opened(pid: int) -> Iterator[tuple[str, _Number]]:
    """Paths there, and whose they are."""
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if (path := str(link.readlink())).startswith(_PREFIX):
                    yield path, _number(link.stat())


def _mapped(pid: int) -> Iterator[tuple[str, _Number]]:
    """Paths there that are mapped, and whose.

    proc_pid_maps(5) has the device, in hexadecimal, and the inode before the path.
    """
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/maps").read_bytes().splitlines():
            fields, prefix, name = line.decode(errors="surrogateescape").partition(_PREFIX)
            if prefix:
                device, inode = fields.split()[-2:]
                major, minor = (int(part, 16) for part in device.split(":"))
                yield prefix + name, (os.makedev(major, minor), int(inode))


class Handover(NamedTuple):
    """What must not show in a list of processes.

    Attributes:
        secrets: never to be written.
        shared: what lay in /dev/shm before.
    """

    secrets: Sequence[str]
    shared: Sequence[str]


class _LogPipe:
    """The pipe that the processes print into, read so that none of them ever waits for us.

    Attributes:
        sources: the pipe, as long as any process may write to it.
    """

    def __init__(self, descriptor: int, log: BoundedLog) -> None:
        os.set_blocking(descriptor, False)
        self.sources, self._descriptor, self._log = [descriptor], descriptor, log
        self._due_s = 0.0

    def read(self, besides: Sequence[int] = (), within_s: float | None = None) -> list[int]:
        """Take what is there; which of the other descriptors can be read."""
        wait_s = _IDLE_S if self._log.waits else within_s
        ready, _, _ = select.select([*self.sources, *besides], [], [], wait_s)
        if self._log.waits and (not ready or time.monotonic() >= self._due_s):
            self._write()
        if self._descriptor in ready:
            self._take(_PIECE_BYTES)
        return [one for one in ready if one != self._descriptor]

    def settle(self) -> None:
        """Put on disk all that was printed so far, and nothing that is printed from now on."""
        size = fcntl.ioctl(self._descriptor, termios.FIONREAD, bytes(4))
        left_bytes = int(struct.unpack("i", size)[0])
        while left_bytes > 0 and self.sources:
            left_bytes -= self._take(left_bytes)
        self._log.write(unfinished=True)

    def _write(self) -> None:
        """In a flood that seldom that most of it is dropped unseen, and its writer not held up."""
        began_s = time.monotonic()
        self._log.write()
        ended_s = time.monotonic()
        self._due_s = ended_s + max(_IDLE_S, _SELDOM * (ended_s - began_s))

    def _take(self, most_bytes: int) -> int:
        said = os.read(self._descriptor, most_bytes)
        if said:
            self._log.take(said)
        else:
            self.sources = []
        return len(said)


def main() -> None:
    """Supervise until the input says that all is done, or ends without that word."""
    # An orderly end comes as an order; a cancelled job's signals come to all of its processes.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    mark, descriptor, log_path, *folders = sys.argv[1:]
    orders = io.FileIO(0)  # unbuffered: what select doesn't know of would wait for ever
    given = Handover(**json.loads(orders.readline() or '{"secrets": [], "shared": []}'))
    log = BoundedLog(Path(log_path), functools.partial(hide_said, secrets=given.secrets))
    pipe, leader = _LogPipe(int(descriptor), log), NO_LEADER
    while True:
        if not pipe.read([orders.fileno()]):
            continue
        order = orders.readline().decode().strip()
        if order == SETTLE:
            pipe.settle()
            with contextlib.suppress(OSError):
                os.write(1, b"\n")
        elif order == DONE:
            break
        elif order:
            leader = Leader(*map(int, order.split()))
        else:
            _end_all(pipe, mark, leader, given.shared)
            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)
            break
    pipe.settle()
    log.close()


def _end_all(pipe: _LogPipe, mark: str, leader: Leader, shared_before: Collection[str]) -> None:
    """End the processes, and read what they print meanwhile: none could end that waits for us."""
    end = threading.Thread(target=_end, args=(mark, leader, shared_before))
    end.start()
    while end.is_alive():
        pipe.read(within_s=_POLL_S)


def _end(mark: str, leader: Leader, shared_before: Collection[str]) -> None:
    shared = shared_by(mark, leader, shared_before)
    ask_all(mark, leader, _ASKED_S)
    shared |= shared_by(mark, leader, shared_before)
    kill_all(mark, leader, _KILLED_S)
    remove_shared(shared)


MAIN = (
    "import sys; sys.path.append(sys.argv.pop(1)); from specreg.core.supervisor import main; main()"
)
"""For `python -I -S -c`, before all else the folder that holds specreg."""
