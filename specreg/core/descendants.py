"""Find the descendants of a supervisor, and signal them.

A supervisor is the parent of the program that it supervises, and the sub-reaper of its descendants
(PR_SET_CHILD_SUBREAPER of prctl(2)): Linux makes it the parent of each of them whose own parent has
ended. So no descendant gets away, whatever it does to its session, its name or its environment.

This module needs the standard library alone, because the supervisor has nothing else.
"""

import contextlib
import math
import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

POLL_S = 0.05
SUPERVISOR_PROGRAM = (
    "import sys; sys.path.append(sys.argv.pop(1)); from specreg.core.supervisor import main; main()"
)
"""For `python -I -S -c`, with the folder that holds specreg as its first argument.

It also tells a supervisor from other processes.
"""
_STOPPED_S = 1.0
"""How long to wait until processes have stopped. One that waits in the kernel doesn't stop."""
_STOP_POLL_S = 0.002


class Members(NamedTuple):
    """The ids of the living descendants of a supervisor.

    Attributes:
        direct: those that only this supervisor looks after.
        nested: those that an inner supervisor looks after, and these inner supervisors.
    """

    direct: frozenset[int]
    nested: frozenset[int]


class _Process(NamedTuple):
    """A process, with whether it lives or only waits to be reaped."""

    pid: int
    parent: int
    is_alive: bool


def members(supervisor: int) -> Members:
    """Return the living descendants of a supervisor, which has the given process id."""
    children = defaultdict[int, list[_Process]](list)
    for process in _processes():
        children[process.parent].append(process)

    direct_ids = set[int]()
    nested_ids = set[int]()
    waiting = [(process, False) for process in children[supervisor]]
    while waiting:
        process, is_below_inner = waiting.pop()
        is_nested = is_below_inner or _is_supervisor(process.pid)
        if process.is_alive:
            (nested_ids if is_nested else direct_ids).add(process.pid)
        # The other threads of a process whose first thread has ended may have children.
        waiting.extend((child, is_nested) for child in children[process.pid])

    return Members(direct=frozenset(direct_ids), nested=frozenset(nested_ids))


def living(supervisor: int) -> list[int]:
    """Return the ids of all living descendants of a supervisor, nested ones included."""
    direct, nested = members(supervisor)
    return sorted(direct | nested)


def end_all(
    supervisor: int,
    number: signal.Signals,
    within_s: float,
    *,
    look: Callable[[], object] | None = None,
    nested_after_s: float = math.inf,
) -> list[int]:
    """Signal all descendants, new ones included, until none is left or time is up.

    Args:
        supervisor: the process id of their supervisor.
        number: the signal; each process gets it once.
        within_s: how long to wait until none is left, in seconds.
        look: is called before the first signal while all processes are stopped, so that they make
            no file which it doesn't see. The descendants of inner supervisors aren't stopped.
        nested_after_s: how long inner supervisors have to end their processes, in seconds; after
            that the signal goes to the nested processes as well.

    Returns:
        The ids of the survivors.
    """
    if look is not None:
        _stop(supervisor)
        look()
    began_s = time.monotonic()
    signalled = set[int]()
    while True:
        direct, nested = members(supervisor)
        elapsed_s = time.monotonic() - began_s
        if not (direct or nested) or elapsed_s >= within_s:
            return sorted(direct | nested)
        targets = direct
        if elapsed_s >= nested_after_s:
            targets |= nested
        for pid in targets - signalled:
            _signal(pid, number)
            # A stopped process gets no other signal but SIGKILL before it goes on.
            _signal(pid, signal.SIGCONT)
        signalled |= targets
        time.sleep(POLL_S)


def all_process_ids() -> list[int]:
    """Return the ids of all processes that this one may see."""
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _stop(supervisor: int) -> None:
    """Stop all processes that only this supervisor looks after, new ones included."""
    until_s = time.monotonic() + _STOPPED_S
    while time.monotonic() < until_s:
        running = [pid for pid in members(supervisor).direct if not _is_stopped(pid)]
        if not running:
            return
        for pid in running:
            _signal(pid, signal.SIGSTOP)
        time.sleep(_STOP_POLL_S)


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(OSError):  # it has ended, or runs as another user
        os.kill(pid, number)


def _processes() -> Iterator[_Process]:
    """Yield all processes."""
    for process_id in all_process_ids():
        with contextlib.suppress(OSError):
            # The fields 3, 4 and 20 of proc_pid_stat(5).
            fields = _stat(Path(f"/proc/{process_id}"))
            state = fields[0]
            parent = int(fields[1])
            threads = int(fields[17])
            # The other threads of a zombie may go on, and hold files and memory.
            has_ended = state in {b"Z", b"X"} and threads <= 1
            yield _Process(process_id, parent, not has_ended)


def _is_supervisor(pid: int) -> bool:
    """Return whether a process is a supervisor."""
    with contextlib.suppress(OSError):
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return SUPERVISOR_PROGRAM.encode() in arguments
    return False


def _is_stopped(pid: int) -> bool:
    """Return whether all threads of a process are stopped, or have ended."""
    states = set[bytes]()
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            states.add(_stat(thread)[0])
    return states <= {b"T", b"t", b"Z", b"X"}


def _stat(folder: Path) -> list[bytes]:
    """Return the fields of a process or a thread in proc_pid_stat(5), from its state on."""
    # The name of the program comes before the state, and may have spaces and brackets in it.
    return folder.joinpath("stat").read_bytes().rpartition(b")")[2].split()
