"""What a user sees of power where there is none, and where a GPU is not fit to be measured."""

import dataclasses
import os
import re
import textwrap
import threading
import time

from tests.doubles.nvml.device import Process, ScriptedGpu, Throttle, write_script
from tests.plugin.conftest import Suite

GPU = ScriptedGpu(memory_total_bytes=80 * 2**30)
POWER = "energy_j_per_token or power_w"
TIER = """
    needs_gpus = 1

    [models.tiny]
    target = "fixtures/models/tiny/target"

    [[cases]]
    engine = "vllm"
    methods = ["none"]
    models = "tiny"
    dataset = "toy"
    concurrency = [1]
    prompts = 10
    rounds = 2
    power_s = 0
    output_cap_tokens = 8
"""
CASE = "vllm-none-tiny-toy-c1"


def on(suite: Suite, *gpus: ScriptedGpu) -> Suite:
    """The suite on a machine with such GPUs."""
    suite.gpus = gpus
    suite.write_tier(textwrap.dedent(TIER))
    return suite


def test_power_that_nobody_can_measure_is_skipped_with_the_reason(recorded_suite: Suite) -> None:
    done = recorded_suite.run("tests/perf", "-q", "-rs", "-k", f"toy-c4 and ({POWER})")
    assert done.returncode == 0, done.stdout
    assert "4 skipped" in done.stdout
    assert "RAPL: no processor's energy counter" in done.stdout
    assert "power: not measured: RAPL: " in done.stdout
    assert recorded_suite.verdict().verdicts == ()


def test_a_window_that_is_too_short_is_said_and_shown(suite: Suite) -> None:
    done = on(suite, GPU).run("tests/perf", "-q", "-rs", "-k", POWER)
    verdict = suite.verdict()
    assert verdict.outcomes == {"NOT_COMPARABLE": 2}
    assert all("and 10 s are needed" in one.reason for one in verdict.verdicts)
    (row,) = [line for line in done.stdout.splitlines() if line.startswith(CASE)][-1:]
    assert re.search(r" (39|40)\d(\.\d)? ", row)  # W, idle: 4 s of slow reads
    samples = list(suite.runs.glob(f"*/power/{CASE}.jsonl"))
    assert len(samples) == 1


def run_and_change(suite: Suite, later: ScriptedGpu, *arguments: str) -> str:
    """What a run prints during which the GPU becomes another one, as soon as it is watched."""

    def change() -> None:
        while not any(path.stat().st_size for path in suite.runs.glob("*/power/*.jsonl")):
            time.sleep(0.05)
        write_script(suite.folder / "gpus", [later])

    changing = threading.Thread(target=change)
    changing.start()
    done = suite.run(*arguments)
    changing.join()
    assert done.returncode == 10, done.stdout
    return done.stdout


def test_a_gpu_that_gets_too_hot_makes_the_case_invalid(suite: Suite) -> None:
    hot = dataclasses.replace(GPU, throttle=(Throttle(0x20),), temperature_c=92)
    said = run_and_change(on(suite, GPU), hot, "tests/perf", "-q", "-k", "throughput")
    assert "THROTTLED: Scripted NVIDIA H100 was held back in 100% of the samples" in said
    assert "software thermal slowdown, 92 °C" in said


def test_a_gpu_that_somebody_else_takes_makes_the_case_invalid(suite: Suite) -> None:
    taken = dataclasses.replace(GPU, processes=(Process(os.getpid(), 2**30),))
    said = run_and_change(on(suite, GPU), taken, "tests/perf", "-q", "-k", "throughput")
    assert f"DEVICE_SHARED: Scripted NVIDIA H100: used by process {os.getpid()} (" in said


def test_a_busy_gpu_is_refused_before_a_server_starts(suite: Suite) -> None:
    busy = dataclasses.replace(GPU, processes=(Process(os.getpid(), 2**30),))
    done = on(suite, busy).run("tests/perf", "-q", "-k", "throughput")
    assert done.returncode == 10, done.stdout
    assert f"used by process {os.getpid()} (" in done.stdout
    assert "end it, or choose another GPU with CUDA_VISIBLE_DEVICES" in done.stdout
    assert not list(suite.runs.glob("*/logs/*.log"))


def test_a_gpu_that_tells_no_power_is_measured_without(suite: Suite) -> None:
    why = "MIG is on, and slices of a GPU tell no power"
    done = on(suite, dataclasses.replace(GPU, mig=True)).run(
        "tests/perf", "-q", "-rs", "-k", f"{POWER} or throughput"
    )
    assert "2 skipped" in done.stdout
    assert f"power: not measured: NVML: {why}" in done.stdout
    assert suite.verdict().outcomes == {"NO_BASELINE": 1}


def test_nothing_is_recorded_from_a_scripted_gpu(suite: Suite) -> None:
    done = on(suite, GPU).run(
        *("tests/perf", "-q", "--update-baselines", "--reason", "test", "--specreg-launches", "2"),
        *("-k", "toy-c1"),
    )
    assert done.returncode != 0
    assert "is a device that a test made up; measure on a real one" in done.stdout
    assert not suite.recorded()
