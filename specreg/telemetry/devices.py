"""The devices of a server: which they are, and whether they are free and cool."""

import contextlib
import time
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from specreg.core.errors import SensorError
from specreg.core.processes import describe
from specreg.telemetry import nvml, rapl
from specreg.telemetry.sensor import Device, Probe, State

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
_FREE_WITHIN_S = 10.0
_POLL_S = 0.5


def throttle_reasons(mask: int) -> tuple[str, ...]:
    """Return the bits of a mask in words."""
    return tuple(word for bit, word in THROTTLE_REASONS.items() if mask & bit)


def open_probe(device: Device) -> Probe:
    """Return what reads a device; SensorError if it is gone."""
    return nvml.open_probe(device) if device.sensor == "nvml" else rapl.open_probe(device)


def devices_of(gpus: int, variables: Mapping[str, str]) -> tuple[Device, ...]:
    """Return the first GPUs that a server with these environment variables sees, or processors.

    `gpus` is 0 for one that runs on processors.

    Raises:
        SensorError: there are fewer, or none.
    """
    found = nvml.find(variables).devices if gpus else rapl.find()
    if len(found) < gpus:
        raise SensorError(f"{found[0].sensor} shows {len(found)} of {gpus} GPUs")
    return found[: gpus or None]


def held_back(states: Sequence[State]) -> tuple[float, str]:
    """Return in which share of some states heat or lack of power held a device back, and why."""
    held = [state for state in states if (state.throttle_mask or 0) & _HELD_BACK]
    if not held:
        return 0.0, ""
    masks = [(state.throttle_mask or 0) & _HELD_BACK for state in held]
    reasons = sorted({why for mask in masks for why in throttle_reasons(mask)})
    temperatures_c = [state.temperature_c for state in held if state.temperature_c is not None]
    clocks_mhz = [state.sm_clock_mhz for state in held if state.sm_clock_mhz]
    heat = f", {max(temperatures_c)} °C" if temperatures_c else ""
    clock = f" at {min(clocks_mhz)} MHz" if clocks_mhz else ""
    return len(held) / len(states), f"{', '.join(reasons)}{heat}{clock}"


def check_cool(devices: Sequence[Device]) -> None:
    """Check that no device is too hot, or short of power, before it runs; else a SensorError."""
    for device in devices:
        frac, why = held_back([open_probe(device).state()])
        if frac:
            raise SensorError(
                f"THROTTLED: {device.name}, number {device.number}: is held back before it runs,"
                f" {why}; let it cool down"
            )


def check_free(
    devices: Sequence[Device], ours: AbstractSet[int], taken: AbstractSet[str] = frozenset()
) -> None:
    """Check before a start that no process but `ours` computes on the devices.

    Devices whose ids are in `taken` have a server of ours already.

    Raises:
        SensorError: one does; the process and its user are named.
    """
    for device in devices:
        seen = set(open_probe(device).processes() or ())
        strangers = seen - ours
        # Where none is ours though one must be, the driver numbers processes as the host does.
        if strangers and not (device.id in taken and not seen & ours):
            raise SensorError(
                f"DEVICE_SHARED: {device.name}, number {device.number}: used by"
                f" {', '.join(map(describe, sorted(strangers)))}; end it, or choose another GPU"
                " with CUDA_VISIBLE_DEVICES"
            )


def wait_until_free(
    devices: Sequence[Device], ours: AbstractSet[int], taken: AbstractSet[str]
) -> None:
    """Wait until no other process computes on the devices: 10 s, then as `check_free`.

    One that is held back has as long to cool down. Then the server starts all the same: what it
    accepts is counted, and what is timed while the device is held back is INVALID by its trace.
    """
    deadline = time.monotonic() + _FREE_WITHIN_S
    while time.monotonic() <= deadline:
        with contextlib.suppress(SensorError):
            check_free(devices, ours, taken)
            check_cool(devices)
            return
        time.sleep(_POLL_S)
    check_free(devices, ours, taken)


def held_bytes(count: int, variables: Mapping[str, str], pids: AbstractSet[int]) -> int | None:
    """The memory of GPUs that some processes hold; None where it isn't known.

    `count` GPUs, found as in `devices_of`. Where the driver knows processes by other ids than ours,
    as in a container, only a process that is alone on its GPU is known to be one of them.
    """
    held: list[int | None] = []
    try:
        for device in devices_of(count, variables):
            running = open_probe(device).processes() or {}
            mine = [size for pid, size in running.items() if pid in pids]
            held += mine or (list(running.values()) if len(running) == 1 else [None])
    except SensorError:
        return None
    known = [size for size in held if size]
    return sum(known) if len(known) == len(held) else None
