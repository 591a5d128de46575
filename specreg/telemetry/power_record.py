"""The power of a measurement: what each device drew and did in a block of load, and what spoils it.

Energy is the difference of the counter between the two ends of a span, each end interpolated
between the reads beside it. The counter of a GPU moves every 10 to 100 ms, so that at each end it
is known to half of that: the error of the figure, 1 % of 10 s and 0.3 % of 30 s.
"""

import bisect
import contextlib
import dataclasses
import functools
import operator
import statistics
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from specreg.core.errors import InvalidMeasurementError, SensorError
from specreg.core.processes import describe
from specreg.core.reasons import Invalidity
from specreg.telemetry.devices import held_back, throttle_reasons
from specreg.telemetry.sampler import EVERY_NS, PowerTrace, Sample, Span
from specreg.telemetry.sensor import Device

SHORTEST_S = 10.0
"""A shorter block isn't judged: its two ends make it more than 1 % off."""
POWER_INVALID = "POWER_INVALID"
"""The code of a meter that is out of order."""
_MOST_MISSING_FRAC = 0.1
_MOST_APART_FRAC = 0.03
_STUCK_NS = 10**9
_AVERAGED_NS = 10**9
_NS_PER_S = 10**9
_MJ_PER_J = 1000
_MW_PER_W = 1000
_J_PER_KWH = 3_600_000


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

    Raises:
        SensorError: the device was lost, samples are missing, the counter stands still or went
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
    """Check that counter and power agree within 3 % and what the ends of the span leave in doubt.

    Of 10 s in which the load of an H100 swung between 130 and 700 W they were up to 3.4 % apart.

    Raises:
        SensorError: they are further apart.
    """
    allowed_frac = _MOST_APART_FRAC + energy.error_frac
    ratio = energy.counter_ratio
    if ratio is not None and abs(ratio - 1) > allowed_frac:
        raise SensorError(
            f"its energy counter says {ratio:.2f} times what its power says over the same time,"
            f" and they may lie {allowed_frac:.1%} apart; its sensor reads only a part of the time,"
            " or is wrong"
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


class DeviceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a device did in a block; null for what it doesn't say.

    Attributes:
        energy_j, from_counter, error_frac, counter_ratio: see `Energy`; null where the meter is
            out of order.
        mean_w: energy_j / the time; peak_w: the highest sample.
        idle_w: the mean while the servers had nothing to do.
        sm_clock_mhz, memory_clock_mhz: medians; temperature_c, used_bytes: the highest;
            utilisation_frac: the mean; throttled: all reasons that were seen, None where the
            device tells none.
        missing_frac: the share of the samples that aren't there.
        invalid: why its energy means nothing, empty where it does.
    """

    device: Device
    energy_j: float | None = None
    mean_w: float | None = None
    from_counter: bool = False
    error_frac: float | None = None
    idle_w: float | None = None
    peak_w: float | None = None
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    temperature_c: int | None = None
    used_bytes: int | None = None
    utilisation_frac: float | None = None
    throttled: tuple[str, ...] | None = ()
    counter_ratio: float | None = None
    missing_frac: float = 0.0
    invalid: str = ""


class ArmPower(msgspec.Struct, frozen=True, kw_only=True):
    """What all devices together did in a block; null where one of them doesn't say.

    Attributes:
        above_idle_j_per_token: of what was drawn beyond idle_w.
        energy_j_per_accepted_token: energy_j over the drafts accepted.
    """

    window_s: float
    tokens: int
    energy_j: float | None
    mean_w: float | None
    idle_w: float | None
    error_frac: float | None
    energy_j_per_token: float | None
    above_idle_j_per_token: float | None
    energy_j_per_accepted_token: float | None
    tokens_per_kwh: float | None
    devices: tuple[DeviceRecord, ...]


class PowerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The power of a measurement, or why there is none.

    Attributes:
        case, control: of the one server and of the one beside it; null where nothing is known.
        energy_ratio: the control's energy per token over the case's: what speculation saves.
        invalid: why the figures mean nothing; null where they mean something.
        too_short: why they aren't judged; empty where they are.
    """

    case: ArmPower | None = None
    control: ArmPower | None = None
    energy_ratio: float | None = None
    invalid: Invalidity | None = None
    too_short: str = ""


def record_power(
    traces: Sequence[PowerTrace], span: Span, *, tokens: int, accepted_frac: float, idle: Span
) -> PowerRecord:
    """Record what devices did in a block, one uninterrupted stretch of load.

    `accepted_frac` of its `tokens` are accepted drafts, 0..1; `idle` is a span without requests,
    an empty one where there was none.
    """
    devices = [_record_device(trace, span, idle) for trace in traces]
    arm = arm_power(devices, span, tokens=tokens, accepted_frac=accepted_frac)
    if arm.window_s < SHORTEST_S:
        too_short = (
            f"power was watched for {arm.window_s:.1f} s without a pause, and {SHORTEST_S:.0f} s"
            " are needed; raise power_s in the matrix"
        )
        return PowerRecord(case=arm, too_short=too_short)
    broken = [device.invalid for device in devices if device.invalid]
    return PowerRecord(case=arm, invalid=Invalidity(POWER_INVALID, broken[0]) if broken else None)


def arm_power(
    devices: Sequence[DeviceRecord], span: Span, *, tokens: int, accepted_frac: float
) -> ArmPower:
    """Sum up what all devices did in a block; see `record_power`."""
    window_s = (span[1] - span[0]) / _NS_PER_S
    energy_j = _sum([one.energy_j for one in devices])
    idle_w = _sum([one.idle_w for one in devices])
    above_j = None if energy_j is None or idle_w is None else energy_j - idle_w * window_s
    return ArmPower(
        window_s=window_s,
        tokens=tokens,
        energy_j=energy_j,
        mean_w=_over(energy_j, window_s),
        idle_w=idle_w,
        error_frac=max((one.error_frac for one in devices if one.error_frac), default=None),
        energy_j_per_token=_over(energy_j, tokens),
        above_idle_j_per_token=_over(above_j, tokens),
        energy_j_per_accepted_token=_over(energy_j, tokens * accepted_frac),
        tokens_per_kwh=_over(tokens * _J_PER_KWH, energy_j),
        devices=tuple(devices),
    )


def _sum(values: Sequence[float | None]) -> float | None:
    """Add up values, where there are all of them."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _over(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def _mean_w(energy_j: float, span: Span) -> float:
    return energy_j * _NS_PER_S / (span[1] - span[0])


def _record_device(trace: PowerTrace, span: Span, idle: Span) -> DeviceRecord:
    """Record what one device did in a span; where its meter is out of order its state stays."""
    energy, idle_w, invalid = None, None, ""
    try:
        energy = energy_of(trace, span)
        check_counter(energy)
    except SensorError as error:
        invalid = str(error)
    with contextlib.suppress(SensorError, ZeroDivisionError):  # it costs no other figure
        idle_w = _mean_w(energy_of(trace, idle).energy_j, idle)
    states = trace.states(span)

    def of(field: str, statistic: Callable[[Sequence[Any]], Any]) -> Any:  # noqa: ANN401 - an int or a float
        told = [found for state in states if (found := getattr(state, field)) is not None]
        return statistic(told) if told else None

    masks = [state.throttle_mask for state in states if state.throttle_mask is not None]
    throttled = throttle_reasons(functools.reduce(operator.or_, masks)) if masks else None
    peaks_mw = [mw for state in states if (mw := state.instant_mw or state.average_mw) is not None]
    return DeviceRecord(
        device=trace.device,
        **(dataclasses.asdict(energy) if energy else {}),
        mean_w=_mean_w(energy.energy_j, span) if energy else None,
        idle_w=idle_w,
        peak_w=max(peaks_mw) / _MW_PER_W if peaks_mw else None,
        sm_clock_mhz=of("sm_clock_mhz", statistics.median),
        memory_clock_mhz=of("memory_clock_mhz", statistics.median),
        temperature_c=of("temperature_c", max),
        used_bytes=of("used_bytes", max),
        utilisation_frac=of("utilisation_frac", statistics.fmean),
        throttled=throttled,
        missing_frac=missing_frac(trace, span),
        invalid=invalid,
    )
