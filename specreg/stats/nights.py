"""Judge a series of nights: compare tonight with the nights before, and find lasting losses.

A night is one run of a case. Its level is the mean logarithm of a figure over the launches of that
run, with the sign that makes better positive. Levels vary from launch to launch and additionally
from night to night, because a machine has better and worse hours. Both variances are estimates, so
each has its degrees of freedom.
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
"""The most nights that define a level. More nights hardly make the level more precise."""
MAX_TOGETHER = 50
"""The most nights that are averaged at one end of a series, be it the first or the last nights."""
_FEWEST_LAST = 2
"""The fewest nights of a lasting loss. A loss of one night is judged as a change of that night."""
_FEWEST_GAINED = 5
"""The fewest nights after which a gain counts as the new level."""
DIFFERENCE_FREEDOM = 2 / 3
"""The degrees of freedom that one difference between successive nights contributes. It is less
than 1 because neighbouring differences share a night (von Neumann 1941)."""
_LEAST_VARIANCE = 1e-8
"""The least variance of a night, a spread of 0.01 %. Without it a figure that always repeats
exactly would have a spread of 0, and any change of it would be infinitely significant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NightLevel:
    """The level of a figure on one night.

    Attributes:
        run: the name of the run, which begins with its date.
        level: the mean logarithm of the figure over the launches; better is positive.
        launches: how many launches the run had, 1 or more.
        noise: an additional variance of the level, 0 or more. If the common change of all cases
            was subtracted from the level, this is the variance of that common change.
        stands: whether the night may be part of a reference, because it was judged neither worse
            nor invalid.
        lost: whether the software was proven worse on that night, so that the night doesn't show
            how much nights vary. Such a night doesn't stand either.
    """

    run: str
    level: float
    launches: int = 1
    noise: float = 0.0
    stands: bool = True
    lost: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NightSpread:
    """How the levels of a figure differ.

    Attributes:
        night: the variance of nights that have one launch each.
        launch: the part of that variance which comes from the launch.
    """

    night: Variance
    launch: Variance

    def of(self, launches: int) -> float:
        """Return the variance of a night with this number of launches."""
        within = min(self.launch.value, self.night.value)
        between = self.night.value - within
        return max(between + within / launches, _LEAST_VARIANCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class LastingChange:
    """A change of level that has lasted from the night it began until tonight.

    Attributes:
        since: the first night of the new level, as an index of the series.
        effect: the most significant change of the mean level, from the first nights to the last
            ones. The last ones may begin on another night than `since`.
    """

    since: int
    effect: Effect


def variance_of_nights(series: Sequence[NightLevel], launch: Variance) -> Variance | None:
    """Estimate, from the differences of successive nights, how nights with one launch vary.

    A lasting change appears in only one difference, so it hardly widens the estimate. The ordinary
    variance around the mean would grow with every night after the change. Nights on which the
    software was worse are left out, because a great loss would make the estimate too wide to judge
    anything.

    Args:
        series: the nights in order.
        launch: the variance between launches. A night with several launches averages part of it
            out, and the estimate adds that part back.

    Returns:
        None with fewer than two nights that aren't `lost`.
    """
    usual_nights = [night for night in series if not night.lost]
    if len(usual_nights) <= 1:
        return None
    estimates = []
    for before, after in itertools.pairwise(usual_nights):
        averaged_out = launch.value * (2 - 1 / before.launches - 1 / after.launches)
        squared_difference = (after.level - before.level) ** 2
        # A difference of two nights has twice the variance of one night.
        estimates.append((squared_difference + averaged_out) / 2)
    freedom = DIFFERENCE_FREEDOM * (len(usual_nights) - 1)
    return Variance(value=statistics.fmean(estimates), freedom=freedom)


def change_tonight(series: Sequence[NightLevel], spread: NightSpread) -> Effect:
    """Return the change of the last night from the level of the nights before it.

    Args:
        series: at least two nights in order; the last is tonight.
        spread: how the levels vary.
    """
    levels = _levels(series)
    weights = _weights(series, spread)
    reference = slice(0, len(series) - 1)
    tonight = slice(len(series) - 1, len(series))
    return _change(levels, weights, reference, tonight, spread.night.freedom)


def change_of_last_nights(
    series: Sequence[NightLevel], nights: int, spread: NightSpread, reference: int
) -> Effect:
    """Return the change from the mean of the first nights to the mean of the last nights.

    Args:
        series: the nights in order, at least `nights` + `reference` of them.
        nights: how many of the last nights are taken together.
        spread: how the levels vary.
        reference: how many of the first nights are taken together.
    """
    levels = _levels(series)
    weights = _weights(series, spread)
    first = slice(0, reference)
    last = slice(len(series) - nights, len(series))
    return _change(levels, weights, first, last, spread.night.freedom)


def lasting_loss(
    series: Sequence[NightLevel], spread: NightSpread, *, least_frac: float
) -> LastingChange | None:
    """Find the most significant loss that has lasted until tonight; None without one.

    The mean of the first i nights is compared with the mean of all nights from index j on, for all
    i <= j with at most `MAX_NIGHTS` nights on either side. Leaving out the nights between the two
    groups makes a slow drift as visible as a step. The loss is dated by the most significant step,
    which is a comparison of all nights before index j, or of the first `MAX_NIGHTS`, with those
    from j on. A loss doesn't count as lasting if tonight is closer to the old level than to the new
    one, or if tonight alone causes it.

    Args:
        series: the nights in order; the last is tonight.
        spread: how the levels vary.
        least_frac: the smallest loss that counts, as a logarithm.
    """
    count = len(series)
    means, weights = _running_means(series, spread)
    clearest: LastingChange | None = None
    clearest_t = 0.0
    clearest_step_t = 0.0
    first_night = 0
    earliest_start = max(1, count - MAX_NIGHTS)
    latest_start = count - _FEWEST_LAST
    for start in range(earliest_start, latest_start + 1):
        # Compare each number of first nights with all nights from `start` on.
        most_firsts = min(start, MAX_NIGHTS)
        firsts = np.arange(1, most_firsts + 1)
        last_mean, last_weight = _mean_since(start, means, weights)
        changes = last_mean - means[firsts]
        errors = np.sqrt(1 / weights[firsts] + 1 / last_weight)
        # Tonight, and also the mean of the nights from `start` to yesterday, must be closer to the
        # new level than to the old one.
        halfway = means[firsts] + changes / 2
        mean_until_yesterday, _ = _mean_since(start, means[:-1], weights[:-1])
        is_back = series[-1].level > halfway
        is_spike = mean_until_yesterday > halfway
        is_lasting = (changes <= -least_frac) & ~is_back & ~is_spike
        t_values = np.where(is_lasting, -changes / errors, 0.0)
        # The last entry has the most first nights, so it is the comparison that counts as a step.
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
    # A drift without any step keeps the night that makes it most significant.
    if clearest is None or not first_night:
        return clearest
    return LastingChange(since=first_night, effect=clearest.effect)


def start_of_gain(
    series: Sequence[NightLevel], spread: NightSpread, *, level: float, least_frac: float
) -> int:
    """Return the index of the first night of the last proven gain; 0 without one.

    A gain that has lasted for five nights becomes the new level, so that falling back from it is a
    loss. The level follows gains only: if it also followed losses, a slow loss would never show.

    Args:
        series: the nights in order, without tonight.
        spread: how the levels vary.
        level: a gain is proven if chance alone shows it with at most this probability, 0..1.
        least_frac: the smallest gain that counts, as a logarithm.
    """
    start = 0
    while True:
        nights = series[start:]
        means, weights = _running_means(nights, spread)
        # Find the night that splits the series into the most significant gain.
        clearest_t = 0.0
        split = 0
        for candidate in range(1, len(nights)):
            after_mean, after_weight = _mean_since(candidate, means, weights)
            change = after_mean - means[candidate]
            error = math.sqrt(1 / weights[candidate] + 1 / after_weight)
            t_value = change / error
            if change > least_frac and t_value > clearest_t:
                clearest_t = float(t_value)
                split = candidate
        has_lasted = len(nights) - split >= _FEWEST_GAINED
        if not split or not has_lasted:
            return start
        chance = t_tail(clearest_t, spread.night.freedom)
        if chance > level:
            return start
        # Look for a further gain in the nights after this one.
        start += split


def _running_means(
    series: Sequence[NightLevel], spread: NightSpread
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the weighted mean and the weight of the first 0, 1, 2, … nights."""
    levels = _levels(series)
    weights = _weights(series, spread)
    # With these sums, the mean of any part of the series is a difference and a division.
    sums = np.concatenate(([0.0], np.cumsum(weights)))
    products = np.concatenate(([0.0], np.cumsum(weights * levels)))
    # The mean of no nights is 0, and isn't used.
    divisors = np.where(sums > 0, sums, 1.0)
    means = products / divisors
    return means, sums


def _mean_since(
    start: int, means: NDArray[np.float64], weights: NDArray[np.float64]
) -> tuple[float, float]:
    """Return the weighted mean of the nights from index `start` on, and their weight."""
    weight = float(weights[-1] - weights[start])
    sum_of_all = means[-1] * weights[-1]
    sum_before = means[start] * weights[start]
    return float(sum_of_all - sum_before) / weight, weight


def _levels(series: Sequence[NightLevel]) -> NDArray[np.float64]:
    return np.array([night.level for night in series])


def _weights(series: Sequence[NightLevel], spread: NightSpread) -> NDArray[np.float64]:
    """Return the inverse of each night's variance, the weights that give a mean the least error."""
    variances = [spread.of(night.launches) + night.noise for night in series]
    return np.array([1 / variance for variance in variances])


def _change(
    levels: NDArray[np.float64],
    weights: NDArray[np.float64],
    before: slice,
    after: slice,
    freedom: float,
) -> Effect:
    """Return the change between the weighted means of two groups of nights, with its error."""
    weight_before = float(weights[before].sum())
    weight_after = float(weights[after].sum())
    sum_before = float(np.dot(weights[before], levels[before]))
    sum_after = float(np.dot(weights[after], levels[after]))
    mean_before = sum_before / weight_before
    mean_after = sum_after / weight_after
    # A weight is the inverse of a variance, so the variance of a mean is 1 over the sum of weights.
    variance_of_change = 1 / weight_before + 1 / weight_after
    return Effect(
        estimate_frac=mean_after - mean_before,
        error_frac=math.sqrt(variance_of_change),
        freedom=freedom,
    )
