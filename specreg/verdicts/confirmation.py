"""Judge the figures of one run, and look again at those that need a fresh launch.

It also says when a case has been measured enough.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from types import MappingProxyType

from specreg.acceptance.record import AcceptanceRecord
from specreg.baselines.comparison import CaseBaselines, Comparison, compare
from specreg.core.errors import BaselineError
from specreg.matrix.case import Case
from specreg.measurement.measure import Enough, Measurement, values_of
from specreg.measurement.metrics import METRICS, Metric, Replay
from specreg.stats.intervals import MORE_LAUNCHES, Look
from specreg.verdicts.judge import Lack, Outcome, Verdict, judge
from specreg.verdicts.multiple_testing import blame_machine, confirm, hold_together


@dataclass(slots=True, kw_only=True)
class Confirmation:
    """The verdicts of a run, the last word on each included.

    Attributes:
        known_of: raises BaselineError.
        measure_afresh: measures cases on a launch more, the first, second or third; by case's id,
            the measurement or why there is none.
        softened: the metrics whose tests pass where an effect is INCONCLUSIVE.
        verdicts: so far, in the order of the run, those that need no comparison too; what waits
            is among them as it looked.
        _waiting: by row of a verdict that needs another look, the launches that it is of.
    """

    known_of: Callable[[Case], CaseBaselines]
    measure_afresh: Callable[[Sequence[Case], int], Mapping[str, Measurement | str]]
    softened: AbstractSet[str] = frozenset()
    verdicts: list[Verdict] = field(default_factory=list)
    _waiting: dict[int, tuple[Measurement, ...]] = field(default_factory=dict)
    _compared: dict[tuple[str, str], Comparison] = field(default_factory=dict)
    _last: Comparison | None = None

    def judge(self, metric: Metric, launches: Sequence[Measurement]) -> None:
        """Judge a metric of a case's launches; acceptance by the last, a speed by all.

        What looks worse, and a speed that these launches can't tell, waits for `confirm`.
        """
        verdict = self._look(metric, launches, Look.LAUNCH)
        if verdict.outcome is Outcome.REGRESSED or _is_undecided(metric, verdict):
            self._waiting[len(self.verdicts)] = tuple(launches)
        self.verdicts.append(verdict)

    def confirm(self) -> None:
        """Look at what waits on fresh launches, MORE_LAUNCHES at most.

        What the server without speculation beside a case did too is the machine's doing.
        """
        for further in range(1, MORE_LAUNCHES + 1):
            cases = {of[-1].case.id: of[-1].case for of in self._waiting.values()}
            fresh = self.measure_afresh(list(cases.values()), further) if cases else {}
            for row in tuple(self._waiting):
                if not self._look_again(row, fresh[self.verdicts[row].case_id]):
                    self._settle(row)
        for row in tuple(self._waiting):
            if self.verdicts[row].outcome is Outcome.REGRESSED:
                self._leave_open(row, "no launch was left to confirm it")
            self._settle(row)

    def conclude(self, hosts: Mapping[str, str] = MappingProxyType({})) -> None:
        """Look at all verdicts of the run together, which never makes a red one green.

        What still waits, the run being cut short, is INCONCLUSIVE. `hosts` says by case's id the
        machine that measured it, where there were several: each is blamed for its own cases alone.
        """
        for row in self._waiting:
            self._leave_open(row, "the run ended before another")
        blamed = list(self.verdicts)
        for host in dict.fromkeys(hosts.get(one.case_id, "") for one in blamed):
            rows = [row for row, one in enumerate(blamed) if hosts.get(one.case_id, "") == host]
            alike = blame_machine([blamed[row] for row in rows], self._compared)
            for row, verdict in zip(rows, alike, strict=True):
                blamed[row] = verdict
        self.verdicts[:] = map(self._soften, hold_together(blamed))

    def _settle(self, row: int) -> None:
        """Take a figure off those that wait."""
        last, verdict = self._waiting.pop(row)[-1], self.verdicts[row]
        if METRICS[verdict.metric].by_launch:
            place = verdict.case_id, verdict.metric
            self._compared[place] = compare([last], self.known_of(last.case))
            (self.verdicts[row],) = blame_machine([verdict], self._compared)

    def _leave_open(self, row: int, why: str) -> None:
        left = self.verdicts[row]
        reason = f"{left.outcome} at a look, and {why}"
        self.verdicts[row] = dataclasses.replace(left, outcome=Outcome.INCONCLUSIVE, reason=reason)

    def _look(self, metric: Metric, launches: Sequence[Measurement], look: Look) -> Verdict:
        """Return the verdict at one look; for acceptance at the look its measurement had."""
        try:
            if self._last is None or self._last.launches != tuple(launches):
                self._last = compare(launches, self.known_of(launches[-1].case))
        except BaselineError as error:
            last = launches[-1]
            invalid = last.invalid.get(metric.family)
            return Verdict(
                case_id=last.case.id,
                metric=metric.name,
                outcome=Outcome.INVALID if invalid else Outcome.NO_BASELINE,
                reason=invalid or str(error),
                lacks=None if invalid else Lack.FILE,
                value=last.values.get(metric.name),
            )
        its_look = look if metric.by_launch else launches[-1].look
        return self._soften(judge(metric, self._last, its_look))

    def _soften(self, verdict: Verdict) -> Verdict:
        return dataclasses.replace(verdict, softened=verdict.metric in self.softened)

    def _look_again(self, row: int, fresh: Measurement | str) -> bool:
        """Judge a figure with a fresh launch; whether it needs another.

        Alone it must repeat a loss, and what it doesn't repeat is forgotten: the launch that had it
        was picked for it. What was undecided is judged by all launches so far; a loss that shows
        then is one to be repeated.
        """
        before = self.verdicts[row]
        metric = METRICS[before.metric]
        if isinstance(fresh, str):
            reason = f"{before.outcome} at a first look, and no further launch: {fresh}"
            after = dataclasses.replace(before, outcome=Outcome.INVALID, reason=reason)
        elif before.outcome is Outcome.REGRESSED or metric.family in fresh.invalid:
            self._waiting[row] = (fresh,)
            after = self._look(metric, self._waiting[row], Look.LAUNCH)
            if metric.family not in fresh.invalid:
                after = confirm(before, after)
        else:
            self._waiting[row] = (*self._waiting[row], fresh)
            after = self._look(metric, self._waiting[row], Look.FURTHER_LAUNCH)
        self.verdicts[row] = after
        newly = before.outcome is not Outcome.REGRESSED and after.outcome is Outcome.REGRESSED
        return newly or _is_undecided(metric, after)


def _is_undecided(metric: Metric, verdict: Verdict) -> bool:
    """Whether another launch may decide it; acceptance has had its extension."""
    return metric.by_launch and verdict.outcome is Outcome.INCONCLUSIVE


def enough_for(
    case: Case, metrics: Sequence[Metric], known: CaseBaselines, *, may_stop_early: bool
) -> Enough:
    """Return an Enough: some acceptance metrics are decided, or the first shows a loss early.

    Few prompts may show a loss; that there is none takes all of them. `metrics` are of acceptance,
    one at least; `may_stop_early` says that nothing else is judged that takes all prompts.
    """

    def enough(acceptance: AcceptanceRecord | None, look: Look) -> bool:
        is_early = look is Look.EARLY
        if acceptance is None or not acceptance.prompts:
            return not is_early  # of a sum alone, more prompts tell nothing more
        if is_early and not may_stop_early:
            return False
        comparison = compare((measured_prompts(case, acceptance),), known)
        asked = metrics[:1] if is_early else metrics
        found = {judge(metric, comparison, look).outcome for metric in asked}
        return found == {Outcome.REGRESSED} if is_early else Outcome.INCONCLUSIVE not in found

    return enough


def measured_prompts(case: Case, acceptance: AcceptanceRecord) -> Measurement:
    """A measurement of acceptance alone."""
    replay = Replay(acceptance=acceptance, limits=case.limits)
    values = values_of(case, replay)
    return Measurement(
        case=case, engine_version="", target="", draft=None, replay=replay, values=values
    )
