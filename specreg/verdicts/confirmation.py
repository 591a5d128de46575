"""Hold the verdicts of one run, and look again at what needs a fresh launch."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from specreg.baselines.comparison import Comparison, Known, compare
from specreg.core.errors import BaselineError
from specreg.matrix.case import Case
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import Metric
from specreg.stats.alpha_spending import MORE_LAUNCHES, Look
from specreg.verdicts.judge import Outcome, Verdict, judge, judge_at_looks
from specreg.verdicts.multiple_testing import blame_control, blame_machine, confirm, hold_together

Place = tuple[str, str, int]
"""A case's id, a metric's name and the launch it is judged with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unconfirmed:
    """A figure that is looked at once more, on a fresh launch of its server group.

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
class Confirmation:
    """What a run judges.

    Attributes:
        known_of: what the baselines know of a case; raises BaselineError.
        measure_afresh: measures cases on the how-manieth launch more, from 1; by case's id, what
            came of it or why nothing did.
        softened: the metrics whose tests pass where there is no telling.
        verdicts: so far, in the order of the run; one that is to be confirmed is among them as
            it looked at first.
    """

    known_of: Callable[[Case], Known]
    measure_afresh: Callable[[Sequence[Case], int], Mapping[str, Measurement | str]]
    softened: AbstractSet[str] = frozenset()
    verdicts: list[Verdict] = field(default_factory=list)
    _waiting: dict[Place, Unconfirmed] = field(default_factory=dict)
    _confirmed: list[Unconfirmed] = field(default_factory=list)
    _last: Comparison | None = None

    def note(self, verdict: Verdict) -> None:
        """Takes a verdict that needs no comparison."""
        self.verdicts.append(verdict)

    def judge(self, metric: Metric, launches: Sequence[Measurement]) -> None:
        """Judges a metric of a case's launches.

        What looks worse, and a speed that these launches can't tell, waits for `confirm`.

        Args:
            metric: what to judge.
            launches: of one case; acceptance is judged by the last, a speed by all.
        """
        verdict = self._look(metric, launches, Look.LAUNCH)
        self.verdicts.append(verdict)
        if verdict.outcome is Outcome.REGRESSED or _undecided(metric, verdict):
            place = (launches[-1].case.id, metric.name, len(launches))
            self._waiting[place] = Unconfirmed(
                metric=metric, launches=tuple(launches), said=verdict, row=len(self.verdicts) - 1
            )

    def confirm(self) -> None:
        """Looks at what waits on fresh launches, MORE_LAUNCHES at most.

        What the server without speculation beside a case did too is the machine's doing.
        """
        for further in range(1, MORE_LAUNCHES + 1):
            cases = list({one.case.id: one.case for one in self._waiting.values()}.values())
            fresh = self.measure_afresh(cases, further) if cases else {}
            for place, one in tuple(self._waiting.items()):
                again, waits = self._again(one, fresh[one.case.id])
                self.verdicts[again.row] = again.said
                self._waiting[place] = again
                if not waits:
                    self._settle(place)
        for place, one in tuple(self._waiting.items()):
            if one.said.outcome is Outcome.REGRESSED:
                self._leave_open(one, "no launch was left to confirm it")
            self._settle(place)

    def conclude(self) -> None:
        """Looks at all verdicts of the run together: never makes a red one green.

        What still waits, the run being cut short, is INCONCLUSIVE.
        """
        for one in self._waiting.values():
            self._leave_open(one, "the run ended before another")
        held = hold_together(blame_machine(self.verdicts, self._compared()))
        self.verdicts[:] = [self._soften(verdict) for verdict in held]

    def _settle(self, place: Place) -> None:
        """Takes a figure off those that wait."""
        one = self._waiting.pop(place)
        self._confirmed.append(one)
        if one.metric.by_launch:
            comparison = compare(one.launches[-1:], self.known_of(one.case))
            self.verdicts[one.row] = blame_control(self.verdicts[one.row], comparison)

    def _leave_open(self, unconfirmed: Unconfirmed, why: str) -> None:
        said = unconfirmed.said
        reason = f"{said.outcome} at a look, and {why}"
        self.verdicts[unconfirmed.row] = self._soften(
            dataclasses.replace(said, outcome=Outcome.INCONCLUSIVE, reason=reason)
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

    def _again(
        self, unconfirmed: Unconfirmed, fresh: Measurement | str
    ) -> tuple[Unconfirmed, bool]:
        """What a fresh launch says, and whether another is to be asked.

        Alone it must repeat a loss, and what it doesn't repeat is forgotten: the launch that had it
        was picked for it. What was undecided is judged by all launches so far; a loss that shows
        then is one to be repeated.
        """
        said, metric = unconfirmed.said, unconfirmed.metric
        if isinstance(fresh, str):
            reason = f"{said.outcome} at a first look, and no further launch: {fresh}"
            invalid = dataclasses.replace(said, outcome=Outcome.INVALID, reason=reason)
            return dataclasses.replace(unconfirmed, said=invalid), False
        broken = metric.family in fresh.invalid
        if said.outcome is Outcome.REGRESSED or broken:
            verdict = self._look(metric, (fresh,), Look.LAUNCH)
            if not broken:
                verdict = confirm(said, verdict)
            again = dataclasses.replace(unconfirmed, launches=(fresh,), said=verdict)
            return again, _undecided(metric, verdict)
        launches = (*unconfirmed.launches, fresh)
        verdict = self._look(metric, launches, Look.FURTHER_LAUNCH)
        again = dataclasses.replace(unconfirmed, launches=launches, said=verdict)
        return again, _undecided(metric, verdict) or verdict.outcome is Outcome.REGRESSED

    def _compared(self) -> Mapping[tuple[str, str], Comparison]:
        """By case and metric, the last launch of the speeds that were looked at again."""
        return {
            (one.case.id, one.metric.name): compare(one.launches[-1:], self.known_of(one.case))
            for one in self._confirmed
            if one.metric.by_launch
        }


def _undecided(metric: Metric, verdict: Verdict) -> bool:
    """Whether another launch may decide it; one of acceptance has had its extension."""
    return metric.by_launch and verdict.outcome is Outcome.INCONCLUSIVE
