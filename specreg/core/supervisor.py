"""Supervise a process that was started: write its log, and end it if we are killed.

`MAIN` runs this with the standard library alone. The arguments are `MARK DESCRIPTOR LOG
[FOLDER ...]`: the mark of the processes, the end of the pipe that they print into, their log, and
the folders that are removed with them.

The input is read line by line:

- a JSON object first, with `secrets`, which are never written, and `shared`, the files that were in
  /dev/shm before;
- the id and the start of the process that leads the session, once there is one;
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

from specreg.core.bounded_log import SECRET_BYTES, BoundedLog
from specreg.core.redaction import hide, hide_bytes
from specreg.core.sessions import POLL_S, Session, end_all
from specreg.core.shared_memory import remove_shared, shared_by

DONE = "done"
SETTLE = "settle"
NESTED_S = 6.0
"""How long a supervisor leaves the processes of an inner supervisor to that one.

It is longer than the inner one waits before it kills, so that the inner one can clean up.
"""
_GRACE_S = 2.0
_KILLED_S = 30.0
_PIECE_BYTES = 2**20
_IDLE_S = 0.1
_WRITING_SHARE = 20
"""Under heavy output the log is written so rarely that it takes a twentieth of the time."""


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
            self._due_s = ended_s + max(_IDLE_S, _WRITING_SHARE * (ended_s - began_s))
        if self._descriptor in ready:
            self._take(_PIECE_BYTES)
        return [one for one in ready if one != self._descriptor]

    def settle(self) -> None:
        """Write to disk all that was printed so far, and nothing printed later."""
        size = fcntl.ioctl(self._descriptor, termios.FIONREAD, bytes(4))
        left_bytes = int(struct.unpack("i", size)[0])
        while left_bytes > 0 and self._sources:
            left_bytes -= self._take(left_bytes)
        self._log.write(unfinished=True)

    def _take(self, most_bytes: int) -> int:
        said = os.read(self._descriptor, most_bytes)
        if said:
            self._log.take(said)
        else:
            self._sources = []
        return len(said)


def main() -> None:
    """Supervise until the input says that all is done, or ends without that word."""
    # An orderly end comes as an order; a cancelled job's signals come to all of its processes.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    mark, descriptor, log_path, *folders = sys.argv[1:]
    orders = io.FileIO(0)  # unbuffered: what select doesn't know of would wait for ever
    given = json.loads(orders.readline() or '{"secrets": [], "shared": []}')
    without_secrets = functools.partial(hide, secrets=given["secrets"])
    longest_bytes = max((len(os.fsencode(secret)) for secret in given["secrets"]), default=0)
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
            shared |= shared_by(session, given["shared"])
            pipe.settle()
            with contextlib.suppress(OSError):
                os.write(1, b"\n")
        elif order and order != DONE:
            session = Session(mark, *map(int, order.split()))
        else:
            break
    if not order:  # a process blocked on a full pipe can't exit: keep reading while ending them
        end = threading.Thread(target=_end, args=(session, shared, given["shared"]))
        end.start()
        while end.is_alive():
            pipe.read(within_s=POLL_S)
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
    remove_shared(shared)
    pipe.settle()
    log.close()


def _end(session: Session, shared: set[str], shared_before: Collection[str]) -> None:
    shared |= shared_by(session, shared_before)
    end_all(session, signal.SIGTERM, _GRACE_S)
    shared |= shared_by(session, shared_before)
    end_all(session, signal.SIGKILL, _KILLED_S, nested_after_s=NESTED_S)


MAIN = (
    "import sys; sys.path.append(sys.argv.pop(1)); from specreg.core.supervisor import main; main()"
)
"""For `python -I -S -c`, with the folder that holds specreg as its first argument."""
