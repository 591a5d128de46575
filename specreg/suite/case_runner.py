"""Measure and check the cases of a run on their servers, each at most once.

Cases that differ in their speculation alone are measured side by side, beside one control, as far
as memory holds their servers. What is measured with another case waits here until its own tests
come, so that the order of a run doesn't depend on memory.
"""

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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
from specreg.measurement.journal import Journal, Key
from specreg.measurement.measure import (
    Measurement,
    Plan,
    Workload,
    combine_with_control,
    measure,
    workload_of,
)
from specreg.report.progress import RunProgress
from specreg.servers.launch import Launch, Servers, Starting
from specreg.servers.server import Server
from specreg.stats.intervals import PARTS, Look
from specreg.suite.companions import Companions, Member
from specreg.suite.context import CaseLaunch, RunContext
from specreg.suite.measured import MeasuredLaunch, MeasuredLaunches
from specreg.suite.resumed import Resumed, journal_key
from specreg.suite.selection import Selection, least_time_s
from specreg.suite.server_set import ServerSet
from specreg.telemetry.identity import find_gpus
from specreg.telemetry.sampler import Watch, watch
from specreg.verdicts.confirmation import enough_for
from specreg.verdicts.verdict import Verdict

_ATTEMPTS = 2
"""How often a case is measured whose server goes away meanwhile."""
_ResultT = TypeVar("_ResultT")
MeasureArms = Callable[[Sequence[Arm], Workload, Plan], Sequence[Measurement]]
"""Measures arms that take turns, as `measure` does."""


class CaseSource(Protocol):
    """Where the measurements of a run come from: its servers, or the folders of its shards.

    Attributes:
        launches: what was measured so far.
        retried: in words, what was measured twice because its server had gone away.
    """

    launches: MeasuredLaunches
    retried: list[str]

    def measure(self, case: Case, servers: ServerSet) -> Measurement:
        """Return the measurement of a case on a launch; a SpecregError if there is none."""

    def check(self, check: CorrectnessCheck, case: Case, servers: ServerSet) -> Verdict:
        """Return the verdict of a correctness check; a SpecregError if it couldn't be made."""

    def measure_afresh(
        self, cases: Sequence[Case], number: int
    ) -> Mapping[str, Measurement | Reason]:
        """Return by case its measurement on a further launch, or why there is none."""

    @property
    def hosts(self) -> Mapping[str, str]:
        """By case, the machine that measured it; empty if this one measured all of them."""

    @property
    def time(self) -> RunTime:
        """Where the time went so far."""

    @property
    def driver_version(self) -> str:
        """The driver of the GPUs; empty without one."""

    def torch_version(self, case: Case) -> str:
        """Return the torch that a case's engine runs with; empty if that isn't known."""


@dataclass(slots=True, kw_only=True)
class CaseRunner:
    """Measures and checks cases on their servers, each at most once.

    A case whose server goes away meanwhile is measured once more on a fresh one. What the run that
    is resumed has measured is taken over.

    Attributes:
        progress: is told which case is at hand, and counts its requests.
        on_new_case: is called before a case is measured on a launch for the first time.
        measure_arms: measures cases and their control side by side.
        launches: what was measured so far.
        retried: in words, what was measured twice.
    """

    context: RunContext
    selection: Selection
    servers: Servers
    journal: Journal
    timeline: Timeline
    resumed: Resumed = field(default_factory=Resumed)
    progress: RunProgress = field(default_factory=RunProgress)
    on_new_case: Callable[[], None] = lambda: None
    measure_arms: MeasureArms = measure
    launches: MeasuredLaunches = field(default_factory=MeasuredLaunches)
    retried: list[str] = field(default_factory=list)
    _failed: dict[str, SpecregError] = field(default_factory=dict)
    _control_answers: ControlAnswers = field(default_factory=dict)
    _measured_ahead: dict[tuple[str, int], Measurement] = field(default_factory=dict)
    """By case and launch, what was measured with another case."""
    _companions: Companions = field(init=False)

    def __post_init__(self) -> None:
        self._companions = Companions(
            context=self.context, selection=self.selection, servers=self.servers
        )

    @property
    def hosts(self) -> Mapping[str, str]:
        """Nothing: this machine measures all cases."""
        return {}

    @property
    def time(self) -> RunTime:
        """Where the time went so far."""
        return self.timeline.so_far()

    @property
    def driver_version(self) -> str:
        """The driver of this machine's GPUs; empty without one."""
        return find_gpus().driver_version

    def torch_version(self, case: Case) -> str:
        """Return the torch that a case's engine runs with."""
        return self.context.provision.torch_version(case.server)

    def measure(self, case: Case, servers: ServerSet) -> Measurement:
        """Measure a case on a launch, or take over what the resumed run has of it.

        Raises:
            SpecregError: a server didn't start, or went away twice; the same again if the case is
                to be measured again.
        """
        number = servers.launch.number
        launch = self.launches.find(case, number)
        if launch is None:
            name = servers.launch.case_id(case)
            launch = self._at_most_once(name, lambda: self._measure(case, servers))
            self.launches.add(launch)
        return launch.measurement

    def _at_most_once(self, name: str, attempt: Callable[[], _ResultT]) -> _ResultT:
        """Make an attempt; one that failed isn't repeated, and raises its error again."""
        if name in self._failed:
            raise self._failed[name]
        try:
            return attempt()
        except SpecregError as error:
            self._failed[name] = error
            raise

    def _measure(self, case: Case, servers: ServerSet) -> MeasuredLaunch:
        """Measure a case, or take it over."""
        number = servers.launch.number
        name = servers.launch.case_id(case)
        self._begin(name)
        key = self._key(case, number)
        if key in self.resumed.measurements:
            resumed = self.resumed.measurements[key]
            return MeasuredLaunch(measurement=resumed, number=number, is_resumed=True)
        measurement: Measurement | None = None
        if (case.id, number) in self._measured_ahead:
            measurement = self._measured_ahead.pop((case.id, number))
        elif self.selection.needs_speed(case):
            measurement = self._measure_with_companions(case, servers)
        if measurement is None:
            measurement = self._measure_alone(case, servers)
        return MeasuredLaunch(measurement=measurement, number=number)

    def _measure_alone(self, case: Case, servers: ServerSet) -> Measurement:
        """Measure a case beside its control and no other case, twice if a server goes away."""
        if not self.selection.needs_speed(case):
            # The control is there for the speedup alone.
            servers = servers.without_control

        def measure_once() -> Measurement:
            self._started(servers)
            (measurement,) = self._measure_once([Member(case, servers.server)], servers.control)
            return measurement

        name = servers.launch.case_id(case)
        return self._retry(measure_once, servers, remark=f"{name}: measured again")

    def _measure_with_companions(self, case: Case, servers: ServerSet) -> Measurement | None:
        """Measure a case side by side with others that have the same control.

        Returns:
            The measurement of the case; None if there are no such cases, or if a server went away.

        Raises:
            SpecregError: the server of the case or its control didn't start.
        """
        launch = servers.launch
        control = servers.control or servers.server
        members = [Member(case, servers.server)]
        companions = self._companions.of(
            case, launch, control, lambda later: self._is_pending(later, launch.number)
        )
        if companions:
            self._started(servers, [member.starting for member in companions])
        for member in companions:
            if member.starting.running:
                members.append(member)
                continue
            # It may have lacked the memory that the others take, so it is tried again by itself.
            self._companions.keep_apart(member.starting.launch)
            member.starting.forget_failure()
        if len(members) == 1:
            return None
        try:
            measurements = self._measure_once(members, control)
        except ServerDiedError as error:
            # A case that is measured alone costs no other case anything if its server dies again.
            self._companions.keep_apart(control.launch)
            for starting in (control, *(member.starting for member in members)):
                starting.stop_if_dead()
            self.retried.append(f"{launch.case_id(case)}: measured again, {error.head}")
            return None
        for member, measurement in zip(members, measurements, strict=True):
            # Where every case beside it failed, a control that is a case itself wasn't measured.
            if measurement.replay is not None or measurement.invalid:
                self._measured_ahead[member.key] = measurement
        return self._measured_ahead.pop(members[0].key, None)

    def _is_pending(self, case: Case, number: int) -> bool:
        """Return whether a case has still to be measured on a launch of a number."""
        is_measured = (case.id, number) in self._measured_ahead
        if is_measured or self.launches.find(case, number) is not None:
            return False
        try:
            return self._key(case, number) not in self.resumed.measurements
        except SpecregError:  # without its models: its own tests say so
            return False

    def _key(self, case: Case, number: int) -> Key:
        return journal_key(case, number, self.selection, self.context)

    def _begin(self, name: str) -> None:
        """Note which case is at hand."""
        if self.progress.begin(name):
            self.on_new_case()

    def _retry(
        self, attempt: Callable[[], _ResultT], servers: ServerSet, *, remark: str
    ) -> _ResultT:
        """Make an attempt, and another one on a fresh server if one goes away meanwhile.

        Args:
            attempt: what to do.
            servers: on which it is done.
            remark: what the report says of a second attempt, before its reason.
        """
        # A server that others started can't be started afresh.
        attempts_left = 1 if self.context.provision.url is not None else _ATTEMPTS
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
                # The next case would wait for it as long again.
                servers.stop()
                raise

    def _measure_once(
        self, members: Sequence[Member], control: Starting | None
    ) -> list[Measurement]:
        """Measure cases whose servers are up side by side, and record them in the journal.

        Args:
            members: the cases.
            control: the control of all of them, which may be the server of one of them; None to
                measure a single case without one.

        Returns:
            The measurement of each case, with its speedup if it has one.
        """
        case = members[0].case
        launch = members[0].starting.launch
        name = launch.case_id(case)
        startings = [member.starting for member in members]
        arms = [self._arm(member, is_control=member.starting is control) for member in members]
        if control is not None and control not in startings:
            startings.append(control)
            arms.append(
                Arm(
                    case=case.control_case,
                    server=control.server,
                    is_control=True,
                    warm=(case.dataset, case.load) in control.warm_for,
                )
            )
        # Once the servers are up: a first run has made their environments meanwhile.
        self.journal.begin(*(self._key(member.case, launch.number) for member in members))
        pairs = [member.starting.launch.id for member in members]
        with (
            self.timeline.during(Phase.MEASURING, *pairs, of=name),
            self._watching(case, name) as watching,
        ):
            plan = self._plan(arms[0], watching)
            prompts = load_case_prompts(self.context.root, case)
            measurements = self.measure_arms(arms, workload_of(case, prompts), plan)
        for starting, measurement in zip(startings, measurements, strict=True):
            codes = {invalidity.code for invalidity in measurement.invalid.values()}
            if HungError.code in codes:
                starting.stop()  # a server that hangs isn't used again
            elif not codes:
                # Warming a control up again for the next method would take as long as measuring it.
                starting.warm_for.add((case.dataset, case.load))
        return self._ended(arms[: len(members)], startings, measurements, control)

    def _ended(
        self,
        arms: Sequence[Arm],
        startings: Sequence[Starting],
        measurements: Sequence[Measurement],
        control: Starting | None,
    ) -> list[Measurement]:
        """Give each case its speedup, and record that it is measured."""
        ended = []
        control_index = None if control is None else startings.index(control)
        for index, arm in enumerate(arms):
            measurement = measurements[index]
            compared_with = None if arm.is_control else control_index
            if compared_with is not None:
                measurement = combine_with_control(measurement, measurements[compared_with])
            self.journal.end(measurement, arm=index, control=compared_with)
            ended.append(measurement)
        return ended

    def _arm(self, member: Member, *, is_control: bool) -> Arm:
        """Return the arm that measures a case."""
        case = member.case
        return Arm(
            case=case,
            server=member.starting.server,
            is_control=is_control,
            warm=(case.dataset, case.load) in member.starting.warm_for,
            enough=self._stopping_rule(case, member.starting.launch.number) or has_all_prompts,
            least_s=least_time_s(case, self.selection, self.context),
        )

    def _started(
        self, servers: ServerSet, companions: Sequence[Starting] = ()
    ) -> tuple[Server, ...]:
        """Return the servers, started and ready: the case's own first, then its control.

        Args:
            servers: the servers.
            companions: further servers that start with them if they can.
        """
        to_start = [starting for starting in servers if not starting.running]
        further = [starting for starting in companions if not starting.running]
        if to_start or further:
            ids = [starting.launch.id for starting in (*to_start, *further)]
            names = " beside ".join(ids)
            pairs = [servers.launch.id, *(starting.launch.id for starting in further)]
            with self.timeline.during(Phase.STARTING, *pairs, of=names):
                # All others need the control.
                self.servers.start_all(to_start[::-1], further)
        return tuple(starting.server for starting in servers)

    def _plan(self, arm: Arm, watching: Watch | None) -> Plan:
        """Return how cases are measured, and who is told what.

        Args:
            arm: that of the first case.
            watching: samples the power of the servers' devices; None if nothing does.
        """
        case = arm.case
        selection = self.selection
        needs_power = selection.needs_power(case)
        # Acceptance alone is looked at after each part of the prompts, speeds after all of them.
        is_timed = selection.needs_speed(case) or selection.is_recording
        looks_early = arm.enough is not has_all_prompts and not is_timed
        return Plan(
            show=self._show_or_stop,
            parts=PARTS if looks_early else None,
            turn_to=self.timeline.turn_to,
            record=self.progress.count(case.load.concurrency, self.journal.record_round),
            power_s=case.power_s if needs_power else 0.0,
            watching=watching,
        )

    def _stopping_rule(self, case: Case, launch: int) -> StoppingRule | None:
        """Return what says whether a case has been measured enough; None for all its prompts."""
        if self.selection.is_recording:
            return self._recording_rule(case, launch)
        acceptance = [metric for metric in self.selection.metrics_of(case) if not metric.by_launch]
        if not acceptance:
            return None
        try:
            known = self.context.baselines_of(case)
        except BaselineError:  # the verdicts of the case say so
            return None
        needs_speed = self.selection.needs_speed(case)
        return enough_for(
            case,
            acceptance[0],
            known,
            may_stop_early=not needs_speed,
            cases=self.selection.run_cases,
        )

    def _recording_rule(self, case: Case, launch: int) -> StoppingRule:
        """Return what says whether a launch to be recorded needs no extension.

        A later run may replay the extension, so the baseline needs its prompts as well. A further
        launch that gives the same answers as the first would do so for those prompts too.
        """
        first_launch = self.launches.find(case, 1) if launch > 1 else None
        first = first_launch.measurement.acceptance if first_launch else None

        def is_enough(acceptance: AcceptanceRecord | None, look: Look) -> bool:
            if look is not Look.FULL or launch == 1:
                return False
            return acceptance is None or first is None or acceptance.repeats(first)

        return is_enough

    def _show_or_stop(self, text: str) -> None:
        """Show what goes on, by round; stop where a signal came and its interrupt was lost."""
        check_signalled()
        self.context.provision.show(text)

    def _watching(self, case: Case, name: str) -> contextlib.AbstractContextManager[Watch | None]:
        """Sample the power of a case that is timed, if anything can."""
        provision = self.context.provision
        is_timed = case.speed and self.selection.needs_speed(case)
        if not is_timed or provision.why_no_power(case.server):
            return contextlib.nullcontext()
        path = self.context.run_folder / "power" / f"{name}.jsonl"
        return watch(provision.devices(case.server), path)

    def measure_afresh(
        self, cases: Sequence[Case], number: int
    ) -> Mapping[str, Measurement | Reason]:
        """Measure cases on a further launch of their servers, after all others were stopped.

        Args:
            cases: what to measure.
            number: of the launch, from 1.

        Returns:
            By case id what was measured, or why it couldn't be.

        Raises:
            MemoryHeldError: a GPU hasn't got its memory back, so nothing more may be measured.
        """
        if any(self.launches.find(case, number) is None for case in cases):
            self.servers.stop()
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

    def _measurement_or_reason(self, case: Case, servers: ServerSet) -> Measurement | Reason:
        """Measure a case, or say why it couldn't be; a MemoryHeldError ends the run."""
        try:
            return self.measure(case, servers)
        except MemoryHeldError:
            raise
        except SpecregError as error:
            return error.reason

    def check(self, check: CorrectnessCheck, case: Case, servers: ServerSet) -> Verdict:
        """Check what must hold of a case, or take over what the resumed run has found.

        Raises:
            SpecregError: the check couldn't be made, as a server didn't start or went away twice;
                the same again if it is to be made again.
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
            if (key, check.name) in self.resumed.checks:
                return msgspec.convert(self.resumed.checks[key, check.name], Verdict)
            verdict = self._retry(
                lambda: self._check_once(check, case, servers),
                servers,
                remark=f"{name}: {check.name} checked again",
            )
            self.journal.note_check(self._key(case, launch.number), check.name, verdict)
            return verdict

    def _check_once(self, check: CorrectnessCheck, case: Case, servers: ServerSet) -> Verdict:
        """Check a case whose servers are up.

        Raises:
            ServerDiedError: an answer is missing because its server went away.
        """
        root = self.context.root
        provision = self.context.provision
        running = self._started(servers)
        measured = self.launches.find(case, servers.launch.number)
        draft = case.server.draft
        running_case = RunningCase(
            case=case,
            server=running[0],
            control=running[1] if servers.control is not None else None,
            prompts=load_case_prompts(root, case)[: case.prompts],
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
            for server in running:
                server.check_alive()
            raise
