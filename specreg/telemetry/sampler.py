"""The sampler: it samples devices in a process of its own, whose lines the run reads as traces.

`python -m specreg.telemetry.sampler` takes the devices as its first message, and gives one for each
sample until its input ends; see `specreg.core.processes`.
"""

import bisect
import contextlib
import os
import select
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import TimeoutExpired

import msgspec

from specreg.core.errors import SensorError
from specreg.core.files import UNREADABLE
from specreg.core.processes import SupervisedProcess, child_process
from specreg.telemetry.devices import open_probe
from specreg.telemetry.sensor import Device, Probe, State

Span = tuple[int, int]
"""From and to, in nanoseconds of the monotonic clock."""

EVERY_NS = 97 * 10**6
"""About 10 a second, and never in step with a load that repeats every 100 ms.

An H100 takes 6 ms for the counter and both power fields of one GPU, so eight fit in.
"""

_PROCESSES_EVERY = 5
"""Listing processes may take a driver milliseconds, so only every fifth sample does it."""

_START_S = 10.0
_POLL_S = 0.02
_AFTER_S = 0.6
"""How long after a window's end a later sample is there, on a busy machine too."""
_NS_PER_S = 10**9
_EARLIER = -10


class Sample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A device, by its place in the message, at a moment of the monotonic clock.

    Attributes:
        pids: the processes that compute on it; None where they weren't listed.
        lost: why it can't be read any more; empty where it can.
    """

    device: int
    at_ns: int
    energy_mj: int | None = None
    state: State = State()
    pids: tuple[int, ...] | None = None
    lost: str = ""


@dataclass(slots=True, kw_only=True)
class PowerTrace:
    """All samples of one device, in order.

    `lost` is the moment from which it couldn't be read, and why; None if it could.
    """

    device: Device
    samples: list[Sample] = field(default_factory=list)
    lost: Sample | None = None

    def within(self, span: Span) -> list[Sample]:
        """Return the samples of a span, both ends within."""
        return [one for one in self.samples if span[0] <= one.at_ns <= span[1]]

    def states(self, span: Span) -> list[State]:
        """Return the states in a span; in one without a sample, those just before and after it."""
        after = bisect.bisect(self.samples, span[0], key=lambda one: one.at_ns)
        beside = self.samples[max(after - 1, 0) : after + 1]
        return [one.state for one in self.within(span) or beside]


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """A sampler that runs, what it samples, and where that goes."""

    devices: tuple[Device, ...]
    path: Path
    child: SupervisedProcess

    def traces(self, until_ns: int) -> tuple[Sequence[PowerTrace], str]:
        """Wait until the samples cover a moment of the monotonic clock, and load them.

        With them comes why the sampler ended, empty where it goes on.
        """
        left_s = (until_ns - time.monotonic_ns()) / _NS_PER_S + _AFTER_S
        try:
            status = self.child.popen.wait(timeout=max(0.0, left_s))
        except TimeoutExpired:
            return load_traces(self.path, self.devices), ""
        printed = self.child.last_lines().splitlines()
        return load_traces(self.path, self.devices), (
            f"the sampler of power ended with status {status}"
            f" ({printed[-1] if printed else 'without a word'}); its samples are in '{self.path}'"
        )


@contextlib.contextmanager
def watch(devices: Sequence[Device], path: Path) -> Iterator[Watch]:
    """Sample devices into a file while the context lasts, or until this process is killed.

    A sampler that didn't start says so when its traces are asked for.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    log_path = path.with_name(f"{path.name}.log")
    command = (sys.executable, "-m", "specreg.telemetry.sampler")
    with path.open("wb") as output:
        try:
            with child_process(command, log_path=log_path, output=output) as child:
                child.send(devices)
                deadline = time.monotonic() + _START_S
                while not path.stat().st_size and time.monotonic() < deadline:
                    if child.popen.poll() is not None:
                        break
                    time.sleep(_POLL_S)
                yield Watch(devices=tuple(devices), path=path, child=child)
        finally:
            if not log_path.stat().st_size:  # nothing, as a rule
                log_path.unlink()


def load_traces(path: Path, devices: Sequence[Device]) -> Sequence[PowerTrace]:
    """Load what a sampler of these devices wrote, without a line that it is still writing."""
    traces = [PowerTrace(device=device) for device in devices]
    decoder = msgspec.json.Decoder(Sample)
    with contextlib.suppress(OSError, *UNREADABLE), path.open("rb") as file:
        for one in map(decoder.decode, file):
            if one.lost:
                traces[one.device].lost = one
            else:
                traces[one.device].samples.append(one)
    return traces


def sample(
    probes: Sequence[Probe],
    write: Callable[[Sample], None],
    *,
    wait_until: Callable[[int], bool],
    clock: Callable[[], int],
) -> None:
    """Sample devices until told to stop; one that can't be read any more is left alone.

    The clock is monotonic, in nanoseconds; `wait_until` tells whether to stop instead.
    """
    left = dict(enumerate(probes))
    due_ns, number = clock(), 0
    while left and not wait_until(due_ns):
        for place, probe in tuple(left.items()):
            asked_ns = clock()
            try:
                energy_mj = probe.energy_mj()
                at_ns = (asked_ns + clock()) // 2  # the middle of the time that reading it took
                state = probe.state()
                listed = None if number % _PROCESSES_EVERY else probe.processes()
            except SensorError as error:
                write(Sample(device=place, at_ns=clock(), lost=str(error)))
                del left[place]
                continue
            pids = None if listed is None else tuple(listed)
            write(Sample(device=place, at_ns=at_ns, energy_mj=energy_mj, state=state, pids=pids))
        # A late sample is followed at once; whole periods that were missed are left out.
        due_ns += max(1, (clock() - due_ns) // EVERY_NS) * EVERY_NS
        number += 1


def _wait_until(moment_ns: int) -> bool:
    """Wait for a moment, or until the input ends; return whether it did."""
    left_s = max(0, moment_ns - time.monotonic_ns()) / _NS_PER_S
    readable, _, _ = select.select([sys.stdin], [], [], left_s)
    return bool(readable) and not os.read(sys.stdin.fileno(), 1)


def main() -> None:
    """Sample the devices that the first line of the input names, until the input ends."""
    devices = msgspec.json.decode(sys.stdin.buffer.readline(), type=tuple[Device, ...])
    probes = [open_probe(device) for device in devices]
    # It needs a hundredth of a core, at the right moment; an engine's threads may take all of them.
    with contextlib.suppress(OSError):
        os.nice(_EARLIER)

    def write(one: Sample) -> None:
        os.write(sys.stdout.fileno(), msgspec.json.encode(one) + b"\n")

    sample(probes, write, wait_until=_wait_until, clock=time.monotonic_ns)


if __name__ == "__main__":
    main()
