"""What outlives us: how to find the processes of a server, and who ends them when we can't.

Run by its path with the standard library alone: `python -I -S specreg/watchdog.py MARK [FOLDER …]`.
Input: a line with the id and the start of the process that leads the server's session, once there
is one; then `done`. An input that ends without that word has lost who wrote it, to SIGKILL as a
rule: then the processes are ended and the folders removed.

Nobody but us holds the other end of the input: Python's pipes aren't handed on to other programs.
"""

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

VARIABLE = "SPECREG_PROCESS_MARK"
"""The environment variable by whose value the descendants of a server are known."""
DONE = "done"
_ASKED_S, _KILLED_S, _POLL_S = 2.0, 30.0, 0.05
_DEAD = {"Z", "X"}


class Leader(NamedTuple):
    """The process that leads a session, and when it started, as another may get its number."""

    pid: int
    started: int


NOBODY = Leader(-1, -1)


class _Stat(NamedTuple):
    state: str
    session: int
    started: int


def leader_of(pid: int) -> Leader:
    """A process that runs, or that nobody has waited for yet.

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
        if leader != NOBODY and leader_of(leader.pid) != leader:
            leader = NOBODY
    marked = f"{VARIABLE}={mark}".encode()
    pids = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
    return [pid for pid in pids if _is_ours(pid, marked, leader)]


def kill_all(mark: str, leader: Leader, within_s: float) -> None:
    """Kills what is left, and what is born meanwhile."""
    _signal_all(mark, leader, signal.SIGKILL, within_s)


def ask_all(mark: str, leader: Leader, within_s: float) -> None:
    """Asks what runs to end, once, and waits for it."""
    _signal_all(mark, leader, signal.SIGTERM, within_s, once=True)


def _signal_all(
    mark: str, leader: Leader, number: signal.Signals, within_s: float, *, once: bool = False
) -> None:
    deadline, told = time.monotonic() + within_s, set[int]()
    while (pids := living(mark, leader)) and time.monotonic() < deadline:
        for pid in pids:
            if not (once and pid in told):
                with contextlib.suppress(OSError):  # it ended, or runs as somebody else
                    os.kill(pid, number)
        told.update(pids)
        time.sleep(_POLL_S)


def _is_ours(pid: int, marked: bytes, leader: Leader) -> bool:
    try:
        stat = _stat(pid)
        if stat.state in _DEAD:
            return False
        if stat.session == leader.pid:
            return True
        return marked in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _stat(pid: int) -> _Stat:
    """As proc_pid_stat(5) numbers them; the name, in brackets, may hold any character."""
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return _Stat(fields[0].decode(), int(fields[3]), int(fields[19]))


def _main(mark: str, folders: Sequence[str]) -> None:
    # Whoever ends us in order says so; a cancelled job's signals come to all of its processes.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    leader = NOBODY
    for line in sys.stdin:
        if line.strip() == DONE:
            return
        leader = Leader(*map(int, line.split()))
    ask_all(mark, leader, _ASKED_S)
    kill_all(mark, leader, _KILLED_S)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2:])
