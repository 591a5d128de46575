"""Energy: the trace of a device and a span of time in, joules out, or what is wrong with them.

Energy is the difference of the counter between the two ends of the span, each end interpolated
between the reads beside it. The counter of a GPU moves every 10 to 100 ms, so that at each end it
is known to half of that: the error of the figure, 1 % of 10 s and 0.3 % of 30 s.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specreg.core.errors import SensorError
from specreg.telemetry.power.samples import PowerTrace, Sample

Span = tuple[int, int]
"""From and to, in nanoseconds of the monotonic clock."""

_MOST_MISSING_FRAC = 0.1
_MOST_APART_FRAC = 0.03
_STUCK_NS = 10**9
_AVERAGED_NS = 10**9
_NS_PER_S = 10**9
_MJ_PER_J = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Energy:
    """What a device drew in a span.

    Attributes:
        energy_j: by its counter where from_counter, else by its power, sample for sample.
        error_frac: how far off it may be for the two ends of the span.
        counter_ratio: what the counter says over power × time; None where one says nothing.
    """

    energy_j: float
    error_frac: float
    from_counter: bool
    counter_ratio: float | None


def energy_of(trace: PowerTrace, span: Span) -> Energy:
    """What a device drew in a span, by its counter if it has one.

    Raises:
        SensorError: the device was lost, samples are missing, the counter stands still or went
            back, or there is neither counter nor power.
    """
    _check_complete(trace, span)
    summed_j = integral_j(trace.samples, span)
    reads = [(one.at_ns, one.energy_mj) for one in trace.samples if one.energy_mj is not None]
    if not reads:
        if summed_j is None:
            raise SensorError(f"{trace.device.name}: tells neither power nor energy")
        return Energy(energy_j=summed_j, error_frac=0.0, from_counter=False, counter_ratio=None)
    moments_ns, energies_mj = (np.array(column) for column in zip(*reads, strict=True))
    first, last = np.searchsorted(moments_ns, span)
    around = slice(max(first - 1, 0), last + 1)
    moments_ns, energies_mj = moments_ns[around], energies_mj[around]
    if moments_ns[0] > span[0] or moments_ns[-1] < span[1]:
        raise SensorError(f"{trace.device.name}: no samples at an end of the time; measure again")
    doubt_ns = _doubt_ns(trace.device.name, moments_ns, energies_mj)
    start_mj, end_mj = np.interp(span, moments_ns, energies_mj)
    energy_j = float(end_mj - start_mj) / _MJ_PER_J
    return Energy(
        energy_j=energy_j,
        error_frac=doubt_ns / (span[1] - span[0]),
        from_counter=True,
        counter_ratio=energy_j / summed_j if summed_j else None,
    )


def _doubt_ns(name: str, moments_ns: np.ndarray, energies_mj: np.ndarray) -> float:
    """Of how long a time the counter doesn't tell: half of the time between two moves at each end.

    Raises:
        SensorError: it stands still, or went back.
    """
    steps_mj = np.diff(energies_mj)
    if (steps_mj < 0).any():
        raise SensorError(f"the energy counter of {name} went back; was the driver reloaded?")
    moved = np.flatnonzero(steps_mj) + 1
    ends = np.concatenate(([0], moved, [len(moments_ns)]))
    still_ns = max(
        moments_ns[later - 1] - moments_ns[earlier] for earlier, later in itertools.pairwise(ends)
    )
    if still_ns > _STUCK_NS:
        message = f"the energy counter of {name} stood still for {still_ns / _NS_PER_S:.1f} s"
        raise SensorError(f"{message}; look whether its power is read elsewhere (nvidia-smi)")
    apart_ns = np.diff(moments_ns)
    between_moves_ns = (moments_ns[-1] - moments_ns[0]) / max(len(moved), 1)
    return float(sum(max(between_moves_ns, apart_ns[end]) for end in (0, -1)) / 2)


def check_counter(energy: Energy) -> None:
    """Counter and power agree within 3 %, or the error of a short span's ends.

    Raises:
        SensorError: they don't.
    """
    ratio = energy.counter_ratio
    if ratio is not None and abs(ratio - 1) > max(_MOST_APART_FRAC, energy.error_frac):
        message = (
            f"its energy counter says {ratio:.2f} times what its power says over the same time,"
            " and they may lie 3 % apart; its sensor looks away for a part of the time, or is off"
        )
        raise SensorError(message)


def integral_j(samples: Sequence[Sample], span: Span, *fields: str) -> float | None:
    """Power × time, between samples as a line; an average belongs to the middle of its second.

    Args:
        samples: of a device.
        span: beyond the samples the power is that of the nearest.
        fields: of a sample's state, the preferred one first. Without any it is the average, or else
            the power of the moment, which ten samples a second see too seldom where it swings.

    Returns:
        None where no sample tells any of them.
    """
    for field in fields or ("average_mw", "instant_mw"):
        told = [(one.at_ns, mw) for one in samples if (mw := getattr(one.state, field)) is not None]
        if told:
            moments, powers_mw = (np.array(column) for column in zip(*told, strict=True))
            moments = moments - (_AVERAGED_NS // 2 if field == "average_mw" else 0)
            inside = moments[(moments > span[0]) & (moments < span[1])]
            grid = np.concatenate(([span[0]], inside, [span[1]]))
            total = np.trapezoid(np.interp(grid, moments, powers_mw), grid)
            return float(total) / _NS_PER_S / _MJ_PER_J
    return None


def missing_frac(trace: PowerTrace, span: Span) -> float:
    """The share of the samples due in a span that aren't there, 0..1."""
    due = (span[1] - span[0]) // trace.every_ns
    return max(0.0, 1 - len(trace.within(*span).samples) / due) if due else 0.0


def _check_complete(trace: PowerTrace, span: Span) -> None:
    if trace.failed is not None and trace.failed.at_ns < span[1]:
        raise SensorError(f"{trace.device.name}: {trace.failed.why}")
    missing = missing_frac(trace, span)
    if missing > _MOST_MISSING_FRAC:
        message = (
            f"{missing:.0%} of the samples of {trace.device.name} are missing, more than 10 %;"
            " the sampler was kept from running, or ended"
        )
        raise SensorError(message)
