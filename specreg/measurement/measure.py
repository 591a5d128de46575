"""Measure running servers under a workload, side by side. It starts nothing and judges nothing."""

import asyncio
import contextlib
import dataclasses
import itertools
import math
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from types import MappingProxyType

import msgspec

from specreg.acceptance.checks import check_requests
from specreg.acceptance.record import AcceptanceRecord
from specreg.core.errors import InvalidMeasurementError
from specreg.core.timeline import Phase
from specreg.datasets.prompts import Prompt
from specreg.engines.methods import SCHEDULED
from specreg.load.chat_client import Clock, Record
from specreg.load.rounds import BEAT_NS, Round, open_clients
from specreg.matrix.case import Case, Load
from specreg.measurement.arm import Arm, ArmReplay
from specreg.measurement.metrics import ALL, METRICS, Family, Invalid, Replay, noting
from specreg.stats.intervals import Look
from specreg.stats.percentiles import TimeHistogram
from specreg.telemetry.power_record import PowerRecord
from specreg.telemetry.sampler import Span, Watch

_SETTLE_S, _IDLE_S = 1.0, 4.0
_WARM_UP_NS = 10 * 10**9
_COMPARED = 3
"""How many batches are compared with as many before them."""
_SILENT_BATCHES = 3
_CLEAR = 2.5
"""By how many standard errors earlier batches must be slower for a trend to be left."""
_LATE_NS = 5 * 10**6
_LATE_FRAC = 0.05
_MOST_LATE_NS = 20 * 10**6
_LEAST_STEP_NS = 10**5
"""No step of a model takes less."""
_ENOUGH_BEATS_NS = 20 * BEAT_NS
_NS_PER_S = 10**9

RecordRound = Callable[[int, int], Record]
"""Takes an arm's place and a round's number, both from 0; gives what takes its requests."""
Enough = Callable[[AcceptanceRecord | None, Look], bool]
"""Takes what the first arm accepted so far and which look this is; whether that is enough."""


def all_prompts(acceptance: AcceptanceRecord | None, look: Look) -> bool:
    """Say that all prompts of the workload are enough, and no fewer."""
    del acceptance
    return look is not Look.EARLY


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The prompts of a measurement; load and sampling are the cases'.

    `warm_up` is replayed first, in turn; `extension` where the prompts weren't enough, for the
    acceptance alone.
    """

    prompts: Sequence[Prompt]
    extension: Sequence[Prompt] = ()
    warm_up: Sequence[Prompt]


def workload_of(case: Case, prompts: Sequence[Prompt]) -> Workload:
    """The workload of a case: its first prompts, as many to extend to, and the rest to warm up.

    Where none are left to warm up with, its own do; otherwise a drafter that learns from what it
    serves hasn't seen what it is measured on.
    """
    taken = prompts[: case.prompts]
    return Workload(
        prompts=taken,
        extension=prompts[case.prompts : 2 * case.prompts],
        warm_up=prompts[2 * case.prompts :] or taken,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much of a workload is replayed, and what is told of it.

    Attributes:
        parts: into how many the prompts are dealt to look after each whether they are enough; None
            for the first case's rounds, and one look after all of them.
        enough: asked at each look; where all prompts weren't, the extension follows.
        least_s: how long each arm is asked, at least; prompts come again, for the speeds alone.
        power_s: how long each server is kept under load for its power, where that is watched and
            none of its rounds took as long.
        watching: what samples the power of the servers' devices, None for no power.
        record: is asked, for each round, for what takes its requests as they end.
        clock: monotonic, in nanoseconds.
    """

    show: Callable[[str], None]
    parts: int | None = None
    enough: Enough = all_prompts
    least_s: float = 0.0
    power_s: float = 0.0
    watching: Watch | None = None
    turn_to: Callable[[Phase], None] = lambda _: None
    record: RecordRound = lambda _arm, _number: lambda _: None
    clock: Clock = time.monotonic_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What one launch of an arm's server did.

    Attributes:
        target, draft: what was served: folders or hub ids.
        replay: all rounds; None where no family's figures mean anything, or where another arm
            failed before they were complete.
        values: by metric's name; a metric without a value that means something isn't there.
        invalid: by family why its figures mean nothing.
        look: at which it was enough: early, all prompts of the case, or with the extension.
    """

    case: Case
    engine_version: str
    target: str
    draft: str | None
    replay: Replay | None = None
    values: Mapping[str, float] = field(default_factory=dict)
    invalid: Invalid = field(default_factory=dict)
    look: Look = Look.FULL

    @property
    def acceptance(self) -> AcceptanceRecord | None:
        """The acceptance of a case that speculates, where it is valid."""
        return self.replay.acceptance if self.replay else None


def measure(arms: Sequence[Arm], workload: Workload, plan: Plan) -> tuple[Measurement, ...]:
    """Measure arms side by side: warm-up, then the prompts in rounds, each on every arm in turn.

    Their order changes from round to round: of two it is A B, B A. A check that breaks makes the
    families of its arm invalid that it spoils, the others are measured; it is no error of this
    function.

    Raises:
        ServerDiedError: a server went away.
    """
    import uvloop  # noqa: PLC0415 - only who measures needs it

    idle, pids = _idle_span(plan), _pids(arms)
    replays, look = uvloop.run(_measure(arms, workload, plan))
    pids |= _pids(arms)
    found = tuple(_measured(one, look, plan, idle, pids) for one in replays)
    for arm, one in zip(arms, found, strict=True):
        if one.invalid:
            arm.server.check_alive()
    return found


def beside(case: Measurement, control: Measurement) -> Measurement:
    """Combine the measurements of a case and its control, so that it has a speedup."""
    invalid = dict(case.invalid)
    if Family.SPEEDUP in control.invalid:
        invalid.setdefault(Family.SPEEDUP, control.invalid[Family.SPEEDUP])
    if case.replay is None:
        return dataclasses.replace(case, invalid=invalid)
    theirs = control.replay or Replay()
    power = _power_beside(case.replay.power, theirs.power)
    replay = dataclasses.replace(case.replay, control_rounds=theirs.rounds, power=power)
    values = values_of(case.case, replay, invalid)
    return dataclasses.replace(case, replay=replay, values=values, invalid=invalid)


def _power_beside(ours: PowerRecord | None, theirs: PowerRecord | None) -> PowerRecord | None:
    """The power of a case with that of its control; the energy that speculation saves."""
    if ours is None or theirs is None or ours.case is None or theirs.case is None:
        if ours is None or theirs is None or theirs.invalid is None:
            return ours
        return PowerRecord(invalid=ours.invalid or theirs.invalid)
    case_j, control_j = ours.case.energy_j_per_token, theirs.case.energy_j_per_token
    too_short = ours.too_short or theirs.too_short
    return msgspec.structs.replace(
        ours,
        control=theirs.case,
        energy_ratio=control_j / case_j if control_j is not None and case_j else None,
        invalid=None if too_short else ours.invalid or theirs.invalid,
        too_short=too_short,
    )


def values_of(
    case: Case, replay: Replay, invalid: Invalid = MappingProxyType({})
) -> Mapping[str, float]:
    """Return the valid metrics that have a value, by name."""
    values = {
        name: metric.function(replay)
        for name, metric in METRICS.items()
        if metric.applies_to(case) and metric.family not in invalid
    }
    return {name: value for name, value in values.items() if value is not None}


def _idle_span(plan: Plan) -> Span:
    """Let the devices that are watched be idle for a while, and return that span."""
    if plan.watching is None:
        return 0, 0
    plan.show("watching the idle power")
    time.sleep(_SETTLE_S)
    start_ns = time.monotonic_ns()
    time.sleep(_IDLE_S)
    return start_ns, time.monotonic_ns()


def _pids(arms: Sequence[Arm]) -> AbstractSet[int]:
    return frozenset().union(*(arm.server.pids() for arm in arms))


def _measured(
    one: ArmReplay, look: Look | None, plan: Plan, idle: Span, pids: AbstractSet[int]
) -> Measurement:
    """Return the measurement of an arm; `look`: None where a required arm failed."""
    case, server, invalid = one.arm.case, one.arm.server, one.invalid
    found = Measurement(
        case=case,
        engine_version=server.engine_version,
        target=server.target,
        draft=server.draft,
        invalid=invalid,
        look=look or Look.FULL,
    )
    if look is None or invalid.keys() == ALL:
        return found
    replay = Replay(
        rounds=tuple(one.rounds),
        concurrency=case.load.concurrency,
        acceptance=one.acceptance,
        limits=case.limits,
    )
    if plan.watching is not None:
        replay = dataclasses.replace(replay, power=one.power(plan.watching, idle, pids))
    return dataclasses.replace(found, replay=replay, values=values_of(case, replay, invalid))


async def _measure(
    arms: Sequence[Arm], workload: Workload, plan: Plan
) -> tuple[list[ArmReplay], Look | None]:
    """Return what each arm replayed, and the look at which it was enough; None where one failed."""
    async with contextlib.AsyncExitStack() as stack:
        replays = []
        for arm in arms:
            opened = open_clients(arm.case, arm.server.endpoint, clock=plan.clock)
            replays.append(ArmReplay(arm=arm, clients=await stack.enter_async_context(opened)))
        try:
            return replays, await _Measuring(replays, workload, plan).run()
        except InvalidMeasurementError:  # its arm holds the reason
            return replays, None


class _Measuring:
    """A measurement that goes on; `going`: the arms that haven't failed."""

    def __init__(self, replays: Sequence[ArmReplay], workload: Workload, plan: Plan) -> None:
        self.all, self.workload, self.plan = tuple(replays), workload, plan
        self.going, self.case = list(replays), replays[0].arm.case
        self.parts = deal(workload.prompts, plan.parts or self.case.rounds)
        # Each order in turn, so that no arm is always the first, or always follows another.
        self.orders = itertools.cycle(itertools.permutations(self.all))
        self.round = 0

    async def run(self) -> Look:
        await self._warm_up()
        look = await self._replay_all()
        while self._tells_more():
            self.plan.show("the prompts again")
            for part in self.parts:
                await self._replay(part)
        for one in self.going:
            with noting(one.invalid):
                check_client(one.rounds)
        if self.plan.watching is not None:
            await self._load_for_power()
        return look

    async def _warm_up(self) -> None:
        """Warm up each arm, and read the counters from which it counts."""
        self.plan.turn_to(Phase.WARMING_UP)
        known = (*self.workload.prompts, *self.workload.extension)
        scheduled = [one for one in self.going if one.arm.case.server.method == SCHEDULED]
        for one in scheduled:
            await self._ask(one, _teach(one, known))
        for one in [one for one in self.going if not one.arm.warm]:
            prompts = known if one in scheduled else self.workload.warm_up
            replay_batch = one.clients.replay_under
            await self._ask(one, warm_up(one.arm.case, prompts, replay_batch))
        self.plan.turn_to(Phase.MEASURING)
        for one in tuple(self.going):
            await self._ask(one, one.begin())

    async def _replay_all(self) -> Look:
        """Replay the prompts until they are enough, and read what was accepted."""
        first, *others = self.all
        for index, part in enumerate(self.parts, start=1):
            self.plan.show(f"round {index} of {len(self.parts)}")
            await self._replay(part)
            look = Look.EARLY if index < len(self.parts) else Look.FULL
            if look is Look.EARLY and self.plan.parts is None:
                continue
            await self._ask(first, first.read())
            if self.plan.enough(first.acceptance, look):
                break
        else:
            if first.acceptance is not None and self.workload.extension:
                await self._extend()
                return Look.EXTENDED
        for one in others:
            if one in self.going:
                await self._ask(one, one.read())
        return look

    async def _replay(self, part: Sequence[Prompt]) -> None:
        """Replay a part on every arm that is left, in the order whose turn it is."""
        for one in next(self.orders):
            if one in self.going:
                keep = self.plan.record(self.all.index(one), self.round)
                await self._ask(one, one.replay(part, keep))
        self.round += 1

    async def _extend(self) -> None:
        """Replay the extension on the arms that speculate."""
        extension = self.workload.extension
        self.plan.show(f"undecided, {len(extension)} prompts more")
        for one in tuple(self.going):
            if one.arm.case.speculates:
                keep = self.plan.record(self.all.index(one), self.round)
                await self._ask(one, one.extend(extension, keep))

    async def _load_for_power(self) -> None:
        """Keep every server under load without a pause; of one that fails, no power is known."""
        least_s = self.plan.power_s
        if least_s:
            self.plan.show(f"power, {least_s:g} s of load for each server")
        going = [one for one in next(self.orders) if one in self.going]
        try:
            for one in going:
                one.block = await _block(one, self.workload.prompts, least_s)
        except InvalidMeasurementError as error:
            for one in going:
                one.block = None
                one.invalid.setdefault(Family.POWER, error.invalidity)

    async def _ask(self, one: ArmReplay, asking: Awaitable[None]) -> None:
        """Ask a server; an arm that fails is left out, if the others mean something without it."""
        try:
            await asking
        except InvalidMeasurementError as error:
            one.invalid.update(dict.fromkeys(Family, error.invalidity))
            if one.arm.required:
                raise
            await asyncio.to_thread(one.arm.server.check_alive)  # asks on a loop of its own
            self.going.remove(one)

    def _tells_more(self) -> bool:
        """Whether the same prompts once more tell more of speed, and change nothing else."""
        if not self.case.speed or self.case.needs_fresh_server:
            return False
        # Of timed arms that were asked only once each, one was always first. Of another number of
        # prompts no speed is judged.
        if self.round == 1 and len(self.going) > 1 and not self.case.matrix_prompts:
            return True
        asked_ns = (
            sum(part.ended_ns - part.started_ns for part in one.rounds) for one in self.going
        )
        return min(asked_ns) < self.plan.least_s * _NS_PER_S


async def _block(one: ArmReplay, prompts: Sequence[Prompt], least_s: float) -> Round:
    """Load without a pause: the longest round, or where that is too short, prompts in a cycle."""
    longest = max(one.rounds, key=lambda part: part.ended_ns - part.started_ns)
    if longest.ended_ns - longest.started_ns >= least_s * _NS_PER_S:
        return longest
    load = dataclasses.replace(one.arm.case.load, duration_s=least_s)
    return await one.clients.replay_under(load, prompts)


async def _teach(one: ArmReplay, prompts: Sequence[Prompt]) -> None:
    """Have a scheduled drafter see the answers, and as much past their ends as is drafted there."""
    case = one.arm.case
    longer = dataclasses.replace(
        case,
        load=Load(concurrency=batch_of(case)),
        output_cap_tokens=case.output_cap_tokens + 2 * case.server.draft_tokens,
        ignore_eos=True,
    )
    done = await dataclasses.replace(one.clients, case=longer).replay(prompts)
    check_requests(done.traces)


async def warm_up(
    case: Case,
    prompts: Sequence[Prompt],
    replay_batch: Callable[[Load, Sequence[Prompt]], Awaitable[Round]],
) -> None:
    """Replay batches until their steps get no faster, for 10 s at most after the first one.

    What is made on demand slows the first requests, by minutes where kernels are compiled. Batches
    take the prompts in turn, see `batch_of`. The one that ends once 10 s have passed is the last. A
    drafter that learns from what it serves is shown as many as steady steps take, for what it
    accepts then mustn't depend on the time.

    Raises:
        InvalidMeasurementError: a request fails.
    """
    size = batch_of(case)
    in_turn = itertools.cycle(prompts)
    began_ns, step_times_ns = None, []
    for batch in itertools.count(1):
        done = await replay_batch(Load(concurrency=size), list(itertools.islice(in_turn, size)))
        check_requests(done.traces)
        began_ns = done.ended_ns if began_ns is None else began_ns
        if case.needs_fresh_server:
            if batch > 2 * _COMPARED:
                return
            continue
        if step_time_ns := done.gaps.quantile_ns(0.5):  # answers of one token have no steps
            step_times_ns.append(step_time_ns)
        silent = not step_times_ns and batch == _SILENT_BATCHES
        if silent or done.ended_ns - began_ns >= _WARM_UP_NS or is_warm(step_times_ns):
            return


def batch_of(case: Case) -> int:
    """How many prompts a batch of the warm-up has: one for each request in flight.

    For a rate, for each that comes in a second, as far as the server takes them on at once.
    """
    rate = math.ceil(case.load.requests_per_s)
    return case.load.concurrency or min(rate, case.server.max_sequences)


def is_warm(step_times_ns: Sequence[float]) -> bool:
    """Whether batches of these median step times have stopped getting faster; seven can tell.

    The first one pays for most of what is made on demand, and isn't looked at. Of the last six
    others, the logarithms of the later three lie below those of the earlier three by no more than
    2.5 times the error of that difference, which their spread within the threes gives: steady steps
    look otherwise once in thirty times.
    """
    recent = [math.log(one) for one in step_times_ns[1:][-2 * _COMPARED :]]
    if len(recent) < 2 * _COMPARED:
        return False
    halves = recent[:_COMPARED], recent[_COMPARED:]
    error = math.sqrt(sum(map(statistics.variance, halves)) / _COMPARED)
    earlier, later = map(statistics.fmean, halves)
    return earlier - later <= _CLEAR * error


def deal(prompts: Sequence[Prompt], rounds: int) -> tuple[Sequence[Prompt], ...]:
    """Cut prompts into at most `rounds` parts as even as can be, in order; none is empty."""
    count = min(rounds, len(prompts))
    ends = [len(prompts) * part // count for part in range(count + 1)]
    return tuple(prompts[start:end] for start, end in itertools.pairwise(ends))


def check_client(rounds: Sequence[Round]) -> None:
    """Check that the client kept up: it sent when due, and read when something came.

    In half of all cases at least, else `CLIENT_BEHIND`: what is judged are medians, which the
    hiccups of a shared machine don't move, and a client that can't keep up is late all the time. To
    send, late is 5 ms and 5 % of the median TTFT. To wake, it is that of the time from the first
    chunk to the last too, and 20 ms in any case, for what keeps it from running makes both times
    longer. Chunks that waited for it, or for the server's own front end, come less than 0.1 ms
    apart.
    """
    traces = [trace for part in rounds for trace in part.traces]
    delays = sorted(trace.sent_ns - trace.planned_ns for trace in traces)
    waits = [trace.first_ns - trace.sent_ns for trace in traces if trace.first_ns]
    answers = [
        (trace.last_ns - trace.first_ns, chunks)
        for trace in traces
        if trace.first_ns and trace.last_ns and (chunks := sum(trace.chunk_sizes))
    ]
    step_ns = statistics.median([time_ns / chunks for time_ns, chunks in answers] or [math.inf])
    if step_ns < _LEAST_STEP_NS:
        message = (
            f"half of the answers came at once, their chunks {step_ns / 1e6:.3f} ms apart or less,"
            " so the client or the server's front end was kept from running; end what else runs on"
            " their cores"
        )
        raise InvalidMeasurementError("CLIENT_BEHIND", message)
    wait_ns = statistics.median(waits or [0])
    answer_ns = statistics.median([time_ns for time_ns, _ in answers] or [wait_ns])
    lags = TimeHistogram.merged(part.lags for part in rounds)
    told_ns = lags.size * BEAT_NS + lags.total_ns  # a loop that stalls has few beats
    beats_ns = lags.quantile_ns(0.5) if told_ns >= _ENOUGH_BEATS_NS else 0.0
    for what, late_ns, bears_ns in (
        ("sent requests", statistics.median(delays), _LATE_FRAC * wait_ns),
        ("woke", beats_ns, min(_LATE_FRAC * min(wait_ns, answer_ns), _MOST_LATE_NS)),
    ):
        limit_ns = max(_LATE_NS, bears_ns)
        if late_ns > limit_ns:
            message = (
                f"the client {what} {late_ns / 1e6:.1f} ms late or later in half of all cases,"
                f" more than the {limit_ns / 1e6:.1f} ms that the figures bear; raise"
                " client_processes in the matrix, or give the client a core of its own"
            )
            raise InvalidMeasurementError("CLIENT_BEHIND", message)
