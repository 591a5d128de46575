"""The truth table of the outcomes: a verdict is green only where something was compared."""

import dataclasses
import math
from collections.abc import Mapping

import msgspec
import pytest

from specreg.acceptance.record import Source, StepCounts, View, Weighting
from specreg.baseline import Baseline
from specreg.matrix import Case
from specreg.metrics import METRICS
from specreg.verdict import (
    Known,
    Outcome,
    Verdict,
    better_frac,
    differing_settings,
    expected_value,
    judge,
    launch_spread_frac,
    record_hint,
)
from tests.unit import builders

LENGTH = METRICS["acceptance_length_tokens"]
THROUGHPUT = METRICS["throughput_tokens_per_s"]
TPOT = METRICS["tpot_p50_ms"]
HINT = "pytest -k vllm-draft_model-toy-toy-c2- --update-baselines"


def known(
    exact: Baseline | None = None,
    nearest: Baseline | None = None,
    neighbours: tuple[Baseline, ...] = (),
) -> Known:
    """What is known; the exact baseline is one of its own neighbours."""
    return Known(
        environment=builders.ENVIRONMENT,
        settings=builders.SETTINGS,
        exact=exact,
        nearest=nearest,
        neighbours=(*((exact,) if exact else ()), *neighbours),
    )


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
    """The verdict on an acceptance length."""
    environment = builders.ENVIRONMENT if exact else builders.OTHER_ENVIRONMENT
    baseline = builders.baseline(of=of_length(recorded), environment=environment)
    measurement = builders.measurement({LENGTH.name: measured}, of=of_length(measured), case=case)
    return judge(LENGTH, measurement, known(baseline) if exact else known(nearest=baseline))


def judge_speed(
    name: str, measured: float, *launches: float, neighbours: tuple[Baseline, ...] = ()
) -> Verdict:
    """The verdict on a speed, against launches with no spread unless they differ."""
    baseline = builders.baseline(*({name: launch} for launch in launches))
    measurement = builders.measurement({name: measured})
    return judge(METRICS[name], measurement, known(baseline, neighbours=neighbours))


@pytest.mark.parametrize(
    ("measured", "outcome"),
    [
        (2.0, Outcome.PASS),
        (1.991, Outcome.PASS),
        (2.009, Outcome.PASS),
        (1.989, Outcome.REGRESSED),
        (2.011, Outcome.IMPROVED),
    ],
)
def test_a_length_is_judged_as_what_it_adds_to_one(measured: float, outcome: Outcome) -> None:
    """1.989 is 0.55 % below 2.0, but 1.1 % of what speculation gains."""
    verdict = judge_length(measured, 2.0)
    assert verdict.outcome is outcome
    assert verdict.change_frac == pytest.approx(measured - 2.0)
    assert (verdict.value, verdict.expected, verdict.tolerance_frac) == (measured, 2.0, 0.01)


@pytest.mark.parametrize(
    ("measured", "outcome"),
    [(1.96, Outcome.PASS), (1.94, Outcome.REGRESSED), (2.06, Outcome.IMPROVED)],
)
def test_acceptance_is_judged_more_loosely_against_another_machine(
    measured: float, outcome: Outcome
) -> None:
    verdict = judge_length(measured, 2.0, exact=False)
    assert (verdict.outcome, verdict.tolerance_frac) == (outcome, 0.05)
    assert verdict.against == "cpu-intel-xeon-2.50ghz-avx2-8c"
    assert bool(verdict.reason) == (outcome is Outcome.REGRESSED)


def test_a_verdict_says_whose_baseline_it_is_against() -> None:
    assert judge_length(2.0, 2.0).against == builders.ENVIRONMENT.name
    assert judge_speed("tpot_p50_ms", 100.0, 100.0, 100.0).against == builders.ENVIRONMENT.name
    measurement = builders.measurement({LENGTH.name: 2.0}, of=of_length(2.0))
    assert judge(LENGTH, measurement, known()).against == ""


@pytest.mark.parametrize(
    ("name", "value", "expected", "frac"),
    [
        pytest.param("throughput_tokens_per_s", 110.0, 100.0, 0.1, id="more-is-better"),
        pytest.param("throughput_tokens_per_s", 90.0, 100.0, -0.1, id="less-is-worse"),
        pytest.param("tpot_p50_ms", 9.0, 10.0, 0.1, id="shorter-is-better"),
        pytest.param("tpot_p50_ms", 11.0, 10.0, -0.1, id="longer-is-worse"),
        pytest.param("acceptance_length_tokens", 2.5, 2.0, 0.5, id="beyond-the-one-without"),
        pytest.param("acceptance_rate_frac", 0.4, 0.5, -0.2, id="from-nothing"),
        pytest.param("acceptance_length_tokens", 1.0, 1.0, 0.0, id="nothing-kept"),
        pytest.param("acceptance_length_tokens", 1.2, 1.0, 1.0, id="nothing-improved"),
    ],
)
def test_better_is_positive(name: str, value: float, expected: float, frac: float) -> None:
    assert better_frac(METRICS[name], value, expected) == pytest.approx(frac)


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


def test_the_launches_of_a_baseline_are_averaged_as_factors() -> None:
    assert judge_speed("speedup_ratio", 2.0, 1.0, 4.0).expected == pytest.approx(2.0)


def test_a_spread_from_launch_to_launch_widens_the_tolerance() -> None:
    """Launches of 100 and 110: sqrt((ln 1.1)² / 2) over 1 degree of freedom, 6.74 %."""
    noise = 3 * math.log(1.1) / math.sqrt(2) * math.sqrt(1 + 1 / 2)
    up = judge_speed("throughput_tokens_per_s", 85.0, 100.0, 110.0)
    down = judge_speed("tpot_p50_ms", 125.0, 100.0, 110.0)
    assert up.tolerance_frac == pytest.approx(1 - math.exp(-noise))
    assert down.tolerance_frac == pytest.approx(math.exp(noise) - 1)
    assert (up.outcome, down.outcome) == (Outcome.PASS, Outcome.PASS)


def test_a_wide_spread_still_lets_a_great_loss_show() -> None:
    assert judge_speed("throughput_tokens_per_s", 70.0, 100.0, 110.0).outcome is Outcome.REGRESSED


def test_the_spread_of_the_neighbours_counts() -> None:
    name = "throughput_tokens_per_s"
    noisy = builders.baseline({name: 100.0}, {name: 130.0})
    assert judge_speed(name, 90.0, 100.0, 100.0).outcome is Outcome.REGRESSED
    assert judge_speed(name, 90.0, 100.0, 100.0, neighbours=(noisy,)).outcome is Outcome.PASS


def test_the_spread_is_pooled_over_baselines() -> None:
    name = THROUGHPUT.name
    pairs = [builders.baseline({name: 100.0}, {name: 100.0 * ratio}) for ratio in (1.1, 1.2)]
    squares = (math.log(1.1) ** 2 + math.log(1.2) ** 2) / 2
    assert launch_spread_frac(THROUGHPUT, pairs) == pytest.approx(math.sqrt(squares / 2))


def test_one_launch_alone_tells_no_spread() -> None:
    assert launch_spread_frac(THROUGHPUT, [builders.baseline({THROUGHPUT.name: 100.0})]) is None
    verdict = judge_speed(THROUGHPUT.name, 100.0, 100.0)
    assert verdict.outcome is Outcome.NO_BASELINE
    assert "its spread takes two launches or more" in verdict.reason
    assert HINT in verdict.reason


def test_one_launch_is_enough_where_the_neighbours_tell_the_spread() -> None:
    name = THROUGHPUT.name
    neighbour = builders.baseline({name: 50.0}, {name: 50.0})
    assert judge_speed(name, 99.0, 100.0, neighbours=(neighbour,)).outcome is Outcome.PASS


@pytest.mark.parametrize("name", ["throughput_tokens_per_s", "tpot_p50_ms", "speedup_ratio"])
def test_a_speed_of_another_machine_is_not_comparable(name: str) -> None:
    launches = ({name: 100.0}, {name: 100.0})
    nearest = builders.baseline(*launches, environment=builders.OTHER_ENVIRONMENT)
    verdict = judge(METRICS[name], builders.measurement({name: 100.0}), known(nearest=nearest))
    assert verdict.outcome is Outcome.NOT_COMPARABLE
    assert "speed doesn't carry over from 'cpu-intel-xeon-2.50ghz-avx2-8c'" in verdict.reason
    assert HINT in verdict.reason


@pytest.mark.parametrize("name", [LENGTH.name, THROUGHPUT.name])
def test_a_case_that_was_never_recorded_has_no_baseline(name: str) -> None:
    measurement = builders.measurement({name: 2.0}, of=of_length(2.0))
    verdict = judge(METRICS[name], measurement, known())
    assert verdict.outcome is Outcome.NO_BASELINE
    assert "nothing recorded in 'cpu-intel-xeon-2.50ghz-avx512-2c'" in verdict.reason
    assert HINT in verdict.reason


@pytest.mark.parametrize("name", [LENGTH.name, THROUGHPUT.name])
def test_a_baseline_of_other_settings_is_none_and_they_are_named(name: str) -> None:
    other = msgspec.structs.replace(builders.SETTINGS, dtype="auto", concurrency=4)
    baseline = builders.baseline({name: 2.0}, {name: 2.0}, of=of_length(2.0), settings=other)
    measurement = builders.measurement({name: 2.0}, of=of_length(2.0))
    verdict = judge(METRICS[name], measurement, known(baseline))
    assert verdict.outcome is Outcome.NO_BASELINE
    assert "other settings: concurrency: 4 -> 2, dtype: auto -> float32; " in verdict.reason


def test_equal_settings_differ_in_nothing() -> None:
    assert differing_settings(builders.SETTINGS, builders.SETTINGS) == ""


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
    verdict = judge(LENGTH, measurement, known(baseline) if exact else known(nearest=baseline))
    assert verdict.outcome is Outcome.NOT_COMPARABLE
    words = f"measured as vllm_request, verifier, step, recorded as {recorded_as}; record one with"
    assert verdict.reason.startswith(words)


def test_a_baseline_without_the_metric_is_none() -> None:
    measurement = builders.measurement({LENGTH.name: 2.0}, of=of_length(2.0))
    verdict = judge(LENGTH, measurement, known(builders.baseline()))
    assert verdict.outcome is Outcome.NO_BASELINE
    assert "the baseline holds no acceptance_length_tokens" in verdict.reason


@pytest.mark.parametrize("baseline", [None, builders.baseline(of=of_length(2.0))])
def test_an_invalid_measurement_is_neither_good_nor_bad(baseline: Baseline | None) -> None:
    broken = dataclasses.replace(
        builders.measurement({LENGTH.name: 2.0}), invalid="SPEC_DISABLED: nothing was drafted"
    )
    verdict = judge(LENGTH, broken, known(baseline))
    assert verdict.outcome is Outcome.INVALID
    assert verdict.reason == "SPEC_DISABLED: nothing was drafted"


def test_a_metric_without_a_value_is_invalid_and_no_pass() -> None:
    values: Mapping[str, float] = {}
    verdict = judge(TPOT, builders.measurement(values), known(builders.baseline()))
    assert verdict.outcome is Outcome.INVALID
    assert verdict.reason.startswith("METRIC_ABSENT")


@pytest.mark.parametrize("outcome", Outcome)
def test_a_test_is_green_only_when_something_was_compared_or_measured(outcome: Outcome) -> None:
    verdict = Verdict(case_id="case", metric="metric", outcome=outcome)
    assert verdict.holds == (outcome in {Outcome.PASS, Outcome.IMPROVED, Outcome.MEASURED})


def test_a_verdict_reads_as_a_sentence() -> None:
    assert str(judge_length(1.5, 2.0)) == (
        "REGRESSED: acceptance_length_tokens of 'vllm-draft_model-toy-toy-c2', measured 1.5,"
        " baseline 2, 50.0% worse, tolerance 1.0%; by category: chat 2 -> 1.5"
    )


def test_a_verdict_without_figures_gives_its_reason() -> None:
    verdict = Verdict(case_id="a", metric="m", outcome=Outcome.INVALID, reason="SPEC_DISABLED: x")
    assert str(verdict) == "INVALID: m of 'a'; SPEC_DISABLED: x"


def test_the_hint_is_a_command() -> None:
    assert "pytest -k case- --update-baselines --reason" in record_hint("case")
