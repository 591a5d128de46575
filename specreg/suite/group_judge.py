"""Judge the cases of a run, one server group after the other."""

import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from specreg.baselines.schema import Baseline
from specreg.core.errors import MemoryHeldError, SpecregError
from specreg.core.reasons import Reason
from specreg.core.timeline import Phase, Timeline
from specreg.correctness.checks import CorrectnessCheck
from specreg.matrix.case import Case
from specreg.measurement.metrics import Metric
from specreg.servers.launch import Launch
from specreg.suite.case_runner import CaseSource
from specreg.suite.context import CaseLaunch, RunContext
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
    """A verdict that changed when the whole run was looked at."""

    before: Verdict
    after: Verdict


@dataclass(slots=True, kw_only=True)
class GroupJudge:
    """Judges the cases of a run, and has what looks worse confirmed on fresh launches.

    Cases that share a server are a group. All of them are measured, checked and judged before the
    first test of the group ends, so that a fresh launch serves the whole group.

    Attributes:
        cases: where the measurements come from.
        budget: the time for further launches while recording.
        confirmation: compares the measurements with the baselines, and has all verdicts.
        errors: by the id of a case that failed otherwise than by a verdict, the first error in
            full.
        skipped: by the id of a case, what turned out to be missing once its server started.
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
        first_further = self.context.launches
        self.confirmation = Confirmation(
            baselines_of=self.context.baselines_of,
            measure_afresh=lambda cases, further: self.cases.measure_afresh(
                cases, first_further + further
            ),
            nights=self._nights(),
            softened=self.context.softened,
            holds_by_nights=self.context.holds_by_nights,
        )

    def _nights(self) -> MachineNights:
        """Return the nights of this machine, as its baselines and its history tell them."""
        baselines: dict[str, Baseline] = {}
        history = NO_HISTORY
        if not self.selection.is_recording and self.context.provision.url is None:
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
        """Judge a metric of a case, and with it the whole group of cases that share its server.

        Raises:
            SpecregError: the case couldn't be measured.
            MemoryHeldError: a GPU hasn't got its memory back, so nothing more may be measured.
        """
        row_key = (case.id, metric.name, servers.launch.number)
        if row_key not in self._rows:
            # First, so that an error of this case is raised in its own tests.
            self.cases.measure(case, servers)
            self._judge_group(servers)
        return self.confirmation.verdicts[self._rows[row_key]]

    def _judge_group(self, servers: ServerSet) -> None:
        """Measure, check and judge all cases of a group."""
        launch = servers.launch
        for case in self._group(launch):
            try:
                self._judge_case(case, servers)
            except MemoryHeldError:
                raise
            except SpecregError:  # the tests of the case itself say so
                continue
        if not self.selection.is_recording:
            # Now, while no other server runs: a fresh launch serves all cases of the group.
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
        """Measure, judge and check a case on one launch."""
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
        """Judge a metric of a launch, and return the row of its verdict.

        Speeds are judged with the last launch, on all of them. While recording, only validity
        counts.
        """
        launches = [
            launch.measurement
            for n in range(1, number + 1)
            if (launch := self.cases.launches.find(case, n)) is not None
        ]
        measurement = launches[-1]
        value = measurement.values.get(metric.name)
        waits = metric.by_launch and number < self.context.launches
        if value is not None and (self.selection.is_recording or waits):
            verdict = Verdict(case_id=case.id, metric=metric.name, outcome=Outcome.MEASURED)
            return self.confirmation.add(dataclasses.replace(verdict, value=value))
        earlier = [launch for launch in launches[:-1] if metric.family not in launch.invalid]
        return self.confirmation.judge(metric, [*earlier, measurement])

    def _record_further_launches(self, launch: Launch) -> None:
        """Measure more launches of a server while that lets later runs judge more.

        The group has its share of the time that is left. A launch isn't begun if the last one took
        longer than what is left of the share.
        """
        cases = self._group(launch)
        metrics = {case.id: self.selection.metrics_of(case) for case in cases}
        selected = self.selection.cases_of(self.context.tier)
        servers = {CaseLaunch.of(case, launch.number).server.id for case in selected}
        share_s = self.budget.share_s(launch.id, servers)
        launch_s = self._time_of(launch)
        for number in range(launch.number + 1, MAX_LAUNCHES + 1):
            measurements = [measured.measurement for measured in self.cases.launches]
            undecided = self.budget.undecided(cases, metrics, measurements)
            # The next launch is expected to take as long as the last one.
            if not undecided or launch_s >= share_s:
                return
            began_ns = time.monotonic_ns()
            results = self.cases.measure_afresh(undecided, number)
            launch_s = (time.monotonic_ns() - began_ns) / _NS_PER_S
            share_s -= launch_s
            self.budget.spend(launch_s)
            if all(isinstance(result, Reason) for result in results.values()):
                return  # no further launch starts

    def _time_of(self, launch: Launch) -> float:
        """Return how long a launch took so far, in seconds."""
        pairs = self.timeline.so_far().pairs
        return sum(pair.total_s for pair in pairs if pair.pair == launch.id)

    def check(self, check: CorrectnessCheck, case: Case, servers: ServerSet) -> Verdict:
        """Check what must hold of a case whatever its baseline says; once.

        Raises:
            SpecregError: the check couldn't be made.
        """
        check_key = (case.id, check.name)
        if check_key not in self._checks:
            verdict = self.cases.check(check, case, servers)
            self._checks[check_key] = verdict
            self.confirmation.add(verdict)
        return self._checks[check_key]

    def note_failure(self, case: Case, metric: str, reason: Reason, error: str = "") -> Verdict:
        """Note that a metric couldn't be judged, so that no table leaves it out.

        Args:
            case: whose metric it is.
            metric: the name of the metric or check.
            reason: why.
            error: the whole message, which the report shows once for each case.
        """
        if error:
            self.errors.setdefault(case.id, error)
        verdict = Verdict(case_id=case.id, metric=metric, outcome=Outcome.INVALID, reason=reason)
        self.confirmation.add(verdict)
        return verdict

    def note_skip(self, case: Case, reason: str) -> None:
        """Note that a case was skipped because of what turned out to be missing."""
        self.skipped[case.id] = reason

    def conclude(self) -> tuple[VerdictChange, ...]:
        """Look at all verdicts together, and return those whose outcome changes."""
        before = self.verdicts
        self.confirmation.conclude()
        return tuple(
            VerdictChange(earlier, later)
            for earlier, later in zip(before, self.verdicts, strict=True)
            if earlier.outcome is not later.outcome
        )


def render_changes(changes: tuple[VerdictChange, ...]) -> str:
    """Return a sentence on verdicts that changed at the end of the run."""
    parts = [
        f"{change.after.case_id} {change.after.metric}:"
        f" {change.before.outcome} -> {change.after.outcome}"
        for change in changes
    ]
    noun = "verdict" if len(changes) == 1 else "verdicts"
    return f"{len(changes)} {noun} changed when the whole run was looked at: {', '.join(parts)}"


def properties_of(changes: tuple[VerdictChange, ...]) -> Mapping[str, str]:
    """Return the changes as properties of the whole run for JUnit's file.

    JUnit's properties of the tests were written before.
    """
    return {
        f"specreg.final.{change.after.case_id}.{change.after.metric}": (
            f"{change.after.outcome}: {change.after.explanation}"
        )
        for change in changes
    }
