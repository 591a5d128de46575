"""Percentiles of values, and of durations that are counted in a histogram of fixed size."""

import math
import operator
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

PER_E = 200
"""Buckets per factor e: a percentile of a `Histogram` is off by 0.25 % at most."""
_PERCENTS = (50, 75, 90, 95, 99)
_NS_PER_MS = 10**6


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The mean, extremes and percentiles of `count` values, one at least, in their unit.

    `stdev` is the sample's standard deviation, 0 for one value.
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
    """Summarize the values that there are; None of none.

    Percentiles are linear between the two nearest values.
    """
    ordered = sorted(value for value in values if value is not None)
    if not ordered:
        return None
    return Summary(
        count=len(ordered),
        mean=statistics.fmean(ordered),
        min=ordered[0],
        max=ordered[-1],
        stdev=statistics.stdev(ordered) if len(ordered) > 1 else 0.0,
        **{f"p{one}": float(np.percentile(ordered, one)) for one in _PERCENTS},
    )


class TimeHistogram(msgspec.Struct):
    """Counts durations in buckets of half a percent, so its size doesn't grow with their number.

    Attributes:
        counts: by bucket; a duration of d ns is in bucket floor(200 ln d).
        total_ns, total_ns2, min_ns, max_ns: exact.
    """

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
        buckets = (math.floor(PER_E * math.log(max(one, 1))) for one in durations_ns)
        squares_ns2 = sum(map(operator.mul, durations_ns, durations_ns))
        least_ns, most_ns = min(durations_ns, default=0), max(durations_ns, default=0)
        self.merge(
            TimeHistogram(Counter(buckets), sum(durations_ns), squares_ns2, least_ns, most_ns)
        )

    @classmethod
    def merged(cls, parts: Iterable["TimeHistogram"]) -> "TimeHistogram":
        """A new histogram of all durations of some others."""
        whole = cls()
        for part in parts:
            whole.merge(part)
        return whole

    def merge(self, other: "TimeHistogram") -> None:
        """Add all durations of another histogram."""
        if not other.counts:
            return
        self.min_ns = min(self.min_ns, other.min_ns) if self.counts else other.min_ns
        for bucket, count in other.counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + count
        self.total_ns += other.total_ns
        self.total_ns2 += other.total_ns2
        self.max_ns = max(self.max_ns, other.max_ns)

    def quantile_ns(self, frac: float) -> float:
        """The middle of the bucket in which `frac` of the durations is reached; 0 of none."""
        left = frac * self.size
        for bucket in sorted(self.counts):
            left -= self.counts[bucket]
            if left <= 0:
                middle = math.exp((bucket + 0.5) / PER_E)
                return min(max(middle, self.min_ns), self.max_ns)
        return 0.0

    def summary_ms(self) -> Summary | None:
        """The summary in milliseconds; None of none."""
        if not (count := self.size):
            return None
        mean = self.total_ns / count
        variance = max(self.total_ns2 - count * mean * mean, 0.0) / max(count - 1, 1)
        return Summary(
            count=count,
            mean=mean / _NS_PER_MS,
            min=self.min_ns / _NS_PER_MS,
            max=self.max_ns / _NS_PER_MS,
            stdev=math.sqrt(variance) / _NS_PER_MS,
            **{f"p{one}": self.quantile_ns(one / 100) / _NS_PER_MS for one in _PERCENTS},
        )
