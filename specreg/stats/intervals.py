"""Estimate the relative change between two measurements, and its interval.

Looks at a measurement share the level of one test. Five looks at the level of one would raise three
times its alarms, so each early look has a little, the last the rest (Haybittle 1971, Peto 1976).
The levels add up, so no more than their sum is ever wrong, whatever the correlation between looks.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from specreg.stats.percentiles import PER_E
from specreg.stats.variance import Variance, shrunk, sum_of, variance_of

Column = NDArray[np.float64]
"""Of shape (prompts,): one count for each."""
FEWEST_PROMPTS = 5
"""With fewer common prompts their spread can't be estimated."""
LEVEL = 0.01
"""How often a proof may be wrong, one-sided, over all looks at a metric."""
PARTS = 5
"""How many looks there are at a run's own prompts; all but the last are early."""
MORE_LAUNCHES = 3
"""How many launches more an undecided speed may take."""
_LEAST_FREEDOM = 3
_NOTHING_KNOWN = Variance(value=0.0, freedom=0.0)
_TINY = 1e-12


class Look(Enum):
    """A moment at which a metric may be decided.

    Of prompts: early, after one to four fifths of them, for what is plain among the hundreds of
    figures of a night; after all of them; and after as many more. Of a speed: after the launches of
    the run, and after each of those that follow.
    """

    EARLY = "early"
    FULL = "full"
    EXTENDED = "extended"
    LAUNCH = "launch"
    FURTHER_LAUNCH = "further_launch"


LEVELS: Mapping[Look, float] = {
    Look.EARLY: 0.00001,
    Look.FULL: 0.0093,
    Look.EXTENDED: 0.00066,
    Look.LAUNCH: 0.004,
    Look.FURTHER_LAUNCH: 0.002,
}
"""By look, its share of the level of one test."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """An estimated change and its error; better is positive.

    Attributes:
        estimate_frac: relative, or a difference of logarithms where it is one of launches.
        error_frac: its standard error, 0 or more.
        freedom: degrees of freedom of that error, 1 or more.
    """

    estimate_frac: float
    error_frac: float
    freedom: float

    def bounds(self, level: float) -> tuple[float, float]:
        """The interval that misses the truth on either side with probability `level` (0..0.5)."""
        reach = t_quantile(level, self.freedom) * self.error_frac if self.error_frac else 0.0
        return self.estimate_frac - reach, self.estimate_frac + reach

    @property
    def p_worse(self) -> float:
        """How often chance alone would make it look that much worse, 0..1, one-sided."""
        if not self.error_frac:
            return float(self.estimate_frac >= 0)
        return t_tail(-self.estimate_frac / self.error_frac, self.freedom)


def change_of_ratio(
    measured: tuple[Column, Column], recorded: tuple[Column, Column] | None, expected: float
) -> Effect:
    """Return the relative change of a ratio of sums, Σx/Σy, prompt by prompt.

    r = R'/R - 1 with R = Σx/Σy. Linearised, prompt i contributes
    d_i = (x'_i - R' y'_i) / (R Σy') - (1 + r) (x_i - R y_i) / (R Σy), and the error is
    √(n/(n-1) Σ d_i²): the paired bootstrap's, to the first order (Cochran, Sampling Techniques,
    6.3), at a thousandth of its cost. Two equal runs have none.

    x and y of a prompt may be means over its L answers in as many launches. The part of its
    deviation in which its answers differ then has 1/L of the variance, which d_i shows by itself;
    the part that both sides have in common cancels in the difference.

    Args:
        measured: x' and y' of the run, shape (n,), n ≥ 2; Σy' > 0.
        recorded: x and y of the baseline for the same prompts; None if only their ratio is known.
        expected: R, above 0.
    """
    measured_deviations, ratio = _deviations(*measured)
    change = ratio / expected - 1
    deviations = measured_deviations / expected
    if recorded is not None:
        recorded_deviations, _ = _deviations(*recorded)
        deviations = deviations - (1 + change) * recorded_deviations / expected
    size = len(deviations)
    error = math.sqrt(size / (size - 1) * float(np.dot(deviations, deviations)))
    return Effect(
        estimate_frac=_without_rounding(change),
        error_frac=_without_rounding(error),
        freedom=size - 1,
    )


def _without_rounding(value: float) -> float:
    """Return 0 for what rounding leaves of two equal runs, about 1e-17, else the value."""
    return value if abs(value) > _TINY else 0.0


def _deviations(numerators: Column, denominators: Column) -> tuple[Column, float]:
    """Return how each prompt deviates from the ratio of the sums, over Σy, and that ratio."""
    total = float(denominators.sum())
    ratio = float(numerators.sum()) / total
    return (numerators - ratio * denominators) / total, ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How launches of one kind of machine differ: standard deviations of logarithms.

    Attributes:
        within_frac: from launch to launch within a run.
        between_frac: from run to run, beyond that; 0 where it isn't known.
        freedom: degrees of freedom of the first.
        between_freedom: those of the second; 0 where it isn't known.
    """

    within_frac: float
    between_frac: float
    freedom: int
    between_freedom: int


def change_of_launches(
    measured: Sequence[float], recorded: Sequence[float], spread: Spread, sign: int
) -> Effect:
    """Return the change of a speed: the difference of the launches' mean logarithms.

    Its error is √(s_w² (1/k + 1/n) + 2 s_b²), with k launches of the run and n of the baseline. Run
    and baseline each carry one draw of what differs from hour to hour. Its degrees of freedom are
    those of the sum of both (Satterthwaite 1946).

    Args:
        measured: the speed in each launch of the run, above 0.
        recorded: the speed in each launch of the baseline, above 0.
        spread: how launches differ within a run and from run to run.
        sign: 1 if more is better, -1 if less is.
    """
    difference = _mean_log(measured) - _mean_log(recorded)
    launches = 1 / len(measured) + 1 / len(recorded)
    variance = Variance(value=spread.within_frac**2 * launches, freedom=spread.freedom)
    if spread.between_freedom:
        between = Variance(value=2 * spread.between_frac**2, freedom=spread.between_freedom)
        variance = sum_of(variance, between)
    return Effect(
        estimate_frac=sign * difference,
        error_frac=math.sqrt(variance.value),
        freedom=variance.freedom,
    )


def _mean_log(values: Sequence[float]) -> float:
    return math.fsum(map(math.log, values)) / len(values)


def change_of_pairs(
    differences: Sequence[float], other_pairs: Sequence[Sequence[float]] = ()
) -> Effect | None:
    """Return the change from one arm to another that was up beside it, by launches of both.

    It is the mean of n differences, with the error s/√n. s is their spread, moderated by that of
    other pairs of arms, because two launches of one pair say little and unlike loads have unlike
    spreads. A median is known no finer than a bucket of its histogram, q wide; that adds q²/12 to
    the variance of each launch, so that no error is 0 by rounding.

    Args:
        differences: by launch, of logarithms; better is positive.
        other_pairs: the differences of each other pair of arms.

    Returns:
        None with fewer than three degrees of freedom, because a spread may then look small by
        chance.
    """
    if not differences:
        return None
    others = [variance for pair in other_pairs if (variance := variance_of(pair)) is not None]
    moderated = shrunk(variance_of(differences), others, _NOTHING_KNOWN)
    if moderated.freedom < _LEAST_FREEDOM:
        return None
    mean = math.fsum(differences) / len(differences)
    rounding_variance = 2 / (12 * PER_E**2)
    return Effect(
        estimate_frac=_without_rounding(mean),
        error_frac=math.sqrt((moderated.value + rounding_variance) / len(differences)),
        freedom=moderated.freedom,
    )


def t_tail(t: float, freedom: float) -> float:
    """Return P(T > t) of Student's distribution.

    It is ∫ cos^(n-1) from atan(t/√n) to π/2, over B(½, n/2): the density with t = √n tan θ. scipy
    would double the size of an installation for this number.
    """
    if math.isinf(t):
        return float(t < 0)
    if t < 0:
        return 1 - t_tail(-t, freedom)
    start = math.atan(t / math.sqrt(freedom))
    nodes, weights = _gauss()
    half = (math.pi / 2 - start) / 2
    angles = start + half * (nodes + 1)
    total = math.exp(math.lgamma(freedom / 2) + math.lgamma(0.5) - math.lgamma((freedom + 1) / 2))
    return half * float(np.dot(weights, np.cos(angles) ** (freedom - 1))) / total


@functools.cache
def t_quantile(level: float, freedom: float) -> float:
    """Return the t, 0 or more, that Student's distribution exceeds with a probability.

    Args:
        level: the probability, 0..0.5.
        freedom: the degrees of freedom, above 0.
    """
    low = 0.0
    high = math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        if t_tail(math.sqrt(freedom) * math.tan(middle), freedom) > level:
            low = middle
        else:
            high = middle
    return math.sqrt(freedom) * math.tan(low)


@functools.cache
def _gauss() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return np.polynomial.legendre.leggauss(200)
