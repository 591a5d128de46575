"""A run: it takes the steps of its night that a test needs, and judges what its ledger has then."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from specreg.core.errors import SpecregError
from specreg.core.reasons import Reason
from specreg.correctness.checks import CorrectnessCheck
from specreg.matrix.case import Case, in_run_order
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import Metric
from specreg.runs.execute import NightExecutor
from specreg.runs.goals import CaseLaunch, NightGoal, Stage
from specreg.runs.ledger import FailedLaunch, Ledger, MeasuredLaunch
from specreg.runs.plan import is_tried, next_step
from specreg.runs.verdicts import Asked, LedgerJudge
from specreg.servers.handle import ServerHandle
from specreg.suite.context import RunContext
from specreg.suite.engine_check import EngineAnswer, engine_finding
from specreg.suite.merged_shards import MergedShards
from specreg.suite.result import RunResult
from specreg.suite.selection import Selection
from specreg.verdicts.multiple_testing import follow
from specreg.verdicts.verdict import Outcome, Verdict


@dataclass(slots=True, kw_only=True)
class TestNotes:
    """What the tests of a run noted, and its ledger doesn't have.

    Attributes:
        verdicts: the verdicts of tests that ended with an error.
        errors: the full text of the first error of each case, by case id.
        skipped: why a case was skipped after the run had started, by case id.
    """

    __test__ = False  # It isn't a test, although pytest would think so.

    verdicts: dict[Asked, Verdict] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def note_failure(self, asked: Asked, reason: Reason, error: str = "") -> Verdict:
        """Return the INVALID verdict of a test that ended with an error, and keep it.

        Args:
            asked: what the test wanted to know.
            reason: why that isn't known.
            error: the full message of the error. For each case the report shows the first one.
        """
        if error:
            self.errors.setdefault(asked.case_id, error)
        verdict = Verdict(
            case_id=asked.case_id, metric=asked.name, outcome=Outcome.INVALID, reason=reason
        )
        self.verdicts[asked] = verdict
        return verdict


class CaseServers(NamedTuple):
    """The server of a case and its control, each of which starts when it is first used."""

    server: ServerHandle
    control: ServerHandle


@dataclass(slots=True, kw_only=True)
class Run:
    """A run that has started, or that joins what several processes have measured.

    Attributes:
        context: what is fixed for the run.
        selection: the metrics and checks that its tests need.
        ledger: what was measured and checked.
        judge: judges what the ledger has.
        night: what the run measures.
        executor: measures and checks; None if the run joins the measurements of others.
        shards: the processes whose measurements the run joins; None if it measures by itself.
        noted: what the tests noted.
        lines: lines for the summary about how the run was judged, once it is over.
        is_over: whether nothing more is measured, so that speeds can be judged.
        _engine: what a gate of two versions of an engine says, once the run is over; None without
            one.
        _reached: up to where the night was measured, with the number of verdicts asked for then.
    """

    context: RunContext
    selection: Selection
    ledger: Ledger
    judge: LedgerJudge
    night: NightGoal
    executor: NightExecutor | None = None
    shards: MergedShards | None = None
    noted: TestNotes = field(default_factory=TestNotes)
    lines: tuple[str, ...] = ()
    is_over: bool = False
    _engine: EngineAnswer | None = None
    _reached: tuple[Case | None, Stage | None, int] | None = None

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """All verdicts so far, in the order of the run. Speeds have none before it is over."""
        return tuple(self._verdicts().values())

    def _verdicts(self, case_id: str = "") -> Mapping[Asked, Verdict]:
        """Return the verdicts so far on a case; without a case id those on all cases.

        Figures that move together have the outcome of their leader.
        """
        judged = self.judge.verdicts(is_over=self.is_over, case_id=case_id)
        verdicts = {
            asked: verdict
            for asked, verdict in judged.items()
            if asked.case_id not in self.noted.skipped
        }
        verdicts |= {
            asked: verdict
            for asked, verdict in self.noted.verdicts.items()
            if case_id in {"", asked.case_id}
        }
        if self._engine is not None:
            verdicts = {asked: self._engine.judge(verdict) for asked, verdict in verdicts.items()}
        return dict(zip(verdicts, follow(tuple(verdicts.values())), strict=True))

    def measurement(self, case: Case, number: int) -> Measurement:
        """Return the measurement of a case on a launch.

        All that the night does before is done first, and the whole server group is measured and
        checked.

        Raises:
            SpecregError: the case couldn't be measured. Each call raises the same error.
            MemoryHeldError: the memory of a GPU isn't free, so nothing more can be measured there.
        """
        self._advance(self._part(case).until(case, number))
        launch = self.ledger.find(case.id, number)
        if launch is None:
            raise self._error(case, number)
        return launch.measurement

    def verdict(self, metric: Metric, case: Case, number: int) -> Verdict:
        """Return the verdict on a metric of a case on a launch.

        The cases of a server group are judged together, so that one fresh launch can confirm their
        losses. A speed is judged on the last planned launch, once everything is measured.

        Raises:
            SpecregError: as in `measurement`.
            MemoryHeldError: as in `measurement`.
        """
        self._ask_group(case, number)
        if metric.by_launch and number == self.context.launches:
            if self.context.is_part:
                self._advance(self._part(case))
            else:
                self.judge.ask_all()
                self.finish()
        self.measurement(case, number)
        return self._verdicts(case.id)[Asked(case.id, metric.name, number)]

    def checked(self, check: CorrectnessCheck, case: Case, number: int) -> Verdict:
        """Return the verdict of a correctness check, which is made on the first launch.

        Raises:
            SpecregError: the check couldn't be made. Each call raises the same error.
            MemoryHeldError: as in `measurement`.
        """
        self._ask_group(case, number)
        self._advance(self._part(case).until(case, number))
        if self.ledger.check(case.id, check.name) is None:
            raise self._error(case, number, check.name)
        return self._verdicts(case.id)[Asked(case.id, check.name, number)]

    def _part(self, case: Case) -> NightGoal:
        """Return the part of the night that this process measures, for a test of a case.

        A part of a run goes through the launches of one server, because it doesn't know whether the
        servers before that are its own.
        """
        return self.night.part(case) if self.context.is_part else self.night

    def _ask_group(self, case: Case, number: int) -> None:
        """Ask for the verdicts on all cases that share the server of a case."""
        for stage in self.night.stages:
            if stage.number == number and case in stage.cases:
                self.judge.ask(stage.cases, number)

    def _advance(self, night: NightGoal) -> None:
        """Take all steps that a night has left."""
        # All tests of a server group ask the same, and the plan of a long night takes a moment.
        goal = (night.only, night.last_stage, len(self.judge.asked))
        if self.executor is None or self.is_over or goal == self._reached:
            return
        self.executor.take_steps(lambda: next_step(self.ledger, night))
        self._reached = goal

    def finish(self) -> None:
        """Take the steps that the night has left, and judge the speeds by all of them."""
        if not self.is_over:
            self._advance(self.night)
            self.end()

    def end(self) -> None:
        """Measure nothing more; judge by what was measured, and by the gate of two versions."""
        self.is_over = True
        try:
            self._engine, self.lines = engine_finding(self.context, self.judge)
        except Exception as error:  # noqa: BLE001 - a gate on top must lose no verdict
            self.lines = (f"what a gate of two versions found couldn't be read: {error}",)

    @property
    def is_whole(self) -> bool:
        """Whether no process whose measurements the run joins is missing, or has died."""
        return self.shards is None or self.shards.is_whole

    def _error(self, case: Case, number: int, check: str = "") -> SpecregError:
        """Return why a case couldn't be measured or checked."""
        failures = self.ledger.failures_of(case.id, number, check)
        if not failures:
            return SpecregError(f"{case.id}: no test of the suite needs it, so it wasn't measured")
        return failures[-1].error or SpecregError(str(failures[-1].reason))

    def servers_of(self, case: Case, number: int) -> CaseServers:
        """Return the servers of a case on a launch, and stop all others.

        Raises:
            SpecregError: a server couldn't be stopped.
        """
        if self.executor is None:
            raise AssertionError("a run that joins others has no servers")
        servers = self.executor.servers
        launch = CaseLaunch.of(case, number)
        servers.stop_others({launch.server, launch.control})
        return CaseServers(servers.handle(launch.server), servers.handle(launch.control))

    def stop(self) -> None:
        """Stop all servers.

        Raises:
            SpecregError: a server couldn't be stopped; the others are stopped all the same.
        """
        if self.executor is not None:
            self.executor.servers.stop()

    def result(self) -> RunResult:
        """Return the result of the run so far."""
        shared = RunResult(
            context=self.context,
            selection=self.selection,
            launches=_in_order(self.ledger.measured, self.context),
            verdicts=self.verdicts,
            errors=dict(self.noted.errors),
            skipped={**self.selection.skipped, **self.noted.skipped},
            time=self.judge.timeline.so_far(),
            ended_at=self.context.clock.now_text(),
            driver_version=self.judge.references.driver_version,
            machine_of=self.judge.references.machine_of,
        )
        if self.shards is None:
            return dataclasses.replace(
                shared,
                retried=tuple(_retried(self.ledger, self.night.attempts)),
                torch_version_of=lambda case: self.context.provision.torch_version(case.server),
            )

        return dataclasses.replace(
            shared,
            time=self.shards.time,
            ended_at=self.shards.ended_at or shared.ended_at,
            torch_version_of=self.shards.torch_version,
            is_merged=True,
        )


def _in_order(
    launches: Iterable[MeasuredLaunch], context: RunContext
) -> tuple[MeasuredLaunch, ...]:
    """Return launches in the order of a run, which they lose if the run is resumed or joined."""
    positions = {case.id: index for index, case in enumerate(in_run_order(context.tier.cases))}
    return tuple(sorted(launches, key=lambda launch: (launch.number, positions[launch.case_id])))


def _retried(ledger: Ledger, attempts: int) -> Iterator[str]:
    """Yield a sentence for each attempt that a dead server ended, and that is or was repeated."""
    failures = ledger.failures
    for index, failure in enumerate(failures):
        if not failure.server_died:
            continue
        again = f"{failure.check} checked again" if failure.check else "measured again"
        if not _was_repeated(failure, failures[index + 1 :], ledger):
            of_same = ledger.failures_of(failure.case_id, failure.number, failure.check)
            if not is_tried(of_same, attempts):
                continue
            # The run was interrupted before, or meanwhile.
            again = f"to be {again}"
        suffix = f"-launch{failure.number}" if failure.number > 1 else ""
        yield f"{failure.case_id}{suffix}: {again}, {failure.reason}"


def _was_repeated(
    failure: FailedLaunch, later_failures: Iterable[FailedLaunch], ledger: Ledger
) -> bool:
    """Return whether what failed was measured or checked again, whatever came of it."""
    attempt = (failure.case_id, failure.number, failure.check)
    if any((later.case_id, later.number, later.check) == attempt for later in later_failures):
        return True
    if failure.check:
        return ledger.check(failure.case_id, failure.check) is not None
    return ledger.find(failure.case_id, failure.number) is not None
