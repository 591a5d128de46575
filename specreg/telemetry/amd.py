"""Find and read AMD's GPUs through AMD SMI, with the library `amdsmi` that ROCm brings.

Names, fields and units are those of amdsmi 7.0.2. Energy is in ticks, whose size in microjoules is
reported too; power is in watts, power limits in microwatts, and a value that a GPU doesn't have is
"N/A". This module was never run on a real GPU of AMD; its tests read scripted ones.
"""

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specreg.core.errors import NoGpuError, SensorError
from specreg.telemetry.sensor import (
    Device,
    DeviceState,
    HiddenGpu,
    Probe,
    Scope,
    changed_limit,
    number_in,
)

SENSOR = "amdsmi"
_RUNTIME_VISIBLE = "ROCR_VISIBLE_DEVICES"
"""The variable of ROCm's runtime. HIP sees and numbers only the GPUs that this variable selects."""
_HIP_VISIBLE = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
"""The variables of HIP, which have the same meaning."""
_UUID_PREFIX = "GPU-"
_CONTROL_NODE = Path("/dev/kfd")
"""The file that a process opens to compute on any of AMD's GPUs."""
_IMPORT_ERRORS = (ImportError, OSError, AttributeError, KeyError)
"""The errors of importing amdsmi if it, or the C library that it loads, isn't installed."""
_INSTALL = "install ROCm's amdsmi for this Python, of the release that the machine has"
NO_POWER = "AMD SMI: the GPU reports no power; use a newer driver, or another GPU"
_MODULES = ("MI300A",)
"""The GPUs on a module with a processor. Their power is that of the whole module."""
_UNKNOWN = (0xFFFF, 0xFFFFFFFF)
"""The numbers that amdsmi reports for unknown values."""
_UJ_PER_MJ = 1000
_UW_PER_W = 10**6
_MW_PER_W = 1000
_PERCENT = 100


@dataclass(frozen=True, slots=True)
class _Gpu(Probe):
    """Reads a GPU. A value is None if the card doesn't have it.

    Attributes:
        smi: the module amdsmi.
        handle: its handle of the GPU.
    """

    smi: Any
    handle: Any

    def energy_mj(self) -> int | None:
        count = self._ask("amdsmi_get_energy_count")
        if count is None:
            return None

        # The field was called "power" before ROCm 6.1.
        ticks = count.get("energy_accumulator", count.get("power"))

        # On a card with two GPUs, the first one counts for both, and the second one reports 0.
        if not ticks:
            return None
        return int(ticks * count["counter_resolution"] / _UJ_PER_MJ)

    def state(self) -> DeviceState:
        power = self._ask("amdsmi_get_power_info") or {}
        activity = self._ask("amdsmi_get_gpu_activity") or {}
        utilisation_frac: float | None = None
        utilisation_percent = _number(activity.get("gfx_activity"))
        if utilisation_percent is not None:
            utilisation_frac = utilisation_percent / _PERCENT
        return DeviceState(
            average_mw=_power_mw(power.get("average_socket_power")),
            instant_mw=_power_mw(power.get("current_socket_power")),
            sm_clock_mhz=self._clock_mhz("GFX"),
            memory_clock_mhz=self._clock_mhz("MEM"),
            temperature_c=self._temperature_c(),
            # The mask isn't read, because AMD SMI takes 100 ms to find out what slows a GPU down.
            throttle_mask=None,
            utilisation_frac=utilisation_frac,
            used_bytes=self._ask("amdsmi_get_gpu_memory_usage", self.smi.AmdSmiMemoryType.VRAM),
        )

    def processes(self) -> Mapping[int, int | None] | None:
        processes = self._ask("amdsmi_get_gpu_process_list")
        # Before ROCm 6.1 the list has only handles, without the ids of the processes.
        if processes is None or not all(isinstance(process, dict) for process in processes):
            return None
        return {process["pid"]: process["memory_usage"]["vram_mem"] for process in processes}

    def _clock_mhz(self, name: str) -> int | None:
        clock = self._ask("amdsmi_get_clock_info", getattr(self.smi.AmdSmiClkType, name))
        return None if clock is None else _number(clock["clk"])

    def _temperature_c(self) -> int | None:
        """Return the temperature of the hottest spot, or of the edge on older cards."""
        metric = self.smi.AmdSmiTemperatureMetric.CURRENT
        for name in ("HOTSPOT", "EDGE"):
            sensor = getattr(self.smi.AmdSmiTemperatureType, name)
            temperature_c = _number(self._ask("amdsmi_get_temp_metric", sensor, metric))
            if temperature_c is not None:
                return temperature_c
        return None

    def _ask(self, question: str, *arguments: object) -> Any:  # noqa: ANN401 - as the library answers
        return _ask(self.smi, question, self.handle, *arguments)


def find_all(
    control_node: Path = _CONTROL_NODE,
) -> tuple[tuple[Device, ...], tuple[HiddenGpu, ...]]:
    """Find all GPUs of AMD.

    Args:
        control_node: a file that exists only if a process may use AMD's GPUs.

    Returns:
        The GPUs in HIP's order, and those that can't be used.

    Raises:
        NoGpuError: the machine has none.
        SensorError: the machine has such GPUs, and amdsmi is missing; or amdsmi doesn't work, or
            none of the GPUs can be used.
    """
    smi = _library(control_node)
    with _mapped_errors(smi):
        handles = smi.amdsmi_get_processor_handles()
    if not handles:
        raise NoGpuError("AMD SMI: the driver shows no GPU; check the container's --device")
    devices: list[Device] = []
    hidden: list[HiddenGpu] = []
    for number, handle in enumerate(handles):
        try:
            with _mapped_errors(smi):
                devices.append(_device(smi, handle, number))
        except SensorError as error:
            hidden.append(HiddenGpu(number=number, reason=str(error)))

    if not devices:
        raise SensorError(hidden[0].reason)
    devices.sort(key=lambda device: device.number)
    return tuple(devices), tuple(hidden)


def visible(devices: Sequence[Device], variables: Mapping[str, str]) -> tuple[Device, ...]:
    """Return the GPUs that a process sees, in the order in which it counts them.

    ROCR_VISIBLE_DEVICES lists the GPUs that the runtime shows. HIP_VISIBLE_DEVICES or
    CUDA_VISIBLE_DEVICES lists those among them that HIP shows. An entry is an index or a UUID, and
    the first one that fits no GPU ends a list. ROCm's guide to GPU isolation names only indices for
    HIP, but HIP reads UUIDs too. The two libraries read their lists differently, see
    `_selected_by_runtime` and `_selected_by_hip`.

    Args:
        devices: the GPUs of the machine, in HIP's order.
        variables: the environment variables of the process.

    Raises:
        NoGpuError: the variables select none.
        SensorError: the two variables of HIP differ.
    """
    lists = {name: variables[name] for name in _HIP_VISIBLE if name in variables}
    if len(set(lists.values())) > 1:
        settings = " and ".join(f"{name}={value}" for name, value in lists.items())
        raise SensorError(
            f"AMD SMI: {settings} differ; set only one of them, or both to the same value"
        )

    selected = _selected_by_runtime(devices, variables.get(_RUNTIME_VISIBLE))
    for hip_list in set(lists.values()):
        selected = _selected_by_hip(selected, hip_list)
    if not selected:
        names = (_RUNTIME_VISIBLE, *_HIP_VISIBLE)
        settings = ", ".join(f"{name}={variables[name]}" for name in names if name in variables)
        message = f"AMD SMI: {settings} leaves none of {len(devices)}"
        raise NoGpuError(f"{message} GPU(s); unset it, or name one that is there")

    return tuple(selected)


def _selected_by_runtime(devices: Sequence[Device], entries: str | None) -> list[Device]:
    """Return the GPUs that ROCm's runtime shows; all of them without a list.

    The runtime ignores spaces and case, takes the beginning of a UUID that only one GPU has, and
    ends the list at a GPU that is in it already (`RvdFilter` in ROCR-Runtime).
    """
    if entries is None:
        return list(devices)
    selected: list[Device] = []
    for entry in entries.upper().split(","):
        word = entry.strip()
        fitting = []
        if word.startswith(_UUID_PREFIX) and word != _UUID_PREFIX:
            fitting = [device for device in devices if device.id.upper().startswith(word)]
        number = number_in(word)
        if number is not None:
            fitting = list(devices[number : number + 1])
        if len(fitting) != 1 or fitting[0] in selected:
            break
        selected += fitting

    return selected


def _selected_by_hip(devices: Sequence[Device], entries: str) -> list[Device]:
    """Return the GPUs that HIP shows of those that the runtime shows.

    An index must have no spaces or leading zeros, a part of a UUID that includes `GPU-` stands for
    the first GPU that has it, and a GPU that is in the list already is left out (`Device::init` in
    `rocclr/device/rocm/rocdevice.cpp` of ROCm's clr).
    """
    selected: list[Device] = []
    for entry in entries.split(","):
        fitting = []
        if _UUID_PREFIX in entry:
            fitting = [device for device in devices if entry in device.id]
        number = number_in(entry)
        if number is not None and str(number) == entry:
            fitting = list(devices[number : number + 1])
        if not fitting:
            break
        if fitting[0] not in selected:
            selected.append(fitting[0])

    return selected


def visibility(devices: Sequence[Device], variables: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables with which a process sees only some of the GPUs that it sees now.

    Args:
        devices: the GPUs that it may see.
        variables: the current environment variables of the process.

    Raises:
        NoGpuError: as in `find_all`.
        SensorError: as in `find_all`; or a GPU can't be used any more.
    """
    # The variable of the runtime isn't changed, so HIP's indices count the GPUs that it selects.
    installed, _ = find_all()
    exposed = _selected_by_runtime(installed, variables.get(_RUNTIME_VISIBLE))
    index_by_id = {device.id: index for index, device in enumerate(exposed)}
    for device in devices:
        # The GPUs of a process are found only once, so one of them may have been lost since.
        if device.id not in index_by_id:
            raise _gone(device)

    indices = ",".join(str(index_by_id[device.id]) for device in devices)
    return dict.fromkeys(_HIP_VISIBLE, indices)


def open_probe(device: Device) -> Probe:
    """Return a probe that reads a GPU.

    Raises:
        SensorError: the GPU is gone.
    """
    smi = _library(_CONTROL_NODE)
    with _mapped_errors(smi):
        handles = smi.amdsmi_get_processor_handles()
    for handle in handles:
        # A GPU that was given to another job doesn't report its id.
        with contextlib.suppress(smi.AmdSmiException):
            if _id_of(smi, handle) == device.id:
                return _Gpu(smi, handle)

    raise _gone(device)


def _gone(device: Device) -> SensorError:
    """Return the error of a GPU that can't be used any more."""
    return SensorError(f"AMD SMI: GPU '{device.id}' is gone; look at the kernel's log (dmesg)")


def _library(control_node: Path) -> Any:  # noqa: ANN401 - a library that may be missing
    """Return the module amdsmi, ready to answer.

    Raises:
        NoGpuError: amdsmi isn't installed, and the machine has no GPU of AMD.
        SensorError: the machine has such a GPU, and amdsmi isn't installed; or amdsmi doesn't work.
    """
    try:
        smi = importlib.import_module(SENSOR)
    except _IMPORT_ERRORS as error:
        if control_node.exists():
            message = f"AMD SMI: '{control_node}' is there, and amdsmi can't be imported, {error}"
            raise SensorError(f"{message}; {_INSTALL}") from error
        raise NoGpuError(f"AMD SMI: amdsmi can't be imported; {_INSTALL}") from error

    with _mapped_errors(smi):
        smi.amdsmi_init(smi.AmdSmiInitFlags.INIT_AMD_GPUS)
    return smi


@contextlib.contextmanager
def _mapped_errors(smi: Any) -> Iterator[None]:  # noqa: ANN401 - a library that may be missing
    """Raise amdsmi's errors as SensorError."""
    try:
        yield
    except smi.AmdSmiException as error:
        words = " ".join(str(error).split())
        remedy = "look at the rights of /dev/kfd and /dev/dri, and at the kernel's log (dmesg)"
        raise SensorError(f"AMD SMI: {words}; {remedy}") from error


def _ask(smi: Any, question: str, *arguments: object) -> Any:  # noqa: ANN401 - as the library answers
    """Return the answer to a question; None if the card or the library doesn't answer it."""
    function: Callable[..., Any] | None = getattr(smi, question, None)
    if function is None:
        return None
    try:
        return function(*arguments)
    except smi.AmdSmiException:
        return None


def _device(smi: Any, handle: object, index: int) -> Device:  # noqa: ANN401 - as above
    """Return a GPU.

    Args:
        smi: the module amdsmi.
        handle: its handle of the GPU.
        index: the index of the handle in amdsmi's list. It is used if HIP's index isn't known.

    Raises:
        AmdSmiException: the GPU doesn't report its id, so it couldn't be recognised later.
    """
    facts = _ask(smi, "amdsmi_get_gpu_asic_info", handle) or {}
    driver = _ask(smi, "amdsmi_get_gpu_driver_info", handle) or {}
    enumeration = _ask(smi, "amdsmi_get_gpu_enumeration_info", handle) or {}
    number = _number(enumeration.get("hip_id"))
    if number is None:
        number = index
    name = _text(facts.get("market_name"))
    scope = Scope.GPU
    if any(module in name for module in _MODULES):
        scope = Scope.MODULE
    probe = _Gpu(smi, handle)
    state = probe.state()
    readings = (state.average_mw, state.instant_mw, probe.energy_mj())
    limits_w = _limits_w(smi, handle)
    why_not = ""
    if all(reading is None for reading in readings):
        why_not = NO_POWER
    return Device(
        sensor=SENSOR,
        id=_id_of(smi, handle),
        name=name,
        number=number,
        scope=scope,
        limit_w=changed_limit(limits_w),
        highest_limit_w=max(limits_w, default=None),
        memory_bytes=_number(
            _ask(smi, "amdsmi_get_gpu_memory_total", handle, smi.AmdSmiMemoryType.VRAM)
        ),
        driver_version=_text(driver.get("driver_version")),
        bus_id=_ask(smi, "amdsmi_get_gpu_device_bdf", handle) or "",
        why_not=why_not,
    )


def _id_of(smi: Any, handle: object) -> str:  # noqa: ANN401 - as above
    """Return the id of a GPU: the UUID that ROCm's runtime accepts, or else AMD SMI's own."""
    enumeration = _ask(smi, "amdsmi_get_gpu_enumeration_info", handle) or {}
    hip_uuid = enumeration.get("hip_uuid")
    if isinstance(hip_uuid, str) and hip_uuid.startswith(_UUID_PREFIX):
        return hip_uuid
    return str(smi.amdsmi_get_gpu_device_uuid(handle))


def _limits_w(smi: Any, handle: object) -> tuple[float, ...]:  # noqa: ANN401 - as above
    """Return the power limit of a GPU and the vendor's default, in W; empty if one isn't known."""
    limits = _ask(smi, "amdsmi_get_power_cap_info", handle)
    if limits is None:
        return ()
    limit_uw = _number(limits["power_cap"])
    vendor_limit_uw = _number(limits["default_power_cap"])
    if not limit_uw or not vendor_limit_uw:
        return ()
    return limit_uw / _UW_PER_W, vendor_limit_uw / _UW_PER_W


def _power_mw(power_w: object) -> int | None:
    """Return a power in mW; None if it isn't known."""
    number = _number(power_w)
    # A GPU without a sensor reports 0.
    return number * _MW_PER_W if number else None


def _text(value: object) -> str:
    """Return a text that amdsmi reports; empty if it isn't known."""
    if isinstance(value, str) and value != "N/A":
        return value
    return ""


def _number(value: object) -> int | None:
    """Return a number that amdsmi reports; None if it isn't known."""
    # In Python a boolean is an integer too.
    if not isinstance(value, int) or isinstance(value, bool) or value in _UNKNOWN:
        return None
    return value
