"""The scripted NVML under the unmodified nvidia-ml-py: what it says, and that it is the truth."""

import json
import math
import time
from pathlib import Path

import pytest

from tests.doubles.nvml.device import Load, ScriptedGpu, true_energy_j
from tests.plugin.preloaded import PreloadedPython
from tests.unit.builders.scripted_gpus import run_python

NS_PER_S = 10**9
WAVE = Load(low_w=100.0, high_w=700.0, period_ms=130.0, duty_frac=0.3)
SLOW = Load(low_w=100.0, high_w=500.0, period_ms=2_000.0)

# Answers are rows of a name, what was said, and the times just before and after.
ASKING = """
import json, time, pynvml
pynvml.nvmlInit()
def field(number):
    return lambda gpu: pynvml.nvmlDeviceGetFieldValues(gpu, [number])[0].value.uiVal
asked = {
    "counter": pynvml.nvmlDeviceGetTotalEnergyConsumption,
    "average": pynvml.nvmlDeviceGetPowerUsage,
    "average, by its field": field(pynvml.NVML_FI_DEV_POWER_AVERAGE),
    "instant": field(pynvml.NVML_FI_DEV_POWER_INSTANT),
}
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
for name, ask in asked.items():
    for _ in range(60):
        before_ns = time.monotonic_ns()
        print(json.dumps([name, ask(gpu), before_ns, time.monotonic_ns()]))
"""
LOADING = """
import os, sys, pynvml
script = os.environ["SPECREG_SCRIPTED_NVML"]
def say(*questions):
    for question in questions:
        try:
            print(question())
        except pynvml.NVMLError as error:
            print(type(error).__name__)
os.remove(script)
say(pynvml.nvmlInit, pynvml.nvmlDeviceGetCount)
open(script, "w").close()
say(pynvml.nvmlInit, pynvml.nvmlDeviceGetCount, pynvml.nvmlShutdown, pynvml.nvmlDeviceGetCount)
open(script, "w").write("watts 3")
say(pynvml.nvmlInit)
"""


def power_w(load: Load, at_s: float) -> float:
    return load.high_w if (at_s / load.period_ms * 1e3) % 1 < load.duty_frac else load.low_w


@pytest.mark.parametrize("load", [WAVE, SLOW], ids=["quick", "slow"])
@pytest.mark.parametrize("factor", [1.0, 1.7])
def test_counter_average_and_instant_are_the_true_ones(
    gpu_python: PreloadedPython, tmp_path: Path, load: Load, factor: float
) -> None:
    """The counter's up to its last tick, the average of the last second; all else at a moment."""
    started_ns = time.monotonic_ns() - round(12.345 * NS_PER_S)
    gpu = ScriptedGpu(load=load, tick_ms=20.0, counter_factor=factor, started_ns=started_ns)
    checked = set()
    for row in run_python(gpu_python, tmp_path, [gpu], ASKING).splitlines():
        name, value, before_ns, after_ns = json.loads(row)
        ticks = [(at_ns - started_ns) // 20_000_000 for at_ns in (before_ns, after_ns)]
        watts = [power_w(load, (at_ns - started_ns) / NS_PER_S) for at_ns in (before_ns, after_ns)]
        if name == "counter" and ticks[0] == ticks[1]:
            tick_ns = started_ns + ticks[0] * 20_000_000
            truth_mj = true_energy_j(gpu, started_ns, tick_ns) * 1e3
            assert value == pytest.approx(truth_mj * factor, abs=1)
            checked.add((name, ticks[0]))
        elif name == "instant" and watts[0] == watts[1] and after_ns - before_ns < 10**7:
            assert value == watts[0] * 1e3
            checked.add((name, value))
        elif name.startswith("average"):
            truth_mw = true_energy_j(gpu, before_ns - NS_PER_S, before_ns) * 1e3
            # It moves by as much as the load swings in the time that asking took.
            most_mw = (load.high_w - load.low_w) * (after_ns - before_ns) / NS_PER_S * 1e3
            assert value == pytest.approx(truth_mw, abs=most_mw + 1)
    assert len(checked) > 5
    assert {name for name, _ in checked} == {"counter", "instant"}


@pytest.mark.parametrize("load", [Load(low_w=400.0, high_w=400.0), WAVE], ids=["constant", "wave"])
def test_the_truth_is_the_integral_of_the_power(load: Load) -> None:
    gpu = ScriptedGpu(load=load)
    from_s = -0.5
    steps = 40_000
    step_s = 1e-4
    summed_j = math.fsum(power_w(load, from_s + (n + 0.5) * step_s) for n in range(steps)) * step_s
    first_ns, last_ns = (
        gpu.started_ns + round(at_s * NS_PER_S) for at_s in (from_s, from_s + steps * step_s)
    )
    assert true_energy_j(gpu, first_ns, last_ns) == pytest.approx(summed_j, rel=1e-4)


def test_a_script_that_is_missing_or_not_understood_is_an_error_at_once(
    gpu_python: PreloadedPython, tmp_path: Path
) -> None:
    assert run_python(gpu_python, tmp_path, [ScriptedGpu()], LOADING).split() == [
        *("NVMLError_DriverNotLoaded", "NVMLError_Uninitialized"),
        *("None", "0", "None", "NVMLError_Uninitialized"),
        "NVMLError_Unknown",
    ]


def test_a_scripted_gpu_says_that_it_is() -> None:
    with pytest.raises(ValueError, match="begin its name with Scripted"):
        ScriptedGpu(name="NVIDIA H100")
