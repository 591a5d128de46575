"""What the sampler writes, a line each, and what can be read of it: the traces of devices."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from specreg.decoding import UNREADABLE
from specreg.errors import SensorError
from specreg.sensors import Device, State


class Head(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The first line: who samples what, and how often."""

    devices: tuple[Device, ...]
    every_ns: int


class Sample(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A device at a moment of the monotonic clock.

    Attributes:
        device: its place among the head's, from 0.
        energy_mj: of its counter, None without one.
    """

    device: int
    at_ns: int
    energy_mj: int | None
    state: State


class Tick(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A counter was seen to move.

    Attributes:
        at_ns: the first look that saw it.
        after_ns: since the look before: it moved that long ago at most.
        energy_mj: where it moved to; period_ns: how often it does, 0 while nobody knows.
    """

    device: int
    at_ns: int
    after_ns: int
    energy_mj: int
    period_ns: int


class Users(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Who computes on a device, by the ids of the processes."""

    device: int
    at_ns: int
    pids: tuple[int, ...]


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A device couldn't be read any more."""

    device: int
    at_ns: int
    why: str


Line = Head | Sample | Tick | Users | Failed


@dataclass(slots=True, kw_only=True)
class PowerTrace:
    """All that was written of one device, in order.

    Attributes:
        device: which; every_ns: how often a sample was due.
        failed: why it couldn't be read any more, None if it could.
    """

    device: Device
    every_ns: int
    samples: list[Sample] = field(default_factory=list)
    ticks: list[Tick] = field(default_factory=list)
    users: list[Users] = field(default_factory=list)
    failed: Failed | None = None

    def within(self, start_ns: int, end_ns: int) -> "PowerTrace":
        """The same of a span of time, both ends within."""

        def inside(one: Sample | Tick | Users) -> bool:
            return start_ns <= one.at_ns <= end_ns

        return dataclasses.replace(
            self,
            samples=list(filter(inside, self.samples)),
            ticks=list(filter(inside, self.ticks)),
            users=list(filter(inside, self.users)),
        )


def load_traces(path: Path) -> Sequence[PowerTrace]:
    """What a sampler wrote, by device. A torn last line is left out; a sampler may be writing it.

    Where one went on later with other devices, what came before is left out.

    Raises:
        SensorError: the file can't be read, or no sampler wrote it.
    """
    lines = _lines(path)
    head = next(lines, None)
    if not isinstance(head, Head):
        raise SensorError(f"samples of power '{path}': hold no head; measure them anew")
    traces = _empty(head)
    for line in lines:
        if isinstance(line, Head):
            same = line.devices == tuple(trace.device for trace in traces)
            traces = traces if same else _empty(line)
        elif not 0 <= line.device < len(traces):
            message = f"a line is of device {line.device}, its head has {len(traces)}"
            raise SensorError(f"samples of power '{path}': {message}; measure them anew")
        elif isinstance(line, Failed):
            traces[line.device].failed = line
        else:
            _lists(traces[line.device])[type(line)].append(line)
    return traces


def _empty(head: Head) -> Sequence[PowerTrace]:
    return tuple(PowerTrace(device=device, every_ns=head.every_ns) for device in head.devices)


def _lists(trace: PowerTrace) -> Mapping[type, list]:  # type: ignore[type-arg]
    return {Sample: trace.samples, Tick: trace.ticks, Users: trace.users}


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
