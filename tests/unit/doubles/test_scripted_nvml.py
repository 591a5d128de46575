"""The scripted NVML under the unmodified nvidia-ml-py: what it says, and that it is the truth."""

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pynvml
import pytest

from tests.doubles.nvml.device import (
    Load,
    ScriptedGpu,
    constant,
    environment,
    true_energy_j,
    write_script,
)

NS_PER_S = 10**9
AVERAGE, INSTANT = 185, 186
WAVE = Load(low_w=100.0, high_w=700.0, period_ms=130.0, duty_frac=0.3)

ASKING = """
import ctypes, json, sys, time, pynvml
def plain(said):
    if isinstance(said, pynvml.c_nvmlDevice_t):
        return pynvml.nvmlDeviceGetIndex(said)
    if isinstance(said, (ctypes.Structure, ctypes.Union)):
        return {name: plain(getattr(said, name)) for name, *_ in said._fields_}
    if isinstance(said, (ctypes.Array, list, tuple)):
        return [plain(one) for one in said]
    return vars(said) if isinstance(said, pynvml.nvmlFriendlyObject) else said
for line in sys.stdin:
    name, gpu, arguments = json.loads(line)
    before_ns = time.monotonic_ns()
    try:
        handle = () if gpu is None else (pynvml.nvmlDeviceGetHandleByIndex(gpu),)
        before_ns = time.monotonic_ns()
        said = plain(getattr(pynvml, "nvml" + name)(*handle, *arguments))
    except pynvml.NVMLError as error:
        said = type(error).__name__
    print(json.dumps([said, before_ns, time.monotonic_ns()]), flush=True)
"""


class Driver:
    """A child process in which nvidia-ml-py finds the scripted library."""

    def __init__(self, library: Path, script: Path) -> None:
        self.script = script
        self.process = subprocess.Popen(
            (sys.executable, "-c", ASKING),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | environment(library, script),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self.process:
            assert self.process.stdin is not None
            self.process.stdin.close()
        assert self.process.returncode == 0

    def plays(self, *gpus: ScriptedGpu) -> None:
        write_script(self.script, gpus)

    def timed(self, name: str, *arguments: object, gpu: int | None = 0) -> tuple[Any, int, int]:
        """What it says, or the error's name, and the times just before and after."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps((name, gpu, arguments)) + "\n")
        self.process.stdin.flush()
        said, before_ns, after_ns = json.loads(self.process.stdout.readline())
        return said, before_ns, after_ns

    def says(self, name: str, *arguments: object, gpu: int | None = 0) -> Any:  # noqa: ANN401 - JSON
        return self.timed(name, *arguments, gpu=gpu)[0]

    def field(self, number: int) -> tuple[int, Any]:
        (said,) = self.says("DeviceGetFieldValues", [number])
        return said["nvmlReturn"], said["value"]["uiVal"]

    def counter(self, gpu: ScriptedGpu) -> tuple[int, int]:
        """The energy counter in mJ, and the time of its last tick."""
        tick_ns = round(gpu.tick_ms * 1e6)
        while True:
            said, before_ns, after_ns = self.timed("DeviceGetTotalEnergyConsumption")
            first, last = ((at_ns - gpu.started_ns) // tick_ns for at_ns in (before_ns, after_ns))
            if first == last:
                return said, gpu.started_ns + first * tick_ns


@pytest.fixture(scope="module")
def driver(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    script = write_script(tmp_path_factory.mktemp("script") / "gpus", [ScriptedGpu()])
    with Driver(library, script) as started:
        assert started.says("Init", gpu=None) is None
        yield started


def running_for(seconds: float, gpu: ScriptedGpu) -> ScriptedGpu:
    """The GPU, its origin so long ago."""
    return replace(gpu, started_ns=time.monotonic_ns() - round(seconds * NS_PER_S))


@pytest.mark.parametrize("load", [constant(400.0), WAVE], ids=["constant", "wave"])
@pytest.mark.parametrize("factor", [1.0, 1.7])
def test_the_counter_counts_the_true_energy_between_ticks(
    driver: Driver, load: Load, factor: float
) -> None:
    gpu = running_for(12.345, ScriptedGpu(load=load, tick_ms=20.0, counter_factor=factor))
    driver.plays(gpu)
    first_mj, first_ns = driver.counter(gpu)
    time.sleep(0.07)
    last_mj, last_ns = driver.counter(gpu)
    assert last_ns - first_ns >= 3 * 20_000_000
    truth_mj = true_energy_j(gpu, first_ns, last_ns) * 1e3
    assert last_mj - first_mj == pytest.approx(truth_mj * factor, abs=1)
    since_mj = true_energy_j(gpu, gpu.started_ns, last_ns) * 1e3
    assert last_mj == pytest.approx(since_mj * factor, abs=1)


@pytest.mark.parametrize("load", [constant(400.0), WAVE], ids=["constant", "wave"])
def test_the_truth_is_the_integral_of_the_power(load: Load) -> None:
    gpu = ScriptedGpu(load=load)
    step_s = 1e-4
    from_s, steps = -0.5, 40_000

    def power_w(at_s: float) -> float:
        high = (at_s / load.period_ms * 1e3) % 1 < load.duty_frac
        return load.high_w if high else load.low_w

    summed_j = math.fsum(power_w(from_s + (step + 0.5) * step_s) for step in range(steps)) * step_s
    edges_ns = (
        gpu.started_ns + round(at_s * NS_PER_S) for at_s in (from_s, from_s + steps * step_s)
    )
    assert true_energy_j(gpu, *edges_ns) == pytest.approx(summed_j, rel=1e-4)


# Half of a period of 2 s is high: 0.4 s after it, 0.6 s of the last second were.
SLOW = Load(low_w=100.0, high_w=500.0, period_ms=2_000.0)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("DeviceGetPowerUsage", ()), ("DeviceGetFieldValues", ([AVERAGE],))],
    ids=["function", "field"],
)
def test_the_average_is_of_the_last_second(
    driver: Driver, name: str, arguments: tuple[object, ...]
) -> None:
    gpu = running_for(1.4, ScriptedGpu(load=SLOW))
    driver.plays(gpu)
    said, before_ns, after_ns = driver.timed(name, *arguments)
    said_mw = said if isinstance(said, int) else said[0]["value"]["uiVal"]
    highest_mw, lowest_mw = (
        true_energy_j(gpu, at_ns - NS_PER_S, at_ns) * 1e3 for at_ns in (before_ns, after_ns)
    )
    assert lowest_mw - 1 <= said_mw <= highest_mw + 1
    assert 100_000 < lowest_mw < highest_mw < 341_000


def test_the_instant_is_this_moment(driver: Driver) -> None:
    driver.plays(running_for(1.4, ScriptedGpu(load=SLOW)))
    assert driver.field(INSTANT) == (pynvml.NVML_SUCCESS, 100_000)
    driver.plays(running_for(0.4, ScriptedGpu(load=SLOW)))
    assert driver.field(INSTANT) == (pynvml.NVML_SUCCESS, 500_000)


def test_a_line_that_is_not_understood_is_said(
    library: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = write_script(tmp_path / "gpus", [ScriptedGpu()])
    script.write_text(script.read_text() + "watts 3\n")
    with Driver(library, script) as driver:
        assert driver.says("Init", gpu=None) == "NVMLError_Unknown"
    assert f"{script}: can't use this line: watts 3" in capfd.readouterr().err


def test_no_driver_is_loaded_where_there_is_no_script(library: Path, tmp_path: Path) -> None:
    with Driver(library, tmp_path / "none") as driver:
        assert driver.says("Init", gpu=None) == "NVMLError_DriverNotLoaded"
        assert driver.says("DeviceGetCount", gpu=None) == "NVMLError_Uninitialized"
        write_script(driver.script, [])
        assert driver.says("Init", gpu=None) is None
        assert driver.says("DeviceGetCount", gpu=None) == 0
        assert driver.says("Shutdown", gpu=None) is None
        assert driver.says("DeviceGetCount", gpu=None) == "NVMLError_Uninitialized"


def test_a_scripted_gpu_says_that_it_is() -> None:
    with pytest.raises(ValueError, match="begin its name with Scripted"):
        ScriptedGpu(name="NVIDIA H100")
