"""The truth table of the outcomes: a verdict is green only where something was compared."""

import dataclasses
import math
from typing import Any

import msgspec
import pytest

from specreg.acceptance.record import AcceptanceRecord, RoundAcceptance, Source, StepCounts, View
from specreg.baselines.comparison import CaseBaselines, compare
from specreg.baselines.schema import Baseline, stored_acceptance
from specreg.core.families import Family
from specreg.core.reasons import Reason
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import METRICS, Metric, Replay, acceptance_value
from specreg.stats.intervals import Effect, Look, Spread
from specreg.stats.variance import Variance
from specreg.verdicts.acceptance_nights import AcceptanceNights, LastingLoss
from specreg.verdicts.detection import detectable, detects_against, nights_to_hold
from specreg.verdicts.judge import Reference, judge_acceptance, judge_effect, outcome_of
from specreg.verdicts.verdict import Lack, Outcome, Verdict
from tests.unit import builders
from tests.unit.builders.nights import judge_speed, references, without_noise

LENGTH = METRICS["acceptance_length_tokens"]
THROUGHPUT = METRICS["throughput_tokens_per_s"]
TPOT = METRICS["tpot_p50_ms"]
RATE = METRICS["acceptance_rate_frac"]
HINT = "pytest -k vllm-draft_model-toy-toy-c2- --update-baselines"
PASS, IMPROVED, REGRESSED = Outcome.PASS, Outcome.IMPROVED, Outcome.REGRESSED
INCONCLUSIVE, INVALID = Outcome.INCONCLUSIVE, Outcome.INVALID
NO_BASELINE, NOT_COMPARABLE = Outcome.NO_BASELINE, Outcome.NOT_COMPARABLE
known = builders.known


def judged(
    metric: Metric, measurement: Measurement, of: CaseBaselines, look: Look = Look.FULL
) -> Verdict:
    """The verdict on one launch; a speed is judged on two of them, after many steady nights."""
    if metric.by_launch:
        usual = of.exact.launches[0] if of.exact and of.exact.launches else {}
        case_id = measurement.case.id
        nights = without_noise(usual, case_id=case_id)
        compared_with = references(of, *nights, case_ids=(case_id,))
        return judge_speed(metric, [measurement] * 2, compared_with)
    return judge_acceptance(metric, compare([measurement], of), look)


def of_length(length: float) -> StepCounts:
    """A thousand steps of an acceptance length of 1..4 tokens."""
    accepted = round((length - 1) * 1000)
    first = min(accepted, 1000)
    second = min(accepted - first, 1000)
    positions = (first, second, accepted - first - second)
    return StepCounts(steps=1000, accepted=accepted, proposed=3000, position_counts=positions)


@pytest.mark.parametrize(
    ("low", "estimate", "high", "outcome"),
    [
        pytest.param(0.051, 0.06, 0.07, IMPROVED, id="wholly-above-the-tolerance"),
        pytest.param(0.05, 0.06, 0.07, PASS, id="reaches-the-tolerance"),
        pytest.param(-0.049, 0.06, 0.2, PASS, id="better-perhaps"),
        pytest.param(-0.049, 0.0, 0.049, PASS, id="the-same"),
        pytest.param(-0.049, -0.03, -0.01, PASS, id="worse-and-within-tolerance"),
        pytest.param(-0.05, -0.03, -0.01, INCONCLUSIVE, id="worse-perhaps-too-much"),
        pytest.param(-0.2, 0.0, 0.2, INCONCLUSIVE, id="anything"),
        pytest.param(-0.2, 0.06, 0.3, INCONCLUSIVE, id="anything-and-looks-better"),
        pytest.param(-0.2, -0.06, 0.0, INCONCLUSIVE, id="looks-worse-and-may-be-nothing"),
        pytest.param(-0.2, -0.06, -0.001, REGRESSED, id="worse-and-looks-too-much"),
        pytest.param(-0.2, -0.05, -0.001, INCONCLUSIVE, id="just-as-much-as-tolerated"),
        pytest.param(-0.3, -0.2, -0.1, REGRESSED, id="wholly-below-the-tolerance"),
    ],
)
def test_an_outcome_looks_at_the_whole_interval(
    low: float, estimate: float, high: float, outcome: Outcome
) -> None:
    assert outcome_of(estimate, low, high, 0.05) is outcome


@pytest.mark.parametrize(
    ("low", "estimate", "high", "outcome"),
    [
        (-0.09, 0.0, 0.09, PASS),
        (0.01, 0.05, 0.09, PASS),
        (0.01, 0.11, 0.2, REGRESSED),
        (-0.2, -0.11, -0.01, REGRESSED),
        (0.01, 0.09, 0.2, INCONCLUSIVE),
        (-0.01, 0.11, 0.2, INCONCLUSIVE),
        (-0.1, 0.0, 0.0, INCONCLUSIVE),
        (0.0, 0.0, 0.1, INCONCLUSIVE),
    ],
)
def test_a_change_either_way_is_judged_by_its_whole_interval(
    low: float, estimate: float, high: float, outcome: Outcome
) -> None:
    assert outcome_of(estimate, low, high, 0.1, two_sided=True) is outcome


@pytest.mark.parametrize("outcome", Outcome)
def test_a_test_is_green_only_when_something_was_compared_or_measured(outcome: Outcome) -> None:
    verdict = Verdict(case_id="case", metric="metric", outcome=outcome)
    assert verdict.holds == (outcome in {PASS, IMPROVED, Outcome.MEASURED})
    assert verdict.fails == (not verdict.holds and outcome is not NOT_COMPARABLE)


@pytest.mark.parametrize(
    ("measured", "recorded", "tolerance_frac", "outcome"),
    [
        (1.951, 2.0, 0.05, PASS),
        (2.049, 2.0, 0.05, PASS),
        (1.949, 2.0, 0.05, REGRESSED),
        (2.051, 2.0, 0.05, IMPROVED),
        pytest.param(1.85, 2.0, 0.2, PASS, id="own-tolerance"),
        pytest.param(1.75, 2.0, 0.2, REGRESSED, id="own-tolerance-worse"),
        pytest.param(1.93, 2.0, 0.08, PASS, id="elsewhere"),
        pytest.param(1.91, 2.0, 0.08, REGRESSED, id="elsewhere-worse"),
    ],
)
def test_a_length_is_judged_as_what_it_adds_to_one(
    measured: float, recorded: float, tolerance_frac: float, outcome: Outcome
) -> None:
    """1.949 is 2.6 % below 2.0, but 5.1 % of what speculation gains; elsewhere 8 % are fine."""
    tolerances = ((LENGTH.name, 0.2),) if tolerance_frac == 0.2 else ()
    case = builders.with_judging(builders.CASE, tolerances=tolerances)
    here = tolerance_frac != 0.08
    environment = builders.ENVIRONMENT if here else builders.OTHER_ENVIRONMENT
    baseline = builders.baseline(of=of_length(recorded), environment=environment)
    measurement = builders.measurement({LENGTH.name: measured}, of=of_length(measured), case=case)
    verdict = judged(LENGTH, measurement, known(baseline) if here else known(nearest=baseline))
    assert (verdict.outcome, verdict.comparison.tolerance_frac) == (outcome, tolerance_frac)
    assert verdict.comparison.against == environment.name
    assert verdict.value == pytest.approx(measured)
    if recorded > 1:
        assert verdict.comparison.change_frac == pytest.approx(measured - recorded)


def spread_lengths(*accepted: int) -> AcceptanceRecord:
    """A record of prompts with ten steps each and so many drafts accepted."""
    counts = [
        StepCounts(steps=10, accepted=n, proposed=30, position_counts=(n - n // 3, n // 3, 0))
        for n in accepted
    ]
    return builders.acceptance_of(
        [
            builders.prompt_acceptance(prompt_counts, prompt_id=f"chat-{n}")
            for n, prompt_counts in enumerate(counts)
        ]
    )


def judge_records(
    measured: AcceptanceRecord, recorded: AcceptanceRecord, look: Look, metric: Metric = LENGTH
) -> Verdict:
    """The verdict on the length of a record, or on another metric, against another record."""
    values = {metric.name: acceptance_value(metric, measured) or 0.0}
    measurement = dataclasses.replace(
        builders.measurement(values), replay=Replay(acceptance=measured)
    )
    baseline = msgspec.structs.replace(builders.baseline(), acceptance=stored_acceptance(recorded))
    return judged(metric, measurement, known(baseline), look)


ALIKE, STEADY = spread_lengths(15, 15, 15, 15, 15, 16, 15, 15, 15, 14), spread_lengths(*[15] * 10)
WORSE = spread_lengths(12, 13, 12, 13, 12, 13, 14, 12)
BEFORE = spread_lengths(15, 14, 16, 15, 14, 15, 15, 15)
DOUBT, DOUBTED = spread_lengths(10, 20, 12, 18, 15, 16), spread_lengths(20, 10, 18, 12, 15, 15)
FEW, SUM = spread_lengths(*[15] * 4), dataclasses.replace(STEADY, prompts=())


@pytest.mark.parametrize(
    ("measured", "recorded", "look", "outcome", "words"),
    [
        pytest.param(ALIKE, STEADY, Look.FULL, PASS, "", id="alike"),
        pytest.param(DOUBT, DOUBTED, Look.FULL, INCONCLUSIVE, "with 6 prompts", id="doubt"),
        pytest.param(WORSE, BEFORE, Look.FULL, REGRESSED, "by category: chat ", id="worse"),
        pytest.param(WORSE, BEFORE, Look.EARLY, INCONCLUSIVE, "", id="worse-and-early"),
        pytest.param(FEW, FEW, Look.FULL, INCONCLUSIVE, "4 shared prompts, 5 are", id="few"),
        pytest.param(SUM, SUM, Look.FULL, INCONCLUSIVE, "reports only the sum of all", id="a-sum"),
    ],
)
def test_acceptance_is_judged_by_its_prompts(
    measured: AcceptanceRecord, recorded: AcceptanceRecord, look: Look, outcome: Outcome, words: str
) -> None:
    verdict = judge_records(measured, recorded, look)
    assert verdict.outcome is outcome
    assert words in verdict.explanation
    if outcome is PASS:
        low_frac = verdict.comparison.low_frac or 0.0
        high_frac = verdict.comparison.high_frac or 0.0
        assert high_frac > 0
        assert (1 + low_frac) * (1 + high_frac) == pytest.approx(1)


def test_a_change_of_speed_says_what_it_comes_from() -> None:
    """AL from 2.0 to 1.8 is -10 %; of -19 % in all the other -10 % is the step's."""
    for name, method, cause in (
        (THROUGHPUT.name, "eagle3", "-10.0% by acceptance, -10.0% by the cost of a step"),
        (THROUGHPUT.name, "ngram", ""),  # it doesn't draft in every step
        ("ttft_p50_ms", "eagle3", ""),
    ):
        case = builders.with_request(builders.on_server(method=method), prompts=6)
        sign = METRICS[name].sign
        baseline = builders.baseline({name: 100.0}, {name: 100.0}, of=of_length(2.0))
        values = {name: 100.0 * 0.81**sign}
        measurement = builders.measurement(values, of=of_length(1.8), case=case)
        verdict = judged(METRICS[name], measurement, known(baseline))
        assert verdict.outcome is REGRESSED
        assert str(verdict.cause or "") == cause


QUEUE = Metric(name="queue_ms", family=Family.LATENCY, counters=("queue_s",), sign=-1)


def test_a_metric_whose_counter_the_server_lacks_is_left_out_alone() -> None:
    verdict = judged(QUEUE, builders.measurement({}), known(builders.baseline({QUEUE.name: 5.0})))
    assert verdict.outcome is NOT_COMPARABLE


def test_a_wait_of_nothing_improved() -> None:
    baseline = builders.baseline({QUEUE.name: 5.0}, {QUEUE.name: 5.1})
    launch = builders.measurement({QUEUE.name: 0.0})
    verdict = judge_speed(QUEUE, [launch, launch], references(known(baseline)))
    assert verdict.outcome is IMPROVED


def test_a_loss_is_told_by_category_of_the_prompts_that_both_have() -> None:
    """The baseline's further prompts are of another length and don't count."""
    shared = builders.acceptance(of_length(2.0), prompts=6)
    further = builders.prompt_acceptance(of_length(3.0), prompt_id="chat-9")
    extended = builders.acceptance_of([*shared.prompts, further])
    verdict = judge_records(builders.acceptance(of_length(1.5), prompts=6), extended, Look.FULL)
    by_draft = "no. 1 100.0% -> 50.0%, no. 2 0.0% -> 0.0%"
    where = f"by draft, where those before it were accepted: {by_draft}"
    assert verdict.reason == Reason.of(
        "where_lost", places=f"accepted drafts by category: chat 1 -> 0.5; {where}"
    )


@pytest.mark.parametrize(
    ("metric", "lengths", "words"),
    [
        ("acceptance_pos1_frac", (1.67, 1.33), "by category: chat 67% -> 33%"),
        ("acceptance_length_tokens", (1.67, 1.33), "accepted drafts by category: chat 0.67 -> "),
        ("acceptance_length_tokens", (1.012, 1.008), "accepted drafts by category: chat 0.012 -> "),
    ],
)
def test_a_loss_by_category_has_the_unit_of_its_metric(
    metric: str, lengths: tuple[float, float], words: str
) -> None:
    old, new = (builders.acceptance(of_length(length), prompts=6) for length in lengths)
    verdict = judge_records(new, old, Look.FULL, METRICS[metric])
    assert verdict.outcome is REGRESSED
    assert verdict.explanation.startswith(words)


@pytest.mark.parametrize(
    ("length", "tolerance_frac", "outcome"),
    [
        (1.93, None, PASS),
        (1.91, None, REGRESSED),
        (1.85, 0.1, PASS),  # a tenth of AL 2.0 is a fifth of AL - 1
        (1.75, 0.1, REGRESSED),
        (1.91, 0.5, REGRESSED),  # half of AL 2.0 is all of AL - 1: no such tolerance
    ],
)
def test_a_published_figure_is_better_than_none(
    length: float, tolerance_frac: float | None, outcome: Outcome
) -> None:
    figure = builders.published(tolerance_frac=tolerance_frac)
    values = {LENGTH.name: length, THROUGHPUT.name: 1.0, RATE.name: 0.5}
    measurement = builders.measurement(values, of=of_length(length))
    verdict, speed, rate = (
        judged(metric, measurement, known(published=figure))
        for metric in (LENGTH, THROUGHPUT, RATE)
    )
    assert (verdict.outcome, verdict.comparison.against) == (outcome, "published")
    assert (speed.outcome, rate.outcome) == (NOT_COMPARABLE, NOT_COMPARABLE)


OF = of_length(2.0)
VALUES = {LENGTH.name: 2.0, THROUGHPUT.name: 9.0}
MEASURED = builders.measurement(VALUES, of=OF)
MEASURED_RATE = builders.measurement({RATE.name: 0.5}, of=OF)
SPEEDS = {THROUGHPUT.name: 9.0}
RECORDED = builders.baseline(SPEEDS, SPEEDS, of=OF)
ELSEWHERE = builders.baseline(SPEEDS, SPEEDS, of=OF, environment=builders.OTHER_ENVIRONMENT)
OTHER = msgspec.structs.replace(
    RECORDED, case=dataclasses.replace(builders.SETTINGS, dtype="auto", concurrency=4)
)
SPEEDUP = METRICS["speedup_ratio"]
GAIN = builders.measurement({SPEEDUP.name: 1.4})
BOTH = msgspec.structs.replace(builders.published(), speedup_ratio=1.5)
TOLD = known(published=BOTH)
GAIN_TOLD = known(published=msgspec.structs.replace(BOTH, acceptance_length_tokens=None))
FEWER = dataclasses.replace(
    known(RECORDED), settings=dataclasses.replace(builders.SETTINGS, num_prompts=20)
)
LEARNS = dataclasses.replace(MEASURED, case=builders.on_server(method="suffix"))
HOT = Reason.of("THROTTLED", device="GPU 0", share_frac=0.5, causes="heat")
DISABLED = Reason.of("SPEC_DISABLED", counts="20, 0, 0")
BROKEN = dataclasses.replace(MEASURED, invalid=dict.fromkeys(Family, DISABLED))


def tagged(**tags: Any) -> Baseline:  # noqa: ANN401 - of any field
    """A baseline whose acceptance was counted otherwise."""
    return msgspec.structs.replace(
        RECORDED, acceptance=msgspec.structs.replace(builders.stored(OF), **tags)
    )


ENERGY = METRICS["energy_j_per_token"]
MEASURED_ENERGY = dataclasses.replace(
    builders.measurement({ENERGY.name: 2.0}), replay=Replay(rounds=(), power=builders.power())
)
SGLANG = known(tagged(source=Source.SGLANG_REQUEST))
EMPTY = known(builders.baseline())
WITHOUT_PROPOSED = [
    msgspec.structs.replace(prompt, proposed=None) for prompt in builders.stored(OF).prompts
]
NEWER_RATE = known(tagged(prompts=tuple(WITHOUT_PROPOSED)))
OF_TPOT = builders.baseline({TPOT.name: 8.0}, {TPOT.name: 8.0})
HERE = builders.ENVIRONMENT.name
TOLD_GAIN = ", published is 1.5 (80 prompts)"
NOWHERE = Reason.of("nothing_recorded", environment=HERE, published="")
PUBLISHED_ONLY = Reason.of("nothing_recorded", environment=HERE, published=TOLD_GAIN)
PUBLISHED_ELSEWHERE = Reason.of(
    "machine_differs",
    environment=HERE,
    published=TOLD_GAIN,
    quantity="speed",
    source="a published figure",
)
CHANGED = Reason.of("settings_changed", differing="concurrency: 4 -> 2, dtype: auto -> float32")


def elsewhere(quantity: str) -> Reason:
    source = f"'{ELSEWHERE.environment.name}'"
    return Reason.of(
        "machine_differs", environment=HERE, published="", quantity=quantity, source=source
    )


def newer_than_baseline(metric: Metric) -> Reason:
    return Reason.of("not_recorded_yet", metric=metric.name, source="baseline")


def recorded_alone(quantity: str) -> Reason:
    return Reason.of("acceptance_recorded_alone", quantity=quantity)


def lacking(metric: Metric) -> Reason:
    return Reason.of("not_in_baseline", metric=metric.name)


def of_twenty_prompts(figure: str) -> Reason:
    return Reason.of("fewer_prompts", prompts="20 prompts", figure=figure)


def of_source(recorded: str) -> Reason:
    return Reason.of("source_changed", measured="vllm_request (verifier)", recorded=recorded)


@pytest.mark.parametrize(
    ("metric", "measurement", "of", "outcome", "reason"),
    [
        (LENGTH, MEASURED, known(), NO_BASELINE, NOWHERE),
        (THROUGHPUT, MEASURED, known(), NO_BASELINE, NOWHERE),
        (LENGTH, MEASURED, known(OTHER), NO_BASELINE, CHANGED),
        (THROUGHPUT, MEASURED, known(OTHER), NO_BASELINE, CHANGED),
        (THROUGHPUT, MEASURED, known(nearest=ELSEWHERE), NOT_COMPARABLE, elsewhere("speed")),
        (SPEEDUP, GAIN, TOLD, NOT_COMPARABLE, PUBLISHED_ELSEWHERE),
        (SPEEDUP, GAIN, GAIN_TOLD, NO_BASELINE, PUBLISHED_ONLY),
        (THROUGHPUT, MEASURED, GAIN_TOLD, NO_BASELINE, NOWHERE),
        (LENGTH, MEASURED, GAIN_TOLD, NO_BASELINE, NOWHERE),
        (THROUGHPUT, MEASURED, known(OF_TPOT), NOT_COMPARABLE, newer_than_baseline(THROUGHPUT)),
        (THROUGHPUT, MEASURED, EMPTY, NOT_COMPARABLE, recorded_alone("speed")),
        (LENGTH, MEASURED, EMPTY, NO_BASELINE, lacking(LENGTH)),
        (RATE, MEASURED_RATE, EMPTY, NO_BASELINE, lacking(RATE)),
        (RATE, MEASURED_RATE, NEWER_RATE, NOT_COMPARABLE, newer_than_baseline(RATE)),
        (THROUGHPUT, MEASURED, FEWER, NOT_COMPARABLE, of_twenty_prompts("speed")),
        (ENERGY, MEASURED_ENERGY, FEWER, NOT_COMPARABLE, of_twenty_prompts("power")),
        (ENERGY, MEASURED_ENERGY, EMPTY, NOT_COMPARABLE, recorded_alone("power")),
        (ENERGY, MEASURED_ENERGY, known(nearest=ELSEWHERE), NOT_COMPARABLE, elsewhere("power")),
        (LENGTH, LEARNS, FEWER, NOT_COMPARABLE, of_twenty_prompts("what a drafter learns")),
        (LENGTH, MEASURED, SGLANG, NOT_COMPARABLE, of_source("sglang_request (verifier)")),
        (
            LENGTH,
            MEASURED,
            known(tagged(view=View.EMITTED)),
            NOT_COMPARABLE,
            of_source("vllm_request (emitted)"),
        ),
        (LENGTH, BROKEN, known(), INVALID, DISABLED),
        (LENGTH, BROKEN, known(RECORDED), INVALID, DISABLED),
        (TPOT, MEASURED, known(RECORDED), INVALID, Reason.of("METRIC_ABSENT")),
    ],
)
def test_what_cannot_be_compared_says_why_and_is_never_green(
    metric: Metric, measurement: Measurement, of: CaseBaselines, outcome: Outcome, reason: Reason
) -> None:
    verdict = judged(metric, measurement, of)
    assert verdict.outcome is outcome
    assert verdict.reason is not None
    assert (verdict.reason.code, verdict.reason.text) == (reason.code, reason.text)
    assert (verdict.lacks is not None) == verdict.explanation.endswith(HINT)
    assert (verdict.lacks is Lack.SOURCE) == verdict.has_code("source_changed")


def test_what_spoils_speed_leaves_acceptance_to_be_judged() -> None:
    assert judged(LENGTH, MEASURED, FEWER).outcome is PASS
    slow = dataclasses.replace(MEASURED, invalid={Family.THROUGHPUT: HOT})
    assert judged(LENGTH, slow, known(RECORDED)).outcome is PASS
    verdict = judged(THROUGHPUT, slow, known(RECORDED))
    assert (verdict.outcome, verdict.reason) == (INVALID, HOT)


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (("--engine=vllm", "--num-prompts=9"), "-toy-c2- --engine=vllm --update-baselines"),
        (("--specreg-attach=http://h:1",), "; leave out --specreg-attach to record one"),
    ],
    ids=["its-options", "attached"],
)
def test_the_hint_is_a_command_that_records(options: tuple[str, ...], hint: str) -> None:
    verdict = judged(LENGTH, MEASURED, dataclasses.replace(known(), options=options))
    assert verdict.explanation.endswith(hint)


@pytest.mark.parametrize(
    ("within_frac", "between_frac", "recorded", "decides", "launches"),
    [
        pytest.param(0.005, 0.0, 3, True, 1, id="one-tells"),
        pytest.param(0.01, 0.0, 6, True, 2, id="two-tell"),
        pytest.param(0.015, 0.0, 9, False, 5, id="five-tell"),
        pytest.param(0.05, 0.0, 3, False, 0, id="none-tells"),
        pytest.param(0.005, 0.02, 3, False, 0, id="runs-differ"),
    ],
)
def test_how_many_launches_tell_follows_from_how_they_spread(
    within_frac: float, between_frac: float, recorded: int, *, decides: bool, launches: int
) -> None:
    spread = Spread(
        within_frac=within_frac, between_frac=between_frac, freedom=16, between_freedom=16
    )
    detects = detectable(THROUGHPUT, 0.05, recorded, spread, kind="gpu")
    assert (detects.decides, detects.launches, detects.tolerance_frac) == (decides, launches, 0.05)
    assert (detects.mde_frac <= 0.05) == decides


def test_each_speed_of_a_baseline_that_has_a_spread_is_told_of() -> None:
    row = {THROUGHPUT.name: 100.0, TPOT.name: 10.0, "of_another_version": 1.0}
    spreads = {
        name: Spread(within_frac=0.01, between_frac=0.0, freedom=9, between_freedom=0)
        for name in row
    }
    del spreads[TPOT.name]
    case = builders.with_judging(builders.CASE, tolerances=((THROUGHPUT.name, 0.2),))
    detects = detects_against(builders.baseline(row, row), case, spreads)
    assert detects == {
        THROUGHPUT.name: detectable(THROUGHPUT, 0.2, 2, spreads[THROUGHPUT.name], kind="cpu")
    }


def undecided(nights: AcceptanceNights) -> Verdict:
    """The verdict on an acceptance that tonight leaves undecided."""
    evidence = compare(
        [dataclasses.replace(MEASURED, replay=Replay(acceptance=DOUBT))],
        known(msgspec.structs.replace(builders.baseline(), acceptance=stored_acceptance(DOUBTED))),
    )
    return judge_acceptance(LENGTH, evidence, Look.FULL, nights=nights)


def test_a_loss_that_lasts_is_named_with_its_first_night_whatever_one_night_tells() -> None:
    lasting = LastingLoss(
        change_frac=-0.063,
        since="20261121T030000",
        nights=4,
        software=({"engine": "0.32.0"}, {"engine": "0.33.0"}),
    )
    verdict = undecided(AcceptanceNights(nights=9, needed_nights=8, lasting=lasting))
    assert (verdict.outcome, verdict.since) == (REGRESSED, "20261121T030000")
    assert verdict.reason == Reason.of(
        "LASTING",
        change_frac=math.expm1(-0.063),
        since="2026-11-21",
        nights="4 nights",
        changes="; the engine went from 0.32.0 to 0.33.0 on that night",
    )


@pytest.mark.parametrize(
    ("error", "needed"),
    [pytest.param(0.02, 4, id="some-nights"), pytest.param(0.5, 0, id="no-number-of-nights")],
)
def test_how_many_nights_would_tell_follows_from_how_they_differ(error: float, needed: int) -> None:
    """With half of the nights against the other half, within the time of a season."""
    assert nights_to_hold(THROUGHPUT, 0.05, Variance(value=error**2, freedom=50)) == needed


@pytest.mark.parametrize(
    ("earlier", "words"),
    [
        pytest.param(4, "about 8 nights would tell, and this run is the 5th", id="too-early"),
        pytest.param(
            9,
            "about 8 nights would tell if nothing had changed, and 10 nights leave it undecided",
            id="as-many-as-would-tell",
        ),
    ],
)
def test_nights_that_would_have_told_by_then_are_not_still_to_come(
    earlier: int, words: str
) -> None:
    """A change close to the tolerance stays undecided, however many nights there are."""
    verdict = undecided(AcceptanceNights(nights=earlier, needed_nights=8))
    assert (verdict.outcome, verdict.needed_nights) == (INCONCLUSIVE, 8)
    assert verdict.has_code("undecided")
    assert f"; {words}; raise 'prompts'" in verdict.explanation


def test_an_acceptance_that_no_nights_would_tell_needs_prompts_and_no_quieter_machine() -> None:
    """The machine doesn't influence acceptance."""
    verdict = undecided(AcceptanceNights(nights=9, needed_nights=0))
    assert (verdict.outcome, verdict.needed_nights) == (INCONCLUSIVE, 0)
    assert verdict.reason is not None
    assert verdict.reason.remedy.startswith(
        "raise its tolerance in the tier, add it to 'shown' there, or raise 'prompts' in the tier"
    )


def test_undecided_acceptance_of_fewer_prompts_is_told_to_replay_more() -> None:
    """The tier has prompts enough, and `--num-prompts` takes only some of them."""
    recorded = msgspec.structs.replace(builders.baseline(), acceptance=stored_acceptance(DOUBTED))
    measured = dataclasses.replace(MEASURED, replay=Replay(acceptance=DOUBT))
    fewer = dataclasses.replace(known(recorded), settings=FEWER.settings)
    verdict = judged(LENGTH, measured, fewer)
    assert verdict.outcome is INCONCLUSIVE
    assert verdict.reason is not None
    assert verdict.reason.remedy.startswith("raise --num-prompts to about ")


@pytest.mark.parametrize(
    ("measured_length", "remedy"),
    [
        pytest.param(1.0, "choose prompts or settings", id="still-nothing"),
        pytest.param(1.5, "record one with", id="something-now"),
    ],
)
def test_a_baseline_in_which_nothing_was_accepted_never_passes(
    measured_length: float, remedy: str
) -> None:
    """The test fails, whatever the run accepted."""
    baseline = builders.baseline(of=of_length(1.0))
    length = builders.measurement({LENGTH.name: measured_length}, of=of_length(measured_length))
    verdict = judged(LENGTH, length, known(baseline))
    assert verdict.outcome is NO_BASELINE
    assert verdict.reason is not None
    expected = Reason.of("nothing_accepted", nothing="none of 18000 drafts")
    assert (verdict.reason.code, verdict.reason.text) == (expected.code, expected.text)
    assert (verdict.reason.remedy or "").startswith(remedy)


def test_a_position_that_the_baseline_never_accepted_is_not_compared() -> None:
    """Such a position has nothing to lose, while the acceptance length has."""
    position = METRICS["acceptance_pos3_frac"]
    baseline = builders.baseline(of=of_length(1.5))
    measured = builders.measurement({LENGTH.name: 1.5, position.name: 0.0}, of=of_length(1.5))
    verdict = judged(position, measured, known(baseline))
    assert verdict.outcome is NOT_COMPARABLE
    assert verdict.reason == Reason.of("position_unused", position=3)
    assert judged(LENGTH, measured, known(baseline)).outcome is PASS


def answers_with(*accepted_and_steps: tuple[int, int]) -> AcceptanceRecord:
    """A record of prompts that accepted so many drafts in so many steps, which gives the length."""
    prompts = []
    for number, (accepted, steps) in enumerate(accepted_and_steps):
        counts = StepCounts(
            steps=steps, accepted=accepted, proposed=3 * steps, position_counts=(accepted, 0, 0)
        )
        if accepted > steps:
            positions = (steps, steps, accepted - 2 * steps)
            counts = dataclasses.replace(counts, position_counts=positions)
        prompts.append(builders.prompt_acceptance(counts, prompt_id=f"chat-{number}"))
    return builders.acceptance_of(prompts)


USUAL = (30, 33)
"""Drafts accepted and steps of an answer of 64 tokens."""
LOST = (27, 36)
"""As many tokens, with 17 % fewer accepted drafts in a step."""
LOOPING = (191, 64)
"""An answer of 256 tokens that repeats itself, so that nearly all drafts are accepted."""
CUT = (8, 16)
"""An answer of 25 tokens of which few drafts were accepted."""
LONG = (110_000, 110_000)
"""An answer with more than 99 % of the steps of 31 usual ones, and fewer if 8 looping ones join."""


@pytest.mark.parametrize(
    ("measured", "outcome", "words"),
    [
        pytest.param(
            [LOOPING] * 8 + [LOST] * 32,
            REGRESSED,
            "8 of 40 prompts gave answers of another length (chat-0: 64 tokens before, 256 now;"
            " chat-1: 64 tokens before, 256 now; chat-2: 64 tokens before, 256 now); with them the"
            " change is +58.1%",
            id="looping-answers-hide-a-loss",
        ),
        pytest.param(
            [LOOPING] * 8 + [USUAL] * 32,
            PASS,
            "with them the change is +74.5%",
            id="looping-answers-are-no-improvement",
        ),
        pytest.param(
            [CUT] * 8 + [USUAL] * 32,
            INCONCLUSIVE,
            "without them the change is +0.0%",
            id="answers-cut-short-are-no-loss-alone",
        ),
        pytest.param([LOST] * 40, REGRESSED, "", id="lengths-unchanged"),
        pytest.param(
            [LOOPING] * 36 + [USUAL] * 4,
            INCONCLUSIVE,
            "without them there is no interval: 4 shared prompts, 5 are needed",
            id="too-few-others",
        ),
        pytest.param(
            [LOOPING] * 8 + [USUAL] * 31 + [LONG],
            INCONCLUSIVE,
            "without them there is no interval: fewer than 5 prompts have a step, or one has",
            id="one-other-has-nearly-all-steps",
        ),
    ],
)
def test_answers_of_another_length_do_not_carry_a_verdict_alone(
    measured: list[tuple[int, int]], outcome: Outcome, words: str
) -> None:
    recorded = [*[USUAL] * 39, LONG if LONG in measured else USUAL]
    verdict = judge_records(answers_with(*measured), answers_with(*recorded), Look.FULL)
    assert verdict.outcome is outcome
    assert words in verdict.explanation
    assert verdict.has_code("LENGTHS_CHANGED") == bool(words)


def counted_in_rounds(record: AcceptanceRecord) -> AcceptanceRecord:
    """The same acceptance, of which the counters were read after each prompt."""
    rounds = tuple(
        RoundAcceptance(
            prompt_ids=(prompt.prompt_id,),
            counts=prompt.counts,
            completion_tokens=prompt.completion_tokens,
            requests=1,
        )
        for prompt in record.prompts
    )
    return dataclasses.replace(record, source=Source.VLLM_COUNTERS, prompts=(), rounds=rounds)


COUNTED = counted_in_rounds(BEFORE)


@pytest.mark.parametrize(
    ("measured", "recorded", "outcome"),
    [
        pytest.param(BEFORE, COUNTED, PASS, id="upgraded"),
        pytest.param(WORSE, COUNTED, REGRESSED, id="upgraded-and-worse"),
        pytest.param(counted_in_rounds(WORSE), BEFORE, REGRESSED, id="downgraded-and-worse"),
        pytest.param(COUNTED, COUNTED, PASS, id="both-by-counters"),
        pytest.param(
            BEFORE, dataclasses.replace(COUNTED, rounds=()), NOT_COMPARABLE, id="of-a-sum"
        ),
    ],
)
def test_an_engine_that_tells_its_acceptance_in_another_way_is_compared_by_what_both_tell(
    measured: AcceptanceRecord, recorded: AcceptanceRecord, outcome: Outcome
) -> None:
    """As vLLM before and after 0.29; the counters were read between single prompts."""
    assert judge_records(measured, recorded, Look.FULL).outcome is outcome


def test_one_prompt_with_all_steps_decides_nothing() -> None:
    """Its deviation from the ratio of all is 0, so that any change would seem certain."""
    no_steps = builders.counts(0, 0)
    idle = [builders.prompt_acceptance(no_steps, prompt_id=f"idle-{n}") for n in range(7)]

    def alone(accepted: int) -> AcceptanceRecord:
        only = builders.prompt_acceptance(builders.counts(900 - accepted, accepted), prompt_id="a")
        return builders.acceptance_of([*idle, only])

    verdict = judge_records(alone(300), alone(400), Look.FULL)
    assert verdict.outcome is INCONCLUSIVE
    assert "one has nearly all steps" in verdict.explanation


@pytest.mark.parametrize("change", [0.08, -0.08])
def test_a_change_either_way_must_be_as_clear_as_the_number_of_cases_asks_for(
    change: float,
) -> None:
    effect = Effect(estimate_frac=change, error_frac=0.028, freedom=60)
    power = METRICS["power_w"]
    reference = Reference(100.0, "here", 0.05)
    outcome, _ = judge_effect(power, effect, reference, 0.004, 0.004 / 72)
    assert outcome is INCONCLUSIVE
