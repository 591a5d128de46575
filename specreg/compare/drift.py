"""Estimate how a long measurement drifts, and which drift a measurement of some length can find."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specreg.stats.intervals import Effect, t_quantile

SEGMENT_PARTS = 8
"""How many parts segments are cut into; fewer segments can't show a drift."""
_STANDARD_ERRORS = 2.3
"""The upper bound of the correlation lies so far above its estimate, which holds in 99 %."""
_LEAST_FREEDOM = SEGMENT_PARTS - 2
"""With fewer independent segments than parts, a line is no better than the parts."""
_MAX_FREEDOM = 200
"""From here on, Student's distribution is hardly wider than the normal one."""
_FOUND_LEVEL = 0.01
"""A drift that can be found is missed in 1 of 100 measurements."""
_MAX_TIMES_AS_LONG = 1000.0
_LONGER = 1.05
_TINY = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """A straight line through segments, and how they lie around it.

    Attributes:
        slope_frac: the change in an hour.
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
            hours: when each segment was measured.
        """
        from_mean_h = np.asarray(hours) - np.mean(hours)
        from_mean = np.asarray(values) - np.mean(values)
        squared_hours = float(np.dot(from_mean_h, from_mean_h))
        slope = float(np.dot(from_mean_h, from_mean)) / squared_hours
        residuals = from_mean - slope * from_mean_h
        squares = float(np.dot(residuals, residuals))
        segments = len(from_mean)
        if squares <= _TINY:
            squares = 0.0
        correlation = 0.0
        if squares:
            neighbours = max(float(np.dot(residuals[1:], residuals[:-1])) / squares, 0.0)
            # A fitted line takes some of the correlation away (Kendall 1954).
            correlation = min(neighbours + (1 + 4 * neighbours) / segments, 1.0)
        return cls(
            slope_frac=slope,
            residual_frac=math.sqrt(squares / (segments - 2)),
            correlation_frac=correlation,
            spread_h2=squared_hours,
            segments=segments,
        )

    def effect(self, times_as_long: float = 1.0) -> Effect | None:
        """Return the drift with its error, of a measurement that lasts so many times as long.

        If neighbouring segments have the correlation r, then n of them have as much information as
        n (1 - r) / (1 + r) independent ones. r is an estimate too, so its upper bound is taken.

        Returns:
            None if the segments have the information of too few independent ones.
        """
        segments = self.segments * times_as_long
        uncertainty = math.sqrt((1 - self.correlation_frac**2) / segments)
        correlation = min(self.correlation_frac + _STANDARD_ERRORS * uncertainty, 1.0)
        worth = (1 - correlation) / (1 + correlation)
        freedom = min(math.floor(segments * worth) - 2, _MAX_FREEDOM)
        if freedom < _LEAST_FREEDOM:
            return None
        # The sum of squares grows with the number of segments, and with the square of the hours.
        squared_hours = self.spread_h2 * times_as_long**3
        return Effect(
            estimate_frac=self.slope_frac,
            error_frac=self.residual_frac / math.sqrt(squared_hours * worth),
            freedom=freedom,
        )


def change_of_segments(values: Sequence[float], hours: Sequence[float], scale: float) -> Effect:
    """Return the change in an hour over the segments of a long measurement.

    It is the slope of a line if the segments are independent enough, see `Trend`. If other programs
    run for minutes, or if the level jumps once, no line describes the segments. Then it is
    `change_of_parts`.

    Args:
        values: the value of each segment, in order; `SEGMENT_PARTS` at least.
        hours: when each segment was measured.
        scale: the factor from a difference of values to a relative change, positive when better.
    """
    scaled = [scale * value for value in values]
    return Trend.of(scaled, hours).effect() or change_of_parts(scaled, hours)


def change_of_parts(values: Sequence[float], hours: Sequence[float]) -> Effect:
    """Return the change in an hour from the first of eight parts to the last.

    The change between the means of the two is the sum of the seven steps from part to part. The
    spread of these steps gives its error, which noise and single jumps only make wider.
    """
    steps = np.diff(part_means(values))
    part_hours = part_means(hours)
    span_h = float(part_hours[-1] - part_hours[0])
    return Effect(
        estimate_frac=float(steps.sum()) / span_h,
        error_frac=float(steps.std(ddof=1)) * math.sqrt(len(steps)) / span_h,
        freedom=len(steps) - 1,
    )


def part_means(values: Sequence[float]) -> NDArray[np.float64]:
    """Return the means of `SEGMENT_PARTS` parts in order, of sizes as equal as possible."""
    return np.array([part.mean() for part in np.array_split(np.asarray(values), SEGMENT_PARTS)])


def detectable_frac(trend: Trend, level: float, times_as_long: float = 1.0) -> float | None:
    """Return the drift in an hour that is found 99 times out of 100.

    Args:
        trend: the trend of a part of the measurement, in relative changes.
        level: how often a steady server may raise an alarm, 0..0.5.
        times_as_long: how much longer than that part the measurement lasts.

    Returns:
        None if too few segments are independent to find any.
    """
    if not trend.residual_frac:
        return 0.0
    effect = trend.effect(times_as_long)
    if effect is None:
        return None
    reach = t_quantile(level, effect.freedom) + t_quantile(_FOUND_LEVEL, effect.freedom)
    return reach * effect.error_frac


def times_to_find(trend: Trend, level: float, drift_frac: float) -> float | None:
    """Return how long a measurement must be to find a drift, as a multiple of a part of it.

    Args:
        trend: the trend of that part, in relative changes.
        level: how often a steady server may raise an alarm, 0..0.5.
        drift_frac: the drift in an hour that is to be found.

    Returns:
        None if a thousand times as long isn't enough.
    """
    times_as_long = 1.0
    while times_as_long < _MAX_TIMES_AS_LONG:
        least_frac = detectable_frac(trend, level, times_as_long)
        if least_frac is not None and least_frac <= drift_frac:
            return times_as_long
        times_as_long *= _LONGER
    return None
