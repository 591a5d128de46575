"""Record the power of a measurement: the energy that each device drew in a block of load.

The energy of a span is the difference of the device's energy counter between the two ends of the
span. At each end the counter is interpolated between the reads before and after it. The counter of
a GPU changes only every 10 to 100 ms, so each end is uncertain by half of that time. This is an
error of up to 1 % for a span of 10 s, and of up to 0.3 % for one of 30 s.
"""

import bisect
import dataclasses
import functools
import operator
import statistics
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np

from specreg.core.errors import InvalidMeasurementError, SensorError
from specreg.core.processes import describe_process
from specreg.core.reasons import Reason
from specreg.telemetry.devices import throttle_reasons, throttling_of
from specreg.telemetry.sampler import EVERY_NS, DeviceSample, PowerTrace, Span
from specreg.telemetry.sensor import Device, DeviceState

SHORTEST_S = 10.0
"""The shortest block that is judged. In a shorter one, the error of the ends may exceed 1 %."""
_MAX_MISSING_FRAC = 0.1
"""The share of the samples of a span that may be missing."""
_MAX_DISAGREEMENT_FRAC = 0.03
"""How far the counter and the power may disagree; see `check_counter`."""
_STUCK_NS = 10**9
"""How long a counter may have the same value, with load or without."""
_AVERAGED_NS = 10**9
"""The time over which most cards average their power."""
_LEAST_READS = 30
"""How many reads are needed to measure the lag of a power: as many as there are in three seconds,
because the reads of the last second can't be compared."""
_MOST_OF_LIMIT = 1.5
"""How many times its power limit a device may be read to draw. Spikes of milliseconds do exceed the
limit, and a sensor that glitches shows a multiple of it."""
_MOST_OF_USUAL = 8.0
"""The same for a device whose limit isn't known, as a multiple of its usual power under load. An
H100 whose load pauses for 90 % of the time draws up to 5 times its usual power."""
_USUAL_PERCENTILE = 80
"""Which percentile of the readings is the usual power: it is the load's even if that pauses for
most of the time, and a glitch in one of five readings doesn't change it."""
_LEAST_OF_USUAL = 1 / 50
"""How much of its usual power a device draws at least, even at rest between two requests."""
_MOST_OF_REST = 1.1
"""How many times the power at rest a sensor shows that stood still since then."""
_CHECK_SENSOR = "check with the vendor's tool, such as nvidia-smi or amd-smi, that it shows power"
_NotNegative = Annotated[float, msgspec.Meta(ge=0)]
_MOST_PARTS = 200
"""The most parts of a block whose power is recorded one by one."""
_SHORTEST_PART_NS = 5 * 10**8
"""The shortest part, because a counter may change only every 100 ms."""
_NS_PER_S = 10**9
_MJ_PER_J = 1000
_MW_PER_W = 1000
_J_PER_KWH = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Energy:
    """The energy that a device drew in a span.

    Attributes:
        energy_j: the energy, from the device's counter or integrated from samples of its power.
        error_frac: the error that the two ends of the span cause, as a share of the energy.
        from_counter: True if the energy is from the counter.
        counter_ratio: the energy from the counter, divided by the energy that the samples of power
            add up to; None if one of them is missing, or if the latter is 0.
    """

    energy_j: float
    error_frac: float = 0.0
    from_counter: bool = False
    counter_ratio: float | None = None


def energy_of(trace: PowerTrace, span: Span) -> Energy:
    """Return the energy that a device drew in a span, from its counter if it has one.

    Args:
        trace: the samples of the device.

    Raises:
        SensorError: the span has no length, the device was lost, samples are missing, the counter
            stood still, went back or jumped, the device can't have drawn a power that was read, or
            it reports neither energy nor power.
    """
    _check_sampled(trace, span)
    _check_powers(trace, span)
    name = trace.device.name

    # Integrate the power of the samples. The averaged power is preferred, because ten samples a
    # second of the momentary power are too few if the power swings.
    lag_ns = averaging_lag_ns(trace.samples)
    summed_j = integral_j(trace.samples, span, "average_mw", lag_ns)
    if summed_j is None:
        summed_j = integral_j(trace.samples, span, "instant_mw")
    reads = [
        (sample.at_ns, sample.energy_mj) for sample in trace.samples if sample.energy_mj is not None
    ]
    if not reads:
        if not summed_j:
            raise SensorError(f"{name}: reports neither power nor energy; measure another device")
        return Energy(energy_j=summed_j)

    # Take the reads of the counter in the span, with the nearest one outside at each end.
    moments_ns, energies_mj = np.array(reads).T
    first, end = np.searchsorted(moments_ns, span)
    reads_around_span = slice(max(first - 1, 0), end + 1)
    moments_ns = moments_ns[reads_around_span]
    energies_mj = energies_mj[reads_around_span]
    start_ns, end_ns = span

    # Nothing can be interpolated before the first or after the last read. After this check there
    # are at least two reads, because the span has a length.
    if moments_ns[0] > start_ns or moments_ns[-1] < end_ns:
        raise SensorError(f"{name}: samples are missing at an end of the block; measure again")

    # Interpolate the counter at both ends.
    uncertain_ns = _uncertain_ns(name, moments_ns, energies_mj)
    _check_jumps(trace.device, moments_ns, energies_mj)
    start_mj, end_mj = np.interp(span, moments_ns, energies_mj)
    energy_j = float(end_mj - start_mj) / _MJ_PER_J
    counter_ratio = None
    if summed_j:
        counter_ratio = energy_j / summed_j
    return Energy(
        energy_j=energy_j,
        error_frac=uncertain_ns / (end_ns - start_ns),
        from_counter=True,
        counter_ratio=counter_ratio,
    )


def _check_sampled(trace: PowerTrace, span: Span) -> None:
    """Check that a device was sampled throughout a span.

    Raises:
        SensorError: the span has no length, the device was lost, or more than 10 % of the samples
            are missing, or all of them.
    """
    name = trace.device.name
    if span[1] <= span[0]:
        raise SensorError(f"{name}: a span of no length has no power; measure again")
    if trace.lost_sample is not None and trace.lost_sample.at_ns < span[1]:
        raise SensorError(f"{name}: {trace.lost_sample.lost}")
    frac = missing_frac(trace, span)

    # In a span that is shorter than a period no sample is due, so none counts as missing.
    if not trace.samples:
        frac = 1.0
    if frac > _MAX_MISSING_FRAC:
        raise SensorError(
            f"{frac:.0%} of the samples of {name} are missing, more than 10 %; the sampler ended,"
            " or got too little time on a busy machine"
        )


def _check_powers(trace: PowerTrace, span: Span) -> None:
    """Check that a device can have drawn each power that was read in a span.

    Raises:
        SensorError: it can't have drawn one of them: its sensor glitches.
    """
    states = [sample.state for sample in trace.within(span)]
    for field in ("average_mw", "instant_mw"):
        powers = [getattr(state, field) for state in states]
        powers_w = np.array([power_mw for power_mw in powers if power_mw is not None]) / _MW_PER_W
        # A card without such a sensor may answer 0 each time.
        if not powers_w.any():
            continue
        usual_w = _usual(powers_w)
        highest_w = _highest_w(trace.device, usual_w)
        is_odd = (powers_w > highest_w) | (powers_w < usual_w * _LEAST_OF_USUAL)
        if is_odd.any():
            raise SensorError(
                f"{trace.device.name}: its sensor read {powers_w[is_odd][0]:.0f} W in"
                f" {is_odd.sum()} of {len(powers_w)} samples, usually {usual_w:.0f} W, and at most"
                f" {highest_w:.0f} W can be true; {_CHECK_SENSOR}"
            )


def _check_jumps(device: Device, moments_ns: np.ndarray, energies_mj: np.ndarray) -> None:
    """Check that a device can have drawn what its counter rose by at once.

    Args:
        moments_ns: when the counter was read, of shape (n,).
        energies_mj: the values of the counter, of shape (n,). It never falls.

    Raises:
        SensorError: the counter jumped.
    """
    values_mj, first_reads = np.unique(energies_mj, return_index=True)

    # A change may have come just after the read before it, so each has one period more.
    changes_ns = np.diff(moments_ns[first_reads]) + np.median(np.diff(moments_ns))
    if not len(changes_ns):
        return
    powers_w = np.diff(values_mj) / changes_ns * (_NS_PER_S / _MJ_PER_J)
    highest_w = _highest_w(device, _usual(powers_w))
    if powers_w.max() > highest_w:
        raise SensorError(
            f"the energy counter of {device.name} jumped, as if {powers_w.max():.0f} W were drawn,"
            f" and at most {highest_w:.0f} W can be true; {_CHECK_SENSOR}"
        )


def _usual(powers_w: np.ndarray) -> float:
    """Return the power of a load from some readings, whether or not it pauses or some are odd."""
    return float(np.percentile(powers_w, _USUAL_PERCENTILE, method="lower"))


def _highest_w(device: Device, usual_w: float) -> float:
    """Return the highest power that is believed of a device, in W."""
    if device.highest_limit_w is not None:
        return _MOST_OF_LIMIT * device.highest_limit_w
    return _MOST_OF_USUAL * usual_w


def _uncertain_ns(name: str, moments_ns: np.ndarray, energies_mj: np.ndarray) -> float:
    """Return the uncertainty of a span in nanoseconds, summed over its two ends.

    At each end this is half of the time between two changes of the counter, or between two reads if
    that is longer.

    Args:
        name: the name of the device, for messages.
        moments_ns: when the counter was read, of shape (n,), with n of 2 or more.
        energies_mj: the values of the counter, of shape (n,).

    Raises:
        SensorError: the counter stood still, or went back.
    """
    if (np.diff(energies_mj) < 0).any():
        problem = f"the energy counter of {name} went back, as if its driver was reloaded"
        raise SensorError(f"{problem}; measure again")

    # The counter never falls here, so reads with an equal value follow each other.
    _, first_reads, counts = np.unique(energies_mj, return_index=True, return_counts=True)
    last_reads = first_reads + counts - 1
    unchanged_ns = moments_ns[last_reads] - moments_ns[first_reads]
    still_ns = unchanged_ns.max()
    if still_ns > _STUCK_NS:
        message = f"the energy counter of {name} stood still for {still_ns / _NS_PER_S:.1f} s"
        raise SensorError(f"{message}; {_CHECK_SENSOR}")
    changes = len(first_reads) - 1
    watched_ns = moments_ns[-1] - moments_ns[0]
    change_period_ns = watched_ns / max(changes, 1)
    read_periods_ns = np.diff(moments_ns)
    period_at_start_ns = max(change_period_ns, read_periods_ns[0])
    period_at_end_ns = max(change_period_ns, read_periods_ns[-1])
    return float(period_at_start_ns + period_at_end_ns) / 2


def check_counter(name: str, energy: Energy) -> None:
    """Check that the counter and the power agree within 3 % plus the error of the span's ends.

    Args:
        name: the name of the device, for messages.
        energy: the energy that the device drew in a span.

    Raises:
        SensorError: they disagree by more.
    """
    # On an H100, under a load that swung between 130 and 700 W for 10 s, they disagreed by up to
    # 3.4 %.
    allowed_frac = _MAX_DISAGREEMENT_FRAC + energy.error_frac
    ratio = energy.counter_ratio
    if ratio is not None and abs(ratio - 1) > allowed_frac:
        raise SensorError(
            f"the energy counter of {name} shows {ratio:.2f} times the energy that its power adds"
            f" up to, and they may differ by {allowed_frac:.1%} at most; its sensor reads only a"
            " part of the time, or is wrong"
        )


def averaging_lag_ns(samples: Sequence[DeviceSample]) -> int:
    """Return how far a device's average power lags behind, in nanoseconds.

    On most cards NVML's average power covers the last second. GA100 and older chips answer the same
    question with the momentary power (nvml.h, `nvmlDeviceGetPowerUsage`). Which of the two a card
    reports is measured instead of looked up. The power is integrated with a lag of 0 and with one
    of half a second, both integrals are compared with the reads of the energy counter, and the lag
    with the smaller deviation is taken. A constant load gives equal deviations, and then the lag
    doesn't matter.

    Args:
        samples: the samples of the device, from before the load to its end.

    Returns:
        Half of the averaged time; 0 for the momentary power. Without enough reads of a counter,
        half a second.
    """
    documented_ns = _AVERAGED_NS // 2
    reads = [
        (sample.at_ns, sample.energy_mj, sample.state.average_mw)
        for sample in samples
        if sample.energy_mj is not None and sample.state.average_mw is not None
    ]
    if len(reads) < _LEAST_READS:
        return documented_ns
    moments_ns, energies_mj, powers_mw = np.array(reads, np.float64).T
    momentary_deviation = _deviation_from_counter(moments_ns, energies_mj, powers_mw, 0)
    average_deviation = _deviation_from_counter(moments_ns, energies_mj, powers_mw, documented_ns)
    if momentary_deviation < average_deviation:
        return 0
    return documented_ns


def _deviation_from_counter(
    moments_ns: np.ndarray, energies_mj: np.ndarray, powers_mw: np.ndarray, lag_ns: int
) -> float:
    """Return how much the counter deviates from the integral of a power with a lag.

    Returns:
        The mean square of the deviations, in mJ squared.

    Args:
        moments_ns: when the device was read, of shape (n,).
        energies_mj: the values of its counter, of shape (n,).
        powers_mw: the values of its power, of shape (n,).
        lag_ns: how long before the read the power was drawn.
    """
    # Integrate the power by the trapezoidal rule.
    steps_ns = np.diff(moments_ns)
    mean_powers_mw = (powers_mw[1:] + powers_mw[:-1]) / 2
    steps_mj = mean_powers_mw * steps_ns / _NS_PER_S
    summed_mj = np.concatenate(([0.0], np.cumsum(steps_mj)))

    # Leave out the last second, so that the same reads are compared for any lag.
    covered = moments_ns <= moments_ns[-1] - _AVERAGED_NS
    explained_mj = np.interp(moments_ns[covered] + lag_ns, moments_ns, summed_mj)

    # Fit a factor and an offset, because counter and power are calibrated differently.
    terms = np.column_stack((explained_mj, np.ones(len(explained_mj))))
    counted_mj = energies_mj[covered] - energies_mj[0]
    factors, *_ = np.linalg.lstsq(terms, counted_mj, rcond=None)
    residuals_mj = terms @ factors - counted_mj
    return float(np.mean(residuals_mj**2))


def integral_j(
    samples: Sequence[DeviceSample], span: Span, field: str, lag_ns: int = 0
) -> float | None:
    """Integrate the power of samples over a span, linearly interpolated between them.

    Args:
        field: the field of `DeviceState` with the power.
        lag_ns: how long before the sample the power was drawn; half of the averaged time for an
            average.

    Returns:
        The energy in J; None if no sample has the field.
    """
    powers: list[tuple[int, int]] = []
    for sample in samples:
        power_mw = getattr(sample.state, field)
        if power_mw is not None:
            powers.append((sample.at_ns - lag_ns, power_mw))

    if not powers:
        return None
    moments_ns, powers_mw = np.array(powers).T
    start_ns, end_ns = span
    is_inside = (moments_ns > start_ns) & (moments_ns < end_ns)

    # The power at the ends of the span lies between two samples.
    grid_ns = np.concatenate(([start_ns], moments_ns[is_inside], [end_ns]))
    grid_mw = np.interp(grid_ns, moments_ns, powers_mw)
    energy_mw_ns = np.trapezoid(grid_mw, grid_ns)
    return float(energy_mw_ns) / _NS_PER_S / _MW_PER_W


def missing_frac(trace: PowerTrace, span: Span) -> float:
    """Return the share of a span's samples that are missing, from 0 to 1."""
    start_ns, end_ns = span
    due = (end_ns - start_ns) // EVERY_NS
    if not due:
        return 0.0

    taken_frac = len(trace.within(span)) / due
    return max(0.0, 1 - taken_frac)


def check_not_throttled(traces: Sequence[PowerTrace], spans: Sequence[Span]) -> None:
    """Check that neither heat nor a lack of power held a device back during the given spans.

    Raises:
        InvalidMeasurementError: `THROTTLED`, a device was held back.
    """
    for trace in traces:
        states: list[DeviceState] = []
        for span in spans:
            states += trace.states(span)
        frac, causes = throttling_of(states)
        if frac:
            raise InvalidMeasurementError(
                "THROTTLED", device=trace.device.name, share_frac=frac, causes=causes
            )


def check_alone(
    traces: Sequence[PowerTrace], spans: Sequence[Span], our_pids: AbstractSet[int]
) -> None:
    """Check that no other process computed on a device during the given spans.

    Args:
        traces: the samples of the devices.
        our_pids: the ids of this run's processes.

    Raises:
        InvalidMeasurementError: `DEVICE_SHARED`, another process computed on a device.
    """
    for trace in traces:
        lists = [
            (sample.at_ns, set(sample.pids)) for sample in trace.samples if sample.pids is not None
        ]
        pids = _pids_in(lists, spans)
        foreign_pids = pids - our_pids
        # In a container the driver may list processes by the ids that they have on the host, so
        # that none of them seems to be ours. Then the processes in the first list, from before the
        # first request, are assumed to be ours. Others can't have been there: the servers wouldn't
        # have started on a device in use.
        if our_pids and lists and not pids & our_pids:
            _, earliest_pids = lists[0]
            foreign_pids = pids - earliest_pids
        if foreign_pids:
            processes = ", ".join(map(describe_process, sorted(foreign_pids)))
            raise InvalidMeasurementError(
                "DEVICE_SHARED", device=trace.device.name, processes=processes
            )


def _pids_in(lists: Sequence[tuple[int, AbstractSet[int]]], spans: Sequence[Span]) -> set[int]:
    """Return the processes that were listed during the given spans.

    A sampler lists processes only twice a second, or less often on a busy machine. So the last list
    before a span and the first one after it count too.

    Args:
        lists: the moment of each list, and the ids of the processes in it, in the order of time.
    """
    moments_ns = [at_ns for at_ns, _ in lists]
    pids: set[int] = set()
    for start_ns, end_ns in spans:
        first = bisect.bisect_left(moments_ns, start_ns) - 1
        last = bisect.bisect_right(moments_ns, end_ns)
        for _, listed_pids in lists[max(first, 0) : last + 1]:
            pids |= listed_pids

    return pids


class DeviceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The power and the state of a device in a block; null for what it doesn't report.

    Attributes:
        device: the device.
        energy_j: the energy that it drew; null if it can't be computed from the readings.
        mean_w: the energy divided by the length of the block.
        from_counter: true if the energy is from the device's counter.
        error_frac: the error of the energy that the ends of the block cause, as a share of it.
        idle_w: the mean power while the servers had nothing to do; null if it can't be computed
            from the readings.
        idle_invalid: why its idle power means nothing; empty if it is valid, or wasn't measured.
        peak_w: the highest power of a sample.
        sm_clock_mhz: the median of the clock of its processors.
        memory_clock_mhz: the median of the clock of its memory.
        temperature_c: the highest temperature.
        used_bytes: the most memory in use.
        utilisation_frac: the mean share of the time in which it computed.
        throttled: all reasons for which its clocks were lowered.
        counter_ratio: the energy from the counter, divided by the energy that the samples of power
            add up to.
        missing_frac: the share of the samples that are missing.
        invalid: why its energy means nothing; empty if it is valid.
    """

    device: Device
    energy_j: _NotNegative | None = None
    mean_w: _NotNegative | None = None
    from_counter: bool = False
    error_frac: _NotNegative | None = None
    idle_w: _NotNegative | None = None
    idle_invalid: str = ""
    peak_w: _NotNegative | None = None
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
    """The power of all devices of a server in a block; null if one of them doesn't report it.

    Attributes:
        window_s: the length of the block.
        tokens: the number of tokens that were generated in it.
        energy_j: the energy that the devices drew.
        mean_w: the energy divided by the length of the block.
        idle_w: the mean power while the servers had nothing to do.
        error_frac: the largest error of a device's energy, as a share of it; null if no energy
            is from a counter.
        energy_j_per_token: the energy divided by the tokens.
        above_idle_j_per_token: the energy beyond what idle devices would have drawn, divided by the
            tokens.
        energy_j_per_accepted_token: the energy divided by the accepted draft tokens.
        tokens_per_kwh: the tokens divided by the energy.
        devices: the record of each device.
        over_time_w: the mean power of all devices in each of at most 200 equal parts of the block;
            empty if a device's energy isn't valid.
    """

    window_s: _NotNegative
    tokens: Annotated[int, msgspec.Meta(ge=0)]
    energy_j: _NotNegative | None
    mean_w: _NotNegative | None
    idle_w: _NotNegative | None
    error_frac: _NotNegative | None
    energy_j_per_token: _NotNegative | None
    above_idle_j_per_token: float | None
    energy_j_per_accepted_token: _NotNegative | None
    tokens_per_kwh: _NotNegative | None
    devices: tuple[DeviceRecord, ...]
    over_time_w: Annotated[tuple[_NotNegative, ...], msgspec.Meta(max_length=_MOST_PARTS)] = ()


class PowerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The power of a measurement, or the reason why it has none.

    Attributes:
        case: the power of the case's server; null if it isn't known.
        control: the power of the control server; null if it isn't known.
        energy_ratio: the control's energy per token, divided by the case's: more than 1 if
            speculation saves energy.
        invalid: why the figures mean nothing; null if they are valid.
        too_short: why the block is too short to be judged; empty if it is long enough.
    """

    case: ArmPower | None = None
    control: ArmPower | None = None
    energy_ratio: _NotNegative | None = None
    invalid: Reason | None = None
    too_short: str = ""


def record_power(
    traces: Sequence[PowerTrace], span: Span, *, tokens: int, accepted_frac: float, idle: Span
) -> PowerRecord:
    """Record the power of devices in a block, which is one uninterrupted stretch of load.

    Args:
        traces: the trace of each device of the server.
        span: the time of the block.
        tokens: the number of tokens that were generated in the block.
        accepted_frac: the share of the tokens that are accepted drafts, from 0 to 1.
        idle: a span without requests; a span of no length if there was none.

    Returns:
        The record. Its field `case` has the power, also if the devices are the control's.
    """
    devices = [_record_device(trace, span, idle) for trace in traces]
    arm = arm_power(devices, span, tokens=tokens, accepted_frac=accepted_frac)
    if arm.window_s < SHORTEST_S:
        too_short = Reason.of("power_too_short", watched_s=arm.window_s, needed_s=SHORTEST_S)
        return PowerRecord(case=arm, too_short=str(too_short))
    faults = [device.invalid for device in devices if device.invalid]
    if faults:
        return PowerRecord(case=arm, invalid=Reason.of("POWER_INVALID", fault=faults[0]))
    arm = msgspec.structs.replace(arm, over_time_w=power_over_time(traces, span))
    return PowerRecord(case=arm)


def power_over_time(traces: Sequence[PowerTrace], span: Span) -> tuple[float, ...]:
    """Return the mean power of all devices in W, in each of equal parts of a span.

    Args:
        traces: the trace of each device, whose energy in the span is valid.
    """
    start_ns, end_ns = span
    parts = min(_MOST_PARTS, (end_ns - start_ns) // _SHORTEST_PART_NS)
    edges_ns = np.linspace(start_ns, end_ns, parts + 1)
    drawn_mj = np.zeros(parts)
    for trace in traces:
        drawn_mj += np.diff(np.interp(edges_ns, *_energy_curve(trace.samples)))
    part_s = (end_ns - start_ns) / max(parts, 1) / _NS_PER_S
    watts = drawn_mj / _MJ_PER_J / part_s
    return tuple(watts.round(2).tolist())


def _energy_curve(samples: Sequence[DeviceSample]) -> tuple[np.ndarray, np.ndarray]:
    """Return moments in ns and the energy in mJ up to each, by the counter or the sum of powers."""
    reads = [(sample.at_ns, sample.energy_mj) for sample in samples if sample.energy_mj is not None]
    if reads:
        moments_ns, energies_mj = np.array(reads).T
        return moments_ns, energies_mj
    powers = [
        (sample.at_ns, sample.state.instant_mw or sample.state.average_mw or 0)
        for sample in samples
    ]
    moments_ns, powers_mw = np.array(powers).T
    between_mj = np.diff(moments_ns) / _NS_PER_S * (powers_mw[1:] + powers_mw[:-1]) / 2
    return moments_ns, np.concatenate(([0.0], np.cumsum(between_mj)))


def arm_power(
    devices: Sequence[DeviceRecord], span: Span, *, tokens: int, accepted_frac: float
) -> ArmPower:
    """Return the power of all devices of a server in a block.

    Args:
        devices: the record of each device.
        span: the time of the block.
        tokens: as in `record_power`.
        accepted_frac: as in `record_power`.
    """
    window_s = (span[1] - span[0]) / _NS_PER_S
    energy_j = _sum([device.energy_j for device in devices])
    idle_w = _sum([device.idle_w for device in devices])
    above_idle_j = None
    if energy_j is not None and idle_w is not None:
        above_idle_j = energy_j - idle_w * window_s
    error_fracs = [device.error_frac for device in devices if device.error_frac]
    return ArmPower(
        window_s=window_s,
        tokens=tokens,
        energy_j=energy_j,
        mean_w=_ratio(energy_j, window_s),
        idle_w=idle_w,
        error_frac=max(error_fracs, default=None),
        energy_j_per_token=_ratio(energy_j, tokens),
        above_idle_j_per_token=_ratio(above_idle_j, tokens),
        energy_j_per_accepted_token=_ratio(energy_j, tokens * accepted_frac),
        tokens_per_kwh=_ratio(tokens * _J_PER_KWH, energy_j),
        devices=tuple(devices),
    )


def _sum(values: Sequence[float | None]) -> float | None:
    """Return the sum of some values; None if one of them is None."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    return sum(known)


def _ratio(numerator: float | None, denominator: float | None) -> float | None:
    """Return a ratio; None if one of the numbers is None, or the denominator is 0."""
    if numerator is None or not denominator:
        return None
    return numerator / denominator


def _mean_w(energy_j: float, span: Span) -> float:
    return energy_j * _NS_PER_S / (span[1] - span[0])


def _record_device(trace: PowerTrace, span: Span, idle: Span) -> DeviceRecord:
    """Return the record of one device in a span.

    If its energy isn't valid, the record has the reason, and the state of the device nevertheless.
    """
    energy, invalid = _checked_energy(trace, span)
    idle_w: float | None = None
    idle_invalid = ""
    was_idle = idle[1] > idle[0]
    if was_idle:
        idle_energy, idle_invalid = _checked_energy(trace, idle)
        if idle_energy is not None and not idle_invalid:
            idle_w = _mean_w(idle_energy.energy_j, idle)
            # A counter that agrees has shown that the sensor works.
            if energy is not None and not energy.from_counter:
                invalid = invalid or _why_frozen(trace, span, idle_w)

    # Summarise the state. What no sample has stays unknown.
    states = trace.states(span)

    def summarised(field: str, statistic: Callable[[Sequence[Any]], Any]) -> Any:  # noqa: ANN401 - an int or a float
        values = [getattr(state, field) for state in states]
        known = [value for value in values if value is not None]
        if not known:
            return None
        return statistic(known)

    powers_mw = [state.instant_mw or state.average_mw for state in states]
    known_powers_mw = [power_mw for power_mw in powers_mw if power_mw is not None]
    peak_w: float | None = None
    if known_powers_mw:
        peak_w = max(known_powers_mw) / _MW_PER_W
    throttled: tuple[str, ...] | None = None
    throttle_mask = summarised("throttle_mask", _union)
    if throttle_mask is not None:
        throttled = throttle_reasons(throttle_mask)
    mean_w: float | None = None
    energy_fields: dict[str, Any] = {}
    if energy is not None:
        mean_w = _mean_w(energy.energy_j, span)
        # The record has all fields of `Energy` under the same names.
        energy_fields = dataclasses.asdict(energy)

    return DeviceRecord(
        device=trace.device,
        **energy_fields,
        mean_w=mean_w,
        idle_w=idle_w,
        idle_invalid=idle_invalid,
        peak_w=peak_w,
        sm_clock_mhz=summarised("sm_clock_mhz", statistics.median),
        memory_clock_mhz=summarised("memory_clock_mhz", statistics.median),
        temperature_c=summarised("temperature_c", max),
        used_bytes=summarised("used_bytes", max),
        utilisation_frac=summarised("utilisation_frac", statistics.fmean),
        throttled=throttled,
        missing_frac=missing_frac(trace, span),
        invalid=invalid,
    )


def _why_frozen(trace: PowerTrace, span: Span, idle_w: float) -> str:
    """Return why the power of a load is invalid: its sensor stood still; empty if it is valid.

    A sensor that reports whole watts may have one value throughout a steady load, but not one that
    it has at rest too.
    """
    states = [sample.state for sample in trace.within(span)]
    for field in ("average_mw", "instant_mw"):
        powers_mw = {getattr(state, field) for state in states}
        if len(powers_mw) != 1:
            continue
        (power_mw,) = powers_mw
        # A card without such a sensor may answer 0 each time.
        if power_mw and power_mw <= idle_w * _MW_PER_W * _MOST_OF_REST:
            return (
                f"{trace.device.name}: its sensor read {power_mw / _MW_PER_W:.0f} W throughout the"
                f" load, and as much at rest, so it stood still; {_CHECK_SENSOR}"
            )

    return ""


def _checked_energy(trace: PowerTrace, span: Span) -> tuple[Energy | None, str]:
    """Return the energy of a device in a span, and why it means nothing; empty if it is valid.

    The energy is None if it can't be computed.
    """
    energy: Energy | None = None
    try:
        energy = energy_of(trace, span)
        check_counter(trace.device.name, energy)
    except SensorError as error:
        return energy, str(error)
    return energy, ""


def _union(masks: Sequence[int]) -> int:
    """Return the bits that are set in any of the masks."""
    return functools.reduce(operator.or_, masks)
