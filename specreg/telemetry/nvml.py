"""NVML: NVIDIA's GPUs, by their driver, with nvidia-ml-py."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import pynvml

from specreg.core.errors import SensorError
from specreg.telemetry.sensor import Device, Probe, Scope, State

_T = TypeVar("_T")

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_ORDER = "CUDA_DEVICE_ORDER"
_MW_PER_W = 1000
_PERCENT = 100
_SLICED = (
    "NVML: MIG is on, and slices of a GPU tell no power of their own; measure on one without MIG"
)
_LOST = (pynvml.NVMLError_GpuIsLost, pynvml.NVMLError_Unknown)
_SCOPES = {Scope.GPU: 0, Scope.MODULE: 1}  # nvml.h; older packages don't name them


@dataclass(frozen=True, slots=True)
class _Gpu(Probe):
    """Reads a GPU; None for what the card doesn't have."""

    handle: Any
    scope: Scope

    def energy_mj(self) -> int | None:
        return _ask(pynvml.nvmlDeviceGetTotalEnergyConsumption, self.handle)

    def state(self) -> State:
        handle = self.handle
        average_mw, instant_mw = _power(handle, self.scope)
        use = _ask(pynvml.nvmlDeviceGetUtilizationRates, handle)
        memory = _ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
        return State(
            average_mw=average_mw,
            instant_mw=instant_mw,
            sm_clock_mhz=_ask(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM),
            memory_clock_mhz=_ask(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_MEM),
            temperature_c=_ask(
                pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU
            ),
            throttle_mask=_ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle),
            utilisation_frac=None if use is None else use.gpu / _PERCENT,
            used_bytes=None if memory is None else memory.used,
        )

    def processes(self) -> Mapping[int, int | None] | None:
        found = _ask(pynvml.nvmlDeviceGetComputeRunningProcesses, self.handle)
        return None if found is None else {one.pid: one.usedGpuMemory for one in found}


def find(variables: Mapping[str, str]) -> tuple[Device, ...]:
    """List the GPUs that CUDA_VISIBLE_DEVICES leaves, numbered by their places on the bus.

    Raises:
        SensorError: there is no driver, no GPU, none that is left, or no telling which.
    """
    with _mapped_errors():
        pynvml.nvmlInit()
        handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        found = [_device(handle, number) for number, handle in enumerate(handles)]
        if not found:
            raise SensorError("NVML: the driver shows no GPU; check the container's --gpus")
        left = visible(found, variables, slice_called=_slice)
    if not left:
        message = f"NVML: {_VISIBLE}={variables.get(_VISIBLE, '')} leaves none of {len(found)}"
        raise SensorError(f"{message} GPU(s); unset it, or name one that is there")
    return left


def open_probe(device: Device) -> Probe:
    """Return what reads a GPU; SensorError if it is gone."""
    with _mapped_errors():
        pynvml.nvmlInit()
        return _Gpu(pynvml.nvmlDeviceGetHandleByUUID(device.id), device.scope)


def _device(handle: object, number: int) -> Device:
    scope, why_not = _readable(handle)
    memory = _ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
    limit_mw = _ask(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)
    own_limit_mw = _ask(pynvml.nvmlDeviceGetPowerManagementDefaultLimit, handle)
    place = _ask(pynvml.nvmlDeviceGetPciInfo, handle)
    return Device(
        sensor="nvml",
        id=pynvml.nvmlDeviceGetUUID(handle),
        name=pynvml.nvmlDeviceGetName(handle),
        number=number,
        scope=scope,
        limit_w=limit_mw / _MW_PER_W if limit_mw and limit_mw != own_limit_mw else 0.0,
        memory_bytes=0 if memory is None else memory.total,
        driver_version=pynvml.nvmlSystemGetDriverVersion(),
        # NVML writes a domain with eight digits, Linux with four.
        bus_id="" if place is None else place.busId.lower()[-len("0000:00:00.0") :],
        why_not=why_not,
    )


def _slice(uuid: str) -> Device | None:
    """Return the slice of a GPU of that UUID."""
    handle = _ask(pynvml.nvmlDeviceGetHandleByUUID, uuid)
    return handle and msgspec.structs.replace(_device(handle, 0), why_not=_SLICED)


def visible(
    devices: Sequence[Device],
    variables: Mapping[str, str],
    *,
    slice_called: Callable[[str], Device | None],
) -> tuple[Device, ...]:
    """Return the GPUs that a process with these environment variables sees, in its order.

    As CUDA's programming guide has it: numbers or UUIDs, which may be cut short as long as they fit
    one; what follows the first that fits none is not seen, and what is named twice leaves none.
    `slice_called` gives the slice of a GPU (MIG) of a UUID, None where there is none.

    Raises:
        SensorError: numbers are given of GPUs of several kinds, whose order is unknown.
    """
    words = variables.get(_VISIBLE, ",".join(map(str, range(len(devices))))).split(",")
    found: list[Device] = []
    for word in filter(None, map(str.strip, words)):
        if word.startswith("MIG-"):
            device = slice_called(word)
        elif word.startswith("GPU-"):
            fitting = [device for device in devices if device.id.startswith(word)]
            device = fitting[0] if len(fitting) == 1 else None
        else:
            device = _of_number(word, devices, variables)
        if device is None:
            break
        if device in found:
            return ()
        found.append(device)
    return tuple(found)


def _of_number(word: str, devices: Sequence[Device], variables: Mapping[str, str]) -> Device | None:
    if not word.isdigit() or int(word) >= len(devices):
        return None
    if len({device.name for device in devices}) > 1 and variables.get(_ORDER) != "PCI_BUS_ID":
        raise SensorError(
            f"{_VISIBLE}={variables.get(_VISIBLE, '')}: CUDA numbers GPUs of several kinds by their"
            f" speed, so their order is unknown; set {_ORDER}=PCI_BUS_ID, or name them by their"
            f" UUIDs in {_VISIBLE}"
        )
    return devices[int(word)]


@contextlib.contextmanager
def _mapped_errors() -> Iterator[None]:
    """Raise NVML's errors as SensorError."""
    try:
        yield
    except pynvml.NVMLError as error:
        cure = "install NVIDIA's driver, or start the container with --gpus"
        if isinstance(error, _LOST):
            cure = "look at the kernel's log (dmesg) for Xid"
        raise SensorError(f"NVML: {error}; {cure}") from error


def _ask(question: Callable[..., _T], *arguments: object) -> _T | None:
    """Return NVML's answer; None for what the card doesn't have or we may not see."""
    with _mapped_errors():
        try:
            return question(*arguments)
        except _LOST:
            raise
        except pynvml.NVMLError:
            return None


def _readable(handle: object) -> tuple[Scope, str]:
    """Return whose power a GPU tells, and why it tells none."""
    sliced = _ask(pynvml.nvmlDeviceGetMigMode, handle)
    if sliced is not None and sliced[0] == pynvml.NVML_DEVICE_MIG_ENABLE:
        return Scope.GPU, _SLICED
    for scope in _SCOPES:
        if any(value is not None for value in _power(handle, scope)):
            return scope, ""
    try:
        pynvml.nvmlDeviceGetPowerUsage(handle)
    except pynvml.NVMLError as error:
        return Scope.GPU, f"NVML: its power can't be read, {error}; run as a user who may"
    return Scope.GPU, "NVML: it tells no power; take a newer driver, or another GPU"


def _power(handle: object, scope: Scope) -> tuple[int | None, int | None]:
    """Return the average over a second and the power at this moment, in mW."""
    fields = (pynvml.NVML_FI_DEV_POWER_AVERAGE, pynvml.NVML_FI_DEV_POWER_INSTANT)
    asked = [(field, _SCOPES[scope]) for field in fields]
    values = _ask(pynvml.nvmlDeviceGetFieldValues, handle, asked) or ()
    read = [v.value.uiVal if v.nvmlReturn == pynvml.NVML_SUCCESS else None for v in values]
    average_mw, instant_mw = read or (None, None)
    if average_mw is None and scope is Scope.GPU:  # a driver before the fields
        average_mw = _ask(pynvml.nvmlDeviceGetPowerUsage, handle)
    return average_mw, instant_mw
