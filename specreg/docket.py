"""The docket of one run: measured launches in, verdicts out, at once or after a second look."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from specreg.comparison import Comparison, Known, compare
from specreg.confirming import blame_machine, confirm, hold_together
from specreg.errors import BaselineError
from specreg.matrix import Case
from specreg.measurement import Measurement
from specreg.metrics import Metric
from specreg.sequential import MORE_LAUNCHES, Look
from specreg.verdict import Outcome, Verdict, judge, judge_at_looks

Place = tuple[str, str, int]
"""A case's id, a metric's name and the launch it is judged with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Postponed:
    """A figure that is looked at once more, on a fresh launch at the end of the run.

    Attributes:
        metric: which.
        launches: what the next one is to be judged with.
        said: what the last look said; `row`: its place among the verdicts.
    """

    metric: Metric
    launches: tuple[Measurement, ...]
    said: Verdict
    row: int

    @property
    def case(self) -> Case:
        """Of which case."""
        return self.launches[-1].case


@dataclass(slots=True, kw_only=True)
class Docket:
    """What a run judges.

    Attributes:
        known_of: what the baselines know of a case; raises BaselineError.
        measure_afresh: measures cases on the how-manieth launch more, from 1; by case's id, what
            came of it or why nothing did.
        softened: the metrics whose tests pass where there is no telling.
        verdicts: so far, in the order of the run; one that is postponed is among them as it
            looked at first.
    """

    known_of: Callable[[Case], Known]
    measure_afresh: Callable[[Sequence[Case], int], Mapping[str, Measurement | str]]
    softened: AbstractSet[str] = frozenset()
    verdicts: list[Verdict] = field(default_factory=list)
    _postponed: dict[Place, Postponed] = field(default_factory=dict)
    _last: Comparison | None = None
    _settled: bool = False

    def note(self, verdict: Verdict) -> None:
        """Takes a verdict that needs no comparison."""
        self.verdicts.append(verdict)

    def judge(self, metric: Metric, launches: Sequence[Measurement]) -> Verdict | None:
        """Judges a metric of a case's launches.

        What looks worse, and a speed that these launches can't tell, is looked at again on a fresh
        launch at the end of the run: there is no verdict then, and one when asked a second time.

        Args:
            metric: what to judge.
            launches: of one case; acceptance is judged by the last, a speed by all.
        """
        place = (launches[-1].case.id, metric.name, len(launches))
        if place in self._postponed:
            self._settle()
            return self.verdicts[self._postponed[place].row]
        verdict = self._look(metric, launches, Look.LAUNCH)
        again = verdict.outcome is Outcome.REGRESSED or _undecided(metric, verdict)
        self.verdicts.append(verdict)
        if not again:
            return verdict
        self._postponed[place] = Postponed(
            metric=metric, launches=tuple(launches), said=verdict, row=len(self.verdicts) - 1
        )
        return None

    def give_up(self) -> int:
        """What was to be looked at again and wasn't, the run being cut short, is INCONCLUSIVE.

        Returns:
            How many figures that were.
        """
        if self._settled:
            return 0
        for one in self._postponed.values():
            self._leave_open(one, "the run ended before another")
        return len(self._postponed)

    def _leave_open(self, postponed: Postponed, why: str) -> None:
        said = postponed.said
        reason = f"{said.outcome} at a look, and {why}"
        self.verdicts[postponed.row] = dataclasses.replace(
            said, outcome=Outcome.INCONCLUSIVE, reason=reason
        )

    def _look(self, metric: Metric, launches: Sequence[Measurement], look: Look) -> Verdict:
        """One look; that of acceptance is the one that its measurement had."""
        try:
            comparison = self._compare(launches)
        except BaselineError as error:
            last = launches[-1]
            invalid = last.invalid.get(metric.family)
            return Verdict(
                case_id=last.case.id,
                metric=metric.name,
                outcome=Outcome.INVALID if invalid else Outcome.NO_BASELINE,
                reason=invalid or str(error),
                value=last.values.get(metric.name),
            )
        verdict = (
            judge(metric, comparison, look)
            if metric.by_launch
            else judge_at_looks(metric, comparison)
        )
        return self._soften(verdict)

    def _soften(self, verdict: Verdict) -> Verdict:
        return dataclasses.replace(verdict, softened=verdict.metric in self.softened)

    def _compare(self, launches: Sequence[Measurement]) -> Comparison:
        """The comparison, kept until another is asked for: a case's metrics come in a row."""
        if self._last is None or self._last.launches != tuple(launches):
            self._last = compare(launches, self.known_of(launches[-1].case))
        return self._last

    def _settle(self) -> None:
        """Looks at what was postponed on fresh launches, then at all verdicts together."""
        if self._settled:
            return
        waiting = dict(self._postponed)
        for further in range(1, MORE_LAUNCHES + 1):
            cases = list({one.case.id: one.case for one in waiting.values()}.values())
            fresh = self.measure_afresh(cases, further) if cases else {}
            for place, one in tuple(waiting.items()):
                again, waits = self._again(one, fresh[one.case.id])
                self.verdicts[one.row] = again.said
                self._postponed[place] = waiting[place] = again
                if not waits:
                    del waiting[place]
        for one in waiting.values():
            if one.said.outcome is Outcome.REGRESSED:
                self._leave_open(one, "no launch was left to confirm it")
        held = hold_together(blame_machine(self.verdicts, self._compared()))
        self.verdicts[:] = [self._soften(verdict) for verdict in held]
        self._settled = True

    def _again(self, postponed: Postponed, fresh: Measurement | str) -> tuple[Postponed, bool]:
        """What a fresh launch says, and whether another is to be asked.

        Alone it must repeat a loss, and what it doesn't repeat is forgotten: the launch that had it
        was picked for it. What was undecided is judged by all launches so far; a loss that shows
        then is one to be repeated.
        """
        said, metric = postponed.said, postponed.metric
        if isinstance(fresh, str):
            reason = f"{said.outcome} at a first look, and no further launch: {fresh}"
            invalid = dataclasses.replace(said, outcome=Outcome.INVALID, reason=reason)
            return dataclasses.replace(postponed, said=invalid), False
        broken = metric.family in fresh.invalid
        if said.outcome is Outcome.REGRESSED or broken:
            verdict = self._look(metric, (fresh,), Look.LAUNCH)
            if not broken:
                verdict = confirm(said, verdict)
            again = dataclasses.replace(postponed, launches=(fresh,), said=verdict)
            return again, _undecided(metric, verdict)
        launches = (*postponed.launches, fresh)
        verdict = self._look(metric, launches, Look.FURTHER_LAUNCH)
        again = dataclasses.replace(postponed, launches=launches, said=verdict)
        return again, _undecided(metric, verdict) or verdict.outcome is Outcome.REGRESSED

    def _compared(self) -> Mapping[tuple[str, str], Comparison]:
        """By case and metric, the last launch of the speeds that were looked at again."""
        return {
            (one.case.id, one.metric.name): compare(one.launches[-1:], self.known_of(one.case))
            for one in self._postponed.values()
            if one.metric.by_launch
        }


def _undecided(metric: Metric, verdict: Verdict) -> bool:
    """Whether another launch may decide it; one of acceptance has had its extension."""
    return metric.by_launch and verdict.outcome is Outcome.INCONCLUSIVE
