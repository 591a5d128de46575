"""A series of nights: tonight's change, and a loss that lasts with its first night."""

from collections.abc import Sequence

import numpy as np
import pytest

from specreg.stats.nights import (
    NightLevel,
    NightSpread,
    change_of_last_nights,
    change_tonight,
    lasting_loss,
    start_of_gain,
    variance_of_nights,
)
from specreg.stats.variance import Variance

NO_LAUNCH = Variance(value=0.0, freedom=100)
SPREAD = NightSpread(night=Variance(value=0.01**2, freedom=100), launch=NO_LAUNCH)


def nights(levels: Sequence[float], launches: int = 1) -> list[NightLevel]:
    return [
        NightLevel(run=f"{number:03}", level=level, launches=launches)
        for number, level in enumerate(levels)
    ]


def test_tonight_is_held_against_the_mean_of_the_nights_before() -> None:
    effect = change_tonight(nights([0.0, 0.02, 0.04, -0.1]), SPREAD)
    assert effect.estimate_frac == pytest.approx(-0.12)
    assert effect.error_frac == pytest.approx(0.01 * np.sqrt(1 + 1 / 3))


def test_a_night_of_several_launches_is_better_known() -> None:
    launch = Variance(value=0.01**2, freedom=100)
    spread = NightSpread(night=Variance(value=2 * 0.01**2, freedom=100), launch=launch)
    assert spread.of(1) == pytest.approx(2 * 0.01**2)
    assert spread.of(4) == pytest.approx(1.25 * 0.01**2)


def test_a_step_hardly_widens_the_spread_of_nights() -> None:
    """It is in one difference of thirty, and would be most of a plain variance."""
    rng = np.random.default_rng(1)
    levels = rng.normal(0, 0.01, 31)
    levels[15:] -= 0.05
    variance = variance_of_nights(nights(list(levels)), NO_LAUNCH)
    assert variance is not None
    assert variance.value == pytest.approx(0.01**2, rel=0.6)
    assert levels.var(ddof=1) > 5 * 0.01**2
    assert variance.freedom == pytest.approx(20)


@pytest.mark.parametrize("first", [3, 8, 15])
def test_a_loss_is_dated_by_its_first_night(first: int) -> None:
    levels = np.random.default_rng(first).normal(0, 0.01, first + 6)
    levels[first:] -= 0.05
    change = lasting_loss(nights(list(levels)), SPREAD, least_frac=0.02)
    assert change is not None
    assert abs(change.since - first) <= 1
    assert change.effect.estimate_frac == pytest.approx(-0.05, abs=0.02)
    assert change.effect.p_worse < 1e-6


@pytest.mark.parametrize(
    "levels",
    [
        pytest.param([0.0] * 8 + [-0.2], id="one-bad-night-makes-no-level"),
        pytest.param([0.0] * 8 + [-0.05] * 5 + [0.0], id="it-is-mended-tonight"),
        pytest.param([0.0] * 8 + [-0.01] * 8, id="less-than-is-looked-for"),
        pytest.param([0.0] * 8 + [0.05] * 8, id="a-gain"),
        pytest.param([0.0], id="a-baseline-alone"),
    ],
)
def test_what_is_no_lasting_loss(levels: list[float]) -> None:
    assert lasting_loss(nights(levels), SPREAD, least_frac=0.02) is None


def test_a_slow_drift_is_held_against_the_first_nights() -> None:
    """No single step of it would be found, because each night is like its neighbours."""
    levels = -0.005 * np.arange(10)
    change = lasting_loss(nights(list(levels)), SPREAD, least_frac=0.02)
    assert change is not None
    assert change.effect.estimate_frac < -0.03
    assert change.effect.p_worse < 1e-4


def test_the_level_follows_a_gain_that_lasted_and_no_other() -> None:
    def start(levels: list[float]) -> int:
        return start_of_gain(nights(levels), SPREAD, level=1e-4, least_frac=0.02)

    assert start([0.0] * 8 + [0.1] * 5) == 8
    assert start([0.0] * 8 + [0.1] * 4) == 0
    assert start([0.0] * 8 + [-0.1] * 5) == 0
    assert start([0.0] * 8 + [0.1] * 5 + [0.2] * 5) == 13


def test_nights_together_are_held_against_the_first_ones() -> None:
    effect = change_of_last_nights(nights([0.0, 0.0, 0.9, -0.03, -0.05]), 2, SPREAD, 2)
    assert effect.estimate_frac == pytest.approx(-0.04)
    assert effect.error_frac == pytest.approx(0.01)
