"""Acceptance as counts: the worked examples of DEFINITIONS.md, and what always holds."""

import dataclasses
import itertools
import operator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specreg.acceptance.record import (
    NO_STEPS,
    AcceptanceRecord,
    Counters,
    RoundAcceptance,
    Source,
    StepCounts,
    View,
)
from tests.unit import builders

HISTOGRAMS = st.lists(st.integers(0, 50), min_size=4, max_size=4).filter(any)


@pytest.mark.parametrize(
    ("histogram", "counted", "length", "rate"),
    [((39, 1, 0, 3), (43, 10, 129), 1.23256, 0.07752), ((8, 0, 6, 6), (20, 30, 60), 2.5, 0.5)],
    ids=["few-accepted", "many-accepted"],
)
def test_a_histogram_gives_the_worked_figures(
    histogram: tuple[int, ...], counted: tuple[int, int, int], length: float, rate: float
) -> None:
    counts = builders.counts(*histogram)
    assert (counts.steps, counts.accepted, counts.proposed) == counted
    assert counts.acceptance_length == pytest.approx(length, abs=5e-6)
    assert counts.acceptance_rate == pytest.approx(rate, abs=5e-6)


def test_steps_with_fewer_drafts_give_the_worked_figures() -> None:
    """Proposed [5, 4], accepted [3, 2], 6 completion tokens."""
    counts = StepCounts.from_histogram((0, 0, 1, 1, 0, 0), proposed=5 + 4)
    prompt = builders.prompt_acceptance(counts, cut_tokens=2)
    assert (counts.accepted, counts.proposed) == (5, 9)
    assert counts.acceptance_rate == pytest.approx(5 / 9)
    assert counts.acceptance_length == 3.5
    assert prompt.completion_tokens == 6
    assert prompt.completion_tokens / counts.steps == 3.0


@settings(max_examples=50, deadline=None)
@given(HISTOGRAMS)
def test_figures_by_position_are_consistent(histogram: list[int]) -> None:
    """The histogram comes back; marginals add up to AL - 1, conditional ones multiply to them."""
    counts = builders.counts(*histogram)
    assert counts.histogram == tuple(histogram)
    marginals = counts.marginal_acceptance
    conditional = counts.conditional_acceptance
    assert counts.acceptance_length == pytest.approx(1 + sum(marginals))
    assert list(marginals) == sorted(marginals, reverse=True)
    joint = [*itertools.accumulate(conditional, operator.mul), *[0.0] * (3 - len(conditional))]
    assert joint == pytest.approx(marginals)
    assert all(0 <= frac <= 1 for frac in conditional)


def test_counts_of_fewer_positions_are_filled_up_with_zeros() -> None:
    total = builders.counts(1, 1) + builders.counts(0, 0, 0, 2)
    assert total == StepCounts(steps=4, accepted=7, proposed=8, position_counts=(3, 2, 2))


def of_requests(*rows: tuple[str, int, StepCounts]) -> AcceptanceRecord:
    return builders.acceptance_of(
        [
            dataclasses.replace(builders.prompt_acceptance(counts), category=category, turn=turn)
            for category, turn, counts in rows
        ]
    )


LONG = builders.counts(80, 0, 0, 20)  # AL 1.6 of 100 steps
SHORT = builders.counts(0, 0, 0, 10)  # AL 4 of 10 steps
RECORD = of_requests(("math", 1, LONG), ("math", 2, SHORT), ("chat", 1, SHORT))


def test_a_record_falls_into_categories_and_turns() -> None:
    assert RECORD.total.acceptance_length == 1 + 120 / 120
    by_category = {name: part.total for name, part in RECORD.by_category.items()}
    assert by_category == {"math": LONG + SHORT, "chat": SHORT}
    by_turn = {turn: part.total for turn, part in RECORD.by_turn.items()}
    assert by_turn == {1: LONG + SHORT, 2: SHORT}


def test_without_steps_there_is_no_acceptance() -> None:
    assert (NO_STEPS.acceptance_rate, NO_STEPS.marginal_acceptance) == (None, ())


def test_drafts_that_were_not_counted_stay_unknown() -> None:
    unknown = dataclasses.replace(LONG, proposed=None)
    assert (unknown + SHORT).proposed is None
    assert (SHORT - unknown).proposed is None
    assert unknown.acceptance_rate is None
    assert unknown.acceptance_length == LONG.acceptance_length


ROUNDS = dataclasses.replace(
    builders.acceptance(builders.counts(8, 0, 6, 6), Source.VLLM_COUNTERS),
    prompts=(),
    rounds=tuple(
        RoundAcceptance(
            prompt_ids=prompt_ids,
            counts=builders.counts(4, 0, 3, 3),
            completion_tokens=24,
            requests=2,
        )
        for prompt_ids in (("chat-0", "chat-1"), ("chat-2",))
    ),
)


def test_only_rounds_whose_prompts_are_all_selected_remain() -> None:
    part = ROUNDS.only({"chat-0", "chat-2"})
    assert ROUNDS.prompt_ids == ("chat-0", "chat-1", "chat-2")
    assert part.prompt_ids == ("chat-2",)
    assert part.total == builders.counts(4, 0, 3, 3)


def test_a_part_of_rounds_has_their_later_tokens_and_the_steps_that_these_need() -> None:
    part = ROUNDS.only({"chat-2"})
    (last_round,) = part.rounds
    assert part.later_tokens == last_round.completion_tokens - last_round.requests
    assert part.undrafted_steps == 22 - 15 - 7 == 0
    long_round = dataclasses.replace(last_round, completion_tokens=40)
    longer = dataclasses.replace(ROUNDS, rounds=(long_round,)).only({"chat-2"})
    assert longer.undrafted_steps == 38 - last_round.counts.accepted - last_round.counts.steps


def test_over_all_steps_a_round_has_the_steps_that_its_tokens_need() -> None:
    """24 tokens of two requests are 22 later ones, of which 10 steps emit 10: 12 were drafts."""
    first = ROUNDS.over_all_steps.rounds[0]
    assert (first.counts.steps, first.counts.accepted) == (10, 12)
    longer = dataclasses.replace(ROUNDS.rounds[0], completion_tokens=40)
    assert longer.over_all_steps.counts.steps == 38 - 15


def test_requests_and_counters_of_an_engine_count_the_same_steps() -> None:
    assert ROUNDS.counts_as(Source.VLLM_REQUEST, View.VERIFIER)
    assert not ROUNDS.counts_as(Source.VLLM_REQUEST, View.EMITTED)
    assert not ROUNDS.counts_as(Source.SGLANG_REQUEST, View.VERIFIER)


def test_the_counters_of_replicas_are_added_up_as_far_as_all_count() -> None:
    one = Counters(
        steps=15,
        counts=builders.counts(4, 0, 3, 3),
        requests=3,
        running_requests=1,
        further={"queue_s": 0.5},
    )
    both = one + one
    assert (both.steps, both.requests, both.running_requests) == (30, 6, 2)
    assert both.counts == builders.counts(8, 0, 6, 6)
    assert both.further == {"queue_s": 1.0}
    less = one + Counters(steps=15)
    assert (less.steps, less.counts, less.requests, less.running_requests) == (30, None, None, None)


def test_a_replica_that_has_counted_nothing_yet_leaves_a_further_counter_out() -> None:
    one = Counters(steps=15, further={"queue_s": 0.5})
    none_yet = Counters(steps=15)
    assert (one + none_yet).further == (none_yet + one).further == {"queue_s": 0.5}
