"""The fold over nights: what opens a loss, what keeps it open, and what closes it."""

from collections.abc import Sequence

import numpy as np
import pytest

from specreg.judging.fold import GAINED, LOST, USUAL, Fold, Night
from specreg.judging.spread import SpreadEstimator

CASES = 12
SPREAD_FRAC = 0.01
USUAL_NIGHTS = 8


def fold_of(levels: Sequence[Sequence[float]]) -> Fold:
    """Fold nights of a dozen figures, each with one launch. The first night is the recording."""
    spread = SpreadEstimator([np.arange(CASES)], 0.01, 0.01)
    fold = Fold(spread, np.full(CASES, 0.05), fewest_decisions=CASES)
    for number, night in enumerate(levels):
        restarts = np.full(CASES, number == 0)
        fold.add(Night.of_levels(np.array(night), restarts))
    return fold


def usual_nights(count: int, seed: int = 1) -> list[list[float]]:
    """Draw nights without any change."""
    drawn = np.random.default_rng(seed).normal(0, SPREAD_FRAC, (count, CASES))
    return [list(night) for night in drawn]


def with_change(nights: list[list[float]], change: float, first: int) -> list[list[float]]:
    """Change the level of the first figure from one night on."""
    return [
        [level + change * (figure == 0 and number >= first) for figure, level in enumerate(night)]
        for number, night in enumerate(nights)
    ]


def test_identical_nights_open_nothing() -> None:
    fold = fold_of(usual_nights(20))
    assert (fold.state == USUAL).all()


@pytest.mark.parametrize(("change", "state"), [(-0.1, LOST), (0.1, GAINED)])
def test_a_lasting_change_is_open_since_its_first_night(change: float, state: int) -> None:
    fold = fold_of(with_change(usual_nights(USUAL_NIGHTS + 3), change, USUAL_NIGHTS))
    assert fold.state.tolist() == [state] + [USUAL] * (CASES - 1)
    assert fold.since[0] == USUAL_NIGHTS
    assert fold.size_of_change()[0] == pytest.approx(change, abs=0.02)


def test_a_loss_on_the_first_night_after_the_recording_is_found() -> None:
    fold = fold_of(with_change(usual_nights(9), -0.1, 1))
    assert fold.state[0] == LOST
    assert fold.since[0] == 1


def test_a_loss_stays_open_through_a_night_that_looks_better() -> None:
    nights = with_change(usual_nights(USUAL_NIGHTS + 6), -0.1, USUAL_NIGHTS)
    nights[-1][0] += 0.03
    assert fold_of(nights).state[0] == LOST


def test_a_mended_loss_is_closed_and_leaves_the_level_alone() -> None:
    lost = with_change(usual_nights(USUAL_NIGHTS + 5), -0.1, USUAL_NIGHTS)
    fold = fold_of([*lost, *usual_nights(2, seed=2)])
    assert fold.state[0] == USUAL
    assert fold.change_of(np.zeros(CASES), np.ones(CASES)).estimate[0] == pytest.approx(0, abs=0.01)


def test_what_falls_back_from_a_gain_has_lost_nothing() -> None:
    gained = with_change(usual_nights(USUAL_NIGHTS + 6), 0.1, USUAL_NIGHTS)
    fold = fold_of([*gained, *usual_nights(6, seed=3)])
    assert (fold.state == USUAL).all()


def test_one_night_of_a_loss_proves_nothing_unless_it_is_clear() -> None:
    assert fold_of(with_change(usual_nights(9), -0.06, 8)).state[0] == USUAL


def test_a_clear_loss_needs_two_launches() -> None:
    nights = usual_nights(USUAL_NIGHTS)
    for launches, state in ((1.0, USUAL), (2.0, LOST)):
        fold = fold_of(nights)
        levels = np.zeros(CASES)
        levels[0] = -0.3
        night = Night(
            levels=levels,
            launches=np.full(CASES, launches),
            planned_levels=levels,
            planned=np.ones(CASES),
            launch_squares=np.zeros(CASES),
            restarts=np.zeros(CASES, bool),
            controls=np.full(CASES, np.nan),
            lowest=levels,
            highest=levels,
        )
        fold.add(night)
        assert fold.state[0] == state


def test_one_terrible_night_hides_no_lasting_loss() -> None:
    nights = with_change(usual_nights(USUAL_NIGHTS + 4), -0.1, USUAL_NIGHTS + 1)
    nights[USUAL_NIGHTS][0] = -0.5
    assert fold_of(nights).state[0] == LOST


def test_a_recorded_level_closes_an_open_loss() -> None:
    fold = fold_of(with_change(usual_nights(USUAL_NIGHTS + 4), -0.1, USUAL_NIGHTS))
    restarts = np.zeros(CASES, bool)
    restarts[0] = True
    fold.add(Night.of_levels(np.full(CASES, -0.1) * restarts, restarts))
    fold.add(Night.of_levels(np.full(CASES, -0.1) * restarts, np.zeros(CASES, bool)))
    assert fold.state[0] == USUAL
    assert fold.kept.estimate[0] == pytest.approx(0)


def test_a_loss_within_undecided_nights_never_becomes_the_level() -> None:
    """The level stays where it was recorded, although no night of the loss is proven."""
    fold = fold_of(with_change(usual_nights(6), -0.07, 1))
    assert fold.kept.estimate[0] == pytest.approx(-0.07, abs=0.02)


def test_a_figure_without_a_value_tonight_keeps_its_state() -> None:
    nights = with_change(usual_nights(USUAL_NIGHTS + 4), -0.1, USUAL_NIGHTS)
    nights.append([float("nan")] * CASES)
    fold = fold_of(nights)
    assert fold.state[0] == LOST
    assert np.isnan(fold.kept.estimate[0])
