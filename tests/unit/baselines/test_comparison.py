"""Comparisons: prompt with prompt, launch with launch, and in words where there are none."""

import dataclasses
import functools
import math
from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specreg.acceptance.record import NO_STEPS, AcceptanceRecord, PromptAcceptance, StepCounts
from specreg.baselines.comparison import (
    BaselineComparison,
    CaseSpreads,
    change_of_baseline,
    compare,
    spreads_of,
)
from specreg.baselines.prompt_counts import common_tables
from specreg.baselines.schema import Baseline, Noise, stored_acceptance
from specreg.core.families import Family
from specreg.core.reasons import Reason
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import METRICS, Metric, Replay
from specreg.stats.intervals import Effect
from tests.unit import builders

LENGTH = METRICS["acceptance_length_tokens"]
RATE = METRICS["acceptance_rate_frac"]
SECOND = METRICS["acceptance_pos2_frac"]
LAST = METRICS["acceptance_pos4_frac"]
THROUGHPUT = METRICS["throughput_tokens_per_s"]
TPOT = METRICS["tpot_p50_ms"]
known = functools.partial(builders.known, within_frac=0.01, freedom=8)

FEW = builders.counts(4, 4, 2, 0)
MANY = builders.counts(2, 2, 2, 4)
NONE = builders.counts(5, 0, 0, 0)
RECORDED = {"a": FEW, "b": MANY, "c": FEW, "d": MANY, "e": FEW, "f": MANY}


def record(by_prompt: Mapping[str, StepCounts]) -> AcceptanceRecord:
    prompts = [builders.prompt_acceptance(of, prompt_id=name) for name, of in by_prompt.items()]
    return builders.acceptance_of(prompts)


SUM = dataclasses.replace(record(RECORDED), prompts=())
"""The record of a source that knows the sum only."""


def measured(acceptance: AcceptanceRecord | None, **values: float) -> Measurement:
    return builders.measurement(values, of=acceptance)


def recorded(acceptance: AcceptanceRecord | None, *launches: Mapping[str, float]) -> Baseline:
    return msgspec.structs.replace(
        builders.baseline(*launches), acceptance=stored_acceptance(acceptance)
    )


def recorded_from(*launches: AcceptanceRecord) -> Baseline:
    """A baseline of the acceptance of several launches."""
    return msgspec.structs.replace(builders.baseline(), acceptance=stored_acceptance(*launches))


def by_prompt(
    measured_counts: Mapping[str, StepCounts], recorded_counts: Mapping[str, StepCounts]
) -> BaselineComparison:
    return compare([measured(record(measured_counts))], known(recorded(record(recorded_counts))))


def ratio_change(comparison: BaselineComparison, metric: Metric) -> tuple[float, float, Effect]:
    """Value, expected value and change of a metric, where it can be told."""
    change = comparison.ratio_change(metric)
    assert not isinstance(change, Reason)
    return change


def test_prompts_are_paired_by_what_they_are_not_by_where_they_stand() -> None:
    backwards = dict(reversed(RECORDED.items()))
    comparison = by_prompt(backwards, RECORDED)
    assert comparison.measured is not None
    assert comparison.recorded is not None
    assert comparison.measured.prompt_ids == comparison.recorded.prompt_ids == tuple(backwards)
    change = ratio_change(comparison, LENGTH)[2]
    assert change == Effect(estimate_frac=0.0, error_frac=0.0, freedom=5)


HISTOGRAMS = st.lists(st.integers(0, 50), min_size=1, max_size=5)
COUNTS = st.builds(StepCounts.from_histogram, HISTOGRAMS, st.none() | st.integers(0, 500))
REQUESTS = st.lists(
    st.builds(builders.prompt_acceptance, COUNTS, prompt_id=st.sampled_from("abcdef")), max_size=20
)


@settings(max_examples=100, deadline=None)
@given(REQUESTS, REQUESTS)
def test_a_row_is_what_its_prompt_did_on_each_side(
    measured_prompts: list[PromptAcceptance], recorded_prompts: list[PromptAcceptance]
) -> None:
    recorded_ids = {prompt.prompt_id for prompt in recorded_prompts}
    common = dict.fromkeys(
        prompt.prompt_id for prompt in measured_prompts if prompt.prompt_id in recorded_ids
    )
    for side, table in zip(
        (measured_prompts, recorded_prompts),
        common_tables(measured_prompts, recorded_prompts),
        strict=True,
    ):
        assert table.prompt_ids == tuple(common)
        common_prompts = [prompt for prompt in side if prompt.prompt_id in common]
        unknown = any(prompt.counts.proposed is None for prompt in common_prompts)
        assert (table.proposed is None) == unknown, "one hides them all"
        for row, prompt_id in enumerate(common):
            answers = [prompt.counts for prompt in common_prompts if prompt.prompt_id == prompt_id]
            total = sum(answers, NO_STEPS)
            means = (total.steps / len(answers), total.accepted / len(answers))
            assert (table.steps[row], table.accepted[row]) == pytest.approx(means)
            if table.proposed is not None:
                assert table.proposed[row] == pytest.approx((total.proposed or 0) / len(answers))
            reached = [column[row] * len(answers) for column in table.position_counts]
            assert reached[: len(total.position_counts)] == pytest.approx(
                list(total.position_counts)
            )
            assert not any(reached[len(total.position_counts) :])


def test_the_turns_of_a_prompt_are_added_up() -> None:
    turns = [
        dataclasses.replace(builders.prompt_acceptance(of), turn=turn)
        for turn, of in ((1, FEW), (1, MANY), (2, FEW))
    ]
    (table,) = common_tables(turns)
    # The first turn has 10 steps, and 8 and 18 accepted drafts; the second 10 and 8.
    assert (table.steps[0], table.accepted[0]) == (20, 13 + 8)


def test_a_prompt_that_was_answered_more_often_weighs_no_more() -> None:
    """The first launch alone has the prompts d, e and f."""
    half = {name: RECORDED[name] for name in "abc"}
    in_further_launches = (FEW, MANY, builders.counts(10, 0, 0, 0))
    further = [record({**half, "a": counts}) for counts in in_further_launches]
    baseline = recorded_from(record(RECORDED), *further)
    change = ratio_change(compare([measured(record(RECORDED))], known(baseline)), LENGTH)
    # Prompt a accepted 8, 8, 18 and 0 drafts in 10 steps each.
    assert change[1] == pytest.approx(1 + (3 * 18 + 2 * 8 + 8.5) / 60)


def test_more_launches_in_the_baseline_make_the_change_more_certain() -> None:
    """Launches that err in opposite directions say together what is expected."""
    shifts = (0, 1, 2, 3)
    histograms = ((8, 0, 6, 6), (2, 8, 4, 6), (10, 4, 2, 4), (4, 4, 8, 4))
    several = [builders.counts(*histogram) for histogram in histograms]

    def drawn(shift: int) -> AcceptanceRecord:
        return record({f"chat-{n}": several[(n + shift) % 4] for n in range(8)})

    run = measured(drawn(0))
    single = ratio_change(compare([run], known(recorded(drawn(1)))), LENGTH)[2]
    all_launches = recorded_from(*(drawn(shift) for shift in shifts))
    pooled = ratio_change(compare([run], known(all_launches)), LENGTH)[2]
    assert pooled.error_frac < 0.75 * single.error_frac


def test_each_ratio_divides_what_it_is_of() -> None:
    """108 and 48 of 180 drafts; a second draft in 36 and 12 of 60 steps."""
    comparison = by_prompt(dict.fromkeys("abcdef", MANY), dict.fromkeys("abcdef", FEW))
    rate, second = ratio_change(comparison, RATE), ratio_change(comparison, SECOND)
    assert rate[:2] == pytest.approx((18 / 30, 8 / 30))
    assert second[:2] == pytest.approx((6 / 10, 2 / 10))
    assert second[2].estimate_frac == pytest.approx(math.log(3.0))


def test_four_prompts_are_too_few_and_it_says_so() -> None:
    four = {name: RECORDED[name] for name in "abcd"}
    change = by_prompt(RECORDED, four).ratio_change(LENGTH)
    setting = "'prompts' in the tier's file"
    assert change == Reason.of("few_shared_prompts", prompts=4, needed=5, remedy=f"raise {setting}")
    comparison = by_prompt(RECORDED, four)
    settings = dataclasses.replace(comparison.baselines.settings, num_prompts=4)
    baselines = dataclasses.replace(comparison.baselines, settings=settings)
    of_four = dataclasses.replace(comparison, baselines=baselines).ratio_change(LENGTH)
    assert of_four == Reason.of(
        "few_shared_prompts", prompts=4, needed=5, remedy="raise --num-prompts"
    )
    five = {name: RECORDED[name] for name in "abcde"}
    assert ratio_change(by_prompt(RECORDED, five), LENGTH)


def test_a_source_that_knows_the_sum_only_says_so() -> None:
    comparison = compare([measured(SUM)], known(recorded(record(RECORDED))))
    change = comparison.ratio_change(LENGTH)
    assert change == Reason.of("sum_only")
    assert comparison.without_extension.measured is None


def test_a_published_figure_is_compared_beyond_the_one() -> None:
    comparison = compare([measured(record(RECORDED))], known(published=builders.published(2.0)))
    value, expected, change = ratio_change(comparison, LENGTH)
    assert (value, expected, change.estimate_frac) == pytest.approx((2.3, 2.0, math.log(1.3)))
    assert comparison.ratio_change(RATE) == Reason.of("no_shared_value", metric=RATE.name)


def test_what_is_known_is_expected_and_nothing_else() -> None:
    baselines = (
        known(recorded(record(RECORDED))),
        known(recorded(SUM)),
        known(published=builders.published(2.0)),
    )
    expected = [
        [
            compare([measured(None)], baseline).expected_ratio(metric) is not None
            for metric in (LENGTH, RATE, SECOND, LAST)
        ]
        for baseline in baselines
    ]
    assert expected == [[True, True, True, False]] * 2 + [[True, False, False, False]]
    without_steps = dict.fromkeys(RECORDED, builders.counts(0, 0, 0, 0))
    assert by_prompt(RECORDED, without_steps).expected_ratio(LENGTH) is None


@pytest.mark.parametrize("measured_counts", [NONE, FEW], ids=["nothing", "something"])
def test_nothing_is_compared_with_prompts_of_which_nothing_was_accepted(
    measured_counts: StepCounts,
) -> None:
    of_run = dict.fromkeys(RECORDED, measured_counts)
    change = by_prompt(of_run, dict.fromkeys(RECORDED, NONE)).ratio_change(LENGTH)
    assert change == Reason.of("nothing_shared_accepted")


def test_without_its_extension_a_run_has_the_prompts_of_its_case() -> None:
    """The case asks for four; a baseline that lacks one of them lends it none of the others."""
    extended = by_prompt(RECORDED, {name: RECORDED[name] for name in "fedcb"})
    assert extended.measured is not None
    assert extended.measured.prompt_ids == tuple("bcdef")
    short = extended.without_extension
    assert short.measured is not None
    assert short.recorded is not None
    assert short.measured.prompt_ids == short.recorded.prompt_ids == tuple("bcd")
    assert short.launches == extended.launches


def test_acceptance_is_that_of_the_last_launch_and_speed_that_of_all() -> None:
    launches = [
        measured(record(dict.fromkeys(RECORDED, NONE)), throughput_tokens_per_s=80.0),
        measured(record(RECORDED), throughput_tokens_per_s=125.0),
        measured(record(RECORDED)),
    ]
    baseline = recorded(record(RECORDED), {THROUGHPUT.name: 80.0}, {THROUGHPUT.name: 125.0})
    comparison = compare(launches, known(baseline))
    assert ratio_change(comparison, LENGTH)[2].estimate_frac == 0.0
    assert comparison.launch_values(THROUGHPUT) == (80.0, 125.0)


def beside_control(tokens: int) -> Measurement:
    """A launch whose control delivered so many tokens per second."""
    second = builders.replayed(0, 10**9, tokens)
    replay = Replay(rounds=(second,), control_rounds=(second,))
    return dataclasses.replace(builders.measurement({THROUGHPUT.name: 500.0}), replay=replay)


def test_the_control_is_held_against_its_own_baseline() -> None:
    of_case = recorded(None, {THROUGHPUT.name: 500.0})
    of_control = recorded(None, {THROUGHPUT.name: 100.0}, {THROUGHPUT.name: 100.0})
    launches = [beside_control(100), beside_control(80)]
    change = compare(launches, known(of_case, control=of_control)).control_change(THROUGHPUT)
    assert change is not None
    assert change.estimate_frac == pytest.approx(math.log(0.8))
    assert change.error_frac == pytest.approx(0.01 * math.sqrt(1 + 1 / 2))


def test_a_control_says_nothing_without_a_baseline_rounds_or_a_spread() -> None:
    with_control, of_control = beside_control(80), recorded(None, {THROUGHPUT.name: 100.0})
    invalid = {Family.SPEEDUP: Reason(code="CLIENT_BEHIND", text="in the control's rounds")}
    here = known(control=of_control)
    for launch, baselines in (
        (with_control, known(of_control)),
        (with_control, dataclasses.replace(here, control_spreads={})),
        (measured(None), here),
        (dataclasses.replace(with_control, invalid=invalid), here),
    ):
        assert compare([launch], baselines).control_change(THROUGHPUT) is None


def spreads_of_launches(*values: float, noise: Noise | None = None) -> CaseSpreads:
    """How launches of a case with such values differ."""
    launches = [{THROUGHPUT.name: value} for value in values]
    return CaseSpreads.of(launches, {THROUGHPUT.name: noise} if noise else {})


def test_the_spread_of_a_case_is_its_own_where_no_other_is_known() -> None:
    spread = spreads_of(spreads_of_launches(1.0, math.exp(0.1), math.exp(0.2)))[THROUGHPUT.name]
    assert spread.within_frac == pytest.approx(0.1)
    assert (spread.freedom, spread.between_freedom) == (2, 0)


def test_the_spread_of_a_case_is_drawn_to_those_of_other_cases_and_not_replaced() -> None:
    """Pooled over unlike loads, a case three times noisier would seem as quiet as the others."""
    case_spreads = spreads_of_launches(1.0, 1.1, 0.95)
    further_spreads = [
        spreads_of_launches(1.0, 1.0 + 0.01 * number, 0.99) for number in range(1, 6)
    ]
    alone = spreads_of(case_spreads)[THROUGHPUT.name]
    moderated = spreads_of(case_spreads, further_spreads)[THROUGHPUT.name]
    typical = spreads_of(spreads_of_launches(), further_spreads)[THROUGHPUT.name]
    assert typical.within_frac < moderated.within_frac < alone.within_frac
    assert moderated.freedom > alone.freedom


def test_what_hours_differ_by_comes_from_the_histories() -> None:
    noisy = Noise(between_frac=0.05, runs=7)
    quiet = spreads_of_launches(20, noise=Noise(between_frac=0.01, runs=4))
    spread = spreads_of(spreads_of_launches(50, 51, noise=noisy))[THROUGHPUT.name]
    assert spread.between_frac == pytest.approx(0.05)
    assert spread.between_freedom == 6
    moderated = spreads_of(spreads_of_launches(50, 51, noise=noisy), [quiet])[THROUGHPUT.name]
    assert 0.01 < moderated.between_frac < 0.05


def test_a_new_baseline_changes_what_its_prompts_do() -> None:
    old = recorded(record({**dict.fromkeys("fedcba", builders.counts(4, 4, 1, 1)), "old": NONE}))
    new = recorded(record({"new": MANY, **dict.fromkeys("abcdef", FEW)}))
    change = change_of_baseline(LENGTH, old, new)
    assert change is not None
    assert change.estimate_frac == pytest.approx(math.log(8 / 9))
    assert change.freedom == 5


def test_a_new_baseline_changes_its_launches_by_their_own_spread() -> None:
    old = recorded(None, {TPOT.name: 10.0}, {TPOT.name: 1000.0})
    new = recorded(None, {TPOT.name: 100.0}, {TPOT.name: 64.0}, {TPOT.name: 80.0})
    change = change_of_baseline(TPOT, old, new)
    within_frac = spreads_of(CaseSpreads.of(new.launches))[TPOT.name].within_frac
    assert change is not None
    assert change.estimate_frac == pytest.approx(math.log(1.25))
    assert change.error_frac == pytest.approx(within_frac * math.sqrt(1 / 2 + 1 / 3))


@pytest.mark.parametrize("name", [LENGTH.name, THROUGHPUT.name])
def test_a_new_baseline_of_something_else_changes_nothing(name: str) -> None:
    launch = {THROUGHPUT.name: 100.0}
    full, empty = recorded(record(RECORDED), launch, launch), recorded(None)
    of_nothing = recorded(record(dict.fromkeys(RECORDED, NONE)), launch)
    assert change_of_baseline(METRICS[name], full, full) is not None
    assert change_of_baseline(METRICS[name], empty, full) is None
    assert change_of_baseline(METRICS[name], full, empty) is None
    assert change_of_baseline(LENGTH, of_nothing, full) is None
    four = recorded(record(dict.fromkeys("abcd", FEW)))
    assert change_of_baseline(LENGTH, full, four) is None
