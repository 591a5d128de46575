"""The self-test: it notices a rule that errs, and says what it saw."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from specreg.measurement.metrics import METRICS
from specreg.verdicts.selftest import (
    IDENTICAL,
    LOSSES,
    LOSSES_OF_SPEED,
    NOTHING,
    AcceptanceLoss,
    Machine,
    Nights,
    World,
    is_within_limits,
    most_by_chance,
    run_selftest,
    simulated_case,
    try_loss,
    try_nights,
)
from specreg.verdicts.verdict import Outcome

[FIFTEEN] = [loss for loss in LOSSES if loss.loss_frac == 0.15]
LENGTH = METRICS["acceptance_length_tokens"]
PASS = Outcome.PASS
REGRESSED = Outcome.REGRESSED
INCONCLUSIVE = Outcome.INCONCLUSIVE
FEW_CASES = 10
"""Enough to tell what cases do alike, in a tenth of the time of a night."""


def mean_length(loss: AcceptanceLoss) -> float:
    """The mean acceptance length of some launches of a case."""
    world = World(3)
    case = simulated_case(0)
    known = world.baselines_of(case)
    launches = [world.launch(case, known, loss) for _ in range(10)]
    return float(np.mean([launch.values[LENGTH.name] for launch in launches]))


def test_a_planted_loss_is_as_large_as_it_says() -> None:
    lost = mean_length(dataclasses.replace(NOTHING, loss_frac=0.5)) - 1
    assert lost / (mean_length(NOTHING) - 1) == pytest.approx(0.5, abs=0.05)


def test_a_great_loss_is_caught_early() -> None:
    outcomes, used_frac = try_loss(FIFTEEN, 20, World(1))
    assert outcomes == {REGRESSED: 20}
    assert used_frac < 0.6


@pytest.mark.parametrize(
    ("loss", "outcomes", "used_frac", "kept"),
    [
        (NOTHING, {PASS: 300}, 1.02, True),
        (NOTHING, {PASS: 280, INCONCLUSIVE: 20}, 1.02, False),
        (NOTHING, {PASS: 296, REGRESSED: 4}, 1.02, False),
        (NOTHING, {PASS: 300}, 1.2, False),
        (FIFTEEN, {REGRESSED: 300}, 0.4, True),
        (FIFTEEN, {REGRESSED: 300}, 0.7, False),
        (FIFTEEN, {INCONCLUSIVE: 300}, 0.4, False),
        (FIFTEEN, {REGRESSED: 280, PASS: 20}, 0.4, False),
    ],
)
def test_a_judge_that_errs_is_noticed(
    loss: AcceptanceLoss, outcomes: dict[Outcome, int], used_frac: float, *, kept: bool
) -> None:
    assert is_within_limits(loss, outcomes, used_frac) is kept


@pytest.mark.parametrize(("trials", "frac"), [(100, 0.01), (300, 0.05), (300, 0.0), (300, 1.0)])
def test_chance_takes_a_few_more_than_its_share(trials: int, frac: float) -> None:
    assert most_by_chance(trials, frac) == stats.binom.ppf(0.999, trials, frac)


@pytest.mark.parametrize("nights", IDENTICAL, ids=lambda nights: nights.name)
def test_identical_nights_are_green_from_the_first_one_on(nights: Nights) -> None:
    """Even where hours differ far more than is tolerated, and no night was known before."""
    counts = try_nights(dataclasses.replace(nights, nights=6), 2, cases=FEW_CASES)
    counted = [night for night in range(1, 7) if not nights.is_lost_on(night)]
    assert counts.nights == 2 * len(counted)
    assert counts.red == 0


@pytest.mark.parametrize("nights", LOSSES_OF_SPEED, ids=lambda nights: nights.name)
def test_a_slower_case_is_named_in_time_with_the_night_it_began(nights: Nights) -> None:
    counts = try_nights(nights, 2, cases=FEW_CASES)
    assert counts.named_by(nights.named_by) >= nights.least_named_frac
    if nights.loss_frac:
        assert counts.dated == len(counts.named_on)


def test_a_whole_engine_that_is_slower_is_named_once_nights_are_known() -> None:
    """All cases are 25 % slower alike: the machine never was, on any of seven nights."""
    machine = Machine(1, Nights(name="", launch_frac=0.01, day_frac=0.02), FEW_CASES)
    for night in range(1, 8):
        assert not any(verdict.fails for verdict in machine.night(night))
    machine.nights = dataclasses.replace(machine.nights, everything_frac=0.25, since=8)
    verdicts = machine.night(8)
    slower = [verdict for verdict in verdicts if verdict.metric == "throughput_tokens_per_s"]
    assert {verdict.outcome for verdict in slower} == {REGRESSED}


def test_a_lost_history_costs_sight_and_never_a_right_verdict() -> None:
    machine = Machine(2, Nights(name="", launch_frac=0.02, day_frac=0.05), FEW_CASES)
    for night in range(1, 5):
        machine.forget()
        assert not any(verdict.fails for verdict in machine.night(night))


def test_the_table_says_what_was_caught_and_whether_the_rates_are_kept() -> None:
    text, kept = run_selftest(series=1, trials=5, cases=FEW_CASES)
    assert kept
    assert "AL - 1: -15 %" in text
    assert "launches 5 %, nights 7 %" in text
    assert text.endswith("the error rates are kept")
