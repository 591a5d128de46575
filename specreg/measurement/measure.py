"""Measure running servers under a workload, side by side. Nothing is started or judged here."""

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
from specreg.core.counted import counted
from specreg.core.errors import InvalidMeasurementError
from specreg.core.families import ALL, Family
from specreg.core.interrupts import run_in_loop
from specreg.core.processes import our_ids
from specreg.core.reasons import Reason
from specreg.core.timeline import Phase
from specreg.datasets.prompts import Prompt, cut_evenly
from specreg.engines.launch_facts import NOTHING_KNOWN, LaunchFacts, changes_runner
from specreg.engines.methods import SCHEDULED
from specreg.load.chat_client import Clock, Record
from specreg.load.rounds import BEAT_NS, Round, open_clients
from specreg.matrix.case import Case, Load
from specreg.measurement.arm import Arm, ArmReplay
from specreg.measurement.metrics import METRICS, Invalid, Replay, note_invalidity
from specreg.stats.intervals import Look
from specreg.stats.percentiles import TimeHistogram
from specreg.telemetry.power_record import PowerRecord
from specreg.telemetry.sampler import Span, Watch

_SETTLE_S = 1.0
"""How long the devices settle before their idle power is measured."""
_IDLE_S = 4.0
"""How long the idle power is measured."""
_WARM_UP_NS = 10 * 10**9
"""How long the warm-up lasts at most after its first batch."""
_COMPARED = 3
"""How many batches of a warm-up are compared with as many batches before them."""
_SILENT_BATCHES = 3
"""How many batches of a warm-up are enough if their answers have one token each, and so no step."""
_CLEAR_ERRORS = 2.5
"""The warm-up continues if the earlier batches were slower by more standard errors than this."""
_LATE_NS = 5 * 10**6
"""A client has kept up if it was late by this time at most."""
_LATE_FRAC = 0.05
"""A client has also kept up if it was late by at most this share of the time that it measures."""
_MAX_LATE_NS = 20 * 10**6
"""The most that a client may wake late, however long the times that it measures are."""
_LEAST_STEP_NS = 10**5
"""No step of a model takes less than this."""
_ENOUGH_BEATS_NS = 20 * BEAT_NS
"""The least time for which the client's event loop must have been watched."""
_NS_PER_S = 10**9

RecordRound = Callable[[int, int | None], Record]
"""Takes the index of an arm and the number of a round, both from 0; returns the recorder of the
round's requests. The number is None for an extension, which isn't a round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The prompts of a measurement. The load and the sampling belong to its cases.

    Attributes:
        prompts: the prompts that are measured.
        extension: further prompts for the acceptance, if the measured ones weren't enough.
        warm_up: the prompts of the warm-up, which are repeated as often as needed.
    """

    prompts: Sequence[Prompt]
    extension: Sequence[Prompt] = ()
    warm_up: Sequence[Prompt]


def workload_of(case: Case, prompts: Sequence[Prompt]) -> Workload:
    """Divide prompts into those of the case, as many for the extension, and those of the warm-up.

    The warm-up doesn't use measured prompts unless no others are left, because some drafters learn
    from the requests that they serve.
    """
    measured_prompts = prompts[: case.request.prompts]
    return Workload(
        prompts=measured_prompts,
        extension=prompts[case.request.prompts : 2 * case.request.prompts],
        warm_up=prompts[2 * case.request.prompts :] or measured_prompts,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a workload is replayed, and the functions that are called on the way.

    Attributes:
        show: is called with a text about each step of the measurement.
        parts: the number of parts into which the prompts are divided, with a look at the acceptance
            after each; None for as many parts as the case has rounds, with one look after the last.
        counts_apart: whether acceptance is needed for parts that can be compared one by one, and
            not only as a sum. If only the counters provide acceptance, this may take a further
            replay.
        power_s: how long each server is kept under load for measuring power, in seconds, if none of
            its rounds took as long. It is used only if the power is sampled.
        watching: the sampler of the devices' power; None to measure no power.
        turn_to: is called with each phase when it begins.
        record: returns the recorder of a round, which is called with each request when it ends.
        clock: a monotonic clock, in nanoseconds.
    """

    show: Callable[[str], None]
    parts: int | None = None
    counts_apart: bool = True
    power_s: float = 0.0
    watching: Watch | None = None
    turn_to: Callable[[Phase], None] = lambda _: None
    record: RecordRound = lambda _arm, _number: lambda _: None
    clock: Clock = time.monotonic_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The measurement of one launch of an arm's server.

    Attributes:
        case: the case that was measured.
        engine_version: the version that the server reported.
        target: the folder or the hub id of the target model.
        draft: the folder or the hub id of the draft model; None without one.
        packages: the packages of the server's environment in the format of `uv pip freeze`.
        facts: what the engine reported about this launch, besides its settings and version.
        replay: all rounds; None if all families are invalid, or if an arm that the others need
            failed before the rounds were complete.
        values: the values of the valid metrics, by name.
        invalid: for each invalid family, the reason why its figures can't be used.
        look: the last look at the acceptance: early, after all prompts of the case, or after the
            extension.
    """

    case: Case
    engine_version: str
    target: str
    draft: str | None
    packages: tuple[str, ...] = ()
    facts: LaunchFacts = NOTHING_KNOWN
    replay: Replay | None = None
    values: Mapping[str, float] = field(default_factory=dict)
    invalid: Invalid = field(default_factory=dict)
    look: Look = Look.FULL

    @property
    def acceptance(self) -> AcceptanceRecord | None:
        """The acceptance; None if it is invalid or the case doesn't speculate."""
        if self.replay is None:
            return None
        return self.replay.acceptance


def measure(arms: Sequence[Arm], workload: Workload, plan: Plan) -> tuple[Measurement, ...]:
    """Measure arms side by side: warm up, then replay the prompts in rounds on each arm in turn.

    The order of the arms changes from round to round; with two arms it is A B, B A. A failed check
    raises no error. It makes some or all families of its arm invalid. The other families and arms
    are measured, except if all families of an arm that the others need are invalid.

    Args:
        arms: the arms. Their cases differ only in their servers, and at most one is the control.
        workload: the prompts.
        plan: how the prompts are replayed.

    Returns:
        The measurement of each arm, in the order of the arms.

    Raises:
        ServerDiedError: a server died.
    """
    idle = _watch_idle(plan)

    # A server may start further processes while it serves, so its processes are listed twice.
    pids = _pids(arms)
    arm_replays, is_complete = run_in_loop(_replay_arms(arms, workload, plan))
    pids |= _pids(arms)
    measurements = []
    for arm_replay in arm_replays:
        measurement = _measurement_of(arm_replay, plan, idle, pids, is_complete=is_complete)
        measurements.append(measurement)
    for arm, measurement in zip(arms, measurements, strict=True):
        # If the server has died, that explains more than the failed check.
        if measurement.invalid:
            arm.server.check_alive()

    return tuple(measurements)


def combine_with_control(measurement: Measurement, control: Measurement) -> Measurement:
    """Add the rounds and the power of the control to the measurement of a case, for its speedup.

    A control that serves several cases continues after a case has ended. Only the rounds in which
    both took part count for the case.
    """
    invalid = dict(measurement.invalid)
    if Family.SPEEDUP in control.invalid:
        invalid.setdefault(Family.SPEEDUP, control.invalid[Family.SPEEDUP])
    if changes_runner(measurement.facts, control.facts):
        invalid.setdefault(Family.SPEEDUP, _runners_differ(measurement, control))
    if measurement.replay is None:
        return dataclasses.replace(measurement, invalid=invalid)
    control_replay = control.replay or Replay()
    power = _combine_power(measurement.replay.power, control_replay.power)

    # The energy ratio compares the two servers as the speedup does, so different model runners
    # spoil it too.
    if power is not None and changes_runner(measurement.facts, control.facts):
        power = msgspec.structs.replace(power, energy_ratio=None)
    control_rounds = control_replay.rounds[: len(measurement.replay.rounds)]
    replay = dataclasses.replace(measurement.replay, control_rounds=control_rounds, power=power)
    values = values_of(measurement.case, replay, invalid)
    return dataclasses.replace(measurement, replay=replay, values=values, invalid=invalid)


def _runners_differ(measurement: Measurement, control: Measurement) -> Reason:
    """Return why the speedup is invalid: part of it would come from different model runners."""
    return Reason.of(
        "RUNNERS_DIFFER",
        case=measurement.case.id,
        runner=measurement.facts.model_runner,
        control_runner=control.facts.model_runner,
    )


def _combine_power(
    case_power: PowerRecord | None, control_power: PowerRecord | None
) -> PowerRecord | None:
    """Return the power of a case and its control, with the ratio of their energies per token."""
    if case_power is None or control_power is None:
        return case_power

    # Without the power of both servers, nothing can be compared.
    if case_power.case is None or control_power.case is None:
        if control_power.invalid is None:
            return case_power
        return PowerRecord(invalid=case_power.invalid or control_power.invalid)

    case_j = case_power.case.energy_j_per_token
    control_j = control_power.case.energy_j_per_token
    energy_ratio = None
    if control_j is not None and case_j:
        energy_ratio = control_j / case_j
    too_short = case_power.too_short or control_power.too_short

    # As in `record_power`, a block that is too short isn't called INVALID.
    invalid = None
    if not too_short:
        invalid = case_power.invalid or control_power.invalid
    return msgspec.structs.replace(
        case_power,
        control=control_power.case,
        energy_ratio=energy_ratio,
        invalid=invalid,
        too_short=too_short,
    )


def values_of(
    case: Case, replay: Replay, invalid: Invalid = MappingProxyType({})
) -> Mapping[str, float]:
    """Return the valid metrics that have a value, by name."""
    values = {}
    for name, metric in METRICS.items():
        if metric.family in invalid or not metric.applies_to(case):
            continue
        value = metric.value_of(replay)
        if value is not None:
            values[name] = value

    return values


def _watch_idle(plan: Plan) -> Span:
    """Leave watched devices idle for some seconds, and return that span; (0, 0) without devices."""
    if plan.watching is None:
        return 0, 0
    plan.show("watching the idle power")
    time.sleep(_SETTLE_S)
    start_ns = time.monotonic_ns()
    time.sleep(_IDLE_S)
    return start_ns, time.monotonic_ns()


def _pids(arms: Sequence[Arm]) -> AbstractSet[int]:
    """Return the ids of the servers' processes, and of all others that this process started."""
    pids = frozenset[int]()
    for arm in arms:
        pids |= arm.server.pids()

    # If there are none, somebody else started the servers, and their processes aren't known.
    if not pids:
        return pids

    # A server that waits for its turn in another measurement holds memory of the devices too.
    return pids | our_ids()


def _measurement_of(
    arm_replay: ArmReplay, plan: Plan, idle: Span, pids: AbstractSet[int], *, is_complete: bool
) -> Measurement:
    """Return the measurement of an arm.

    Args:
        arm_replay: what the arm replayed.
        plan: the plan, with the sampler of the devices' power.
        idle: the span in which no server had requests.
        pids: the process ids of all servers.
        is_complete: whether everything was replayed, because no arm that the others need failed.
    """
    case = arm_replay.arm.case
    server = arm_replay.arm.server
    invalid = arm_replay.invalid
    replay = None
    values: Mapping[str, float] = {}
    if is_complete and invalid.keys() != ALL:
        power = None
        if plan.watching is not None:
            # This may make further families invalid, so it comes before the values.
            power = arm_replay.power(plan.watching, idle, pids)
        replay = Replay(
            rounds=tuple(arm_replay.rounds),
            concurrency=case.load.concurrency,
            acceptance=arm_replay.acceptance,
            limits=case.judging.limits,
            power=power,
        )
        values = values_of(case, replay, invalid)

    return Measurement(
        case=case,
        engine_version=server.engine_version,
        target=server.target,
        draft=server.draft,
        packages=server.packages,
        facts=server.facts,
        replay=replay,
        values=values,
        invalid=invalid,
        look=arm_replay.look,
    )


async def _replay_arms(
    arms: Sequence[Arm], workload: Workload, plan: Plan
) -> tuple[list[ArmReplay], bool]:
    """Replay the workload on all arms.

    Returns:
        The replay of each arm, and whether they are complete because no arm that the others need
        failed.
    """
    async with contextlib.AsyncExitStack() as stack:
        arm_replays = []
        for arm in arms:
            opened = open_clients(arm.case, arm.server.endpoint, clock=plan.clock)
            clients = await stack.enter_async_context(opened)
            arm_replays.append(ArmReplay(arm=arm, clients=clients))
        is_complete = True
        try:
            await _ArmRotation(arm_replays, workload, plan).run()
        except InvalidMeasurementError:
            # The replay of the failed arm contains the reason.
            is_complete = False
        return arm_replays, is_complete


def balanced_orders(arms: int) -> Sequence[Sequence[int]]:
    """Return orders that give each arm each position, and each predecessor, equally often.

    The orders are the rows of a Williams design. Each row is followed by its reverse, so that in
    two rounds each arm comes once before and once after each of the others.

    Args:
        arms: the number of arms, 1 or more.
    """
    # 0, 1, n - 1, 2, n - 2, …: the steps between neighbours are all different.
    first_order = [0]
    for number in range(1, arms):
        half = (number + 1) // 2
        first_order.append(half if number % 2 else arms - half)

    # With an even number of arms the reverses are rows of the same design.
    shifts = arms if arms % 2 else arms // 2
    orders = []
    for shift in range(shifts):
        order = [(arm + shift) % arms for arm in first_order]
        orders += [order, order[::-1]]
    return orders


class _ArmRotation:
    """Lets arms replay a workload in turn, and leaves out arms that fail.

    Attributes:
        arm_replays: the replay of each arm so far, in the order of the arms.
        active: the replays of the arms that haven't failed.
        controls: the replay of the control, in a list; empty if the arms are compared with each
            other.
        workload: the prompts.
        plan: how much of the workload is replayed.
        prompts_of_rounds: the prompts of each round.
        orders: the orders in which the arms take their turns.
        rounds_replayed: how many rounds were replayed; the number of the next one, from 0.
    """

    def __init__(self, arm_replays: Sequence[ArmReplay], workload: Workload, plan: Plan) -> None:
        self.arm_replays = tuple(arm_replays)
        self.active = list(arm_replays)
        self.controls = [replay for replay in arm_replays if replay.arm.is_control]
        self.workload = workload
        self.plan = plan

        # The cases differ in their servers alone, so all of them have the same rounds.
        self.prompts_of_rounds = cut_evenly(
            workload.prompts, plan.parts or arm_replays[0].arm.case.rounds
        )
        self.orders = itertools.cycle(balanced_orders(len(arm_replays)))
        self.rounds_replayed = 0

    async def run(self) -> None:
        """Measure all arms.

        Raises:
            InvalidMeasurementError: an arm failed that the others need.
            ServerDiedError: the server of an arm that the others don't need died.
        """
        await self._warm_up()

        # Measure the acceptance.
        await self._replay_until_enough()

        # Replay the prompts again until the speeds were measured for long enough.
        arm_replays = self._with_too_little(self.active)
        while arm_replays:
            self.plan.show("replaying the prompts again")
            for prompts in self.prompts_of_rounds:
                await self._replay_round(prompts, arm_replays)
            arm_replays = self._with_too_little(arm_replays)

        for arm_replay in self.active:
            with note_invalidity(arm_replay.invalid):
                check_client(arm_replay.rounds)
        if self.plan.watching is not None:
            await self._load_for_power()

    async def _warm_up(self) -> None:
        """Warm up each arm that needs it, and read each arm's counters before its rounds."""
        self.plan.turn_to(Phase.WARMING_UP)

        # A scheduled drafter replays the answers of the target, so it must have seen them.
        measured_prompts = (*self.workload.prompts, *self.workload.extension)
        scheduled = [replay for replay in self.active if replay.arm.case.server.method == SCHEDULED]
        for arm_replay in scheduled:
            await self._attempt(arm_replay, _teach_drafter(arm_replay, measured_prompts))
        cold = [arm_replay for arm_replay in self.active if not arm_replay.arm.warm]
        for arm_replay in cold:
            prompts = self.workload.warm_up
            if arm_replay in scheduled:
                prompts = measured_prompts
            warming = warm_up(arm_replay.arm.case, prompts, arm_replay.clients.replay_under)
            await self._attempt(arm_replay, warming)

        self.plan.turn_to(Phase.MEASURING)
        for arm_replay in tuple(self.active):
            await self._attempt(arm_replay, arm_replay.begin())

    async def _replay_until_enough(self) -> None:
        """Replay the prompts until the acceptance of each arm is enough."""
        for number, prompts in enumerate(self.prompts_of_rounds, start=1):
            self.plan.show(f"round {number} of {len(self.prompts_of_rounds)}")
            await self._replay_round(prompts, self.active)
            is_last = number == len(self.prompts_of_rounds)
            look = Look.FULL if is_last else Look.EARLY
            # Without `plan.parts`, the acceptance is looked at only once, after the last round.
            if self.plan.parts is None and not is_last:
                continue
            if is_last and self.plan.counts_apart:
                for arm_replay in tuple(self.active):
                    await self._attempt(
                        arm_replay, arm_replay.count_in_batches(self.workload.prompts)
                    )
            undecided = await self._look(look)
            if not undecided:
                return
        if self.workload.extension:
            await self._extend([replay for replay in undecided if replay.acceptance is not None])

    async def _look(self, look: Look) -> list[ArmReplay]:
        """Read the acceptance of the active arms, and return the arms for which it isn't enough.

        A control is never among them, because it goes on as long as a case does.
        """
        for arm_replay in tuple(self.active):
            arm_replay.look = look
            await self._attempt(arm_replay, arm_replay.read())
        undecided = []
        for arm_replay in self.active:
            if arm_replay in self.controls:
                continue
            # Without speculation there is nothing to decide before all prompts were replayed.
            is_decided = look is Look.FULL
            if arm_replay.arm.case.speculates:
                is_decided = arm_replay.arm.enough(arm_replay.acceptance, look)
            if not is_decided:
                undecided.append(arm_replay)

        return undecided

    async def _replay_round(
        self, prompts: Sequence[Prompt], arm_replays: Sequence[ArmReplay]
    ) -> None:
        """Replay prompts on the active ones of these arms, in the next order."""
        for index in next(self.orders):
            arm_replay = self.arm_replays[index]
            if arm_replay in arm_replays and arm_replay in self.active:
                record = self.plan.record(index, self.rounds_replayed)
                await self._attempt(arm_replay, arm_replay.replay(prompts, record))
        self.rounds_replayed += 1

    async def _extend(self, arm_replays: Sequence[ArmReplay]) -> None:
        """Replay the extension on these arms, for their acceptance."""
        extension = self.workload.extension
        if arm_replays:
            self.plan.show(f"undecided, replaying {counted(len(extension), 'more prompt')}")
        for arm_replay in arm_replays:
            arm_replay.look = Look.EXTENDED
            # An extension has no number. With the number of the next round, its requests would be
            # taken for those of that round if the prompts are replayed again.
            record = self.plan.record(self.arm_replays.index(arm_replay), None)
            await self._attempt(arm_replay, arm_replay.extend(extension, record))

    async def _load_for_power(self) -> None:
        """Keep each server under load without a pause. If one fails, no power is valid."""
        least_s = self.plan.power_s
        if least_s:
            self.plan.show(f"power, {least_s:g} s of load for each server")
        in_order = [self.arm_replays[index] for index in next(self.orders)]
        loaded = [arm_replay for arm_replay in in_order if arm_replay in self.active]
        try:
            for arm_replay in loaded:
                await arm_replay.replay_block(self.workload.prompts, least_s)
        except InvalidMeasurementError as error:
            for arm_replay in loaded:
                arm_replay.discard_block(error.reason)

    async def _attempt(self, arm_replay: ArmReplay, action: Awaitable[None]) -> None:
        """Await an action on an arm, and leave the arm out if it fails.

        Raises:
            InvalidMeasurementError: the action failed, and the other arms need this one: there is
                no control, or no arm but the control is left.
            ServerDiedError: the action failed because the arm's server died.
        """
        try:
            await action
        except InvalidMeasurementError as error:
            arm_replay.discard(error.reason)
            remaining = [replay for replay in self.active if replay is not arm_replay]
            has_cases = any(replay not in self.controls for replay in remaining)
            if not self.controls or not has_cases:
                raise
            # The check has an event loop of its own, so it needs another thread.
            await asyncio.to_thread(arm_replay.arm.server.check_alive)
            self.active.remove(arm_replay)

    def _with_too_little(self, arm_replays: Sequence[ArmReplay]) -> list[ArmReplay]:
        """Return the arms that have to replay the prompts again, and the arms they are compared to.

        If there is a control, an arm that was measured for long enough drops out, so that a slow
        arm needn't replay the prompts as often as the fastest one has to. The control stays until
        the end. Without a control, all arms stay, because each is compared with the others.

        Args:
            arm_replays: the arms that replayed the prompts last.
        """
        candidates = [replay for replay in self.active if replay in arm_replays]
        too_little = [replay for replay in candidates if self._has_too_little(replay)]
        compared = self.controls or self.arm_replays
        if not too_little:
            return []
        return [replay for replay in candidates if replay in too_little or replay in compared]

    def _has_too_little(self, arm_replay: ArmReplay) -> bool:
        """Return whether the prompts have to be replayed again for the speeds of an arm.

        A drafter that learns never gets them again, because that would change what is measured.
        """
        case = arm_replay.arm.case
        if not case.judging.speed or case.needs_fresh_server:
            return False

        # With a single round, one of the arms has always been the first. If `--num-prompts` changes
        # the number of prompts, no speed is judged, and one round is enough.
        is_compared = len(self.active) > 1 and arm_replay not in self.controls
        if self.rounds_replayed == 1 and is_compared and not case.request.matrix_prompts:
            return True
        compared = [replay for replay in self.controls or self.arm_replays if replay in self.active]
        shortest_ns = min(replay.rounds_ns for replay in (arm_replay, *compared))
        return shortest_ns < arm_replay.arm.least_s * _NS_PER_S


async def _teach_drafter(arm_replay: ArmReplay, prompts: Sequence[Prompt]) -> None:
    """Let a scheduled drafter see the answers to prompts, so that it can draft them later.

    The answers continue beyond their ends, because the drafter drafts beyond them too.

    Raises:
        InvalidMeasurementError: a request failed.
    """
    case = arm_replay.arm.case
    longer_answers = dataclasses.replace(
        case.request,
        output_cap_tokens=case.request.output_cap_tokens + 2 * case.server.draft_tokens,
        ignore_eos=True,
    )
    load = Load(concurrency=batch_size_of(case))
    longer_case = dataclasses.replace(case, request=longer_answers, load=load)
    clients = dataclasses.replace(arm_replay.clients, case=longer_case)
    lesson = await clients.replay(prompts)
    check_requests(lesson.traces)


async def warm_up(
    case: Case,
    prompts: Sequence[Prompt],
    replay_batch: Callable[[Load, Sequence[Prompt]], Awaitable[Round]],
) -> None:
    """Replay batches until their steps get no faster, for at most 10 s after the first batch.

    The first requests of a server are slow, because it creates things on demand; compiling kernels
    takes minutes. A drafter that learns from its requests gets a fixed number of batches instead,
    because its acceptance must not depend on the time. The number is the fewest batches that can
    show steady steps.

    Args:
        case: the case that is measured afterwards.
        prompts: the prompts of the batches, which are repeated as often as needed.
        replay_batch: replays prompts under a load, and returns their round.

    Raises:
        InvalidMeasurementError: a request failed.
    """
    size = batch_size_of(case)
    cycle = itertools.cycle(prompts)
    first_ended_ns = None
    step_times_ns: list[float] = []
    for number in itertools.count(1):
        batch = await replay_batch(Load(concurrency=size), list(itertools.islice(cycle, size)))
        check_requests(batch.traces)
        if first_ended_ns is None:
            first_ended_ns = batch.ended_ns
        if case.needs_fresh_server:
            if number > 2 * _COMPARED:
                return
            continue
        step_time_ns = batch.gaps.quantile_ns(0.5)
        # Answers of one token have no steps.
        if step_time_ns:
            step_times_ns.append(step_time_ns)
        has_no_steps = not step_times_ns and number == _SILENT_BATCHES
        is_time_up = batch.ended_ns - first_ended_ns >= _WARM_UP_NS
        if has_no_steps or is_time_up or is_warm(step_times_ns):
            return


def batch_size_of(case: Case) -> int:
    """Return how many prompts a batch of the warm-up has: one for each request in flight.

    For a request rate, it is the number of requests in a second, or the most requests that the
    server processes at once if that is less.
    """
    rate = math.ceil(case.load.requests_per_s)
    return case.load.concurrency or min(rate, case.server.max_sequences)


def is_warm(step_times_ns: Sequence[float]) -> bool:
    """Return whether the batches have stopped getting faster. It takes at least seven batches.

    The first batch isn't considered, because it includes most of what is created on demand. The
    mean logarithm of the last three step times is compared with that of the three before them. The
    batches are still getting faster if the difference exceeds 2.5 times its standard error, which
    is estimated from their spread. Steady batches exceed it once in thirty times.

    Args:
        step_times_ns: the median step time of each batch.
    """
    later_step_times_ns = step_times_ns[1:]
    recent = [math.log(step_ns) for step_ns in later_step_times_ns[-2 * _COMPARED :]]
    if len(recent) < 2 * _COMPARED:
        return False
    earlier = recent[:_COMPARED]
    later = recent[_COMPARED:]
    variance = statistics.variance(earlier) + statistics.variance(later)
    error = math.sqrt(variance / _COMPARED)
    return statistics.fmean(earlier) - statistics.fmean(later) <= _CLEAR_ERRORS * error


def check_client(rounds: Sequence[Round]) -> None:
    """Check that the client kept up: it sent requests when they were due, and read chunks at once.

    The median lateness is checked, because medians are judged and short pauses of a shared machine
    don't affect them. A client that can't keep up is late all the time.

    A request may be sent late by 5 ms, or by 5 % of the median TTFT if that is longer.

    The client's event loop may wake late by 5 ms, or by 5 % of the shorter one of two times if that
    is longer: the median TTFT, and the median time from the first to the last chunk. It may never
    wake late by more than 20 ms, because a client that is kept from running also makes both times
    longer.

    Chunks less than 0.1 ms apart have waited for the client or for the server's front end.

    Raises:
        InvalidMeasurementError: `CLIENT_BEHIND`.
    """
    # Collect the times that the client measured.
    traces = [trace for replayed_round in rounds for trace in replayed_round.traces]
    delays_ns = [trace.sent_ns - trace.planned_ns for trace in traces]
    waits_ns = [trace.first_ns - trace.sent_ns for trace in traces if trace.first_ns]
    answer_times_ns = []
    step_times_ns = []
    for trace in traces:
        later_chunks = sum(trace.chunk_sizes)
        if trace.first_ns and trace.last_ns and later_chunks:
            answer_time_ns = trace.last_ns - trace.first_ns
            answer_times_ns.append(answer_time_ns)
            step_times_ns.append(answer_time_ns / later_chunks)

    # Check that it read chunks and sent requests in time.
    _check_chunks_apart(statistics.median(step_times_ns or [math.inf]))
    wait_ns = statistics.median(waits_ns or [0])
    _check_lateness("sent requests", statistics.median(delays_ns), _LATE_FRAC * wait_ns)

    # Check that its event loop woke in time, if it was watched for long enough. A loop that stalls
    # has few beats, so the time that they cover is compared and not their number.
    lags = TimeHistogram.merged(replayed_round.lags for replayed_round in rounds)
    covered_ns = lags.size * BEAT_NS + lags.total_ns
    lag_ns = 0.0
    if covered_ns >= _ENOUGH_BEATS_NS:
        lag_ns = lags.quantile_ns(0.5)
    answer_ns = statistics.median(answer_times_ns or [wait_ns])
    tolerated_lag_ns = min(_LATE_FRAC * min(wait_ns, answer_ns), _MAX_LATE_NS)
    _check_lateness("woke", lag_ns, tolerated_lag_ns)


def _check_chunks_apart(step_ns: float) -> None:
    """Check that the median time between chunks is long enough for a step of a model."""
    if step_ns < _LEAST_STEP_NS:
        raise InvalidMeasurementError("ANSWERS_AT_ONCE", apart_ms=step_ns / 1e6)


def _check_lateness(action: str, late_ns: float, tolerated_ns: float) -> None:
    """Check that the client's median lateness is at most 5 ms, or at most the tolerated time."""
    limit_ns = max(_LATE_NS, tolerated_ns)
    if late_ns > limit_ns:
        raise InvalidMeasurementError(
            "CLIENT_BEHIND", action=action, late_ms=late_ns / 1e6, limit_ms=limit_ns / 1e6
        )
