"""The lines that the sampler writes, and the traces of devices that they make."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from specreg.core.errors import SensorError
from specreg.core.files import UNREADABLE
from specreg.telemetry.sensor import Device, State


class Head(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The first line: what is sampled, and how often."""

    devices: tuple[Device, ...]
    every_ns: int


class Sample(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A device, by its place in the head, at a moment of the monotonic clock.

    Attributes:
        energy_mj: of its counter, None without one.
    """

    device: int
    at_ns: int
    energy_mj: int | None
    state: State


class Users(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The processes that compute on a device."""

    device: int
    at_ns: int
    pids: tuple[int, ...]


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A device that couldn't be read any more, and why."""

    device: int
    at_ns: int
    why: str


Line = Head | Sample | Users | Failed


@dataclass(slots=True, kw_only=True)
class PowerTrace:
    """All lines of one device, in order.

    Attributes:
        every_ns: how often a sample was due.
        failed: why it couldn't be read any more, None if it could.
    """

    device: Device
    every_ns: int
    samples: list[Sample] = field(default_factory=list)
    users: list[Users] = field(default_factory=list)
    failed: Failed | None = None

    def within(self, start_ns: int, end_ns: int) -> "PowerTrace":
        """Return the trace of a span of time, both ends within."""

        def inside(one: Sample | Users) -> bool:
            return start_ns <= one.at_ns <= end_ns

        return dataclasses.replace(
            self,
            samples=list(filter(inside, self.samples)),
            users=list(filter(inside, self.users)),
        )


def load_traces(path: Path) -> Sequence[PowerTrace]:
    """Load what a sampler wrote, by device, without a last line that it is still writing.

    Raises:
        SensorError: the file can't be read, or no sampler wrote it.
    """
    lines = _lines(path)
    head = next(lines, None)
    if not isinstance(head, Head):
        raise SensorError(f"samples of power '{path}': hold no head; measure them anew")
    traces = [PowerTrace(device=device, every_ns=head.every_ns) for device in head.devices]
    for line in lines:
        if isinstance(line, Head) or not 0 <= line.device < len(traces):
            message = f"hold a line of none of its {len(traces)} device(s)"
            raise SensorError(f"samples of power '{path}': {message}; measure them anew")
        if isinstance(line, Failed):
            traces[line.device].failed = line
        elif isinstance(line, Users):
            traces[line.device].users.append(line)
        else:
            traces[line.device].samples.append(line)
    return traces


def _lines(path: Path) -> Iterator[Line]:
    decoder = msgspec.json.Decoder(Line)
    try:
        with path.open("rb") as file:
            for line in file:
                try:
                    yield decoder.decode(line)
                except UNREADABLE:
                    return
    except OSError as error:
        raise SensorError(f"samples of power '{path}': {error.strerror}; measure anew") from error
