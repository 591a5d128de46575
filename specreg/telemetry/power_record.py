"""The record of a measurement's power: what each device did in a block of load."""

import contextlib
import dataclasses
import functools
import operator
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from specreg.core.errors import SensorError
from specreg.telemetry.devices import throttle_reasons
from specreg.telemetry.energy import check_counter, energy_of, missing_frac
from specreg.telemetry.sampler import PowerTrace, Span
from specreg.telemetry.sensor import Device

SHORTEST_S = 10.0
"""A shorter block isn't judged: its two ends make it more than 1 % off."""

_NS_PER_S = 10**9
_MW_PER_W = 1000
_J_PER_KWH = 3_600_000


class DeviceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a device did in a block; null for what it doesn't say.

    Attributes:
        energy_j, from_counter, error_frac, counter_ratio: see `Energy`; null where the meter is
            out of order.
        mean_w: energy_j / the time; peak_w: the highest sample.
        idle_w: the mean while the servers had nothing to do.
        sm_clock_mhz, memory_clock_mhz: medians; temperature_c, used_bytes: the highest;
            utilisation_frac: the mean; throttled: all reasons that were seen.
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
    throttled: tuple[str, ...] = ()
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
        invalid: why the figures mean nothing, too_short: why they aren't judged; empty where
            they do and are.
    """

    case: ArmPower | None = None
    control: ArmPower | None = None
    energy_ratio: float | None = None
    invalid: str = ""
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
    wrong = [f"POWER_INVALID: {one.invalid}" for one in devices if one.invalid]
    return PowerRecord(case=arm, invalid=wrong[0] if wrong else "")


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

    masks = [state.throttle_mask or 0 for state in states]
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
        throttled=throttle_reasons(functools.reduce(operator.or_, masks, 0)),
        missing_frac=missing_frac(trace, span),
        invalid=invalid,
    )
