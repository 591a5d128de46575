"""The truth table of the outcomes: a verdict is green only where something was compared."""

import dataclasses
import math
from collections.abc import Mapping

import msgspec
import pytest

from specreg.acceptance.record import AcceptanceRecord, Source, StepCounts, View, Weighting
from specreg.baselines.comparison import CaseBaselines, compare, expected_value
from specreg.baselines.published import PublishedFigure
from specreg.baselines.schema import Baseline, stored_acceptance
from specreg.matrix.case import Case
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import METRICS, Family, Metric, Replay
from specreg.measurement.validity import all_invalid
from specreg.stats.alpha_spending import Look
from specreg.stats.intervals import Spread, t_quantile
from specreg.verdicts.judge import (
    Outcome,
    Verdict,
    first_look,
    judge,
    outcome_of,
    record_hint,
)
from tests.unit import builders

LENGTH = METRICS["acceptance_length_tokens"]
THROUGHPUT = METRICS["throughput_tokens_per_s"]
TPOT = METRICS["tpot_p50_ms"]
RATE = METRICS["acceptance_rate_frac"]
HINT = "pytest tests/perf -k vllm-draft_model-toy-toy-c2- --update-baselines"


def known(
    exact: Baseline | None = None,
    nearest: Baseline | None = None,
    *,
    published: PublishedFigure | None = None,
    within_frac: float = 0.0,
) -> CaseBaselines:
    """What is known, with launches that differ by so much wherever speed is known."""
    spread = Spread(within_frac=within_frac, between_frac=0.0, freedom=16)
    spreads = {name: spread for row in exact.launches for name in row} if exact else {}
    return CaseBaselines(
        environment=builders.ENVIRONMENT,
        settings=builders.SETTINGS,
        exact=exact,
        nearest=nearest,
        published=published,
        spreads=spreads,
    )


def judged(
    metric: Metric, measurement: Measurement, of: CaseBaselines, look: Look | None = None
) -> Verdict:
    """The verdict on one launch."""
    return judge(metric, compare([measurement], of), look or first_look(metric))


def of_length(length: float) -> StepCounts:
    """A thousand steps of an acceptance length of 1..4 tokens."""
    accepted = round((length - 1) * 1000)
    first = min(accepted, 1000)
    second = min(accepted - first, 1000)
    positions = (first, second, accepted - first - second)
    return StepCounts(steps=1000, accepted=accepted, proposed=3000, position_counts=positions)


def judge_length(
    measured: float, recorded: float, *, exact: bool = True, case: Case = builders.CASE
) -> Verdict:
    """The verdict on an acceptance length that is the same in every prompt."""
    environment = builders.ENVIRONMENT if exact else builders.OTHER_ENVIRONMENT
    baseline = builders.baseline(of=of_length(recorded), environment=environment)
    measurement = builders.measurement({LENGTH.name: measured}, of=of_length(measured), case=case)
    return judged(LENGTH, measurement, known(baseline) if exact else known(nearest=baseline))


def judge_speed(name: str, measured: float, *launches: float, within_frac: float = 0.0) -> Verdict:
    """The verdict on a speed, against launches that repeat exactly unless told otherwise."""
    baseline = builders.baseline(*({name: launch} for launch in launches))
    measurement = builders.measurement({name: measured})
    return judged(METRICS[name], measurement, known(baseline, within_frac=within_frac))


@pytest.mark.parametrize(
    ("low", "estimate", "high", "outcome"),
    [
        pytest.param(0.051, 0.06, 0.07, Outcome.IMPROVED, id="wholly-above-the-tolerance"),
        pytest.param(0.05, 0.06, 0.07, Outcome.PASS, id="reaches-the-tolerance"),
        pytest.param(-0.049, 0.06, 0.2, Outcome.PASS, id="better-perhaps"),
        pytest.param(-0.049, 0.0, 0.049, Outcome.PASS, id="the-same"),
        pytest.param(-0.049, -0.03, -0.01, Outcome.PASS, id="worse-and-within-tolerance"),
        pytest.param(-0.05, -0.03, -0.01, Outcome.INCONCLUSIVE, id="worse-perhaps-too-much"),
        pytest.param(-0.2, 0.0, 0.2, Outcome.INCONCLUSIVE, id="anything"),
        pytest.param(-0.2, 0.06, 0.3, Outcome.INCONCLUSIVE, id="anything-and-looks-better"),
        pytest.param(-0.2, -0.06, 0.0, Outcome.INCONCLUSIVE, id="looks-worse-and-may-be-nothing"),
        pytest.param(-0.2, -0.06, -0.001, Outcome.REGRESSED, id="worse-and-looks-too-much"),
        pytest.param(-0.2, -0.05, -0.001, Outcome.INCONCLUSIVE, id="just-as-much-as-tolerated"),
        pytest.param(-0.3, -0.2, -0.1, Outcome.REGRESSED, id="wholly-below-the-tolerance"),
    ],
)
def test_an_outcome_looks_at_the_whole_interval(
    low: float, estimate: float, high: float, outcome: Outcome
) -> None:
    assert outcome_of(estimate, low, high, 0.05) is outcome


@pytest.mark.parametrize(
    ("measured", "outcome"),
    [
        (2.0, Outcome.PASS),
        (1.951, Outcome.PASS),
        (2.049, Outcome.PASS),
        (1.949, Outcome.REGRESSED),
        (2.051, Outcome.IMPROVED),
    ],
)
def test_a_length_is_judged_as_what_it_adds_to_one(measured: float, outcome: Outcome) -> None:
    """1.949 is 2.6 % below 2.0, but 5.1 % of what speculation gains."""
    verdict = judge_length(measured, 2.0)
    assert verdict.outcome is outcome
    assert verdict.change_frac == pytest.approx(measured - 2.0)
    assert verdict.value == pytest.approx(measured)
    assert (verdict.expected, verdict.tolerance_frac) == (2.0, 0.05)


@pytest.mark.parametrize(
    ("measured", "outcome"),
    [(1.93, Outcome.PASS), (1.91, Outcome.REGRESSED), (2.09, Outcome.IMPROVED)],
)
def test_acceptance_is_judged_more_loosely_against_another_machine(
    measured: float, outcome: Outcome
) -> None:
    verdict = judge_length(measured, 2.0, exact=False)
    assert (verdict.outcome, verdict.tolerance_frac) == (outcome, 0.08)
    assert verdict.against == "cpu-intel-xeon-2.50ghz-avx2-8c"
    assert bool(verdict.reason) == (outcome is Outcome.REGRESSED)


def test_a_speed_is_expected_at_the_geometric_mean_of_its_launches() -> None:
    baseline = builders.baseline({"speedup_ratio": 1.0}, {"speedup_ratio": 4.0}, of=of_length(2.0))
    assert expected_value(METRICS["speedup_ratio"], baseline) == pytest.approx(2.0)
    assert expected_value(LENGTH, baseline) == 2.0
    assert expected_value(TPOT, baseline) is None
    assert expected_value(LENGTH, builders.baseline()) is None


@pytest.mark.parametrize(("measured", "outcome"), [(1.0, Outcome.PASS), (1.2, Outcome.IMPROVED)])
def test_a_baseline_of_nothing_can_be_kept_or_improved(measured: float, outcome: Outcome) -> None:
    assert judge_length(measured, 1.0).outcome is outcome


def test_a_case_may_have_a_tolerance_of_its_own() -> None:
    case = dataclasses.replace(builders.CASE, tolerances=((LENGTH.name, 0.2),))
    assert judge_length(1.85, 2.0, case=case).outcome is Outcome.PASS
    assert judge_length(1.75, 2.0, case=case).outcome is Outcome.REGRESSED


@pytest.mark.parametrize(
    ("name", "measured", "outcome"),
    [
        pytest.param("throughput_tokens_per_s", 96.0, Outcome.PASS, id="slightly-less"),
        pytest.param("throughput_tokens_per_s", 94.0, Outcome.REGRESSED, id="less"),
        pytest.param("throughput_tokens_per_s", 106.0, Outcome.IMPROVED, id="more"),
        pytest.param("tpot_p50_ms", 104.0, Outcome.PASS, id="slightly-longer"),
        pytest.param("tpot_p50_ms", 106.0, Outcome.REGRESSED, id="longer"),
        pytest.param("tpot_p50_ms", 94.0, Outcome.IMPROVED, id="shorter"),
        pytest.param("ttft_p50_ms", 106.0, Outcome.REGRESSED, id="later"),
        pytest.param("speedup_ratio", 94.0, Outcome.REGRESSED, id="speedup"),
    ],
)
def test_a_speed_is_judged_by_which_way_is_better(
    name: str, measured: float, outcome: Outcome
) -> None:
    verdict = judge_speed(name, measured, 100.0, 100.0)
    assert verdict.outcome is outcome
    assert verdict.tolerance_frac == 0.05
    assert abs(verdict.change_frac or 0) == pytest.approx(abs(measured - 100) / 100)
    assert ((verdict.change_frac or 0) > 0) == (
        (measured > 100) == (METRICS[name].direction.value > 0)
    )


def test_a_speed_is_as_sure_as_its_launches_repeat() -> None:
    """One launch against two that differ by 1 %: t(0.004, 16) × 0.01 × √(1 + 1/2), either way."""
    reach = t_quantile(Look.LAUNCH.value, 16) * 0.01 * math.sqrt(1 + 1 / 2)
    up = judge_speed("throughput_tokens_per_s", 99.0, 100.0, 100.0, within_frac=0.01)
    down = judge_speed("tpot_p50_ms", 101.0, 100.0, 100.0, within_frac=0.01)
    assert up.low_frac == pytest.approx(0.99 * math.exp(-reach) - 1)
    assert up.high_frac == pytest.approx(0.99 * math.exp(reach) - 1)
    assert down.low_frac == pytest.approx(1 - 1.01 * math.exp(reach))
    assert down.high_frac == pytest.approx(1 - 1.01 * math.exp(-reach))
    assert (up.outcome, down.outcome) == (Outcome.PASS, Outcome.PASS)


@pytest.mark.parametrize(
    ("measured", "within_frac", "outcome"),
    [
        (100.0, 0.01, Outcome.PASS),
        (100.0, 0.03, Outcome.INCONCLUSIVE),
        (96.0, 0.01, Outcome.INCONCLUSIVE),
        (94.0, 0.01, Outcome.REGRESSED),
        (94.0, 0.03, Outcome.INCONCLUSIVE),
        (80.0, 0.03, Outcome.REGRESSED),
        (112.0, 0.01, Outcome.IMPROVED),
    ],
)
def test_what_the_launches_cannot_tell_is_never_green(
    measured: float, within_frac: float, outcome: Outcome
) -> None:
    verdict = judge_speed(
        "throughput_tokens_per_s", measured, 100.0, 100.0, within_frac=within_frac
    )
    assert verdict.outcome is outcome


def test_an_inconclusive_verdict_says_what_the_case_can_see() -> None:
    verdict = judge_speed("throughput_tokens_per_s", 100.0, 100.0, 100.0, within_frac=0.03)
    reach = (t_quantile(Look.LAUNCH.value, 16) + t_quantile(0.1, 16)) * 0.03 * math.sqrt(1.5)
    assert verdict.mde_frac == pytest.approx(1 - math.exp(-reach))
    assert verdict.reason.startswith(
        "its minimum detectable effect is 14.8% with 1 launch against 2, its tolerance 5.0%;"
        " 12 launches against"
    )


def test_one_launch_alone_tells_no_spread() -> None:
    baseline = builders.baseline({THROUGHPUT.name: 100.0})
    unknown = dataclasses.replace(known(baseline), spreads={})
    verdict = judged(THROUGHPUT, builders.measurement({THROUGHPUT.name: 100.0}), unknown)
    assert verdict.outcome is Outcome.NO_BASELINE
    assert "its spread takes two launches or more" in verdict.reason
    assert HINT in verdict.reason


def spread_lengths(*accepted: int) -> AcceptanceRecord:
    """A record of prompts with ten steps each and so many drafts accepted."""
    return builders.acceptance_of(
        [
            builders.prompt_acceptance(
                StepCounts(
                    steps=10,
                    accepted=count,
                    proposed=30,
                    position_counts=(count - count // 3 - count // 4, count // 3, count // 4),
                ),
                prompt_id=f"chat-{number}",
            )
            for number, count in enumerate(accepted)
        ]
    )


def judge_records(ours: AcceptanceRecord, theirs: AcceptanceRecord, look: Look) -> Verdict:
    """The verdict on the length of a record against another."""
    values = {LENGTH.name: ours.total.acceptance_length or 0.0}
    plain = builders.measurement(values)
    measurement = dataclasses.replace(
        plain, replay=Replay(rounds=(), control_rounds=(), acceptance=ours)
    )
    baseline = msgspec.structs.replace(builders.baseline(), acceptance=stored_acceptance(theirs))
    return judged(LENGTH, measurement, known(baseline), look)


def test_acceptance_that_differs_from_prompt_to_prompt_has_an_interval() -> None:
    ours = spread_lengths(15, 15, 15, 15, 15, 16, 15, 15, 15, 14)
    theirs = spread_lengths(15, 15, 15, 15, 15, 15, 15, 15, 15, 15)
    verdict = judge_records(ours, theirs, Look.FULL)
    assert verdict.outcome is Outcome.PASS
    assert verdict.change_frac == 0
    assert verdict.low_frac == -(verdict.high_frac or 0) != 0


def test_prompts_that_disagree_leave_it_open() -> None:
    ours = spread_lengths(10, 20, 12, 18, 15, 16)
    theirs = spread_lengths(20, 10, 18, 12, 15, 15)
    verdict = judge_records(ours, theirs, Look.FULL)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "with 6 prompts, its tolerance 5.0%; raise prompts in the matrix" in verdict.reason


def test_an_early_look_takes_more_to_be_convinced() -> None:
    ours = spread_lengths(12, 13, 12, 13, 12, 13, 14, 12)
    theirs = spread_lengths(15, 14, 16, 15, 14, 15, 15, 15)
    outcomes = [judge_records(ours, theirs, look).outcome for look in (Look.FULL, Look.EARLY)]
    assert outcomes == [Outcome.REGRESSED, Outcome.INCONCLUSIVE]


def test_a_few_prompts_tell_nothing() -> None:
    few = spread_lengths(15, 15, 15, 15)
    verdict = judge_records(few, few, Look.FULL)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.reason.startswith("4 prompts to compare by, 5 are needed")


def test_a_sum_without_its_prompts_tells_nothing() -> None:
    record = dataclasses.replace(spread_lengths(15, 15, 15, 15, 15, 15), prompts=())
    verdict = judge_records(record, record, Look.FULL)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.reason.startswith("the source knows the sum of all requests only")


def test_a_change_of_speed_says_what_it_comes_from() -> None:
    """AL from 2.0 to 1.8 is -10 %; of -19 % in all the other -10 % is the step's."""
    for name, method, cause in (
        (THROUGHPUT.name, "eagle3", "-10.0% by acceptance, -10.0% by the cost of a step"),
        (THROUGHPUT.name, "ngram", ""),  # it doesn't draft in every step
        ("ttft_p50_ms", "eagle3", ""),
    ):
        server = dataclasses.replace(builders.SPEC, method=method)
        case = dataclasses.replace(builders.CASE, server=server, prompts=6)
        sign = METRICS[name].direction.value
        baseline = builders.baseline({name: 100.0}, {name: 100.0}, of=of_length(2.0))
        values = {name: 100.0 * 0.81**sign}
        measurement = builders.measurement(values, of=of_length(1.8), case=case)
        verdict = judged(METRICS[name], measurement, known(baseline))
        assert verdict.outcome is Outcome.REGRESSED
        assert verdict.cause == cause


def test_a_goodput_of_nothing_regressed() -> None:
    goodput = METRICS["goodput_requests_per_s"]
    baseline = builders.baseline({goodput.name: 5.0}, {goodput.name: 5.1})
    of = known(baseline, within_frac=0.01)
    verdict = judged(goodput, builders.measurement({goodput.name: 0.0}), of)
    assert (verdict.outcome, verdict.change_frac) == (Outcome.REGRESSED, -1.0)
    assert verdict.value == 0
    assert verdict.expected == pytest.approx(5.05, abs=0.001)
    launches = [builders.measurement({goodput.name: value}) for value in (0.0, 5.0)]
    stalled = judge(goodput, compare(launches, of), Look.FURTHER_LAUNCH)
    assert stalled.outcome is Outcome.INCONCLUSIVE
    assert stalled.reason == "it is 0 in one launch, and isn't in another"


def test_a_loss_is_told_by_category_of_the_prompts_that_both_have() -> None:
    """The baseline's further prompts are of another length and don't count."""
    theirs = builders.acceptance(of_length(2.0), prompts=6)
    further = builders.prompt_acceptance(of_length(3.0), prompt_id="chat-9")
    more = builders.acceptance_of([*theirs.prompts, further])
    verdict = judge_records(builders.acceptance(of_length(1.5), prompts=6), more, Look.FULL)
    assert verdict.reason == "by category: chat 2 -> 1.5"


PUBLISHED = PublishedFigure(
    schema_version=1,
    source="https://example.org/paper",
    conditions="80 prompts",
    method="draft_model",
    target="some/target",
    draft="some/draft",
    dataset="toy",
    draft_tokens=3,
    temperature=0.0,
    acceptance_length_tokens=2.0,
    acceptance_rate_frac=None,
    position_frac=(),
    tolerance_frac=None,
)


@pytest.mark.parametrize(
    ("length", "tolerance_frac", "outcome"),
    [
        (1.93, None, Outcome.PASS),
        (1.91, None, Outcome.REGRESSED),
        (1.85, 0.1, Outcome.PASS),  # a tenth of AL 2.0 is a fifth of AL - 1
        (1.75, 0.1, Outcome.REGRESSED),
        (1.91, 0.5, Outcome.REGRESSED),  # half of AL 2.0 is all of AL - 1: no such tolerance
    ],
)
def test_a_published_figure_is_better_than_none(
    length: float, tolerance_frac: float | None, outcome: Outcome
) -> None:
    told = msgspec.structs.replace(PUBLISHED, tolerance_frac=tolerance_frac)
    measurement = builders.measurement(
        {LENGTH.name: length, THROUGHPUT.name: 1.0, RATE.name: 0.5}, of=of_length(length)
    )
    verdict = judged(LENGTH, measurement, known(published=told))
    assert (verdict.outcome, verdict.against) == (outcome, "published")
    speed = judged(THROUGHPUT, measurement, known(published=told))
    assert speed.outcome is Outcome.NOT_COMPARABLE
    assert judged(RATE, measurement, known(published=told)).outcome is Outcome.NO_BASELINE


@pytest.mark.parametrize("name", ["throughput_tokens_per_s", "tpot_p50_ms", "speedup_ratio"])
def test_a_speed_of_another_machine_is_not_comparable(name: str) -> None:
    launches = ({name: 100.0}, {name: 100.0})
    nearest = builders.baseline(*launches, environment=builders.OTHER_ENVIRONMENT)
    verdict = judged(METRICS[name], builders.measurement({name: 100.0}), known(nearest=nearest))
    assert verdict.outcome is Outcome.NOT_COMPARABLE
    assert "speed doesn't carry over from 'cpu-intel-xeon-2.50ghz-avx2-8c'" in verdict.reason
    assert HINT in verdict.reason


@pytest.mark.parametrize("name", [LENGTH.name, THROUGHPUT.name])
def test_a_case_that_was_never_recorded_has_no_baseline(name: str) -> None:
    measurement = builders.measurement({name: 2.0}, of=of_length(2.0))
    verdict = judged(METRICS[name], measurement, known())
    assert verdict.outcome is Outcome.NO_BASELINE
    assert "nothing recorded in 'cpu-intel-xeon-2.50ghz-avx512-2c'" in verdict.reason
    assert HINT in verdict.reason


@pytest.mark.parametrize("name", [LENGTH.name, THROUGHPUT.name])
def test_a_baseline_of_other_settings_is_none_and_they_are_named(name: str) -> None:
    other = dataclasses.replace(builders.SETTINGS, dtype="auto", concurrency=4)
    baseline = builders.baseline({name: 2.0}, {name: 2.0}, of=of_length(2.0), settings=other)
    measurement = builders.measurement({name: 2.0}, of=of_length(2.0))
    verdict = judged(METRICS[name], measurement, known(baseline))
    assert verdict.outcome is Outcome.NO_BASELINE
    assert "other settings: concurrency: 4 -> 2, dtype: auto -> float32; " in verdict.reason


@pytest.mark.parametrize(
    ("metric", "method", "outcome"),
    [
        pytest.param(LENGTH, "draft_model", Outcome.PASS, id="acceptance"),
        pytest.param(THROUGHPUT, "draft_model", Outcome.NOT_COMPARABLE, id="speed"),
        pytest.param(LENGTH, "suffix", Outcome.NOT_COMPARABLE, id="a-drafter-that-learns"),
    ],
)
def test_of_another_number_of_prompts_only_acceptance_is_compared(
    metric: Metric, method: str, outcome: Outcome
) -> None:
    spec = dataclasses.replace(builders.SPEC, method=method)
    case = dataclasses.replace(builders.CASE, server=spec, prompts=20, matrix_prompts=40)
    baseline = builders.baseline({THROUGHPUT.name: 9.0}, {THROUGHPUT.name: 9.0}, of=of_length(2.0))
    fewer = dataclasses.replace(builders.SETTINGS, num_prompts=20)
    values = {THROUGHPUT.name: 9.0, LENGTH.name: 2.0}
    measurement = builders.measurement(values, of=of_length(2.0), case=case)
    verdict = judged(metric, measurement, dataclasses.replace(known(baseline), settings=fewer))
    assert verdict.outcome is outcome
    assert verdict.reason.startswith("of 20 prompts: ") == (outcome is not Outcome.PASS)
    assert "record one" not in verdict.reason


@pytest.mark.parametrize(
    ("changes", "recorded_as"),
    [
        ({"source": Source.VLLM_COUNTERS}, "vllm_counters, verifier, step"),
        ({"source": Source.STREAM_CHUNKS}, "stream_chunks, verifier, step"),
        ({"view": View.EMITTED}, "vllm_request, emitted, step"),
        ({"weighting": Weighting.REQUEST}, "vllm_request, verifier, request"),
    ],
    ids=lambda value: value if isinstance(value, str) else ",".join(value),
)
@pytest.mark.parametrize("exact", [True, False], ids=["here", "elsewhere"])
def test_records_with_different_tags_are_not_comparable(
    changes: dict[str, str], recorded_as: str, *, exact: bool
) -> None:
    theirs = msgspec.structs.replace(builders.stored(of_length(2.0)), **changes)
    baseline = msgspec.structs.replace(builders.baseline(), acceptance=theirs)
    measurement = builders.measurement({LENGTH.name: 2.0}, of=of_length(2.0))
    verdict = judged(LENGTH, measurement, known(baseline) if exact else known(nearest=baseline))
    assert verdict.outcome is Outcome.NOT_COMPARABLE
    words = f"measured as vllm_request, verifier, step, recorded as {recorded_as}; record one with"
    assert verdict.reason.startswith(words)


def test_a_baseline_without_the_metric_is_none() -> None:
    measurement = builders.measurement({LENGTH.name: 2.0}, of=of_length(2.0))
    verdict = judged(LENGTH, measurement, known(builders.baseline()))
    assert verdict.outcome is Outcome.NO_BASELINE
    assert "the baseline holds no acceptance_length_tokens" in verdict.reason


@pytest.mark.parametrize("baseline", [None, builders.baseline(of=of_length(2.0))])
def test_an_invalid_measurement_is_neither_good_nor_bad(baseline: Baseline | None) -> None:
    invalid = all_invalid("SPEC_DISABLED: nothing was drafted")
    broken = dataclasses.replace(builders.measurement({LENGTH.name: 2.0}), invalid=invalid)
    verdict = judged(LENGTH, broken, known(baseline))
    assert verdict.outcome is Outcome.INVALID
    assert verdict.reason == "SPEC_DISABLED: nothing was drafted"


def test_what_spoils_speed_leaves_acceptance_to_be_judged() -> None:
    of = of_length(2.0)
    values = {LENGTH.name: 2.0}
    slow = dataclasses.replace(
        builders.measurement(values, of=of), invalid={Family.LATENCY: "THROTTLED: 92 °C"}
    )
    baseline = known(builders.baseline({TPOT.name: 5.0}, {TPOT.name: 5.0}, of=of))
    assert judged(LENGTH, slow, baseline).outcome is Outcome.PASS
    verdict = judged(TPOT, slow, baseline)
    assert (verdict.outcome, verdict.reason) == (Outcome.INVALID, "THROTTLED: 92 °C")


def test_a_metric_without_a_value_is_invalid_and_no_pass() -> None:
    values: Mapping[str, float] = {}
    verdict = judged(TPOT, builders.measurement(values), known(builders.baseline()))
    assert verdict.outcome is Outcome.INVALID
    assert verdict.reason.startswith("METRIC_ABSENT")


@pytest.mark.parametrize("outcome", Outcome)
def test_a_test_is_green_only_when_something_was_compared_or_measured(outcome: Outcome) -> None:
    verdict = Verdict(case_id="case", metric="metric", outcome=outcome)
    assert verdict.holds == (outcome in {Outcome.PASS, Outcome.IMPROVED, Outcome.MEASURED})
    assert verdict.fails == (not verdict.holds and outcome is not Outcome.NOT_COMPARABLE)


@pytest.mark.parametrize(
    ("within_frac", "launches", "recorded", "needed"),
    [
        pytest.param(0.01, 1, 6, 2, id="more-launches"),
        pytest.param(0.02, 3, 3, 0, id="a-baseline-of-more"),
        pytest.param(0.2, 1, 3, 0, id="a-wider-tolerance"),
    ],
)
def test_how_many_launches_would_tell_comes_from_how_they_spread(
    within_frac: float, launches: int, recorded: int, needed: int
) -> None:
    baseline = builders.baseline(*({THROUGHPUT.name: 100.0} for _ in range(recorded)))
    measured = [builders.measurement({THROUGHPUT.name: 96.5})] * launches
    verdict = judge(
        THROUGHPUT, compare(measured, known(baseline, within_frac=within_frac)), Look.LAUNCH
    )
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.needed_launches == needed
    again = (
        judge(
            THROUGHPUT,
            compare(measured[:1] * needed, known(baseline, within_frac=within_frac)),
            Look.LAUNCH,
        )
        if needed
        else None
    )
    assert again is None or (again.mde_frac or 1) <= (again.tolerance_frac or 0)


def test_the_hint_is_a_command_with_the_options_of_the_run() -> None:
    options = ("--specreg-tier=gpu", "--engine=vllm", "--num-prompts=9")
    hint = record_hint("case", dataclasses.replace(known(), options=options))
    assert hint == (
        "record one with\n  pytest tests/perf -k case- --specreg-tier=gpu --engine=vllm"
        " --update-baselines"
    )


def test_a_server_of_somebody_else_is_not_recorded() -> None:
    attached = dataclasses.replace(known(), options=("--specreg-attach=http://h:1",))
    assert record_hint("case", attached) == "leave out --specreg-attach to record one"
