"""Estimate the drift of a long measurement, and how long it must be to find a certain drift."""

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specreg.stats.intervals import Effect, t_quantile

SEGMENT_PARTS = 8
"""How many parts the segments are divided into. Fewer segments than this can't show a drift."""
_STANDARD_ERRORS = 2.3
"""How many standard errors the upper bound of the correlation is above its estimate. The true value
is below the bound in 99 % of the cases."""
_LEAST_FREEDOM = SEGMENT_PARTS - 2
"""The fewest degrees of freedom of a line. With fewer, it is no better than `change_of_parts`."""
_MAX_FREEDOM = 200
"""With more degrees of freedom, Student's t distribution is practically a normal one."""
_MISSED_LEVEL = 0.01
"""The probability of missing a drift that counts as detectable."""
_LENGTHS = tuple(1.05**power for power in range(142))
"""The lengths that are considered, as multiples of the present length, up to about a thousand."""
_TINY = 1e-12
"""A sum of squares below this is a rounding error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """A straight line through the segments of a measurement, and their deviations from it.

    Attributes:
        slope_frac: the change per hour.
        residual_frac: the standard deviation around the line.
        correlation_frac: the correlation of the residuals of neighbouring segments, 0..1, corrected
            for its bias.
        spread_h2: the sum of the squared distances of the segments from their mean hour.
        segments: the number of segments, 3 or more.
    """

    slope_frac: float
    residual_frac: float
    correlation_frac: float
    spread_h2: float
    segments: int

    @classmethod
    def of(cls, values: Sequence[float], hours: Sequence[float]) -> "Trend":
        """Fit the line by least squares.

        Args:
            values: the value of each segment, in order.
            hours: when each segment was measured, in hours.
        """
        # The slope of the line of least squares.
        from_mean_h = np.asarray(hours) - np.mean(hours)
        from_mean = np.asarray(values) - np.mean(values)
        squared_hours = float(np.dot(from_mean_h, from_mean_h))
        slope = float(np.dot(from_mean_h, from_mean)) / squared_hours

        # The correlation of the residuals of neighbouring segments.
        residuals = from_mean - slope * from_mean_h
        squares = float(np.dot(residuals, residuals))
        segments = len(from_mean)
        if squares <= _TINY:
            squares = 0.0
        correlation = 0.0
        if squares:
            products = float(np.dot(residuals[1:], residuals[:-1]))
            neighbours = max(products / squares, 0.0)
            # The estimate is biased towards 0, because the line was fitted (Kendall 1954).
            correlation = min(neighbours + (1 + 4 * neighbours) / segments, 1.0)

        return cls(
            slope_frac=slope,
            residual_frac=math.sqrt(squares / (segments - 2)),
            correlation_frac=correlation,
            spread_h2=squared_hours,
            segments=segments,
        )

    def effect(self, times_as_long: float = 1.0) -> Effect | None:
        """Return the drift and the error that it would have in a longer measurement.

        If neighbouring segments have the correlation r, n segments contain as much information as
        n (1 - r) / (1 + r) independent ones. r is an estimate itself, so its upper bound is used.

        Args:
            times_as_long: the length of the longer measurement, as a multiple of this one.

        Returns:
            None if the segments contain too little information.
        """
        segments = self.segments * times_as_long
        uncertainty = math.sqrt((1 - self.correlation_frac**2) / segments)
        correlation = min(self.correlation_frac + _STANDARD_ERRORS * uncertainty, 1.0)
        information_frac = (1 - correlation) / (1 + correlation)

        # A line has two parameters.
        freedom = min(math.floor(segments * information_frac) - 2, _MAX_FREEDOM)
        if freedom < _LEAST_FREEDOM:
            return None

        # The sum of squares grows with the number of segments, and with the square of the hours.
        squared_hours = self.spread_h2 * times_as_long**3
        error_frac = self.residual_frac / math.sqrt(squared_hours * information_frac)
        return Effect(estimate_frac=self.slope_frac, error_frac=error_frac, freedom=freedom)


def change_of_segments(values: Sequence[float], hours: Sequence[float], scale: float) -> Effect:
    """Return the change per hour over the segments of a long measurement.

    It is the slope of a `Trend` if the segments are independent enough. If another program runs for
    minutes, or if the level jumps once, no line describes the segments, and `change_of_parts` is
    used instead.

    Args:
        values: the value of each segment, in order; at least `SEGMENT_PARTS` of them.
        hours: when each segment was measured, in hours.
        scale: the factor that turns a difference of values into a relative change. Its sign makes
            an improvement positive.
    """
    scaled = [scale * value for value in values]
    return Trend.of(scaled, hours).effect() or change_of_parts(scaled, hours)


def change_of_parts(values: Sequence[float], hours: Sequence[float]) -> Effect:
    """Return the change per hour from the first of eight parts of the segments to the last one.

    The change between their means is the sum of the seven steps from part to part. Its error
    follows from the spread of these steps. A single jump changes the estimate and the error by the
    same amount, so it doesn't look significant.

    Args:
        values: the relative value of each segment, in order.
        hours: when each segment was measured, in hours.
    """
    steps = np.diff(part_means(values))
    part_hours = part_means(hours)
    span_h = float(part_hours[-1] - part_hours[0])

    # The error of a sum of n steps is √n times that of a single step.
    error_of_sum = float(steps.std(ddof=1)) * math.sqrt(len(steps))
    return Effect(
        estimate_frac=float(steps.sum()) / span_h,
        error_frac=error_of_sum / span_h,
        freedom=len(steps) - 1,
    )


def part_means(values: Sequence[float]) -> NDArray[np.float64]:
    """Return the means of `SEGMENT_PARTS` parts in order, of sizes as equal as possible."""
    parts = np.array_split(np.asarray(values), SEGMENT_PARTS)
    return np.array([part.mean() for part in parts])


def detectable_frac(trend: Trend, level: float, times_as_long: float = 1.0) -> float | None:
    """Return the drift per hour that is found 99 times out of 100.

    Args:
        trend: the trend of the measured part of the measurement, in relative changes.
        level: the probability that a steady server raises an alarm, 0..0.5.
        times_as_long: the length of the measurement, as a multiple of the measured part.

    Returns:
        None if too few segments are independent to find any.
    """
    if not trend.residual_frac:
        return 0.0
    effect = trend.effect(times_as_long)
    if effect is None:
        return None

    # The drift must exceed what is significant, even if chance makes it look smaller.
    significant_reach = t_quantile(level, effect.freedom)
    missed_reach = t_quantile(_MISSED_LEVEL, effect.freedom)
    return (significant_reach + missed_reach) * effect.error_frac


def times_to_find(trend: Trend, level: float, drift_frac: float) -> float | None:
    """Return how long a measurement must be to find a drift, as a multiple of a measured part.

    Args:
        trend: the trend of the measured part, in relative changes.
        level: the probability that a steady server raises an alarm, 0..0.5.
        drift_frac: the drift per hour that has to be found.

    Returns:
        None if a thousand times as long isn't enough.
    """

    def is_found(times_as_long: float) -> bool:
        least_frac = detectable_frac(trend, level, times_as_long)
        return least_frac is not None and least_frac <= drift_frac

    # A longer measurement finds all that a shorter one does.
    index = bisect.bisect_left(_LENGTHS, True, key=is_found)  # noqa: FBT003 - what is looked for
    return _LENGTHS[index] if index < len(_LENGTHS) else None
