"""Judge the figures of one run, and confirm losses on fresh launches of the servers.

`enough_for` additionally decides, while a case is being measured, whether it needs more prompts.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from specreg.acceptance.record import AcceptanceRecord
from specreg.baselines.comparison import (
    BaselineComparison,
    CaseBaselines,
    compare,
    differing_settings,
)
from specreg.core.errors import BaselineError
from specreg.core.reasons import Reason
from specreg.matrix.case import Case
from specreg.measurement.arm import StoppingRule
from specreg.measurement.measure import Measurement, values_of
from specreg.measurement.metrics import METRICS, Metric, Replay
from specreg.stats.intervals import MORE_LAUNCHES, Look
from specreg.stats.variance import Variance
from specreg.verdicts.history import night_values
from specreg.verdicts.judge import JudgedBy, judge, tolerance_of
from specreg.verdicts.multiple_testing import confirm, follow, seen_on
from specreg.verdicts.nights import MachineNights, NightEvidence
from specreg.verdicts.verdict import JUDGED, MACHINE_MOVED, Lack, Outcome, Verdict

MeasureAfresh = Callable[[Sequence[Case], int], Mapping[str, Measurement | Reason]]
"""Measures cases on a further launch, given its number. Further launches are counted from 1.

It returns, by the case's id, the measurement or the reason why there is none.
"""


@dataclass(slots=True, kw_only=True)
class Confirmation:
    """Collects the verdicts of a run, and has losses confirmed before they are final.

    Attributes:
        baselines_of: returns the baselines of a case, or raises BaselineError.
        measure_afresh: measures cases on a further launch.
        nights: the nights of the machine. Measured figures are added to them.
        softened: the metrics whose tests pass although they are INCONCLUSIVE.
        holds_by_nights: whether the test of an INCONCLUSIVE metric passes if some number of nights
            would decide it.
        _decided: the verdicts so far, in the order of the run. A verdict that waits for another
            launch is among them with its preliminary outcome.
        _launches: the launches that a verdict judges, by its row in `_decided`. A verdict that
            needs no comparison has none.
        _waiting: the rows that wait for another launch.
        _latest: the last comparison, which is stored because all metrics of a case share it.
        _is_concluding: whether the run has measured everything.
    """

    baselines_of: Callable[[Case], CaseBaselines]
    measure_afresh: MeasureAfresh
    nights: MachineNights = field(default_factory=lambda: MachineNights(baselines={}))
    softened: AbstractSet[str] = frozenset()
    holds_by_nights: bool = True
    _decided: list[Verdict] = field(default_factory=list)
    _launches: dict[int, tuple[Measurement, ...]] = field(default_factory=dict)
    _waiting: list[int] = field(default_factory=list)
    _latest: BaselineComparison | None = None
    _is_concluding: bool = False

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """All verdicts so far. Figures that move together have the outcome of their leader."""
        return follow(self._decided)

    def add(self, verdict: Verdict) -> int:
        """Add a verdict that needs no comparison, and return its row among the verdicts."""
        self._decided.append(verdict)
        return len(self._decided) - 1

    def judge(self, metric: Metric, launches: Sequence[Measurement]) -> int:
        """Judge a metric on the launches of a case.

        Acceptance is judged on the last launch, and a speed on all of them. A verdict that looks
        worse waits for `confirm`, unless the nights or several launches have proven the loss.

        Returns:
            The row of the verdict.
        """
        verdict = self._look(metric, launches, Look.LAUNCH)
        row = self.add(verdict)
        self._launches[row] = tuple(launches)
        if self._needs_launch(row):
            self._waiting.append(row)
        return row

    def confirm(self) -> None:
        """Judge the waiting verdicts again on up to MORE_LAUNCHES fresh launches.

        A loss always needs confirmation. An undecided figure waits only until a loss is proven in
        its case.
        """
        for number in range(1, MORE_LAUNCHES + 1):
            self._waiting = [row for row in self._waiting if not self._is_settled(row)]
            waiting_cases = [self._case_of(row) for row in self._waiting]
            if not waiting_cases:
                return
            # Several figures of a case wait for the same launch.
            cases = {case.id: case for case in waiting_cases}
            launches = self.measure_afresh(list(cases.values()), number)
            for row in tuple(self._waiting):
                fresh = launches[self._decided[row].case_id]
                if not self._look_again(row, fresh):
                    self._waiting.remove(row)
        self._waiting.clear()

    def conclude(self) -> None:
        """Judge all speeds again at the end of the run.

        The common change of all cases is complete only at the end, so early losses are judged again
        too. A verdict that still waits for a launch becomes INCONCLUSIVE, because the run was cut
        short. So does a loss that one launch shows only beside the later cases.
        """
        self._is_concluding = True
        # These verdicts will get no further launch.
        for row in self._waiting:
            before = self._decided[row]
            text = f"{before.outcome} so far, and the run ended before a further launch"
            reason = Reason(text=text)
            self._decided[row] = dataclasses.replace(
                before, outcome=Outcome.INCONCLUSIVE, reason=reason
            )
        # Judge the other speeds against the common change of all cases.
        for row, launches in self._launches.items():
            before = self._decided[row]
            metric = METRICS[before.metric]
            if row in self._waiting or before.outcome not in JUDGED or not metric.by_launch:
                continue
            if len(launches) > 1:
                self._decided[row] = self._look(metric, launches, Look.FURTHER_LAUNCH)
                continue
            verdict = self._look(metric, launches, Look.LAUNCH)
            if verdict.outcome is Outcome.REGRESSED and not verdict.has_code(MACHINE_MOVED):
                verdict = self._soften(seen_on(verdict, (verdict,)))
            self._decided[row] = verdict
        self._waiting.clear()

    def revise(self, judge_again: Callable[[Verdict], Verdict]) -> None:
        """Replace each verdict by what a function returns for it, which may use new evidence."""
        self._decided = [judge_again(verdict) for verdict in self._decided]

    def _case_of(self, row: int) -> Case:
        return self._launches[row][-1].case

    def _needs_launch(self, row: int) -> bool:
        """Return whether another launch should confirm a loss, or decide a possible loss."""
        verdict = self._decided[row]
        metric = METRICS[verdict.metric]
        if verdict.outcome is Outcome.REGRESSED:
            is_confirmed = metric.by_launch and len(self._launches[row]) > 1
            return not verdict.since and not is_confirmed
        if verdict.outcome is not Outcome.INCONCLUSIVE or not metric.by_launch:
            return False
        change_frac = verdict.comparison.change_frac or 0.0
        tolerance_frac = verdict.comparison.tolerance_frac or 0.0
        lost_frac = abs(change_frac) if metric.two_sided else -change_frac
        return lost_frac > tolerance_frac

    def _is_settled(self, row: int) -> bool:
        """Return whether a waiting figure is undecided, and a loss in its case is proven.

        Such a case is red already, and each further launch may take minutes.
        """
        undecided = self._decided[row]
        if undecided.outcome is not Outcome.INCONCLUSIVE:
            return False
        return any(
            verdict.case_id == undecided.case_id
            and verdict.outcome is Outcome.REGRESSED
            and proven_row not in self._waiting
            for proven_row, verdict in enumerate(self._decided)
        )

    def _look(self, metric: Metric, launches: Sequence[Measurement], look: Look) -> Verdict:
        """Return the verdict at one look.

        For acceptance, the look is determined by the prompts after which the measurement stopped.
        """
        last = launches[-1]
        try:
            if self._latest is None or self._latest.launches != tuple(launches):
                self._latest = compare(launches, self.baselines_of(last.case))
        except BaselineError as error:
            return _unreadable(metric, last, error)
        evidence = self._latest
        if not metric.by_launch:
            look = last.look
        nights = self._nights_of(metric, evidence)
        judged_by = JudgedBy(nights=nights, decisions=self.nights.decisions(metric))
        verdict = judge(metric, evidence, look, judged_by)
        may_wait = not self._is_concluding and self.nights.waits_for_others(metric, nights)
        if may_wait and verdict.outcome is Outcome.REGRESSED:
            verdict = _waiting_for_others(verdict)
        verdict = self._soften(verdict)

        # A loss of a speed must also show on single launches, unless all cases share the loss. And
        # a PASS becomes INCONCLUSIVE if a single launch shows a loss.
        has_common = nights is not None and nights.common is not None
        is_of_all_cases = has_common and verdict.has_code(MACHINE_MOVED)
        is_speed_of_launches = metric.by_launch and len(launches) > 1
        if is_speed_of_launches and verdict.outcome in JUDGED and not is_of_all_cases:
            alone = [self._alone(metric, launch, evidence.baselines) for launch in launches]
            verdict = self._soften(seen_on(verdict, alone))
            # `_alone` has replaced tonight's level by that of a single launch. Put back the level
            # of all launches.
            self._nights_of(metric, evidence)
        return verdict

    def _alone(self, metric: Metric, launch: Measurement, baselines: CaseBaselines) -> Verdict:
        """Return the verdict on one launch alone."""
        evidence = compare((launch,), baselines)
        nights = self._nights_of(metric, evidence)
        judged_by = JudgedBy(nights=nights, decisions=self.nights.decisions(metric))
        return judge(metric, evidence, Look.LAUNCH, judged_by)

    def _nights_of(self, metric: Metric, evidence: BaselineComparison) -> NightEvidence | None:
        """Add a figure to tonight, and return how it changed from the earlier nights.

        Returns:
            None if this machine has no baseline of the case with these settings, if the figure has
            no level tonight (a speed is 0 in a launch), or if acceptance has no interval.
        """
        case = evidence.measurement.case
        baselines = evidence.baselines
        if baselines.exact is None or differing_settings(baselines.exact.case, baselines.settings):
            return None
        self.nights.add_baseline(case.id, baselines.exact)
        values = night_values(metric, evidence.launches)
        self.nights.add(case.id, metric, values)
        of_prompts: Variance | None = None
        if not metric.by_launch:
            change = evidence.ratio_change(metric)
            if isinstance(change, Reason):
                return None
            # Run and baseline contribute equally to the variance of the change, so one night has
            # half of it.
            error_frac = change.effect.error_frac
            of_prompts = Variance(value=error_frac**2 / 2, freedom=change.effect.freedom)
        return self.nights.evidence(
            case.id,
            metric,
            tolerance_frac=tolerance_of(metric, case, baselines),
            of_prompts=of_prompts,
        )

    def _soften(self, verdict: Verdict) -> Verdict:
        """Mark a verdict whose test passes even if it is undecided.

        The user has chosen that for the metric, or some number of nights would decide the verdict.
        """
        softened = verdict.metric in self.softened
        if self.holds_by_nights and verdict.outcome is Outcome.INCONCLUSIVE:
            softened = softened or verdict.needed_nights != 0
        return dataclasses.replace(verdict, softened=softened)

    def _look_again(self, row: int, fresh: Measurement | Reason) -> bool:
        """Judge a figure again with a fresh launch, and return whether it needs another launch.

        Acceptance must be lost on the fresh launch too. A speed is judged on all launches.
        """
        before = self._decided[row]
        metric = METRICS[before.metric]
        # The launch failed, so the loss can't be confirmed.
        if isinstance(fresh, Reason):
            reason = Reason(
                code=fresh.code,
                text=f"{before.outcome} so far, and a further launch failed: {fresh.text}",
                remedy=fresh.remedy,
            )
            self._decided[row] = dataclasses.replace(before, outcome=Outcome.INVALID, reason=reason)
            return False
        # The launch ran, but its figure is invalid. `_look` returns the reason.
        if metric.family in fresh.invalid:
            self._launches[row] = (fresh,)
            self._decided[row] = self._look(metric, (fresh,), Look.LAUNCH)
            return False
        if not metric.by_launch:
            self._launches[row] = (fresh,)
            verdict_on_fresh = self._look(metric, (fresh,), Look.LAUNCH)
            self._decided[row] = self._soften(confirm(before, verdict_on_fresh))
            return False
        self._launches[row] = (*self._launches[row], fresh)
        self._decided[row] = self._look(metric, self._launches[row], Look.FURTHER_LAUNCH)
        return self._needs_launch(row)


def _waiting_for_others(verdict: Verdict) -> Verdict:
    """Return a loss as INCONCLUSIVE, until the other cases show whether the machine is slow."""
    text = "looks worse, and the other cases of the run will tell whether the machine is slower"
    return dataclasses.replace(
        verdict, outcome=Outcome.INCONCLUSIVE, reason=Reason(text=text), since=""
    )


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


def enough_for(
    case: Case, metric: Metric, baselines: CaseBaselines, *, may_stop_early: bool, cases: int
) -> StoppingRule:
    """Return a function that decides whether the prompts measured so far are enough.

    A few prompts may be enough to prove a loss. Proving that there is none takes all prompts.

    Args:
        case: the case that is measured.
        metric: the metric that decides about the acceptance of the case.
        baselines: the baselines that apply to the case.
        may_stop_early: whether no other metric needs all prompts.
        cases: how many cases the run judges.
    """

    def is_enough(acceptance: AcceptanceRecord | None, look: Look) -> bool:
        is_early = look is Look.EARLY
        if acceptance is None or not acceptance.prompt_ids:
            # Without counts of single prompts there is no interval, and an extension won't help.
            return not is_early
        if is_early and not may_stop_early:
            return False
        evidence = compare((measured_prompts(case, acceptance),), baselines)
        outcome = judge(metric, evidence, look, JudgedBy(decisions=cases)).outcome
        if is_early:
            return outcome is Outcome.REGRESSED
        return outcome is not Outcome.INCONCLUSIVE

    return is_enough


def measured_prompts(case: Case, acceptance: AcceptanceRecord) -> Measurement:
    """Return a measurement that consists of acceptance only."""
    replay = Replay(acceptance=acceptance, limits=case.judging.limits)
    return Measurement(
        case=case,
        engine_version="",
        target="",
        draft=None,
        replay=replay,
        values=values_of(case, replay),
    )
