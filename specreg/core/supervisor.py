"""Supervise a process that was started: write its log, and end it if we are killed.

`MAIN` runs this with the standard library alone. Its arguments are `MARK DESCRIPTOR LOG FOLDER…`:

- MARK is a text in the environment of all supervised processes, by which they are found;
- DESCRIPTOR is the read end of the pipe that they print into;
- LOG is the file of their log;
- each FOLDER is removed if the supervisor ends the processes, or if none was ever started.

Neither the log nor a folder need exist before the first line of the input.

The input is read line by line:

- a JSON object first, with `secrets`, which are never written, and `shared`, the files that were in
  /dev/shm before;
- the process id and the start time of the session's leader, once there is one;
- `settle`, which is answered with an empty line once all that was printed is on disk and all that
  the processes have in /dev/shm is noted;
- `done` at the end.

An input that ends without `done` means that its writer is gone, as a rule because of SIGKILL. The
processes are ended then. What they leave in /dev/shm is removed in either case. No other process
holds the other end of the input, because Python's pipes aren't inherited by other programs.
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
from collections.abc import Collection, Sequence
from pathlib import Path

from specreg.core.bounded_log import BoundedLog
from specreg.core.redaction import hide, hide_bytes
from specreg.core.sessions import POLL_S, Session, end_all
from specreg.core.shared_memory import remove_shared, shared_by

DONE = "done"
SETTLE = "settle"
NESTED_S = 6.0
"""How long to wait before killing processes that an inner supervisor has to end.

A supervised process that is specreg itself starts an inner supervisor for its own processes. This
time is longer than the inner supervisor waits before it kills them. So the inner supervisor can
clean up first.
"""
EXEC_S = 0.2
"""How long a forked child may take until it runs its own program, with its mark."""
_GRACE_S = 2.0
"""How long the processes may take to end by themselves before they are killed."""
_KILLED_S = 30.0
"""How long to wait for the end of killed processes, at most."""
_PIECE_BYTES = 2**20
_IDLE_S = 0.1
"""If nothing is printed for this long, the log is written. While output goes on, the writes are at
least this far apart."""
_WAIT_PER_WRITE = 20
"""While output goes on, the next write waits this many times as long as the last one took."""


class _LogPipe:
    """The pipe that the processes print into. It is read fast, so that none of them has to wait."""

    def __init__(self, read_fd: int, log: BoundedLog) -> None:
        os.set_blocking(read_fd, False)
        self._read_fd = read_fd
        self._log = log
        self._is_open = True
        self._write_due_s = 0.0

    def read(self, other_fds: Sequence[int] = (), within_s: float | None = None) -> list[int]:
        """Read what the processes have printed.

        Args:
            other_fds: Descriptors to wait for as well.
            within_s: How long to wait for any of them, in seconds; None for as long as it takes. If
                output is still unwritten, the wait is `_IDLE_S`.

        Returns:
            Those of the other descriptors that can be read.
        """
        own_fds = [self._read_fd] if self._is_open else []
        # Output is written once nothing more comes for a moment, so the wait is short until then.
        has_unwritten_output = self._log.has_unwritten_output
        wait_s = _IDLE_S if has_unwritten_output else within_s
        ready_fds, _, _ = select.select([*own_fds, *other_fds], [], [], wait_s)
        is_write_due = not ready_fds or time.monotonic() >= self._write_due_s
        if has_unwritten_output and is_write_due:
            self._write()
        if self._read_fd in ready_fds:
            self._take(_PIECE_BYTES)
        return [fd for fd in ready_fds if fd != self._read_fd]

    def settle(self) -> None:
        """Write to disk all that was printed so far, and nothing that is printed later."""
        waiting = fcntl.ioctl(self._read_fd, termios.FIONREAD, bytes(4))
        left_bytes = int(struct.unpack("i", waiting)[0])
        while left_bytes > 0 and self._is_open:
            left_bytes -= self._take(left_bytes)
        self._log.write(unfinished=True)

    def _write(self) -> None:
        """Write the log, and decide when it is written next.

        The log keeps only a bounded part of heavy output. So it can be written rarely, and the
        processes never wait for it.
        """
        began_s = time.monotonic()
        self._log.write()
        ended_s = time.monotonic()
        self._write_due_s = ended_s + max(_IDLE_S, _WAIT_PER_WRITE * (ended_s - began_s))

    def _take(self, most_bytes: int) -> int:
        """Hand on what the processes have printed, and return how many bytes that was."""
        output = os.read(self._read_fd, most_bytes)
        if output:
            self._log.take(output)
        else:
            self._is_open = False
        return len(output)


class _Supervisor:
    """The supervised processes, their log, and their files in /dev/shm."""

    def __init__(self, mark: str, pipe: _LogPipe, shared_before: Collection[str]) -> None:
        self._session = Session(mark)
        self._pipe = pipe
        self._shared_before = shared_before
        self._shared = set[str]()

    def follow(self, orders: io.FileIO) -> bool:
        """Follow orders until the last one.

        Returns:
            True if the last one said that all is done; False if the writer of the orders is gone.
        """
        while True:
            if not self._pipe.read([orders.fileno()]):
                continue
            order = orders.readline().decode().strip()
            if not order:
                # The input has ended.
                return False
            if order == DONE:
                return True
            if order == SETTLE:
                self._settle()
            else:
                # The leader of the session has started.
                leader, started = order.split()
                self._session = Session(self._session.mark, int(leader), int(started))

    def end_processes(self) -> None:
        """End the processes, and read what they print: one that waits to print can't end."""
        ending = threading.Thread(target=self._end)
        ending.start()
        while ending.is_alive():
            self._pipe.read(within_s=POLL_S)

    def remove_shared(self) -> None:
        """Remove what the processes have left in /dev/shm."""
        remove_shared(self._shared)

    def _settle(self) -> None:
        self._note_shared()
        self._pipe.settle()
        with contextlib.suppress(OSError):
            os.write(1, b"\n")

    def _end(self) -> None:
        """Ask the processes to end, and kill those that don't."""
        if self._session.leader < 0:
            # specreg may have been killed between the fork and the exec of the leader. The leader
            # gets its mark only by exec, so this waits until exec must be over.
            time.sleep(EXEC_S)
        self._note_shared()
        end_all(self._session, signal.SIGTERM, _GRACE_S)
        # They may have opened more in /dev/shm while they ended.
        self._note_shared()
        end_all(self._session, signal.SIGKILL, _KILLED_S, nested_after_s=NESTED_S)

    def _note_shared(self) -> None:
        self._shared |= shared_by(self._session, self._shared_before)


def main() -> None:
    """Supervise until the input says that all is done, or ends without saying so."""
    # A cancelled CI job signals all of its processes, and so this one. The signals are ignored,
    # because the input says when to end.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    mark, log_read_fd, log_path, *folders = sys.argv[1:]
    # Without a buffer, because select doesn't see what lies in one.
    orders = io.FileIO(0)
    first_line = orders.readline().decode().strip()
    if first_line in {"", DONE}:
        # The process was never started.
        _remove(folders)
        return
    startup_message = json.loads(first_line)
    log = _log_without(startup_message["secrets"], Path(log_path))
    pipe = _LogPipe(int(log_read_fd), log)
    supervisor = _Supervisor(mark, pipe, startup_message["shared"])
    is_done = supervisor.follow(orders)
    if not is_done:
        supervisor.end_processes()
        _remove(folders)
    supervisor.remove_shared()
    pipe.settle()
    log.close()


def _remove(folders: Sequence[str]) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _log_without(secrets: Sequence[str], path: Path) -> BoundedLog:
    """Open the log, in which these secrets are hidden."""
    hide_known = functools.partial(hide, secrets=secrets)
    return BoundedLog(path, functools.partial(hide_bytes, hide=hide_known))


MAIN = (
    "import sys; sys.path.append(sys.argv.pop(1)); from specreg.core.supervisor import main; main()"
)
"""For `python -I -S -c`, with the folder that holds specreg as its first argument."""
