"""A curve of what a device drew: a trace in, few enough points to draw them out."""

import itertools
import statistics
from collections.abc import Iterator

import msgspec

from specreg.power.samples import PowerTrace, Sample

_MOST_POINTS = 120
_MW_PER_W = 1000
_NS_PER_S = 10**9


class PowerPoint(msgspec.Struct, frozen=True, kw_only=True):
    """What was drawn on average about a moment, in seconds since the first sample."""

    at_s: float
    power_w: float


class PowerCurve(msgspec.Struct, frozen=True, kw_only=True):
    """What one device drew while it was watched."""

    device: str
    points: tuple[PowerPoint, ...]


def curve_of(trace: PowerTrace) -> PowerCurve:
    """At most 120 points, each the mean of a span; by its counter where it tells no power."""
    told = list(_drawn(trace))
    if not told:
        return PowerCurve(device=trace.device.name, points=())
    start_ns, end_ns = trace.samples[0].at_ns, trace.samples[-1].at_ns
    width_ns = max((end_ns - start_ns) // _MOST_POINTS, 1)
    spans: dict[int, list[float]] = {}
    for at_ns, power_w in told:
        place = min((at_ns - start_ns) // width_ns, _MOST_POINTS - 1)
        spans.setdefault(place, []).append(power_w)
    return PowerCurve(
        device=trace.device.name,
        points=tuple(
            PowerPoint(
                at_s=(place + 0.5) * width_ns / _NS_PER_S, power_w=statistics.fmean(powers_w)
            )
            for place, powers_w in sorted(spans.items())
        ),
    )


def _drawn(trace: PowerTrace) -> Iterator[tuple[int, float]]:
    """When, and how many watts; of a device that counts energy alone, between two samples."""
    if any(_power_mw(one) is not None for one in trace.samples):
        for one in trace.samples:
            power_mw = _power_mw(one)
            if power_mw is not None:
                yield one.at_ns, power_mw / _MW_PER_W
        return
    counted = [one for one in trace.samples if one.energy_mj is not None]
    for before, after in itertools.pairwise(counted):
        if after.at_ns > before.at_ns and after.energy_mj is not None:
            drawn_mj = after.energy_mj - (before.energy_mj or 0)
            yield after.at_ns, drawn_mj / _MW_PER_W * _NS_PER_S / (after.at_ns - before.at_ns)


def _power_mw(one: Sample) -> int | None:
    return one.state.average_mw if one.state.instant_mw is None else one.state.instant_mw
