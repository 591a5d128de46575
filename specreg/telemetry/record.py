"""The record of a measurement's power: what each device did in a block of load."""

import functools
import operator
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from specreg.core.errors import SensorError
from specreg.telemetry.devices import throttle_reasons
from specreg.telemetry.energy import Span, check_counter, energy_of, integral_j, missing_frac
from specreg.telemetry.samples import PowerTrace
from specreg.telemetry.sensor import Device, State

SHORTEST_S = 10.0
"""A shorter block isn't judged: its two ends make it more than 1 % off."""

_NS_PER_S = 10**9
_MW_PER_W = 1000
_J_PER_KWH = 3_600_000


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """One uninterrupted stretch of load on a server.

    Attributes:
        tokens: generated in it; accepted_frac: of these the accepted drafts, 0..1.
    """

    span_ns: Span
    tokens: int
    accepted_frac: float = 0.0


class DeviceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a device did in a block; null for what it doesn't say.

    Attributes:
        energy_j, mean_w, error_frac, counter_ratio: see `Energy`; null where the meter is out of
            order.
        average_w, instant_w: the means of its two power fields; peak_w: the highest sample.
        idle_w: the mean while the servers had nothing to do.
        sm_clock_mhz, memory_clock_mhz: medians; temperature_c, used_bytes: the highest;
            utilisation_frac: the mean; throttled: all reasons that were seen.
        missing_frac: the share of the samples that aren't there.
        invalid: why its energy means nothing, empty where it does.
    """

    device: Device
    energy_j: float | None
    mean_w: float | None
    from_counter: bool
    error_frac: float | None
    average_w: float | None
    instant_w: float | None
    idle_w: float | None
    peak_w: float | None
    sm_clock_mhz: float | None
    memory_clock_mhz: float | None
    temperature_c: int | None
    used_bytes: int | None
    utilisation_frac: float | None
    throttled: tuple[str, ...]
    counter_ratio: float | None
    missing_frac: float
    invalid: str = ""


class ArmPower(msgspec.Struct, frozen=True, kw_only=True):
    """What all devices together did in a block; null where one of them doesn't say.

    Attributes:
        window_s: the length of the block; tokens: generated in it.
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
        invalid: why the figures mean nothing, too_short: why they aren't judged; empty where
            they do and are.
    """

    case: ArmPower | None = None
    control: ArmPower | None = None
    energy_ratio: float | None = None
    invalid: str = ""
    too_short: str = ""


def record_power(
    traces: Sequence[PowerTrace],
    *,
    idle: Span,
    case: Block,
    control: Block | None = None,
) -> PowerRecord:
    """Record what devices did in the block of the case's server, and of the one beside it.

    `idle` is a span without requests, an empty one where there was none.
    """
    arms = [
        arm_power(block, [record_device(trace, block.span_ns, idle) for trace in traces])
        for block in (case, control)
        if block is not None
    ]
    ours, theirs = arms[0], arms[1] if control else None
    shortest_s = min(arm.window_s for arm in arms)
    too_short = (
        f"power was watched for {shortest_s:.1f} s without a pause, and {SHORTEST_S:.0f} s are"
        " needed; raise power_s in the matrix"
    )
    too_short = too_short if shortest_s < SHORTEST_S else ""
    wrong = [one.invalid for arm in arms for one in arm.devices if one.invalid]
    return PowerRecord(
        case=ours,
        control=theirs,
        energy_ratio=_over(theirs.energy_j_per_token, ours.energy_j_per_token) if theirs else None,
        invalid=f"POWER_INVALID: {wrong[0]}" if wrong and not too_short else "",
        too_short=too_short,
    )


def arm_power(block: Block, devices: Sequence[DeviceRecord]) -> ArmPower:
    """Sum up what all devices did in a block."""
    window_s = (block.span_ns[1] - block.span_ns[0]) / _NS_PER_S
    energy_j = _sum([one.energy_j for one in devices])
    idle_w = _sum([one.idle_w for one in devices])
    above_j = None if energy_j is None or idle_w is None else energy_j - idle_w * window_s
    return ArmPower(
        window_s=window_s,
        tokens=block.tokens,
        energy_j=energy_j,
        mean_w=_over(energy_j, window_s),
        idle_w=idle_w,
        error_frac=max((one.error_frac for one in devices if one.error_frac), default=None),
        energy_j_per_token=_over(energy_j, block.tokens),
        above_idle_j_per_token=_over(above_j, block.tokens),
        energy_j_per_accepted_token=_over(energy_j, block.tokens * block.accepted_frac),
        tokens_per_kwh=_over(block.tokens * _J_PER_KWH, energy_j),
        devices=tuple(devices),
    )


def _sum(values: Sequence[float | None]) -> float | None:
    """Add up values, where there are all of them."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _over(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def record_device(trace: PowerTrace, span: Span, idle: Span) -> DeviceRecord:
    """Record what one device did in a span; where its meter is out of order its state stays.

    `idle` is a span in which it had no work, an empty one where there was none.
    """
    energy, invalid = None, ""
    try:
        energy = energy_of(trace, span)
        check_counter(energy)
    except SensorError as error:
        invalid = str(error)
    states = [one.state for one in trace.within(*span).samples]
    masks = [state.throttle_mask or 0 for state in states]
    peaks_mw = [mw for state in states if (mw := state.instant_mw or state.average_mw) is not None]
    return DeviceRecord(
        device=trace.device,
        energy_j=energy.energy_j if energy else None,
        mean_w=energy.energy_j * _NS_PER_S / (span[1] - span[0]) if energy else None,
        from_counter=energy.from_counter if energy else False,
        error_frac=energy.error_frac if energy else None,
        average_w=_field_w(trace, span, "average_mw"),
        instant_w=_field_w(trace, span, "instant_mw"),
        idle_w=_idle_w(trace, idle),
        peak_w=max(peaks_mw) / _MW_PER_W if peaks_mw else None,
        sm_clock_mhz=_over_states(states, "sm_clock_mhz", statistics.median),
        memory_clock_mhz=_over_states(states, "memory_clock_mhz", statistics.median),
        temperature_c=_over_states(states, "temperature_c", max),
        used_bytes=_over_states(states, "used_bytes", max),
        utilisation_frac=_over_states(states, "utilisation_frac", statistics.fmean),
        throttled=throttle_reasons(functools.reduce(operator.or_, masks, 0)),
        counter_ratio=energy.counter_ratio if energy else None,
        missing_frac=missing_frac(trace, span),
        invalid=invalid,
    )


def _idle_w(trace: PowerTrace, span: Span) -> float | None:
    """Return the mean power in a span; None where it can't be told, which costs no other figure."""
    try:
        return energy_of(trace, span).energy_j * _NS_PER_S / (span[1] - span[0])
    except (SensorError, ZeroDivisionError):
        return None


def _field_w(trace: PowerTrace, span: Span, field: str) -> float | None:
    """Return the mean of a power field; of a device that is lost that of the time before."""
    end_ns = span[1] if trace.failed is None else min(span[1], trace.failed.at_ns)
    if end_ns <= span[0]:
        return None
    summed_j = integral_j(trace.samples, (span[0], end_ns), field)
    return None if summed_j is None else summed_j * _NS_PER_S / (end_ns - span[0])


def _over_states(
    states: Sequence[State], field: str, statistic: Callable[[Sequence[Any]], Any]
) -> Any:  # noqa: ANN401 - an int or a float, as the field has it
    """Return a statistic of a field; None where no state tells it."""
    told = [found for state in states if (found := getattr(state, field)) is not None]
    return statistic(told) if told else None
