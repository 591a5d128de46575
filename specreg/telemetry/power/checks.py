"""What makes a measurement worthless: a GPU that is held back, or that somebody else uses too."""

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet

import psutil

from specreg.core.errors import InvalidMeasurementError, SensorError
from specreg.telemetry.power.energy import Span
from specreg.telemetry.power.samples import PowerTrace, Users
from specreg.telemetry.sensors import SENSORS, Device, State

THROTTLE_REASONS = {
    0x1: "idle",
    0x2: "clocks set by an application",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
    0x100: "display clocks",
}
"""NVML's bits, in words."""

_HELD_BACK = 0x8 | 0x20 | 0x40 | 0x80


def throttle_reasons(mask: int) -> tuple[str, ...]:
    """The bits of a mask in words."""
    return tuple(word for bit, word in THROTTLE_REASONS.items() if mask & bit)


def check_held_back(traces: Sequence[PowerTrace], spans: Sequence[Span]) -> None:
    """No device was too hot, or short of power, in some spans; a power cap is normal.

    Raises:
        InvalidMeasurementError: `THROTTLED`.
    """
    for trace in traces:
        states = [one.state for span in spans for one in trace.within(*span).samples]
        held = [state for state in states if (state.throttle_mask or 0) & _HELD_BACK]
        if held:
            message = (
                f"{trace.device.name} was held back in {len(held) / len(states):.0%} of the"
                f" samples: {_held_back(held)}; cool it, or give it more power"
            )
            raise InvalidMeasurementError("THROTTLED", message)


def _held_back(states: Sequence[State]) -> str:
    """What holds a device back, how hot it is at most and its lowest clock."""
    masks = [(state.throttle_mask or 0) & _HELD_BACK for state in states]
    reasons = sorted({why for mask in masks for why in throttle_reasons(mask)})
    hottest = max((state.temperature_c or 0 for state in states), default=0)
    clocks = [state.sm_clock_mhz for state in states if state.sm_clock_mhz]
    clock = f" at {min(clocks)} MHz" if clocks else ""
    return f"{', '.join(reasons)}, {hottest} °C{clock}"


def check_alone(
    traces: Sequence[PowerTrace], spans: Sequence[Span], ours: AbstractSet[int]
) -> None:
    """Nobody else computed on a device in some spans.

    Args:
        traces: of the devices.
        spans: in which they were measured.
        ours: the processes of our servers.

    Raises:
        InvalidMeasurementError: `DEVICE_SHARED`, naming who did; nothing of it is touched.
    """
    for trace in traces:
        seen = {pid for span in spans for one in _listed(trace, span) for pid in one.pids}
        strangers = seen - ours
        # In a container the driver may number processes as the host does: then none is ours, and
        # what was there before the first request is taken for it. Who was there before our servers
        # is refused before they start.
        if ours and trace.users and not seen & ours:
            strangers = seen - set(trace.users[0].pids)
        if strangers:
            message = (
                f"{trace.device.name}: used by {', '.join(map(describe, sorted(strangers)))} while"
                " it was measured; measure again when it is free"
            )
            raise InvalidMeasurementError("DEVICE_SHARED", message)


def _listed(trace: PowerTrace, span: Span) -> Iterator[Users]:
    """The lists of processes in a span, the last one before and the first one after it.

    A sampler lists them twice a second, and later on a busy machine: a span may fall in between.
    """
    start_ns, end_ns = span
    yield from [one for one in trace.users if one.at_ns < start_ns][-1:]
    yield from (one for one in trace.users if start_ns <= one.at_ns <= end_ns)
    yield from [one for one in trace.users if one.at_ns > end_ns][:1]


def check_free(
    devices: Sequence[Device], ours: AbstractSet[int], taken: AbstractSet[str] = frozenset()
) -> None:
    """Nobody else computes on the devices; asked before a start.

    Args:
        devices: that are to be used.
        ours: the processes of our servers.
        taken: the ids of those devices on which a server of ours is already.

    Raises:
        SensorError: somebody does, with the process and its user; or one is gone.
    """
    for device in devices:
        probe = SENSORS[device.sensor].open(device)
        seen = set(probe.pids() or ())
        strangers = seen - ours
        # Where none is ours though one must be, the driver numbers them otherwise: see check_alone.
        if device.id in taken and not seen & ours:
            strangers = set()
        if strangers:
            raise SensorError(
                f"DEVICE_SHARED: {device.name}, number {device.number}: used by"
                f" {', '.join(map(describe, sorted(strangers)))}; end it, or choose another GPU"
                " with CUDA_VISIBLE_DEVICES"
            )


def check_cool(devices: Sequence[Device]) -> None:
    """No device is too hot, or short of power, before it runs.

    Raises:
        SensorError: one is, with the reason; or one is gone.
    """
    for device in devices:
        state = SENSORS[device.sensor].open(device).state()
        if (state.throttle_mask or 0) & _HELD_BACK:
            raise SensorError(
                f"THROTTLED: {device.name}, number {device.number}: is held back before it runs,"
                f" {_held_back([state])}; let it cool down"
            )


def describe(pid: int) -> str:
    """A process as far as we may see it: `process 4242 (python, user ada)`."""
    try:
        process = psutil.Process(pid)
        return f"process {pid} ({process.name()}, user {process.username()})"
    except psutil.Error:
        return f"process {pid} (of another user or container)"
