"""The sampler in simulated time, beside a counter whose truth is known; and an H100's own trace."""

import bisect
import gzip
import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from specreg.core.errors import SensorError
from specreg.telemetry.power_record import (
    PowerRecord,
    averaging_lag_ns,
    check_counter,
    energy_of,
    integral_j,
    missing_frac,
    record_power,
)
from specreg.telemetry.sampler import EVERY_NS, DeviceSample, PowerTrace, Span, sample_devices
from specreg.telemetry.sensor import DeviceState, Probe
from tests.doubles.nvml.device import Load, constant
from tests.unit import builders
from tests.unit.builders.power_loads import BOUNDS, SLOW, SQUARE, UNEVEN

NS_PER_S = 10**9
H100 = builders.ROOT / "fixtures/recordings/nvml/h100/nvml_none_c16_140s.jsonl.gz"
LOAD_FROM_S = 6.0
LOAD_TO_S = 138.0
STEPS = (
    H100.with_name("nvml_steps_33s_card_a.jsonl.gz"),
    H100.with_name("nvml_steps_32s_card_b.jsonl.gz"),
)


@dataclass(slots=True)
class Machine(Probe):
    """A clock that jumps to what is waited for, a little late, and a counter that moves in steps.

    Counter and fields take 3 ms to read and each 50th time 18 ms, as an H100's.

    Attributes:
        tick_ns: between two moves of the counter; sticks_at_s: when it stops moving.
        late_ns: the mean lateness of a wake-up; stall_ns: of one in a hundred.
    """

    load: Load
    tick_ns: int = 100 * 10**6
    sticks_at_s: float = math.inf
    late_ns: float = 100_000.0
    stall_ns: float = 0.0
    until_s: float = 66.0
    now_ns: int = 5 * NS_PER_S
    reads: int = 0
    draw: random.Random = field(default_factory=lambda: random.Random(7))  # noqa: S311

    def clock(self) -> int:
        return self.now_ns

    def wait_until(self, moment_ns: int) -> bool:
        late_ns = self.draw.expovariate(1 / self.late_ns)
        if self.stall_ns and self.draw.random() < 0.01:
            late_ns += self.draw.expovariate(1 / self.stall_ns)
        self.now_ns = max(self.now_ns, moment_ns) + round(late_ns)
        return self.now_ns > self.until_s * NS_PER_S

    def read(self) -> None:
        self.reads += 1
        self.now_ns += 3 * 10**6 if self.reads % 50 else 18 * 10**6

    def energy_mj(self) -> int:
        self.read()
        moved_ns = self.now_ns // self.tick_ns * self.tick_ns
        return round(self.load.energy_j(min(moved_ns / NS_PER_S, self.sticks_at_s)) * 1000)

    def state(self) -> DeviceState:
        self.read()
        at_s = self.now_ns / NS_PER_S
        power_w = (self.load.energy_j(at_s + 1e-6) - self.load.energy_j(at_s)) / 1e-6
        return DeviceState(instant_mw=round(power_w * 1000))

    def processes(self) -> Mapping[int, int | None]:
        return {17: None}


def sampled(machine: Machine) -> PowerTrace:
    samples: list[DeviceSample] = []
    sample_devices([machine], samples.append, wait_until=machine.wait_until, clock=machine.clock)
    return PowerTrace(device=builders.device(), samples=samples)


def span_of(start_s: float, end_s: float) -> Span:
    return round(start_s * NS_PER_S), round(end_s * NS_PER_S)


def blocks(from_s: float, to_s: float, length_s: float) -> Iterator[Span]:
    """Sixty blocks of a length, anywhere in a time."""
    draw = random.Random(3)  # noqa: S311
    for _ in range(60):
        start_s = draw.uniform(from_s, to_s - length_s)
        yield span_of(start_s, start_s + length_s)


@pytest.mark.parametrize("tick_ms", [1, 10, 20, 50, 100])
@pytest.mark.parametrize("load", [constant(400.0), SQUARE, UNEVEN, SLOW])
@pytest.mark.parametrize("stall_ns", [0.0, 20e6])
def test_the_energy_of_a_block_is_right(load: Load, tick_ms: int, stall_ns: float) -> None:
    trace = sampled(Machine(load, tick_ns=tick_ms * 10**6, stall_ns=stall_ns))
    for length_s, bound_frac in BOUNDS:
        for start_ns, end_ns in blocks(6.0, 65.0, length_s):
            true_j = load.energy_j(end_ns / NS_PER_S) - load.energy_j(start_ns / NS_PER_S)
            assert abs(energy_of(trace, (start_ns, end_ns)).energy_j / true_j - 1) <= bound_frac


@pytest.mark.parametrize("tick_ms", [20, 100])
def test_the_error_of_a_block_is_half_a_counter_move_or_sample_at_each_end(tick_ms: int) -> None:
    trace = sampled(Machine(constant(400.0), tick_ns=tick_ms * 10**6))
    for length_s, _ in BOUNDS:
        energy = energy_of(trace, span_of(10.0, 10.0 + length_s))
        assert energy.error_frac == pytest.approx(0.1 / length_s, rel=0.1)
        assert abs(energy.energy_j / (400 * length_s) - 1) <= energy.error_frac


def counting(energy_mj: Callable[[int], float]) -> PowerTrace:
    """A trace of 400 W whose counter says this of what it ought to say."""
    trace = sampled(Machine(constant(400.0)))
    trace.samples = [
        msgspec.structs.replace(sample, energy_mj=round(energy_mj(sample.energy_mj or 0)))
        for sample in trace.samples
    ]
    return trace


@pytest.fixture(scope="module", params=[1, 2], ids=["20 Hz", "10 Hz"])
def h100(request: pytest.FixtureRequest) -> PowerTrace:
    """What an H100 said under load: each sample, or each second one."""
    samples = recorded_samples(recorded_rows(H100))
    return PowerTrace(device=builders.device(), samples=samples[:: request.param])


def recorded_rows(path: Path) -> list[Mapping[str, Any]]:
    """The lines of a recording."""
    return [msgspec.json.decode(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def recorded_samples(rows: Iterable[Mapping[str, Any]]) -> list[DeviceSample]:
    """The samples among the lines of a recording."""
    return [
        DeviceSample(
            device_index=0,
            at_ns=round(row["t_ms"] * 1e6),
            energy_mj=row["energy_mj"],
            state=DeviceState(average_mw=row["average_mw"], instant_mw=row["instant_mw"]),
        )
        for row in rows
        if "energy_mj" in row
    ]


def test_a_real_h100_draws_what_both_of_its_fields_say(h100: PowerTrace) -> None:
    span = (h100.samples[0].at_ns, h100.samples[-1].at_ns)
    energy = energy_of(h100, span)
    length_s = (span[1] - span[0]) / NS_PER_S
    assert energy.energy_j / length_s == pytest.approx(434.7, rel=0.005)
    for name in ("average_mw", "instant_mw"):
        lag_ns = averaging_lag_ns(h100.samples) if name == "average_mw" else 0
        assert integral_j(h100.samples, span, name, lag_ns) == pytest.approx(
            energy.energy_j, rel=0.005
        )
    assert energy.error_frac <= 0.001


@pytest.mark.parametrize(("length_s", "bound_frac"), BOUNDS)
def test_blocks_of_a_real_h100_are_as_exact_as_is_said(
    h100: PowerTrace, length_s: float, bound_frac: float
) -> None:
    for span in blocks(LOAD_FROM_S, LOAD_TO_S, length_s):
        energy = energy_of(h100, span)
        assert abs((energy.counter_ratio or 0) - 1) <= bound_frac
        assert energy.error_frac <= 0.6 * bound_frac


def moment_ns(rows: Iterable[Mapping[str, Any]], load: str) -> int:
    """When the load of a recording first went on or off."""
    t_ms: float = next(row["t_ms"] for row in rows if row.get("load") == load)
    return round(t_ms * 1e6)


@pytest.mark.parametrize("path", STEPS, ids=["card-a", "card-b"])
def test_average_power_follows_a_step_in_a_second_and_instant_power_at_once(path: Path) -> None:
    rows = recorded_rows(path)
    on_ns = moment_ns(rows, "on")
    after = [sample for sample in recorded_samples(rows) if sample.at_ns > on_ns]
    for name, low_s, high_s in (("average_mw", 0.8, 1.0), ("instant_mw", 0.0, 0.2)):
        at_ns = next(sample.at_ns for sample in after if getattr(sample.state, name) > 630_000)
        assert low_s <= (at_ns - on_ns) / NS_PER_S <= high_s


def as_average(samples: Iterable[DeviceSample], field: str) -> list[DeviceSample]:
    """The samples of a card whose driver answers the question of the average with this field."""
    return [
        msgspec.structs.replace(
            sample, state=DeviceState(average_mw=getattr(sample.state, field), instant_mw=None)
        )
        for sample in samples
    ]


@pytest.mark.parametrize("path", [*STEPS, H100], ids=["card-a", "card-b", "served"])
@pytest.mark.parametrize("every", [1, 4], ids=["as recorded", "10 Hz"])
@pytest.mark.parametrize(("field", "lag_ms"), [("average_mw", 500), ("instant_mw", 0)])
def test_whether_a_power_is_an_average_is_measured_by_the_counter(
    path: Path, every: int, field: str, lag_ms: int
) -> None:
    """A100 answers with the power of the moment, H100 with the mean of the last second."""
    samples = as_average(recorded_samples(recorded_rows(path)), field)[::every]
    assert averaging_lag_ns(samples) == lag_ms * 10**6


@pytest.mark.parametrize(
    ("length_s", "error_percent", "as_average_percent"), [(10, -1.6, -4.2), (30, -0.5, -1.6)]
)
def test_power_of_the_moment_taken_for_an_average_is_wrong_where_the_load_ends(
    length_s: int, error_percent: float, as_average_percent: float
) -> None:
    """The error of a block that ends with its load, against the counter of the card."""
    samples = as_average(recorded_samples(recorded_rows(H100)), "instant_mw")
    loaded = [sample for sample in samples if (sample.state.average_mw or 0) > 400_000]
    span = (loaded[-1].at_ns - length_s * NS_PER_S, loaded[-1].at_ns)
    trace = PowerTrace(device=builders.device(), samples=samples)
    counted_j = energy_of(trace, span).energy_j

    def error_with(lag_ns: int) -> float:
        return 100 * ((integral_j(samples, span, "average_mw", lag_ns) or 0.0) / counted_j - 1)

    assert error_with(averaging_lag_ns(samples)) == pytest.approx(error_percent, abs=0.1)
    assert error_with(500 * 10**6) == pytest.approx(as_average_percent, abs=0.1)


def test_without_a_step_or_a_counter_the_documented_average_is_taken() -> None:
    samples = recorded_samples(recorded_rows(H100))
    without_counter = [msgspec.structs.replace(sample, energy_mj=None) for sample in samples]
    assert averaging_lag_ns(without_counter) == 500 * 10**6
    assert averaging_lag_ns(samples[:10]) == 500 * 10**6


@pytest.mark.parametrize("path", STEPS, ids=["card-a", "card-b"])
def test_the_meter_of_an_h100_whose_load_swings_is_in_order(path: Path) -> None:
    """Of 10 s that swing between 130 and 700 W counter and average were up to 3.4 % apart."""
    samples = recorded_samples(recorded_rows(path))
    due_ns = itertools.count(samples[0].at_ns, EVERY_NS)
    due = itertools.takewhile(lambda at_ns: at_ns < samples[-1].at_ns, due_ns)
    at_10_hz = [
        samples[bisect.bisect(samples, at_ns, key=lambda sample: sample.at_ns) - 1] for at_ns in due
    ]
    trace = PowerTrace(device=builders.device(), samples=at_10_hz)
    for start_ns in range(at_10_hz[8].at_ns, at_10_hz[-8].at_ns - 10 * NS_PER_S, NS_PER_S // 20):
        check_counter("H100", energy_of(trace, (start_ns, start_ns + 10 * NS_PER_S)))


@pytest.mark.parametrize("stuck_s", [0.9, 1.3])
def test_a_counter_that_stands_still_for_a_second_is_refused(stuck_s: float) -> None:
    trace = sampled(Machine(constant(400.0), sticks_at_s=40.0))
    span = span_of(10.0, 40.0 + stuck_s)
    if stuck_s < 1:
        assert energy_of(trace, span).energy_j == pytest.approx(400 * 30, rel=0.01)
    else:
        words = r"counter of NVIDIA H200 stood still for 1\.\d s; .* such as nvidia-smi or amd-smi,"
        with pytest.raises(SensorError, match=words):
            energy_of(trace, span)


def test_a_counter_that_goes_back_is_refused() -> None:
    trace = counting(lambda energy_mj: energy_mj % 10**7)
    with pytest.raises(SensorError, match=r"went back, as if .* reloaded; measure again"):
        energy_of(trace, span_of(10.0, 40.0))
    assert energy_of(trace, span_of(26.0, 40.0)).from_counter


@pytest.mark.parametrize(("factor", "fits"), [(1.02, True), (1.7, False), (0.96, False)])
def test_a_counter_lies_three_percent_off_its_power_at_most(
    factor: float,
    fits: bool,  # noqa: FBT001 - a column
) -> None:
    energy = energy_of(counting(lambda energy_mj: energy_mj * factor), span_of(10.0, 40.0))
    assert energy.counter_ratio == pytest.approx(factor, abs=0.005)
    if fits:
        check_counter("H100", energy)
    else:
        words = r"^the energy counter of H100 shows [\d.]+ times the energy that its power adds up"
        with pytest.raises(SensorError, match=words):
            check_counter("H100", energy)


def test_of_a_second_counter_and_power_may_lie_as_far_apart_as_its_ends_tell() -> None:
    trace = sampled(Machine(constant(400.0)))
    for span in blocks(10.0, 40.0, 1.0):
        check_counter("H100", energy_of(trace, span))


@pytest.mark.parametrize(
    ("gone", "problem"),
    [((15.0, 17.0), None), ((15.0, 18.5), "are missing, more than 10 %"), ((39.0, 70.0), "an end")],
)
def test_a_tenth_of_the_samples_may_be_missing_and_none_around_the_ends(
    gone: tuple[float, float], problem: str | None
) -> None:
    trace = sampled(Machine(constant(400.0)))
    first_s, last_s = gone
    trace.samples = [
        sample for sample in trace.samples if not first_s < sample.at_ns / NS_PER_S < last_s
    ]
    span = span_of(10.0, 40.0)
    if problem is None:
        assert energy_of(trace, span).energy_j == pytest.approx(400 * 30, rel=0.01)
    else:
        with pytest.raises(SensorError, match=problem):
            energy_of(trace, span)


def test_samples_come_about_ten_times_a_second() -> None:
    trace = sampled(Machine(constant(400.0), stall_ns=20e6))
    assert len(trace.samples) == pytest.approx(61 * 10.3, rel=0.02)
    listed = [sample for sample in trace.samples if sample.pids == (17,)]
    assert len(listed) == pytest.approx(len(trace.samples) / 5, abs=1)
    assert missing_frac(trace, span_of(10.0, 60.0)) <= 0.02


@dataclass(slots=True)
class Dying(Probe):
    """A device that is gone after a while."""

    machine: Machine
    gone_at_s: float

    def energy_mj(self) -> int:
        if self.machine.now_ns > self.gone_at_s * NS_PER_S:
            raise SensorError("NVML: GPU is lost")
        return self.machine.energy_mj()

    def state(self) -> DeviceState:
        return self.machine.state()


def test_a_device_that_is_gone_is_written_down_and_left_alone() -> None:
    machine = Machine(constant(400.0), until_s=20.0)
    samples: list[DeviceSample] = []
    probes = [Dying(machine, 10.0), machine]
    sample_devices(probes, samples.append, wait_until=machine.wait_until, clock=machine.clock)
    lost = [(sample.device_index, sample.lost) for sample in samples if sample.lost]
    assert lost == [(0, "NVML: GPU is lost")]
    last_s = {sample.device_index: sample.at_ns / NS_PER_S for sample in samples}
    assert last_s[0] < 10.1
    assert last_s[1] > 19.8


@pytest.mark.parametrize("averaged", [True, False])
def test_power_is_summed_up_where_there_is_no_counter(averaged: bool) -> None:  # noqa: FBT001 - a column
    """300 + 200 sin(t) W; averaged over a second it lags by half of one."""

    def state(at_s: float) -> DeviceState:
        if averaged:
            average_w = 300 + 200 * (math.cos(at_s - 1) - math.cos(at_s))
            return DeviceState(average_mw=round(1e3 * average_w), instant_mw=1)
        return DeviceState(instant_mw=round(1e3 * (300 + 200 * math.sin(at_s))))

    moments_ns = range(0, 60 * NS_PER_S, EVERY_NS)
    samples = [
        DeviceSample(device_index=0, at_ns=ns, state=state(ns / NS_PER_S)) for ns in moments_ns
    ]
    trace = PowerTrace(device=builders.device(), samples=samples)
    true_j = 300 * 30 + 200 * (math.cos(10) - math.cos(40))
    energy = energy_of(trace, span_of(10.0, 40.0))
    assert (energy.from_counter, energy.error_frac, energy.counter_ratio) == (False, 0.0, None)
    assert energy.energy_j == pytest.approx(true_j, rel=0.001)


LIMIT_W = 700.0


def watched(
    power_w: Callable[[int], float | None],
    energy_j: Callable[[int], float | None] = lambda _: None,
    *,
    limit_w: float | None = LIMIT_W,
    field: str = "average_mw",
) -> PowerTrace:
    """A trace of a minute, with the power and the counter of each sample by its number."""

    def in_thousandths(value: float | None) -> int | None:
        return None if value is None else round(1000 * value)

    samples = [
        DeviceSample(
            device_index=0,
            at_ns=number * EVERY_NS,
            energy_mj=in_thousandths(energy_j(number)),
            state=DeviceState(**{field: in_thousandths(power_w(number))}),
        )
        for number in range(60 * NS_PER_S // EVERY_NS)
    ]
    return PowerTrace(device=builders.device(highest_limit_w=limit_w), samples=samples)


def counted_j(number: int) -> float:
    """A counter of 400 W that is exact at each sample."""
    return 400 * number * EVERY_NS / NS_PER_S


def power_of(trace: PowerTrace, span: Span, idle: Span = (0, 0)) -> PowerRecord:
    return record_power([trace], span, tokens=1000, accepted_frac=0.5, idle=idle)


@pytest.mark.parametrize("field", ["average_mw", "instant_mw"])
@pytest.mark.parametrize("limit_w", [LIMIT_W, None], ids=["limit", "no limit"])
@pytest.mark.parametrize("has_counter", [True, False], ids=["counter", "no counter"])
@pytest.mark.parametrize("glitch_w", [3700.0, 65_535.0, 0.0, 2.0])
@pytest.mark.parametrize("every", [20, 300])
def test_a_power_that_no_card_can_draw_is_refused(
    glitch_w: float, every: int, field: str, limit_w: float | None, *, has_counter: bool
) -> None:
    """A sensor glitches in one of so many samples; the card draws 400 W."""
    trace = watched(
        lambda number: 400.0 if number % every else glitch_w,
        counted_j if has_counter else lambda _: None,
        limit_w=limit_w,
        field=field,
    )
    record = power_of(trace, span_of(10.0, 50.0))
    assert record.invalid is not None
    assert record.invalid.code == "POWER_INVALID"
    assert f"read {glitch_w:.0f} W in" in str(record.invalid)


@pytest.mark.parametrize("power_w", [20.0, 130.0, 699.0, 1000.0])
@pytest.mark.parametrize("field", ["average_mw", "instant_mw"])
def test_a_load_that_swings_up_to_the_limit_and_beyond_is_no_glitch(
    power_w: float, field: str
) -> None:
    trace = watched(lambda number: 400.0 if number % 20 else power_w, field=field)
    assert power_of(trace, span_of(10.0, 50.0)).invalid is None


def test_a_counter_of_a_processor_that_rests_for_most_of_the_time_does_not_jump() -> None:
    """It draws 10 W, and 150 W in each tenth part of the time."""
    energies_j = [0.0]
    for number in range(60 * NS_PER_S // EVERY_NS):
        power_w = 10.0 if number % 10 else 150.0
        energies_j.append(energies_j[-1] + power_w * EVERY_NS / NS_PER_S)
    trace = watched(lambda _: None, lambda number: energies_j[number], limit_w=253.0)
    assert power_of(trace, span_of(10.0, 50.0)).invalid is None


@pytest.mark.parametrize("limit_w", [LIMIT_W, None], ids=["limit", "no limit"])
@pytest.mark.parametrize("jump_j", [1000.0, 2e6])
@pytest.mark.parametrize("power_w", [400.0, None], ids=["power", "no power"])
def test_a_counter_that_jumps_is_refused(
    jump_j: float, limit_w: float | None, power_w: float | None
) -> None:
    trace = watched(
        lambda _: power_w,
        lambda number: counted_j(number) + (jump_j if number > 300 else 0.0),
        limit_w=limit_w,
    )
    record = power_of(trace, span_of(10.0, 50.0))
    assert "the energy counter of NVIDIA H200 jumped" in str(record.invalid)
    assert power_of(trace, span_of(10.0, 25.0)).invalid is None


def test_a_card_that_reads_nothing_but_zero_reports_no_power() -> None:
    record = power_of(watched(lambda _: 0.0), span_of(10.0, 50.0))
    assert "reports neither power nor energy" in str(record.invalid)


@pytest.mark.parametrize("field", ["average_mw", "instant_mw"])
@pytest.mark.parametrize("idle_w", [60.0, 59.7])
def test_a_sensor_that_stands_still_since_the_card_was_idle_is_refused(
    idle_w: float, field: str
) -> None:
    loaded_from = 9 * NS_PER_S // EVERY_NS
    trace = watched(lambda number: 60.0 if number > loaded_from else idle_w, field=field)
    record = power_of(trace, span_of(15.0, 45.0), idle=span_of(2.0, 7.0))
    assert "read 60 W throughout the load, and as much at rest" in str(record.invalid)


def test_a_sensor_of_whole_watts_may_show_one_power_throughout_a_steady_load() -> None:
    loaded_from = 10 * NS_PER_S // EVERY_NS
    trace = watched(lambda number: 400.0 if number > loaded_from else 60.0)
    assert power_of(trace, span_of(15.0, 45.0), idle=span_of(2.0, 7.0)).invalid is None


@pytest.mark.parametrize(
    ("idle_w", "problem"),
    [
        (100.0, ""),
        (150.0, "shows 0.67 times the energy that its power adds up to"),
        (3700.0, "read 3700 W in"),
    ],
)
def test_an_idle_power_passes_the_checks_of_a_load(idle_w: float, problem: str) -> None:
    """The counter says 100 W of the idle card, and its power field something else."""
    loaded_from = 10 * NS_PER_S // EVERY_NS

    def energy_j(number: int) -> float:
        idle_j = 100 * min(number, loaded_from) * EVERY_NS / NS_PER_S
        return idle_j + counted_j(max(0, number - loaded_from))

    trace = watched(lambda number: 400.0 if number > loaded_from else idle_w, energy_j)
    record = power_of(trace, span_of(15.0, 45.0), idle=span_of(2.0, 7.0))
    assert record.invalid is None
    assert record.case is not None
    (device,) = record.case.devices
    assert problem in device.idle_invalid
    if problem:
        assert (record.case.idle_w, record.case.above_idle_j_per_token) == (None, None)
    else:
        assert device.idle_invalid == ""
        assert record.case.idle_w == pytest.approx(100, rel=0.01)
    assert record.case.mean_w == pytest.approx(400, rel=0.01)


def read_at(*moments_s: float, field: str) -> PowerTrace:
    """A trace of 400 W with so many readings, of the counter or of the power alone."""
    samples = []
    for at_s in moments_s:
        at_ns = round(at_s * NS_PER_S)
        sample = DeviceSample(device_index=0, at_ns=at_ns, state=DeviceState(average_mw=400_000))
        if field == "energy":
            sample = msgspec.structs.replace(sample, energy_mj=round(400_000 * at_s))
        samples.append(sample)
    return PowerTrace(device=builders.device(), samples=samples)


@pytest.mark.parametrize("field", ["energy", "power"])
@pytest.mark.parametrize(
    "moments_s", [(), (1.0,), (1.0, 1.05), (0.9, 1.0), (0.9, 1.1), (0.5, 1.0, 1.05)]
)
def test_a_span_of_no_length_has_no_energy_however_often_it_was_read(
    moments_s: tuple[float, ...], field: str
) -> None:
    trace = read_at(*moments_s, field=field)
    with pytest.raises(SensorError, match="no length"):
        energy_of(trace, span_of(1.0, 1.0))


@pytest.mark.parametrize("length_s", [0.05, 4.0], ids=["short", "idle"])
@pytest.mark.parametrize("moments_s", [(), (0.9,), (1.0,), (1.02,), (6.0,)])
def test_a_counter_that_was_read_less_than_twice_has_no_energy(
    moments_s: tuple[float, ...], length_s: float
) -> None:
    trace = read_at(*moments_s, field="energy")
    with pytest.raises(SensorError, match=r"samples are missing|samples of .* are missing"):
        energy_of(trace, span_of(1.0, 1.0 + length_s))


def test_two_reads_of_a_counter_around_a_short_span_are_enough() -> None:
    trace = read_at(0.98, 1.07, field="energy")
    assert energy_of(trace, span_of(1.0, 1.05)).energy_j == pytest.approx(400 * 0.05)


@pytest.mark.parametrize("field", ["energy", "power"])
@pytest.mark.parametrize("moments_s", [(), (1.0,), (0.9, 1.1)])
def test_a_block_of_no_length_is_said_and_ends_no_run(
    moments_s: tuple[float, ...], field: str
) -> None:
    trace = read_at(*moments_s, field=field)
    span = span_of(1.0, 1.0)
    power = record_power([trace], span, tokens=0, accepted_frac=0.0, idle=span)
    assert power.case is not None
    (device,) = power.case.devices
    assert (device.energy_j, device.mean_w, device.idle_w) == (None, None, None)
    assert "no length" in device.invalid
