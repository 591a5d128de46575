"""A command on another node: an order in, what the command says out, until either side is gone.

Run as `python -m specreg.servers.outpost` through `ssh` or the like. Input: a line of JSON,
`Order`; then
nothing, for as long as the command is wanted. When the input ends, because who gave the order said
so or was killed, or because the connection broke, the command is ended with all its descendants; a
watchdog does it where somebody kills us. The command's status is ours, unless some of it lives on.
"""

import os
import select
import signal
import sys
import tempfile
from pathlib import Path

import msgspec

from specreg.core.errors import UnkillableError
from specreg.core.processes import MarkedProcess, start_marked, stop_marked
from specreg.core.supervisor import VARIABLE

LIVES_ON = 123
"""Our status where what we started can't be ended."""
_CANNOT_RUN, _SIGNALLED = 127, 128
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done.

    Attributes:
        command: program and arguments.
        variables: of its environment, beside those of this node.
        path: folders to look for programs in, before those of this node; empty for none.
        folder: to run in.
    """

    command: tuple[str, ...]
    variables: dict[str, str]
    path: str
    folder: str


def main() -> int:
    """The status of the command; as a shell tells it of one that was killed or couldn't be run."""
    for number in _ENDING:
        signal.signal(number, _leave)
    try:
        line = sys.stdin.buffer.readline()
        return _run(msgspec.json.decode(line, type=Order)) if line else 0
    except KeyboardInterrupt:
        return _SIGNALLED + signal.SIGTERM
    except UnkillableError as error:
        sys.stdout.write(f"{error}\n")
        return LIVES_ON


def _run(order: Order) -> int:
    for name in ("PYTHONPATH", VARIABLE):  # what finds specreg, and who started us, isn't its
        os.environ.pop(name, None)
    path = os.pathsep.join(filter(None, (order.path, os.environ.get("PATH"))))
    with tempfile.TemporaryDirectory(prefix="specreg-", ignore_cleanup_errors=True) as temporary:
        variables = {**os.environ, "PATH": path, "TMPDIR": temporary, **order.variables}
        try:
            process = start_marked(
                order.command,
                environment=variables,
                log_path=Path(temporary) / "log",
                cwd=Path(order.folder),
                temporary=[Path(temporary)],
                passes_on=True,
            )
        except OSError as error:
            what = f"'{order.command[0]}': {error.strerror}: '{error.filename}'"
            sys.stdout.write(f"specreg: can't run {what}; needed on each node\n")
            return _CANNOT_RUN
        try:
            _await_end(process)
        finally:
            stop_marked(process)
    status = process.popen.returncode
    return status if status >= 0 else _SIGNALLED - status


def _await_end(process: MarkedProcess) -> None:
    """Returns once the command ended, or nobody wants it any more."""
    ended = os.pidfd_open(process.popen.pid)
    try:
        select.select([sys.stdin, ended], [], [])
    finally:
        os.close(ended)


def _leave(number: int, frame: object) -> None:
    del number, frame
    for one in _ENDING:
        signal.signal(one, signal.SIG_IGN)  # once is enough
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
