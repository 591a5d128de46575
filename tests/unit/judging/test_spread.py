"""How figures vary: robust against one bad night, and learnt from each other."""

import numpy as np
import pytest

from specreg.judging.spread import SpreadEstimator, moderated, quantiles
from specreg.stats.intervals import t_quantile
from specreg.stats.variance import Variance

FIGURES = 20
ONE = np.ones(FIGURES)
ALL = np.ones(FIGURES, bool)


def spread_of(levels: np.ndarray) -> SpreadEstimator:
    spread = SpreadEstimator([np.arange(FIGURES)], 0.05, 0.01)
    for number, night in enumerate(levels):
        spread.add_night(night, ONE, ALL, is_recorded=ALL if number == 0 else ~ALL)
    return spread


def test_nights_show_their_spread() -> None:
    spread = spread_of(np.random.default_rng(1).normal(0, 0.02, (20, FIGURES)))
    assert np.sqrt(spread.night) == pytest.approx(0.02, rel=0.15)


def test_one_bad_night_hardly_widens_the_spread() -> None:
    levels = np.random.default_rng(1).normal(0, 0.02, (20, FIGURES))
    usual = spread_of(levels).night[0]
    levels[10, 0] -= 0.5
    assert spread_of(levels).night[0] < 1.6 * usual


def test_a_change_since_the_recorded_night_does_not_widen_the_spread() -> None:
    levels = np.random.default_rng(1).normal(0, 0.02, (20, FIGURES))
    usual = spread_of(levels).night[0]
    levels[1:, 0] -= 0.5
    assert spread_of(levels).night[0] == pytest.approx(usual, rel=0.05)


def test_launches_average_out_their_own_part_only() -> None:
    spread = spread_of(np.random.default_rng(1).normal(0, 0.02, (20, FIGURES)))
    four = spread.of(np.full(FIGURES, 4.0))
    assert (four < spread.of(ONE)).all()
    assert (four > spread.of(ONE) / 4).all()


def test_equal_figures_share_what_they_show() -> None:
    squares = np.array([4.0, 5.0, 6.0, 5.0])
    variances, freedom = moderated(squares, np.full(4, 5.0), Variance(value=100.0, freedom=8))
    assert variances == pytest.approx(1, rel=0.05)
    assert (freedom > 20).all()


def test_figures_that_differ_keep_their_own_spread() -> None:
    squares = np.array([1.0, 1.0, 1.0, 1000.0])
    variances, _ = moderated(squares, np.full(4, 10.0), Variance(value=1.0, freedom=8))
    assert variances[3] > 50 * variances[0] / 10


def test_before_the_first_nights_the_assumed_spread_counts() -> None:
    variances, freedom = moderated(np.zeros(3), np.zeros(3), Variance(value=2.0, freedom=8))
    assert variances == pytest.approx(2.0)
    assert (freedom <= 8).all()


def test_quantiles_are_those_of_student() -> None:
    assert quantiles(0.01, np.array([3.0, 30.0])) == pytest.approx(
        [t_quantile(0.01, 3), t_quantile(0.01, 30)]
    )
