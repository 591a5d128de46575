"""Find the GPUs of this machine, of NVIDIA or AMD."""

from collections.abc import Mapping, Sequence

from specreg.core.errors import NoGpuError
from specreg.telemetry import amd, nvml
from specreg.telemetry.sensor import Device, VisibleGpus

VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
"""The variables that `visibility` sets to show a process only some GPUs."""


def find_visible(variables: Mapping[str, str]) -> VisibleGpus:
    """Find the GPUs that a process sees: NVIDIA's, or AMD's on a machine without those.

    Args:
        variables: the environment variables of the process.

    Raises:
        NoGpuError: there is no GPU, or the variables select none.
        SensorError: a driver doesn't work, no GPU can be used, or it isn't known which ones the
            variables select.
    """
    try:
        return nvml.find(variables)
    except NoGpuError as nvidia_error:
        try:
            devices, hidden = amd.find_all()
        except NoGpuError:
            # If there is no GPU at all, the error about NVIDIA's driver helps most users.
            raise nvidia_error from None
    return VisibleGpus(devices=amd.visible(devices, variables), hidden=hidden)


def visibility(devices: Sequence[Device], variables: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables with which a process sees only some of the GPUs that it sees now.

    Args:
        devices: the GPUs that it may see, one or more of the same vendor.
        variables: the current environment variables of the process.

    Raises:
        NoGpuError: as in `amd.find_all`.
        SensorError: as in `amd.visibility`.
    """
    if devices[0].sensor == amd.SENSOR:
        return amd.visibility(devices, variables)
    return nvml.visibility(devices)
