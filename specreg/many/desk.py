"""A desk: the folder on a shared disk where a run and one of its jobs leave word for one another.

An order and the wish to end come from the run, lines from the job. Each sees by the time of a file
that the other lives. All files are there before the job begins, and are opened anew to be read:
then a network's disk (NFS) shows what another node wrote, and doesn't say that they aren't there.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

import specreg
from specreg.many.errand import Order, Said
from specreg.many.on_node import check_same, sources_sha256

PATIENCE_S = 120.0
"""How long nobody may be heard of: longer than a network's disk keeps old times for."""
BEAT_S = 5.0
ALIVE = "alive"


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """What a job is given.

    Attributes:
        version, sources_sha256: of the specreg that gives it; who has another may not understand
            the rest.
        log_path: where its worker says what it says of itself.
        order: an `Order`.
    """

    version: str
    sources_sha256: str
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
        return self.folder.parent / ALIVE

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
            sources_sha256=sources_sha256(),
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
        check_same("the run", sent.version, sent.sources_sha256)
        return msgspec.json.decode(sent.order, type=Order), Path(sent.log_path)

    def say(self, line: Line) -> None:
        """Leaves a line, as the job; it is on the shared disk when this returns."""
        with self.said_path.open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def heard(self) -> Iterator[Line]:
        """The whole lines that the job has left since they were last asked for."""
        # A disk that is away for a moment, or shows a part: the next time.
        with (
            contextlib.suppress(OSError, msgspec.DecodeError),
            self.said_path.open("rb") as file,
        ):
            file.seek(self._read_bytes)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                said: Line = msgspec.json.decode(line, type=Line)
                self._read_bytes += len(line)
                yield said

    def end(self) -> None:
        """Lets the job know that it is to end."""
        with contextlib.suppress(OSError):  # whoever has no desk any more has ended
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
