"""Python in a process where nvidia-ml-py or amdsmi finds scripted GPUs, and none that is real."""

import json
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.doubles.nvml.device import SCRIPT_VARIABLE, ScriptedDriver, ScriptedGpu, write_script
from tests.plugin.preloaded import PreloadedPython
from tests.unit import builders

_AMD_DOUBLES = builders.ROOT / "tests/doubles/amd"
GIB = 2**30
MI300X: dict[str, Any] = {
    "uuid": "a1ff74a1-0000-1000-80de-000000000000",
    "hip_uuid": "GPU-0000000000000000",
    "hip_id": 0,
    "bdf": "0000:c1:00.0",
    "market_name": "Scripted AMD Instinct MI300X",
    "driver_version": "6.12.12",
    "memory_total_bytes": 192 * GIB,
    "memory_used_bytes": 3 * GIB,
    "power_cap_w": 750,
    "default_power_cap_w": 750,
    "current_w": 400,
    "counted_w": 400,
    "gfx_clock_mhz": 2_100,
    "memory_clock_mhz": 1_300,
    "hotspot_c": 61,
    "gfx_activity": 97,
    "processes": [],
}
_OF_CUDA = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")


def running(gpu: ScriptedGpu) -> ScriptedGpu:
    """The GPU, its origin an hour ago, so that its counter has run for long."""
    return replace(gpu, started_ns=time.monotonic_ns() - 3_600 * 10**9)


def run_python(
    gpu_python: PreloadedPython,
    folder: Path,
    driver: Sequence[ScriptedGpu] | ScriptedDriver,
    program: str,
    *arguments: str,
    **variables: str,
) -> str:
    """What a program prints where the driver is the scripted one.

    The script is written to a folder, which the program runs in.
    """
    plain = {name: value for name, value in os.environ.items() if name not in _OF_CUDA}
    script = {SCRIPT_VARIABLE: str(write_script(folder / "gpus", driver))}
    done = gpu_python.run(
        ("-c", program, *arguments),
        plain | script | {"PYTHONPATH": str(builders.ROOT)} | variables,
        folder,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def show_amd_gpus(
    folder: Path, gpus: Sequence[dict[str, Any]], init_error: int | None = None
) -> dict[str, str]:
    """Return the variables with which `run_python` shows GPUs of AMD, whose script is written."""
    script = folder / "amd.json"
    script.write_text(json.dumps({"gpus": gpus, "init_error": init_error}))
    modules = os.pathsep.join((str(builders.ROOT), str(_AMD_DOUBLES)))
    return {"AMDSMI_SCRIPT": str(script), "PYTHONPATH": modules}
