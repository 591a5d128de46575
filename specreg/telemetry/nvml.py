"""Find and read NVIDIA's GPUs through NVML, with nvidia-ml-py."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec
import pynvml

from specreg.core.errors import NoGpuError, SensorError
from specreg.core.readable import readable_line
from specreg.telemetry.sensor import (
    MAX_PLAUSIBLE_MEMORY_BYTES,
    Device,
    DeviceState,
    HiddenGpu,
    Probe,
    Scope,
    VisibleGpus,
    changed_limit,
    number_in,
)

_T = TypeVar("_T")

SENSOR = "nvml"
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_ORDER = "CUDA_DEVICE_ORDER"
_CONTROL_NODE = Path("/dev/nvidiactl")
"""The file that a process opens to use any GPU. It is missing in a container without GPUs."""
_MW_PER_W = 1000
_NOT_AVAILABLE = (2**32 - 1, 2**64 - 1)
"""NVML_VALUE_NOT_AVAILABLE in 32 and in 64 bits, which a driver returns for an unknown value."""
_PERCENT = 100
_SLICED = "NVML: MIG is on, and a slice reports no power of its own; use a GPU without MIG"
_VIRTUAL = (
    "NVML: a virtual GPU (vGPU) reports no power to its guest; use a GPU that is passed through to"
    " it, or a machine of its own"
)
_WITHOUT_SLICE = (
    "NVML: MIG is on, and the GPU has no slice to compute on; make one (nvidia-smi mig), or switch"
    " MIG off"
)
# The numbers are from nvml.h, because older versions of nvidia-ml-py have no names for them.
_SCOPES = {Scope.GPU: 0, Scope.MODULE: 1}
_INSTALL = "install NVIDIA's driver, or start the container with --gpus"
_RELOAD = "reload the driver or reboot"
_READ_KERNEL_LOG = "look at the kernel's log (dmesg) for Xid"
_REMEDIES: Mapping[int, str] = MappingProxyType(
    {
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: _INSTALL,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED: (
            "load the driver (modprobe nvidia) or reboot, or start the container with --gpus"
        ),
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: _RELOAD,
        pynvml.NVML_ERROR_NO_PERMISSION: (
            "run as a user who may use the GPU, or in a job or container that has it"
        ),
        pynvml.NVML_ERROR_OPERATING_SYSTEM: (
            "look at the rights of /dev/nvidia* and at the job's or container's cgroup"
        ),
        pynvml.NVML_ERROR_INSUFFICIENT_POWER: "look at the GPU's power cables",
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: "install a newer driver",
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH: "install a newer driver",
        pynvml.NVML_ERROR_GPU_IS_LOST: _READ_KERNEL_LOG,
        pynvml.NVML_ERROR_IRQ_ISSUE: _READ_KERNEL_LOG,
        pynvml.NVML_ERROR_CORRUPTED_INFOROM: _READ_KERNEL_LOG,
        pynvml.NVML_ERROR_RESET_REQUIRED: "reset the GPU (nvidia-smi --gpu-reset) or reboot",
    }
)
"""What to do about an error of NVML, by the number of the error."""
_USUAL_REMEDY = f"{_READ_KERNEL_LOG}, and {_RELOAD}"
_PLAIN_WORDS: Mapping[int, str] = MappingProxyType(
    {
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
            "the loaded driver and NVIDIA's library are of different versions, as after an upgrade"
        )
    }
)
"""Better descriptions of errors whose own message from NVML needs explaining."""


@dataclass(frozen=True, slots=True)
class _Gpu(Probe):
    """Reads a GPU. A value is None if the card doesn't have it.

    Attributes:
        handle: NVML's handle of the GPU.
        scope: what its power covers.
    """

    handle: Any
    scope: Scope

    def energy_mj(self) -> int | None:
        return _ask(pynvml.nvmlDeviceGetTotalEnergyConsumption, self.handle)

    def state(self) -> DeviceState:
        handle = self.handle
        average_mw, instant_mw = _power(handle, self.scope)
        utilisation = _ask(pynvml.nvmlDeviceGetUtilizationRates, handle)
        memory = _ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
        return DeviceState(
            average_mw=average_mw,
            instant_mw=instant_mw,
            sm_clock_mhz=_ask(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM),
            memory_clock_mhz=_ask(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_MEM),
            temperature_c=_ask(
                pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU
            ),
            throttle_mask=_ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle),
            utilisation_frac=None if utilisation is None else utilisation.gpu / _PERCENT,
            used_bytes=None if memory is None else memory.used,
        )

    def processes(self) -> Mapping[int, int | None] | None:
        processes = _ask(pynvml.nvmlDeviceGetComputeRunningProcesses, self.handle)
        if processes is None:
            return None
        return {process.pid: process.usedGpuMemory for process in processes}


def find(variables: Mapping[str, str], control_node: Path = _CONTROL_NODE) -> VisibleGpus:
    """Find the GPUs that CUDA_VISIBLE_DEVICES selects, in its order; without it, find all GPUs.

    A GPU that can't be opened, because it is lost or was given to another job, doesn't affect the
    others. If a GPU is divided into slices (MIG), the process sees only the first slice.

    Args:
        variables: the environment variables of the process.
        control_node: a file that exists only if a process may use GPUs.

    Raises:
        NoGpuError: there is no driver or no GPU, or the variables select none.
        SensorError: the driver doesn't work, no GPU can be used, or it isn't known which ones are
            selected.
    """
    # Load the driver's library.
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound as error:
        if control_node.exists():
            message = f"{_described(error)}, though '{control_node}' is there"
            raise SensorError(f"NVML: {message}; {_INSTALL}") from error
        raise NoGpuError(_message(error)) from error
    except pynvml.NVMLError as error:
        raise SensorError(_message(error)) from error

    # Open all GPUs.
    with _mapped_errors():
        count = pynvml.nvmlDeviceGetCount()
    if not count:
        raise NoGpuError("NVML: the driver shows no GPU; check the container's --gpus")
    opened, hidden = _open_all(count)
    if not opened:
        raise SensorError(hidden[0].reason)

    # Select those that the process sees, and replace divided ones by their slices.
    selected = visible(opened, variables, slice_with_uuid=_slice)
    if not selected:
        message = f"NVML: {_VISIBLE}={variables.get(_VISIBLE, '')} leaves none of {len(opened)}"
        raise NoGpuError(f"{message} GPU(s); unset it, or name one that is there")
    with _mapped_errors():
        devices, without_slice = _with_slices(selected)
    if not devices:
        raise SensorError(without_slice[0].reason)
    return VisibleGpus(devices=devices, hidden=(*hidden, *without_slice))


def _open_all(count: int) -> tuple[list[Device], list[HiddenGpu]]:
    """Return the GPUs that this process can open, and those that it can't."""
    devices: list[Device] = []
    hidden: list[HiddenGpu] = []
    for number in range(count):
        try:
            with _mapped_errors():
                handle = pynvml.nvmlDeviceGetHandleByIndex(number)
                devices.append(_device(handle, number))
        except SensorError as error:
            hidden.append(HiddenGpu(number=number, reason=str(error)))

    return devices, hidden


def _with_slices(devices: Sequence[Device]) -> tuple[tuple[Device, ...], list[HiddenGpu]]:
    """Replace a GPU that is divided into slices by its first slice.

    A process that computes on a slice sees only that slice, and no other GPU (NVIDIA's guide to
    MIG, "CUDA device enumeration"). If the driver can't list the slices, the GPU itself is
    returned, with its memory unknown.

    Returns:
        The devices, and the GPUs that have no slice to compute on.
    """
    usable_devices: list[Device] = []
    without_slice: list[HiddenGpu] = []
    for device in devices:
        is_slice = device.id.startswith("MIG-")
        handle = None if is_slice else _ask(pynvml.nvmlDeviceGetHandleByUUID, device.id)
        if handle is None or not _is_sliced(handle):
            usable_devices.append(device)
            continue
        slices = _slices_of(handle, device.number)
        if slices:
            return (slices[0],), []
        if slices is None:
            usable_devices.append(msgspec.structs.replace(device, memory_bytes=None))
        else:
            without_slice.append(HiddenGpu(number=device.number, reason=_WITHOUT_SLICE))

    return tuple(usable_devices), without_slice


def _slices_of(handle: object, number: int) -> list[Device] | None:
    """Return the slices of a GPU; None if its driver doesn't list them."""
    most_slices = _ask(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle)
    if most_slices is None:
        return None
    slices: list[Device] = []
    for index in range(most_slices):
        slice_handle = _ask(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
        if slice_handle is not None:
            slices.append(_slice_device(slice_handle, number))

    return slices


def visibility(devices: Sequence[Device]) -> Mapping[str, str]:
    """Return the variables with which a process sees only these GPUs."""
    return {_VISIBLE: ",".join(device.id for device in devices)}


def open_probe(device: Device) -> Probe:
    """Return a probe that reads a GPU.

    Raises:
        SensorError: the GPU is gone.
    """
    with _mapped_errors():
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(device.id)
        return _Gpu(handle, device.scope)


def _device(handle: object, number: int) -> Device:
    scope, why_not = _power_scope(handle)
    limits_w = _limits_w(handle)
    memory_bytes, shares_memory = _memory(handle)
    bus_id = ""
    pci = _ask(pynvml.nvmlDeviceGetPciInfo, handle)
    if pci is not None:
        # NVML writes a domain with eight digits, Linux with four.
        bus_id = pci.busId.lower()[-len("0000:00:00.0") :]
    return Device(
        sensor=SENSOR,
        id=pynvml.nvmlDeviceGetUUID(handle),
        name=readable_line(_ask(pynvml.nvmlDeviceGetName, handle) or ""),
        number=number,
        scope=scope,
        limit_w=changed_limit(limits_w),
        # The limit covers the GPU alone.
        highest_limit_w=max(limits_w, default=None) if scope is Scope.GPU else None,
        memory_bytes=memory_bytes,
        shares_memory=shares_memory,
        driver_version=readable_line(_ask(pynvml.nvmlSystemGetDriverVersion) or ""),
        bus_id=bus_id,
        why_not=why_not,
    )


def _memory(handle: object) -> tuple[int | None, bool]:
    """Return the memory of a GPU, and whether the GPU uses the machine's memory instead.

    Returns:
        The memory in bytes, None if it isn't known; and True if the GPU has no memory of its own.
    """
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    except pynvml.NVMLError_GpuIsLost:
        raise
    except pynvml.NVMLError_NotSupported:
        # This is the answer for a GPU that is part of a processor, such as GB10 in DGX Spark
        # (nvitop#208).
        return None, True
    except pynvml.NVMLError:
        # Another error, such as a missing permission, says nothing about the memory.
        return None, False

    is_known = 0 < memory.total <= MAX_PLAUSIBLE_MEMORY_BYTES
    return (memory.total if is_known else None), False


def _limits_w(handle: object) -> tuple[float, ...]:
    """Return the power limit of a GPU and the vendor's default, in W; empty if one isn't known."""
    limit_mw = _ask(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)
    vendor_limit_mw = _ask(pynvml.nvmlDeviceGetPowerManagementDefaultLimit, handle)
    if not limit_mw or not vendor_limit_mw:
        return ()
    return limit_mw / _MW_PER_W, vendor_limit_mw / _MW_PER_W


def _slice(uuid: str) -> Device | None:
    """Return the slice (MIG) with a UUID; None if there is none."""
    handle = _ask(pynvml.nvmlDeviceGetHandleByUUID, uuid)
    return None if handle is None else _slice_device(handle, 0)


def _slice_device(handle: object, number: int) -> Device:
    device = _device(handle, number)
    return msgspec.structs.replace(device, shares_memory=False, why_not=_SLICED)


def visible(
    devices: Sequence[Device],
    variables: Mapping[str, str],
    *,
    slice_with_uuid: Callable[[str], Device | None],
) -> tuple[Device, ...]:
    """Return the GPUs that a process sees, in the order in which it counts them.

    CUDA's programming guide defines the rule. CUDA_VISIBLE_DEVICES lists numbers or UUIDs. The
    beginning of a UUID is enough if only one GPU has it. The first entry that fits no GPU ends the
    list, and a GPU that is listed twice makes the whole list invalid.

    Args:
        devices: the GPUs of the machine.
        variables: the environment variables of the process.
        slice_with_uuid: returns the slice (MIG) with a UUID; None if there is none.

    Raises:
        SensorError: the list has numbers or isn't set, and the order of the GPUs isn't known
            because they are of several models.
    """
    all_numbers = ",".join(map(str, range(len(devices))))
    words = variables.get(_VISIBLE, all_numbers).split(",")
    selected: list[Device] = []
    for word in filter(None, map(str.strip, words)):
        if word.startswith("MIG-"):
            device = slice_with_uuid(word)
        elif word.startswith("GPU-"):
            fitting = [device for device in devices if device.id.startswith(word)]
            device = fitting[0] if len(fitting) == 1 else None
        else:
            device = _of_number(word, devices, variables)
        if device is None:
            break
        if device in selected:
            return ()
        selected.append(device)

    return tuple(selected)


def _of_number(word: str, devices: Sequence[Device], variables: Mapping[str, str]) -> Device | None:
    """Return the GPU that a number in the list selects; None if the entry selects none.

    Raises:
        SensorError: the order of the GPUs isn't known.
    """
    number = number_in(word)
    if number is None or number >= len(devices):
        return None

    # The devices are in the order of their bus addresses. CUDA orders GPUs of several models by
    # their speed, unless it is set to this order.
    if len({device.name for device in devices}) > 1 and variables.get(_ORDER) != "PCI_BUS_ID":
        setting = f"{_VISIBLE} isn't set"
        if _VISIBLE in variables:
            setting = f"{_VISIBLE}={variables[_VISIBLE]}"
        raise SensorError(
            f"{setting}: CUDA numbers GPUs of several kinds by their speed, so their order is"
            f" unknown; set {_ORDER}=PCI_BUS_ID, or name them by their UUIDs in {_VISIBLE}"
        )

    return devices[number]


@contextlib.contextmanager
def _mapped_errors() -> Iterator[None]:
    """Raise NVML's errors as SensorError."""
    try:
        yield
    except pynvml.NVMLError as error:
        raise SensorError(_message(error)) from error


def _message(error: pynvml.NVMLError) -> str:
    """Describe an error of NVML, and say what to do about it."""
    return f"NVML: {_described(error)}; {_REMEDIES.get(error.value, _USUAL_REMEDY)}"


def _described(error: pynvml.NVMLError) -> str:
    return _PLAIN_WORDS.get(error.value) or str(error).rstrip(".")


def _ask(question: Callable[..., _T], *arguments: object) -> _T | None:
    """Return NVML's answer to a question; None if the card or the driver doesn't answer it.

    Raises:
        SensorError: the GPU is lost.
    """
    with _mapped_errors():
        try:
            answer = question(*arguments)
        except pynvml.NVMLError_GpuIsLost:
            raise
        except (pynvml.NVMLError, UnicodeDecodeError):
            return None
    return None if answer in _NOT_AVAILABLE else answer


def _power_scope(handle: object) -> tuple[Scope, str]:
    """Return what a GPU's power covers, and why the power can't be read; empty if it can."""
    if _is_sliced(handle):
        return Scope.GPU, _SLICED
    scopes = [
        scope for scope in _SCOPES if any(value is not None for value in _power(handle, scope))
    ]
    if scopes:
        # GH200 reports the power of both scopes, but its energy counter covers the module. The
        # power must be of the same scope to be compared with the counter. Without a counter, the
        # power of the GPU alone is preferred.
        has_counter = _ask(pynvml.nvmlDeviceGetTotalEnergyConsumption, handle) is not None
        return (scopes[-1] if has_counter else scopes[0]), ""

    try:
        pynvml.nvmlDeviceGetPowerUsage(handle)
    except pynvml.NVMLError_NoPermission as error:
        reason = f"NVML: the GPU's power can't be read, {error}; run as a user who may read it"
        return Scope.GPU, reason
    except pynvml.NVMLError_NotSupported:
        pass
    except pynvml.NVMLError as error:
        remedy = _REMEDIES.get(error.value, _USUAL_REMEDY)
        message = f"NVML: the GPU's power can't be read, {_described(error)}"
        return Scope.GPU, f"{message}; {remedy}"

    mode = _ask(pynvml.nvmlDeviceGetVirtualizationMode, handle)
    if mode == pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU:
        return Scope.GPU, _VIRTUAL
    return Scope.GPU, "NVML: the GPU reports no power; use a newer driver, or another GPU"


def _is_sliced(handle: object) -> bool:
    """Return whether a GPU is divided into slices (MIG)."""
    modes = _ask(pynvml.nvmlDeviceGetMigMode, handle)
    return modes is not None and modes[0] == pynvml.NVML_DEVICE_MIG_ENABLE


def _power(handle: object, scope: Scope) -> tuple[int | None, int | None]:
    """Return a GPU's average power over a second and its power at this moment, in mW.

    Each is None if the GPU doesn't report it.
    """
    fields = (pynvml.NVML_FI_DEV_POWER_AVERAGE, pynvml.NVML_FI_DEV_POWER_INSTANT)
    questions = [(field, _SCOPES[scope]) for field in fields]
    answers = _ask(pynvml.nvmlDeviceGetFieldValues, handle, questions)
    average_mw: int | None = None
    instant_mw: int | None = None
    if answers:
        average_mw, instant_mw = map(_power_value_mw, answers)

    # Drivers that are older than these fields answer only the older question.
    if average_mw is None and scope is Scope.GPU:
        average_mw = _ask(pynvml.nvmlDeviceGetPowerUsage, handle)
    return average_mw, instant_mw


def _power_value_mw(answer: Any) -> int | None:  # noqa: ANN401 - a structure of the C library
    """Return the value of a field of power; None if the GPU doesn't have the field."""
    power_mw = answer.value.uiVal
    is_known = answer.nvmlReturn == pynvml.NVML_SUCCESS and power_mw not in _NOT_AVAILABLE
    return power_mw if is_known else None
