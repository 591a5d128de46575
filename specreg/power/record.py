"""The record of a measurement's power: traces and spans in, what each device did in them out."""

import contextlib
import statistics
from collections.abc import Callable, Sequence

import msgspec

from specreg.errors import SensorError
from specreg.power.energy import (
    SHORTEST_S,
    Span,
    check_counter,
    counter_ratio,
    energy_of,
    length_ns,
    missing_frac,
    peak_mw,
    tick_ms,
)
from specreg.power.samples import PowerTrace
from specreg.sensors import Device, State

_NS_PER_S = 10**9


class DeviceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a device did in some spans of time; None for what it doesn't say.

    Attributes:
        device: which.
        energy_mj: in all of them; from_counter: by its counter, else by its power.
        error_frac: how far off the edges of the spans can make it.
        idle_mw: the mean power while the servers had nothing to do.
        peak_mw: the most that a sample said.
        sm_clock_mhz, memory_clock_mhz: medians; temperature_c, used_bytes: the highest.
        utilisation_frac: the mean.
        throttle_mask: all reasons that were seen, as NVML's bits.
        tick_ms: how often the counter ticks.
        counter_ratio: what the counter says over what power says.
        missing_frac: the share of the samples that aren't there.
    """

    device: Device
    energy_mj: float
    from_counter: bool
    error_frac: float
    idle_mw: float | None
    peak_mw: int | None
    sm_clock_mhz: float | None
    memory_clock_mhz: float | None
    temperature_c: int | None
    used_bytes: int | None
    utilisation_frac: float | None
    throttle_mask: int
    tick_ms: float | None
    counter_ratio: float | None
    missing_frac: float


class ArmPower(msgspec.Struct, frozen=True, kw_only=True):
    """What all devices did while one server had requests.

    Attributes:
        window_s: how long that was.
        devices: a record each.
    """

    window_s: float
    devices: tuple[DeviceRecord, ...]

    @property
    def energy_mj(self) -> float:
        """Of all devices."""
        return sum(one.energy_mj for one in self.devices)

    @property
    def mean_mw(self) -> float:
        """Of all devices together."""
        return self.energy_mj / self.window_s

    @property
    def idle_mw(self) -> float | None:
        """Of all devices together, None where one of them doesn't say."""
        idle = [one.idle_mw for one in self.devices if one.idle_mw is not None]
        return sum(idle) if len(idle) == len(self.devices) else None


class PowerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The power of a measurement, or why there is none.

    Attributes:
        case, control: of the one server and of the one beside it; None where nobody knows.
        invalid: why the figures mean nothing, empty where they do.
        too_short: why they say too little to be judged, empty where they don't.
    """

    case: ArmPower | None = None
    control: ArmPower | None = None
    invalid: str = ""
    too_short: str = ""


def record_power(
    traces: Sequence[PowerTrace],
    *,
    idle: Span,
    case: Sequence[Span],
    control: Sequence[Span],
) -> PowerRecord:
    """What devices did while either server had requests.

    Args:
        traces: of all devices.
        idle: a span in which nobody asked for anything.
        case: the spans in which the case's server had requests, one at least.
        control: the same of the one beside it; none without one.
    """
    too_short = _too_short(length_ns(case) / _NS_PER_S)
    whole = (min(start for start, _ in case), max(end for _, end in case))
    try:
        ratios = [counter_ratio(trace, whole) for trace in traces]
        if not too_short:  # the edges of a short one are most of it
            for ratio in ratios:
                check_counter(ratio)
        arms = [_arm(traces, ratios, idle, spans) for spans in (case, control) if spans]
    except SensorError as error:
        return PowerRecord(
            invalid="" if too_short else f"POWER_INVALID: {error}", too_short=too_short
        )
    return PowerRecord(case=arms[0], control=arms[1] if control else None, too_short=too_short)


def _too_short(window_s: float) -> str:
    if window_s >= SHORTEST_S:
        return ""
    return (
        f"power was watched for {window_s:.1f} s, and {SHORTEST_S:.0f} s are needed; raise prompts"
        " or duration_s in the matrix"
    )


def _arm(
    traces: Sequence[PowerTrace],
    ratios: Sequence[float | None],
    idle: Span,
    spans: Sequence[Span],
) -> ArmPower:
    return ArmPower(
        window_s=length_ns(spans) / _NS_PER_S,
        devices=tuple(
            record_device(trace, ratio, idle, spans)
            for trace, ratio in zip(traces, ratios, strict=True)
        ),
    )


def record_device(
    trace: PowerTrace, ratio: float | None, idle: Span, spans: Sequence[Span]
) -> DeviceRecord:
    """What one device did in some spans.

    Args:
        trace: of the device.
        ratio: what its counter says over what its power says.
        idle: a span in which nobody asked for anything, an empty one where there was none.
        spans: one at least.

    Raises:
        SensorError: nobody can tell, with the reason.
    """
    energy = energy_of(trace, spans)
    parts = [trace.within(*span) for span in spans]
    states = [one.state for part in parts for one in part.samples]
    masks = [state.throttle_mask or 0 for state in states]
    return DeviceRecord(
        device=trace.device,
        energy_mj=energy.energy_mj,
        from_counter=energy.from_counter,
        error_frac=energy.error_frac,
        idle_mw=_mean_mw(trace, idle),
        peak_mw=max((peak for part in parts if (peak := peak_mw(part))), default=None),
        sm_clock_mhz=_of(states, lambda state: state.sm_clock_mhz, statistics.median),
        memory_clock_mhz=_of(states, lambda state: state.memory_clock_mhz, statistics.median),
        temperature_c=_whole(_of(states, lambda state: state.temperature_c, max)),
        used_bytes=_whole(_of(states, lambda state: state.used_bytes, max)),
        utilisation_frac=_of(states, lambda state: state.utilisation_frac, statistics.fmean),
        throttle_mask=_any_of(masks),
        tick_ms=tick_ms(trace),
        counter_ratio=ratio,
        missing_frac=missing_frac(trace, spans),
    )


def _mean_mw(trace: PowerTrace, span: Span) -> float | None:
    """The mean power in a span; None where nobody can tell, which costs no other figure."""
    with contextlib.suppress(SensorError):
        if span[1] > span[0]:
            return energy_of(trace, [span]).energy_mj * _NS_PER_S / length_ns([span])
    return None


def _of(
    states: Sequence[State],
    value: Callable[[State], float | None],
    chosen: Callable[[Sequence[float]], float],
) -> float | None:
    told = [found for state in states if (found := value(state)) is not None]
    return chosen(told) if told else None


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _any_of(masks: Sequence[int]) -> int:
    seen = 0
    for mask in masks:
        seen |= mask
    return seen
