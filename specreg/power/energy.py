"""Energy: the trace of a device and spans of time in, joules out, with what is wrong with them.

Of each span the counter tells what lies between its first and its last tick, each at the moment at
which it was seen to come. What lies between an edge and the tick beside it is estimated from both
sides, for the load begins and ends there. Read at the ends of a span alone a counter would be up to
a tick old: of 0.55 s it tells five ticks of 100 ms or six, 9 % off either way.
"""

import bisect
import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specreg.errors import SensorError
from specreg.power.samples import PowerTrace, Sample, Tick

Span = tuple[int, int]
"""From and to, in nanoseconds of the monotonic clock."""

SHORTEST_S = 30.0
_MOST_MISSING_FRAC = 0.1
_MOST_APART_FRAC = 0.03
_MOST_EDGE_FRAC = 0.02
_EDGE_NS = 10**9
_AROUND_NS = 500 * 10**6
_AVERAGED_NS = 10**9
_NS_PER_S = 10**9
_MJ_PER_J = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Energy:
    """What a device drew in some spans.

    Attributes:
        energy_mj: in all of them.
        error_frac: how far off it may be for the edges of the spans: the time there of which nobody
            knows the power, times what power went by, and how late ticks were seen.
        from_counter: by its counter; else by its power, sample for sample.
    """

    energy_mj: float
    error_frac: float
    from_counter: bool


def energy_of(trace: PowerTrace, spans: Sequence[Span]) -> Energy:
    """What a device drew in some spans, by its counter if it has one.

    Raises:
        SensorError: nobody can tell, with the reason.
    """
    _check_complete(trace, spans)
    if all(one.energy_mj is None for one in trace.samples):
        total = sum(integral_mj(trace, span) for span in spans)
        return Energy(energy_mj=total, error_frac=0.0, from_counter=False)
    _check_counts_up(trace)
    told_mj, told_ns, doubt_ns, late_ns = 0.0, 0, 0.0, 0
    for span in spans:
        first, last = _ticks_of(trace.ticks, span)
        if last > first:
            ends = trace.ticks[first], trace.ticks[last]
            _check_near(ends[0].at_ns - span[0], span[1] - ends[1].at_ns)
            edges = (_edge(trace.ticks, span[0], first, 1), _edge(trace.ticks, span[1], last, -1))
            told_mj += ends[1].energy_mj - ends[0].energy_mj + sum(mj for mj, _ in edges)
            told_ns += span[1] - span[0]
            doubt_ns += sum(doubt for _, doubt in edges)
            late_ns += ends[0].after_ns + ends[1].after_ns
    if not told_ns:
        message = (
            "its energy counter wasn't seen to tick; it stands still, or the machine is too busy to"
            " sample it"
        )
        raise SensorError(message)
    whole_ns = length_ns(spans)
    # A span too short for its ticks is taken at the mean power of the others.
    doubt_ns += whole_ns - told_ns
    swing = _swing_frac(trace, spans, told_mj * _NS_PER_S / told_ns)
    return Energy(
        energy_mj=told_mj * whole_ns / told_ns,
        error_frac=(doubt_ns * swing + late_ns) / whole_ns,
        from_counter=True,
    )


def _edge(ticks: Sequence[Tick], edge_ns: int, place: int, inwards: int) -> tuple[float, float]:
    """What lies between an edge and the tick within that is next to it, and how sure that is.

    It is that time at the power further in; or all between the ticks around the edge, less what
    lies outside, at the power further out. The nearer an edge is to a tick, the surer is that side.

    Args:
        ticks: of the whole trace.
        edge_ns: the edge.
        place: of the tick within.
        inwards: 1 where later ticks are further in, else -1.

    Returns:
        Its millijoules, and for how many nanoseconds power may have been another than was taken.
    """
    inner, outer = ticks[place], place - inwards
    inside_ns = abs(inner.at_ns - edge_ns)
    inside_mj = inside_ns * _power(inner, ticks[place + inwards])
    if not 0 <= min(outer, outer - inwards) <= max(outer, outer - inwards) < len(ticks):
        return inside_mj, inside_ns
    outside_ns = abs(ticks[outer].at_ns - edge_ns)
    around_ns = inside_ns + outside_ns
    if around_ns > _AROUND_NS:  # ticks are missing: who knows what was between them
        return inside_mj, inside_ns
    around_mj = abs(inner.energy_mj - ticks[outer].energy_mj)
    less_mj = around_mj - outside_ns * _power(ticks[outer], ticks[outer - inwards])
    both_mj = (outside_ns * inside_mj + inside_ns * less_mj) / around_ns
    return both_mj, inside_ns * outside_ns / around_ns


def _power(one: Tick, other: Tick) -> float:
    """The mean power between two ticks, in millijoules per nanosecond."""
    return (other.energy_mj - one.energy_mj) / (other.at_ns - one.at_ns)


def check_edges(energy: Energy) -> None:
    """The edges of the spans can't make it more than 2 % off.

    Raises:
        SensorError: they can.
    """
    if energy.error_frac > _MOST_EDGE_FRAC:
        message = (
            f"the edges of its rounds can make its energy {energy.error_frac:.1%} off, and"
            f" {_MOST_EDGE_FRAC:.0%} is borne; make the rounds longer, or leave the sampler a core:"
            " its counter was too seldom seen to tick"
        )
        raise SensorError(message)


def _swing_frac(trace: PowerTrace, spans: Sequence[Span], mean_mw: float) -> float:
    """From the least to the most power, relative to the mean; 1 where nothing tells power."""
    told = [
        power
        for span in spans
        for one in trace.within(*span).samples
        if (power := _power_mw(one)) is not None
    ]
    return (max(told) - min(told)) / mean_mw if told and mean_mw else 1.0


def counter_ratio(trace: PowerTrace, span: Span) -> float | None:
    """What the counter says over what power × time says; None where one of them says nothing.

    Raises:
        SensorError: as for `energy_of`.
    """
    counted = energy_of(trace, [span])
    if not counted.from_counter or not any(map(_power_mw, trace.samples)):
        return None
    return counted.energy_mj / integral_mj(trace, span)


def check_counter(ratio: float | None) -> None:
    """Counter and power agree within 3 %.

    Raises:
        SensorError: they don't.
    """
    if ratio is not None and abs(ratio - 1) > _MOST_APART_FRAC:
        message = (
            f"its energy counter says {ratio:.2f} times what its power says over the same time,"
            " and they may lie 3 % apart; its sensor looks away for a part of the time, or is off"
        )
        raise SensorError(message)


def integral_mj(trace: PowerTrace, span: Span) -> float:
    """Power × time, between samples as a line; an average belongs to the middle of its second.

    Raises:
        SensorError: there are no samples of power.
    """
    told = [one for one in trace.samples if _power_mw(one) is not None]
    if not told:
        raise SensorError(f"{trace.device.name}: tells neither power nor energy")
    return _integral_mj(told, span)


def _integral_mj(samples: Sequence[Sample], span: Span) -> float:
    """The same of samples that all tell power; beyond them it is that of the nearest."""
    told = [(_moment_ns(one), _power_mw(one)) for one in samples]
    moments, powers = (np.array(column, dtype=float) for column in zip(*told, strict=True))
    inside = moments[(moments > span[0]) & (moments < span[1])]
    grid = np.concatenate(([span[0]], inside, [span[1]]))
    return float(np.trapezoid(np.interp(grid, moments, powers), grid)) / _NS_PER_S


def peak_mw(trace: PowerTrace) -> int | None:
    """The most that a sample said."""
    return max((power for one in trace.samples if (power := _power_mw(one))), default=None)


def length_ns(spans: Sequence[Span]) -> int:
    """How long they are together."""
    return sum(end_ns - start_ns for start_ns, end_ns in spans)


def tick_ms(trace: PowerTrace) -> float | None:
    """How often the counter ticks."""
    known = [tick.period_ns for tick in trace.ticks if tick.period_ns]
    return statistics.median(known) / 10**6 if known else None


def missing_frac(trace: PowerTrace, spans: Sequence[Span]) -> float:
    """The share of the samples due in some spans that aren't there, 0..1."""
    due = length_ns(spans) / trace.every_ns
    there = sum(
        bisect.bisect_right(trace.samples, end, key=_at_ns)
        - bisect.bisect_left(trace.samples, start, key=_at_ns)
        for start, end in spans
    )
    return max(0.0, 1 - there / math.floor(due)) if due >= 1 else 0.0


def _check_complete(trace: PowerTrace, spans: Sequence[Span]) -> None:
    if trace.failed is not None and trace.failed.at_ns < max(end for _, end in spans):
        raise SensorError(f"{trace.device.name}: {trace.failed.why}")
    missing = missing_frac(trace, spans)
    if missing > _MOST_MISSING_FRAC:
        message = (
            f"{missing:.0%} of the samples of {trace.device.name} are missing, more than 10 %;"
            " the sampler was kept from running, or ended"
        )
        raise SensorError(message)


def _check_counts_up(trace: PowerTrace) -> None:
    values = [one.energy_mj for one in trace.samples if one.energy_mj is not None]
    if any(later < earlier for earlier, later in itertools.pairwise(values)):
        message = f"the energy counter of {trace.device.name} went back; was the driver reloaded?"
        raise SensorError(message)


def _check_near(*apart_ns: int) -> None:
    """A counter was seen to tick near the edges, though its power were all the same."""
    if max(apart_ns) > _EDGE_NS:
        message = (
            f"its energy counter wasn't seen to tick for {max(apart_ns) / _NS_PER_S:.1f} s at the"
            " edge of a round; it stands still, or the machine is too busy to sample it"
        )
        raise SensorError(message)


def _ticks_of(ticks: Sequence[Tick], span: Span) -> tuple[int, int]:
    """The places of the first and the last tick of a span; the second is less where it has none."""
    first = bisect.bisect_left(ticks, span[0], key=_at_ns)
    return first, bisect.bisect_right(ticks, span[1], key=_at_ns) - 1


def _power_mw(one: Sample) -> int | None:
    return one.state.average_mw if one.state.instant_mw is None else one.state.instant_mw


def _moment_ns(one: Sample) -> int:
    """The middle of what a sample's power is of."""
    averaged = one.state.instant_mw is None
    return one.at_ns - (_AVERAGED_NS // 2 if averaged else 0)


def _at_ns(one: Sample | Tick) -> int:
    return one.at_ns
