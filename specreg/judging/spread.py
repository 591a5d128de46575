"""How much the figures of a machine vary from night to night, and from launch to launch.

A figure is one column of an array: one metric of one case. Variances are those of logarithms.
"""

import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specreg.stats.intervals import t_quantile
from specreg.stats.variance import Variance

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
Bools = NDArray[np.bool_]

_MOST_SPREADS = 2.5
"""A difference of two nights counts as no more than this many spreads, so that one bad night
doesn't widen the spread for good."""
_DIFFERENCE_FREEDOM = 2 / 3
"""The degrees of freedom of a difference between successive nights. It is less than 1 because
neighbouring differences share a night (von Neumann 1941)."""
_PRIOR_FREEDOM = 8.0
"""How many degrees of freedom the assumed spread of nights is worth."""
_LAUNCH_PRIOR_FREEDOM = 2.0
"""How many degrees of freedom the assumed spread of launches is worth."""
_FEWEST_FIGURES = 5
"""The fewest figures that show on a machine's first night how much they vary."""
_MEDIAN_OF_SQUARES = 0.4549
"""The median of the square of a standard normal value."""
_LEAST_SIMILARITY = 4.0
"""The least degrees of freedom that the typical variance of all figures is worth to one of them."""
_CERTAIN = 1e6
"""Degrees of freedom of a variance that counts as exactly known."""
_LEAST_VARIANCE = 1e-8
"""The variance of a figure that always repeats exactly: a spread of 0.01 %."""
_MOST_FREEDOM = 200
"""With more degrees of freedom, Student's quantile hardly changes."""

_KEPT_ERRORS = 2.4
"""How many standard errors a proof takes: Student's quantile at 1 % with some 50 nights."""
_SURE_ERRORS = 3.0
"""How many standard errors a spread has to be larger than allowed, so that it surely is."""
MOST_NIGHTS = 100
"""The most nights that are worth waiting for. They last more than three months."""


class SpreadEstimator:
    """Estimates, night by night, how figures vary. It is a part of the fold's state.

    Nights are compared with the nights before them, so that a lasting change counts only once.

    Args:
        groups: the figures of each metric, which have similar spreads.
        night_frac: the spread between nights that is assumed at first, without that of launches.
        launch_frac: the spread between launches that is assumed at first.

    Attributes:
        night: the variance of nights with one launch, for each figure.
        freedom: the degrees of freedom of that estimate.
    """

    def __init__(self, groups: Sequence[Ints], night_frac: float, launch_frac: float) -> None:
        figures = sum(len(group) for group in groups)
        self._groups = groups
        self._has_others = np.zeros(figures, bool)
        for group in groups:
            self._has_others[group] = len(group) > 1
        self._between_prior = night_frac**2
        self._launch_prior = launch_frac**2
        self._launch_squares = np.zeros(figures)
        self._launch_freedom = np.zeros(figures)
        self._night_squares = np.zeros(figures)
        self._night_freedom = np.zeros(figures)
        self._first_squares = np.zeros(figures)
        self._first_freedom = np.zeros(figures)
        self._levels_before = np.full(figures, np.nan)
        self._was_recorded = np.zeros(figures, bool)
        self._launches_before = np.ones(figures)
        self._launch = np.full(figures, self._launch_prior)
        self.night = np.full(figures, self._launch_prior + self._between_prior)
        self.freedom = np.full(figures, _PRIOR_FREEDOM)

    def of(self, launches: Floats) -> Floats:
        """Return the variance of nights with these numbers of launches."""
        launch = np.minimum(self._launch, self.night)
        return np.asarray(self.night - launch + launch / launches)

    def add_launches(self, squares: Floats, freedom: Floats) -> None:
        """Add the launches of a night.

        Args:
            squares: the sum of squares of the launches of each figure around their mean.
            freedom: the degrees of freedom of this sum, one less than the launches.
        """
        self._launch_squares += squares
        self._launch_freedom += freedom

    def add_night(
        self, levels: Floats, launches: Floats, is_usual: Bools, is_recorded: Bools
    ) -> None:
        """Add a night, and estimate the variances anew.

        Args:
            levels: the level of each figure over its planned launches; NaN without one.
            launches: how many launches these are.
            is_usual: whether this night of a figure shows how much it varies.
            is_recorded: whether this night recorded the level of a figure.
        """
        has_level = np.isfinite(levels)
        usual = is_usual & has_level
        known = usual & np.isfinite(self._levels_before)
        differences = np.where(known, (levels - self._levels_before) ** 2, 0.0)
        most = 2 * _MOST_SPREADS**2 * self._typical(differences, known)

        # Several launches average a part of their variance out. It is added back.
        averaged_out = self._launch * (2 - 1 / launches - 1 / self._launches_before)
        variances = (np.minimum(differences, most) + averaged_out) / 2
        squares = np.where(known, _DIFFERENCE_FREEDOM * variances, 0.0)
        freedom = np.where(known, _DIFFERENCE_FREEDOM, 0.0)
        # A figure alone shows nothing of how figures vary together.
        shared_squares = np.where(self._has_others, squares + self._first_squares, 0.0)
        shared_freedom = np.where(self._has_others, freedom + self._first_freedom, 0.0)
        for group in self._groups:
            self._estimate(
                group, float(shared_squares[group].sum()), float(shared_freedom[group].sum())
            )

        # A loss since the recorded night would hide itself in the step from there. Where no others
        # show how figures vary, that step is still better than none.
        first = self._was_recorded & self._has_others
        self._first_squares += np.where(first, squares, 0.0)
        self._first_freedom += np.where(first, freedom, 0.0)
        self._night_squares += np.where(first, 0.0, squares)
        self._night_freedom += np.where(first, 0.0, freedom)
        self._was_recorded = np.where(usual, is_recorded, self._was_recorded)
        self._levels_before = np.where(usual, levels, self._levels_before)
        self._launches_before = np.where(usual, launches, self._launches_before)

    def _typical(self, differences: Floats, known: Bools) -> Floats:
        """Return the variance of a typical figure of each metric, according to earlier nights."""
        typical = np.empty(len(differences))
        for group in self._groups:
            squares = (self._night_squares + self._first_squares)[group].sum()
            freedom = (self._night_freedom + self._first_freedom)[group].sum() + _PRIOR_FREEDOM
            prior = _PRIOR_FREEDOM * (self._launch_prior + self._between_prior)
            typical[group] = (squares + prior) / freedom
            tonight = differences[group[known[group]]]
            if freedom == _PRIOR_FREEDOM and len(tonight) >= _FEWEST_FIGURES:
                # On the first night, figures show how much they vary by how much they differ.
                typical[group] = np.median(tonight) / (2 * _MEDIAN_OF_SQUARES)

        return typical

    def _estimate(self, group: Ints, shared_squares: float, shared_freedom: float) -> None:
        """Estimate the variances of a metric.

        Tonight, and the step from the recorded night, show how the figures vary together. They are
        left out of each figure's own variance, because a loss on these nights would hide itself.
        """
        self._launch[group], _ = moderated(
            self._launch_squares[group],
            self._launch_freedom[group],
            Variance(value=self._launch_prior, freedom=_LAUNCH_PRIOR_FREEDOM),
        )
        prior = self._between_prior + float(self._launch[group].mean())
        night, freedom = moderated(
            self._night_squares[group],
            self._night_freedom[group],
            Variance(value=prior, freedom=_PRIOR_FREEDOM),
            further_squares=shared_squares,
            further_freedom=shared_freedom,
        )
        self.night[group] = np.maximum(night, _LEAST_VARIANCE)
        self.freedom[group] = freedom


def moderated(
    squares: Floats,
    freedom: Floats,
    prior: Variance,
    *,
    further_squares: float = 0.0,
    further_freedom: float = 0.0,
) -> tuple[Floats, Floats]:
    """Return the variance of each figure, moderated by those of the others (Smyth 2004).

    A few nights show a spread only within a factor of two, and different loads have different
    spreads. So neither a figure's own variance nor the typical one is a good estimate. The result
    is their mean, weighted by degrees of freedom. The more the variances of the figures agree, the
    more the typical one is worth.

    Args:
        squares: the sum of squares of each figure.
        freedom: the degrees of freedom of each sum, 0 or more.
        prior: the variance that is assumed while all figures together show too little. It fills up
            the degrees of freedom of what they show.
        further_squares: a sum of squares that only the typical variance contains.
        further_freedom: its degrees of freedom.

    Returns:
        The variances, and their degrees of freedom.
    """
    shown = float(freedom.sum()) + further_freedom
    typical_freedom = max(shown, prior.freedom)
    filling = (typical_freedom - shown) * prior.value
    typical = (float(squares.sum()) + further_squares + filling) / typical_freedom
    if np.count_nonzero(freedom) <= 1:
        # No figure can be compared with another one.
        return np.full(len(squares), typical), np.full(len(squares), typical_freedom)
    weight = min(_similarity(squares, freedom), typical_freedom)
    if weight < typical_freedom:
        # The mean of variances that truly differ overestimates the typical one.
        typical *= max((weight - 2) / weight, 0.5)
    total = weight + freedom
    return np.asarray((weight * typical + squares) / total), np.asarray(total)


def _similarity(squares: Floats, freedom: Floats) -> float:
    """Return how many degrees of freedom the typical variance is worth to one figure."""
    known = freedom > 0
    variances = squares[known] / freedom[known]
    mean = float(variances.mean())
    if mean <= 0:
        return _LEAST_SIMILARITY

    # Estimates of one variance with d degrees of freedom have a squared variation of 2 / d.
    mean_freedom = float(freedom[known].mean())
    excess = float(variances.var(ddof=1)) / mean**2 * mean_freedom - 2
    if excess <= 0:
        return _CERTAIN
    return max((4 * excess + 2 * mean_freedom + 4) / excess, _LEAST_SIMILARITY)


def nights_to_keep(variances: Floats, freedom: Floats, tolerated: Floats) -> Ints:
    """Return how many nights would prove that no more than a tolerance was lost; 0 if none would.

    The second half of the nights is compared with the first half.

    Args:
        variances: the variance of one night.
        freedom: the degrees of freedom of these variances.
        tolerated: the tolerated loss, as a difference of logarithms.
    """
    # Both halves vary, and each has half of the nights, so the variance counts four times.
    nights = np.ceil(4 * variances * (_KEPT_ERRORS / tolerated) ** 2)
    # A spread is an estimate. Give up only if the true one is surely too large.
    surely = 1 + _SURE_ERRORS * np.sqrt(2 / freedom)
    enough = np.where(nights <= MOST_NIGHTS * surely, np.maximum(nights, 2), 0)
    return np.asarray(enough, np.intp)


def quantiles(level: float, freedom: Floats) -> Floats:
    """Return Student's quantile for each number of degrees of freedom."""
    counts = np.clip(freedom, 1, _MOST_FREEDOM).astype(np.intp)
    distinct, rows = np.unique(counts, return_inverse=True)
    values = np.array([_quantile(level, int(count)) for count in distinct])
    return np.asarray(values[rows])


@functools.cache
def _quantile(level: float, freedom: int) -> float:
    return t_quantile(level, float(freedom))
