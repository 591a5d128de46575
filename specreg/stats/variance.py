"""Estimate variances from few values, and moderate a case's variance by those of other cases."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_LEAST_SHRINKING_FREEDOM = 4.0
"""A case's own variance is averaged with the typical variance of the other cases. The weights are
degrees of freedom. The typical variance has at least this weight, unless its own degrees of freedom
are fewer."""
_CERTAIN = 1e6
"""Degrees of freedom of a variance that counts as exactly known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variance:
    """An estimated variance of logarithms.

    Attributes:
        value: the variance, 0 or more.
        freedom: the degrees of freedom of the estimate; 0 if nothing is known.
    """

    value: float
    freedom: float


NO_PRIOR = Variance(value=0.0, freedom=0.0)


def variance_of(sample: Sequence[float]) -> Variance | None:
    """Return the variance of some values; None with fewer than two."""
    if len(sample) <= 1:
        return None
    return Variance(value=statistics.variance(sample), freedom=len(sample) - 1)


def pooled(variances: Sequence[Variance]) -> Variance | None:
    """Return the mean of several variances, weighted by their degrees of freedom.

    Returns:
        None if the variances have no degrees of freedom together.
    """
    freedom = sum(variance.freedom for variance in variances)
    if freedom <= 0:
        return None
    total = sum(variance.value * variance.freedom for variance in variances)
    return Variance(value=total / freedom, freedom=freedom)


def shrunk(
    case_variance: Variance | None, variances_of_others: Sequence[Variance], prior: Variance
) -> Variance:
    """Return the variance of one case, moderated by the variances of other cases and by a prior.

    Three launches determine a spread only within a factor of two, and different loads have
    different spreads. So neither the case's own variance v nor the typical variance v0 of the other
    cases is a good estimate. The result is their weighted mean (d0 v0 + d v) / (d0 + d), where d
    and d0 are degrees of freedom. d0 follows from how much the variances of the cases differ, by
    the moments of an F distribution: it is small if they differ much, and large if they are nearly
    equal. This is the moderated variance of Smyth (2004), with moments in place of its digamma
    functions.

    Args:
        case_variance: the case's own variance; None if it isn't known yet.
        variances_of_others: the variances of other cases on the same machine.
        prior: the variance that is assumed where other cases show too little; `NO_PRIOR` to
            assume none.
    """
    usable_of_others = [variance for variance in variances_of_others if variance.freedom > 0]

    # The case's own variance, or nothing.
    usable_of_case = []
    if case_variance is not None and case_variance.freedom > 0:
        usable_of_case.append(case_variance)

    # The prior fills up the degrees of freedom that the other cases lack. It loses all influence
    # once they have as many as it has.
    pooled_others = pooled(usable_of_others) or Variance(value=0.0, freedom=0.0)
    prior_freedom = max(prior.freedom - pooled_others.freedom, 0.0)
    typical = pooled([pooled_others, Variance(value=prior.value, freedom=prior_freedom)])
    if typical is None and usable_of_case:
        return usable_of_case[0]
    if typical is None or not (usable_of_others or usable_of_case):
        return prior

    # The case's own variance helps to estimate how much the cases differ. It isn't part of the
    # typical variance, because it would then count twice in the weighted mean.
    similarity_freedom = _LEAST_SHRINKING_FREEDOM
    if usable_of_others:
        similarity_freedom = _similarity_freedom([*usable_of_case, *usable_of_others])
    shrinking_freedom = min(similarity_freedom, typical.freedom)
    if not usable_of_case:
        return Variance(value=typical.value, freedom=round(shrinking_freedom, 1))

    # The mean of an F distribution with d0 degrees of freedom in its denominator is d0 / (d0 - 2),
    # so the mean of the variances overestimates v0 by this factor, which is limited to 2. If d0 is
    # only the typical variance's own freedom, it doesn't say how much the cases differ, and v0
    # isn't corrected.
    location = typical.value
    if shrinking_freedom < typical.freedom:
        location *= max((shrinking_freedom - 2) / shrinking_freedom, 0.5)
    shrunk_to = Variance(value=location, freedom=shrinking_freedom)
    moderated = pooled([shrunk_to, *usable_of_case]) or shrunk_to
    return Variance(value=moderated.value, freedom=round(moderated.freedom, 1))


def _similarity_freedom(samples: Sequence[Variance]) -> float:
    """Return how many degrees of freedom the typical variance of cases is worth to one case.

    The more similar the variances are, the more it is worth.
    """
    values = np.array([sample.value for sample in samples])
    mean = float(values.mean())
    if len(values) == 1 or mean <= 0:
        return _LEAST_SHRINKING_FREEDOM
    freedom = statistics.fmean(sample.freedom for sample in samples)
    squared_variation = float(values.var(ddof=1)) / mean**2

    # If all cases have the same true variance, its estimates with d degrees of freedom have a
    # squared coefficient of variation of 2 / d. What exceeds this comes from real differences.
    excess = squared_variation * freedom - 2
    if excess <= 0:
        return _CERTAIN

    # An F distribution with d and d0 degrees of freedom has a squared coefficient of variation of
    # 2 (d + d0 - 2) / (d (d0 - 4)). This is solved for d0.
    return max((4 * excess + 2 * freedom + 4) / excess, _LEAST_SHRINKING_FREEDOM)


def sum_of(first: Variance, second: Variance) -> Variance:
    """Return the sum of two variances, with degrees of freedom after Satterthwaite (1946).

    Each of the two must have degrees of freedom above 0.
    """
    value = first.value + second.value
    if not value:
        return Variance(value=0.0, freedom=min(first.freedom, second.freedom))
    first_term = first.value**2 / first.freedom
    second_term = second.value**2 / second.freedom
    return Variance(value=value, freedom=value**2 / (first_term + second_term))
