"""Estimate the relative change between two measurements, and its interval.

A metric may be decided at several moments of a measurement, the looks. They share the level of
significance of one test, because five looks with the whole level each would raise three times as
many false alarms. The early looks at the prompts get hardly any of it (Haybittle 1971, Peto 1976).
The probability of an error is at most the sum of the levels, no matter how the looks are
correlated.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from specreg.stats.percentiles import PER_E
from specreg.stats.variance import NO_PRIOR, Variance, shrunk, sum_of, variance_of

Column = NDArray[np.float64]
"""One count for each prompt, of shape (prompts,)."""
FEWEST_PROMPTS = 5
"""The fewest common prompts from which their spread can be estimated."""
LEVEL = 0.01
"""The probability that a proof is wrong, one-sided, over all looks at a metric."""
PARTS = 5
"""How many parts the prompts of a case have. A look follows each; all looks but the last are
early."""
MORE_LAUNCHES = 3
"""How many further launches an undecided speed may take."""
_LEAST_FREEDOM = 3
"""The fewest degrees of freedom of a spread. With fewer it may look far too small by chance."""
_LEAST_REMAINDER = 0.01
"""The least value of 1 - h for a prompt with the share h of all steps, to avoid division by 0."""
_TINY = 1e-12
"""Values below this are rounding errors."""


class Look(Enum):
    """A moment at which a metric may be decided."""

    EARLY = "early"
    """After one, two, three or four fifths of a case's prompts. It finds only obvious losses."""
    FULL = "full"
    """After all prompts of the case."""
    EXTENDED = "extended"
    """After the extension, which replays as many further prompts as the case has."""
    LAUNCH = "launch"
    """After the launches that the run planned. This look is for speeds."""
    FURTHER_LAUNCH = "further_launch"
    """After each additional launch. This look is for speeds."""


LEVELS: Mapping[Look, float] = {
    Look.EARLY: 0.00001,
    Look.FULL: 0.0093,
    Look.EXTENDED: 0.00066,
    Look.LAUNCH: 0.004,
    Look.FURTHER_LAUNCH: 0.002,
}
"""The level of each look. A night has hundreds of figures, and each of them has four early looks,
so an early look gets very little. Acceptance spends EARLY four times, then FULL and EXTENDED. A
speed spends LAUNCH, and then FURTHER_LAUNCH three times. Either way the sum is `LEVEL`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """An estimated change and its error; better is positive.

    Attributes:
        estimate_frac: the change, as a difference of logarithms.
        error_frac: the standard error of the change, 0 or more.
        freedom: the degrees of freedom of the error, above 0.
    """

    estimate_frac: float
    error_frac: float
    freedom: float

    def bounds(self, level: float) -> tuple[float, float]:
        """Return the interval of the change.

        Args:
            level: the probability, on each of its two sides, that it misses the truth, 0..0.5.
        """
        reach = 0.0
        if self.error_frac:
            reach = t_quantile(level, self.freedom) * self.error_frac
        return self.estimate_frac - reach, self.estimate_frac + reach

    @property
    def p_worse(self) -> float:
        """The probability that chance alone makes the change look this much worse, one-sided."""
        if not self.error_frac:
            return float(self.estimate_frac >= 0)
        return t_tail(-self.estimate_frac / self.error_frac, self.freedom)


def change_of_ratio(
    measured: tuple[Column, Column], recorded: tuple[Column, Column] | None, expected: float
) -> Effect:
    """Return the change of a ratio of sums, such as accepted drafts per step, over shared prompts.

    The change is log R' - log R with R = Σx/Σy, where the prime denotes the run. After
    linearisation, prompt i contributes
    d_i = (x'_i - R' y'_i) / (R' Σy') - (x_i - R y_i) / (R Σy) (Cochran, Sampling Techniques, 6.3).
    A prompt with a large share h_i of Σy pulls the ratio towards its own, so its deviation looks
    too small. The jackknife corrects this, and its error is √(Σ (d_i / (1 - h_i))²). The degrees of
    freedom are those of a sum in which prompt i has the weight h_i, 1 / Σh_i² - 1 (Satterthwaite
    1946); with equal shares they are n - 1.

    Logarithms keep the interval valid near a ratio of 0, where counts are skewed: in simulations
    with eight and more prompts, a bound at the level of 1 % is wrong in 1.3 % at most. Two equal
    runs have an error of 0.

    x and y of a prompt may be means over its answers in L launches. The variation between answers
    then contributes 1/L of its variance to d_i. The variation that both sides share cancels in the
    difference.

    Args:
        measured: x' and y' of the run, of shape (n,) with n ≥ 2; Σy' > 0.
        recorded: x and y of the baseline for the same prompts; None if only their ratio is known.
        expected: R, above 0.
    """
    numerators, denominators = measured
    numerator_sum = numerators.sum()
    denominator_sum = denominators.sum()
    shares = denominators / denominator_sum
    recorded_deviations = np.zeros_like(shares)
    if recorded is not None:
        _, recorded_denominators = recorded
        recorded_shares = recorded_denominators / recorded_denominators.sum()
        # With two sides, the share of a prompt is the mean of its shares on both.
        shares = (shares + recorded_shares) / 2
        recorded_deviations = _deviations(*recorded, expected)

    remainders = np.maximum(1 - shares, _LEAST_REMAINDER)
    sum_of_squares = float(np.dot(shares, shares))
    freedom = max(1 / sum_of_squares - 1, 1.0)
    ratio = float(numerator_sum / denominator_sum)
    if not ratio:
        recorded_error = float(np.linalg.norm(recorded_deviations / remainders))
        expected_count = expected * float(denominator_sum)
        return _change_to_nothing(expected_count, recorded_error, freedom)

    # The variation that both sides share cancels in this difference, so it isn't in the error.
    deviations = _deviations(numerators, denominators, ratio) - recorded_deviations
    error = float(np.linalg.norm(deviations / remainders))
    log_change = math.log(ratio / expected)
    return Effect(
        estimate_frac=_without_rounding(log_change),
        error_frac=_without_rounding(error),
        # Rounded, so that nearly equal values share an entry in the cache of `t_quantile`.
        freedom=round(freedom, 6),
    )


def _change_to_nothing(expected_count: float, recorded_error: float, freedom: float) -> Effect:
    """Return the change of a ratio to 0, whose logarithm doesn't exist.

    The estimate uses half a count instead of 0. The error is chosen so that the change is as
    significant as in the likelihood ratio test of two counts. If R was computed from T0 counts, and
    0 was counted where T was expected, the change is √(2 T0 log(1 + T / T0)) standard errors away
    from 0. If R is exact, it is √(2 T) standard errors away.

    Args:
        expected_count: T, the Σx' that R would have given.
        recorded_error: the relative error of R, from which T0 = 1 / error² follows; 0 if R is
            exact.
        freedom: the degrees of freedom of the error.
    """
    # The result must be a loss, even if less than half a count was expected.
    estimate = math.log(0.5 / max(expected_count, 1.0))
    certainty = math.sqrt(2 * expected_count)
    if recorded_error:
        recorded_count = 1 / recorded_error**2
        # A run may have far more steps than were recorded. They don't make R more precise.
        expected_share = min(expected_count / recorded_count, 1.0)
        certainty = math.sqrt(2 * recorded_count * math.log1p(expected_share))

    return Effect(estimate_frac=estimate, error_frac=-estimate / certainty, freedom=freedom)


def _without_rounding(value: float) -> float:
    """Return the value, or 0 if it is a rounding error. Two equal runs leave about 1e-17."""
    if abs(value) <= _TINY:
        return 0.0
    return value


def _deviations(numerators: Column, denominators: Column, ratio: float) -> Column:
    """Return how far each prompt deviates from a ratio, relative to the sum over all prompts."""
    deviations: Column = numerators - ratio * denominators
    return deviations / (ratio * float(denominators.sum()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How launches vary on one kind of machine, as standard deviations of logarithms.

    Attributes:
        within_frac: the spread from launch to launch within a run.
        between_frac: the additional spread from run to run; 0 if unknown.
        freedom: the degrees of freedom of `within_frac`.
        between_freedom: the degrees of freedom of `between_frac`; 0 if unknown.
    """

    within_frac: float
    between_frac: float
    freedom: float
    between_freedom: float


def change_of_launches(
    measured: Sequence[float], recorded: Sequence[float], spread: Spread, sign: int
) -> Effect:
    """Return the change of a speed, which is the difference of the launches' mean logarithms.

    Its error is √(s_w² (1/k + 1/n) + 2 s_b²) with k launches in the run and n in the baseline. The
    variance s_b² between runs counts twice, because both the run and the baseline were measured in
    one particular hour. The degrees of freedom are those of the sum (Satterthwaite 1946).

    Args:
        measured: the speed in each launch of the run, above 0.
        recorded: the speed in each launch of the baseline, above 0.
        spread: how launches vary within a run and from run to run.
        sign: 1 if more is better, -1 if less is better.
    """
    difference = _mean_log(measured) - _mean_log(recorded)
    inverse_launches = 1 / len(measured) + 1 / len(recorded)
    within_variance = spread.within_frac**2 * inverse_launches
    variance = Variance(value=within_variance, freedom=spread.freedom)
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
    """Return the change between two arms that were measured side by side, over their launches.

    The change is the mean of n differences, with the error s/√n. Their spread s is moderated by the
    spreads of other pairs of arms, because two launches of one pair determine a spread badly, and
    different loads have different spreads. The compared values may be medians, which are only as
    precise as a bucket of a histogram, of width q. So each of the two arms adds q²/12 to the
    variance of a difference. This prevents an error of 0 if all launches fall into the same bucket.

    Args:
        differences: the difference of logarithms in each launch; better is positive.
        other_pairs: the differences of each other pair of arms.

    Returns:
        None without differences. Also None with fewer than three degrees of freedom, because the
        spread may then look far too small by chance.
    """
    if not differences:
        return None
    variances = [variance_of(pair) for pair in other_pairs]
    variances_of_others = [variance for variance in variances if variance is not None]
    moderated = shrunk(variance_of(differences), variances_of_others, NO_PRIOR)
    if moderated.freedom < _LEAST_FREEDOM:
        return None
    mean = math.fsum(differences) / len(differences)

    # Both arms of a difference are rounded to a bucket, whose width is 1 / PER_E.
    rounding_variance = 2 / (12 * PER_E**2)
    variance_of_launch = moderated.value + rounding_variance
    return Effect(
        estimate_frac=_without_rounding(mean),
        error_frac=math.sqrt(variance_of_launch / len(differences)),
        freedom=moderated.freedom,
    )


def t_tail(t: float, freedom: float) -> float:
    """Return P(T > t) of Student's t distribution with n degrees of freedom.

    Substituting t = √n tan θ turns the tail into ∫ cos^(n-1) θ dθ from atan(t/√n) to π/2, divided
    by B(½, n/2). scipy has this function, but would double the size of an installation.
    """
    if math.isinf(t):
        return float(t < 0)
    if t < 0:
        return 1 - t_tail(-t, freedom)
    start = math.atan(t / math.sqrt(freedom))

    # Gauss-Legendre quadrature over the interval from `start` to π/2. Its nodes lie in -1..1.
    nodes, weights = _gauss()
    half_width = (math.pi / 2 - start) / 2
    angles = start + half_width * (nodes + 1)
    heights = np.cos(angles) ** (freedom - 1)
    integral = half_width * float(np.dot(weights, heights))

    # Use logarithms, because the gamma function of many degrees of freedom overflows.
    log_beta = math.lgamma(freedom / 2) + math.lgamma(0.5) - math.lgamma((freedom + 1) / 2)
    return integral / math.exp(log_beta)


@functools.cache
def t_quantile(level: float, freedom: float) -> float:
    """Return the t, 0 or more, that Student's t distribution exceeds with a given probability.

    Args:
        level: the probability, 0..0.5.
        freedom: the degrees of freedom, above 0.
    """
    # Bisection over the angle atan(t/√n), which is finite for all t. A double has 53 bits, so 60
    # halvings leave nothing to halve.
    scale = math.sqrt(freedom)
    low = 0.0
    high = math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        tail = t_tail(scale * math.tan(middle), freedom)
        if tail > level:
            low = middle
        else:
            high = middle

    return scale * math.tan(low)


@functools.cache
def _gauss() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the nodes and weights of Gauss-Legendre quadrature."""
    # They are the same for each integral, and computing them takes longer than the integral.
    return np.polynomial.legendre.leggauss(200)
