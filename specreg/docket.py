"""The docket of one run: measured launches in, verdicts out, at once or after a second look."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
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
        launches: what was measured so far; `further`: how many of them since the first look.
        first: what the first look said; `row`: its place among the verdicts.
    """

    metric: Metric
    launches: tuple[Measurement, ...]
    first: Verdict
    row: int
    further: int = 0

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
        inconclusive_holds: whether a test passes where there is no telling.
        verdicts: so far, in the order of the run; one that is postponed is among them as it
            looked at first.
    """

    known_of: Callable[[Case], Known]
    measure_afresh: Callable[[Sequence[Case], int], Mapping[str, Measurement | str]]
    inconclusive_holds: bool = False
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
            metric=metric, launches=tuple(launches), first=verdict, row=len(self.verdicts) - 1
        )
        return None

    def give_up(self) -> None:
        """What was to be looked at again and wasn't, the run being cut short, is INCONCLUSIVE."""
        if self._settled:
            return
        for one in self._postponed.values():
            self.verdicts[one.row] = dataclasses.replace(
                one.first,
                outcome=Outcome.INCONCLUSIVE,
                reason=f"{one.first.outcome} at a first look, and the run ended before a second",
            )

    def _look(self, metric: Metric, launches: Sequence[Measurement], look: Look) -> Verdict:
        """One look; that of acceptance is the one that its measurement had."""
        try:
            comparison = self._compare(launches)
        except BaselineError as error:
            last = launches[-1]
            return Verdict(
                case_id=last.case.id,
                metric=metric.name,
                outcome=Outcome.INVALID if last.invalid else Outcome.NO_BASELINE,
                reason=last.invalid or str(error),
                value=last.values.get(metric.name),
            )
        verdict = (
            judge(metric, comparison, look)
            if metric.by_launch
            else judge_at_looks(metric, comparison)
        )
        return dataclasses.replace(verdict, softened=self.inconclusive_holds)

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
                verdict, again = self._again(one, fresh[one.case.id])
                self.verdicts[one.row] = verdict
                self._postponed[place] = waiting[place] = again
                if not _undecided(one.metric, verdict):
                    del waiting[place]
        held = hold_together(blame_machine(self.verdicts, self._compared()))
        self.verdicts[:] = [
            dataclasses.replace(verdict, softened=self.inconclusive_holds) for verdict in held
        ]
        self._settled = True

    def _again(self, postponed: Postponed, fresh: Measurement | str) -> tuple[Verdict, Postponed]:
        """What a fresh launch says: it must repeat a loss, or help decide what was undecided."""
        first, metric = postponed.first, postponed.metric
        if isinstance(fresh, str):
            reason = f"{first.outcome} at a first look, and no further launch: {fresh}"
            return dataclasses.replace(first, outcome=Outcome.INVALID, reason=reason), postponed
        if fresh.invalid is not None:
            return self._look(metric, (fresh,), Look.LAUNCH), postponed
        together = dataclasses.replace(
            postponed, launches=(*postponed.launches, fresh), further=postponed.further + 1
        )
        if first.outcome is Outcome.REGRESSED and not postponed.further:
            return confirm(first, self._look(metric, (fresh,), Look.LAUNCH)), together
        return self._look(metric, together.launches, Look.FURTHER_LAUNCH), together

    def _compared(self) -> Mapping[str, Comparison]:
        """By case, the last launch of those whose speeds were looked at again."""
        return {
            one.case.id: compare(one.launches[-1:], self.known_of(one.case))
            for one in self._postponed.values()
            if one.metric.by_launch
        }


def _undecided(metric: Metric, verdict: Verdict) -> bool:
    """Whether another launch may decide it; one of acceptance has had its extension."""
    return metric.by_launch and verdict.outcome is Outcome.INCONCLUSIVE
