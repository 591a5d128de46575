"""Distributions: a histogram of durations in, a few bars that can be drawn out."""

import math

import msgspec

from specreg.spread import PER_E, Histogram

_MOST_BARS = 24
_NS_PER_MS = 10**6


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """How many durations are low_ms or more, and less than high_ms."""

    low_ms: float
    high_ms: float
    count: int


def bars_of(durations: Histogram) -> tuple[Bar, ...]:
    """At most 24 bars that lie side by side, as wide as one another on a logarithmic scale.

    None of no durations; bars without a duration in them stand between the others, so that a gap
    looks like one.
    """
    if not durations.counts:
        return ()
    first, last = min(durations.counts), max(durations.counts)
    width = math.ceil((last - first + 1) / _MOST_BARS)
    counts: dict[int, int] = {}
    for bucket, count in durations.counts.items():
        place = (bucket - first) // width
        counts[place] = counts.get(place, 0) + count

    def edge_ms(place: int) -> float:
        return math.exp((first + place * width) / PER_E) / _NS_PER_MS

    return tuple(
        Bar(low_ms=edge_ms(place), high_ms=edge_ms(place + 1), count=counts.get(place, 0))
        for place in range(max(counts) + 1)
    )
