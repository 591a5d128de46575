"""Process groups that leave nothing behind: every descendant of a server is found and ended.

A server's workers may leave its process group or outlive their parent, so each process that is
started here carries a mark in its environment, which its descendants inherit.
"""

import atexit
import functools
import os
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

_MARK = "SPECREG_PROCESS_MARK"
_TERM_S = 5.0
_KILL_S = 5.0
_POLL_S = 0.05
_EXEC_S = 0.2
_NO_SESSION = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedProcess:
    """A started process.

    Attributes:
        popen: the process; it leads a session of its own.
        mark: by which its descendants are known.
        last_resort: kills all that is left of them; runs at our own end too.
    """

    popen: subprocess.Popen[bytes]
    mark: str
    last_resort: Callable[[], None]


def start_marked(
    command: Sequence[str], *, environment: Mapping[str, str], log_path: Path, cwd: Path
) -> MarkedProcess:
    """Starts a command in a session of its own, so that Ctrl-C reaches us and not it.

    Args:
        command: program and arguments; no shell.
        environment: the whole environment; the mark is added.
        log_path: gets both output streams.
        cwd: the folder to run in.

    Raises:
        OSError: the program can't be run.
    """
    mark = uuid.uuid4().hex
    # setproctitle, which vLLM's workers call, writes over the environment that /proc shows.
    marked = {**environment, _MARK: mark, "SPT_NOENV": "1"}
    try:
        with log_path.open("wb") as log:
            popen = subprocess.Popen(  # noqa: S603 - our own arguments, no shell
                command,
                env=marked,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=cwd,
            )
    except KeyboardInterrupt:
        # It came between the fork and us: nobody but its mark knows the child, once it runs.
        time.sleep(_EXEC_S)
        _kill_all(mark, _NO_SESSION)
        raise
    # A second Ctrl-C may cut the orderly way short; what is left then goes with us.
    last_resort = functools.partial(_kill_all, mark, popen.pid)
    atexit.register(last_resort)
    return MarkedProcess(popen=popen, mark=mark, last_resort=last_resort)


def stop_marked(process: MarkedProcess) -> None:
    """Ends the process and all its descendants: asked first, killed 5 s later, then waited for."""
    try:
        asked = list(_living(process.mark, process.popen.pid))
        _each(asked, psutil.Process.terminate)
        psutil.wait_procs(asked, timeout=_TERM_S)
    finally:
        process.last_resort()
        atexit.unregister(process.last_resort)
        process.popen.wait()


def resident_bytes(process: MarkedProcess) -> int:
    """The memory that the process and its descendants hold; what they share is counted once.

    Proportional set sizes; of a process that doesn't tell its own, the resident one.
    """
    return sum(map(_resident_bytes, _living(process.mark, process.popen.pid)))


def _resident_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except (psutil.Error, AttributeError):
        pass
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def process_ids(process: MarkedProcess) -> frozenset[int]:
    """The ids of the process and its descendants."""
    return frozenset(one.pid for one in _living(process.mark, process.popen.pid))


def _kill_all(mark: str, session_id: int) -> None:
    """Kills what is left, and what is born meanwhile, for 5 s at most."""
    deadline = time.monotonic() + _KILL_S
    while (living := list(_living(mark, session_id))) and time.monotonic() < deadline:
        _each(living, psutil.Process.kill)
        psutil.wait_procs(living, timeout=_POLL_S)


def _living(mark: str, session_id: int) -> Iterator[psutil.Process]:
    """The living processes of its session or with its mark; other users' can't be read."""
    for found in psutil.process_iter():
        try:
            ours = os.getsid(found.pid) == session_id or found.environ().get(_MARK) == mark
            if ours and found.status() != psutil.STATUS_ZOMBIE:
                yield found
        except (psutil.Error, OSError):
            continue


def _each(processes: Sequence[psutil.Process], act: Callable[[psutil.Process], None]) -> None:
    for process in processes:
        try:
            act(process)
        except psutil.NoSuchProcess:
            continue
