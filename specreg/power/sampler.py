"""The sampler, a process of its own: devices in, lines of samples out, until its input ends.

`python -m specreg.power.sampler FILE DEVICE…`, each device as JSON. Its input ends when whoever
started it closes it or dies; what was written stays, line by line.
"""

import contextlib
import heapq
import os
import select
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from specreg.errors import SensorError
from specreg.power.hunt import Hunt
from specreg.power.samples import Failed, Head, Line, Sample, Users
from specreg.sensors import SENSORS, Device, Probe

EVERY_NS = 49 * 10**6
"""About 20 a second, and never in step with a counter that ticks every 100 ms."""

_USERS_EVERY = 10
"""Listing processes takes a driver milliseconds, so only every tenth sample does it."""

_NS_PER_S = 10**9
_EARLIER = -10


def sample(
    devices: Sequence[Device],
    probes: Sequence[Probe],
    write: Callable[[Line], None],
    *,
    wait_until: Callable[[int], bool],
    clock: Callable[[], int],
) -> None:
    """Samples devices until it is told to stop; one that can't be read any more is left alone.

    Args:
        devices: what is sampled.
        probes: what reads each of them.
        write: takes the lines.
        wait_until: waits for a moment; whether to stop instead.
        clock: monotonic, in nanoseconds.
    """
    write(Head(devices=tuple(devices), every_ns=EVERY_NS))
    now_ns = clock()
    hunts = [Hunt(device=i, due_ns=now_ns) for i in range(len(probes))]
    # Moment, place of the device, and of a sample its number; -1 for a look at the counter. The
    # devices are sampled one after another, so that no look has to wait for all of them.
    apart_ns = EVERY_NS // len(probes)
    due = [(now_ns + i * apart_ns, i, number) for i in range(len(probes)) for number in (0, -1)]
    heapq.heapify(due)
    while due and not wait_until(due[0][0]):
        at_ns, place, number = heapq.heappop(due)
        try:
            if number < 0:
                at_ns = _look(hunts[place], probes[place], write, clock)
                if at_ns:
                    heapq.heappush(due, (at_ns, place, -1))
                continue
            _sample(place, number, probes[place], write, clock)
        except SensorError as error:
            write(Failed(device=place, at_ns=clock(), why=str(error)))
            due = [one for one in due if one[1] != place]
            heapq.heapify(due)
            continue
        # A beat that comes too late for the next one leaves that out.
        missed = max(0, (clock() - at_ns) // EVERY_NS)
        heapq.heappush(due, (at_ns + (missed + 1) * EVERY_NS, place, number + 1))


def _look(hunt: Hunt, probe: Probe, write: Callable[[Line], None], clock: Callable[[], int]) -> int:
    """Looks at a counter; when to look again, 0 where there is none."""
    energy_mj = probe.energy_mj()
    if energy_mj is None:
        return 0
    tick = hunt.look(clock(), energy_mj)
    if tick is not None:
        write(tick)
    return hunt.due_ns


def _sample(
    place: int,
    number: int,
    probe: Probe,
    write: Callable[[Line], None],
    clock: Callable[[], int],
) -> None:
    at_ns = clock()
    write(Sample(device=place, at_ns=at_ns, energy_mj=probe.energy_mj(), state=probe.state()))
    if number % _USERS_EVERY == 0:
        pids = probe.pids()
        if pids is not None:
            write(Users(device=place, at_ns=at_ns, pids=tuple(pids)))


def _wait_until(moment_ns: int) -> bool:
    """Waits for a moment, or until the input ends; whether it did."""
    left_s = max(0, moment_ns - time.monotonic_ns()) / _NS_PER_S
    readable, _, _ = select.select([sys.stdin], [], [], left_s)
    return bool(readable) and not os.read(sys.stdin.fileno(), 1)


def _writer(file: BinaryIO) -> Callable[[Line], None]:
    encoder = msgspec.json.Encoder()

    def write(line: Line) -> None:
        file.write(encoder.encode(line) + b"\n")

    return write


def main(path: str, *given: str) -> None:
    """Samples the devices that are given as JSON into a file."""
    devices = [msgspec.json.decode(one, type=Device) for one in given]
    probes = [SENSORS[device.sensor].open(device) for device in devices]
    # It needs a hundredth of a core, at the right moment; an engine's threads may take all of them.
    with contextlib.suppress(OSError):
        os.nice(_EARLIER)
    with Path(path).open("wb", buffering=0) as file:
        sample(devices, probes, _writer(file), wait_until=_wait_until, clock=time.monotonic_ns)


if __name__ == "__main__":
    main(*sys.argv[1:])
