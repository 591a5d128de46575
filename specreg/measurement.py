"""Measuring: a case and its running server in, a measurement out. Knows nothing of pytest."""

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from types import MappingProxyType

from specreg.acceptance.checks import check_requests
from specreg.acceptance.record import AcceptanceRecord
from specreg.datasets import Prompt
from specreg.errors import InvalidMeasurementError, SensorError
from specreg.lane import open_lane, warm_up
from specreg.matrix import Case
from specreg.metrics import METRICS, Replay
from specreg.power.checks import check_alone, check_held_back
from specreg.power.energy import Span
from specreg.power.record import PowerRecord, record_power
from specreg.power.watch import Watch
from specreg.replay import Round
from specreg.sequential import Look
from specreg.server import Server
from specreg.spread import Histogram, percentile
from specreg.talk import Clock, Record

_LATE_NS = 5 * 10**6
_LATE_FRAC = 0.05
_ENOUGH_BEATS = 20
_SETTLE_S, _IDLE_S = 1.0, 4.0

RecordRound = Callable[[bool, int], Record]
"""Whether a round is the control's and its number from 0 in; what takes its requests out."""


Enough = Callable[[AcceptanceRecord | None, Look], bool]
"""What was accepted so far and which look this is; whether no more prompts are needed."""


def all_prompts(acceptance: AcceptanceRecord | None, look: Look) -> bool:
    """Enough are the prompts of the case: no fewer, no more."""
    del acceptance
    return look is not Look.EARLY


def no_record(control: bool, number: int) -> Record:  # noqa: FBT001 - a RecordRound
    """Keeps nothing."""
    del control, number
    return lambda _: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How much is replayed.

    Attributes:
        parts: how many the prompts are dealt into, None for the case's rounds.
        enough: asked after each part; where all of them weren't, as many prompts more follow, for
            the acceptance alone.
    """

    parts: int | None = None
    enough: Enough = all_prompts


WHOLE = Extent()


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What one launch of a case's server did.

    Attributes:
        case: what was measured.
        engine_version: by the server's own word.
        target, draft: what was served: folders or hub ids.
        replay: all rounds; None when the measurement is invalid.
        values: by metric's name; a metric without a value isn't there.
        invalid: why the figures mean nothing, None when they do.
        look: at which it was enough: early, all prompts of the case, or with the extension.
    """

    case: Case
    engine_version: str
    target: str
    draft: str | None
    replay: Replay | None = None
    values: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    invalid: str | None = None
    look: Look = Look.FULL

    @property
    def acceptance(self) -> AcceptanceRecord | None:
        """The acceptance of a valid measurement of a case that speculates."""
        return self.replay.acceptance if self.replay else None


def measure(  # noqa: PLR0913 - half of them by name, each with a use of its own
    case: Case,
    server: Server,
    control: Server | None,
    prompts: Sequence[Prompt],
    *,
    show: Callable[[str], None],
    clock: Clock = time.monotonic_ns,
    record: RecordRound = no_record,
    extent: Extent = WHOLE,
    watching: Watch | None = None,
) -> Measurement:
    """Measures a case: warm-up, then its prompts in rounds, each beside a round of the control.

    A check that breaks makes the measurement invalid; it is no error of this function.

    Args:
        case: what to measure.
        server: running, with nobody else using it.
        control: the `none` server to alternate with, None for no speedup.
        prompts: the dataset's; the case takes its first ones, extends to the next ones, and warms
            up with those after, if there are any.
        show: is told what goes on.
        clock: monotonic, in nanoseconds.
        record: is asked, for each round, for what takes its requests as they end.
        extent: how many of the prompts to replay.
        watching: what samples the power of the server's devices, None for no power.

    Raises:
        ServerDiedError: a server went away.
    """
    measurement = Measurement(
        case=case,
        engine_version=server.engine_version,
        target=server.target,
        draft=server.draft,
    )
    ours = server.pids() | (control.pids() if control is not None else frozenset())
    import uvloop  # noqa: PLC0415 - only who measures needs it

    try:
        idle = rest(watching, show)
        replay, look = uvloop.run(
            _measure(case, server, control, prompts, extent, show=show, clock=clock, record=record)
        )
        ours |= server.pids() | (control.pids() if control is not None else frozenset())
        if watching is not None:
            replay = dataclasses.replace(replay, power=power_of(replay, watching, idle, ours))
    except InvalidMeasurementError as error:
        for one in (server, control):
            if one is not None:
                one.check_alive()
        return dataclasses.replace(measurement, invalid=str(error))
    values = values_of(case, replay)
    return dataclasses.replace(measurement, replay=replay, values=values, look=look)


def rest(watching: Watch | None, show: Callable[[str], None]) -> Span:
    """Lets the devices of a watch be idle for a while; the span of time in which they were."""
    if watching is None:
        return 0, 0
    show("watching the idle power")
    time.sleep(_SETTLE_S)
    start_ns = time.monotonic_ns()
    time.sleep(_IDLE_S)
    return start_ns, time.monotonic_ns()


def power_of(replay: Replay, watching: Watch, idle: Span, ours: AbstractSet[int]) -> PowerRecord:
    """What the devices drew while each server had requests.

    Args:
        replay: whose rounds they are; its clock is the monotonic one.
        watching: what sampled them.
        idle: when the servers had nothing to do.
        ours: the processes of the servers.

    Raises:
        InvalidMeasurementError: `THROTTLED` or `DEVICE_SHARED`: then no figure means anything.
    """
    case, control = (
        [(part.started_ns, part.ended_ns) for part in rounds]
        for rounds in (replay.rounds, replay.control_rounds)
    )
    invalid = ""
    try:
        traces = watching.traces(until_ns=max(end_ns for _, end_ns in (*case, *control)))
    except SensorError as error:
        traces, invalid = watching.left(), f"POWER_INVALID: {error}"
    check_held_back(traces, [*case, *control])
    check_alone(traces, [*case, *control], ours)
    if invalid:
        return PowerRecord(invalid=invalid)
    return record_power(traces, idle=idle, case=case, control=control)


def values_of(case: Case, replay: Replay) -> Mapping[str, float]:
    """The metrics that have a value, by name."""
    values = {
        name: metric.function(replay) for name, metric in METRICS.items() if metric.applies_to(case)
    }
    return MappingProxyType({name: v for name, v in values.items() if v is not None})


async def _measure(  # noqa: PLR0913 - as above
    case: Case,
    server: Server,
    control: Server | None,
    prompts: Sequence[Prompt],
    extent: Extent,
    *,
    show: Callable[[str], None],
    clock: Clock,
    record: RecordRound,
) -> tuple[Replay, Look]:
    taken, extension = prompts[: case.prompts], prompts[case.prompts : 2 * case.prompts]
    # A drafter that learns from what it serves mustn't have seen what it is measured on.
    spare = prompts[2 * case.prompts :] or taken
    parts = deal(taken, extent.parts or case.rounds)
    async with contextlib.AsyncExitStack() as stack:
        servers = [server] if control is None else [server, control]
        lanes = [
            await stack.enter_async_context(open_lane(case, one, clock=clock)) for one in servers
        ]
        ours = lanes[0]
        show(f"{case.id}: warming up")
        for lane in lanes:
            await warm_up(case, spare, lane.crew.replay_under)
        await ours.begin()
        found, gauges, look = None, None, Look.EARLY
        for index, part in enumerate(parts):
            show(f"{case.id}: round {index + 1} of {len(parts)}")
            # ABBA: neither arm is always the first.
            for lane in lanes if index % 2 == 0 else reversed(lanes):
                await lane.replay(part, record(lane is not ours, index))
            look = Look.EARLY if index + 1 < len(parts) else Look.FULL
            found, gauges = await ours.acceptance()
            if extent.enough(found, look):
                break
        else:
            if case.speculates and extension:
                show(f"{case.id}: undecided, {len(extension)} prompts more")
                keep = record(False, len(parts))  # noqa: FBT003 - not the control's
                more = await ours.crew.replay(extension, keep)
                check_requests(more.traces)
                found, gauges = await ours.acceptance(more)
                look = Look.EXTENDED
    for lane in lanes:
        check_client(lane.rounds)
    replay = Replay(
        rounds=tuple(ours.rounds),
        control_rounds=tuple(lanes[1].rounds) if control is not None else (),
        acceptance=found,
        limits=case.limits,
        gauges=gauges,
    )
    return replay, look


def check_client(rounds: Sequence[Round]) -> None:
    """The client kept up: it sent when it should have, and read when something came.

    In half of all cases at least: what is judged are medians, which the hiccups of a shared machine
    don't move, and a client that can't keep up is late all the time. Late is 5 ms and 5 % of the
    median TTFT, the shortest time that is judged.

    Args:
        rounds: of one server, in one measurement.

    Raises:
        InvalidMeasurementError: `CLIENT_BEHIND`.
    """
    traces = [trace for part in rounds for trace in part.traces]
    delays = sorted(trace.sent_ns - trace.planned_ns for trace in traces)
    waits = sorted(trace.first_ns - trace.sent_ns for trace in traces if trace.first_ns)
    limit_ns = max(_LATE_NS, _LATE_FRAC * percentile(waits, 0.5) if waits else 0)
    lags = Histogram()
    for part in rounds:
        lags.merge(part.lags)
    beats_ns = lags.quantile_ns(0.5) if lags.size >= _ENOUGH_BEATS else 0.0
    for what, late_ns in (("sent requests", percentile(delays, 0.5)), ("woke", beats_ns)):
        if late_ns > limit_ns:
            message = (
                f"the client {what} {late_ns / 1e6:.1f} ms late or later in half of all cases,"
                f" more than the {limit_ns / 1e6:.1f} ms that the figures bear; raise"
                " client_processes in the matrix, or give the client a core of its own"
            )
            raise InvalidMeasurementError("CLIENT_BEHIND", message)


def deal(prompts: Sequence[Prompt], rounds: int) -> tuple[Sequence[Prompt], ...]:
    """The prompts cut into at most `rounds` parts of equal size, in order; none is empty."""
    size = math.ceil(len(prompts) / rounds)
    return tuple(prompts[start : start + size] for start in range(0, len(prompts), size))
