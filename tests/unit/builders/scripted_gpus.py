"""Python in a process where nvidia-ml-py finds scripted GPUs, and none that is real."""

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.doubles.nvml.device import SCRIPT_VARIABLE, ScriptedDriver, ScriptedGpu, write_script
from tests.plugin.preloaded import PreloadedPython
from tests.unit import builders

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
