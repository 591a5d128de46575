"""Distributions: a histogram of durations in, a few bars that can be drawn out."""

import math

import msgspec

from specreg.stats.percentiles import PER_E, Histogram

_MOST_BARS = 24
_TAIL_FRAC = 0.005
_NS_PER_MS = 10**6


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """How many durations are low_ms or more, and less than high_ms."""

    low_ms: float
    high_ms: float
    count: int


def bars_of(durations: Histogram) -> tuple[Bar, ...]:
    """At most 24 bars that lie side by side, as wide as one another on a logarithmic scale.

    Few durations have few bars, 2 ∛n by Rice's rule. The lowest and the highest half a percent
    count to the outermost bars, whatever they are: one stall would make all others one bar. None of
    no durations; bars without any stand between the others, so that a gap looks like one.
    """
    if not durations.counts:
        return ()
    first, last = _bulk(durations)
    most = min(_MOST_BARS, math.ceil(2 * durations.size ** (1 / 3)))
    width = math.ceil((last - first + 1) / most)
    counts: dict[int, int] = {}
    for bucket, count in durations.counts.items():
        place = (min(max(bucket, first), last) - first) // width
        counts[place] = counts.get(place, 0) + count

    def edge_ms(place: int) -> float:
        return math.exp((first + place * width) / PER_E) / _NS_PER_MS

    return tuple(
        Bar(low_ms=edge_ms(place), high_ms=edge_ms(place + 1), count=counts.get(place, 0))
        for place in range(max(counts) + 1)
    )


def _bulk(durations: Histogram) -> tuple[int, int]:
    """The first and the last bucket of all but the tails."""
    tail = math.floor(_TAIL_FRAC * durations.size)
    ends = []
    for ordered in (sorted(durations.counts), sorted(durations.counts, reverse=True)):
        left = tail
        for bucket in ordered:
            left -= durations.counts[bucket]
            if left < 0:
                ends.append(bucket)
                break
    return ends[0], ends[1]
