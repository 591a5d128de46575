"""The crew of this machine: each worker a process on GPUs of its own, as far as there are any."""

import contextlib
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import msgspec

from specreg.core.errors import UnsupportedError
from specreg.many.crew import WorkerLog
from specreg.many.errand import Order, Said
from specreg.many.places import (
    WORKERS_OPTION,
    Ground,
    Machine,
    Need,
    Place,
    at_once,
    check_alike,
    this_machine,
)
from specreg.servers.gpu_lease import is_held
from specreg.telemetry.identity import find_gpus

_MAIN = "import sys; sys.path[:] = sys.argv[1:]; from specreg.many.worker import main; main()"
COMMAND = (sys.executable, "-P", "-c", _MAIN)
"""What starts a worker, with the folders of our own modules after it."""
_PIECE_BYTES = 64 * 1024
_LAST_WORDS_S = 5.0


@dataclass(slots=True, kw_only=True, eq=False)
class Here:
    """This machine.

    Attributes:
        machine: it.
        command: what starts a worker.
        option: what a user asks for it by.
    """

    machine: Machine
    command: tuple[str, ...] = COMMAND
    option: str = WORKERS_OPTION
    _ground: Ground = field(init=False)

    def __post_init__(self) -> None:
        self._ground = Ground(machine=self.machine)

    @property
    def gpus(self) -> int:
        """How many there are."""
        return len(self.machine.gpus)

    def place(self, need: Need) -> Place | None:
        """See `Crew`; what another run holds comes last."""
        return self._ground.take(need, is_held)

    def give_back(self, place: Place) -> None:
        """See `Crew`."""
        self._ground.give_back(place)

    def start(self, order: Order, place: Place, log_path: Path) -> "Process":
        """See `Crew`."""
        visible = ",".join(gpu.id for gpu in place.gpus)
        variables = {"CUDA_VISIBLE_DEVICES": visible} if visible else {}
        return start_process(order, log_path, command=self.command, variables=variables)

    def at_once(self, needs: Iterable[Need]) -> tuple[int, str]:
        """See `Crew`."""
        return at_once(self.machine, needs)

    def close(self) -> None:
        """See `Crew`; there is nothing to give back."""


@dataclass(slots=True, kw_only=True, eq=False)
class Process:
    """A worker that is a process of this machine; see `Worker`.

    Attributes:
        popen: the process; it leads a session of its own.
        order: what it is to do.
        log: gets what it says of itself.
    """

    popen: subprocess.Popen[bytes]
    order: Order
    log: WorkerLog
    how: str = ""

    def __iter__(self) -> Iterator[Said]:
        """See `Worker`; one that was killed in the midst of a line didn't say it."""
        stdin, stdout, stderr = self.popen.stdin, self.popen.stdout, self.popen.stderr
        if stdin is None or stdout is None or stderr is None:
            return
        keeper = threading.Thread(target=self._keep, args=(stderr,), daemon=True)
        keeper.start()
        try:
            with contextlib.suppress(OSError, ValueError):  # it is gone, or was hung up on
                stdin.write(msgspec.json.encode(self.order) + b"\n")
                stdin.flush()
            with contextlib.suppress(msgspec.DecodeError):
                for line in stdout:
                    yield msgspec.json.decode(line, type=Said)
        finally:
            stdout.close()
            self.hang_up()
            self.how = how_ended(self.popen.wait())
            keeper.join(_LAST_WORDS_S)  # a process that it left behind may still have its error

    def hang_up(self) -> None:
        """See `Worker`: the end of its input says so."""
        if self.popen.stdin is not None:
            with contextlib.suppress(OSError):
                self.popen.stdin.close()

    def kill(self) -> None:
        """See `Worker`."""
        self.popen.kill()

    def _keep(self, said: IO[bytes]) -> None:
        with said:
            while piece := os.read(said.fileno(), _PIECE_BYTES):
                with contextlib.suppress(OSError):  # a disk that is full holds no worker up
                    self.log.take(piece)
            self.log.close()


def start_process(
    order: Order,
    log_path: Path,
    *,
    command: tuple[str, ...] = COMMAND,
    variables: Mapping[str, str] | None = None,
) -> Process:
    """A worker on this machine.

    Args:
        order: what it is to do.
        log_path: gets what it says of itself, if it does.
        command: what starts it.
        variables: further ones of its environment.

    Raises:
        OSError: it can't be started.
    """
    # In a session of its own, so that Ctrl-C reaches the suite alone, which then ends it.
    # Our own modules' folders are no variable: the engines would look for theirs in them, too.
    popen = subprocess.Popen(  # noqa: S603 - our own command
        (*command, *sys.path),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, **(variables or {})},
    )
    return Process(popen=popen, order=order, log=WorkerLog(log_path))


def given_place(order: Order) -> Order:
    """An order with the GPUs that a cluster shows to this process, and the cores near them.

    Raises:
        UnsupportedError: they are too few, or of several kinds.
    """
    find_gpus.cache_clear()
    need, node = order.errand.need, f"node '{platform.node()}'"
    gpus = find_gpus()
    machine = this_machine(gpus.devices if need.gpus else ())
    check_alike(machine, node)
    place = Ground(machine=machine).take(need, is_held)
    if place is None:
        found = f"{len(machine.gpus)}" + (f" ({gpus.why_none})" if gpus.why_none else "")
        message = (
            f"{node}: '{order.errand.name}' needs {need.gpus} GPU(s), and is given {found}; choose"
            " nodes that have them, of Slurm with partition=…"
        )
        raise UnsupportedError(message)
    return order.at(place)


def how_ended(status: int) -> str:
    """How a process ended."""
    return f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
