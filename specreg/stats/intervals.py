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
from specreg.stats.variance import NOTHING_KNOWN, Variance, shrunk, sum_of, variance_of

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
_LEAST_ROOM = 0.01
"""Of a prompt with nearly all steps, so that nothing is divided by 0."""
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
        estimate_frac: a difference of logarithms.
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
    """Return the change of a ratio of sums, Σx/Σy, prompt by prompt, as a difference of logarithms.

    It is log R' - log R with R = Σx/Σy. Linearised, prompt i contributes
    d_i = (x'_i - R' y'_i) / (R' Σy') - (x_i - R y_i) / (R Σy) (Cochran, Sampling Techniques, 6.3).
    A prompt with a large share h_i of Σy draws the ratio to itself, so its deviation looks small.
    The error is therefore √(Σ (d_i / (1 - h_i))²), as the jackknife has it, and has the degrees of
    freedom of a sum in which prompt i has the weight h_i, 1 / Σh_i² - 1 (Satterthwaite 1946). With
    equal shares those are n - 1. Logarithms keep the interval right near a ratio of 0, where counts
    are skewed: by simulation of eight and more prompts a bound of 1 % errs in 1.3 % at most. Two
    equal runs have no error.

    x and y of a prompt may be means over its L answers in as many launches. The part of its
    deviation in which its answers differ then has 1/L of the variance, which d_i shows by itself;
    the part that both sides have in common cancels in the difference.

    Args:
        measured: x' and y' of the run, shape (n,), n ≥ 2; Σy' > 0.
        recorded: x and y of the baseline for the same prompts; None if only their ratio is known.
        expected: R, above 0.
    """
    shares = measured[1] / measured[1].sum()
    recorded_deviations = np.zeros_like(shares)
    if recorded is not None:
        recorded_shares = recorded[1] / recorded[1].sum()
        shares = (shares + recorded_shares) / 2
        recorded_deviations = _deviations(*recorded, expected)
    room = np.maximum(1 - shares, _LEAST_ROOM)
    freedom = max(1 / float(np.dot(shares, shares)) - 1, 1.0)
    ratio = float(measured[0].sum() / measured[1].sum())
    if not ratio:
        recorded_error = float(np.linalg.norm(recorded_deviations / room))
        return _change_to_nothing(expected * float(measured[1].sum()), recorded_error, freedom)
    deviations = _deviations(*measured, ratio) - recorded_deviations
    return Effect(
        estimate_frac=_without_rounding(math.log(ratio / expected)),
        error_frac=_without_rounding(float(np.linalg.norm(deviations / room))),
        freedom=round(freedom, 6),
    )


def _change_to_nothing(expected_count: float, recorded_error: float, freedom: float) -> Effect:
    """Return the change of a ratio to 0, whose logarithm doesn't exist.

    Half a count stands for none. The error is the one with which the change is as certain as the
    likelihood ratio of two counts makes it: 0 where T was expected is √(2 T0 log(1 + T / T0))
    errors away from no change, if R was computed from T0 counts, and √(2 T) if R is exact.

    Args:
        expected_count: T, the Σx' that R would have given.
        recorded_error: the relative error of R, whose inverse square is T0; 0 if R is exact.
        freedom: the degrees of freedom.
    """
    estimate = math.log(0.5 / max(expected_count, 1.0))
    certainty = math.sqrt(2 * expected_count)
    if recorded_error:
        recorded_count = 1 / recorded_error**2
        # What counts is no more than what was recorded.
        expected_share = min(expected_count / recorded_count, 1.0)
        certainty = math.sqrt(2 * recorded_count * math.log1p(expected_share))
    return Effect(estimate_frac=estimate, error_frac=-estimate / certainty, freedom=freedom)


def _without_rounding(value: float) -> float:
    """Return 0 for what rounding leaves of two equal runs, about 1e-17, else the value."""
    return value if abs(value) > _TINY else 0.0


def _deviations(numerators: Column, denominators: Column, ratio: float) -> Column:
    """Return how each prompt deviates from a ratio, as a share of what it gives in all."""
    deviations: Column = numerators - ratio * denominators
    return deviations / (ratio * float(denominators.sum()))


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
    freedom: float
    between_freedom: float


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
    moderated = shrunk(variance_of(differences), others, NOTHING_KNOWN)
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
