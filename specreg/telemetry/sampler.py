"""The sampler: it samples devices in a process of its own, whose lines the run reads as traces.

`python -m specreg.telemetry.sampler` takes a message with the devices, and gives one for each
sample until its input ends; see `specreg.core.processes`.
"""

import contextlib
import itertools
import os
import select
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import TimeoutExpired

import msgspec

from specreg.core.errors import SensorError
from specreg.core.processes import SupervisedProcess, child_process
from specreg.telemetry.devices import SENSORS
from specreg.telemetry.samples import Failed, Head, Line, PowerTrace, Sample, Users, load_traces
from specreg.telemetry.sensor import Device, Probe

EVERY_NS = 97 * 10**6
"""About 10 a second, and never in step with a load that repeats every 100 ms.

An H100 takes 6 ms for the counter and both power fields of one GPU, so eight fit in.
"""

_USERS_EVERY = 5
"""Listing processes may take a driver milliseconds, so only every fifth sample does it."""

_START_S = 10.0
_POLL_S = 0.02
_AFTER_S = 0.6
"""So long after a window there is a sample behind its end, of a busy machine too."""
_NS_PER_S = 10**9
_EARLIER = -10


class Devices(msgspec.Struct, frozen=True, kw_only=True):
    """The sampler's first message."""

    devices: tuple[Device, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """A sampler that runs, and where its samples go."""

    path: Path
    child: SupervisedProcess

    def traces(self, until_ns: int) -> Sequence[PowerTrace]:
        """Wait until the samples cover a moment of the monotonic clock, and load them.

        Raises:
            SensorError: the sampler ended, or wrote nothing.
        """
        left_s = (until_ns - time.monotonic_ns()) / _NS_PER_S + _AFTER_S
        try:
            status = self.child.popen.wait(timeout=max(0.0, left_s))
        except TimeoutExpired:
            return load_traces(self.path)
        printed = self.child.last_lines().splitlines()
        raise SensorError(
            f"the sampler of power ended with status {status}"
            f" ({printed[-1] if printed else 'without a word'}); its samples are in '{self.path}'"
        )

    def left(self) -> Sequence[PowerTrace]:
        """Load what a sampler that ended has written; nothing where that can't be read."""
        with contextlib.suppress(SensorError):
            return load_traces(self.path)
        return ()


@contextlib.contextmanager
def watch(devices: Sequence[Device], path: Path) -> Iterator[Watch]:
    """Sample devices for as long as the context lasts, or until this process is killed.

    A sampler that didn't start says so when its traces are asked for.

    Args:
        devices: one at least.
        path: where the samples go; a file that exists stays, and a new one is made beside it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    others = (path.with_stem(f"{path.stem}-{number}") for number in itertools.count(2))
    path = next(one for one in itertools.chain([path], others) if not one.exists())
    log_path = path.with_name(f"{path.name}.log")
    command = (sys.executable, "-m", "specreg.telemetry.sampler")
    with path.open("wb") as output:
        try:
            with child_process(command, log_path=log_path, output=output) as child:
                child.send(Devices(devices=tuple(devices)))
                deadline = time.monotonic() + _START_S
                while not path.stat().st_size and time.monotonic() < deadline:
                    if child.popen.poll() is not None:
                        break
                    time.sleep(_POLL_S)
                yield Watch(path=path, child=child)
        finally:
            if not log_path.stat().st_size:  # nothing, as a rule
                log_path.unlink()


def sample(
    devices: Sequence[Device],
    probes: Sequence[Probe],
    write: Callable[[Line], None],
    *,
    wait_until: Callable[[int], bool],
    clock: Callable[[], int],
) -> None:
    """Sample devices until told to stop; one that can't be read any more is left alone.

    The clock is monotonic, in nanoseconds; `wait_until` tells whether to stop instead.
    """
    write(Head(devices=tuple(devices), every_ns=EVERY_NS))
    left = dict(enumerate(probes))
    due_ns, number = clock(), 0
    while left and not wait_until(due_ns):
        for place, probe in tuple(left.items()):
            asked_ns = clock()
            try:
                energy_mj = probe.energy_mj()
                at_ns = (asked_ns + clock()) // 2  # the middle of the time that reading it took
                write(Sample(device=place, at_ns=at_ns, energy_mj=energy_mj, state=probe.state()))
                pids = None if number % _USERS_EVERY else probe.pids()
            except SensorError as error:
                write(Failed(device=place, at_ns=clock(), why=str(error)))
                del left[place]
                continue
            if pids is not None:
                write(Users(device=place, at_ns=at_ns, pids=tuple(pids)))
        # One that is late is followed at once; by whole times too late, those are left out.
        due_ns += max(1, (clock() - due_ns) // EVERY_NS) * EVERY_NS
        number += 1


def _wait_until(moment_ns: int) -> bool:
    """Wait for a moment, or until the input ends; whether it did."""
    left_s = max(0, moment_ns - time.monotonic_ns()) / _NS_PER_S
    readable, _, _ = select.select([sys.stdin], [], [], left_s)
    return bool(readable) and not os.read(sys.stdin.fileno(), 1)


def main() -> None:
    """Sample the devices that the first line of the input names, until the input ends."""
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
