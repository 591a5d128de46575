"""Measure and check the cases of a run on their servers, each at most once.

Cases that differ only in their speculation are measured side by side with one control, as far as
their servers fit into memory. The measurement of a case that was measured together with an earlier
one is kept here until the case's own tests come. So the tests have the same order, however many
servers fit into memory.
"""

import contextlib
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from specreg.acceptance.record import AcceptanceRecord
from specreg.core.errors import (
    BaselineError,
    HungError,
    InvalidMeasurementError,
    MemoryHeldError,
    ServerDiedError,
    SpecregError,
)
from specreg.core.interrupts import check_signalled
from specreg.core.reasons import Reason
from specreg.core.timeline import Phase, RunTime, Timeline
from specreg.correctness.checks import ControlAnswers, CorrectnessCheck, RunningCase
from specreg.correctness.oracle_client import predict_drafts
from specreg.matrix.case import Case
from specreg.matrix.models import resolve_model
from specreg.matrix.prompts import load_case_prompts
from specreg.measurement.arm import Arm, StoppingRule, has_all_prompts
from specreg.measurement.measure import (
    Measurement,
    Plan,
    Workload,
    combine_with_control,
    measure,
    workload_of,
)
from specreg.report.progress import RunProgress
from specreg.runs.goals import CaseLaunch
from specreg.runs.ledger import Checked, Key, Ledger, MeasuredLaunch
from specreg.servers.handle import ServerHandle, Servers
from specreg.servers.launch import Launch
from specreg.servers.server import Server
from specreg.stats.intervals import PARTS, Look
from specreg.suite.companions import Companions, Member
from specreg.suite.context import RunContext
from specreg.suite.ledger_key import ledger_key
from specreg.suite.selection import Selection, least_time_s
from specreg.suite.server_set import ServerSet
from specreg.telemetry.identity import find_gpus
from specreg.telemetry.sampler import Watch, watch
from specreg.verdicts.stopping import enough_for
from specreg.verdicts.verdict import Verdict

_ATTEMPTS = 2
"""The most times that a case is measured alone, or checked, if its server dies meanwhile."""
_ResultT = TypeVar("_ResultT")
MeasureArms = Callable[[Sequence[Arm], Workload, Plan], Sequence[Measurement]]
"""Measures arms that take turns, as `measure` does."""


class CaseSource(Protocol):
    """Where the measurements of a run come from: its servers, or the folders of its shards.

    Attributes:
        ledger: The launches measured so far.
        retried: A sentence for each case that was measured or checked twice, because a server died.
    """

    ledger: Ledger
    retried: list[str]

    def measure(self, case: Case, servers: ServerSet) -> Measurement:
        """Return the measurement of a case on a launch.

        Raises:
            SpecregError: The case couldn't be measured.
        """

    def check(self, check: CorrectnessCheck, case: Case, servers: ServerSet) -> Verdict:
        """Return the verdict of a correctness check.

        Raises:
            SpecregError: The check couldn't be made.
        """

    def measure_afresh(
        self, cases: Sequence[Case], number: int
    ) -> Mapping[str, Measurement | Reason]:
        """Return the measurement of each case on a further launch, or why there is none."""

    def measure_remaining(self, case_launches: Sequence[CaseLaunch], servers: ServerSet) -> None:
        """Measure cases on planned launches that no test has needed so far.

        Args:
            case_launches: The cases, in the order of the run. A case that can't be measured is left
                out, and raises its error in its own test.
            servers: The servers of the present test, whose control may be that of the first cases.

        Raises:
            MemoryHeldError: The memory of a GPU isn't free, so nothing more can be measured there.
        """

    def stop(self) -> None:
        """Stop all servers."""

    def ledger_of(self, case: Case, number: int) -> Path | None:
        """Return the ledger from which a case's measurement on a launch was read.

        Returns:
            None if this process measured the case on that launch.
        """

    def machine_of(self, case_id: str) -> str:
        """Return the identity of the machine that measured a case; empty if unknown."""

    @property
    def time(self) -> RunTime:
        """How the time of the run was spent so far."""

    @property
    def driver_version(self) -> str:
        """The version of the GPUs' driver; empty without a GPU."""

    def torch_version(self, case: Case) -> str:
        """Return the version of torch that a case's engine runs with; empty if it isn't known."""


@dataclass(slots=True, kw_only=True)
class CaseRunner:
    """Measures and checks cases on their servers, each at most once.

    If a server dies meanwhile, its case is measured again on a fresh server. If an interrupted run
    is resumed, its measurements are taken over.

    Attributes:
        context: What is fixed for the run.
        selection: The metrics and checks that the tests need.
        servers: Starts and stops the servers.
        ledger: Records what is measured, and has what the run that is resumed had measured.
        timeline: Records how long each phase takes.
        progress: Shows the current case, and counts its requests.
        on_new_case: Called before a case is measured or checked on a launch for the first time.
        measure_arms: Measures cases and their control side by side.
        retried: A sentence for each case that was measured or checked twice.
        _failed: The error of each case and check that failed, by name.
        _control_answers: The answers of controls, which several checks need.
        _measured_ahead: The measurements of cases that were measured together with an earlier case,
            by case id and launch. Each stays until the tests of its case need it.
        _companions: Finds the cases that are measured together.
    """

    context: RunContext
    selection: Selection
    servers: Servers
    ledger: Ledger
    timeline: Timeline
    progress: RunProgress = field(default_factory=RunProgress)
    on_new_case: Callable[[], None] = lambda: None
    measure_arms: MeasureArms = measure
    retried: list[str] = field(default_factory=list)
    _failed: dict[str, SpecregError] = field(default_factory=dict)
    _control_answers: ControlAnswers = field(default_factory=dict)
    _measured_ahead: dict[tuple[str, int], Measurement] = field(default_factory=dict)
    _companions: Companions = field(init=False)

    def __post_init__(self) -> None:
        self._companions = Companions(
            context=self.context, selection=self.selection, servers=self.servers
        )

    def machine_of(self, case_id: str) -> str:
        """Return the identity of this machine, which measures all cases."""
        del case_id
        return self.context.machine

    @property
    def time(self) -> RunTime:
        """How the time of the run was spent so far."""
        return self.timeline.so_far()

    @property
    def driver_version(self) -> str:
        """The version of the driver of this machine's GPUs; empty without a GPU."""
        return find_gpus().driver_version

    def torch_version(self, case: Case) -> str:
        """Return the version of torch that a case's engine runs with; empty if it isn't known.

        Raises:
            SpecregError: The engine's environment doesn't exist yet, and can't be made.
        """
        return self.context.provision.torch_version(case.server)

    def measure(self, case: Case, servers: ServerSet) -> Measurement:
        """Measure a case on a launch, or take over the measurement of the resumed run.

        Raises:
            SpecregError: The case can't be measured, for example because a server didn't start or
                died twice. Further calls for the same case and launch raise the same error.
        """
        number = servers.launch.number
        launch = self.ledger.find(case.id, number)
        if launch is None:
            name = servers.launch.case_id(case)
            launch = self._at_most_once(name, lambda: self._measure(case, servers))
            self.ledger.add(launch)
        return launch.measurement

    def ledger_of(self, case: Case, number: int) -> Path | None:
        """Return the ledger of the resumed run if a measurement was taken over from it."""
        launch = self.ledger.find(case.id, number)
        return self.ledger.path if launch is not None and launch.is_resumed else None

    def _at_most_once(self, name: str, attempt: Callable[[], _ResultT]) -> _ResultT:
        """Make an attempt and return its result, or raise the error of an earlier attempt again."""
        if name in self._failed:
            raise self._failed[name]
        try:
            return attempt()
        except SpecregError as error:
            self._failed[name] = error
            raise

    def _measure(self, case: Case, servers: ServerSet) -> MeasuredLaunch:
        """Measure a case, or take its measurement over from the resumed run or an earlier case."""
        number = servers.launch.number
        name = servers.launch.case_id(case)
        self._begin(name)
        # The resumed run may have measured the case.
        key = self._key(case, number)
        if key in self.ledger.recorded.measured:
            return MeasuredLaunch(
                case_id=case.id,
                number=number,
                measurement=self.ledger.recorded.measured[key],
                is_resumed=True,
            )
        # This case may have been measured together with an earlier one. If not, it is measured now,
        # together with later cases if possible, because one control then serves all of them.
        measurement: Measurement | None = None
        if (case.id, number) in self._measured_ahead:
            measurement = self._measured_ahead.pop((case.id, number))
        elif self.selection.needs_speed(case):
            measurement = self._measure_with_companions(case, servers)
        if measurement is None:
            measurement = self._measure_alone(case, servers)
        return MeasuredLaunch(case_id=case.id, number=number, measurement=measurement)

    def _measure_alone(self, case: Case, servers: ServerSet) -> Measurement:
        """Measure a case with its control and no other case; once more if a server dies."""
        if not self.selection.needs_speed(case):
            # Only the speedup needs the control.
            servers = servers.without_control

        def measure_once() -> Measurement:
            self._start_servers(servers)
            (measurement,) = self._measure_once([Member(case, servers.server)], servers.control)
            return measurement

        name = servers.launch.case_id(case)
        return self._retry(measure_once, servers, remark=f"{name}: measured again")

    def _measure_with_companions(self, case: Case, servers: ServerSet) -> Measurement | None:
        """Measure a case side by side with later cases that have the same control.

        Returns:
            The measurement of the case; None if the case must be measured alone, because there are
            no such cases, none of their servers started, a server died, or the case is the control
            itself and all other cases failed.

        Raises:
            SpecregError: The server of the case or its control didn't start, or the cases can't be
                measured.
        """
        # Start the servers of all cases.
        launch = servers.launch
        control = servers.control or servers.server
        members = [Member(case, servers.server)]
        companions = self._companions.of(
            case, launch, control, lambda later: self._is_pending(later, launch.number)
        )
        if companions:
            self._start_servers(servers, [member.handle for member in companions])
        for member in companions:
            if member.handle.is_ready:
                members.append(member)
                continue
            # The other servers may have left too little memory for this one. Its case is measured
            # alone later.
            self._companions.keep_apart(member.handle.launch)
            member.handle.forget_failure()
        if len(members) == 1:
            return None
        # Measure them.
        try:
            measurements = self._measure_once(members, control)
        except ServerDiedError as error:
            # From now on, the cases with this control are measured alone. If a server dies again,
            # only its own case has to be repeated.
            self._companions.keep_apart(control.launch)
            for handle in (control, *(member.handle for member in members)):
                handle.stop_if_dead()
            self.retried.append(f"{launch.case_id(case)}: measured again, {error.head}")
            return None
        # Set the measurements of the later cases aside.
        for member, measurement in zip(members, measurements, strict=True):
            # A control that is a case itself has neither a replay nor a reason if all other cases
            # failed. It is measured again later.
            if measurement.replay is not None or measurement.invalid:
                self._measured_ahead[member.key] = measurement
        return self._measured_ahead.pop(members[0].key, None)

    def _is_pending(self, case: Case, number: int) -> bool:
        """Return whether a case still has to be measured on the launch with a number, from 1."""
        is_measured = (case.id, number) in self._measured_ahead
        if is_measured or self.ledger.find(case.id, number) is not None:
            return False
        try:
            return self._key(case, number) not in self.ledger.recorded.measured
        except SpecregError:
            # Its models or prompts can't be read. Its own tests will fail with that error.
            return False

    def _key(self, case: Case, number: int) -> Key:
        return ledger_key(case, number, self.selection, self.context)

    def _begin(self, name: str) -> None:
        """Show which case is measured or checked now, and call `on_new_case` if it is new."""
        if self.progress.begin(name):
            self.on_new_case()

    def _retry(
        self, attempt: Callable[[], _ResultT], servers: ServerSet, *, remark: str
    ) -> _ResultT:
        """Make an attempt, and another one on a fresh server if a server dies meanwhile.

        Args:
            attempt: The function to call.
            servers: The servers that it uses.
            remark: The beginning of the report's sentence about a second attempt; the reason is
                appended.

        Raises:
            ServerDiedError: A server died in the last attempt.
            HungError: A server hung.
            SpecregError: The attempt failed in another way, which isn't tried again.
        """
        # specreg can't restart a server that others have started.
        attempts_left = 1 if self.context.provision.attached is not None else _ATTEMPTS
        while True:
            try:
                return attempt()
            except ServerDiedError as error:
                attempts_left -= 1
                servers.stop_dead()
                if not attempts_left:
                    raise
                self.retried.append(f"{remark}, {error.head}")
            except HungError:
                # The server is stopped, because the next case would wait for it just as long.
                servers.stop()
                raise

    def _measure_once(
        self, members: Sequence[Member], control: ServerHandle | None
    ) -> list[Measurement]:
        """Measure cases side by side, and record them in the ledger. Their servers must be ready.

        Args:
            members: The cases.
            control: The control of all cases, which may be the server of one of them; None to
                measure a single case without a control.

        Returns:
            The measurement of each case, with its speedup if it has one.
        """
        # Make an arm of each case, and one of the control unless it is a case itself.
        case = members[0].case
        launch = members[0].handle.launch
        name = launch.case_id(case)
        handles = [member.handle for member in members]
        arms = [self._arm(member, is_control=member.handle is control) for member in members]
        if control is not None and control not in handles:
            handles.append(control)
            arms.append(
                Arm(
                    case=case.control_case,
                    server=control.server,
                    is_control=True,
                    warm=(case.request.dataset, case.load) in control.warm_for,
                )
            )
        # The key in the ledger has the packages of the engines' environments. In a first run these
        # exist only once the servers have been started, so the entry can't begin any earlier.
        self.ledger.begin(*(self._key(member.case, launch.number) for member in members))
        # A server and its control are a pair, which has the id of the server's launch.
        pair_ids = [member.handle.launch.id for member in members]
        with (
            self.timeline.during(Phase.MEASURING, *pair_ids, of=name),
            self._watching(case, name) as watching,
        ):
            plan = self._plan(arms[0], watching)
            prompts = load_case_prompts(self.context.root, case)
            measurements = self.measure_arms(arms, workload_of(case, prompts), plan)
        # Stop the servers that hung, and note which of the others are warm.
        for handle, measurement in zip(handles, measurements, strict=True):
            codes = {invalidity.code for invalidity in measurement.invalid.values()}
            if HungError.code in codes:
                handle.stop()
            elif not codes:
                # A warm-up takes as long as a measurement, and many cases share a control.
                handle.warm_for.add((case.request.dataset, case.load))
        return self._record_end(arms[: len(members)], handles, measurements, control)

    def _record_end(
        self,
        arms: Sequence[Arm],
        handles: Sequence[ServerHandle],
        measurements: Sequence[Measurement],
        control: ServerHandle | None,
    ) -> list[Measurement]:
        """Record in the ledger that measurements ended, and return them with their speedups.

        Args:
            arms: The arm of each case.
            handles: The server of each arm, and then the control unless it is one of them.
            measurements: The measurement of each server, in the same order.
            control: The control; None without one.

        Returns:
            The measurement of each case.
        """
        ended = []
        control_index = None if control is None else handles.index(control)
        for index, arm in enumerate(arms):
            measurement = measurements[index]
            case_control_index = None if arm.is_control else control_index
            if case_control_index is not None:
                measurement = combine_with_control(measurement, measurements[case_control_index])
            self.ledger.end(measurement, arm=index, control=case_control_index)
            ended.append(measurement)
        return ended

    def _arm(self, member: Member, *, is_control: bool) -> Arm:
        """Return the arm that measures a case."""
        case = member.case
        return Arm(
            case=case,
            server=member.handle.server,
            is_control=is_control,
            warm=(case.request.dataset, case.load) in member.handle.warm_for,
            enough=self._stopping_rule(case, member.handle.launch.number) or has_all_prompts,
            least_s=least_time_s(case, self.selection, self.context),
        )

    def _start_servers(
        self, servers: ServerSet, companions: Sequence[ServerHandle] = ()
    ) -> tuple[Server, ...]:
        """Start the servers of a case that aren't ready, and wait until they are.

        Args:
            servers: The servers of the case.
            companions: Further servers that start with them. If one of these fails, no error is
                raised here.

        Returns:
            The case's own server, and then its control if `servers` has one.

        Raises:
            SpecregError: One of `servers` didn't start.
        """
        to_start = [handle for handle in servers if not handle.is_ready]
        further = [handle for handle in companions if not handle.is_ready]
        if to_start or further:
            ids = [handle.launch.id for handle in (*to_start, *further)]
            names = " and ".join(ids)
            pair_ids = [servers.launch.id, *(handle.launch.id for handle in further)]
            with self.timeline.during(Phase.STARTING, *pair_ids, of=names):
                # The control starts first, because no case can be measured without it.
                self.servers.start_all(to_start[::-1], further)
        return tuple(handle.server for handle in servers)

    def _plan(self, arm: Arm, watching: Watch | None) -> Plan:
        """Return the plan of a measurement, with the functions that record and show its progress.

        Args:
            arm: The arm of the first case.
            watching: Samples the power of the servers' devices; None if power isn't measured.
        """
        case = arm.case
        selection = self.selection
        needs_power = selection.needs_power(case)
        # Acceptance may be decided after a part of the prompts, but a speed needs all prompts.
        is_timed = selection.needs_speed(case) or selection.is_recording
        looks_early = arm.enough is not has_all_prompts and not is_timed
        return Plan(
            show=self._show_or_stop,
            parts=PARTS if looks_early else None,
            turn_to=self.timeline.turn_to,
            record=self.progress.count(case.load.concurrency, self.ledger.record_round),
            power_s=case.judging.power_s if needs_power else 0.0,
            watching=watching,
        )

    def _stopping_rule(self, case: Case, number: int) -> StoppingRule | None:
        """Return the rule that stops a measurement early or extends it.

        Args:
            case: The case.
            number: The number of the launch, from 1.

        Returns:
            The rule; None if the acceptance neither stops nor extends the measurement.
        """
        if self.selection.is_recording:
            return self._recording_rule(case, number)
        acceptance = [metric for metric in self.selection.metrics_of(case) if not metric.by_launch]
        if not acceptance:
            return None
        try:
            known = self.context.baselines_of(case)
        except BaselineError:
            # The verdicts of the case will have this error.
            return None
        needs_speed = self.selection.needs_speed(case)
        # The first metric of acceptance decides about the others.
        return enough_for(
            case,
            acceptance[0],
            known,
            may_stop_early=not needs_speed,
            cases=self.selection.run_cases,
        )

    def _recording_rule(self, case: Case, number: int) -> StoppingRule:
        """Return the rule that extends a launch which is recorded.

        The first launch is extended, because a later run may replay the extension and needs those
        prompts in the baseline. A later launch is extended only if its answers differ from those of
        the first launch. If they are equal, they would be equal for the extension too.
        """
        first_launch = self.ledger.find(case.id, 1) if number > 1 else None
        first_acceptance = first_launch.measurement.acceptance if first_launch else None

        def is_enough(acceptance: AcceptanceRecord | None, look: Look) -> bool:
            if look is not Look.FULL or number == 1:
                return False
            if acceptance is None or first_acceptance is None:
                return True
            return acceptance.repeats(first_acceptance)

        return is_enough

    def _show_or_stop(self, text: str) -> None:
        """Show a line of progress, and stop if a signal came.

        Raises:
            KeyboardInterrupt: A signal came.
        """
        # An interrupt is lost if it is raised in a finalizer, so signals are looked for here too. A
        # line is shown at least once a round.
        check_signalled()
        self.context.provision.show(text)

    def _watching(self, case: Case, name: str) -> contextlib.AbstractContextManager[Watch | None]:
        """Return a context that samples the power of a case.

        The context yields None if the case isn't timed, or if its power can't be read.
        """
        provision = self.context.provision
        is_timed = case.judging.speed and self.selection.needs_speed(case)
        if not is_timed or provision.why_no_power(case.server):
            return contextlib.nullcontext()
        path = self.context.run_folder / "power" / f"{name}.jsonl"
        return watch(provision.devices(case.server), path)

    def measure_afresh(
        self, cases: Sequence[Case], number: int
    ) -> Mapping[str, Measurement | Reason]:
        """Stop all servers, and measure cases on a further launch of their servers.

        If all of the cases have been measured on that launch before, no server is stopped.

        Args:
            cases: The cases.
            number: The number of the launch, from 1.

        Returns:
            The measurement of each case by its id, or why the case couldn't be measured.

        Raises:
            MemoryHeldError: The memory of a GPU isn't free, so nothing more can be measured there.
        """
        # No server has to give way if all cases have been measured on this launch already.
        if any(self.ledger.find(case.id, number) is None for case in cases):
            self.servers.stop()
        # Cases with the same servers are measured one after the other, without a restart.
        results: dict[str, Measurement | Reason] = {}
        groups: dict[tuple[Launch, Launch], list[Case]] = {}
        for case in cases:
            case_launch = CaseLaunch.of(case, number)
            groups.setdefault((case_launch.control, case_launch.server), []).append(case)
        for (control_launch, launch), group in groups.items():
            name = f"{launch.id} on a fresh launch"
            with (
                self.timeline.during(Phase.CONFIRMING, launch.id, of=name),
                self.servers.start(control_launch) as control,
                self.servers.start(launch, control=control) as server,
            ):
                for case in group:
                    servers = ServerSet.of(case, server, control)
                    results[case.id] = self._measurement_or_reason(case, servers)
        return results

    def measure_remaining(self, case_launches: Sequence[CaseLaunch], servers: ServerSet) -> None:
        """Measure cases on planned launches that no test has needed so far.

        Raises:
            MemoryHeldError: The memory of a GPU isn't free, so nothing more can be measured there.
        """
        if not case_launches:
            return
        own_control = servers.control or servers.server
        if own_control is not servers.server:
            servers.server.stop()
        pairs: dict[tuple[Launch, Launch], list[Case]] = {}
        for case_launch in case_launches:
            pair = (case_launch.control, case_launch.server)
            pairs.setdefault(pair, []).append(case_launch.case)
        by_control = itertools.groupby(pairs, key=lambda pair: pair[0])
        for control_launch, group in by_control:
            with contextlib.ExitStack() as stack:
                control = own_control
                if control_launch != own_control.launch:
                    own_control.stop()
                    control = stack.enter_context(self.servers.start(control_launch))
                for pair in group:
                    with self.servers.start(pair[1], control=control) as server:
                        for case in pairs[pair]:
                            self._measurement_or_reason(case, ServerSet.of(case, server, control))

    def stop(self) -> None:
        """Stop all servers."""
        self.servers.stop()

    def _measurement_or_reason(self, case: Case, servers: ServerSet) -> Measurement | Reason:
        """Return the measurement of a case, or the reason why it couldn't be measured.

        Raises:
            MemoryHeldError: The memory of a GPU isn't free. This ends the run.
        """
        try:
            return self.measure(case, servers)
        except MemoryHeldError:
            raise
        except SpecregError as error:
            return error.reason

    def check(self, check: CorrectnessCheck, case: Case, servers: ServerSet) -> Verdict:
        """Make a correctness check, or take over the verdict of the resumed run.

        Raises:
            SpecregError: The check can't be made, for example because a server didn't start or died
                twice. Further calls for the same check raise the same error.
        """
        return self._at_most_once(
            f"{case.id} {check.name}", lambda: self._check(check, case, servers)
        )

    def _check(self, check: CorrectnessCheck, case: Case, servers: ServerSet) -> Verdict:
        launch = servers.launch
        name = launch.case_id(case)
        self._begin(name)
        with self.timeline.during(Phase.CHECKING, launch.id, of=f"{check.name} of {case.id}"):
            key = self._key(case, launch.number)
            recorded = self.ledger.recorded.checked.get((key, check.name))
            if recorded is not None:
                return msgspec.convert(recorded.verdict, Verdict)
            verdict = self._retry(
                lambda: self._check_once(check, case, servers),
                servers,
                remark=f"{name}: {check.name} checked again",
            )
            # The key has the packages of the engine's environment, which a first run installs only
            # during the check. So the key is made again.
            key = self._key(case, launch.number)
            self.ledger.extend([Checked.of(key, check.name, verdict)])
            return verdict

    def _check_once(self, check: CorrectnessCheck, case: Case, servers: ServerSet) -> Verdict:
        """Start the servers of a case if need be, and make a correctness check once.

        Raises:
            ServerDiedError: An answer is missing because its server died.
            SpecregError: A server didn't start, or an answer is invalid.
        """
        root = self.context.root
        provision = self.context.provision
        running = self._start_servers(servers)
        measured = self.ledger.find(case.id, servers.launch.number)
        draft = case.server.draft
        running_case = RunningCase(
            case=case,
            server=running[0],
            control=running[1] if servers.control is not None else None,
            # Without the prompts of an extension.
            prompts=load_case_prompts(root, case)[: case.request.prompts],
            predict_drafts=functools.partial(
                predict_drafts, on_gpu=provision.on_gpu, show=provision.show
            ),
            models=(
                resolve_model(root, case.server.target),
                resolve_model(root, draft) if draft else None,
            ),
            control_answers=self._control_answers,
            replay=measured.measurement.replay if measured else None,
        )
        try:
            return check.check(running_case)
        except InvalidMeasurementError:
            # If a server died, that explains the invalid answer. `check_alive` then raises
            # ServerDiedError, for which the check is made again.
            for server in running:
                server.check_alive()
            raise
