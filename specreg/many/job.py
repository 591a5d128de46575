"""A job of a cluster's queue: an order on a shared disk in, what its worker says out beside it.

`run` is what the queue starts on a node. It measures nothing itself: it looks whether the node is
one of the run's, starts the worker there as a run starts it here, and passes on what that says.
The run and its job share a folder and nothing else; each sees by a file's time that the other lives.
"""

import contextlib
import os
import platform
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

import specreg
from specreg.claims import is_held
from specreg.errors import SpecregError, UnsupportedError
from specreg.identity import Environment, current_environment, find_gpus
from specreg.many.crew import Worker
from specreg.many.errand import Ended, Order, Said, failure_of
from specreg.many.here import start_process
from specreg.many.places import Ground, Machine, check_alike, this_machine

PATIENCE_S = 120.0
"""How long nobody may be heard of: longer than a network's disk keeps old times for."""
BEAT_S = 5.0
_LOOK_S = 1.0
_ENDED_BY = {
    signal.SIGTERM: "was cancelled (SIGTERM)",
    signal.SIGINT: "was cancelled (SIGINT)",
    signal.SIGUSR2: "had to go (SIGUSR2): its time was up, or another job came first",
}
"""Signals of the queue, and what they mean; submitit has its own for the last."""


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """What a job is given.

    Attributes:
        version: of the specreg that gives it; who has another may not understand the rest.
        log_path: where its worker says what it says of itself.
        order: an `Order`.
    """

    version: str
    log_path: str
    order: msgspec.Raw


class Began(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A job runs, on a node."""

    node: str


class Gone(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The worker is, before it had ended: how."""

    how: str


Line = Said | Began | Gone
"""What a job says: what its worker does, and that."""


@dataclass(slots=True)
class Desk:
    """The folder of one job; its files are there before it begins, so no disk says they aren't.

    Attributes:
        folder: shared by the run and the job; the run's own sign of life is beside it.
    """

    folder: Path
    _read_bytes: int = 0

    @property
    def alive_path(self) -> Path:
        """Touched as long as the run lives."""
        return self.folder.parent / "alive"

    @property
    def said_path(self) -> Path:
        """What the job says, in lines; touched as long as it lives."""
        return self.folder / "said.jsonl"

    @property
    def _order_path(self) -> Path:
        return self.folder / "order.json"

    @property
    def _end_path(self) -> Path:
        return self.folder / "end"

    def give(self, order: Order, log_path: Path) -> None:
        """Leaves an order.

        Raises:
            OSError: the disk refuses.
        """
        sent = Sent(
            version=specreg.__version__,
            log_path=str(log_path),
            order=msgspec.Raw(msgspec.json.encode(order)),
        )
        # No secret is taken out of it: the server on the other node needs what its case has.
        self._order_path.write_bytes(msgspec.json.encode(sent))
        for path in (self.said_path, self._end_path):
            path.touch()

    def take(self) -> tuple[Order, Path]:
        """The order, and where its worker says what it says of itself.

        Raises:
            UnsupportedError: another specreg gave it.
        """
        sent = msgspec.json.decode(self._order_path.read_bytes(), type=Sent)
        if sent.version != specreg.__version__:
            message = (
                f"node '{platform.node()}': has specreg {specreg.__version__}, the run has"
                f" {sent.version}; install the same one there, or begin the run again"
            )
            raise UnsupportedError(message)
        return msgspec.json.decode(sent.order, type=Order), Path(sent.log_path)

    def say(self, line: Line) -> None:
        """Leaves a line, as the job; it is on the shared disk when this returns."""
        with self.said_path.open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def heard(self) -> Iterator[Line]:
        """The whole lines that the job has left since they were last asked for."""
        # Opened anew each time: only then does a network's disk show what another node wrote.
        with self.said_path.open("rb") as file:
            file.seek(self._read_bytes)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._read_bytes += len(line)
                yield msgspec.json.decode(line, type=Line)

    def end(self) -> None:
        """Lets the job know that it is to end."""
        self._end_path.write_text("end")

    @property
    def is_to_end(self) -> bool:
        """Whether the run said so, or took the desk away."""
        try:
            return bool(self._end_path.read_bytes())
        except FileNotFoundError:
            return True
        except OSError:  # a disk that is away for a moment says nothing
            return False


@dataclass(slots=True)
class Pulse:
    """Whether a file is still touched, by a clock of our own: nodes needn't agree on the time."""

    path: Path
    patience_s: float = PATIENCE_S
    _touched_ns: int = -1
    _seen_s: float = field(default_factory=time.monotonic)

    @property
    def is_lost(self) -> bool:
        """Whether nobody touched it for longer than there is patience for; nor if it is gone."""
        try:
            touched_ns = self.path.stat().st_mtime_ns
        except OSError:
            touched_ns = self._touched_ns
        if touched_ns != self._touched_ns:
            self._touched_ns, self._seen_s = touched_ns, time.monotonic()
        return time.monotonic() - self._seen_s > self.patience_s


def run(folder: str) -> None:
    """Carries the order out that lies in a folder; what comes of it lies there too.

    Args:
        folder: that of a `Desk`.
    """
    desk = Desk(Path(folder))
    desk.say(Began(node=platform.node()))
    try:
        order, log_path = desk.take()
        order = placed(order)
        visible = {"CUDA_VISIBLE_DEVICES": ",".join(order.gpus)} if order.gpus else {}
        worker = start_process(order, log_path, variables=visible)
    except SpecregError as error:
        desk.say(Ended(failure=failure_of(error)))
        return
    why: list[str] = []
    for number in _ENDED_BY:
        signal.signal(number, lambda came, _: why.append(_ENDED_BY[signal.Signals(came)]))
    threading.Thread(target=watch, args=(desk, worker, why), daemon=True).start()
    ended = False
    for said in worker:
        desk.say(said)
        ended = isinstance(said, Ended)
    if not ended:
        desk.say(Gone(how=next(iter(why), worker.how)))


def watch(
    desk: Desk, worker: Worker, why: Sequence[str], patience_s: float = PATIENCE_S
) -> None:
    """Shows that the job lives; ends its worker when that is wanted, or when the run is gone.

    Args:
        desk: of the job.
        worker: whom to end.
        why: what the queue wants it ended for; empty as long as it doesn't.
        patience_s: how long the run may give no sign of life.
    """
    pulse = Pulse(desk.alive_path, patience_s)
    while not (why or desk.is_to_end or pulse.is_lost):
        with contextlib.suppress(OSError):
            os.utime(desk.said_path)
        time.sleep(_LOOK_S)
    worker.hang_up()


def placed(order: Order) -> Order:
    """An order with the GPUs and cores that the queue gave to the job.

    Raises:
        UnsupportedError: they are too few, or others than the run's.
    """
    need, expected = order.errand.need, order.terms.environment
    gpus = find_gpus()
    machine = this_machine(gpus.devices if need.gpus else ())
    check_alike(machine)
    place = Ground(machine=machine).take(need, is_held)
    if place is None:
        has = f"has {len(machine.gpus)}" + (f" ({gpus.why_none})" if gpus.why_none else "")
        raise UnsupportedError(
            f"node '{platform.node()}': '{order.errand.name}' needs {need.gpus} GPU(s), the job"
            f" {has}; ask sinfo which partition has them, and name it: partition=…"
        )
    here = current_environment(needs_gpus=need.gpus)
    if not _are_alike(here, expected):
        raise UnsupportedError(
            f"node '{platform.node()}': it is '{here.name}', the run's figures are of"
            f" '{expected.name}'; choose nodes of one kind: partition=…, constraint=… or gpu_type=…,"
            " and begin the run on one"
        )
    gpu_ids = tuple(gpu.id for gpu in place.gpus)
    return msgspec.structs.replace(order, gpus=gpu_ids, cores=tuple(sorted(place.cores)))


def _are_alike(here: Environment, expected: Environment) -> bool:
    """Whether the machines are; how many GPUs a server has is its case's to say."""
    one, other = (
        msgspec.structs.replace(each, gpus=tuple(dict.fromkeys(each.gpus)))
        for each in (here, expected)
    )
    return one == other
