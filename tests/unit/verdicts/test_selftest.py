"""The self-test: it notices a rule that errs, and says what it saw."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from specreg.measurement.metrics import METRICS
from specreg.stats.alpha_spending import Look
from specreg.verdicts.judge import Outcome
from specreg.verdicts.selftest import (
    PLANTS,
    Plant,
    is_kept,
    most_by_chance,
    run_selftest,
    try_nights,
    try_plant,
)
from specreg.verdicts.simulation import NO_LOSS, PROMPTS, Loss, World, simulated_case

NOTHING = PLANTS[0]
FIFTEEN = PLANTS[4]
SPEED = METRICS["throughput_tokens_per_s"]
LENGTH = METRICS["acceptance_length_tokens"]


def launched(loss: Loss, launches: int = 10) -> list[float]:
    """The acceptance lengths of some launches of a case."""
    world = World(np.random.default_rng(3))
    case = simulated_case(0)
    known = world.known_of(case)
    found = [world.launch(case, known, loss, asked=[SPEED]) for _ in range(launches)]
    return [launch.values[LENGTH.name] for launch in found]


def test_a_planted_loss_is_as_large_as_it_says() -> None:
    lost = np.mean(launched(Loss(acceptance_frac=0.5))) - 1
    assert lost / (np.mean(launched(NO_LOSS)) - 1) == pytest.approx(0.5, abs=0.03)


def test_a_great_loss_is_caught_early_and_none_is_missed() -> None:
    outcomes, used_frac = try_plant(FIFTEEN, 20, seed=1)
    assert outcomes == {Outcome.REGRESSED: 20}
    assert used_frac < 0.5


def test_a_wide_tolerance_lets_a_loss_pass_and_the_self_test_sees_it() -> None:
    blind = dataclasses.replace(FIFTEEN, tolerances=((LENGTH.name, 0.5),))
    outcomes, used_frac = try_plant(blind, 15, seed=1)
    assert outcomes == {Outcome.PASS: 15}
    assert not is_kept(FIFTEEN, outcomes, used_frac)


@pytest.mark.parametrize(
    ("plant", "outcomes", "used_frac", "kept"),
    [
        (NOTHING, {Outcome.PASS: 300}, 1.02, True),
        (NOTHING, {Outcome.PASS: 280, Outcome.INCONCLUSIVE: 20}, 1.02, False),
        (NOTHING, {Outcome.PASS: 296, Outcome.REGRESSED: 4}, 1.02, False),
        (NOTHING, {Outcome.PASS: 300}, 1.2, False),
        (FIFTEEN, {Outcome.REGRESSED: 300}, 0.4, True),
        (FIFTEEN, {Outcome.REGRESSED: 300}, 0.6, False),
        (FIFTEEN, {Outcome.INCONCLUSIVE: 300}, 0.4, False),
        (FIFTEEN, {Outcome.REGRESSED: 280, Outcome.PASS: 20}, 0.4, False),
    ],
)
def test_a_judge_that_errs_is_noticed(
    plant: Plant, outcomes: dict[Outcome, int], used_frac: float, *, kept: bool
) -> None:
    assert is_kept(plant, outcomes, used_frac) is kept


def test_a_night_has_the_verdicts_of_all_its_cases() -> None:
    alarms, _, verdicts = try_nights(1, prompts=20, seed=1)
    assert (alarms, verdicts) == (0, 72 * 8)


def test_a_run_has_the_prompts_of_its_case_unless_it_was_extended() -> None:
    world = World(np.random.default_rng(3))
    case = simulated_case(0)
    launch = world.launch(case, world.known_of(case), NO_LOSS, asked=[LENGTH])
    assert launch.acceptance is not None
    many = 2 * PROMPTS if launch.look is Look.EXTENDED else PROMPTS
    assert len(launch.acceptance.prompts) == many


@pytest.mark.parametrize(
    ("trials", "frac"),
    [(100, 0.01), (300, 0.01), (300, 0.05), (300, 0.0), (300, 1.0), (9000, 0.02)],
)
def test_chance_takes_a_few_more_than_its_share(trials: int, frac: float) -> None:
    assert most_by_chance(trials, frac) == stats.binom.ppf(0.999, trials, frac)


def test_the_table_says_what_was_caught_and_whether_the_rates_are_kept() -> None:
    text, kept = run_selftest(nights=1, trials=5)
    assert kept
    assert "AL - 1: -16 % (AL: -10 %)" in text
    assert "1 identical nights of 72 cases of 80 prompts: 0 raised an alarm" in text
    assert text.endswith("the error rates are kept")
