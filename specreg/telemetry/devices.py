"""Find the devices of a server, and check that they are free and cool."""

import contextlib
import time
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from specreg.core.errors import SensorError
from specreg.core.processes import describe_process
from specreg.telemetry import amd, nvml, rapl
from specreg.telemetry.gpus import find_visible
from specreg.telemetry.sensor import Device, DeviceState, Probe

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
"""The meaning of each bit of NVML's mask of throttle reasons."""
_HELD_BACK_MASK = 0x8 | 0x20 | 0x40 | 0x80
"""The bits that mean that heat or a lack of power slows the device down. A power cap doesn't count,
because a GPU under full load usually runs at its cap."""
_FREE_WITHIN_S = 10.0
"""How long to wait for the processes of an earlier run to end, and for a hot device to cool."""
_POLL_S = 0.5


def throttle_reasons(mask: int) -> tuple[str, ...]:
    """Return the meaning of each bit that is set in a mask of throttle reasons."""
    return tuple(word for bit, word in THROTTLE_REASONS.items() if mask & bit)


def open_probe(device: Device) -> Probe:
    """Return a probe that reads a device.

    Raises:
        SensorError: the device is gone.
    """
    if device.sensor == nvml.SENSOR:
        return nvml.open_probe(device)
    if device.sensor == amd.SENSOR:
        return amd.open_probe(device)
    return rapl.open_probe(device)


def devices_of(gpus: int, variables: Mapping[str, str]) -> tuple[Device, ...]:
    """Return the devices of a server: the first GPUs that it sees, or the processors.

    Args:
        gpus: the number of GPUs that the server uses; 0 for a server that runs on processors.
        variables: the environment variables of the server.

    Raises:
        SensorError: the server sees fewer GPUs, or no device can be read.
    """
    devices = find_visible(variables).devices if gpus else rapl.find()
    if len(devices) < gpus:
        problem = f"{devices[0].sensor} shows {len(devices)} of {gpus} GPUs"
        advice = f"show the server more of them with {devices[0].selector}"
        raise SensorError(f"{problem}; {advice}, or use a machine that has enough")
    return devices[:gpus] if gpus else devices


def throttling_of(states: Sequence[DeviceState]) -> tuple[float, str]:
    """Return in which share of its states a device was held back by heat or a lack of power.

    Args:
        states: the sampled states of the device.

    Returns:
        The share, from 0 to 1, and a text with the reasons, and with the highest temperature and
        the lowest clock while it was held back. If it never was, 0 and an empty text.
    """
    held_states = [state for state in states if (state.throttle_mask or 0) & _HELD_BACK_MASK]
    if not held_states:
        return 0.0, ""
    reasons: set[str] = set()
    for state in held_states:
        reasons.update(throttle_reasons((state.throttle_mask or 0) & _HELD_BACK_MASK))
    description = ", ".join(sorted(reasons))
    temperatures_c = [
        state.temperature_c for state in held_states if state.temperature_c is not None
    ]
    if temperatures_c:
        description += f", {max(temperatures_c)} °C"
    clocks_mhz = [state.sm_clock_mhz for state in held_states if state.sm_clock_mhz]
    if clocks_mhz:
        description += f" at {min(clocks_mhz)} MHz"
    return len(held_states) / len(states), description


def check_cool(devices: Sequence[Device]) -> None:
    """Check before a start that no device is held back by heat or a lack of power.

    Raises:
        SensorError: a device is held back, or is gone.
    """
    for device in devices:
        throttled_frac, reasons = throttling_of([open_probe(device).state()])
        if throttled_frac:
            raise SensorError(
                f"THROTTLED: {device.name}, number {device.number}: is slowed down before a server"
                f" starts, {reasons}; let it cool down, or give it more power"
            )


def check_free(
    devices: Sequence[Device],
    our_pids: AbstractSet[int],
    our_device_ids: AbstractSet[str] = frozenset(),
) -> None:
    """Check before a start that no other process computes on the devices.

    Args:
        our_pids: the ids of this run's processes, which may use the devices.
        our_device_ids: the ids of the devices on which a server of this run is running already.

    Raises:
        SensorError: another process uses a device, or a device is gone. The message names the
            process, and its user if it can be seen.
    """
    for device in devices:
        pids = set(open_probe(device).processes() or ())
        # In a container the driver may list processes by the ids that they have on the host. This
        # is so if a server of this run is on the device and isn't in the list. Then the processes
        # of this run can't be recognised, so the device isn't checked.
        our_server_is_unseen = device.id in our_device_ids and not pids & our_pids
        if our_server_is_unseen:
            continue
        foreign_pids = pids - our_pids
        if foreign_pids:
            processes = ", ".join(map(describe_process, sorted(foreign_pids)))
            raise SensorError(
                f"DEVICE_SHARED: {device.name}, number {device.number}: used by {processes}; end"
                f" it, or choose another GPU with {device.selector}"
            )


def wait_until_free(
    devices: Sequence[Device], our_pids: AbstractSet[int], our_device_ids: AbstractSet[str]
) -> None:
    """Wait up to 10 s until the devices are free and cool, then check that they are free.

    A device that is still held back after that time doesn't prevent the start. Acceptance can be
    measured nevertheless, and times that are measured while a device is held back become INVALID
    later.

    Args:
        our_pids: as in `check_free`.
        our_device_ids: as in `check_free`.

    Raises:
        SensorError: another process uses a device, or a device is gone.
    """
    deadline_s = time.monotonic() + _FREE_WITHIN_S
    while time.monotonic() <= deadline_s:
        with contextlib.suppress(SensorError):
            check_free(devices, our_pids, our_device_ids)
            check_cool(devices)
            return
        time.sleep(_POLL_S)

    check_free(devices, our_pids, our_device_ids)


def held_bytes(count: int, variables: Mapping[str, str], pids: AbstractSet[int]) -> int | None:
    """Return how much GPU memory some processes hold.

    Args:
        count: the number of GPUs to look at, see `devices_of`.
        variables: the environment variables of the processes.
        pids: the ids of the processes.

    Returns:
        The memory in bytes; None if it isn't known.
    """
    total_bytes = 0
    try:
        for device in devices_of(count, variables):
            bytes_by_pid = open_probe(device).processes() or {}
            sizes_bytes = [size for pid, size in bytes_by_pid.items() if pid in pids]
            # In a container the driver may list processes by the ids that they have on the host. A
            # process that is alone on its GPU must be the one in question.
            if not sizes_bytes and len(bytes_by_pid) == 1:
                sizes_bytes = list(bytes_by_pid.values())
            if not sizes_bytes:
                return None
            for size_bytes in sizes_bytes:
                if not size_bytes:
                    return None
                total_bytes += size_bytes
    except SensorError:
        return None

    return total_bytes
