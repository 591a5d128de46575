"""The devices of a server: whose power is measured, and whether they are free."""

import time
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from specreg.core.errors import SensorError
from specreg.telemetry.power.checks import check_cool, check_free
from specreg.telemetry.sensors import SENSORS, Device

_FREE_WITHIN_S = 10.0
_POLL_S = 0.5


def devices_of(gpus: int, variables: Mapping[str, str]) -> tuple[Device, ...]:
    """The devices that a server runs on: the first so many GPUs that it sees, or the processors.

    Args:
        gpus: how many it takes, 0 for one that runs on processors.
        variables: the environment that it is started with.

    Raises:
        SensorError: no sensor shows them, with the reason of each.
    """
    why: list[str] = []
    for sensor in SENSORS.values():
        if sensor.of_gpus != bool(gpus):
            continue
        try:
            found = sensor.find(variables)
        except SensorError as error:
            why.append(str(error))
            continue
        if len(found) >= gpus:
            return tuple(found[:gpus] if gpus else found)
        why.append(f"{sensor.name} shows {len(found)} of {gpus} GPUs")
    raise SensorError("; ".join(why) or "no sensor reads such devices")


def why_unreadable(devices: tuple[Device, ...]) -> str:
    """Why the power of some devices can't be read, empty where it can."""
    return "; ".join(dict.fromkeys(device.why_not for device in devices if device.why_not))


def wait_until_free(
    devices: tuple[Device, ...], ours: AbstractSet[int], taken: AbstractSet[str]
) -> None:
    """Returns once nobody else computes on the devices; a server that just ended takes a moment.

    One that is held back has 10 s to cool down. After them the server starts all the same: what it
    accepts is counted, and what is timed while the device is held back is INVALID by its trace.

    Args:
        devices: that are to be used.
        ours: the processes of our servers.
        taken: the ids of those devices on which a server of ours is already.

    Raises:
        SensorError: somebody still does after 10 s.
    """
    deadline = time.monotonic() + _FREE_WITHIN_S
    while True:
        is_late = time.monotonic() > deadline
        try:
            check_free(devices, ours, taken)
            if not is_late:
                check_cool(devices)
        except SensorError:
            if is_late:
                raise
            time.sleep(_POLL_S)
        else:
            return
