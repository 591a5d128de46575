"""A survey: devices and a time in; what each of them drew, and all else that it said, out."""

import collections
import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from specreg.errors import SensorError
from specreg.power.checks import throttle_reasons
from specreg.power.energy import Span, check_counter, counter_ratio, integral_mj
from specreg.power.record import DeviceRecord, record_device
from specreg.power.samples import PowerTrace
from specreg.power.watch import watch
from specreg.sensors import Device, State

_NO_SPAN = (0, 0)
_LEAD_NS = 10**9
"""So long the sampler runs before the window: it has seen the counter tick by then."""
_NS_PER_S = 10**9


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """What a device did in a window of time.

    Attributes:
        device: which; window_s: how long that was.
        record: by its counter if it has one; None where nobody can tell.
        average_mw, instant_mw: the means of its two power fields, None for one that it hasn't.
        samples_per_s: that were taken.
        held_back_frac: by reason, the share of the samples that name it; None where none says.
        pids: who computed on it, None where nobody says.
        wrong: why its power would be INVALID in a run, empty where it wouldn't.
    """

    device: Device
    window_s: float
    record: DeviceRecord | None
    average_mw: float | None
    instant_mw: float | None
    samples_per_s: float
    held_back_frac: Mapping[str, float] | None
    pids: tuple[int, ...] | None
    wrong: str

    @property
    def mean_mw(self) -> float | None:
        """The mean power, by its energy."""
        return None if self.record is None else self.record.energy_mj / self.window_s


def survey_devices(devices: Sequence[Device], path: Path, *, for_s: float) -> Sequence[Survey]:
    """Watches devices for a while, which Ctrl-C ends early.

    Args:
        devices: one at least.
        path: where the samples are written.
        for_s: how long.

    Raises:
        SensorError: the sampler couldn't run, or was ended before the window began.
    """
    with watch(devices, path) as watching:
        start_ns = time.monotonic_ns() + _LEAD_NS
        end_ns = start_ns + round(for_s * _NS_PER_S)
        try:
            traces = watching.traces(end_ns)
        except KeyboardInterrupt:
            end_ns = time.monotonic_ns()
            traces = watching.traces(end_ns)
    if end_ns <= start_ns:
        raise SensorError("power: ended before anything was seen; let it watch for some seconds")
    return [survey(trace, (start_ns, end_ns)) for trace in traces]


def survey(trace: PowerTrace, span: Span) -> Survey:
    """What a device did in a span of time."""
    inside = trace.within(*span)
    window_s = (span[1] - span[0]) / _NS_PER_S
    record, wrong = None, ""
    try:
        ratio = counter_ratio(trace, span)
        record = record_device(trace, ratio, _NO_SPAN, [span])
        check_counter(ratio)
    except SensorError as error:
        wrong = str(error)
    return Survey(
        device=trace.device,
        window_s=window_s,
        record=record,
        average_mw=_field_mw(trace, span, "average_mw"),
        instant_mw=_field_mw(trace, span, "instant_mw"),
        samples_per_s=len(inside.samples) / window_s,
        held_back_frac=_held_back_frac(inside),
        pids=_pids(inside),
        wrong=wrong,
    )


def _field_mw(trace: PowerTrace, span: Span, name: str) -> float | None:
    """The mean of one power field, as if the device had no other; None where it hasn't that.

    Of a device that is lost it is that of the time before.
    """
    alone = [
        msgspec.structs.replace(one, state=State(**{name: said}))
        for one in trace.samples
        if (said := getattr(one.state, name)) is not None
    ]
    start_ns, end_ns = span
    if trace.failed is not None:
        end_ns = min(end_ns, trace.failed.at_ns)
    if not alone or end_ns <= start_ns:
        return None
    total_mj = integral_mj(dataclasses.replace(trace, samples=alone), (start_ns, end_ns))
    return total_mj * _NS_PER_S / (end_ns - start_ns)


def _held_back_frac(trace: PowerTrace) -> Mapping[str, float] | None:
    masks = [mask for one in trace.samples if (mask := one.state.throttle_mask) is not None]
    seen = collections.Counter(reason for mask in masks for reason in throttle_reasons(mask))
    return {reason: count / len(masks) for reason, count in seen.items()} if masks else None


def _pids(trace: PowerTrace) -> tuple[int, ...] | None:
    seen = {pid for one in trace.users for pid in one.pids}
    return tuple(sorted(seen)) if trace.users else None
