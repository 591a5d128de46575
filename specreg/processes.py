"""Process groups that leave nothing behind: every descendant of a server is found and ended.

A server's workers may leave its process group or outlive their parent, so each process that is
started here carries a mark in its environment, which its descendants inherit.
"""

import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

_MARK = "SPECREG_PROCESS_MARK"
_TERM_S = 5.0
_KILL_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedProcess:
    """A started process, and the mark by which it and its descendants are known."""

    popen: subprocess.Popen[bytes]
    mark: str


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
    with log_path.open("wb") as log:
        popen = subprocess.Popen(  # noqa: S603 - our own arguments, no shell
            command,
            env={**environment, _MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=cwd,
        )
    return MarkedProcess(popen=popen, mark=mark)


def stop_marked(process: MarkedProcess) -> None:
    """Ends the process and all its descendants: asked first, killed 5 s later, then waited for."""
    for sign in (psutil.Process.terminate, psutil.Process.kill):
        living = list(_marked(process.mark))
        for found in living:
            _quietly(sign, found)
        psutil.wait_procs(living, timeout=_TERM_S if sign is psutil.Process.terminate else _KILL_S)
    deadline = time.monotonic() + _KILL_S
    while time.monotonic() < deadline and list(_marked(process.mark)):
        for found in _marked(process.mark):  # born while we were killing
            _quietly(psutil.Process.kill, found)
        time.sleep(0.05)
    process.popen.wait()


def _marked(mark: str) -> Iterator[psutil.Process]:
    """The living processes that carry the mark; those of other users can't be read and aren't."""
    for found in psutil.process_iter():
        try:
            if found.environ().get(_MARK) == mark and found.status() != psutil.STATUS_ZOMBIE:
                yield found
        except psutil.Error:
            continue


def _quietly(sign: object, process: psutil.Process) -> None:
    try:
        sign(process)  # type: ignore[operator]
    except psutil.NoSuchProcess:
        return
