"""The sampler beside GPUs whose true energy is known: one recording, many blocks of it.

Every GPU here is played by the scripted driver under the unmodified nvidia-ml-py, and answers as
slowly as an H100.
"""

import contextlib
import dataclasses
import random
import time
from collections.abc import Iterator, Mapping

import pytest

from specreg.core.errors import InvalidMeasurementError, SensorError
from specreg.telemetry.power_record import (
    PowerRecord,
    check_alone,
    check_counter,
    energy_of,
    record_power,
)
from specreg.telemetry.sampler import PowerTrace, Span, watch
from specreg.telemetry.sensor import Scope
from tests.doubles.nvml import device as scripted
from tests.doubles.nvml.device import Process, ScriptedGpu, Throttle, constant
from tests.unit import builders
from tests.unit.builders.power_loads import BOUNDS, SLOW, SQUARE, UNEVEN

NS_PER_S = 10**9
RECORDED_S = 36.0
BLOCKS = 50
TOGETHER = 8
"""As many GPUs as one sampler watches on the largest machines."""
STRANGER = 4_000_000  # more than a process can be called on Linux

Gpus = Mapping[str, ScriptedGpu]
Traces = Mapping[str, PowerTrace]

SCENARIOS: Gpus = {
    "constant": ScriptedGpu(load=constant(400.0), throttle=(Throttle(0x4),)),
    "square": ScriptedGpu(load=SQUARE),
    "uneven": ScriptedGpu(load=UNEVEN),
    "slow": ScriptedGpu(load=SLOW),
    "quick ticks": ScriptedGpu(load=UNEVEN, tick_ms=20.0),
    "no counter": ScriptedGpu(load=UNEVEN, has_energy_counter=False),
    "module": ScriptedGpu(load=SQUARE, scope=scripted.Scope.MODULE),
    "sampled a quarter of the time": ScriptedGpu(load=UNEVEN, sampled_frac=0.25),
    "a quarter, in step": ScriptedGpu(load=SQUARE, sampled_frac=0.25),
    "counter off": ScriptedGpu(load=constant(400.0), counter_factor=1.7),
    "counter sticks": ScriptedGpu(load=constant(400.0), counter_sticks_after_s=20.0),
    "counter resets": ScriptedGpu(load=constant(400.0), counter_resets_at_s=20.0),
    "lost": ScriptedGpu(load=constant(400.0), lost_at_s=20.0),
    "shared": ScriptedGpu(processes=(Process(STRANGER, 2**30, from_s=20.0),)),
}
SOUND = ("constant", "square", "uneven", "slow", "module", "sampled a quarter of the time")


@pytest.fixture(scope="module")
def gpus() -> Gpus:
    now_ns = time.monotonic_ns()
    return {
        name: dataclasses.replace(
            gpu, started_ns=now_ns, uuid=f"GPU-{number:08d}-0000-4000-8000-000000000000"
        )
        for number, (name, gpu) in enumerate(SCENARIOS.items())
    }


@pytest.fixture(scope="module")
def traces(gpus: Gpus, tmp_path_factory: pytest.TempPathFactory) -> Traces:
    """What two samplers, each in a process of its own, saw of all of them."""
    folder = tmp_path_factory.mktemp("nvml")
    script = scripted.write_script(folder / "script", list(gpus.values()))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in scripted.environment(scripted.build(folder), script).items():
            patch.setenv(name, value)
        devices = [
            builders.device(gpu.name, id=gpu.uuid, scope=Scope(gpu.scope.name.lower()))
            for gpu in gpus.values()
        ]
        with (
            watch(devices[:TOGETHER], folder / "samples.jsonl") as watching,
            watch(devices[TOGETHER:], folder / "others.jsonl") as watching_others,
        ):
            time.sleep(RECORDED_S)
            until_ns = time.monotonic_ns()
            (first, problem), (second, why_not) = (
                watching.traces(until_ns),
                watching_others.traces(until_ns),
            )
    assert (problem, why_not) == ("", "")
    return dict(zip(gpus, [*first, *second], strict=True))


def blocks(trace: PowerTrace, length_s: float) -> Iterator[Span]:
    """Blocks of a length, anywhere in a recording after its first second."""
    draw = random.Random(1)  # noqa: S311 - moments, not keys
    first_ns = trace.samples[0].at_ns + NS_PER_S
    last_ns = trace.samples[-1].at_ns - NS_PER_S
    length_ns = round(length_s * NS_PER_S)
    for _ in range(BLOCKS):
        start_ns = draw.randint(first_ns, last_ns - length_ns)
        yield start_ns, start_ns + length_ns


def check_energy(gpu: ScriptedGpu, trace: PowerTrace, length_s: float, bound_frac: float) -> None:
    """The energy of many blocks is within a bound; of some a busy machine keeps the sampler."""
    checked = 0
    for span in blocks(trace, length_s):
        with contextlib.suppress(SensorError):
            energy = energy_of(trace, span)
            true_j = scripted.true_energy_j(gpu, *span)
            assert energy.energy_j == pytest.approx(true_j, rel=max(bound_frac, energy.error_frac))
            checked += energy.error_frac <= bound_frac
    assert checked >= BLOCKS / 2


@pytest.mark.parametrize(("length_s", "bound_frac"), BOUNDS)
@pytest.mark.parametrize("name", [*SOUND, "quick ticks"])
def test_the_energy_of_a_block_is_right(
    gpus: Gpus, traces: Traces, name: str, length_s: float, bound_frac: float
) -> None:
    check_energy(gpus[name], traces[name], length_s, bound_frac)


def test_without_a_counter_power_is_summed_up(gpus: Gpus, traces: Traces) -> None:
    gpu = gpus["no counter"]
    trace = traces["no counter"]
    check_energy(gpu, trace, 30.0, 0.01)
    assert not energy_of(trace, whole(traces)).from_counter


def test_a_sensor_that_looks_away_is_seen_where_the_load_is_in_step_with_it(traces: Traces) -> None:
    record = recorded(traces, "a quarter, in step")
    assert "shows 0.5" in str(record.invalid)
    assert "times the energy that its power adds up to" in str(record.invalid)


@pytest.mark.parametrize("name", SOUND)
def test_counter_and_power_agree(traces: Traces, name: str) -> None:
    for span in blocks(traces[name], 30.0):
        check_counter(name, energy_of(traces[name], span))


def whole(traces: Traces) -> Span:
    """Nearly all of a recording."""
    return next(blocks(traces["constant"], 30.0))


def recorded(traces: Traces, name: str) -> PowerRecord:
    """The record of one device, as a measurement makes it."""
    span = whole(traces)
    idle = span[0] - NS_PER_S // 2, span[0]
    return record_power([traces[name]], span, tokens=1_000, accepted_frac=0.5, idle=idle)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("counter off", "shows 1.7"),
        ("counter sticks", "stood still for "),
        ("counter resets", "went back, as if its driver was reloaded; measure again"),
        ("lost", "NVML: GPU is lost; look at the kernel's log"),
    ],
)
def test_a_meter_that_is_out_of_order_makes_power_invalid(
    traces: Traces, name: str, problem: str
) -> None:
    record = recorded(traces, name)
    assert record.invalid is not None
    assert record.invalid.code == "POWER_INVALID"
    assert problem in str(record.invalid)
    assert record.case is not None
    assert record.case.devices[0].sm_clock_mhz == 1980


def test_a_record_says_what_a_device_did(gpus: Gpus, traces: Traces) -> None:
    record = recorded(traces, "constant")
    assert (record.invalid, record.too_short) == (None, "")
    assert record.case is not None
    assert record.case.window_s == pytest.approx(30.0)
    assert record.case.energy_j == pytest.approx(400 * 30, rel=0.01)
    assert record.case.energy_j_per_token == pytest.approx(12.0, rel=0.01)
    assert record.case.idle_w == pytest.approx(400, rel=0.25)
    (device,) = record.case.devices
    gpu = gpus["constant"]
    assert (device.peak_w, device.throttled) == (400.0, ("power cap",))
    clocks_mhz = (device.sm_clock_mhz, device.memory_clock_mhz)
    assert clocks_mhz == (gpu.sm_clock_mhz, gpu.memory_clock_mhz)
    assert (device.temperature_c, device.used_bytes) == (gpu.temperature_c, gpu.memory_used_bytes)
    assert device.utilisation_frac == pytest.approx(0.97)
    assert device.counter_ratio == pytest.approx(1.0, abs=0.01)
    assert device.error_frac == pytest.approx(0.1 / 30, rel=0.5)
    assert device.missing_frac <= 0.1


def test_a_stranger_is_named(traces: Traces) -> None:
    trace = traces["shared"]
    with pytest.raises(InvalidMeasurementError, match=f"DEVICE_SHARED.*process {STRANGER}"):
        check_alone([trace], [whole(traces)], our_pids={1})
    check_alone([trace], [whole(traces)], our_pids={STRANGER})
    before = (trace.samples[0].at_ns, trace.samples[0].at_ns + 10 * NS_PER_S)
    check_alone([trace], [before], our_pids={1})
