"""Estimate variances from few values, and moderate those of one case by those of others."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_LEAST_SHRINKING_FREEDOM = 4.0
"""What the spread of other cases is worth at least."""
_CERTAIN = 1e6
"""Degrees of freedom beyond which a variance counts as known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variance:
    """An estimated variance of logarithms.

    Attributes:
        value: the variance, 0 or more.
        freedom: the degrees of freedom of the estimate, above 0.
    """

    value: float
    freedom: float


NOTHING_KNOWN = Variance(value=0.0, freedom=0.0)


def variance_of(sample: Sequence[float]) -> Variance | None:
    """Return the variance of some values; None with fewer than two."""
    if len(sample) <= 1:
        return None
    return Variance(value=statistics.variance(sample), freedom=len(sample) - 1)


def pooled(variances: Sequence[Variance]) -> Variance | None:
    """Return the common variance of some samples, weighed by their degrees of freedom."""
    freedom = sum(variance.freedom for variance in variances)
    if freedom <= 0:
        return None
    total = sum(variance.value * variance.freedom for variance in variances)
    return Variance(value=total / freedom, freedom=freedom)


def shrunk(own: Variance | None, others: Sequence[Variance], prior: Variance) -> Variance:
    """Return a variance of a case, moderated by those of other cases and by a prior.

    Three launches tell a spread within a factor of two only, and unlike loads have unlike spreads,
    so neither a case's own spread nor that of all cases together is right. With d degrees of
    freedom of its own, the case's variance is (d0 v0 + d v) / (d0 + d): v0 is the typical variance
    of the cases, and is worth d0 degrees of freedom. d0 follows from how unlike the variances are,
    by the moments of an F distribution: few if they are very unlike, many if they are alike. This
    is the moderated variance of Smyth (2004), with moments in place of its digamma functions.

    Args:
        own: the variance that the case itself shows; None if it shows none yet.
        others: those of other cases of the machine.
        prior: what is known of machines of this kind.
    """
    known = [variance for variance in others if variance.freedom > 0]
    own_known = [own] if own is not None and own.freedom > 0 else []
    known_of_others = pooled(known) or Variance(value=0.0, freedom=0.0)
    # The prior stands in for what isn't known yet, and has no word once enough is known.
    prior_freedom = max(prior.freedom - known_of_others.freedom, 0.0)
    typical = pooled([known_of_others, Variance(value=prior.value, freedom=prior_freedom)])
    if typical is None and own_known:
        return own_known[0]
    if typical is None or not (known or own_known):
        return prior
    # The case itself tells how unlike the cases are, but isn't counted twice.
    likeness = _likeness([*own_known, *known]) if known else _LEAST_SHRINKING_FREEDOM
    shrinking_freedom = min(likeness, typical.freedom)
    if not own_known:
        return Variance(value=typical.value, freedom=round(shrinking_freedom, 1))
    location = typical.value
    if shrinking_freedom < typical.freedom:
        location *= max((shrinking_freedom - 2) / shrinking_freedom, 0.5)
    shrunk_to = Variance(value=location, freedom=shrinking_freedom)
    moderated = pooled([shrunk_to, *own_known]) or shrunk_to
    return Variance(value=moderated.value, freedom=round(moderated.freedom, 1))


def _likeness(samples: Sequence[Variance]) -> float:
    """Return how many degrees of freedom the typical variance of some cases is worth to one."""
    values = np.array([sample.value for sample in samples])
    mean = float(values.mean())
    if len(values) == 1 or mean <= 0:
        return _LEAST_SHRINKING_FREEDOM
    freedom = statistics.fmean(sample.freedom for sample in samples)
    squared_variation = float(values.var(ddof=1)) / mean**2
    # A variance with d degrees of freedom varies by 2 / d if all cases have the same one.
    excess = squared_variation * freedom - 2
    if excess <= 0:
        return _CERTAIN
    return max((4 * excess + 2 * freedom + 4) / excess, _LEAST_SHRINKING_FREEDOM)


def sum_of(first: Variance, second: Variance) -> Variance:
    """Return the sum of two variances, with the degrees of freedom of Satterthwaite (1946)."""
    value = first.value + second.value
    if not value:
        return Variance(value=0.0, freedom=min(first.freedom, second.freedom))
    denominator = first.value**2 / first.freedom + second.value**2 / second.freedom
    return Variance(value=value, freedom=value**2 / denominator)
