"""Judge the cases of a run: acceptance group by group, and speeds once everything is measured."""

import contextlib
import functools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from specreg.baselines.comparison import BaselineComparison
from specreg.baselines.schema import Baseline
from specreg.core.errors import BaselineError, MemoryHeldError, SpecregError
from specreg.core.reasons import Reason
from specreg.core.timeline import Phase, Timeline
from specreg.correctness.checks import CorrectnessCheck
from specreg.matrix.case import Case, in_run_order
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import METRICS, Metric
from specreg.runs.goals import CaseLaunch
from specreg.runs.ledger import MeasuredLaunch
from specreg.servers.launch import Launch
from specreg.stats.intervals import MORE_LAUNCHES
from specreg.suite.case_runner import CaseSource
from specreg.suite.context import RunContext
from specreg.suite.engine_check import EngineAnswer, Measure, MeasuredRun, check_engine
from specreg.suite.recording import RecordingBudget
from specreg.suite.selection import Selection
from specreg.suite.server_set import ServerSet
from specreg.verdicts.detection import MAX_LAUNCHES
from specreg.verdicts.history import NO_HISTORY
from specreg.verdicts.multiple_testing import follow
from specreg.verdicts.references import References
from specreg.verdicts.run_verdicts import acceptance_on_launch, confirmed, wants_fresh_launch
from specreg.verdicts.speeds import Speed, SpeedJudge, compare_speed
from specreg.verdicts.verdict import Outcome, Verdict

_NS_PER_S = 10**9
JUDGED_LATER = "JUDGED_LATER"
"""The code of a speed that a part of a run has measured, and that the joined run judges."""
_JUDGED_LATER = Reason(code=JUDGED_LATER, text="speeds are judged when the run's parts are joined")


@dataclass(frozen=True, slots=True)
class _Figure:
    """A metric of a case on a launch, whose verdict follows from what is measured."""

    case_id: str
    metric_name: str
    number: int

    @property
    def metric(self) -> Metric:
        return METRICS[self.metric_name]


@dataclass(slots=True, kw_only=True)
class GroupJudge:
    """Has the cases of a run measured, and asks for their verdicts.

    Cases that share a server are a group. All of them are measured and checked in the first test of
    the group, and their acceptance is judged then, so that one fresh launch can confirm the losses
    of the whole group. The first test of a speed measures all that isn't measured yet, and then
    fresh launches of what looks lost, before any speed has a verdict.

    Attributes:
        context: What is fixed for the run.
        selection: The metrics and checks that the tests need.
        cases: Where the measurements come from.
        budget: The time for further launches while recording.
        timeline: Records how long judging takes.
        takes_launches: True if what looks lost can be measured on fresh launches. A merged run only
            reads those that its parts have made.
        errors: The full text of the first error of each case that couldn't be judged, by case id.
        skipped: Why a case was skipped after the run had started, by case id.
        notes: Lines for the summary about how the run was judged.
        references: What the run is compared with.
        _order: What has a verdict, in the order of the run.
        _visited: The cases whose group was measured, each with the number of the launch.
        _checks: The verdict of each correctness check, by case id and check.
        _acceptance: The verdicts on acceptance on planned launches.
        _unconfirmed: Why the launch that confirms a loss of acceptance failed, by case id.
        _failed: Why a further launch for speeds failed, by case id.
        _speeds: The verdicts on speeds; None before everything is measured.
        _engine: What a comparison of two versions of an engine says; None without one.
    """

    context: RunContext
    selection: Selection
    cases: CaseSource
    budget: RecordingBudget
    timeline: Timeline
    takes_launches: bool = True
    errors: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    references: References = field(init=False)
    _order: dict[_Figure | Verdict, None] = field(default_factory=dict)
    _visited: set[tuple[str, int]] = field(default_factory=set)
    _checks: dict[tuple[str, str], Verdict] = field(default_factory=dict)
    _acceptance: dict[_Figure, Verdict] = field(default_factory=dict)
    _unconfirmed: dict[str, Reason] = field(default_factory=dict)
    _failed: dict[str, Reason] = field(default_factory=dict)
    _speeds: Mapping[_Figure, Verdict] | None = None
    _engine: EngineAnswer | None = None

    def __post_init__(self) -> None:
        context = self.context
        baselines: dict[str, Baseline] = {}
        history = NO_HISTORY
        # A run that measures an attached server is compared with no nights.
        if not self.selection.is_recording and context.provision.attached is None:
            baselines = {path.stem: baseline for path, baseline in context.store.own().items()}
            history = context.load_history().without(context.name)
        self.references = References(
            baselines_of=functools.cache(context.baselines_of),
            run=context.name,
            baselines=baselines,
            history=history,
            machine_of=self.cases.machine_of,
            driver_version=self.cases.driver_version,
            cases=self.selection.run_cases,
            softened=context.softened,
            holds_by_nights=context.holds_by_nights,
        )

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """All verdicts so far, in the order of the run.

        Speeds have none before everything is measured. Figures that move together have the outcome
        of their leader.
        """
        return tuple(self._judged(self._order).values())

    def _judged(self, judged: Iterable[_Figure | Verdict]) -> Mapping[_Figure | Verdict, Verdict]:
        """Return the verdicts so far on whole cases, by what they were made from."""
        verdicts = {}
        for key in judged:
            verdict = self._verdict_of(key) if isinstance(key, _Figure) else key
            if verdict is not None and self._engine is not None:
                verdict = self._engine.judge(verdict)
            if verdict is not None:
                verdicts[key] = verdict
        return dict(zip(verdicts, follow(tuple(verdicts.values())), strict=True))

    def judge(self, metric: Metric, case: Case, servers: ServerSet) -> Verdict:
        """Return the verdict on a metric of a case.

        The first call for a group on a launch measures and checks all cases of the group. The first
        call for a speed, on the last planned launch, measures everything.

        Raises:
            SpecregError: The case couldn't be measured.
            MemoryHeldError: The memory of a GPU isn't free, so nothing more can be measured there.
        """
        number = servers.launch.number
        figure = _Figure(case.id, metric.name, number)
        self._judge_groups(servers)
        if figure not in self._order:
            # The error of this case is raised here, in its own test.
            self._judge_case(case, servers)
        if metric.by_launch and number == self.context.launches:
            self._judge_speeds(servers)
        return self._judged(key for key in self._order if key.case_id == case.id)[figure]

    def _judge_groups(self, servers: ServerSet) -> None:
        """Measure and check the new cases of these servers, and judge their acceptance.

        The control may be the server of cases too.

        Raises:
            MemoryHeldError: The memory of a GPU isn't free, so nothing more can be measured there.
        """
        number = servers.launch.number
        lazy_servers = {lazy_server.launch: lazy_server for lazy_server in servers}
        new_cases = []
        for case in in_run_order(self.selection.cases_of(self.context.tier)):
            launch = CaseLaunch.of(case, number).server
            if launch not in lazy_servers or (case.id, number) in self._visited:
                continue
            new_cases.append(case)
            self._visited.add((case.id, number))
            try:
                case_servers = ServerSet.of(case, lazy_servers[launch], servers.control)
                self._judge_case(case, case_servers)
            except MemoryHeldError:
                raise
            except SpecregError:
                # The tests of the case itself raise the error again.
                continue
        if not self.selection.is_recording:
            self._confirm_acceptance(new_cases, number)
        elif number == self.context.launches:
            for launch in lazy_servers:
                self._record_further_launches(launch, new_cases)

    def _judge_case(self, case: Case, servers: ServerSet) -> None:
        """Measure and check a case on one launch.

        Raises:
            SpecregError: The case couldn't be measured or checked.
        """
        number = servers.launch.number
        if self.selection.metrics_of(case):
            self.cases.measure(case, servers)
            self._note_measured(case, number)
        for check in self.selection.checks_of(case, number):
            self.check(check, case, servers)

    def _note_measured(self, case: Case, number: int) -> None:
        """Note that the metrics of a case can be judged.

        Raises:
            SpecregError: The models or the prompts of the case can't be read.
        """
        # If the baselines can't be read, the verdicts say so.
        with contextlib.suppress(BaselineError):
            self.references.baselines_of(case)
        for metric in self.selection.metrics_of(case):
            self._order[_Figure(case.id, metric.name, number)] = None

    def _confirm_acceptance(self, cases: Sequence[Case], number: int) -> None:
        """Measure the cases whose acceptance looks lost on a fresh launch."""
        names = {case.id: case for case in cases}
        to_confirm = {
            figure.case_id: names[figure.case_id]
            for figure in self._figures()
            if figure.case_id in names
            and figure.number == number
            and not figure.metric.by_launch
            and wants_fresh_launch(self._acceptance_of(figure))
        }
        if not to_confirm:
            return
        fresh_number = self.context.launches + 1
        results = self.cases.measure_afresh(list(to_confirm.values()), fresh_number)
        self._unconfirmed |= _reasons(results)

    def _judge_speeds(self, servers: ServerSet) -> None:
        """Measure all that isn't measured yet, and judge the speeds.

        Raises:
            MemoryHeldError: The memory of a GPU isn't free, so nothing more can be measured there.
        """
        if self.selection.is_recording or self._speeds is not None:
            return
        remaining = [
            case_launch
            for case_launch in self.context.case_launches()
            if case_launch.case.id in self.selection.measured_ids
            and (case_launch.case.id, case_launch.server.number) not in self._visited
        ]
        self.cases.measure_remaining(remaining, servers)
        for case_launch in remaining:
            case = case_launch.case
            number = case_launch.server.number
            self._visited.add((case.id, number))
            if self.cases.ledger.find(case.id, number) is not None:
                # The tests of the case itself raise the error again.
                with contextlib.suppress(SpecregError):
                    self._note_measured(case, number)
        with self.timeline.during(Phase.JUDGING, servers.launch.id):
            speeds, _ = self._comparable_speeds()
            judge = SpeedJudge(speeds, self.references)
        self._measure_what_looks_lost(judge)
        self.conclude(judge)
        if self.takes_launches:
            self.compare_engines()

    def _measure_what_looks_lost(self, judge: SpeedJudge) -> None:
        """Measure the cases whose speeds look lost on up to MORE_LAUNCHES fresh launches."""
        for further in range(1, MORE_LAUNCHES + 1):
            speeds, _ = self._comparable_speeds()
            number = self.context.launches + further
            if not self.takes_launches:
                cases = {speed.case.id: speed.case for speed in speeds}
                self.cases.measure_afresh(list(cases.values()), number)
                continue
            wanted = judge.wanted(speeds)
            if not wanted:
                return
            self._failed |= _reasons(self.cases.measure_afresh(wanted, number))

    def conclude(self, judge: SpeedJudge | None = None) -> None:
        """Judge the speeds of what has been measured, because nothing more will be.

        Args:
            judge: Has gone through the nights before; None to do that here.
        """
        if self._speeds is not None or self.selection.is_recording:
            return
        speeds, verdicts = self._comparable_speeds()
        judge = judge or SpeedJudge(speeds, self.references)
        figures = [
            _Figure(speed.case.id, speed.metric.name, self.context.launches) for speed in speeds
        ]
        self._speeds = {**verdicts, **dict(zip(figures, judge.judge(speeds), strict=True))}

    def compare_engines(self, measure: Measure | None = None) -> None:
        """Measure two versions of an engine side by side if a loss of speed is doubtful.

        Args:
            measure: Measures both versions; None to measure them with a gate.
        """
        run = MeasuredRun(
            context=self.context,
            launches=self.cases.ledger.measured,
            verdicts=self.verdicts,
            time=self.cases.time,
        )
        self._engine, notes = check_engine(run, self.timeline, self.cases.stop, measure)
        self.notes += notes

    def _figures(self) -> Iterator[_Figure]:
        """Yield the figures that can be judged, in the order of the run."""
        for key in self._order:
            if isinstance(key, _Figure):
                yield key

    def _verdict_of(self, figure: _Figure) -> Verdict | None:
        """Return the verdict on a figure; None on a speed before everything is measured.

        A speed is judged once, at the last planned launch and on all valid launches together. At
        the launches before, its valid measurements get the outcome MEASURED. While recording, the
        valid measurements of all metrics get this outcome at each launch.
        """
        metric = figure.metric
        value = self._measurement(figure).values.get(metric.name)
        is_last = figure.number >= self.context.launches
        if value is not None and (
            self.selection.is_recording or (metric.by_launch and not is_last)
        ):
            return _measured(figure, value)
        if not metric.by_launch:
            first = self._acceptance_of(figure)
            return confirmed(first, self._fresh_launch(figure.case_id), self.references)
        if self.selection.is_recording or self.context.is_part or not is_last:
            compared = self._compare_speed(figure)
            if isinstance(compared, Verdict):
                return compared
            return _measured(figure, value, _JUDGED_LATER)
        return None if self._speeds is None else self._speeds[figure]

    def _measurement(self, figure: _Figure) -> Measurement:
        return _found(self.cases.ledger.find(figure.case_id, figure.number))

    def _acceptance_of(self, figure: _Figure) -> Verdict:
        """Return the verdict on acceptance on a planned launch."""
        if figure not in self._acceptance:
            launch = self._measurement(figure)
            pair_id = CaseLaunch.of(launch.case, figure.number).server.id
            with self.timeline.during(Phase.JUDGING, pair_id):
                try:
                    verdict = acceptance_on_launch(figure.metric, launch, self.references)
                except SpecregError:
                    raise
                except Exception as error:  # noqa: BLE001 - raised again if the launch is ours
                    verdict = self._bug(figure, error)
            self._acceptance[figure] = verdict
        return self._acceptance[figure]

    def _compare_speed(self, figure: _Figure) -> BaselineComparison | Verdict:
        """Return the launches of a speed beside its baselines, or its verdict without them."""
        try:
            return compare_speed(figure.metric, self._launches_of(figure), self.references)
        except SpecregError:
            raise
        except Exception as error:  # noqa: BLE001 - raised again if the launch is ours
            return self._bug(figure, error)

    def _bug(self, figure: _Figure, error: Exception) -> Verdict:
        """Return the verdict on a measurement that can't be calculated with.

        What another process wrote may be something that no calculation is prepared for. The
        verdicts on the other metrics and cases must not be lost with it.

        Raises:
            Exception: The error, if this process measured it.
        """
        ledger = self.cases.ledger_of(self._measurement(figure).case, figure.number)
        if ledger is None:
            raise error
        reason = Reason(
            text=f"ledger '{ledger}': a bug in specreg, {type(error).__name__}: {error}",
            remedy="measure the case anew, and report the bug with this file",
        )
        return Verdict(
            case_id=figure.case_id,
            metric=figure.metric_name,
            outcome=Outcome.INVALID,
            reason=reason,
        )

    def _launches_of(self, figure: _Figure) -> list[Measurement]:
        """Return the launches by which a speed is judged: up to its own, and then further ones."""
        last = figure.number
        if last == self.context.launches and not self.selection.is_recording:
            last += MORE_LAUNCHES
        launches = [self.cases.ledger.find(figure.case_id, number) for number in range(1, last + 1)]
        # A launch that failed has no measurement.
        return [launch.measurement for launch in launches if launch is not None]

    def _comparable_speeds(self) -> tuple[list[Speed], dict[_Figure, Verdict]]:
        """Return the speeds that can be compared, and the verdicts on the others."""
        speeds = []
        verdicts = {}
        for figure in self._figures():
            if not figure.metric.by_launch or figure.number != self.context.launches:
                continue
            compared = self._compare_speed(figure)
            if isinstance(compared, Verdict):
                verdicts[figure] = compared
            else:
                failure = self._failed.get(figure.case_id)
                speeds.append(Speed(metric=figure.metric, comparison=compared, failure=failure))
        return speeds, verdicts

    def _fresh_launch(self, case_id: str) -> Measurement | Reason | None:
        """Return the launch that confirms a loss of acceptance, or why there is none."""
        launch = self.cases.ledger.find(case_id, self.context.launches + 1)
        return self._unconfirmed.get(case_id) if launch is None else launch.measurement

    def _record_further_launches(self, launch: Launch, new_cases: Sequence[Case]) -> None:
        """Measure further launches of a server, as long as they let later runs detect more.

        The group has a share of the remaining time. A launch that would probably exceed the share
        isn't started.

        Args:
            launch: The last planned launch of the server.
            new_cases: The cases that were measured now, of which those of the server count.
        """
        # Find out how much time the group has, and how long a launch takes.
        cases = [case for case in new_cases if CaseLaunch.of(case, launch.number).server == launch]
        if not cases:
            return
        metrics = {case.id: self.selection.metrics_of(case) for case in cases}
        selected = self.selection.cases_of(self.context.tier)
        servers = {CaseLaunch.of(case, launch.number).server.id for case in selected}
        share_s = self.budget.share_s(launch.id, servers)
        launch_s = self._time_of(launch)
        # On each launch, measure only the cases whose speeds aren't known well enough yet.
        for number in range(launch.number + 1, MAX_LAUNCHES + 1):
            measurements = [measured.measurement for measured in self.cases.ledger.measured]
            undecided = self.budget.undecided(cases, metrics, measurements)
            # The next launch is expected to take as long as the last one.
            if not undecided or launch_s >= share_s:
                return
            began_ns = time.monotonic_ns()
            results = self.cases.measure_afresh(undecided, number)
            ended_ns = time.monotonic_ns()
            launch_s = (ended_ns - began_ns) / _NS_PER_S
            share_s -= launch_s
            self.budget.spend(launch_s)
            if len(_reasons(results)) == len(results):
                # The launch failed for all cases, so another one would probably fail too.
                return

    def _time_of(self, launch: Launch) -> float:
        """Return how long a launch took so far, in seconds."""
        pair_times = self.timeline.so_far().pairs
        return sum(pair_time.total_s for pair_time in pair_times if pair_time.pair == launch.id)

    def check(self, check: CorrectnessCheck, case: Case, servers: ServerSet) -> Verdict:
        """Return the verdict of a correctness check, which is made in the first call only.

        Raises:
            SpecregError: The check couldn't be made.
        """
        check_key = (case.id, check.name)
        if check_key not in self._checks:
            verdict = self.cases.check(check, case, servers)
            self._checks[check_key] = verdict
            self.add(verdict)
        return self._checks[check_key]

    def add(self, verdict: Verdict) -> None:
        """Add a verdict that needs no comparison."""
        self._order[verdict] = None

    def note_failure(self, case: Case, metric: str, reason: Reason, error: str = "") -> Verdict:
        """Return an INVALID verdict on a metric that couldn't be judged, and keep it.

        Args:
            case: The case.
            metric: The name of the metric or check.
            reason: Why it couldn't be judged.
            error: The full message of the error. For each case the report shows the first one.
        """
        if error:
            self.errors.setdefault(case.id, error)
        verdict = Verdict(case_id=case.id, metric=metric, outcome=Outcome.INVALID, reason=reason)
        self.add(verdict)
        return verdict

    def note_skip(self, case: Case, reason: str) -> None:
        """Note that a case was skipped after the run had started, and why."""
        self.skipped[case.id] = reason


def _found(launch: MeasuredLaunch | None) -> Measurement:
    """Return the measurement of a launch that is judged, and so was measured."""
    if launch is None:
        raise AssertionError("a launch is judged that wasn't measured")
    return launch.measurement


def _measured(figure: _Figure, value: float | None, reason: Reason | None = None) -> Verdict:
    return Verdict(
        case_id=figure.case_id,
        metric=figure.metric_name,
        outcome=Outcome.MEASURED,
        value=value,
        reason=reason,
    )


def _reasons(results: Mapping[str, Measurement | Reason]) -> dict[str, Reason]:
    """Return why cases have no measurement, by case id."""
    return {case_id: result for case_id, result in results.items() if isinstance(result, Reason)}
