"""Do what a plan says: start servers, measure cases on them, and check the cases.

`Executor` takes the steps of a night, a gate or a soak until none is left, and `NightExecutor`
executes those of a night. What a step results in is data: a failure of a case is an entry of the
ledger like a measurement.
"""

import abc
import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from specreg.core.errors import (
    HungError,
    InvalidMeasurementError,
    MemoryHeldError,
    ServerDiedError,
    SpecregError,
)
from specreg.core.interrupts import check_signalled
from specreg.core.reasons import Reason
from specreg.core.timeline import Phase, Timeline
from specreg.correctness.checks import CHECKS, ControlAnswers, CorrectnessCheck, RunningCase
from specreg.correctness.oracle_client import predict_drafts
from specreg.matrix.case import Case
from specreg.matrix.models import resolve_model
from specreg.matrix.prompts import load_case_prompts
from specreg.measurement.arm import Arm, StoppingRule, has_all_prompts
from specreg.measurement.measure import (
    Measurement,
    Plan,
    RecordRound,
    Workload,
    combine_with_control,
    measure,
    workload_of,
)
from specreg.runs.goals import CaseGoal, CaseLaunch, EngineCheck
from specreg.runs.ledger import Checked, FailedLaunch, Key, Ledger, LedgerEntry, MeasuredLaunch
from specreg.runs.plan import NightStep
from specreg.servers.handle import ServerHandle, Servers
from specreg.servers.launch import Launch
from specreg.servers.provision import Provision
from specreg.stats.intervals import PARTS
from specreg.telemetry.sampler import Watch, watch
from specreg.verdicts.verdict import Verdict

CompareVersions = Callable[[EngineCheck], Sequence[Verdict]]
"""Measures both versions on the case of a check, and returns the verdicts of the gate."""
MeasureArms = Callable[[Sequence[Arm], Workload, Plan], Sequence[Measurement]]
"""Measures arms that take turns, as `measure` does."""
StepT = TypeVar("StepT")


class TakenStep(NamedTuple, Generic[StepT]):
    """A step that was taken, whatever came of it, and how long it took, in seconds."""

    step: StepT
    lasted_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How the cases of a night are measured.

    Attributes:
        key_of: returns the key of a case on a launch with a number, from 1.
        enough_of: returns the rule that stops or extends the measurement of a case on a launch;
            None if the acceptance does neither.
        least_s_of: returns how long the servers of a case must be under load at least, in seconds.
    """

    key_of: Callable[[Case, int], Key]
    enough_of: Callable[[Case, int], StoppingRule | None]
    least_s_of: Callable[[Case], float]


@dataclass(slots=True, kw_only=True)
class Executor(abc.ABC, Generic[StepT]):
    """Starts servers on this machine, and measures on them, step after step.

    Attributes:
        root: the root of the repository.
        servers: starts and stops the servers.
        ledger: gets each request when it ends, and what each step results in.
        measure_arms: measures arms side by side.
        clock_s: a monotonic clock, in seconds.
        taken: the steps of this process so far.
    """

    root: Path
    servers: Servers
    ledger: Ledger
    measure_arms: MeasureArms = measure
    clock_s: Callable[[], float] = time.monotonic
    taken: list[TakenStep[StepT]] = field(default_factory=list)

    @abc.abstractmethod
    def execute(self, step: StepT) -> Iterator[LedgerEntry]:
        """Execute a step, and yield each entry of the ledger once it is known."""

    def take_steps(
        self, next_step: Callable[[], StepT | None], on_taken: Callable[[StepT], None] | None = None
    ) -> None:
        """Take steps until none is left, and add what each results in to the ledger.

        Args:
            next_step: returns the next step, by what the ledger has; None at the end.
            on_taken: called with each step after it was taken.

        Raises:
            SpecregError: nothing more can be measured, or the ledger can't be written.
        """
        while step := next_step():
            began_s = self.clock_s()
            self.ledger.extend(self.execute(step))
            self.taken.append(TakenStep(step, self.clock_s() - began_s))
            if on_taken is not None:
                on_taken(step)


def hangs(measurement: Measurement) -> bool:
    """Return whether a measurement is invalid because its server hangs."""
    return any(reason.code == "HUNG" for reason in measurement.invalid.values())


@dataclass(slots=True, kw_only=True)
class NightExecutor(Executor[NightStep | EngineCheck]):
    """Executes the steps of a night on this machine.

    Attributes:
        run_folder: the folder of the run, which gets the record of the devices' power.
        provision: where the engines come from.
        settings: how the cases are measured.
        timeline: records how long each phase takes.
        compare: measures two versions of an engine beside each other.
        on_begin: called with the name of a case on a launch before it is measured or checked.
        count: returns recorders of requests that also count them, given the number of requests in
            flight.
        checks: the correctness checks, by name.
        _control_answers: the answers of controls, which several checks need.
    """

    run_folder: Path
    provision: Provision
    settings: Settings
    timeline: Timeline
    compare: CompareVersions
    on_begin: Callable[[str], None] = lambda _: None
    count: Callable[[int, RecordRound], RecordRound] = lambda _, record: record
    checks: Mapping[str, CorrectnessCheck] = field(default_factory=lambda: CHECKS)
    _control_answers: ControlAnswers = field(default_factory=dict)

    def execute(self, step: NightStep | EngineCheck) -> Iterator[LedgerEntry]:
        """Execute a step, and yield each entry of the ledger once it is known.

        Raises:
            MemoryHeldError: the memory of a GPU isn't free, so nothing more can be measured there.
            SpecregError: a server of an earlier step can't be stopped, or the ledger can't be
                written.
        """
        began_s = self.clock_s()
        if isinstance(step, EngineCheck):
            yield from self._compare(step)
            return

        launch = step.launches[0]
        own = {name for case in step.launches for name in (case.server, case.control)}
        self.servers.stop_others(step.keeps | own)
        phase: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if step.is_further:
            name = f"{launch.server.id} on a fresh launch"
            phase = self.timeline.during(Phase.CONFIRMING, launch.server.id, of=name)
        with phase:
            self.on_begin(launch.name)
            try:
                yield from self._check(step) if step.check else self._measure(step)
            except MemoryHeldError:
                raise
            except SpecregError as error:
                self._stop_after(error, launch)
                yield _failed(launch, error, step.check, lasted_s=self.clock_s() - began_s)

    def _measure(self, step: NightStep) -> Iterator[LedgerEntry]:
        """Measure the cases of a step side by side.

        Yields:
            The measurements, and a failure for each case whose server didn't start beside others.

        Raises:
            SpecregError: the first case can't be measured.
        """
        began_s = self.clock_s()
        launch = step.launches[0]

        # The settings of a case may be unreadable, which must not cost the start of its server.
        self.settings.key_of(launch.case, launch.number)
        goals = [step.goals[0]]
        if len(step.goals) > 1:
            goals = self._fitting(step)
            failed = self._start_beside([CaseLaunch.of(goal.case, step.number) for goal in goals])
            yield from failed.values()
            goals = [goal for goal in goals if goal.case.id not in failed]

        is_beside_others = len(goals) > 1
        if not is_beside_others:
            self._start(launch, with_control=goals[0].speed)

        try:
            measurements = self._measure_once(goals, launch)
        except ServerDiedError as error:
            for goal in goals:
                self._stop_after(error, CaseLaunch.of(goal.case, step.number))
            yield _failed(
                launch, error, is_beside_others=is_beside_others, lasted_s=self.clock_s() - began_s
            )
            return

        lasted_s = (self.clock_s() - began_s) / len(goals)
        for measurement in measurements:
            # If all other cases failed, a control that is a case itself has neither a replay nor a
            # reason. It is measured again alone.
            if is_beside_others and measurement.replay is None and not measurement.invalid:
                yield _failed(
                    CaseLaunch.of(measurement.case, step.number),
                    SpecregError(f"{measurement.case.id}: the cases measured beside it failed"),
                    is_beside_others=True,
                    lasted_s=lasted_s,
                )
                continue
            self.on_begin(CaseLaunch.of(measurement.case, step.number).name)
            yield MeasuredLaunch(
                case_id=measurement.case.id,
                number=step.number,
                measurement=measurement,
                lasted_s=lasted_s,
            )

    def _fitting(self, step: NightStep) -> list[CaseGoal]:
        """Return the first case of a step, and the later ones whose servers fit into memory too."""
        first = step.launches[0]
        specs = dict.fromkeys((first.control.spec, first.server.spec))
        goals = [step.goals[0]]
        for goal in step.goals[1:]:
            with_case = {**specs, goal.case.server: None}
            if self.servers.fit_beside(list(with_case)):
                specs = with_case
                goals.append(goal)

        return goals

    def _start_beside(self, launches: Sequence[CaseLaunch]) -> dict[str, FailedLaunch]:
        """Start the servers of cases, and return the later cases that can't be measured now.

        The other servers may have left too little memory for such a case. It is measured alone
        later.

        Raises:
            SpecregError: the server of the first case or its control didn't start.
        """
        first, *others = launches
        needed = dict.fromkeys((first.server, first.control))
        further = [launch.server for launch in others if launch.server not in needed]
        self._start_all(list(needed), further)
        failed = {}
        for launch in others:
            try:
                self.settings.key_of(launch.case, launch.number)
                _ = self.servers.handle(launch.server).server
            except SpecregError as error:
                self.servers.handle(launch.server).forget_failure()
                failed[launch.case.id] = _failed(launch, error, is_beside_others=True)

        return failed

    def _measure_once(self, goals: Sequence[CaseGoal], first: CaseLaunch) -> list[Measurement]:
        """Measure cases side by side on servers that are ready, and record them in the ledger.

        Args:
            first: the first of them on its launch, which has the control of all.

        Returns:
            The measurement of each case, with its speedup if it has one.
        """
        # Make an arm of each case, and one of the control unless it is a case itself.
        launches = [CaseLaunch.of(goal.case, first.number) for goal in goals]
        handles = [self.servers.handle(launch.server) for launch in launches]
        control = self._control(goals, first)
        arms = [
            self._arm(launch, is_control=handle is control)
            for launch, handle in zip(launches, handles, strict=True)
        ]
        if control is not None and control not in handles:
            handles.append(control)
            arms.append(_control_arm(first.case, control))

        # The key in the ledger has the packages of the engines' environments. In a first run these
        # exist only once the servers have been started, so the entry can't begin any earlier.
        keys = [self.settings.key_of(launch.case, launch.number) for launch in launches]

        # A server and its control are a pair, which has the id of the server's launch.
        pair_ids = [launch.server.id for launch in launches]
        with (
            self.timeline.during(Phase.MEASURING, *pair_ids, of=first.name),
            self._watching(goals[0], first.name) as watching,
        ):
            plan = self._plan(goals[0], arms[0], watching)
            prompts = load_case_prompts(self.root, first.case)
            workload = workload_of(first.case, prompts)
            self.ledger.begin(*keys)
            measurements = self.measure_arms(arms, workload, plan)

        # Stop the servers that hung, and note which of the others are warm.
        for handle, measurement in zip(handles, measurements, strict=True):
            if hangs(measurement):
                handle.stop()
            elif not measurement.invalid:
                # A warm-up takes as long as a measurement, and many cases share a control.
                handle.warm_for.add((first.case.request.dataset, first.case.load))

        control_index = None if control is None else handles.index(control)
        return self._record_end(arms[: len(goals)], measurements, control_index)

    def _record_end(
        self, arms: Sequence[Arm], measurements: Sequence[Measurement], control_index: int | None
    ) -> list[Measurement]:
        """Record in the ledger that measurements ended, and return them with their speedups.

        Args:
            arms: the arm of each case.
            measurements: the measurements of the cases, and then that of the control unless it is
                one of them.
            control_index: the index of the control's measurement; None without a control.
        """
        ended = []
        for index, arm in enumerate(arms):
            measurement = measurements[index]
            case_control_index = None if arm.is_control else control_index
            if case_control_index is not None:
                measurement = combine_with_control(measurement, measurements[case_control_index])
            self.ledger.end(measurement, arm_number=index, control_number=case_control_index)
            ended.append(measurement)

        return ended

    def _control(self, goals: Sequence[CaseGoal], first: CaseLaunch) -> ServerHandle | None:
        """Return the control of cases, which may be the server of one of them.

        A case that is measured alone has none unless its speedup is measured.
        """
        has_control = first.case.control is not None and goals[0].speed
        if has_control or len(goals) > 1:
            return self.servers.handle(first.control)
        return None

    def _arm(self, launch: CaseLaunch, *, is_control: bool) -> Arm:
        """Return the arm that measures a case."""
        case = launch.case
        handle = self.servers.handle(launch.server)
        return Arm(
            case=case,
            server=handle.server,
            is_control=is_control,
            warm=(case.request.dataset, case.load) in handle.warm_for,
            enough=self.settings.enough_of(case, launch.number) or has_all_prompts,
            least_s=self.settings.least_s_of(case),
        )

    def _plan(self, goal: CaseGoal, arm: Arm, watching: Watch | None) -> Plan:
        """Return the plan of a measurement, with the functions that record and show its progress.

        Args:
            goal: the first case.
            watching: samples the power of the servers' devices; None if power isn't measured.
        """
        case = goal.case

        # Acceptance may be decided after a part of the prompts, but a speed needs all prompts.
        looks_early = arm.enough is not has_all_prompts and not goal.needs_all_prompts
        return Plan(
            show=self._show_or_stop,
            parts=PARTS if looks_early else None,
            turn_to=self.timeline.turn_to,
            record=self.count(case.load.concurrency, self.ledger.record_round),
            power_s=case.judging.power_s if goal.power else 0.0,
            watching=watching,
        )

    def _show_or_stop(self, text: str) -> None:
        """Show a line of progress, and stop if a signal came.

        Raises:
            KeyboardInterrupt: a signal came.
        """
        # An interrupt is lost if it is raised in a finalizer, so signals are looked for here too. A
        # line is shown at least once a round.
        check_signalled()
        self.provision.show(text)

    def _watching(
        self, goal: CaseGoal, name: str
    ) -> contextlib.AbstractContextManager[Watch | None]:
        """Return a context that samples the power of a case.

        The context yields None if the case isn't timed, or if its power can't be read.
        """
        case = goal.case
        is_timed = case.judging.speed and goal.speed
        if not is_timed or self.provision.why_no_power(case.server):
            return contextlib.nullcontext()
        path = self.run_folder / "power" / f"{name}.jsonl"
        return watch(self.provision.devices(case.server), path)

    def _check(self, step: NightStep) -> Iterator[LedgerEntry]:
        """Make the correctness check of a step.

        Raises:
            ServerDiedError: an answer is missing because a server died.
            SpecregError: a server didn't start, or an answer is invalid.
        """
        launch = step.launches[0]
        case = launch.case
        with self.timeline.during(
            Phase.CHECKING, launch.server.id, of=f"{step.check} of {case.id}"
        ):
            self.settings.key_of(case, launch.number)
            self._start(launch, with_control=True)
            running = self._running(launch)
            try:
                verdict = self.checks[step.check].check(running)
            except InvalidMeasurementError:
                # If a server died, that explains the invalid answer. `check_alive` then raises
                # ServerDiedError, for which the check is made again.
                for server in filter(None, (running.server, running.control)):
                    server.check_alive()
                raise
            # The key has the packages of the engine's environment, which a first run installs only
            # when the server starts. So the key is made again.
            yield Checked.of(self.settings.key_of(case, launch.number), step.check, verdict)

    def _compare(self, check: EngineCheck) -> Iterator[LedgerEntry]:
        """Measure two versions of an engine, and yield what was found of each metric, or why not.

        If something goes wrong here, or the user interrupts it, the verdicts stay those of the
        night alone.
        """
        try:
            self.servers.stop()
            with self.timeline.during(Phase.CONFIRMING, str(check.change), of=str(check)):
                verdicts = self.compare(check)
            key = self.settings.key_of(check.case, 1)
        except KeyboardInterrupt:
            reason = Reason.of("engine_interrupted")
        except Exception as error:  # noqa: BLE001 - a gate on top must lose no verdict
            reason = Reason.of("engine_unmeasured", error=error)
        else:
            found = [verdict for verdict in verdicts if verdict.metric in check.tolerances]
            for verdict in found:
                yield Checked.of(key, check.name_of(verdict.metric), verdict)
            if len(found) == len(check.tolerances):
                return
            reason = Reason.of("engine_unmeasured", error="the gate left a metric out")
        yield FailedLaunch(case_id=check.case.id, number=1, check=str(check.change), reason=reason)

    def _running(self, launch: CaseLaunch) -> RunningCase:
        """Return a case whose servers are ready."""
        case = launch.case
        measured = self.ledger.find(case.id, launch.number)
        draft = case.server.draft
        return RunningCase(
            case=case,
            server=self.servers.handle(launch.server).server,
            control=self.servers.handle(launch.control).server
            if case.control is not None
            else None,
            # Without the prompts of an extension.
            prompts=load_case_prompts(self.root, case)[: case.request.prompts],
            predict_drafts=functools.partial(
                predict_drafts, on_gpu=self.provision.on_gpu, show=self.provision.show
            ),
            models=(
                resolve_model(self.root, case.server.target),
                resolve_model(self.root, draft) if draft else None,
            ),
            control_answers=self._control_answers,
            replay=measured.measurement.replay if measured else None,
        )

    def _start(self, launch: CaseLaunch, *, with_control: bool) -> None:
        """Start the servers of a case that aren't ready, and wait until they are.

        Raises:
            SpecregError: one of them didn't start.
        """
        launches = [launch.server]
        if with_control and launch.case.control is not None:
            launches.append(launch.control)
        self._start_all(launches)

    def _start_all(self, needed: Sequence[Launch], further: Sequence[Launch] = ()) -> None:
        """Start servers that aren't ready, and wait until they are.

        Args:
            needed: the server of a case, and its control.
            further: servers of cases that are measured beside it. If one of these fails, no error
                is raised here.

        Raises:
            SpecregError: one of the servers that are needed didn't start.
        """
        to_start = [launch for launch in needed if not self.servers.handle(launch).is_ready]
        more_to_start = [launch for launch in further if not self.servers.handle(launch).is_ready]
        if not to_start and not more_to_start:
            return
        names = " and ".join(launch.id for launch in (*to_start, *more_to_start))
        pair_ids = [needed[0].id, *(launch.id for launch in more_to_start)]
        with self.timeline.during(Phase.STARTING, *pair_ids, of=names):
            # The control starts first, because no case can be measured without it.
            self.servers.start_all(
                [self.servers.handle(launch) for launch in reversed(to_start)],
                [self.servers.handle(launch) for launch in more_to_start],
            )

    def _stop_after(self, error: SpecregError, launch: CaseLaunch) -> None:
        """Stop the servers of a case that are dead, or all of them if one hangs."""
        for name in dict.fromkeys((launch.server, launch.control)):
            if isinstance(error, HungError):
                # The next case would wait for it just as long.
                self.servers.handle(name).stop()
            elif isinstance(error, ServerDiedError):
                self.servers.handle(name).stop_if_dead()


def _control_arm(case: Case, control: ServerHandle) -> Arm:
    """Return the arm of a control that is no case itself."""
    return Arm(
        case=case.control_case,
        server=control.server,
        is_control=True,
        warm=(case.request.dataset, case.load) in control.warm_for,
    )


def _failed(
    launch: CaseLaunch,
    error: SpecregError,
    check: str = "",
    *,
    is_beside_others: bool = False,
    lasted_s: float = 0.0,
) -> FailedLaunch:
    """Return the entry of a case that couldn't be measured or checked."""
    return FailedLaunch(
        case_id=launch.case.id,
        number=launch.number,
        check=check,
        reason=error.reason,
        server_died=isinstance(error, ServerDiedError),
        is_beside_others=is_beside_others,
        lasted_s=lasted_s,
        error=error,
    )
