"""The sampler beside GPUs whose true energy is known: one recording, a minute of windows.

Every GPU here is played by the scripted driver under the unmodified nvidia-ml-py.
"""

import contextlib
import dataclasses
import random
import time
from collections.abc import Iterator, Mapping

import pytest

from specreg.errors import InvalidMeasurementError, SensorError
from specreg.power.checks import check_alone, check_held_back
from specreg.power.energy import Span, check_counter, counter_ratio, energy_of, tick_ms
from specreg.power.record import PowerRecord, record_power
from specreg.power.samples import PowerTrace
from specreg.power.watch import watch
from specreg.sensors import Device, Scope
from tests.scripted.nvml import device as scripted
from tests.scripted.nvml.device import Load, Process, ScriptedGpu, Throttle, constant

NS_PER_S = 10**9
RECORDED_S = 64.0
WINDOWS = 100
STRANGER = 4_000_000  # more than a process can be called on Linux
SQUARE = Load(low_w=100.0, high_w=700.0, period_ms=100.0)
UNEVEN = Load(low_w=100.0, high_w=700.0, period_ms=130.0, duty_frac=0.3)
SLOW = Load(low_w=100.0, high_w=700.0, period_ms=1_700.0)

SCENARIOS: Mapping[str, ScriptedGpu] = {
    "constant": ScriptedGpu(load=constant(400.0), throttle=(Throttle(0x4),)),
    "square": ScriptedGpu(load=SQUARE),
    "uneven": ScriptedGpu(load=UNEVEN),
    "slow": ScriptedGpu(load=SLOW),
    "quick ticks": ScriptedGpu(load=UNEVEN, tick_ms=20.0),
    "quickest ticks": ScriptedGpu(load=UNEVEN, tick_ms=10.0),
    "no counter": ScriptedGpu(load=UNEVEN, has_energy_counter=False),
    "module": ScriptedGpu(load=SQUARE, scope=scripted.Scope.MODULE),
    "sampled a quarter of the time": ScriptedGpu(load=UNEVEN, sampled_frac=0.25),
    "a quarter, in step": ScriptedGpu(load=SQUARE, sampled_frac=0.25),
    "counter off": ScriptedGpu(load=constant(400.0), counter_factor=1.7),
    "counter sticks": ScriptedGpu(load=constant(400.0), counter_sticks_after_s=20.0),
    "counter resets": ScriptedGpu(load=constant(400.0), counter_resets_at_s=20.0),
    "lost": ScriptedGpu(load=constant(400.0), lost_at_s=30.0),
    "shared": ScriptedGpu(processes=(Process(STRANGER, 2**30, from_s=30.0),)),
    "hot": ScriptedGpu(throttle=(Throttle(0x40, from_s=30.0, to_s=31.0),), temperature_c=91),
}


@pytest.fixture(scope="module")
def gpus() -> Mapping[str, ScriptedGpu]:
    """The scenarios, from now on."""
    now_ns = time.monotonic_ns()
    return {
        name: dataclasses.replace(
            gpu, started_ns=now_ns, uuid=f"GPU-{number:08d}-0000-4000-8000-000000000000"
        )
        for number, (name, gpu) in enumerate(SCENARIOS.items())
    }


@pytest.fixture(scope="module")
def traces(
    gpus: Mapping[str, ScriptedGpu], tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, PowerTrace]:
    """What a sampler in a process of its own saw of all of them in a minute."""
    folder = tmp_path_factory.mktemp("nvml")
    script = scripted.write_script(folder / "script", list(gpus.values()))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in scripted.environment(scripted.build(folder), script).items():
            patch.setenv(name, value)
        devices = [
            Device(
                sensor="nvml",
                id=gpu.uuid,
                name=gpu.name,
                number=number,
                scope=Scope(gpu.scope.name.lower()),
            )
            for number, gpu in enumerate(gpus.values())
        ]
        with watch(devices, folder / "samples.jsonl") as watching:
            time.sleep(RECORDED_S)
            found = watching.traces(until_ns=time.monotonic_ns())
    return dict(zip(gpus, found, strict=True))


def windows(trace: PowerTrace, length_s: float, seed: int = 1) -> Iterator[Span]:
    """Windows of a length, anywhere in a recording after its first second."""
    draw = random.Random(seed)  # noqa: S311 - windows, not keys
    first_ns, last_ns = trace.samples[0].at_ns + NS_PER_S, trace.samples[-1].at_ns - NS_PER_S
    length_ns = round(length_s * NS_PER_S)
    for _ in range(WINDOWS):
        start_ns = draw.randint(first_ns, last_ns - length_ns)
        yield start_ns, start_ns + length_ns


def check_energy(gpu: ScriptedGpu, trace: PowerTrace, length_s: float, bound_frac: float) -> None:
    """The energy of many windows is within a bound, or no further off than is said of it.

    A busy machine keeps the sampler from a tick at an edge now and then. Then there is no figure,
    or one that says how far off it may be; most must be sure within the bound.
    """
    sure = 0
    for span in windows(trace, length_s):
        with contextlib.suppress(SensorError):
            energy = energy_of(trace, [span])
            error = abs(energy.energy_mj / 1e3 / scripted.true_energy_j(gpu, *span) - 1)
            assert error <= max(bound_frac, energy.error_frac)
            sure += energy.error_frac <= bound_frac
    assert sure >= WINDOWS / 2


@pytest.mark.parametrize(("length_s", "bound_frac"), [(30.0, 0.005), (60.0, 0.002)])
@pytest.mark.parametrize(
    "name", ["constant", "square", "uneven", "slow", "quick ticks", "quickest ticks", "module"]
)
def test_the_energy_of_a_window_is_right(
    gpus: Mapping[str, ScriptedGpu],
    traces: Mapping[str, PowerTrace],
    name: str,
    length_s: float,
    bound_frac: float,
) -> None:
    check_energy(gpus[name], traces[name], length_s, bound_frac)


def test_half_a_second_of_constant_power_is_right(
    gpus: Mapping[str, ScriptedGpu], traces: Mapping[str, PowerTrace]
) -> None:
    """Read at its ends alone a counter that ticks every 100 ms would be 9 % off, either way."""
    check_energy(gpus["constant"], traces["constant"], 0.55, 0.03)


@pytest.mark.parametrize("name", ["constant", "square", "quick ticks", "quickest ticks"])
def test_the_period_of_the_ticks_is_known(
    gpus: Mapping[str, ScriptedGpu], traces: Mapping[str, PowerTrace], name: str
) -> None:
    assert tick_ms(traces[name]) == pytest.approx(gpus[name].tick_ms, rel=0.05)


def test_without_a_counter_power_is_summed_up(
    gpus: Mapping[str, ScriptedGpu], traces: Mapping[str, PowerTrace]
) -> None:
    gpu, trace = gpus["no counter"], traces["no counter"]
    check_energy(gpu, trace, 60.0, 0.05)
    assert not energy_of(trace, [next(windows(trace, 60.0))]).from_counter


def test_a_sensor_that_looks_away_is_seen_where_the_load_is_in_step_with_it(
    traces: Mapping[str, PowerTrace],
) -> None:
    in_step = traces["a quarter, in step"]
    for span in windows(in_step, 60.0):
        with pytest.raises(SensorError, match=r"says 0\.5\d times what its power says"):
            check_counter(counter_ratio(in_step, span))


def test_a_sensor_that_looks_away_is_right_on_average_where_the_load_is_not(
    gpus: Mapping[str, ScriptedGpu], traces: Mapping[str, PowerTrace]
) -> None:
    trace = traces["sampled a quarter of the time"]
    ratios = [counter_ratio(trace, span) for span in windows(trace, 60.0)]
    assert max(abs((ratio or 0) - 1) for ratio in ratios) <= 0.03
    check_energy(gpus["sampled a quarter of the time"], trace, 60.0, 0.002)


@pytest.mark.parametrize("name", ["constant", "square", "uneven", "slow", "module"])
def test_counter_and_power_agree(traces: Mapping[str, PowerTrace], name: str) -> None:
    for span in windows(traces[name], 60.0):
        check_counter(counter_ratio(traces[name], span))


def whole(traces: Mapping[str, PowerTrace]) -> Span:
    """Nearly all of a recording."""
    return next(windows(traces["constant"], 60.0))


def recorded(traces: Mapping[str, PowerTrace], name: str) -> PowerRecord:
    """The record of one device, as a measurement makes it."""
    trace = traces[name]
    start_ns, end_ns = whole(traces)
    middle_ns = (start_ns + end_ns) // 2
    idle = (start_ns - NS_PER_S // 2, start_ns)
    return record_power(
        [trace], idle=idle, case=[(start_ns, middle_ns), (middle_ns, end_ns)], control=[]
    )


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("counter off", "says 1.70 times what its power says"),
        ("counter sticks", "wasn't seen to tick for"),
        ("counter resets", "went back; was the driver reloaded?"),
        ("lost", "NVML: GPU is lost; look at the kernel's log"),
    ],
)
def test_a_meter_that_is_out_of_order_makes_power_invalid(
    traces: Mapping[str, PowerTrace], name: str, why: str
) -> None:
    found = recorded(traces, name)
    assert found.invalid.startswith("POWER_INVALID: ")
    assert why in found.invalid
    assert found.case is not None
    assert found.case.devices[0].sm_clock_mhz == 1980


def test_a_record_says_what_a_device_did(
    gpus: Mapping[str, ScriptedGpu], traces: Mapping[str, PowerTrace]
) -> None:
    found = recorded(traces, "constant")
    assert (found.invalid, found.too_short) == ("", "")
    assert found.case is not None
    assert found.case.window_s == pytest.approx(60.0)
    assert found.case.energy_mj == pytest.approx(400_000 * 60, rel=0.002)
    assert found.case.idle_mw == pytest.approx(400_000, rel=0.03)
    (one,) = found.case.devices
    gpu = gpus["constant"]
    assert one.peak_mw == 400_000
    assert one.sm_clock_mhz == gpu.sm_clock_mhz
    assert one.memory_clock_mhz == gpu.memory_clock_mhz
    assert one.temperature_c == gpu.temperature_c
    assert one.used_bytes == gpu.memory_used_bytes
    assert one.utilisation_frac == pytest.approx(0.97)
    assert one.tick_ms == pytest.approx(100.0, rel=0.01)
    assert one.counter_ratio == pytest.approx(1.0, abs=0.005)
    assert one.error_frac is not None
    assert one.error_frac <= 4 * 5e-3 / 60
    assert one.missing_frac <= 0.1


def test_a_short_window_is_shown_and_not_judged(traces: Mapping[str, PowerTrace]) -> None:
    trace = traces["constant"]
    start_ns, end_ns = next(windows(trace, 29.0))
    found = record_power([trace], idle=(0, 0), case=[(start_ns, end_ns)], control=[])
    assert "29.0 s, and 30 s are needed" in found.too_short
    assert found.case is not None
    assert found.case.idle_mw is None


def test_a_stranger_is_named(traces: Mapping[str, PowerTrace]) -> None:
    trace = traces["shared"]
    with pytest.raises(InvalidMeasurementError, match=f"DEVICE_SHARED.*process {STRANGER}"):
        check_alone([trace], [whole(traces)], ours={1})
    check_alone([trace], [whole(traces)], ours={STRANGER})
    before = (trace.samples[0].at_ns, trace.samples[0].at_ns + 20 * NS_PER_S)
    check_alone([trace], [before], ours={1})


def test_a_gpu_that_is_held_back_is_refused(traces: Mapping[str, PowerTrace]) -> None:
    trace = traces["hot"]
    with pytest.raises(InvalidMeasurementError, match=r"THROTTLED: .*hardware thermal.* 91 °C"):
        check_held_back([trace], [whole(traces)])


def test_a_power_cap_is_normal(traces: Mapping[str, PowerTrace]) -> None:
    trace = traces["constant"]
    check_held_back([trace], [whole(traces)])
    found = recorded(traces, "constant")
    assert found.case is not None
    assert found.case.devices[0].throttle_mask == 0x4
