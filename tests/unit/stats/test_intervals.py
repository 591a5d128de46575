"""Intervals: as wide as scipy's, and wrong as often as they say."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from specreg.stats.intervals import (
    LEVEL,
    LEVELS,
    MORE_LAUNCHES,
    PARTS,
    Column,
    Effect,
    Look,
    Spread,
    change_of_launches,
    change_of_ratio,
    t_quantile,
    t_tail,
)
from specreg.verdicts.selftest import PROMPT_SPREAD, RATES, STEPS, accepted_frac

FREEDOMS = (1, 2, 3, 4, 7, 15, 19, 79, 159, 1000, 5000)
TRIED_LEVELS = (0.5, 0.4, 0.1, 0.05, 0.01, 0.0093, 0.0003, 0.0001, 1e-6)


def accepted(
    draw: np.random.Generator, logit_offsets: Column, steps: int, shift: float = 0.0
) -> NDArray[np.int64]:
    """Accepted drafts of prompts whose logits differ from the usual, in so many steps each."""
    reached = np.full(logit_offsets.shape, steps)
    total = np.zeros_like(reached)
    for rate in RATES:
        reached = draw.binomial(reached, accepted_frac(rate, logit_offsets, shift))
        total += reached
    return total


def per_step(shift: float = 0.0) -> float:
    """Accepted drafts per step over all prompts there could be, A / S."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    reached = np.cumprod(
        [accepted_frac(rate, PROMPT_SPREAD * nodes, shift) for rate in RATES], axis=0
    )
    return float(weights @ reached.sum(axis=0) / weights.sum())


def ratio_change(
    sides: tuple[Column, Column], baseline_sides: tuple[Column, Column], *, exact: bool = False
) -> Effect:
    """The change from theirs to ours, where `exact` as if of theirs only the ratio were known."""
    expected = float(baseline_sides[0].sum() / baseline_sides[1].sum())
    return change_of_ratio(sides, None if exact else baseline_sides, expected)


@pytest.mark.parametrize("freedom", FREEDOMS)
def test_tail_and_quantile_are_students(freedom: int) -> None:
    for t in (0.0, 0.1, 0.7, 1.0, 2.0, 2.4, 3.5, 6.0, 40.0):
        exact = float(stats.t.sf(t, freedom))
        assert t_tail(t, freedom) == pytest.approx(exact, rel=1e-8, abs=1e-14)
        assert t_tail(-t, freedom) == pytest.approx(1 - exact, rel=1e-8)
    for level in TRIED_LEVELS:
        exact = float(stats.t.isf(level, freedom))
        assert t_quantile(level, freedom) == pytest.approx(exact, rel=1e-7, abs=1e-9)


@settings(max_examples=50, deadline=None)
@given(st.floats(-0.1, -0.001), st.floats(0.005, 0.1), st.sampled_from(FREEDOMS))
def test_chance_is_what_the_interval_just_reaches_nothing_at(
    estimate: float, error: float, freedom: int
) -> None:
    change = Effect(estimate_frac=estimate, error_frac=error, freedom=freedom)
    assert change.bounds(change.p_worse)[1] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(("estimate", "p"), [(-0.01, 0.0), (0.0, 1.0), (0.01, 1.0)])
def test_without_an_error_chance_explains_no_loss(estimate: float, p: float) -> None:
    change = Effect(estimate_frac=estimate, error_frac=0.0, freedom=1)
    assert change.bounds(LEVEL) == (estimate, estimate)
    assert change.p_worse == p


def test_a_ratio_changes_prompt_by_prompt() -> None:
    """R = 6/6 and R' = 9/6, so d = (0, -1/6, 1/6) - 0, and each has a third of the steps."""
    two = np.array([2.0, 2.0, 2.0])
    new = (np.array([3.0, 1.5, 4.5]), two)
    baseline = (two, two)
    change = ratio_change(new, baseline)
    assert change.estimate_frac == pytest.approx(math.log(1.5))
    assert change.error_frac == pytest.approx(math.sqrt(2 * (1 / 6 / (2 / 3)) ** 2))
    assert change.freedom == 2


def test_equal_runs_have_no_error_and_no_change() -> None:
    draw = np.random.default_rng(1)
    run = draw.random(80), np.ones(80)
    change = ratio_change(run, run)
    assert change == Effect(estimate_frac=0.0, error_frac=0.0, freedom=79)


def test_the_error_is_that_of_the_paired_bootstrap() -> None:
    draw = np.random.default_rng(2)
    new, baseline = ((draw.random(80), 1 + draw.random(80)) for _ in range(2))

    def change(x: Column, y: Column, x0: Column, y0: Column, axis: int) -> Column:
        ratio = x.sum(axis) / y.sum(axis)
        before = x0.sum(axis) / y0.sum(axis)
        return np.asarray(np.log(ratio / before))

    resampled = stats.bootstrap(
        (*new, *baseline), change, paired=True, vectorized=True, n_resamples=4000, rng=draw
    )
    found_change = ratio_change(new, baseline)
    assert found_change.estimate_frac == pytest.approx(float(change(*new, *baseline, axis=0)))
    assert found_change.error_frac == pytest.approx(resampled.standard_error, rel=0.1)


def test_a_baseline_that_is_only_a_figure_counts_as_exact() -> None:
    draw = np.random.default_rng(3)
    new, baseline = ((draw.random(80), draw.random(80)) for _ in range(2))
    change = ratio_change(new, baseline, exact=True)
    paired = ratio_change(new, baseline)
    of_no_spread = (baseline[1] * float(baseline[0].sum() / baseline[1].sum()), baseline[1])
    assert change.estimate_frac == paired.estimate_frac
    assert change.error_frac == pytest.approx(ratio_change(new, of_no_spread).error_frac, rel=1e-3)


@pytest.mark.parametrize("shared_steps", [0, 49], ids=["nothing-shared", "half-shared"])
@pytest.mark.parametrize("prompts", [20, 80])
def test_an_interval_is_wrong_as_often_as_it_says(prompts: int, shared_steps: int) -> None:
    """A bound of 1 % misses in 1 % of 6000 pairs of runs, give or take four binomial errors."""
    draw = np.random.default_rng(5)
    pairs = 6000
    shift = -0.15
    logit_offsets = draw.normal(0, PROMPT_SPREAD, (pairs, prompts))
    shared = accepted(draw, logit_offsets, shared_steps)
    own_steps = STEPS - shared_steps
    own_counts = (shared + accepted(draw, logit_offsets, own_steps, shift)).astype(np.float64)
    baseline_counts = (shared + accepted(draw, logit_offsets, own_steps)).astype(np.float64)
    steps = np.full(prompts, float(STEPS))
    bounds = np.array(
        [
            ratio_change((mine, steps), (before, steps)).bounds(LEVEL)
            for mine, before in zip(own_counts, baseline_counts, strict=True)
        ]
    )
    truth = math.log1p((per_step(shift) / per_step() - 1) * own_steps / STEPS)
    give = 4 * math.sqrt(LEVEL * (1 - LEVEL) / pairs)
    assert np.mean(bounds[:, 0] > truth) == pytest.approx(LEVEL, abs=give)
    assert np.mean(bounds[:, 1] < truth) == pytest.approx(LEVEL, abs=give)


@pytest.mark.parametrize(
    ("steps", "rate"),
    [
        pytest.param((98,) * 7 + (700,), 0.5, id="a prompt with half of all steps"),
        pytest.param((50,) * 7 + (1400,), 0.5, id="a prompt with 80 % of all steps"),
        pytest.param((98,) * 8, 0.04, id="eight prompts near AL = 1"),
        pytest.param((98,) * 80, 0.01, id="AL = 1.02"),
        pytest.param((40,) * 8, 0.99, id="nearly all drafts accepted"),
    ],
)
def test_an_interval_holds_near_the_ends(steps: Sequence[int], rate: float) -> None:
    """A bound of 1 % errs in at most 1.3 %, give or take four binomial errors of 4000 pairs."""
    pairs = 4000
    draw = np.random.default_rng(11)
    logits = draw.normal(math.log(rate / (1 - rate)), 0.8, (pairs, len(steps)))
    accepted_frac_of_prompts = 1 / (1 + np.exp(-logits))
    sides = []
    for _ in range(2):
        reached = np.broadcast_to(np.array(steps), logits.shape)
        total = np.zeros(logits.shape)
        for _ in range(4):
            reached = draw.binomial(reached, accepted_frac_of_prompts)
            total += reached
        sides.append(total)
    all_steps = np.array(steps, float)
    bounds = np.array(
        [
            ratio_change((mine, all_steps), (before, all_steps)).bounds(LEVEL)
            for mine, before in zip(*sides, strict=True)
            if before.any()
        ]
    )
    most = 0.013 + 4 * math.sqrt(LEVEL / pairs)
    assert np.mean(bounds[:, 0] > 0) < most
    assert np.mean(bounds[:, 1] < 0) < most


@pytest.mark.parametrize(("accepted_before", "is_proven"), [(3, False), (60, True)])
def test_nothing_accepted_is_as_certain_as_what_was_before(
    accepted_before: int, *, is_proven: bool
) -> None:
    """None after 3 happens by chance in an eighth of such runs; none after 60 never does."""
    steps = np.full(80, 98.0)
    before = np.zeros(80)
    before[:accepted_before] = 1
    change = ratio_change((np.zeros(80), steps), (before, steps))
    assert (change.bounds(1e-5)[1] < 0) is is_proven
    known_exactly = ratio_change((np.zeros(80), steps), (before, steps), exact=True)
    assert (known_exactly.bounds(1e-5)[1] < 0) is is_proven


def test_nothing_accepted_is_no_more_certain_for_a_baseline_of_many_launches() -> None:
    """Two drafts are expected tonight, however often they were recorded: P(0) is 13 %."""
    steps = np.full(80, 40.0)
    before = np.zeros(80)
    before[:6] = 1 / 3  # the mean of three launches
    change = ratio_change((np.zeros(80), steps), (before, steps))
    assert change.p_worse > 0.01
    few_steps = ratio_change((np.zeros(80), np.full(80, 0.05)), (np.full(80, 5.0), steps))
    assert few_steps.p_worse > 0.01


def test_the_levels_of_all_looks_add_up() -> None:
    """So that together they err no more often than one would, however they hang together."""
    of_prompts = (PARTS - 1) * LEVELS[Look.EARLY] + LEVELS[Look.FULL] + LEVELS[Look.EXTENDED]
    of_launches = LEVELS[Look.LAUNCH] + MORE_LAUNCHES * LEVELS[Look.FURTHER_LAUNCH]
    assert (of_prompts, of_launches) == pytest.approx((LEVEL, LEVEL))


QUIET = Spread(within_frac=0.02, between_frac=0.0, freedom=6, between_freedom=0)


def test_launches_are_compared_as_factors() -> None:
    """Ours at √(80 · 125) = 100 against 80: ln 1.25, with 0.02² (1/2 + 1/1) for its error."""
    change = change_of_launches((80.0, 125.0), (80.0,), QUIET, 1)
    assert change.estimate_frac == pytest.approx(math.log(1.25))
    assert change.error_frac == pytest.approx(0.02 * math.sqrt(1.5))
    assert change.freedom == 6


@pytest.mark.parametrize(
    ("between_frac", "freedom"),
    [
        pytest.param(0.0, 136, id="no-noise-takes-no-freedom"),
        pytest.param(0.005, 44, id="a-little-takes-some"),
        pytest.param(0.5, 4, id="much-is-known-as-badly-as-its-five-runs"),
    ],
)
def test_what_few_runs_tell_takes_freedom_by_its_part_of_the_error(
    between_frac: float, freedom: int
) -> None:
    """By the lesser of both, five runs without any noise would take 136 to 4."""
    spread = Spread(within_frac=0.01, between_frac=between_frac, freedom=136, between_freedom=4)
    change = change_of_launches((1.0,), (1.0,) * 3, spread, 1)
    assert change.freedom == pytest.approx(freedom, abs=0.5)


def test_run_and_baseline_each_carry_one_draw_of_what_hours_differ_by() -> None:
    spread = Spread(within_frac=0.03, between_frac=0.01, freedom=4, between_freedom=4)
    change = change_of_launches((1.0,) * 2, (1.0,) * 3, spread, 1)
    assert change.error_frac == pytest.approx(math.sqrt(0.03**2 * (1 / 2 + 1 / 3) + 2 * 0.01**2))
