"""NVML: NVIDIA's GPUs, by their driver, with nvidia-ml-py."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import pynvml

from specreg.core.errors import SensorError
from specreg.telemetry.sensors._sensor import Device, Probe, Scope, Settings, State
from specreg.telemetry.sensors._visible import visible

_T = TypeVar("_T")

_MW_PER_W = 1000
_PERCENT = 100
_HZ_PER_MHZ = 10**6
_BITS_PER_BYTE = 8
_TRANSFERS_PER_CLOCK = 2  # double data rate
_BYTES_PER_GIB = 2**30
_SLICED = (
    "NVML: MIG is on, and slices of a GPU tell no power of their own; measure on one without MIG"
)
_GONE = (pynvml.NVMLError_GpuIsLost, pynvml.NVMLError_Unknown)
_SCOPES = {Scope.GPU: 0, Scope.MODULE: 1}  # nvml.h; older packages don't name them


@dataclass(frozen=True, slots=True)
class _Gpu:
    """Reads a GPU. What a card doesn't have is None; a card that is gone is an error."""

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

    def pids(self) -> Sequence[int] | None:
        found = _ask(pynvml.nvmlDeviceGetComputeRunningProcesses, self.handle)
        return None if found is None else tuple(process.pid for process in found)

    def settings(self) -> Settings:
        handle, sm = self.handle, pynvml.NVML_CLOCK_SM
        persistent = _ask(pynvml.nvmlDeviceGetPersistenceMode, handle)
        sliced = _ask(pynvml.nvmlDeviceGetMigMode, handle)
        return Settings(
            limit_w=_watts(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle),
            own_limit_w=_watts(pynvml.nvmlDeviceGetPowerManagementDefaultLimit, handle),
            sm_clock_mhz=_ask(pynvml.nvmlDeviceGetApplicationsClock, handle, sm),
            own_sm_clock_mhz=_ask(pynvml.nvmlDeviceGetDefaultApplicationsClock, handle, sm),
            persistent=None if persistent is None else bool(persistent),
            sliced=None if sliced is None else sliced[0] == pynvml.NVML_DEVICE_MIG_ENABLE,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Nvml:
    """The GPUs that NVIDIA's driver shows."""

    name: str = "nvml"
    of_gpus: bool = True

    def find(self, variables: Mapping[str, str]) -> Sequence[Device]:
        """The GPUs that CUDA_VISIBLE_DEVICES leaves; their numbers are of their places on the bus.

        Raises:
            SensorError: no driver, no GPU, none that is left, or no telling which.
        """
        with _said():
            pynvml.nvmlInit()
            handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
            found = [self._device(handle, number) for number, handle in enumerate(handles)]
            if not found:
                raise SensorError("NVML: the driver shows no GPU; check the container's --gpus")
            left = visible(found, variables, slice_called=self._slice)
        if not left:
            said = variables.get("CUDA_VISIBLE_DEVICES", "")
            message = f"NVML: CUDA_VISIBLE_DEVICES={said} leaves none of {len(found)} GPU(s)"
            raise SensorError(f"{message}; unset it, or name one that is there")
        return left

    def open(self, device: Device) -> Probe:
        """What reads a GPU.

        Raises:
            SensorError: it isn't there any more.
        """
        with _said():
            pynvml.nvmlInit()
            return _Gpu(pynvml.nvmlDeviceGetHandleByUUID(device.id), device.scope)

    def _device(self, handle: object, number: int) -> Device:
        scope, why_not = _readable(handle)
        memory = _ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
        return Device(
            sensor=self.name,
            id=pynvml.nvmlDeviceGetUUID(handle),
            name=pynvml.nvmlDeviceGetName(handle),
            number=number,
            scope=scope,
            limit_w=_lowered_w(handle),
            memory_bytes=0 if memory is None else memory.total,
            bandwidth_gib_per_s=_bandwidth_gib_per_s(handle),
            driver_version=pynvml.nvmlSystemGetDriverVersion(),
            bus_id=_bus_id(handle),
            why_not=why_not,
        )

    def _slice(self, uuid: str) -> Device | None:
        """A slice of a GPU, None where there is none: its name says which; it tells no power."""
        handle = _ask(pynvml.nvmlDeviceGetHandleByUUID, uuid)
        if handle is None:
            return None
        return msgspec.structs.replace(self._device(handle, 0), why_not=_SLICED)


@contextlib.contextmanager
def _said() -> Iterator[None]:
    """NVML's errors as ours."""
    try:
        yield
    except _GONE as error:
        raise _gone(error) from error
    except pynvml.NVMLError as error:
        message = f"NVML: {error}; install NVIDIA's driver, or start the container with --gpus"
        raise SensorError(message) from error


def _gone(error: pynvml.NVMLError) -> SensorError:
    return SensorError(f"NVML: {error}; look at the kernel's log (dmesg) for Xid")


def _ask(question: Callable[..., _T], *arguments: object) -> _T | None:
    """What NVML answers; None for what the card doesn't have or we may not see.

    Raises:
        SensorError: the card is gone.
    """
    try:
        return question(*arguments)
    except _GONE as error:
        raise _gone(error) from error
    except pynvml.NVMLError:
        return None


def _readable(handle: object) -> tuple[Scope, str]:
    """Whose power a GPU tells, and why none."""
    with contextlib.suppress(pynvml.NVMLError):
        if pynvml.nvmlDeviceGetMigMode(handle)[0] == pynvml.NVML_DEVICE_MIG_ENABLE:
            return Scope.GPU, _SLICED
    for scope in _SCOPES:
        if any(value is not None for value in _power(handle, scope)):
            return scope, ""
    try:
        pynvml.nvmlDeviceGetPowerUsage(handle)
    except pynvml.NVMLError as error:
        return Scope.GPU, f"NVML: its power can't be read, {error}; run as somebody who may"
    return Scope.GPU, "NVML: it tells no power; take a newer driver, or another GPU"


def _bus_id(handle: object) -> str:
    """Where a GPU sits; NVML writes its domain with eight digits, Linux with four."""
    place = _ask(pynvml.nvmlDeviceGetPciInfo, handle)
    said = "" if place is None else place.busId
    text = said.decode() if isinstance(said, bytes) else said
    return text.lower()[-len("0000:00:00.0") :]


def _lowered_w(handle: object) -> float:
    """The power limit where somebody lowered or raised it, 0 where it is the card's own."""
    limit_w = _watts(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)
    own_w = _watts(pynvml.nvmlDeviceGetPowerManagementDefaultLimit, handle)
    return 0.0 if limit_w is None or limit_w == own_w else limit_w


def _watts(question: Callable[..., int], handle: object) -> float | None:
    """What NVML answers in mW."""
    said_mw = _ask(question, handle)
    return None if said_mw is None else said_mw / _MW_PER_W


def _bandwidth_gib_per_s(handle: object) -> float:
    """Transfers per second × the width of the bus; 0 where the driver doesn't say."""
    clock_mhz = _ask(pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_MEM)
    width_bits = _ask(pynvml.nvmlDeviceGetMemoryBusWidth, handle)
    bits_per_s = _TRANSFERS_PER_CLOCK * (clock_mhz or 0) * _HZ_PER_MHZ * (width_bits or 0)
    return bits_per_s / _BITS_PER_BYTE / _BYTES_PER_GIB


def _power(handle: object, scope: Scope) -> tuple[int | None, int | None]:
    """The average over a second and the power at this moment, in mW."""
    fields = (pynvml.NVML_FI_DEV_POWER_AVERAGE, pynvml.NVML_FI_DEV_POWER_INSTANT)
    asked = [(field, _SCOPES[scope]) for field in fields]
    values = _ask(pynvml.nvmlDeviceGetFieldValues, handle, asked) or ()
    read = [v.value.uiVal if v.nvmlReturn == pynvml.NVML_SUCCESS else None for v in values]
    average_mw, instant_mw = read or (None, None)
    if average_mw is None and scope is Scope.GPU:  # a driver before the fields
        average_mw = _ask(pynvml.nvmlDeviceGetPowerUsage, handle)
    return average_mw, instant_mw


SENSOR = Nvml()
