"""Judge a series of nights: tonight against the nights before, and whether a loss lasts.

A night is one run of a case; its level is the mean logarithm of a figure over the launches of that
run, better being positive. Levels differ from launch to launch and, beyond that, from night to
night, because a machine has better and worse hours. Both are variances that are estimated, so each
comes with its degrees of freedom.
"""

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specreg.stats.intervals import Effect, t_tail
from specreg.stats.variance import Variance

MAX_NIGHTS = 20
"""How many nights of a level are taken: more hardly make it better known."""
MAX_TOGETHER = 50
"""How many of the last nights are taken together at most."""
_FEWEST_LAST = 2
"""A loss that lasts shows in so many nights at least; that of one night is judged by itself."""
_FEWEST_GAINED = 5
"""A gain that has lasted for so many nights is the level from then on."""
DIFFERENCE_FREEDOM = 2 / 3
"""Degrees of freedom by successive difference: neighbours share a night (von Neumann 1941)."""
_LEAST_VARIANCE = 1e-8
"""Figures that always repeat have a spread of 0; a hundredth of a percent is taken for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NightLevel:
    """The level of a figure on one night.

    Attributes:
        run: the name of the run, which begins with its date.
        level: the mean logarithm of the figure over the launches; better is positive.
        launches: how many launches the run had, 1 or more.
        noise: a variance that the level has besides, 0 or more: of what was taken off it.
        stands: whether the night may be part of a reference: it was found neither worse nor
            invalid.
    """

    run: str
    level: float
    launches: int = 1
    noise: float = 0.0
    stands: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class NightSpread:
    """How the levels of a figure differ.

    Attributes:
        night: the variance of nights with one launch.
        launch: the part of it that is between launches of one night.
    """

    night: Variance
    launch: Variance

    def of(self, launches: int) -> float:
        """Return the variance of a night with some launches."""
        within = min(self.launch.value, self.night.value)
        between = self.night.value - within
        return max(between + within / launches, _LEAST_VARIANCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class LastingChange:
    """A change that stands in all nights since it began.

    Attributes:
        since: the first night of the new level, as an index of the series.
        effect: the mean of the nights since then against those before.
    """

    since: int
    effect: Effect


def variance_of_nights(series: Sequence[NightLevel], launch: Variance) -> Variance | None:
    """Return the variance of nights with one launch, by the differences of successive nights.

    A change that lasts is in one difference only, so that it hardly widens the estimate.

    Args:
        series: the nights in order.
        launch: the variance between launches, which nights with several launches have less of.

    Returns:
        None with fewer than two nights.
    """
    if len(series) <= 1:
        return None
    squares = []
    for before, after in itertools.pairwise(series):
        missing = launch.value * (2 - 1 / before.launches - 1 / after.launches)
        squares.append(((after.level - before.level) ** 2 + missing) / 2)
    return Variance(value=statistics.fmean(squares), freedom=DIFFERENCE_FREEDOM * (len(series) - 1))


def change_tonight(series: Sequence[NightLevel], spread: NightSpread) -> Effect:
    """Return the change of the last night from the level of the nights before, one at least."""
    levels = _levels(series)
    weights = _weights(series, spread)
    reference = slice(0, len(series) - 1)
    tonight = slice(len(series) - 1, len(series))
    return _change(levels, weights, reference, tonight, spread.night.freedom)


def mean_of_last(
    series: Sequence[NightLevel], nights: int, spread: NightSpread, reference: int
) -> Effect:
    """Return the change of the mean of the last nights from that of the first ones.

    Args:
        series: the nights in order, at least as many as both together.
        nights: how many of the last ones.
        spread: how levels differ.
        reference: how many of the first ones.
    """
    last = slice(len(series) - nights, len(series))
    first = slice(0, reference)
    return _change(_levels(series), _weights(series, spread), first, last, spread.night.freedom)


def lasting_loss(
    series: Sequence[NightLevel], spread: NightSpread, *, least_frac: float
) -> LastingChange | None:
    """Return the clearest loss that has lasted until tonight; None without one.

    Each number of first nights is compared with each number of last nights that follow them, so
    that a slow drift shows as well as a step. The loss is dated by the best single step. A level
    that tonight is nearer to the old one than to the new one doesn't last, and one bad night makes
    no level.

    Args:
        series: the nights in order; the last is tonight.
        spread: how levels differ.
        least_frac: a smaller change isn't looked for.
    """
    count = len(series)
    means, weights = _running_means(series, spread)
    clearest: LastingChange | None = None
    clearest_t = 0.0
    clearest_step_t = 0.0
    first_night = 0
    for start in range(max(1, count - MAX_NIGHTS), count - _FEWEST_LAST + 1):
        firsts = np.arange(1, min(start, MAX_NIGHTS) + 1)
        last_mean, last_weight = _mean_since(start, means, weights)
        changes = last_mean - means[firsts]
        errors = np.sqrt(1 / weights[firsts] + 1 / last_weight)
        # Both tonight and the nights before it must be nearer to the new level than to the old.
        halfway = means[firsts] + changes / 2
        before_mean, _ = _mean_since(start, means[:-1], weights[:-1])
        is_back = series[-1].level > halfway
        is_spike = before_mean > halfway
        is_lasting = (changes <= -least_frac) & ~is_back & ~is_spike
        t_values = np.where(is_lasting, -changes / errors, 0.0)
        if t_values[-1] > clearest_step_t:
            clearest_step_t = float(t_values[-1])
            first_night = start
        best = int(np.argmax(t_values))
        if t_values[best] > clearest_t:
            clearest_t = float(t_values[best])
            effect = Effect(
                estimate_frac=float(changes[best]),
                error_frac=float(errors[best]),
                freedom=spread.night.freedom,
            )
            clearest = LastingChange(since=start, effect=effect)
    if clearest is None or not first_night:
        return clearest
    return LastingChange(since=first_night, effect=clearest.effect)


def start_of_gain(
    series: Sequence[NightLevel], spread: NightSpread, *, level: float, least_frac: float
) -> int:
    """Return the first night of the last proven gain, 0 without one.

    What was gained and lasted for five nights is the level from then on, so that falling back is a
    loss. The level follows gains, and never follows a loss.

    Args:
        series: the nights in order, without tonight.
        spread: how levels differ.
        level: how often a gain may be proven by chance.
        least_frac: a smaller gain isn't looked for.
    """
    start = 0
    while True:
        rest = series[start:]
        means, weights = _running_means(rest, spread)
        clearest_t = 0.0
        split = 0
        for candidate in range(1, len(rest)):
            after_mean, after_weight = _mean_since(candidate, means, weights)
            change = after_mean - means[candidate]
            t_value = change / math.sqrt(1 / weights[candidate] + 1 / after_weight)
            if change > least_frac and t_value > clearest_t:
                clearest_t = float(t_value)
                split = candidate
        has_lasted = len(rest) - split >= _FEWEST_GAINED
        if not split or not has_lasted or t_tail(clearest_t, spread.night.freedom) > level:
            return start
        start += split


def _running_means(
    series: Sequence[NightLevel], spread: NightSpread
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the weighted mean and the weight of the first 0, 1, 2, … nights."""
    levels = _levels(series)
    weights = _weights(series, spread)
    sums = np.concatenate(([0.0], np.cumsum(weights)))
    products = np.concatenate(([0.0], np.cumsum(weights * levels)))
    means = products / np.where(sums > 0, sums, 1.0)
    return means, sums


def _mean_since(
    start: int, means: NDArray[np.float64], weights: NDArray[np.float64]
) -> tuple[float, float]:
    """Return the weighted mean of the nights from one on, and their weight."""
    weight = float(weights[-1] - weights[start])
    total = float(means[-1] * weights[-1] - means[start] * weights[start])
    return total / weight, weight


def _levels(series: Sequence[NightLevel]) -> NDArray[np.float64]:
    return np.array([night.level for night in series])


def _weights(series: Sequence[NightLevel], spread: NightSpread) -> NDArray[np.float64]:
    return np.array([1 / (spread.of(night.launches) + night.noise) for night in series])


def _change(
    levels: NDArray[np.float64],
    weights: NDArray[np.float64],
    before: slice,
    after: slice,
    freedom: float,
) -> Effect:
    """Return the change between two weighted means."""
    weight_before = float(weights[before].sum())
    weight_after = float(weights[after].sum())
    mean_before = float(np.dot(weights[before], levels[before])) / weight_before
    mean_after = float(np.dot(weights[after], levels[after])) / weight_after
    return Effect(
        estimate_frac=mean_after - mean_before,
        error_frac=math.sqrt(1 / weight_before + 1 / weight_after),
        freedom=freedom,
    )
