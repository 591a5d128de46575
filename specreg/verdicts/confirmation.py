"""Judge the figures of one run, and look again at those that need a fresh launch.

It also says when a case has been measured enough.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from types import MappingProxyType

from specreg.acceptance.record import AcceptanceRecord
from specreg.baselines.comparison import BaselineComparison, CaseBaselines, compare
from specreg.core.errors import BaselineError
from specreg.core.reasons import Reason
from specreg.matrix.case import Case
from specreg.measurement.measure import Measurement, StoppingRule, values_of
from specreg.measurement.metrics import METRICS, Metric, Replay
from specreg.stats.intervals import MORE_LAUNCHES, Look
from specreg.verdicts.judge import judge
from specreg.verdicts.multiple_testing import blame_machine, confirm, hold_together
from specreg.verdicts.verdict import Lack, Outcome, Verdict

MeasureAfresh = Callable[[Sequence[Case], int], Mapping[str, Measurement | Reason]]
"""Takes cases and the number of a further launch, from 1, and measures the cases on it.

It gives, by the case's id, the measurement or the reason why there is none.
"""


@dataclass(slots=True, kw_only=True)
class Confirmation:
    """The verdicts of a run, and those that wait for another launch before they are final.

    Attributes:
        known_of: gives the baselines of a case; raises BaselineError.
        measure_afresh: measures cases on a further launch.
        softened: the metrics whose tests pass although an effect is INCONCLUSIVE.
        verdicts: all so far, in the order of the run, including those that need no comparison. A
            verdict that waits is among them as it looked.
        _waiting: by row of a verdict that waits, the launches that it judged.
        _compared: by figure of a speed, the launch that its verdict is about.
        _latest: the last comparison that was made, because the metrics of a case share one.
    """

    known_of: Callable[[Case], CaseBaselines]
    measure_afresh: MeasureAfresh
    softened: AbstractSet[str] = frozenset()
    verdicts: list[Verdict] = field(default_factory=list)
    _waiting: dict[int, tuple[Measurement, ...]] = field(default_factory=dict)
    _compared: dict[tuple[str, str], BaselineComparison] = field(default_factory=dict)
    _latest: BaselineComparison | None = None

    def judge(self, metric: Metric, launches: Sequence[Measurement]) -> None:
        """Judge a metric of a case's launches: acceptance by the last one, a speed by all.

        A verdict that looks worse, or a speed that these launches can't decide, waits for
        `confirm`.
        """
        verdict = self._look(metric, launches, Look.LAUNCH)
        if verdict.outcome is Outcome.REGRESSED or _is_undecided(metric, verdict):
            self._waiting[len(self.verdicts)] = tuple(launches)
        self.verdicts.append(verdict)

    def confirm(self) -> None:
        """Look at the verdicts that wait on fresh launches, MORE_LAUNCHES at most.

        What the control beside a case did too is the machine's doing.
        """
        for number in range(1, MORE_LAUNCHES + 1):
            cases = {launches[-1].case.id: launches[-1].case for launches in self._waiting.values()}
            if not cases:
                return
            fresh = self.measure_afresh(list(cases.values()), number)
            for row in tuple(self._waiting):
                if not self._look_again(row, fresh[self.verdicts[row].case_id]):
                    self._settle(row)
        for row in tuple(self._waiting):
            if self.verdicts[row].outcome is Outcome.REGRESSED:
                self._leave_open(row, "no launch was left to confirm it")
            self._settle(row)

    def conclude(self, hosts: Mapping[str, str] = MappingProxyType({})) -> None:
        """Look at all verdicts of the run together, which never makes a red one green.

        A verdict that still waits, because the run was cut short, is INCONCLUSIVE.

        Args:
            hosts: by case's id the machine that measured it, if there were several. Each machine
                is blamed for its own cases only.
        """
        for row in self._waiting:
            self._leave_open(row, "the run ended before another")
        concluded = list(self.verdicts)
        verdict_hosts = [hosts.get(verdict.case_id, "") for verdict in concluded]
        for host in dict.fromkeys(verdict_hosts):
            rows = [row for row, name in enumerate(verdict_hosts) if name == host]
            blamed = blame_machine([concluded[row] for row in rows], self._compared)
            for row, verdict in zip(rows, blamed, strict=True):
                concluded[row] = verdict
        self.verdicts[:] = [self._soften(verdict) for verdict in hold_together(concluded)]

    def _settle(self, row: int) -> None:
        """Take a verdict off those that wait."""
        launch = self._waiting.pop(row)[-1]
        verdict = self.verdicts[row]
        if METRICS[verdict.metric].by_launch:
            self._compared[verdict.figure] = compare([launch], self.known_of(launch.case))
            (self.verdicts[row],) = blame_machine([verdict], self._compared)

    def _leave_open(self, row: int, why: str) -> None:
        """Make a verdict that waits INCONCLUSIVE."""
        verdict = self.verdicts[row]
        reason = Reason(text=f"{verdict.outcome} at a look, and {why}")
        self.verdicts[row] = dataclasses.replace(
            verdict, outcome=Outcome.INCONCLUSIVE, reason=reason
        )

    def _look(self, metric: Metric, launches: Sequence[Measurement], look: Look) -> Verdict:
        """Return the verdict at one look; for acceptance at the look its measurement had."""
        last = launches[-1]
        try:
            if self._latest is None or self._latest.launches != tuple(launches):
                self._latest = compare(launches, self.known_of(last.case))
        except BaselineError as error:
            return _unreadable(metric, last, error)
        its_look = look if metric.by_launch else last.look
        return self._soften(judge(metric, self._latest, its_look))

    def _soften(self, verdict: Verdict) -> Verdict:
        return dataclasses.replace(verdict, softened=verdict.metric in self.softened)

    def _look_again(self, row: int, fresh: Measurement | Reason) -> bool:
        """Judge a figure with a fresh launch, and return whether it needs another.

        A loss must be repeated by the fresh launch alone, and what it doesn't repeat is forgotten,
        because the launch that had it was picked for it. What was undecided is judged by all
        launches so far; a loss that shows then is one to be repeated.
        """
        before = self.verdicts[row]
        metric = METRICS[before.metric]
        if isinstance(fresh, Reason):
            reason = Reason(
                code=fresh.code,
                text=f"{before.outcome} at a first look, and no further launch: {fresh.text}",
                remedy=fresh.remedy,
            )
            after = dataclasses.replace(before, outcome=Outcome.INVALID, reason=reason)
        elif metric.family in fresh.invalid:
            self._waiting[row] = (fresh,)
            after = self._look(metric, self._waiting[row], Look.LAUNCH)
        elif before.outcome is Outcome.REGRESSED:
            self._waiting[row] = (fresh,)
            after = confirm(before, self._look(metric, self._waiting[row], Look.LAUNCH))
        else:
            self._waiting[row] = (*self._waiting[row], fresh)
            after = self._look(metric, self._waiting[row], Look.FURTHER_LAUNCH)
        self.verdicts[row] = after
        is_new_loss = before.outcome is not Outcome.REGRESSED and after.outcome is Outcome.REGRESSED
        return is_new_loss or _is_undecided(metric, after)


def _unreadable(metric: Metric, launch: Measurement, error: BaselineError) -> Verdict:
    """Return the verdict on a metric whose baseline can't be read."""
    invalidity = launch.invalid.get(metric.family)
    if invalidity is not None:
        outcome = Outcome.INVALID
        reason = Reason.of(invalidity)
        lacks = None
    else:
        outcome = Outcome.NO_BASELINE
        reason = Reason(text=str(error))
        lacks = Lack.FILE
    return Verdict(
        case_id=launch.case.id,
        metric=metric.name,
        outcome=outcome,
        value=launch.values.get(metric.name),
        reason=reason,
        lacks=lacks,
    )


def _is_undecided(metric: Metric, verdict: Verdict) -> bool:
    """Return whether another launch may decide a verdict; acceptance has had its extension."""
    return metric.by_launch and verdict.outcome is Outcome.INCONCLUSIVE


def enough_for(
    case: Case, metrics: Sequence[Metric], known: CaseBaselines, *, may_stop_early: bool
) -> StoppingRule:
    """Return a function that says whether the prompts measured so far decide some metrics.

    Few prompts may show a loss; that there is none takes all of them.

    Args:
        case: the case that is measured.
        metrics: metrics of acceptance, one at least; the first may show a loss early.
        known: the baselines that apply to the case.
        may_stop_early: whether nothing else is judged that takes all prompts.
    """

    def is_enough(acceptance: AcceptanceRecord | None, look: Look) -> bool:
        is_early = look is Look.EARLY
        if acceptance is None or not acceptance.prompt_ids:
            return not is_early  # more prompts say nothing more about a sum
        if is_early and not may_stop_early:
            return False
        evidence = compare((measured_prompts(case, acceptance),), known)
        looked_at = metrics[:1] if is_early else metrics
        outcomes = {judge(metric, evidence, look).outcome for metric in looked_at}
        if is_early:
            return outcomes == {Outcome.REGRESSED}
        return Outcome.INCONCLUSIVE not in outcomes

    return is_enough


def measured_prompts(case: Case, acceptance: AcceptanceRecord) -> Measurement:
    """Return a measurement that has acceptance only."""
    replay = Replay(acceptance=acceptance, limits=case.limits)
    return Measurement(
        case=case,
        engine_version="",
        target="",
        draft=None,
        replay=replay,
        values=values_of(case, replay),
    )
