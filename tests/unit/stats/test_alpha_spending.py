"""Looking several times: the looks share one level, and no more than that is wrong."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from specreg.stats.alpha_spending import LEVEL, MORE_LAUNCHES, PARTS, Look
from specreg.stats.intervals import t_quantile

PROMPTS = 80
RUNS = 400_000
LOOKS = (*(Look.EARLY,) * (PARTS - 1), Look.FULL, Look.EXTENDED)
BY_PROMPTS = (16, 32, 48, 64, PROMPTS, 2 * PROMPTS)
ERROR_FRAC = 0.0117
"""Of a change of AL - 1 by 80 prompts, with no text shared: the worst case of JUDGE.md."""
TOLERANCE_FRAC = 0.05


def gives(share: float) -> float:
    """Four binomial errors of a share of all simulated runs."""
    return 4 * math.sqrt(share * (1 - share) / RUNS)


@pytest.fixture(scope="module")
def looks() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """How far each run's mean lies from the truth at each look, and the error it believes in.

    Both of shape (looks, runs), by prompts that differ by 1. Of each part only what is needed is
    drawn: its sum is normal, and its squares about their mean are of χ², independent of that.
    """
    draw = np.random.default_rng(1)
    sizes = np.diff(BY_PROMPTS, prepend=0)
    sums = draw.normal(size=(len(sizes), RUNS)) * np.sqrt(sizes)[:, None]
    squares = draw.chisquare(sizes - 1, size=(RUNS, len(sizes))).T + sums**2 / sizes[:, None]
    prompts = np.array(BY_PROMPTS)[:, None]
    means = np.cumsum(sums, axis=0) / prompts
    variances = (np.cumsum(squares, axis=0) - prompts * means**2) / (prompts - 1)
    return means, np.sqrt(variances / prompts)


def test_the_levels_add_up() -> None:
    assert sum(look.value for look in LOOKS) == pytest.approx(LEVEL)
    further = MORE_LAUNCHES * Look.FURTHER_LAUNCH.value
    assert Look.LAUNCH.value + further == pytest.approx(LEVEL)


def test_a_loss_as_large_as_tolerated_seldom_passes_at_any_look(
    looks: tuple[NDArray[np.float64], NDArray[np.float64]],
) -> None:
    means, errors = looks
    proven = [
        mean > t_quantile(look.value, prompts - 1) * error
        for look, mean, error, prompts in zip(LOOKS, means, errors, BY_PROMPTS, strict=True)
    ]
    for look, at_look in zip(LOOKS, proven, strict=True):
        assert np.mean(at_look) == pytest.approx(look.value, abs=gives(look.value))
    passed = np.mean(np.any(proven, axis=0))
    assert Look.FULL.value - gives(LEVEL) < passed < LEVEL + gives(LEVEL)


def test_a_run_that_changed_nothing_passes_and_the_extension_settles_the_rest(
    looks: tuple[NDArray[np.float64], NDArray[np.float64]],
) -> None:
    means, errors = looks
    scale = ERROR_FRAC * math.sqrt(PROMPTS)
    full, extended = (
        scale * (means[row] - t_quantile(look.value, prompts - 1) * errors[row]) > -TOLERANCE_FRAC
        for look, row, prompts in ((Look.FULL, 4, PROMPTS), (Look.EXTENDED, 5, 2 * PROMPTS))
    )
    assert np.mean(full) == pytest.approx(0.965, abs=0.01)
    assert np.mean(full | extended) > 0.99


def test_a_slowdown_as_large_as_tolerated_seldom_passes_after_any_launch() -> None:
    """Launches that differ by 1, of three in the baseline and a spread known from 17 of them."""
    draw = np.random.default_rng(2)
    freedom, recorded = 16, 3
    ours = np.cumsum(draw.normal(size=(1 + MORE_LAUNCHES, RUNS)), axis=0)
    theirs = draw.normal(size=RUNS) / math.sqrt(recorded)
    spread = np.sqrt(draw.chisquare(freedom, RUNS) / freedom)
    looks = (Look.LAUNCH, *(Look.FURTHER_LAUNCH,) * MORE_LAUNCHES)
    proven = [
        total / launches - theirs
        > t_quantile(look.value, freedom) * spread * math.sqrt(1 / launches + 1 / recorded)
        for launches, (look, total) in enumerate(zip(looks, ours, strict=True), start=1)
    ]
    for look, at_look in zip(looks, proven, strict=True):
        assert np.mean(at_look) == pytest.approx(look.value, abs=gives(look.value))
    passed = np.mean(np.any(proven, axis=0))
    assert Look.LAUNCH.value < passed < LEVEL
