"""Summarize values, and count durations in a histogram of bounded size."""

import math
import operator
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

PER_E = 200
"""The number of buckets between a duration and e times that duration. A bucket is 0.5 % wide. A
percentile of a `TimeHistogram` is the middle of a bucket, so it is off by at most 0.25 %."""
_PERCENTS = (50, 75, 90, 95, 99)
_NS_PER_MS = 10**6


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The mean, extremes and percentiles of some values, in the unit of the values.

    Attributes:
        count: the number of values, 1 or more.
        stdev: the standard deviation of the sample; 0 for one value.
    """

    count: int
    mean: float
    min: float
    max: float
    stdev: float
    p50: float
    p75: float
    p90: float
    p95: float
    p99: float


def summarize(values: Iterable[float | None]) -> Summary | None:
    """Summarize values. Percentiles are interpolated linearly between the two nearest values.

    Args:
        values: the values; None is left out.

    Returns:
        None if there is no value.
    """
    ordered = sorted(value for value in values if value is not None)
    if not ordered:
        return None
    stdev = 0.0
    if len(ordered) > 1:
        stdev = statistics.stdev(ordered)
    percentiles = {f"p{percent}": float(np.percentile(ordered, percent)) for percent in _PERCENTS}
    return Summary(
        count=len(ordered),
        mean=statistics.fmean(ordered),
        min=ordered[0],
        max=ordered[-1],
        stdev=stdev,
        **percentiles,
    )


class TimeHistogram(msgspec.Struct):
    """Counts durations in buckets of half a percent, so its size doesn't grow with their number.

    Attributes:
        counts: how many durations each bucket has; d ns belong to the bucket floor(200 ln d).
        total_ns: the exact sum of the durations.
        total_ns2: the exact sum of their squares.
        min_ns: the shortest duration.
        max_ns: the longest duration.
    """

    # msgspec gives each histogram an empty dictionary of its own.
    counts: dict[int, int] = {}
    total_ns: int = 0
    total_ns2: int = 0
    min_ns: int = 0
    max_ns: int = 0

    @property
    def size(self) -> int:
        """The number of durations."""
        return sum(self.counts.values())

    def add_all(self, durations_ns: Sequence[int]) -> None:
        """Add durations, each 0 or more."""
        # 0 has no logarithm, so it is counted as 1 ns.
        buckets = [math.floor(PER_E * math.log(max(duration, 1))) for duration in durations_ns]
        squares_ns2 = map(operator.mul, durations_ns, durations_ns)
        added = TimeHistogram(
            counts=Counter(buckets),
            total_ns=sum(durations_ns),
            total_ns2=sum(squares_ns2),
            min_ns=min(durations_ns, default=0),
            max_ns=max(durations_ns, default=0),
        )
        self.merge(added)

    @classmethod
    def merged(cls, parts: Iterable["TimeHistogram"]) -> "TimeHistogram":
        """Return a new histogram of the durations of all parts."""
        merged = cls()
        for part in parts:
            merged.merge(part)
        return merged

    def merge(self, addend: "TimeHistogram") -> None:
        """Add all durations of another histogram."""
        if not addend.counts:
            return

        # The minimum of an empty histogram is 0, which isn't a duration.
        if self.counts:
            self.min_ns = min(self.min_ns, addend.min_ns)
        else:
            self.min_ns = addend.min_ns

        for bucket, count in addend.counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + count
        self.total_ns += addend.total_ns
        self.total_ns2 += addend.total_ns2
        self.max_ns = max(self.max_ns, addend.max_ns)

    def quantile_ns(self, frac: float) -> float:
        """Return a quantile of the durations: the middle of the bucket that contains it.

        Args:
            frac: the share of the durations that are below the quantile, 0..1.

        Returns:
            0 if there are no durations.
        """
        remaining = frac * self.size
        for bucket in sorted(self.counts):
            remaining -= self.counts[bucket]
            if remaining <= 0:
                middle = math.exp((bucket + 0.5) / PER_E)
                return min(max(middle, self.min_ns), self.max_ns)
        return 0.0

    def summary_ms(self) -> Summary | None:
        """Return the summary in milliseconds; None if there are no durations."""
        count = self.size
        if not count:
            return None
        mean = self.total_ns / count

        # The difference may be slightly below 0 by rounding.
        squared_deviations = max(self.total_ns2 - count * mean * mean, 0.0)
        variance = squared_deviations / max(count - 1, 1)
        percentiles = {
            f"p{percent}": self.quantile_ns(percent / 100) / _NS_PER_MS for percent in _PERCENTS
        }
        return Summary(
            count=count,
            mean=mean / _NS_PER_MS,
            min=self.min_ns / _NS_PER_MS,
            max=self.max_ns / _NS_PER_MS,
            stdev=math.sqrt(variance) / _NS_PER_MS,
            **percentiles,
        )
