"""Sample devices in a process of its own, and load the samples as traces.

`python -m specreg.telemetry.sampler` gets the list of devices in the first line of its input. It
writes a line for each sample, and stops when its input ends or all devices are lost; see
`specreg.core.processes`.
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
from specreg.telemetry.sensor import Device, DeviceState, Probe

Span = tuple[int, int]
"""The start and the end of a period, in nanoseconds of the monotonic clock."""

EVERY_NS = 97 * 10**6
"""The period of sampling: about 10 samples a second.

A period of 100 ms would always hit the same point of a load that repeats every 100 ms.
On an H100, reading the counter and both power fields of one GPU takes 6 ms, so a period is long
enough for eight GPUs.
"""

_PROCESSES_EVERY = 5
"""Only every fifth sample lists processes, because listing them may take milliseconds."""

_START_S = 10.0
"""How long a sampler may take to write its first sample."""
_POLL_S = 0.02
_LATER_SAMPLE_S = 0.6
"""How long after a moment the file has a later sample at the latest, even on a busy machine."""
_NS_PER_S = 10**9
_NICENESS = -10


class DeviceSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A reading of a device.

    Attributes:
        device_index: the index of the device in the sampler's input, from 0.
        at_ns: when it was read, in nanoseconds of the monotonic clock.
        energy_mj: the value of the device's energy counter; None if it has none.
        state: the other values that were read.
        pids: the ids of the processes that compute on the device; None if they weren't listed.
        lost: why the device can't be read any more; empty while it can.
    """

    device_index: int
    at_ns: int
    energy_mj: int | None = None
    state: DeviceState = DeviceState()
    pids: tuple[int, ...] | None = None
    lost: str = ""


@dataclass(slots=True, kw_only=True)
class PowerTrace:
    """All samples of one device.

    Attributes:
        samples: its samples in the order of time.
        lost_sample: the sample that says why the device was lost; None if it could be read to the
            end.
    """

    device: Device
    samples: list[DeviceSample] = field(default_factory=list)
    lost_sample: DeviceSample | None = None

    def within(self, span: Span) -> list[DeviceSample]:
        """Return the samples of a span, including those at its two ends."""
        start_ns, end_ns = span
        return [sample for sample in self.samples if start_ns <= sample.at_ns <= end_ns]

    def states(self, span: Span) -> list[DeviceState]:
        """Return the states in a span, or those just before and after it if it has no sample."""
        samples = self.within(span)
        if not samples:
            next_index = bisect.bisect(self.samples, span[0], key=lambda sample: sample.at_ns)
            samples = self.samples[max(next_index - 1, 0) : next_index + 1]
        return [sample.state for sample in samples]


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """A running sampler.

    Attributes:
        devices: the devices that it samples.
        path: the file that it writes.
    """

    devices: tuple[Device, ...]
    path: Path
    child: SupervisedProcess

    def traces(self, until_ns: int) -> tuple[Sequence[PowerTrace], str]:
        """Wait until the samples cover the time up to a moment, and load them.

        Args:
            until_ns: the moment, in nanoseconds of the monotonic clock.

        Returns:
            The trace of each device; and why the sampler ended, empty if it is still running.
        """
        wait_s = (until_ns - time.monotonic_ns()) / _NS_PER_S + _LATER_SAMPLE_S

        # A sampler that works still runs after the wait, so the wait usually ends by its timeout.
        try:
            status = self.child.popen.wait(timeout=max(0.0, wait_s))
        except TimeoutExpired:
            return load_traces(self.path, self.devices), ""

        log_lines = self.child.last_lines().splitlines()
        last_line = log_lines[-1] if log_lines else "its log is empty"
        reason = (
            f"the sampler of power ended with status {status} ({last_line}); its samples are in"
            f" '{self.path}'"
        )
        return load_traces(self.path, self.devices), reason


@contextlib.contextmanager
def watch(devices: Sequence[Device], path: Path) -> Iterator[Watch]:
    """Sample devices into a file while the context lasts, or until this process is killed.

    Args:
        path: the file.

    Yields:
        The running sampler, as soon as it has written its first sample or has ended, or after 10 s.
        `Watch.traces` reports a sampler that has ended.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    log_path = path.with_name(f"{path.name}.log")
    command = (sys.executable, "-P", "-m", "specreg.telemetry.sampler")
    with path.open("wb") as output:
        try:
            with child_process(command, log_path=log_path, output=output) as child:
                child.send(devices)
                deadline_s = time.monotonic() + _START_S
                while not path.stat().st_size and time.monotonic() < deadline_s:
                    if child.popen.poll() is not None:
                        break
                    time.sleep(_POLL_S)
                yield Watch(devices=tuple(devices), path=path, child=child)
        finally:
            # The log gets only the sampler's standard error, so it stays empty if all goes well. An
            # error of removing it must not replace an error of the measurement.
            with contextlib.suppress(OSError):
                if not log_path.stat().st_size:
                    log_path.unlink()


def load_traces(path: Path, devices: Sequence[Device]) -> Sequence[PowerTrace]:
    """Load the samples in a sampler's file, up to the first line that can't be read.

    Args:
        path: the file. Its last line may be incomplete, because the sampler is still writing.
        devices: the devices that were sampled, in the order of the sampler's input.

    Returns:
        The trace of each device, in the same order; without samples if there is no file.
    """
    traces = [PowerTrace(device=device) for device in devices]
    decoder = msgspec.json.Decoder(DeviceSample)
    with contextlib.suppress(OSError, *UNREADABLE), path.open("rb") as file:
        for line in file:
            sample = decoder.decode(line)
            trace = traces[sample.device_index]
            if sample.lost:
                trace.lost_sample = sample
            else:
                trace.samples.append(sample)

    return traces


def sample_devices(
    probes: Sequence[Probe],
    write: Callable[[DeviceSample], None],
    *,
    wait_until: Callable[[int], bool],
    clock: Callable[[], int],
) -> None:
    """Sample devices periodically. A device that is lost isn't sampled any more.

    Args:
        probes: the probes of the devices.
        wait_until: waits for a moment of the clock, and returns True if sampling has to stop.
        clock: returns the monotonic time in nanoseconds.
    """
    open_probes = dict(enumerate(probes))
    due_ns = clock()
    rounds = 0
    while open_probes and not wait_until(due_ns):
        for device_index, probe in tuple(open_probes.items()):
            start_ns = clock()
            try:
                energy_mj = probe.energy_mj()
                # Reading the counter takes milliseconds, so the sample gets the time halfway.
                at_ns = (start_ns + clock()) // 2
                state = probe.state()
                processes = None if rounds % _PROCESSES_EVERY else probe.processes()
            except SensorError as error:
                write(DeviceSample(device_index=device_index, at_ns=clock(), lost=str(error)))
                del open_probes[device_index]
                continue
            sample = DeviceSample(
                device_index=device_index,
                at_ns=at_ns,
                energy_mj=energy_mj,
                state=state,
                pids=None if processes is None else tuple(processes),
            )
            write(sample)
        # If this round was late, the next one follows at once, and whole periods that were missed
        # are skipped.
        periods = max(1, (clock() - due_ns) // EVERY_NS)
        due_ns += periods * EVERY_NS
        rounds += 1


def _wait_until(moment_ns: int) -> bool:
    """Wait for a moment of the monotonic clock, or until the input ends.

    Returns:
        True if the input ended.
    """
    left_ns = max(0, moment_ns - time.monotonic_ns())
    readable, _, _ = select.select([sys.stdin], [], [], left_ns / _NS_PER_S)
    if not readable:
        return False
    # An input that has ended is readable too, but gives no byte.
    return not os.read(sys.stdin.fileno(), 1)


def main() -> None:
    """Sample the devices that the first line of the input names.

    It ends with the input, or when all devices are lost.
    """
    devices = msgspec.json.decode(sys.stdin.buffer.readline(), type=tuple[Device, ...])
    probes = [open_probe(device) for device in devices]

    # The sampler needs only a hundredth of a core, but at the right moments. An engine's threads
    # may keep all cores busy, so the sampler gets a higher priority if that is allowed.
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)

    def write(sample: DeviceSample) -> None:
        os.write(sys.stdout.fileno(), msgspec.json.encode(sample) + b"\n")

    sample_devices(probes, write, wait_until=_wait_until, clock=time.monotonic_ns)


if __name__ == "__main__":
    main()
