"""The sampler in simulated time, beside a counter whose truth is known: hunt, samples, energy."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from specreg.errors import SensorError
from specreg.power.energy import check_edges, energy_of, integral_mj, missing_frac, tick_ms
from specreg.power.sampler import EVERY_NS, sample
from specreg.power.samples import Head, Line, PowerTrace, Sample, Tick, Users, load_traces
from specreg.sensors import Device, Scope, Settings, State
from tests.scripted.nvml.device import Load, constant
from tests.unit import builders

NS_PER_S = 10**9
CALL_NS = 30_000
SQUARE = Load(low_w=100.0, high_w=700.0, period_ms=100.0)
UNEVEN = Load(low_w=100.0, high_w=700.0, period_ms=130.0, duty_frac=0.3)
SLOW = Load(low_w=100.0, high_w=700.0, period_ms=1_700.0)


@dataclass(frozen=True, slots=True)
class Rounds:
    """A load of 700 W for `round_s` in each `every_s`, 100 W in between."""

    every_s: float
    round_s: float

    def energy_j(self, until_s: float) -> float:
        """The integral of the power from 0 on."""
        rounds, rest_s = divmod(until_s, self.every_s)
        return 100 * until_s + 600 * (rounds * self.round_s + min(rest_s, self.round_s))


@dataclass(slots=True)
class Machine:
    """A clock that jumps to where somebody waits for, a little late, and a counter that ticks.

    Attributes:
        late_ns: the mean lateness of a wake-up; stall_ns: of one in a hundred.
        tells_power: whether it says what it draws at the moment, besides its counter.
    """

    load: Load | Rounds
    tick_ns: int = 100 * 10**6
    late_ns: float = 100_000.0
    stall_ns: float = 0.0
    until_s: float = 66.0
    tells_power: bool = True
    now_ns: int = 5 * NS_PER_S
    looks: int = 0
    draw: random.Random = field(default_factory=lambda: random.Random(7))  # noqa: S311

    def clock(self) -> int:
        return self.now_ns

    def wait_until(self, moment_ns: int) -> bool:
        late_ns = self.draw.expovariate(1 / self.late_ns)
        if self.stall_ns and self.draw.random() < 0.01:
            late_ns += self.draw.expovariate(1 / self.stall_ns)
        self.now_ns = max(self.now_ns, moment_ns) + round(late_ns)
        return self.now_ns > self.until_s * NS_PER_S

    def energy_mj(self) -> int:
        self.looks += 1
        self.now_ns += CALL_NS
        ticked_ns = self.now_ns // self.tick_ns * self.tick_ns
        return round(self.load.energy_j(ticked_ns / NS_PER_S) * 1000)

    def state(self) -> State:
        self.now_ns += 5 * CALL_NS
        at_s = self.now_ns / NS_PER_S
        power_w = (self.load.energy_j(at_s + 1e-6) - self.load.energy_j(at_s)) / 1e-6
        return State(instant_mw=round(power_w * 1000)) if self.tells_power else State()

    def pids(self) -> tuple[int, ...]:
        return (17,)

    def settings(self) -> Settings:
        return Settings()


def sampled(machine: Machine, probe: object = None) -> PowerTrace:
    """What a sampler makes of a machine, as read from its file."""
    lines: list[Line] = []
    sample(
        [builders.device()],
        [probe or machine],  # type: ignore[list-item]
        lines.append,
        wait_until=machine.wait_until,
        clock=machine.clock,
    )
    return trace_of(lines)


def trace_of(lines: list[Line]) -> PowerTrace:
    head = lines[0]
    assert isinstance(head, Head)
    return PowerTrace(
        device=head.devices[0],
        every_ns=head.every_ns,
        samples=[line for line in lines if isinstance(line, Sample)],
        ticks=[line for line in lines if isinstance(line, Tick)],
        users=[line for line in lines if isinstance(line, Users)],
    )


def errors(machine: Machine, trace: PowerTrace, length_s: float) -> list[float]:
    """The relative errors of many windows; of those that nobody can tell, none."""
    found = []
    draw = random.Random(3)  # noqa: S311
    for _ in range(300):
        start_s = draw.uniform(6.0, machine.until_s - 1.0 - length_s)
        span = (round(start_s * NS_PER_S), round((start_s + length_s) * NS_PER_S))
        true_j = machine.load.energy_j(span[1] / NS_PER_S) - machine.load.energy_j(
            span[0] / NS_PER_S
        )
        try:
            found.append(energy_of(trace, [span]).energy_mj / 1000 / true_j - 1)
        except SensorError:
            continue
    return found


@pytest.mark.parametrize("tick_ms_", [1, 10, 20, 50, 100])
@pytest.mark.parametrize("load", [constant(400.0), SQUARE, UNEVEN, SLOW])
@pytest.mark.parametrize("stall_ns", [0.0, 20e6])
def test_the_energy_of_a_window_is_right(load: Load, tick_ms_: int, stall_ns: float) -> None:
    machine = Machine(load, tick_ns=tick_ms_ * 10**6, stall_ns=stall_ns)
    trace = sampled(machine)
    half, whole = errors(machine, trace, 30.0), errors(machine, trace, 58.0)
    assert max(map(abs, half)) <= 0.005
    assert max(map(abs, whole)) <= 0.002
    assert min(len(half), len(whole)) >= (300 if not stall_ns else 285)


@pytest.mark.parametrize("tick_ms_", [10, 20, 50, 100])
@pytest.mark.parametrize("tells_power", [True, False])
@pytest.mark.parametrize(("every_s", "round_s", "rounds"), [(13.0, 6.0, 5), (40.03, 31.0, 1)])
def test_rounds_that_begin_with_the_load_are_right(
    tick_ms_: int,
    every_s: float,
    round_s: float,
    rounds: int,
    tells_power: bool,  # noqa: FBT001 - a column
) -> None:
    """What lies before the first tick of a round is load; what lies before the round is none."""
    machine = Machine(Rounds(every_s, round_s), tick_ns=tick_ms_ * 10**6, until_s=100.0)
    machine.tells_power = tells_power
    trace = sampled(machine)
    starts = [every_s * (1 + number) for number in range(rounds)]
    spans = [(round(at * NS_PER_S), round((at + round_s) * NS_PER_S)) for at in starts]
    found = energy_of(trace, spans)
    off = found.energy_mj / 1000 / (700 * round_s * rounds) - 1
    assert abs(off) <= 0.002
    assert abs(off) <= found.error_frac


def test_a_tick_that_nobody_saw_is_counted_into_the_error() -> None:
    trace = sampled(Machine(SLOW))
    span = (10 * NS_PER_S, 40 * NS_PER_S)
    whole = energy_of(trace, [span])
    trace.ticks = [tick for tick in trace.ticks if not 39.1 < tick.at_ns / NS_PER_S < 41]
    cut = energy_of(trace, [span])
    assert cut.error_frac >= 0.021  # 0.9 of 30 s at 100 or at 700 W
    assert abs(cut.energy_mj / whole.energy_mj - 1) <= cut.error_frac
    check_edges(whole)
    with pytest.raises(SensorError, match="the edges of its rounds can make its energy"):
        check_edges(cut)
    trace.ticks = [tick for tick in trace.ticks if tick.at_ns < 38 * NS_PER_S]
    with pytest.raises(SensorError, match=r"wasn't seen to tick for 2\.\d s at the edge"):
        energy_of(trace, [span])


def test_a_counter_read_at_the_edges_alone_would_be_a_tick_off() -> None:
    """The trap that POWER.md saw: 0.55 s of 400 W, read as 358 to 436 W."""
    machine = Machine(constant(400.0))
    trace = sampled(machine)
    assert max(map(abs, errors(machine, trace, 0.55))) <= 0.02
    naive = [
        (last.energy_mj or 0) - (first.energy_mj or 0)
        for first, last in zip(trace.samples, trace.samples[11:], strict=False)
    ]
    spread = (max(naive) - min(naive)) / 1000 / (11 * EVERY_NS / NS_PER_S)
    assert spread > 50


@pytest.mark.parametrize("tick_ms_", [10, 20, 50, 100])
def test_the_period_is_learnt(tick_ms_: int) -> None:
    trace = sampled(Machine(UNEVEN, tick_ns=tick_ms_ * 10**6, stall_ns=20e6))
    assert tick_ms(trace) == pytest.approx(tick_ms_, rel=0.02)


@pytest.mark.parametrize("tick_ms_", [1, 10, 20, 50, 100])
def test_ticks_are_seen_with_few_looks(tick_ms_: int) -> None:
    """About three for each of ten ticks a second, and one for each sample."""
    machine = Machine(UNEVEN, tick_ns=tick_ms_ * 10**6)
    trace = sampled(machine)
    assert len(trace.ticks) >= 9 * 60
    assert machine.looks <= 61 * (21 + 6 * 10)
    assert all(tick.after_ns <= 5 * 10**6 for tick in trace.ticks)


def test_a_counter_that_stands_still_is_seldom_looked_at() -> None:
    machine = Machine(constant(400.0), tick_ns=10**15)
    trace = sampled(machine)
    assert not trace.ticks
    assert machine.looks <= 61 * (21 + 160)
    with pytest.raises(SensorError, match="stands still"):
        energy_of(trace, [(10 * NS_PER_S, 40 * NS_PER_S)])


def test_samples_come_about_twenty_times_a_second() -> None:
    trace = sampled(Machine(constant(400.0), stall_ns=20e6))
    assert len(trace.samples) == pytest.approx(61 * 20.4, rel=0.02)
    assert len(trace.users) == pytest.approx(len(trace.samples) / 10, abs=1)
    assert missing_frac(trace, [(10 * NS_PER_S, 60 * NS_PER_S)]) <= 0.02


@dataclass(slots=True)
class Dying:
    """A device that is gone after a while."""

    machine: Machine
    gone_at_s: float

    def energy_mj(self) -> int:
        if self.machine.now_ns > self.gone_at_s * NS_PER_S:
            raise SensorError("NVML: GPU is lost")
        return self.machine.energy_mj()

    def state(self) -> State:
        return self.machine.state()

    def pids(self) -> None:
        return None

    def settings(self) -> Settings:
        return Settings()


def test_a_device_that_is_gone_is_written_down_and_left_alone() -> None:
    machine = Machine(constant(400.0), until_s=20.0)
    lines: list[Line] = []
    devices: list[Device] = [builders.device(), builders.device("other")]
    sample(
        devices,
        [Dying(machine, 10.0), machine],
        lines.append,
        wait_until=machine.wait_until,
        clock=machine.clock,
    )
    failed = [line for line in lines if type(line).__name__ == "Failed"]
    assert [(line.device, line.why) for line in failed] == [(0, "NVML: GPU is lost")]  # type: ignore[union-attr]
    last_s = {line.device: line.at_ns / NS_PER_S for line in lines if isinstance(line, Sample)}
    assert last_s[0] < 10.1
    assert last_s[1] > 19.8


def powers(function: Callable[[float], int], *, averaged: bool) -> PowerTrace:
    """A trace that tells power alone."""
    moments = range(0, 60 * NS_PER_S, EVERY_NS)
    return PowerTrace(
        device=builders.device(),
        every_ns=EVERY_NS,
        samples=[
            Sample(
                device=0,
                at_ns=at_ns,
                energy_mj=None,
                state=State(average_mw=function(at_ns / NS_PER_S))
                if averaged
                else State(instant_mw=function(at_ns / NS_PER_S), average_mw=1),
            )
            for at_ns in moments
        ],
    )


@pytest.mark.parametrize("averaged", [True, False])
def test_power_is_summed_up_where_there_is_no_counter(averaged: bool) -> None:  # noqa: FBT001 - a column
    """300 + 200 sin(t) W; averaged over a second it lags by half of one."""

    def power_mw(at_s: float) -> int:
        if averaged:
            return round(1e3 * (300 + 200 * (math.cos(at_s - 1) - math.cos(at_s))))
        return round(1e3 * (300 + 200 * math.sin(at_s)))

    trace = powers(power_mw, averaged=averaged)
    start_s, end_s = 10.0, 40.0
    true_j = 300 * (end_s - start_s) + 200 * (math.cos(start_s) - math.cos(end_s))
    span = (round(start_s * NS_PER_S), round(end_s * NS_PER_S))
    assert integral_mj(trace, span) / 1000 == pytest.approx(true_j, rel=0.001)
    found = energy_of(trace, [span])
    assert (found.from_counter, found.error_frac) == (False, 0.0)
    assert found.energy_mj == integral_mj(trace, span)


def written(path: Path, *lines: Line) -> Path:
    """A file of these lines."""
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    return path


def used(device: int, at_ns: int) -> Users:
    """Somebody computes on a device."""
    return Users(device=device, at_ns=at_ns, pids=(7,))


def test_a_run_that_goes_on_with_other_devices_begins_anew(tmp_path: Path) -> None:
    first, second = (
        Device(sensor="nvml", id=f"GPU-{n}", name="x", number=n, scope=Scope.GPU) for n in (0, 1)
    )
    alone, both = (Head(devices=some, every_ns=1) for some in ((first,), (first, second)))
    same = load_traces(written(tmp_path / "a", alone, used(0, 1), alone, used(0, 2)))
    assert [[one.at_ns for one in trace.users] for trace in same] == [[1, 2]]
    other = load_traces(written(tmp_path / "b", alone, used(0, 1), both, used(1, 2), used(0, 3)))
    assert [[one.at_ns for one in trace.users] for trace in other] == [[3], [2]]


@pytest.mark.parametrize("number", [1, -1])
def test_a_line_of_a_device_that_nobody_named_is_said(tmp_path: Path, number: int) -> None:
    device = Device(sensor="nvml", id="GPU-0", name="x", number=0, scope=Scope.GPU)
    path = written(tmp_path / "a", Head(devices=(device,), every_ns=1), used(number, 1))
    with pytest.raises(SensorError, match=rf"a line is of device {number}, its head has 1"):
        load_traces(path)
