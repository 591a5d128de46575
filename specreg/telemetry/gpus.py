"""Find the GPUs of this machine, of whichever vendor they are."""

from collections.abc import Mapping, Sequence

from specreg.core.errors import NoGpuError
from specreg.telemetry import amd, nvml
from specreg.telemetry.sensor import Device, VisibleGpus

VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
"""The variables by which `visibility` shows a process some GPUs only."""


def find_visible(variables: Mapping[str, str]) -> VisibleGpus:
    """Find the GPUs that a process sees: NVIDIA's, or AMD's on a machine without those.

    Args:
        variables: the environment variables of the process.

    Raises:
        NoGpuError: there is no GPU, or the variables select none.
        SensorError: a driver doesn't work, or no GPU can be used.
    """
    try:
        return nvml.find(variables)
    except NoGpuError as nvidia_error:
        try:
            devices, hidden = amd.find_all()
        except NoGpuError:
            # Without a GPU of either vendor, most users look for what is said of NVIDIA's.
            raise nvidia_error from None
    return VisibleGpus(devices=amd.visible(devices, variables), hidden=hidden)


def visibility(devices: Sequence[Device], variables: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables with which a process sees only some of the GPUs that it sees now.

    Args:
        devices: the GPUs to leave, one or more of one vendor.
        variables: the environment variables of the process now.
    """
    if devices[0].sensor == amd.SENSOR:
        return amd.visibility(devices, variables)
    return nvml.visibility(devices)
