"""Supervise a program: start it, write its log, and end it if specreg is killed.

`SUPERVISOR_PROGRAM` runs this with the standard library alone. Its arguments are
`ORDERS LOG STATUS FOLDER…`:

- ORDERS is the descriptor of a socket, from which it reads orders;
- LOG is that of the read end of the pipe that the program prints into;
- STATUS is that of the write end of the pipe that gets the program's exit status, as digits;
- each FOLDER, which need not exist yet, is removed if the supervisor ends the program, or if none
  was ever started.

The program inherits the supervisor's standard streams. The orders are read line by line:

- `Start` as JSON first, which is answered with `Started`;
- `settle NUMBER`, which is repeated as the answer once all that was printed is on disk and all
  that the processes have in /dev/shm is noted;
- `done` at the end.

Orders that end without `done` mean that their writer is gone, as a rule because of SIGKILL. The
program and its descendants are ended then. What they leave in /dev/shm is removed in either case.
No other process holds the other end of the socket, because Python's descriptors aren't inherited by
other programs.
"""

import contextlib
import ctypes
import fcntl
import functools
import io
import json
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from specreg.core.bounded_log import BoundedLog
from specreg.core.descendants import POLL_S, end_all, living
from specreg.core.redaction import hide, hide_bytes
from specreg.core.shared_memory import remove_shared, shared_below

DONE = "done"
SETTLE = "settle"
NESTED_S = 6.0
"""How long to wait before killing processes that an inner supervisor has to end.

A supervised process that is specreg itself starts an inner supervisor for its own processes. This
time is longer than the inner supervisor waits before it kills them. So the inner supervisor can
clean up first.
"""
_GRACE_S = 2.0
"""How long the processes may take to end by themselves before they are killed."""
_KILLED_S = 30.0
"""How long to wait for the end of killed processes, at most."""
_SWEEP_S = 1.0
"""How long to look for descendants that are left at the end, at most."""
_COMMAND_S = 30.0
"""How long a command that ends processes may take: more than it gives them to end."""
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PIECE_BYTES = 2**20
_IDLE_S = 0.1
"""If nothing is printed for this long, the log is written. While output goes on, the writes are at
least this far apart."""
_WAIT_PER_WRITE = 20
"""While output goes on, the next write waits this many times as long as the last one took."""


class Start(NamedTuple):
    """What a supervisor is to start.

    Attributes:
        command: the program and its arguments.
        environment: all of its variables.
        cwd: its working folder.
        log_path: the file of its log, which exists.
        secrets: the texts that the log doesn't show.
        shared: the files that were in /dev/shm before.
        remove: the command that kills what the program starts outside of its descendants; empty if
            it starts nothing there.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    cwd: str
    log_path: str
    secrets: Sequence[str]
    shared: Sequence[str]
    remove: Sequence[str]


class Started(NamedTuple):
    """The process id of what was started; or the system's error, and the file that it names."""

    pid: int
    errno: int = 0
    filename: str | None = None


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
            other_fds: descriptors to wait for as well.
            within_s: how long to wait for any of them, in seconds; None for as long as it takes. If
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

    def __init__(self, log_pipe: _LogPipe, status_fd: int, shared_before: Sequence[str]) -> None:
        self._log_pipe = log_pipe
        self._status_fd = status_fd
        self._shared_before = shared_before
        self._shared = set[str]()
        self._leader = -1
        self._ended_fd = _ended_children_fd()

    def start(self, start: Start) -> Started:
        """Start the program, and return its process id or the error."""
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)

        try:
            popen = subprocess.Popen(  # noqa: S603 - specreg's own arguments, no shell
                start.command,
                env=start.environment,
                start_new_session=True,
                cwd=start.cwd,
                # Whoever kills the supervisor kills the program too. This process has no other
                # thread yet, which could be in the middle of something.
                preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),  # noqa: PLW1509
            )
        except OSError as error:
            return Started(-1, error.errno or 0, error.filename)
        finally:
            # Its streams have to end with the program and its descendants.
            nothing = os.open(os.devnull, os.O_RDWR)
            for stream_fd in range(3):
                os.dup2(nothing, stream_fd)

        self._leader = popen.pid
        return Started(popen.pid)

    def follow(self, orders: io.FileIO) -> bool:
        """Follow orders until the last one.

        Returns:
            True if the last one said that all is done; False if the writer of the orders is gone.
        """
        while True:
            ready_fds = self._log_pipe.read([orders.fileno(), self._ended_fd])
            if self._ended_fd in ready_fds:
                self._reap()
            if orders.fileno() not in ready_fds:
                continue
            order = read_order(orders)
            if not order:
                # The input has ended.
                return False
            if order == DONE:
                return True
            self._note_shared()
            self._log_pipe.settle()
            _answer(orders, order)

    def end_processes(self) -> None:
        """End the processes, and read what they print: one that waits to print can't end."""
        ending = threading.Thread(target=self._end)
        ending.start()
        while ending.is_alive():
            self._log_pipe.read(within_s=POLL_S)

    def finish(self) -> None:
        """Kill what is left, remove what the processes have left in /dev/shm, and end the log."""
        until_s = time.monotonic() + _SWEEP_S

        # A process that forks at the wrong moment is missing in a list of processes. But as long as
        # any descendant lives, the supervisor has a child.
        while self._reap() and time.monotonic() < until_s:
            for pid in living(os.getpid()):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(POLL_S)

        remove_shared(self._shared)
        self._log_pipe.settle()

    def _reap(self) -> bool:
        """Take the exit statuses of children that have ended, and return whether any child is left.

        Children are the program and descendants whose own parent has ended.
        """
        with contextlib.suppress(BlockingIOError):
            os.read(self._ended_fd, _PIECE_BYTES)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._leader:
                exit_status = os.waitstatus_to_exitcode(status)
                with contextlib.suppress(OSError):  # nobody may want to know
                    os.write(self._status_fd, b"%d" % exit_status)

    def _end(self) -> None:
        """Ask the processes to end, and kill those that don't."""
        own_id = os.getpid()
        end_all(own_id, signal.SIGTERM, _GRACE_S, look=self._note_shared)
        # They may have opened more in /dev/shm while they ended.
        end_all(own_id, signal.SIGKILL, _KILLED_S, look=self._note_shared, nested_after_s=NESTED_S)

    def _note_shared(self) -> None:
        self._shared |= shared_below(os.getpid(), self._shared_before)


def main() -> None:
    """Supervise until the input says that all is done, or ends without saying so."""
    # A cancelled CI job signals all of its processes, and so this one. The signals do nothing here,
    # because the input says when to end. The program doesn't inherit that, as it would SIG_IGN.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _do_nothing)
    orders_fd, log_fd, status_fd = map(int, sys.argv[1:4])
    folders = sys.argv[4:]

    # Without a buffer, because select doesn't see what lies in one.
    orders = io.FileIO(orders_fd, "r+b")
    first_line = read_order(orders)
    if first_line in {"", DONE}:
        # The program was never started.
        _remove(folders)
        return

    start = Start(*json.loads(first_line))
    log = _log_without(start.secrets, Path(start.log_path))
    supervisor = _Supervisor(_LogPipe(log_fd, log), status_fd, start.shared)
    _answer(orders, json.dumps(supervisor.start(start)))
    is_done = supervisor.follow(orders)
    if not is_done:
        run_quietly(start.remove)
        supervisor.end_processes()
        # The program may have been about to start more.
        run_quietly(start.remove)
        _remove(folders)

    supervisor.finish()
    log.close()


def _ended_children_fd() -> int:
    """Return a descriptor that can be read once a child has ended."""
    read_fd, write_fd = os.pipe()
    os.set_blocking(read_fd, False)
    os.set_blocking(write_fd, False)
    signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _do_nothing)
    return read_fd


def run_quietly(command: Sequence[str]) -> None:
    """Run a command that ends processes, whether there are any or not. An empty one does nothing.

    One that hangs is given up, and so are the processes.
    """
    if command:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(  # noqa: S603 - specreg's own arguments, no shell
                command,
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_COMMAND_S,
            )


def _do_nothing(_number: int, _frame: object) -> None:
    """Handle a signal."""


def read_order(orders: io.FileIO) -> str:
    """Return the next order; empty if specreg is gone, also in the middle of a line."""
    try:
        line = orders.readline()
    except OSError:
        # It was killed before it had read the last answer.
        return ""
    return line.decode().strip() if line.endswith(b"\n") else ""


def _answer(orders: io.FileIO, line: str) -> None:
    """Answer an order. Nothing happens if specreg is gone."""
    with contextlib.suppress(OSError):
        orders.write(f"{line}\n".encode())


def _remove(folders: Sequence[str]) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _log_without(secrets: Sequence[str], path: Path) -> BoundedLog:
    """Open the log, in which these secrets are hidden."""
    hide_known = functools.partial(hide, secrets=secrets)
    return BoundedLog(path, functools.partial(hide_bytes, hide=hide_known))
