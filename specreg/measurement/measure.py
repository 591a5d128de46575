"""Measuring: a case and its running server in, a measurement out. Knows nothing of pytest."""

import asyncio
import contextlib
import dataclasses
import math
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from types import MappingProxyType

from specreg.acceptance.checks import check_requests
from specreg.acceptance.record import AcceptanceRecord, Gauges
from specreg.core.errors import InvalidMeasurementError, SensorError
from specreg.core.timeline import Phase
from specreg.datasets import Prompt
from specreg.load.chat_client import Clock, Record
from specreg.load.rounds import Round
from specreg.matrix import Case
from specreg.measurement.arm import Lane, open_lane, warm_up
from specreg.measurement.metrics import METRICS, Family, Replay
from specreg.measurement.validity import ALL, Invalid, all_invalid, noting
from specreg.servers.server import Server
from specreg.stats.alpha_spending import Look
from specreg.stats.percentiles import Histogram, percentile
from specreg.telemetry.energy import Span, check_alone, check_held_back
from specreg.telemetry.record import Block, PowerRecord, record_power
from specreg.telemetry.samples import PowerTrace
from specreg.telemetry.watch import Watch

_LATE_NS = 5 * 10**6
_LATE_FRAC = 0.05
_ENOUGH_BEATS = 20
_NS_PER_S = 10**9
_SETTLE_S, _IDLE_S = 1.0, 4.0
_OF_CONTROL = frozenset({Family.SPEEDUP})
"""What the control's warm-up and rounds say something of."""
_OF_POWER = frozenset({Family.POWER})
"""What the blocks say something of."""

RecordRound = Callable[[bool, int], Record]
"""Whether a round is the control's and its number from 0 in; what takes its requests out."""


TurnTo = Callable[[Phase], None]
"""Is told which phase begins."""

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
        power_s: how long each server is kept under load for its power, where that is watched and
            none of its rounds took as long.
    """

    parts: int | None = None
    enough: Enough = all_prompts
    power_s: float = 0.0


WHOLE = Extent()


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What one launch of a case's server did.

    Attributes:
        case: what was measured.
        engine_version: by the server's own word.
        target, draft: what was served: folders or hub ids.
        replay: all rounds; None where no family's figures mean anything.
        values: by metric's name; a metric without a value that means something isn't there.
        invalid: see there.
        look: at which it was enough: early, all prompts of the case, or with the extension.
    """

    case: Case
    engine_version: str
    target: str
    draft: str | None
    replay: Replay | None = None
    values: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    invalid: Invalid = field(default_factory=lambda: MappingProxyType({}))
    look: Look = Look.FULL

    @property
    def acceptance(self) -> AcceptanceRecord | None:
        """The acceptance of a case that speculates, where it is valid."""
        return self.replay.acceptance if self.replay else None


def measure(  # noqa: PLR0913 - half of them by name, each with a use of its own
    case: Case,
    server: Server,
    control: Server | None,
    prompts: Sequence[Prompt],
    *,
    show: Callable[[str], None],
    turn_to: TurnTo = lambda _: None,
    clock: Clock = time.monotonic_ns,
    record: RecordRound = no_record,
    extent: Extent = WHOLE,
    watching: Watch | None = None,
) -> Measurement:
    """Measures a case: warm-up, then its prompts in rounds, each beside a round of the control.

    A check that breaks makes the families invalid that it spoils, the others are measured; it is
    no error of this function.

    Args:
        case: what to measure.
        server: running, with nobody else using it.
        control: the `none` server to alternate with, None for no speedup.
        prompts: the dataset's; the case takes its first ones, extends to the next ones, and warms
            up with those after, if there are any.
        show: is told what goes on.
        turn_to: is told which phase begins.
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

    invalid: dict[Family, str] = {}
    try:
        idle = rest(watching, show)
        replay, look, blocks = uvloop.run(
            _measure(
                case,
                server,
                control,
                prompts,
                extent if watching else dataclasses.replace(extent, power_s=0.0),
                invalid,
                show=show,
                turn_to=turn_to,
                clock=clock,
                record=record,
            )
        )
        ours |= server.pids() | (control.pids() if control is not None else frozenset())
        if watching is not None:
            power = power_of(replay, watching, idle, ours, blocks, invalid)
            replay = dataclasses.replace(replay, power=power)
        values = values_of(case, replay, invalid)
        measurement = dataclasses.replace(measurement, replay=replay, values=values, look=look)
    except InvalidMeasurementError as error:
        invalid.update(all_invalid(str(error)))
    for one in (server, control) if invalid else ():
        if one is not None:
            one.check_alive()
    return dataclasses.replace(measurement, invalid=MappingProxyType(invalid))


def rest(watching: Watch | None, show: Callable[[str], None]) -> Span:
    """Lets the devices of a watch be idle for a while; the span of time in which they were."""
    if watching is None:
        return 0, 0
    show("watching the idle power")
    time.sleep(_SETTLE_S)
    start_ns = time.monotonic_ns()
    time.sleep(_IDLE_S)
    return start_ns, time.monotonic_ns()


def power_of(
    replay: Replay,
    watching: Watch,
    idle: Span,
    ours: AbstractSet[int],
    blocks: Sequence[Round],
    invalid: MutableMapping[Family, str],
) -> PowerRecord:
    """What the devices drew while each server had requests.

    Args:
        replay: of the case; its clock is the monotonic one.
        watching: what sampled them.
        idle: when the servers had nothing to do.
        ours: the processes of the servers.
        blocks: an uninterrupted stretch under load of the case's server, and of the control's;
            none where one of them couldn't be had, which `invalid` says.
        invalid: takes what `THROTTLED` and `DEVICE_SHARED` spoil.
    """
    looked = (
        (replay.rounds, ALL),
        (replay.control_rounds, _OF_CONTROL),
        (blocks, _OF_POWER),
    )
    traces: Sequence[PowerTrace] = ()
    broken = ""
    try:
        traces = watching.traces(until_ns=max(one.ended_ns for some, _ in looked for one in some))
        for block in blocks:
            check_requests(block.traces)
    except (SensorError, InvalidMeasurementError) as error:
        traces, broken = traces or watching.left(), f"POWER_INVALID: {error}"
    for parts, within in looked:
        spans = [(part.started_ns, part.ended_ns) for part in parts]
        with noting(invalid, within):
            check_held_back(traces, spans)
        with noting(invalid, within):
            check_alone(traces, spans, ours)
    if broken or not blocks:
        return PowerRecord(invalid=broken or invalid[Family.POWER])
    case, *control = (
        Block(
            span_ns=(part.started_ns, part.ended_ns),
            tokens=sum(trace.tokens for trace in part.traces),
            accepted_frac=accepted_frac,
        )
        for part, accepted_frac in zip(blocks, (_accepted_frac(replay), 0.0), strict=False)
    )
    return record_power(traces, idle=idle, case=case, control=control[0] if control else None)


def _accepted_frac(replay: Replay) -> float:
    """Accepted drafts / tokens of the rounds, 0..1; an extension's requests are no part of them."""
    tokens = sum(trace.tokens for trace in replay.traces)
    timed = {(trace.prompt_id, trace.turn) for trace in replay.traces}
    prompts = replay.acceptance.prompts if replay.acceptance else ()
    accepted = sum(one.counts.accepted for one in prompts if (one.prompt_id, one.turn) in timed)
    return accepted / tokens if tokens else 0.0


def values_of(
    case: Case, replay: Replay, invalid: Invalid = MappingProxyType({})
) -> Mapping[str, float]:
    """The metrics that have a value that means something, by name."""
    values = {
        name: metric.function(replay)
        for name, metric in METRICS.items()
        if metric.applies_to(case) and metric.family not in invalid
    }
    return MappingProxyType({name: v for name, v in values.items() if v is not None})


async def _measure(  # noqa: PLR0913 - as above
    case: Case,
    server: Server,
    control: Server | None,
    prompts: Sequence[Prompt],
    extent: Extent,
    invalid: MutableMapping[Family, str],
    *,
    show: Callable[[str], None],
    turn_to: TurnTo,
    clock: Clock,
    record: RecordRound,
) -> tuple[Replay, Look, Sequence[Round]]:
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

        async def accepted(*further: Round) -> tuple[AcceptanceRecord | None, Gauges | None]:
            with noting(invalid):
                found = await ours.acceptance(*further)
                if Family.ACCEPTANCE not in invalid:
                    return found
            return None, None

        turn_to(Phase.WARMING_UP)
        for lane in tuple(lanes):
            await _ask(lane, warm_up(case, spare, lane.crew.replay_under), lanes, invalid)
        turn_to(Phase.MEASURING)
        with noting(invalid):
            await ours.begin()
        found, gauges, look = None, None, Look.EARLY
        for index, part in enumerate(parts):
            show(f"{case.id}: round {index + 1} of {len(parts)}")
            # ABBA: neither arm is always the first.
            for lane in lanes[:: -1 if index % 2 else 1]:
                keep = record(lane is not ours, index)
                await _ask(lane, lane.replay(part, keep), lanes, invalid)
            look = Look.EARLY if index + 1 < len(parts) else Look.FULL
            found, gauges = await accepted()
            if extent.enough(found, look):
                break
        else:
            if found is not None and extension:
                show(f"{case.id}: undecided, {len(extension)} prompts more")
                keep = record(False, len(parts))  # noqa: FBT003 - not the control's
                more = await ours.crew.replay(extension, keep)
                check_requests(more.traces)
                found, gauges = await accepted(more)
                look = Look.EXTENDED
        if extent.power_s:
            show(f"{case.id}: power, {extent.power_s:g} s of load for each server")
        turn = 1 if index % 2 else -1  # as if it were one round more
        blocks: list[Round] = []
        with noting(invalid, _OF_POWER):
            blocks = [await _block(lane, taken, extent.power_s) for lane in lanes[::turn]][::turn]
    for lane in lanes:
        with noting(invalid, ALL if lane is ours else _OF_CONTROL):
            check_client(lane.rounds)
    replay = Replay(
        rounds=tuple(ours.rounds),
        control_rounds=tuple(lanes[1].rounds) if len(lanes) > 1 else (),
        acceptance=found,
        limits=case.limits,
        gauges=gauges,
    )
    return replay, look, blocks


async def _ask(
    lane: Lane, asking: Awaitable[None], lanes: list[Lane], invalid: MutableMapping[Family, str]
) -> None:
    """Asks a server; of `lanes`, the first of which is the case's, a control that fails is removed.

    Raises:
        InvalidMeasurementError: the case's server failed.
        ServerDiedError: the control went away.
    """
    if lane is lanes[0]:
        await asking
        return
    with noting(invalid, _OF_CONTROL):
        await asking
        return
    await asyncio.to_thread(lane.server.check_alive)  # asks on a loop of its own
    lanes.remove(lane)


async def _block(lane: Lane, prompts: Sequence[Prompt], least_s: float) -> Round:
    """Load without a pause: the longest round, or where that is too short, prompts in a cycle."""
    longest = max(lane.rounds, key=lambda part: part.ended_ns - part.started_ns)
    if longest.ended_ns - longest.started_ns >= least_s * _NS_PER_S:
        return longest
    load = dataclasses.replace(lane.case.load, duration_s=least_s)
    return await lane.crew.replay_under(load, prompts)


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
