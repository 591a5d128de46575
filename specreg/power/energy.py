"""Energy: the trace of a device and spans of time in, joules out, with what is wrong with them.

The counter is taken as a line through its ticks, each at the moment at which it was seen to come.
Read at the ends of a span alone it would be up to a tick old: 8 % of half a second of 400 W.
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
_EDGE_NS = 500 * 10**6
_AVERAGED_NS = 10**9
_NS_PER_S = 10**9
_MJ_PER_J = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Energy:
    """What a device drew in some spans.

    Attributes:
        energy_mj: in all of them.
        error_frac: how far off the edges can make it, if the power there is the mean: the sum of
            how late their ticks were seen, over the time.
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
    energy_mj, late_ns = 0.0, 0
    for start_ns, end_ns in spans:
        first, last = _edge(trace.ticks, start_ns), _edge(trace.ticks, end_ns)
        energy_mj += _at(last, end_ns) - _at(first, start_ns)
        late_ns += max(tick.after_ns for tick in first) + max(tick.after_ns for tick in last)
    return Energy(energy_mj=energy_mj, error_frac=late_ns / length_ns(spans), from_counter=True)


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
    told = [(_moment_ns(one), power) for one in trace.samples if (power := _power_mw(one))]
    if not told:
        raise SensorError(f"{trace.device.name}: tells neither power nor energy")
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


def _edge(ticks: Sequence[Tick], moment_ns: int) -> tuple[Tick, Tick]:
    """The ticks before and after a moment."""
    place = bisect.bisect_right(ticks, moment_ns, key=_at_ns)
    near = ticks[max(0, place - 1) : place + 1]
    if len(near) < 2 or any(abs(tick.at_ns - moment_ns) > _EDGE_NS for tick in near):  # noqa: PLR2004
        message = (
            "its energy counter wasn't seen to tick within half a second of the window's edge;"
            " it stands still, or the machine is too busy to sample it"
        )
        raise SensorError(message)
    return near[0], near[1]


def _at(edge: tuple[Tick, Tick], moment_ns: int) -> float:
    """The counter at a moment, on the line through two ticks."""
    first, last = edge
    share = (moment_ns - first.at_ns) / (last.at_ns - first.at_ns)
    return first.energy_mj + share * (last.energy_mj - first.energy_mj)


def _power_mw(one: Sample) -> int | None:
    return one.state.average_mw if one.state.instant_mw is None else one.state.instant_mw


def _moment_ns(one: Sample) -> int:
    """The middle of what a sample's power is of."""
    averaged = one.state.instant_mw is None
    return one.at_ns - (_AVERAGED_NS // 2 if averaged else 0)


def _at_ns(one: Sample | Tick) -> int:
    return one.at_ns
