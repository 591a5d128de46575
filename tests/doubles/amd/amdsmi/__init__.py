"""AMD's Python library `amdsmi` with scripted GPUs; functions and fields as in amdsmi 7.0.2.

A test writes the GPUs as JSON to the file that AMDSMI_SCRIPT names. A field that a GPU doesn't have
answers "N/A" or raises AmdSmiLibraryException, as the library does.
"""

import json
import os
import time
from enum import IntEnum
from pathlib import Path
from typing import Any

_UJ_PER_TICK = 15.259
_NOT_SUPPORTED = 2
_US_PER_S = 10**6
_NOT_KNOWN = "N/A"


class AmdSmiException(Exception):  # noqa: N818 - its name there
    """The class of all errors of the library."""


class AmdSmiLibraryException(AmdSmiException):
    """The C library answered with a number that isn't 0."""

    def __init__(self, err_code: int) -> None:
        super().__init__(err_code)
        self.err_code = err_code

    def __str__(self) -> str:
        words = {
            2: "AMDSMI_STATUS_NOT_SUPPORTED - Feature not supported",
            10: "AMDSMI_STATUS_NO_PERM - Permission Denied",
            31: "AMDSMI_STATUS_NOT_FOUND - Device Not found",
            34: "AMDSMI_STATUS_DRIVER_NOT_LOADED - Driver not loaded",
        }
        return f"Error code:\n\t{self.err_code} | {words[self.err_code]}"


class AmdSmiInitFlags(IntEnum):
    INIT_AMD_GPUS = 2


class AmdSmiMemoryType(IntEnum):
    VRAM = 0


class AmdSmiClkType(IntEnum):
    GFX = 1
    MEM = 5


class AmdSmiTemperatureType(IntEnum):
    EDGE = 0
    HOTSPOT = 1


class AmdSmiTemperatureMetric(IntEnum):
    CURRENT = 0


_Gpu = dict[str, Any]


def _script() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(Path(os.environ["AMDSMI_SCRIPT"]).read_text())
    return content


def _answer(gpu: _Gpu, name: str) -> Any:  # noqa: ANN401 - of any kind
    """Return a value of a GPU, or raise the error that the script has in its place."""
    value = gpu.get(name)
    if value is None:
        raise AmdSmiLibraryException(_NOT_SUPPORTED)
    if isinstance(value, dict) and "error" in value:
        raise AmdSmiLibraryException(value["error"])
    return value


def amdsmi_init(flag: AmdSmiInitFlags = AmdSmiInitFlags.INIT_AMD_GPUS) -> None:
    assert flag is AmdSmiInitFlags.INIT_AMD_GPUS
    error = _script().get("init_error")
    if error is not None:
        raise AmdSmiLibraryException(error)


def amdsmi_get_processor_handles() -> list[_Gpu]:
    return list(_script()["gpus"])


def amdsmi_get_gpu_device_uuid(processor_handle: _Gpu) -> str:
    return str(_answer(processor_handle, "uuid"))


def amdsmi_get_gpu_device_bdf(processor_handle: _Gpu) -> str:
    return str(_answer(processor_handle, "bdf"))


def amdsmi_get_gpu_enumeration_info(processor_handle: _Gpu) -> dict[str, Any]:
    return {
        "drm_render": 128,
        "drm_card": 0,
        "hsa_id": 1,
        "hip_id": _answer(processor_handle, "hip_id"),
        "hip_uuid": processor_handle.get("hip_uuid", _NOT_KNOWN),
    }


def amdsmi_get_gpu_asic_info(processor_handle: _Gpu) -> dict[str, Any]:
    return {"market_name": _answer(processor_handle, "market_name"), "vendor_id": "0x1002"}


def amdsmi_get_gpu_driver_info(processor_handle: _Gpu) -> dict[str, Any]:
    return {"driver_name": "amdgpu", "driver_version": _answer(processor_handle, "driver_version")}


def amdsmi_get_gpu_memory_total(processor_handle: _Gpu, mem_type: AmdSmiMemoryType) -> int:
    assert mem_type is AmdSmiMemoryType.VRAM
    return int(_answer(processor_handle, "memory_total_bytes"))


def amdsmi_get_gpu_memory_usage(processor_handle: _Gpu, mem_type: AmdSmiMemoryType) -> int:
    assert mem_type is AmdSmiMemoryType.VRAM
    return int(_answer(processor_handle, "memory_used_bytes"))


def amdsmi_get_power_cap_info(processor_handle: _Gpu) -> dict[str, Any]:
    """In microwatts."""
    return {
        "power_cap": _answer(processor_handle, "power_cap_w") * _US_PER_S,
        "default_power_cap": processor_handle["default_power_cap_w"] * _US_PER_S,
    }


def amdsmi_get_power_info(processor_handle: _Gpu) -> dict[str, Any]:
    """In watts."""
    return {
        "socket_power": _NOT_KNOWN,
        "current_socket_power": processor_handle.get("current_w", _NOT_KNOWN),
        "average_socket_power": processor_handle.get("average_w", _NOT_KNOWN),
        "gfx_voltage": _NOT_KNOWN,
        "power_limit": _NOT_KNOWN,
    }


def amdsmi_get_energy_count(processor_handle: _Gpu) -> dict[str, Any]:
    power_w = _answer(processor_handle, "counted_w")
    energy_uj = power_w * time.monotonic() * _US_PER_S
    return {
        "energy_accumulator": int(energy_uj / _UJ_PER_TICK),
        "counter_resolution": _UJ_PER_TICK,
        "timestamp": time.monotonic_ns(),
    }


def amdsmi_get_clock_info(processor_handle: _Gpu, clock_type: AmdSmiClkType) -> dict[str, Any]:
    name = {AmdSmiClkType.GFX: "gfx_clock_mhz", AmdSmiClkType.MEM: "memory_clock_mhz"}[clock_type]
    return {"clk": _answer(processor_handle, name), "min_clk": 132, "max_clk": 2_100}


def amdsmi_get_temp_metric(
    processor_handle: _Gpu, sensor_type: AmdSmiTemperatureType, metric: AmdSmiTemperatureMetric
) -> int:
    assert metric is AmdSmiTemperatureMetric.CURRENT
    name = {AmdSmiTemperatureType.EDGE: "edge_c", AmdSmiTemperatureType.HOTSPOT: "hotspot_c"}
    return int(_answer(processor_handle, name[sensor_type]))


def amdsmi_get_gpu_activity(processor_handle: _Gpu) -> dict[str, Any]:
    gfx_activity = _answer(processor_handle, "gfx_activity")
    return {"gfx_activity": gfx_activity, "umc_activity": 3, "mm_activity": _NOT_KNOWN}


def amdsmi_get_gpu_process_list(processor_handle: _Gpu) -> list[dict[str, Any]]:
    processes = _answer(processor_handle, "processes")
    return [
        {"name": "python", "pid": pid, "mem": size, "memory_usage": {"vram_mem": size}}
        for pid, size in processes
    ]
