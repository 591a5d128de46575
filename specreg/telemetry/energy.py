"""Energy: the trace of a device and a span of time in, joules out, or what is wrong with them.

Energy is the difference of the counter between the two ends of the span, each end interpolated
between the reads beside it. The counter of a GPU moves every 10 to 100 ms, so that at each end it
is known to half of that: the error of the figure, 1 % of 10 s and 0.3 % of 30 s.
"""

import bisect
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np

from specreg.core.errors import InvalidMeasurementError, SensorError
from specreg.core.processes import describe
from specreg.telemetry.devices import held_back
from specreg.telemetry.sampler import EVERY_NS, PowerTrace, Sample, Span

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
        counter_ratio: the counter's energy over power × time; None where one says nothing.
    """

    energy_j: float
    error_frac: float = 0.0
    from_counter: bool = False
    counter_ratio: float | None = None


def energy_of(trace: PowerTrace, span: Span) -> Energy:
    """Return what a device drew in a span, by its counter if it has one.

    SensorError where the device was lost, samples are missing, the counter stands still or went
    back, or there is neither counter nor power.
    """
    name = trace.device.name
    if trace.lost is not None and trace.lost.at_ns < span[1]:
        raise SensorError(f"{name}: {trace.lost.lost}")
    missing = missing_frac(trace, span)
    if missing > _MOST_MISSING_FRAC:
        raise SensorError(
            f"{missing:.0%} of the samples of {name} are missing, more than 10 %; the sampler was"
            " kept from running, or ended"
        )
    # The average first: where power swings, ten samples of the moment a second are too few.
    summed_j = integral_j(trace.samples, span, "average_mw")
    if summed_j is None:
        summed_j = integral_j(trace.samples, span, "instant_mw")
    reads = [(one.at_ns, one.energy_mj) for one in trace.samples if one.energy_mj is not None]
    if not reads:
        if summed_j is None:
            raise SensorError(f"{name}: tells neither power nor energy; measure another device")
        return Energy(energy_j=summed_j)
    moments_ns, energies_mj = np.array(reads).T
    first, last = np.searchsorted(moments_ns, span)
    around = slice(max(first - 1, 0), last + 1)
    moments_ns, energies_mj = moments_ns[around], energies_mj[around]
    if moments_ns[0] > span[0] or moments_ns[-1] < span[1]:
        raise SensorError(f"{name}: no samples at an end of the time; measure again")
    doubt_ns = _doubt_ns(name, moments_ns, energies_mj)
    start_mj, end_mj = np.interp(span, moments_ns, energies_mj)
    energy_j = float(end_mj - start_mj) / _MJ_PER_J
    return Energy(
        energy_j=energy_j,
        error_frac=doubt_ns / (span[1] - span[0]),
        from_counter=True,
        counter_ratio=energy_j / summed_j if summed_j else None,
    )


def _doubt_ns(name: str, moments_ns: np.ndarray, energies_mj: np.ndarray) -> float:
    """Return how long the counter tells nothing: half of the time between two moves at each end.

    SensorError where it stands still, or went back.
    """
    apart_ns = np.diff(moments_ns)
    if (np.diff(energies_mj) < 0).any():
        raise SensorError(f"the energy counter of {name} went back; was the driver reloaded?")
    _, first, reads = np.unique(energies_mj, return_index=True, return_counts=True)
    still_ns = (moments_ns[first + reads - 1] - moments_ns[first]).max()
    if still_ns > _STUCK_NS:
        message = f"the energy counter of {name} stood still for {still_ns / _NS_PER_S:.1f} s"
        raise SensorError(f"{message}; look whether its power is read elsewhere (nvidia-smi)")
    tick_ns = (moments_ns[-1] - moments_ns[0]) / max(len(first) - 1, 1)
    return float(max(tick_ns, apart_ns[0]) + max(tick_ns, apart_ns[-1])) / 2


def check_counter(energy: Energy) -> None:
    """Raise a SensorError where counter and power are more than 3 %, or `error_frac`, apart."""
    ratio = energy.counter_ratio
    if ratio is not None and abs(ratio - 1) > max(_MOST_APART_FRAC, energy.error_frac):
        raise SensorError(
            f"its energy counter says {ratio:.2f} times what its power says over the same time,"
            " and they may lie 3 % apart; its sensor reads only a part of the time, or is wrong"
        )


def integral_j(samples: Sequence[Sample], span: Span, field: str) -> float | None:
    """Sum up a power field of the samples × time, between them as a line.

    An average belongs to the middle of its second. None where no sample tells it.
    """
    told = [(one.at_ns, mw) for one in samples if (mw := getattr(one.state, field)) is not None]
    if not told:
        return None
    moments_ns, powers_mw = np.array(told).T
    moments_ns = moments_ns - (_AVERAGED_NS // 2 if field == "average_mw" else 0)
    inside_ns = moments_ns[(moments_ns > span[0]) & (moments_ns < span[1])]
    grid_ns = np.concatenate(([span[0]], inside_ns, [span[1]]))
    total = np.trapezoid(np.interp(grid_ns, moments_ns, powers_mw), grid_ns)
    return float(total) / _NS_PER_S / _MJ_PER_J


def missing_frac(trace: PowerTrace, span: Span) -> float:
    """Return the share of the samples due in a span that aren't there, 0..1."""
    due = (span[1] - span[0]) // EVERY_NS
    return max(0.0, 1 - len(trace.within(span)) / due) if due else 0.0


def check_held_back(traces: Sequence[PowerTrace], spans: Sequence[Span]) -> None:
    """Check that no device was `THROTTLED`, by heat or lack of power, in some spans."""
    for trace in traces:
        frac, why = held_back([state for span in spans for state in trace.states(span)])
        if frac:
            message = f"{trace.device.name} was held back in {frac:.0%} of the samples: {why}"
            raise InvalidMeasurementError("THROTTLED", f"{message}; cool it, or give it more power")


def check_alone(
    traces: Sequence[PowerTrace], spans: Sequence[Span], ours: AbstractSet[int]
) -> None:
    """Check that no process but ours computed on a device in some spans, else `DEVICE_SHARED`.

    Of a span the lists within count, the last before it and the first after it: a sampler lists
    processes twice a second, and later on a busy machine.
    """
    for trace in traces:
        lists = [(one.at_ns, one.pids) for one in trace.samples if one.pids is not None]
        moments_ns = [at_ns for at_ns, _ in lists]
        seen: set[int] = set()
        for start_ns, end_ns in spans:
            first = bisect.bisect_left(moments_ns, start_ns) - 1
            last = bisect.bisect_right(moments_ns, end_ns)
            seen.update(*(pids for _, pids in lists[max(first, 0) : last + 1]))
        strangers = seen - ours
        # In a container the driver may number processes as the host does: then none is ours, and
        # what was there before the first request is taken for it. Who was there before our servers
        # is refused before they start.
        if ours and lists and not seen & ours:
            strangers = seen - set(lists[0][1])
        if strangers:
            raise InvalidMeasurementError(
                "DEVICE_SHARED",
                f"{trace.device.name}: used by {', '.join(map(describe, sorted(strangers)))} while"
                " it was measured; measure again when it is free",
            )
