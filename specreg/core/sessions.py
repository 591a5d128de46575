"""Find all processes that belong to one that was started, and signal them.

This module needs the standard library alone, because the supervisor has nothing else.
"""

import contextlib
import math
import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

VARIABLE = "SPECREG_PROCESS_MARK"
"""The environment variable that has the marks of a process.

They are the marks of the supervised processes from which it descends, and its own if it is
supervised itself. They are separated by slashes, the outermost first.
"""
POLL_S = 0.05


class Session(NamedTuple):
    """The processes of a session of Linux, and all others that have its mark.

    Attributes:
        mark: One of the marks in their environment; see `VARIABLE`.
        leader: The id of the process that leads the session; -1 before there is one.
        started: When the leader started, in ticks, because another process may get its id later;
            -1 before there is one.
    """

    mark: str
    leader: int = -1
    started: int = -1


class Members(NamedTuple):
    """The ids of the living processes of a session.

    Attributes:
        direct: Those that only the session's own supervisor looks after.
        nested: Those that an inner supervisor looks after, and these inner supervisors.
    """

    direct: frozenset[int]
    nested: frozenset[int]


class _Process(NamedTuple):
    """A living process, with the id of its session and the marks in its environment."""

    pid: int
    session: int
    marks: tuple[str, ...]


def marks_below(environment: Mapping[str, str], mark: str) -> str:
    """Return the value of `VARIABLE` for a child with a mark of its own."""
    outer_marks = environment.get(VARIABLE, "")
    return f"{outer_marks}/{mark}" if outer_marks else mark


def supervisor_marks(environment: Mapping[str, str]) -> str:
    """Return the value of `VARIABLE` for a supervisor.

    The supervisor doesn't have the mark of its own processes, so it isn't ended with them. An outer
    supervisor takes it for a nested process, and so lets it finish.
    """
    return marks_below(environment, "supervisor")


def started_ticks(pid: int) -> int:
    """Return when a process started, in the kernel's ticks since boot.

    Raises:
        OSError: There is no such process.
    """
    # Field 22 of proc_pid_stat(5).
    return int(_stat(pid)[19])


def members(session: Session) -> Members:
    """Return the living processes of a session.

    The marks of another user's process can't be read. It is found only if it is in the same session
    of Linux as the leader or as a process of this user that has the mark.

    A process may overwrite its environment or start a program without one. Such a process is found
    by its session of Linux: each supervised process leads a session of its own, so no other
    processes are in it. The kernel gives a session's id to a new process only after the last
    process of that session has ended. So if the process with the leader's id started at another
    time, the leader's session is over, and the id belongs to another one.
    """
    leader = session.leader
    with contextlib.suppress(OSError):
        if leader >= 0 and started_ticks(leader) != session.started:
            leader = -1
    processes = list(_living_processes())
    own_sessions = {process.session for process in processes if process.marks[-1] == session.mark}
    # Processes in the session of the leader count even if their environment shows no mark.
    own_sessions.add(leader)
    nested_sessions = {
        process.session for process in processes if session.mark in process.marks[:-1]
    }
    nested_sessions -= own_sessions
    direct_ids = (process.pid for process in processes if process.session in own_sessions)
    nested_ids = (process.pid for process in processes if process.session in nested_sessions)
    return Members(direct=frozenset(direct_ids), nested=frozenset(nested_ids))


def living(session: Session) -> list[int]:
    """Return the ids of all living processes of a session, nested ones included."""
    direct, nested = members(session)
    return sorted(direct | nested)


def end_all(
    session: Session, number: signal.Signals, within_s: float, *, nested_after_s: float = math.inf
) -> list[int]:
    """Signal all processes of a session, new ones included, until none is left or time is up.

    Args:
        session: The processes.
        number: The signal; each process gets it once.
        within_s: How long to wait until none is left, in seconds.
        nested_after_s: How long inner supervisors have to end their processes, in seconds; after
            that the signal goes to the nested processes as well.

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
            with contextlib.suppress(OSError):  # it has ended, or runs as another user
                os.kill(pid, number)
        signalled |= targets
        time.sleep(POLL_S)


def all_process_ids() -> list[int]:
    """Return the ids of all processes that this one may see."""
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _living_processes() -> Iterator[_Process]:
    """Yield all living processes. A process lives on if only its first thread has ended."""
    for process_id in all_process_ids():
        with contextlib.suppress(OSError):
            # The fields 3, 6 and 20 of proc_pid_stat(5).
            fields = _stat(process_id)
            state = fields[0]
            session = int(fields[3])
            threads = int(fields[17])
            # The other threads of a zombie may go on, and hold files and memory.
            if state in {b"Z", b"X"} and threads <= 1:
                continue
            yield _Process(process_id, session, _marks_of(process_id))


def _marks_of(pid: int) -> tuple[str, ...]:
    """Return the marks in a process's environment; a single empty one if it shows none."""
    environment = b""
    # The environment of another user's process can't be read, and a process whose first thread has
    # ended shows none.
    with contextlib.suppress(OSError):
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    name = f"{VARIABLE}=".encode()
    for variable in environment.split(b"\0"):
        if variable.startswith(name):
            marks = variable.removeprefix(name).decode(errors="replace")
            return tuple(marks.split("/"))
    return ("",)


def _stat(pid: int) -> list[bytes]:
    """Return the fields of a process that proc_pid_stat(5) describes, from its state on."""
    # The name of the program comes before the state, and may have spaces and brackets in it.
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
