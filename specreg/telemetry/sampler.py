"""Sample devices in a process of its own, until its input ends.

`python -m specreg.telemetry.sampler` takes a message with the devices, and gives one for each
sample; see `specreg.core.processes`.
"""

import contextlib
import os
import select
import sys
import time
from collections.abc import Callable, Sequence

import msgspec

from specreg.core.errors import SensorError
from specreg.telemetry.devices import SENSORS
from specreg.telemetry.samples import Failed, Head, Line, Sample, Users
from specreg.telemetry.sensor import Device, Probe

EVERY_NS = 97 * 10**6
"""About 10 a second, and never in step with a load that repeats every 100 ms.

An H100 takes 6 ms for the counter and both power fields of one GPU, so eight fit in.
"""

_USERS_EVERY = 5
"""Listing processes may take a driver milliseconds, so only every fifth sample does it."""

_NS_PER_S = 10**9
_EARLIER = -10


class Devices(msgspec.Struct, frozen=True, kw_only=True):
    """What the sampler is to sample, its first message."""

    devices: tuple[Device, ...]


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
    left = dict(enumerate(probes))
    due_ns, number = clock(), 0
    while left and not wait_until(due_ns):
        for place, probe in tuple(left.items()):
            try:
                _sample(place, probe, write, clock, lists_users=number % _USERS_EVERY == 0)
            except SensorError as error:
                write(Failed(device=place, at_ns=clock(), why=str(error)))
                del left[place]
        # One that is late is followed at once; by whole times too late, those are left out.
        due_ns += max(1, (clock() - due_ns) // EVERY_NS) * EVERY_NS
        number += 1


def _sample(
    place: int,
    probe: Probe,
    write: Callable[[Line], None],
    clock: Callable[[], int],
    *,
    lists_users: bool,
) -> None:
    """Writes what a device says; its counter is as of the middle of the time that reading took."""
    asked_ns = clock()
    energy_mj = probe.energy_mj()
    at_ns = (asked_ns + clock()) // 2
    write(Sample(device=place, at_ns=at_ns, energy_mj=energy_mj, state=probe.state()))
    pids = probe.pids() if lists_users else None
    if pids is not None:
        write(Users(device=place, at_ns=at_ns, pids=tuple(pids)))


def _wait_until(moment_ns: int) -> bool:
    """Waits for a moment, or until the input ends; whether it did."""
    left_s = max(0, moment_ns - time.monotonic_ns()) / _NS_PER_S
    readable, _, _ = select.select([sys.stdin], [], [], left_s)
    return bool(readable) and not os.read(sys.stdin.fileno(), 1)


def main() -> None:
    """Samples the devices that the first line of the input names, until the input ends."""
    devices = msgspec.json.decode(sys.stdin.buffer.readline(), type=Devices).devices
    probes = [SENSORS[device.sensor].open(device) for device in devices]
    # It needs a hundredth of a core, at the right moment; an engine's threads may take all of them.
    with contextlib.suppress(OSError):
        os.nice(_EARLIER)
    encoder = msgspec.json.Encoder()

    def write(line: Line) -> None:
        os.write(sys.stdout.fileno(), encoder.encode(line) + b"\n")

    sample(devices, probes, write, wait_until=_wait_until, clock=time.monotonic_ns)


if __name__ == "__main__":
    main()
