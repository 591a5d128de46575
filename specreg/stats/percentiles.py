"""Spreads: many numbers in, their mean, extremes and percentiles out, in a memory that is fixed."""

import math
import operator
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

PER_E = 200
"""Buckets per factor e: a percentile of a `Histogram` is off by 0.25 % at most."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What is shown of many values, in their own unit.

    Attributes:
        count: how many; 1 or more.
        mean, min, max: of all.
        stdev: the sample's standard deviation; 0 for one value.
        p50, p75, p90, p95, p99: percentiles, linear between the two nearest values.
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


def summarize(values: Iterable[float]) -> Summary | None:
    """The summary of some values, None of none."""
    ordered = sorted(values)
    if not ordered:
        return None
    return Summary(
        count=len(ordered),
        mean=statistics.fmean(ordered),
        min=ordered[0],
        max=ordered[-1],
        stdev=statistics.stdev(ordered) if len(ordered) > 1 else 0.0,
        p50=percentile(ordered, 0.50),
        p75=percentile(ordered, 0.75),
        p90=percentile(ordered, 0.90),
        p95=percentile(ordered, 0.95),
        p99=percentile(ordered, 0.99),
    )


def percentile(ordered: Sequence[float], frac: float) -> float:
    """The value below which `frac` (0..1) of the ordered values lie, linear between neighbours."""
    place = frac * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def _bucket(duration_ns: int) -> int:
    return math.floor(PER_E * math.log(duration_ns)) if duration_ns > 0 else 0


class Histogram(msgspec.Struct):
    """Durations in a memory that doesn't grow with them: a count per half of a percent.

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
        """How many durations there are."""
        return sum(self.counts.values())

    def add(self, duration_ns: int) -> None:
        """Takes one more duration, 0 or more."""
        self.add_all((duration_ns,))

    def add_all(self, durations_ns: Sequence[int]) -> None:
        """Takes some more, which is cheaper than one by one."""
        if not durations_ns:
            return
        self.min_ns = min(durations_ns) if not self.counts else min(self.min_ns, *durations_ns)
        self.max_ns = max(self.max_ns, *durations_ns)
        self.total_ns += sum(durations_ns)
        self.total_ns2 += sum(map(operator.mul, durations_ns, durations_ns))
        for bucket, count in Counter(map(_bucket, durations_ns)).items():
            self.counts[bucket] = self.counts.get(bucket, 0) + count

    def merge(self, other: "Histogram") -> None:
        """Takes all durations of another."""
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
        """The summary in milliseconds, None of none."""
        count = self.size
        if not count:
            return None
        mean = self.total_ns / count
        variance = max(self.total_ns2 - count * mean * mean, 0.0) / max(count - 1, 1)
        quantiles = {f"p{p}": self.quantile_ns(p / 100) / 1e6 for p in (50, 75, 90, 95, 99)}
        return Summary(
            count=count,
            mean=mean / 1e6,
            min=self.min_ns / 1e6,
            max=self.max_ns / 1e6,
            stdev=math.sqrt(variance) / 1e6,
            **quantiles,
        )
