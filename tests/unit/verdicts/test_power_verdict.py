"""What is judged of power: energy on one card, watts either way, and GPUs that are fit for it."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import msgspec
import pytest

from specreg.acceptance.record import StepCounts
from specreg.baselines.schema import RecordedDevice
from specreg.core.families import Family
from specreg.core.reasons import Reason
from specreg.load.rounds import Clients
from specreg.measurement.arm import Arm, ArmReplay
from specreg.measurement.figures import figures_of
from specreg.measurement.measure import Measurement, values_of
from specreg.measurement.metrics import METRICS, Replay
from specreg.report.failures import sentence_of
from specreg.report.tables import render_figures
from specreg.telemetry.power_record import PowerRecord
from specreg.telemetry.sampler import DeviceSample, PowerTrace, Watch
from specreg.telemetry.sensor import DeviceState, Scope
from specreg.verdicts.verdict import Outcome, Verdict
from tests.unit import builders
from tests.unit.builders.nights import judge_speed, references, without_noise

SPEED = "throughput_tokens_per_s"
ENERGY, WATTS = METRICS["energy_j_per_token"], METRICS["power_w"]
CARD = builders.device()
RECORDED = RecordedDevice(
    id=CARD.id, name=CARD.name, scope=Scope.GPU, from_counter=True, sm_clock_mhz=1980.0
)


def measured(power: PowerRecord | None) -> Measurement:
    """A launch that generated 6,000 tokens in a minute."""
    replay = Replay(power=power, rounds=(builders.replayed(0, 60 * 10**9, 6000),))
    plain = builders.measurement(values_of(builders.CASE, replay))
    return dataclasses.replace(plain, replay=replay)


ROW = {ENERGY.name: 2.0, WATTS.name: 200.0, SPEED: 100.0}
KNOWN = builders.known(
    msgspec.structs.replace(builders.baseline(ROW, ROW, ROW), devices=(RECORDED,)),
    within_frac=0.002,
)
"""Three launches of a card that repeat exactly."""


def judged(name: str, power: PowerRecord | None, *before: Measurement) -> Verdict:
    """The verdict on launches of which the last took 6,000 tokens in a minute."""
    nights = without_noise(ROW)
    return judge_speed(METRICS[name], [*before, measured(power)], references(KNOWN, *nights))


@pytest.mark.parametrize(
    ("name", "energy_j", "outcome", "words"),
    [
        (ENERGY.name, 12_000, Outcome.PASS, ""),
        (ENERGY.name, 10_000, Outcome.IMPROVED, ""),
        (ENERGY.name, 14_000, Outcome.REGRESSED, ""),
        (WATTS.name, 12_900, Outcome.PASS, "more"),
        (WATTS.name, 14_000, Outcome.REGRESSED, "more by 16.7 %"),
        (WATTS.name, 10_000, Outcome.REGRESSED, "less by 16.7 %"),
    ],
)
def test_a_token_shall_not_cost_more_and_watts_shall_stay_as_they_are(
    name: str, energy_j: float, outcome: Outcome, words: str
) -> None:
    record = builders.power(energy_j)
    verdict = judged(name, record, measured(record))
    assert verdict.value == pytest.approx(energy_j / {ENERGY.name: 6000, WATTS.name: 60}[name])
    assert verdict.outcome is outcome
    assert words in sentence_of(verdict)


CARDS = "GPU-other, recorded on GPU-NVIDIA H200, and cards of one kind may differ by 20%"
OTHER_CARD = msgspec.structs.replace(CARD, id="GPU-other")
BROKEN = PowerRecord(invalid=Reason(code="POWER_INVALID", text="the sampler ended"))
SHORT = msgspec.structs.replace(builders.power(), too_short="7 s, and 10 s are needed")
MODULE = builders.power(of=msgspec.structs.replace(CARD, scope=Scope.MODULE))


@pytest.mark.parametrize(
    ("power", "outcome", "words"),
    [
        (None, Outcome.NOT_COMPARABLE, "the power of this launch wasn't sampled"),
        (BROKEN, Outcome.INVALID, "POWER_INVALID: the sampler ended"),
        (SHORT, Outcome.NOT_COMPARABLE, "7 s, and 10 s are needed"),
        (MODULE, Outcome.NOT_COMPARABLE, "module by counter, recorded as gpu by counter"),
        (builders.power(from_counter=False), Outcome.NOT_COMPARABLE, "measured as gpu by power"),
        (builders.power(13_600, of=OTHER_CARD), Outcome.PASS, ""),
        (builders.power(15_600, of=OTHER_CARD), Outcome.NOT_COMPARABLE, CARDS),
        (builders.power(8_000, of=OTHER_CARD), Outcome.NOT_COMPARABLE, "differ by 20%"),
    ],
    ids=["unwatched", "broken", "short", "module", "fields", "alike", "costs more", "costs less"],
)
def test_power_of_something_else_is_not_compared(
    power: PowerRecord | None, outcome: Outcome, words: str
) -> None:
    verdict = judged(ENERGY.name, power)
    assert verdict.outcome is outcome
    assert words in verdict.explanation
    assert judged(SPEED, power).outcome is Outcome.PASS


@pytest.mark.parametrize("name", [ENERGY.name, SPEED])
@pytest.mark.parametrize(("clock_mhz", "invalid"), [(1890.0, False), (1870.0, True)])
def test_a_gpu_that_runs_slower_than_it_was_recorded_makes_its_speeds_invalid(
    name: str, clock_mhz: float, *, invalid: bool
) -> None:
    verdict = judged(name, builders.power(sm_clock_mhz=clock_mhz))
    assert (verdict.outcome is Outcome.INVALID) == invalid
    if invalid:
        assert verdict.explanation.startswith(
            "CLOCK_LOW: NVIDIA H200 ran at 1870 MHz, it was recorded"
        )
        assert "reset its clocks (nvidia-smi -rgc or amd-smi reset --clocks)" in verdict.explanation


def test_figures_tell_what_a_token_costs_and_what_speculation_saves() -> None:
    power = builders.power(accepted_frac=0.4)
    both = msgspec.structs.replace(
        power, control=builders.power(18_000, tokens=3000).case, energy_ratio=3.0
    )
    figures = figures_of(measured(both), 1)
    assert figures.power is not None
    assert figures.power.case is not None
    case = figures.power.case
    assert case.energy_j_per_token == pytest.approx(2.0)
    assert case.above_idle_j_per_token == pytest.approx((12_000 - 60 * 100) / 6000)
    assert case.tokens_per_kwh == pytest.approx(3.6e6 / 2.0)
    assert case.energy_j_per_accepted_token == pytest.approx(12_000 / (0.4 * 6000))
    assert case.mean_w == pytest.approx(200)
    assert case.idle_w == pytest.approx(100)
    assert case.devices[0].throttled == ("power cap",)
    every = [figures, figures_of(measured(BROKEN), 1)]
    shown = " ".join(render_figures(every).split())
    for words in ("+67%", "at its power cap", "±0.1%", "POWER_INVALID: the sampler"):
        assert words in shown


def test_a_slow_gpu_is_seen_though_its_meter_is_out_of_order_and_in_an_earlier_launch() -> None:
    slow = builders.power(sm_clock_mhz=1200.0)
    assert slow.case is not None
    (device,) = slow.case.devices
    arm = msgspec.structs.replace(
        slow.case, devices=(msgspec.structs.replace(device, energy_j=None),)
    )
    broken = msgspec.structs.replace(slow, case=arm, invalid="POWER_INVALID: 1.7 times")
    earlier = judged(SPEED, builders.power(), measured(slow))
    for verdict in (judged(ENERGY.name, broken), judged(SPEED, broken), earlier):
        assert verdict.explanation.startswith("CLOCK_LOW: ")


@pytest.mark.parametrize(
    ("again_j", "outcome"), [(14_000, Outcome.REGRESSED), (10_000, Outcome.PASS)]
)
def test_watts_that_go_the_other_way_on_a_fresh_launch_confirm_nothing(
    again_j: float, outcome: Outcome
) -> None:
    first = measured(builders.power(14_000))
    assert judged(WATTS.name, builders.power(again_j), first).outcome is outcome


@dataclass(slots=True)
class Sampler:
    """One that ended, or didn't, and what it left."""

    samples: list[DeviceSample]
    why: str

    def traces(self, until_ns: int) -> tuple[Sequence[PowerTrace], str]:
        assert until_ns
        return (PowerTrace(device=CARD, samples=self.samples),), self.why


def power_under(sampler: Sampler, error: str | None, invalid: dict[Family, Reason]) -> PowerRecord:
    """The power of a replay under a load whose one request failed, or didn't."""
    replay = measured(None).replay
    assert replay is not None
    (part,) = replay.rounds
    failed = msgspec.structs.replace(part.traces[0], error=error)
    block = dataclasses.replace(part, traces=(failed,))
    arm, nobody = Arm(case=builders.CASE, server=builders.server()), cast("Clients", None)
    replayed = ArmReplay(arm=arm, clients=nobody, rounds=[part], block=block, invalid=invalid)
    return replayed.power(cast("Watch", sampler), (0, 0), {17})


def test_a_request_that_fails_under_load_for_power_makes_power_alone_invalid() -> None:
    invalid: dict[Family, Reason] = {}
    power = power_under(Sampler([], ""), "HTTP 500", invalid)
    assert str(power.invalid).startswith("POWER_INVALID: REQUEST_FAILED: 1 of 1 requests failed")
    assert invalid == {}


@pytest.mark.parametrize(
    ("mask", "pid", "reason"), [(0x40, 17, "THROTTLED"), (0, 99, "DEVICE_SHARED"), (0, 17, "")]
)
def test_what_a_dead_sampler_had_seen_counts(mask: int, pid: int, reason: str) -> None:
    state = DeviceState(throttle_mask=mask, temperature_c=90)
    seen = DeviceSample(device_index=0, at_ns=10**9, state=state, pids=(17, pid))
    invalid: dict[Family, Reason] = {}
    power = power_under(Sampler([seen], "the sampler of power ended"), None, invalid)
    assert str(power.invalid).startswith("POWER_INVALID: the sampler of power ended")
    assert {invalidity.code for invalidity in invalid.values()} == ({reason} if reason else set())
    assert invalid.keys() == (set(Family) - {Family.ACCEPTANCE} if reason else set())


@pytest.mark.parametrize("replays", [1, 3])
def test_energy_per_accepted_token_counts_no_replay_without_its_acceptance(replays: int) -> None:
    """The prompts are replayed again for their speeds, after the acceptance was read."""
    block = builders.replayed(10**9, 61 * 10**9, 6000)
    counts = StepCounts(steps=50, accepted=40, proposed=150, position_counts=(30, 8, 2))
    replayed = ArmReplay(
        arm=Arm(case=builders.CASE, server=builders.server()),
        clients=cast("Clients", None),
        rounds=[builders.replayed(0, 10**9, 100)] * replays,
        block=block,
        acceptance=builders.acceptance(counts),
    )
    at_200_w = DeviceState(average_mw=200_000)
    samples = [
        DeviceSample(device_index=0, at_ns=at_ns, energy_mj=at_ns // 5000, state=at_200_w)
        for at_ns in range(5 * 10**8, 62 * 10**9, 10**8)
    ]
    power = replayed.power(cast("Watch", Sampler(samples, "")), (0, 0), set())
    assert power.case is not None
    # Of 100 tokens 40 were accepted drafts.
    assert power.case.energy_j_per_accepted_token == pytest.approx(12_000 / (0.4 * 6000), rel=0.01)
