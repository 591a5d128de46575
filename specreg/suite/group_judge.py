"""Judge the cases of a run, one server group after the other."""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from specreg.baselines.schema import Baseline
from specreg.core.counted import counted
from specreg.core.errors import MemoryHeldError, SpecregError
from specreg.core.reasons import Reason
from specreg.core.timeline import Phase, Timeline
from specreg.correctness.checks import CorrectnessCheck
from specreg.matrix.case import Case
from specreg.measurement.metrics import Metric
from specreg.runs.goals import CaseLaunch
from specreg.servers.launch import Launch
from specreg.suite.case_runner import CaseSource
from specreg.suite.context import RunContext
from specreg.suite.recording import RecordingBudget
from specreg.suite.selection import Selection
from specreg.suite.server_set import ServerSet
from specreg.verdicts.confirmation import Confirmation
from specreg.verdicts.detection import MAX_LAUNCHES
from specreg.verdicts.history import NO_HISTORY
from specreg.verdicts.nights import MachineNights
from specreg.verdicts.verdict import Outcome, Verdict

_NS_PER_S = 10**9


@dataclass(frozen=True, slots=True)
class VerdictChange:
    """A verdict that changed after its test had ended."""

    before: Verdict
    after: Verdict


@dataclass(slots=True, kw_only=True)
class GroupJudge:
    """Judges the cases of a run, and has losses confirmed on fresh launches.

    Cases that share a server are a group. All of them are measured, checked and judged in the first
    test of the group, so that one fresh launch can confirm the losses of the whole group.

    Attributes:
        context: What is fixed for the run.
        selection: The metrics and checks that the tests need.
        cases: Where the measurements come from.
        budget: The time for further launches while recording.
        timeline: Records how long judging takes.
        confirmation: Compares the measurements with the baselines, and keeps all verdicts.
        errors: The full text of the first error of each case that couldn't be judged, by case id.
        skipped: Why a case was skipped after the run had started, by case id.
        _rows: The index of each verdict in `confirmation.verdicts`, by case id, metric and launch.
        _checks: The verdict of each correctness check, by case id and check.
    """

    context: RunContext
    selection: Selection
    cases: CaseSource
    budget: RecordingBudget
    timeline: Timeline
    confirmation: Confirmation = field(init=False)
    errors: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    _rows: dict[tuple[str, str, int], int] = field(default_factory=dict)
    _checks: dict[tuple[str, str], Verdict] = field(default_factory=dict)

    def __post_init__(self) -> None:
        planned_launches = self.context.launches
        self.confirmation = Confirmation(
            baselines_of=self.context.baselines_of,
            measure_afresh=lambda cases, further: self.cases.measure_afresh(
                cases, planned_launches + further
            ),
            nights=self._nights(),
            softened=self.context.softened,
            holds_by_nights=self.context.holds_by_nights,
        )

    def _nights(self) -> MachineNights:
        """Return the earlier nights of this machine, from its baselines and its history.

        There are none for a run that records, or that measures an attached server.
        """
        baselines: dict[str, Baseline] = {}
        history = NO_HISTORY
        if not self.selection.is_recording and self.context.provision.attached is None:
            baselines = {path.stem: baseline for path, baseline in self.context.store.own().items()}
            history = self.context.load_history().without(self.context.name)
        return MachineNights(
            baselines=baselines,
            history=history,
            cases=self.selection.run_cases,
            hosts=self.cases.hosts,
        )

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """All verdicts so far, in the order of the run."""
        return self.confirmation.verdicts

    def judge(self, metric: Metric, case: Case, servers: ServerSet) -> Verdict:
        """Return the verdict on a metric of a case.

        The first call for a group on a launch measures, checks and judges all cases of the group.

        Raises:
            SpecregError: The case couldn't be measured.
            MemoryHeldError: The memory of a GPU isn't free, so nothing more can be measured there.
        """
        row_key = (case.id, metric.name, servers.launch.number)
        if row_key not in self._rows:
            # This case is measured before its group, so that its error is raised in its own test.
            self.cases.measure(case, servers)
            self._judge_group(servers)
        return self.confirmation.verdicts[self._rows[row_key]]

    def _judge_group(self, servers: ServerSet) -> None:
        """Measure, check and judge all cases of a group, and have their losses confirmed.

        While recording, no loss is confirmed. Further launches follow the last planned one instead.

        Raises:
            MemoryHeldError: The memory of a GPU isn't free, so nothing more can be measured there.
        """
        launch = servers.launch
        for case in self._group(launch):
            try:
                self._judge_case(case, servers)
            except MemoryHeldError:
                raise
            except SpecregError:
                # The tests of the case itself raise the error again.
                continue
        if not self.selection.is_recording:
            # The losses of the group are confirmed now, on one fresh launch for all its cases.
            self.confirmation.confirm()
        elif launch.number == self.context.launches:
            self._record_further_launches(launch)

    def _group(self, launch: Launch) -> list[Case]:
        """Return the selected cases that share a server."""
        return [
            case
            for case in self.selection.cases_of(self.context.tier)
            if CaseLaunch.of(case, launch.number).server == launch
        ]

    def _judge_case(self, case: Case, servers: ServerSet) -> None:
        """Measure, judge and check a case on one launch.

        Raises:
            SpecregError: The case couldn't be measured or checked.
        """
        launch = servers.launch
        metrics = self.selection.metrics_of(case)
        if metrics:
            self.cases.measure(case, servers)
        with self.timeline.during(Phase.JUDGING, launch.id):
            for metric in metrics:
                row_key = (case.id, metric.name, launch.number)
                self._rows[row_key] = self._judge_metric(metric, case, launch.number)
        for check in self.selection.checks_of(case, launch.number):
            self.check(check, case, servers)

    def _judge_metric(self, metric: Metric, case: Case, number: int) -> int:
        """Judge a metric of a launch, and return the index of its verdict.

        A speed is judged once, at the last planned launch and on all valid launches together. At
        the launches before, its valid measurements get the outcome MEASURED. While recording, the
        valid measurements of all metrics get this outcome at each launch.
        """
        measurements = []
        for launch_number in range(1, number + 1):
            launch = self.cases.ledger.find(case.id, launch_number)
            # A launch that failed has no measurement.
            if launch is not None:
                measurements.append(launch.measurement)
        measurement = measurements[-1]
        value = measurement.values.get(metric.name)
        waits = metric.by_launch and number < self.context.launches
        if value is not None and (self.selection.is_recording or waits):
            verdict = Verdict(case_id=case.id, metric=metric.name, outcome=Outcome.MEASURED)
            return self.confirmation.add(dataclasses.replace(verdict, value=value))
        # An invalid earlier launch is left out. An invalid last one makes the verdict INVALID.
        valid_earlier = [
            earlier for earlier in measurements[:-1] if metric.family not in earlier.invalid
        ]
        try:
            return self.confirmation.judge(metric, [*valid_earlier, measurement])
        except SpecregError:
            raise
        except Exception as error:
            # What another process wrote may be something that no calculation is prepared for. The
            # verdicts on the other metrics and cases must not be lost with it.
            ledger = self.cases.ledger_of(case, number)
            if ledger is None:
                raise
            reason = Reason(
                text=f"ledger '{ledger}': a bug in specreg, {type(error).__name__}: {error}",
                remedy="measure the case anew, and report the bug with this file",
            )
            verdict = Verdict(
                case_id=case.id, metric=metric.name, outcome=Outcome.INVALID, reason=reason
            )
            return self.confirmation.add(verdict)

    def _record_further_launches(self, launch: Launch) -> None:
        """Measure further launches of a server, as long as they let later runs detect more.

        The group has a share of the remaining time. A launch that would probably exceed the share
        isn't started.

        Args:
            launch: The last planned launch of the server.
        """
        # Find out how much time the group has, and how long a launch takes.
        cases = self._group(launch)
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
            if all(isinstance(result, Reason) for result in results.values()):
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
            self.confirmation.add(verdict)
        return self._checks[check_key]

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
        self.confirmation.add(verdict)
        return verdict

    def note_skip(self, case: Case, reason: str) -> None:
        """Note that a case was skipped after the run had started, and why."""
        self.skipped[case.id] = reason

    def conclude(self) -> None:
        """Judge all verdicts of the run together."""
        self.confirmation.conclude()

    def revise(self, judge_again: Callable[[Verdict], Verdict]) -> None:
        """Replace each verdict by what a function returns for it."""
        self.confirmation.revise(judge_again)


def changes_between(before: Sequence[Verdict], after: Sequence[Verdict]) -> Sequence[VerdictChange]:
    """Return the verdicts whose outcome changed.

    Args:
        before: The verdicts with which the tests ended.
        after: The same verdicts at the end of the run.
    """
    return [
        VerdictChange(earlier, later)
        for earlier, later in zip(before, after, strict=True)
        if earlier.outcome is not later.outcome
    ]


def render_changes(changes: Sequence[VerdictChange]) -> str:
    """Return a sentence about the verdicts that changed at the end of the run."""
    parts = [
        f"{change.after.case_id} {change.after.metric}:"
        f" {change.before.outcome} -> {change.after.outcome}"
        for change in changes
    ]
    verdicts = counted(len(changes), "verdict")
    return f"{verdicts} changed when the whole run was judged: {', '.join(parts)}"


def properties_of(changes: Sequence[VerdictChange]) -> Mapping[str, str]:
    """Return the changes as properties of the whole run for JUnit's file.

    They can't be properties of the tests, because those were written when each test ended.
    """
    return {
        f"specreg.final.{change.after.case_id}.{change.after.metric}": (
            f"{change.after.outcome}: {change.after.explanation}"
        )
        for change in changes
    }
