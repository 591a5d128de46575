"""The self-test: it notices a rule that errs, and says what it saw."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from specreg.measurement.metrics import METRICS
from specreg.verdicts.selftest import (
    LOSSES,
    NO_LOSS,
    SHORT_STEPS,
    AcceptanceLoss,
    World,
    is_within_limits,
    most_by_chance,
    run_selftest,
    simulated_case,
    try_loss,
)
from specreg.verdicts.verdict import Outcome

[FIFTEEN] = [loss for loss in LOSSES if loss.loss_frac == 0.15]
LENGTH = METRICS["acceptance_length_tokens"]
PASS = Outcome.PASS
REGRESSED = Outcome.REGRESSED
INCONCLUSIVE = Outcome.INCONCLUSIVE


def mean_length(loss: AcceptanceLoss) -> float:
    """The mean acceptance length of some launches of a case."""
    world = World(3)
    case = simulated_case(0)
    known = world.baselines_of(case)
    launches = [world.launch(case, known, loss) for _ in range(10)]
    return float(np.mean([launch.values[LENGTH.name] for launch in launches]))


def test_a_planted_loss_is_as_large_as_it_says() -> None:
    lost = mean_length(dataclasses.replace(NO_LOSS, loss_frac=0.5)) - 1
    assert lost / (mean_length(NO_LOSS) - 1) == pytest.approx(0.5, abs=0.05)


def test_short_answers_tell_less_and_never_the_wrong_thing() -> None:
    short = [loss for loss in LOSSES if loss.steps == SHORT_STEPS]
    outcomes = [try_loss(loss, 20, World(1, loss.steps))[0] for loss in short]
    assert len(outcomes) == 4
    assert set(outcomes[0]) == {PASS, INCONCLUSIVE}
    assert all(PASS not in of_loss for of_loss in outcomes[1:])


def test_a_great_loss_is_caught_early() -> None:
    outcomes, used_frac = try_loss(FIFTEEN, 20, World(1))
    assert outcomes == {REGRESSED: 20}
    assert used_frac < 0.6


@pytest.mark.parametrize(
    ("loss", "outcomes", "used_frac", "kept"),
    [
        (NO_LOSS, {PASS: 300}, 1.02, True),
        (NO_LOSS, {PASS: 280, INCONCLUSIVE: 20}, 1.02, False),
        (NO_LOSS, {PASS: 296, REGRESSED: 4}, 1.02, False),
        (NO_LOSS, {PASS: 300}, 1.2, False),
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


def test_the_table_says_what_was_caught_and_whether_the_rates_are_kept() -> None:
    text, kept = run_selftest(trials=5)
    assert kept
    assert "AL - 1: -15 %" in text
