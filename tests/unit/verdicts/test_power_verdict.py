"""What is judged of power: energy on one card, watts either way, and GPUs that are fit for it."""

import dataclasses
from collections.abc import Sequence
from typing import cast

import msgspec
import pytest

from specreg.baselines.comparison import CaseBaselines, compare
from specreg.baselines.schema import Baseline, RecordedDevice
from specreg.core.errors import SensorError
from specreg.measurement.figures import figures_of
from specreg.measurement.measure import Measurement, values_of
from specreg.measurement.metrics import METRICS, Family
from specreg.measurement.power import power_of
from specreg.report.failures import sentence_of
from specreg.report.tables import render_figures
from specreg.stats.intervals import Spread
from specreg.telemetry.record import PowerRecord
from specreg.telemetry.sampler import Watch
from specreg.telemetry.samples import PowerTrace, Sample, Users
from specreg.telemetry.sensor import Scope, State
from specreg.verdicts.judge import Outcome, Verdict, first_look, judge, two_sided_outcome_of
from specreg.verdicts.multiple_testing import confirm
from tests.unit import builders

ENERGY, WATTS = METRICS["energy_j_per_token"], METRICS["power_w"]
CARD = builders.device()
RECORDED = RecordedDevice(
    id=CARD.id, name=CARD.name, scope=Scope.GPU, from_counter=True, sm_clock_mhz=1980.0
)


def measured(power: PowerRecord | None, tokens: int = 6000) -> Measurement:
    """A launch that generated some tokens in a minute."""
    plain = builders.measurement({})
    assert plain.replay is not None
    replay = dataclasses.replace(
        plain.replay, power=power, rounds=(builders.replayed(0, 60 * 10**9, tokens),)
    )
    values = values_of(plain.case, replay)
    return dataclasses.replace(plain, replay=replay, values=values)


def baseline(energy: float = 2.0, watts: float = 200.0, *devices: RecordedDevice) -> Baseline:
    """Three launches of a card that repeat exactly."""
    row = {ENERGY.name: energy, WATTS.name: watts, "throughput_tokens_per_s": 100.0}
    made = builders.baseline(row, row, row)
    return msgspec.structs.replace(made, devices=devices or (RECORDED,))


def judged(
    name: str, power: PowerRecord | None, against: Baseline | None = None, tokens: int = 6000
) -> Verdict:
    """The verdict on one launch of 12 kJ and 6,000 tokens in a minute, unless told otherwise."""
    known = CaseBaselines(
        environment=builders.ENVIRONMENT,
        settings=builders.SETTINGS,
        exact=against or baseline(),
        spreads={
            metric: Spread(within_frac=0.002, between_frac=0.0, freedom=16) for metric in METRICS
        },
    )
    metric = METRICS[name]
    return judge(metric, compare([measured(power, tokens)], known), first_look(metric))


def test_energy_per_token_and_watts_are_those_of_the_window() -> None:
    values = measured(builders.power()).values
    assert values[ENERGY.name] == pytest.approx(12_000 / 6000)
    assert values[WATTS.name] == pytest.approx(12_000 / 60)


@pytest.mark.parametrize(
    ("energy_j", "outcome"),
    [(12_000, Outcome.PASS), (10_000, Outcome.IMPROVED), (14_000, Outcome.REGRESSED)],
)
def test_a_token_that_costs_more_is_a_regression(energy_j: float, outcome: Outcome) -> None:
    assert judged(ENERGY.name, builders.power(energy_j)).outcome is outcome


@pytest.mark.parametrize(
    ("energy_j", "outcome", "word"),
    [
        (12_000, Outcome.PASS, "more"),
        (12_900, Outcome.PASS, "more"),
        (14_000, Outcome.REGRESSED, "more by 16.7 %"),
        (10_000, Outcome.REGRESSED, "less by 16.7 %"),
    ],
)
def test_watts_shall_stay_as_they_are(energy_j: float, outcome: Outcome, word: str) -> None:
    verdict = judged(WATTS.name, builders.power(energy_j))
    assert verdict.outcome is outcome
    assert word in sentence_of(verdict)
    assert verdict.p_worse == pytest.approx(float(energy_j == 12_000), abs=0.001)


@pytest.mark.parametrize(
    ("low", "estimate", "high", "outcome"),
    [
        (-0.09, 0.0, 0.09, Outcome.PASS),
        (0.01, 0.05, 0.09, Outcome.PASS),
        (0.01, 0.11, 0.2, Outcome.REGRESSED),
        (-0.2, -0.11, -0.01, Outcome.REGRESSED),
        (0.01, 0.09, 0.2, Outcome.INCONCLUSIVE),
        (-0.01, 0.11, 0.2, Outcome.INCONCLUSIVE),
        (-0.2, 0.0, 0.2, Outcome.INCONCLUSIVE),
        (-0.1, 0.0, 0.0, Outcome.INCONCLUSIVE),
        (0.0, 0.0, 0.1, Outcome.INCONCLUSIVE),
    ],
)
def test_a_change_either_way_is_judged_by_its_whole_interval(
    low: float, estimate: float, high: float, outcome: Outcome
) -> None:
    assert two_sided_outcome_of(estimate, low, high, 0.1) is outcome


@pytest.mark.parametrize("name", [ENERGY.name, WATTS.name])
def test_power_that_nobody_watched_is_not_comparable(name: str) -> None:
    verdict = judged(name, None)
    assert (verdict.outcome, verdict.value) == (Outcome.NOT_COMPARABLE, None)
    assert verdict.reason == "the power of this launch wasn't sampled"


@pytest.mark.parametrize("name", [ENERGY.name, WATTS.name])
def test_a_broken_meter_makes_power_invalid_and_nothing_else(name: str) -> None:
    broken = PowerRecord(invalid="POWER_INVALID: the sampler ended")
    verdict = judged(name, broken)
    assert verdict.outcome is Outcome.INVALID
    assert verdict.reason == "POWER_INVALID: the sampler ended"
    assert judged("throughput_tokens_per_s", broken).outcome is Outcome.PASS


def test_a_short_window_is_not_comparable() -> None:
    short = msgspec.structs.replace(builders.power(), too_short="7 s, and 10 s are needed")
    verdict = judged(ENERGY.name, short)
    assert verdict.outcome is Outcome.NOT_COMPARABLE
    assert verdict.reason == "7 s, and 10 s are needed"
    assert ENERGY.name not in measured(short).values


@pytest.mark.parametrize(
    ("energy_j", "outcome"),
    [(12_800, Outcome.PASS), (14_000, Outcome.NOT_COMPARABLE), (8_000, Outcome.NOT_COMPARABLE)],
)
def test_another_card_is_a_tenth_off_at_most_or_not_comparable(
    energy_j: float, outcome: Outcome
) -> None:
    other = builders.power(energy_j, of=msgspec.structs.replace(CARD, id="GPU-other"))
    verdict = judged(ENERGY.name, other)
    assert verdict.outcome is outcome
    if outcome is Outcome.NOT_COMPARABLE:
        assert "measured on GPU-other, recorded on GPU-NVIDIA H200" in verdict.reason
        assert "cards of one kind differ by 10%" in verdict.reason


@pytest.mark.parametrize(
    ("scope", "from_counter", "said"),
    [(Scope.MODULE, True, "module by counter"), (Scope.GPU, False, "gpu by power")],
)
def test_power_of_something_else_is_not_comparable(
    scope: Scope,
    from_counter: bool,  # noqa: FBT001 - a column
    said: str,
) -> None:
    device = msgspec.structs.replace(CARD, scope=scope)
    verdict = judged(ENERGY.name, builders.power(of=device, from_counter=from_counter))
    assert verdict.outcome is Outcome.NOT_COMPARABLE
    assert f"power measured as {said}, recorded as gpu by counter" in verdict.reason


@pytest.mark.parametrize("name", [ENERGY.name, "throughput_tokens_per_s"])
@pytest.mark.parametrize(("clock_mhz", "invalid"), [(1890.0, False), (1870.0, True)])
def test_a_gpu_that_runs_slower_than_it_was_recorded_makes_its_speeds_invalid(
    name: str,
    clock_mhz: float,
    invalid: bool,  # noqa: FBT001 - a column
) -> None:
    verdict = judged(name, builders.power(sm_clock_mhz=clock_mhz))
    assert (verdict.outcome is Outcome.INVALID) == invalid
    if invalid:
        assert verdict.reason.startswith("CLOCK_LOW: NVIDIA H200 ran at 1870 MHz, it was recorded")


def test_figures_tell_what_a_token_costs_and_what_speculation_saves() -> None:
    power = builders.power(accepted_frac=0.4)
    both = msgspec.structs.replace(
        power, control=builders.power(18_000, tokens=3000).case, energy_ratio=3.0
    )
    found = figures_of(measured(both), 1)
    assert found.power is not None
    assert found.power.case is not None
    case = found.power.case
    assert case.energy_j_per_token == pytest.approx(2.0)
    assert case.above_idle_j_per_token == pytest.approx((12_000 - 60 * 100) / 6000)
    assert case.tokens_per_kwh == pytest.approx(3.6e6 / 2.0)
    assert case.energy_j_per_accepted_token == pytest.approx(12_000 / (0.4 * 6000))
    assert case.mean_w == pytest.approx(200)
    assert case.idle_w == pytest.approx(100)
    assert case.devices[0].throttled == ("power cap",)
    shown = render_figures([found], width=140, color=False)
    assert "+67%" in shown
    assert "at its power cap" in shown
    assert "±0.1%" in shown


def test_a_meter_out_of_order_stands_in_the_table() -> None:
    broken = PowerRecord(invalid="POWER_INVALID: the sampler ended")
    shown = render_figures([figures_of(measured(broken), 1)], width=140, color=False)
    assert "POWER_INVALID: the sampler" in shown


def test_a_slow_gpu_is_seen_though_its_meter_is_out_of_order() -> None:
    slow = builders.power(sm_clock_mhz=1200.0)
    assert slow.case is not None
    (device,) = slow.case.devices
    arm = msgspec.structs.replace(
        slow.case, devices=(msgspec.structs.replace(device, energy_j=None),)
    )
    broken = msgspec.structs.replace(slow, case=arm, invalid="POWER_INVALID: 1.7 times")
    for name in (ENERGY.name, "throughput_tokens_per_s"):
        assert judged(name, broken).reason.startswith("CLOCK_LOW: ")


def test_a_slow_gpu_in_an_earlier_launch_counts_too() -> None:
    launches = [measured(builders.power(sm_clock_mhz=1200.0)), measured(builders.power())]
    known = CaseBaselines(
        environment=builders.ENVIRONMENT,
        settings=builders.SETTINGS,
        exact=baseline(),
        spreads={name: Spread(within_frac=0.002, between_frac=0.0, freedom=16) for name in METRICS},
    )
    metric = METRICS["throughput_tokens_per_s"]
    verdict = judge(metric, compare(launches, known), first_look(metric))
    assert verdict.reason.startswith("CLOCK_LOW: ")


@pytest.mark.parametrize(
    ("again_j", "outcome"), [(14_000, Outcome.REGRESSED), (10_000, Outcome.INCONCLUSIVE)]
)
def test_watts_that_go_the_other_way_on_a_fresh_launch_confirm_nothing(
    again_j: float, outcome: Outcome
) -> None:
    first = judged(WATTS.name, builders.power(14_000))
    second = judged(WATTS.name, builders.power(again_j))
    assert (first.outcome, second.outcome) == (Outcome.REGRESSED, Outcome.REGRESSED)
    assert confirm(first, second).outcome is outcome


def test_a_request_that_fails_under_load_for_power_makes_power_alone_invalid() -> None:
    replay = measured(None).replay
    assert replay is not None
    (part,) = replay.rounds
    failed = msgspec.structs.replace(part.traces[0], error="HTTP 500")
    block = dataclasses.replace(part, traces=(failed,))
    alive = Sampler(PowerTrace(device=CARD, every_ns=97 * 10**6), ended=False)
    found = power_of(replay, cast("Watch", alive), (0, 0), {17}, block, {})
    assert found.invalid.startswith("POWER_INVALID: REQUEST_FAILED: 1 of 1 requests failed")


class Sampler:
    """One that ended, or didn't, and what it left."""

    def __init__(self, trace: PowerTrace, *, ended: bool = True) -> None:
        self.trace, self.ended = trace, ended

    def traces(self, until_ns: int) -> Sequence[PowerTrace]:
        if not self.ended:
            return (self.trace,)
        raise SensorError(f"the sampler of power ended before {until_ns}")

    def left(self) -> Sequence[PowerTrace]:
        return (self.trace,)


@pytest.mark.parametrize(
    ("mask", "pid", "reason"), [(0x40, 17, "THROTTLED"), (0, 99, "DEVICE_SHARED"), (0, 17, "")]
)
def test_what_a_dead_sampler_had_seen_counts(mask: int, pid: int, reason: str) -> None:
    state = State(throttle_mask=mask, temperature_c=90)
    trace = PowerTrace(
        device=CARD,
        every_ns=97 * 10**6,
        samples=[Sample(device=0, at_ns=10**9, energy_mj=None, state=state)],
        users=[Users(device=0, at_ns=10**9, pids=(17, pid))],
    )
    replay = measured(None).replay
    assert replay is not None
    sampler = cast("Watch", Sampler(trace))
    invalid: dict[Family, str] = {}
    found = power_of(replay, sampler, (0, 0), {17}, replay.rounds[0], invalid)
    assert found.invalid.startswith("POWER_INVALID: the sampler of power ended")
    assert {why.partition(":")[0] for why in invalid.values()} == ({reason} if reason else set())
    assert invalid.keys() == (set(Family) - {Family.ACCEPTANCE} if reason else set())
