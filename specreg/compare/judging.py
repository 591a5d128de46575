"""Judge the launches of both sides of a gate: a verdict on each metric, and the answer.

The gate looks after 1, 2, 4, 8, … launches. The looks share one level, so that all of them together
are wrong no more often than one would be. What a look has decided stays decided.
"""

import dataclasses
import functools
import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, NamedTuple

import msgspec

from specreg.acceptance.record import NO_STEPS
from specreg.baselines.answer_lengths import changed_lengths
from specreg.baselines.comparison import (
    PairedCounts,
    counted_equally,
    paired_counts,
    paired_ratio_change,
)
from specreg.compare.options import TOLERANCE, ComparisonOptions
from specreg.compare.pairs import ACCEPTANCE, COMPARED, CONTROL, OUTPUT, STEP, Group, Pair, Side
from specreg.core.errors import UnsupportedError, check_name
from specreg.core.files import UNREADABLE
from specreg.core.reasons import Reason
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import GATE_METRICS, Metric, Replay, tokens_per_step
from specreg.report.document import REGRESSED_STATUS, UNDECIDED_STATUS, exit_status
from specreg.report.tables import label_of
from specreg.stats.intervals import LEVEL, Effect, change_of_pairs, t_quantile
from specreg.verdicts.by_nights import MACHINE_MOVED
from specreg.verdicts.changed_lengths import weigh_changed_lengths
from specreg.verdicts.detection import to_frac
from specreg.verdicts.judge import Reference, judge_effect
from specreg.verdicts.verdict import Cause, Comparison, Outcome, Verdict

UNCHECKED = "UNCHECKED"
"""The code of a loss of speed while side A hasn't been measured against itself."""
_FAILED_LAUNCHES_TO_GIVE_UP = 2
_FEW_EQUAL_FRAC = 0.5
_SPENT_EXPONENT = 2
"""How late the level of speeds is spent: as this power of the launches."""
_OWN_LOSS_LEVEL = LEVEL / 10
"""How often a pair's own launches may wrongly show a loss of speed, whatever other pairs show."""
_OWN_PASS_LEVEL = LEVEL / 2
"""How often they may wrongly show that no more than tolerated was lost."""
_FIRST_LOOK_FRAC = 0.5
"""How much of the level of acceptance the first look has."""
_MAX_GROWTH_RATIO = 1000
"""How many times the launches or prompts so far are tried when asking how many would decide."""

_Share = Annotated[float, msgspec.Meta(gt=0, lt=1)]


@dataclass(frozen=True, slots=True, eq=False)
class SideLaunch:
    """A pair on one launch of a side's server.

    Attributes:
        number: of the launch, from 1.
        measurement: None if the launch came to nothing.
        failed: why it came to nothing; None if it didn't.
    """

    pair_id: str
    side: Side
    number: int
    measurement: Measurement | None = None
    failed: Reason | None = None

    def why_invalid(self, metric: Metric) -> Reason | None:
        """Return why a metric's value is invalid, None if it is valid."""
        if self.failed is not None or self.measurement is None:
            return self.failed
        invalidity = self.measurement.invalid.get(metric.family)
        return None if invalidity is None else Reason.of(invalidity)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How much evidence there may be, and how it is weighed.

    Attributes:
        launches: the most launches of each side.
        figures: how many metrics are judged. A loss of any of them stops an upgrade, and must stand
            among all of them (Bonferroni).
        tolerances: by metric, a tolerance that overrides the metric's own.
    """

    launches: int
    figures: int
    tolerances: Mapping[str, float] = field(default_factory=dict)

    @property
    def looks(self) -> tuple[int, ...]:
        """The numbers of launches after which it looks; few, as starting servers costs most."""
        doublings = (self.launches - 1).bit_length()
        return (*(2**exponent for exponent in range(doublings)), self.launches)

    def level_after(self, launches: int, metric: Metric) -> float:
        """Return how often a look may wrongly call a metric proven.

        Looks at a speed spend the level as the square of the launches (Kim and DeMets, 1987), so
        that the last look, which knows most, has most of it. Acceptance differs by prompt and
        little by launch, so its first look knows nearly all, and has half of the level at once.

        Args:
            launches: how many launches of each side it looks at.
            metric: what it looks at.
        """
        earlier = max((look for look in self.looks if look < launches), default=0)
        level = self._spent_after(launches) - self._spent_after(earlier)
        if metric.by_launch:
            return level
        first_level = 0.0 if earlier else LEVEL * _FIRST_LOOK_FRAC
        return first_level + level * (1 - _FIRST_LOOK_FRAC)

    def _spent_after(self, launches: int) -> float:
        """Return how much of the level all looks up to some launches have spent."""
        return LEVEL * min(launches / self.launches, 1.0) ** _SPENT_EXPONENT


def rules_of(options: ComparisonOptions, *, figures: int) -> Rules:
    """Return the rules that options ask for.

    Raises:
        UnsupportedError: a tolerance can't be read.
        UnknownNameError: a tolerance is for a metric that doesn't exist.
    """
    tolerances = {}
    for text in options.tolerances:
        name, _, share = text.partition("=")
        where = f"{TOLERANCE} {text}"
        check_name("metric", name, GATE_METRICS, where)
        try:
            tolerances[name] = msgspec.convert(share, _Share, strict=False)
        except UNREADABLE as error:
            message = f"{where}: '{share}' is no fraction between 0 and 1; 0.03 is 3 %"
            raise UnsupportedError(message) from error
    return Rules(launches=options.launches, figures=figures, tolerances=tolerances)


class _Figure(NamedTuple):
    """A metric of a pair: the second of two sides compared with the first."""

    metric: Metric
    pair_id: str
    sides: tuple[Side, Side] = COMPARED


class GateAnswer(StrEnum):
    """Whether B may take the place of A."""

    UPGRADE = "upgrade"
    DONT = "don't"
    UNDECIDED = "undecided"


_ANSWERS = {
    0: GateAnswer.UPGRADE,
    REGRESSED_STATUS: GateAnswer.DONT,
    UNDECIDED_STATUS: GateAnswer.UNDECIDED,
}
"""The answer, by the exit status of all verdicts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a gate decided.

    Attributes:
        reasons: why, the weightiest first.
        unclear: what is undecided, metric by metric.
        needed_launches: about how many launches of each side would decide; 0 where no number does.
        verdicts: on each pair, and on its answers.
        control: the verdicts on side A against itself.
    """

    answer: GateAnswer
    reasons: tuple[str, ...] = ()
    unclear: tuple[str, ...] = ()
    needed_launches: int = 0
    verdicts: tuple[Verdict, ...]
    control: tuple[Verdict, ...] = ()


def decide(
    pairs: Sequence[Pair],
    launches: Sequence[SideLaunch],
    rules: Rules,
    answers: Sequence[Verdict] = (),
) -> Decision:
    """Decide by the launches so far.

    Args:
        pairs: what is compared.
        launches: of all pairs, in the order in which they were made.
        rules: how they are weighed.
        answers: the verdicts on each pair's answers.
    """
    first_verdicts = list(
        itertools.chain.from_iterable(judge_pair(pair, launches, rules) for pair in pairs)
    )
    has_wrong_answers = any(verdict.outcome is Outcome.WRONG for verdict in answers)
    has_lost_acceptance = any(
        _is_lost(verdict) and not _is_speed(verdict) for verdict in first_verdicts
    )
    is_worse_anyway = has_wrong_answers or has_lost_acceptance
    verdicts = [
        _against_control(verdict, launches, is_worse_anyway=is_worse_anyway)
        for verdict in first_verdicts
    ]
    lost = [verdict for verdict in verdicts if _is_lost(verdict)]
    all_verdicts = (*verdicts, *answers)
    answer = _ANSWERS[exit_status(all_verdicts)]
    unclear: list[Verdict] = []
    if answer is GateAnswer.UNDECIDED:
        unclear = [verdict for verdict in all_verdicts if verdict.fails]
    return Decision(
        answer=answer,
        reasons=(*_reasons(answers, lost), *_bounds(unclear)),
        unclear=tuple(
            f"{verdict.case_id}: {verdict.explanation or 'no telling'} ({verdict.metric})"
            for verdict in unclear
        ),
        needed_launches=max((verdict.needed_launches or 0 for verdict in unclear), default=0),
        verdicts=all_verdicts,
        control=tuple(_control_verdicts(pairs, launches, rules)),
    )


def _control_verdicts(
    pairs: Sequence[Pair], launches: Sequence[SideLaunch], rules: Rules
) -> Iterator[Verdict]:
    """Yield the verdicts on the speeds of side A against itself, of pairs that measured that."""
    controlled = {launch.pair_id for launch in launches if launch.side in CONTROL}
    for pair in pairs:
        if pair.id in controlled:
            for verdict in judge_pair(pair, launches, rules, CONTROL):
                if _is_speed(verdict):
                    yield verdict


def plan_launches(
    groups: Sequence[Group],
    rules: Rules,
    look: Callable[[], Decision],
    is_done: Callable[[Decision], bool],
    is_wanted: Callable[[Group], bool] = lambda _: False,
) -> Iterator[tuple[Group, int, tuple[Side, Side]]]:
    """Yield what to launch until the answer is there.

    After each look at which B seems slower, side A is launched beside itself, on no more launches
    than B had.

    Args:
        groups: pairs that share their servers.
        rules: when it looks.
        look: gives what is known by then, with all that was launched so far.
        is_done: whether that is the answer.
        is_wanted: whether a group is launched even if it is settled.

    Yields:
        A group, the number of the launch, and which sides to launch.
    """
    open_groups = list(groups)
    for number in range(1, rules.launches + 1):
        yield from ((group, number, COMPARED) for group in open_groups)
        if number not in rules.looks:
            continue
        decision = look()
        if is_done(decision):
            return
        for control_number, group in itertools.product(range(1, number + 1), open_groups):
            pairs = tuple(pair for pair in group if _is_doubtful(pair, decision))
            if pairs:
                yield pairs, control_number, CONTROL
                decision = look()
        if is_done(decision):
            return
        open_groups = [
            group for group in open_groups if is_wanted(group) or not is_settled(group, decision)
        ]


def _is_doubtful(pair: Pair, decision: Decision) -> bool:
    """Return whether B seems slower, and by no more than side A may differ from itself."""
    return any(
        verdict.has_code(UNCHECKED, MACHINE_MOVED) and not _is_lost(verdict)
        for verdict in decision.verdicts
        if verdict.case_id == pair.id
    )


def is_lost(decision: Decision) -> bool:
    """Return whether no further launch would turn a decision into an upgrade."""
    return decision.answer is GateAnswer.DONT


def _is_lost(verdict: Verdict) -> bool:
    return verdict.outcome is Outcome.REGRESSED


def _is_speed(verdict: Verdict) -> bool:
    return GATE_METRICS[verdict.metric].by_launch


def _against_control(
    verdict: Verdict, launches: Sequence[SideLaunch], *, is_worse_anyway: bool
) -> Verdict:
    """Judge a lost speed again, by how much side A differs from itself.

    A loss that isn't beyond that, 1 % being chance, is the machine's. Until that is measured there
    is no loss, unless B `is_worse_anyway`.
    """
    if not (_is_lost(verdict) and _is_speed(verdict)):
        return verdict
    figure = _Figure(GATE_METRICS[verdict.metric], verdict.case_id)
    change = _change(figure, launches)
    control_change = _change(figure._replace(sides=CONTROL), launches)
    if change is None or control_change is None:
        reason = Reason(code=UNCHECKED, text="side A is still to be measured against itself")
        outcome = Outcome.REGRESSED if is_worse_anyway else Outcome.INCONCLUSIVE
        return dataclasses.replace(verdict, outcome=outcome, reason=reason)
    beyond_control = Effect(
        estimate_frac=change.estimate_frac - control_change.estimate_frac,
        error_frac=math.hypot(change.error_frac, control_change.error_frac),
        freedom=min(change.freedom, control_change.freedom),
    )
    _, high = beyond_control.bounds(LEVEL)
    if high < 0:
        return verdict
    reason = Reason(
        code=MACHINE_MOVED,
        text=f"side A differs from itself by {math.expm1(control_change.estimate_frac):+.1%}",
        remedy="quieten the machine, and run again",
    )
    return dataclasses.replace(verdict, outcome=Outcome.INVALID, reason=reason)


def _reasons(answers: Iterable[Verdict], lost: Sequence[Verdict]) -> Iterator[str]:
    """Yield which answers differ, can't be told or mostly round; then what was lost, and by what.

    A loss is by output itself where no other cause is proven.
    """
    for verdict in answers:
        few_are_equal = verdict.value is not None and verdict.value < _FEW_EQUAL_FRAC
        if few_are_equal or verdict.outcome in {Outcome.WRONG, Outcome.INVALID}:
            yield f"{verdict.case_id}: {verdict.explanation}"
    for case_id in dict.fromkeys(verdict.case_id for verdict in lost):
        losses = [verdict for verdict in lost if verdict.case_id == case_id]
        figures = ", ".join(
            f"{verdict.metric} {verdict.comparison.change_frac:+.1%}" for verdict in losses
        )
        yield f"{case_id} is worse by {_causes(losses)}: {figures}"


def _causes(losses: Sequence[Verdict]) -> str:
    """Name what made a case worse: proven losses of other metrics, or the worst part of output."""
    proven = [GATE_METRICS[loss.metric].cause for loss in losses if loss.metric != OUTPUT]
    if proven:
        return ", ".join(proven)
    parts = [loss.cause.parts[0][0] for loss in losses if loss.cause is not None]
    return parts[0] if parts else "output"


def _bounds(unclear: Iterable[Verdict]) -> Iterator[str]:
    """Yield by undecided metric what is proven of it: the largest loss of any case."""
    largest_losses: dict[str, tuple[float, str]] = {}
    for verdict in unclear:
        low_frac = verdict.comparison.low_frac
        if verdict.outcome is Outcome.INCONCLUSIVE and low_frac is not None:
            loss = max(-low_frac, 0.0), verdict.case_id
            known = largest_losses.get(verdict.metric, loss)
            largest_losses[verdict.metric] = max(known, loss)
    for name, (loss_frac, case_id) in largest_losses.items():
        yield f"B is not worse than A in {label_of(name)} by more than {loss_frac:.1%} ({case_id})"


def is_settled(group: Group, decision: Decision) -> bool:
    """Return whether no further launch would change the answer on the pairs of a group.

    Of a pair that is lost, by its answers or by more than output, the rest only needs an interval.
    So it does of a pair of drafts whose acceptance no number of launches decides: it is the same on
    each launch, and without it the answer can't be an upgrade.
    """
    pair_ids = {pair.id for pair in group}
    draft_ids = {pair.id for pair in group if pair.compares_drafts}
    verdicts = [verdict for verdict in decision.verdicts if verdict.case_id in pair_ids]
    lost_ids = {
        verdict.case_id
        for verdict in verdicts
        if verdict.outcome is Outcome.WRONG or (_is_lost(verdict) and verdict.metric != OUTPUT)
    }
    unclear = [verdict for verdict in verdicts if verdict.outcome is Outcome.INCONCLUSIVE]
    stuck_ids = {
        verdict.case_id
        for verdict in unclear
        if verdict.metric == ACCEPTANCE
        and verdict.needed_launches == 0
        and verdict.case_id in draft_ids
    }
    return all(
        verdict.case_id in lost_ids | stuck_ids and verdict.comparison.low_frac is not None
        for verdict in unclear
    )


def judge_pair(
    pair: Pair, launches: Sequence[SideLaunch], rules: Rules, sides: tuple[Side, Side] = COMPARED
) -> tuple[Verdict, ...]:
    """Judge each metric of a pair, at the look that decides or else at the last one.

    Args:
        pair: the case as both sides run it.
        launches: of all pairs, in the order in which they were made.
        rules: how they are weighed.
        sides: the second is compared with the first.
    """
    verdicts = []
    for metric in pair.metrics:
        verdict = _judge(_Figure(metric, pair.id, sides), launches, rules)
        if metric.name not in pair.deciding or sides is CONTROL:
            verdict = dataclasses.replace(verdict, outcome=Outcome.MEASURED, reason=None)
        verdicts.append(verdict)
    return tuple(verdicts)


def _judge(figure: _Figure, launches: Sequence[SideLaunch], rules: Rules) -> Verdict:
    # A launch repeated after it had failed changes no earlier look: it counts from the number of
    # launches on that there were by then.
    known_at = list(itertools.accumulate((launch.number for launch in launches), max))
    last = max(known_at, default=0)
    looks = [*(number for number in rules.looks if number < last), last]
    seen_at_looks = [
        [launch for launch, at in zip(launches, known_at, strict=True) if at <= look]
        for look in looks
    ]
    verdicts = (
        _look(figure, seen, rules, look) for seen, look in zip(seen_at_looks, looks, strict=True)
    )
    decided = next(verdicts)
    for verdict in verdicts:
        if decided.outcome not in {Outcome.PASS, Outcome.INCONCLUSIVE}:
            break
        # That it holds is soon proven; that it is better by more may show later.
        if decided.outcome is Outcome.INCONCLUSIVE or verdict.outcome is Outcome.IMPROVED:
            decided = verdict
    return decided


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sides:
    """What both sides of a figure measured by a look.

    Attributes:
        figure: what is compared.
        before: the launches of the first side.
        now: those of the second side.
        tolerance_frac: the largest loss that is allowed.
        rules: how the launches are weighed.
        level: how often this look may wrongly call the figure proven.
    """

    figure: _Figure
    before: Sequence[Measurement]
    now: Sequence[Measurement]
    tolerance_frac: float
    rules: Rules
    level: float

    @property
    def launches(self) -> int:
        """How many launches both sides have."""
        return min(len(self.before), len(self.now))

    @property
    def expected(self) -> float | None:
        """The value of the first side."""
        return _value(self.figure.metric, self.before)

    def unjudged(
        self, outcome: Outcome, reason: Reason, *, needed_launches: int | None = None
    ) -> Verdict:
        """Return the verdict on a figure without an effect."""
        return Verdict(
            case_id=self.figure.pair_id,
            metric=self.figure.metric.name,
            outcome=outcome,
            value=_value(self.figure.metric, self.now),
            comparison=Comparison(
                expected=self.expected,
                against=f"side {self.figure.sides[0]}",
                tolerance_frac=self.tolerance_frac,
            ),
            reason=reason,
            launches=self.launches,
            needed_launches=needed_launches,
        )

    def judged(self, effect: Effect, cause: Cause | None = None, *, prompts: int = 0) -> Verdict:
        """Return the verdict on an effect and, if it is undecided, what would decide it.

        Args:
            effect: the change of the second side.
            cause: of a speed, what changed it.
            prompts: of an acceptance, by how many prompts it was compared.
        """
        metric = self.figure.metric
        # A loss must be certain among all figures; that there is none only at this look.
        loss_level = self.level / self.rules.figures
        reference = Reference(self.expected, f"side {self.figure.sides[0]}", self.tolerance_frac)
        outcome, comparison = judge_effect(metric, effect, reference, self.level, loss_level)
        reason: Reason | None = None
        needed_launches: int | None = None
        if outcome is Outcome.INCONCLUSIVE:
            count_now = self.launches if metric.by_launch else prompts
            needed = _needed(metric, effect, comparison, self.rules, count_now)
            needed_launches = needed if metric.by_launch else 0
            reason = self._why_undecided(needed)
        return Verdict(
            case_id=self.figure.pair_id,
            metric=metric.name,
            outcome=outcome,
            value=_value(metric, self.now),
            comparison=comparison,
            cause=cause,
            reason=reason,
            launches=self.launches,
            needed_launches=needed_launches,
        )

    def _why_undecided(self, needed: int | None) -> Reason | None:
        if needed is None:
            return None
        if self.figure.metric.by_launch:
            return Reason(text=f"about {needed} launches instead of {self.launches}")
        return Reason(
            text=f"about {needed} prompts: a new gate, with --prompts {needed} and another --out"
        )


def _look(figure: _Figure, launches: Sequence[SideLaunch], rules: Rules, look: int) -> Verdict:
    """Judge a figure by the launches that a look knows.

    Args:
        figure: what is judged.
        launches: of all pairs, those up to the look.
        rules: how they are weighed.
        look: the number of launches of each side after which it looks.
    """
    metric, pair_id, (first_side, second_side) = figure
    pair_launches = [launch for launch in launches if launch.pair_id == pair_id]
    before, now = counted_equally(
        _measured(metric, first_side, pair_launches), _measured(metric, second_side, pair_launches)
    )
    sides = _Sides(
        figure=figure,
        before=before,
        now=now,
        tolerance_frac=rules.tolerances.get(metric.name, metric.gate_tolerance_frac or 0.0),
        rules=rules,
        level=rules.level_after(look, metric),
    )
    for side in figure.sides:
        broken = why_broken(pair_launches, side, metric)
        if broken is not None:
            return sides.unjudged(Outcome.INVALID, broken)
    if not (sides.before and sides.now):
        missing = second_side if sides.before else first_side
        reason = Reason(text=f"side {missing} has no launch yet")
        return sides.unjudged(Outcome.INCONCLUSIVE, reason, needed_launches=1)
    if not metric.by_launch:
        return _judge_acceptance(sides)
    change = _change(figure, launches)
    if change is None:
        reason = Reason(text="too few launches to tell how they spread")
        needed_launches = 2 * (sides.launches + 1)
        return sides.unjudged(Outcome.INCONCLUSIVE, reason, needed_launches=needed_launches)
    cause = _parts_of_output(sides.now, sides.before) if metric.name == OUTPUT else None
    verdict = sides.judged(change, cause)
    alone = change_of_pairs(_differences(figure, launches))
    if verdict.outcome is Outcome.INCONCLUSIVE or _shows_alone(verdict, alone, sides):
        return verdict
    reason = Reason(text="its own launches are too few, or differ too much, to show it alone")
    needed_launches = 2 * sides.launches
    return dataclasses.replace(
        verdict, outcome=Outcome.INCONCLUSIVE, reason=reason, needed_launches=needed_launches
    )


def _shows_alone(verdict: Verdict, alone: Effect | None, sides: _Sides) -> bool:
    """Return whether a pair's own launches show what they show together with other pairs.

    A load that is noisier than all others would seem to be known too well by their spread. Of six
    pairs, one of them three times noisier, 6 % of losses as large as tolerated passed without this,
    and 0.8 % do with it; of gates of identical sides 3 % had a loss, and 0.5 % have one.

    Args:
        verdict: the verdict with the spread of all pairs.
        alone: the change by the pair's own launches; None with too few of them.
        sides: what was measured.
    """
    if alone is None:
        return False
    if _is_lost(verdict):
        return alone.bounds(_OWN_LOSS_LEVEL)[1] < 0
    low, _ = alone.bounds(_OWN_PASS_LEVEL)
    return to_frac(sides.figure.metric, low) > -sides.tolerance_frac


def _judge_acceptance(sides: _Sides) -> Verdict:
    """Judge acceptance by all prompts, and without those whose answers are of another length."""
    counts = paired_counts(sides.now, sides.before)
    if isinstance(counts, Reason):
        return sides.unjudged(Outcome.INVALID, counts)
    verdict = _judge_counts(sides, counts)
    changes = changed_lengths(counts.now, counts.before)
    if not changes:
        return verdict
    unchanged = counts.without({change.prompt_id for change in changes})
    of_unchanged = _judge_counts(sides, unchanged)
    return weigh_changed_lengths(verdict, of_unchanged, changes, len(counts.now.prompt_ids))


def _judge_counts(sides: _Sides, counts: PairedCounts) -> Verdict:
    """Judge the change of acceptance over some prompts."""
    change = paired_ratio_change(sides.figure.metric, counts)
    if isinstance(change, Reason):  # no further launch would tell
        return sides.unjudged(Outcome.INVALID, change)
    return sides.judged(change, prompts=len(counts.now.prompt_ids))


def _measured(metric: Metric, side: Side, launches: Iterable[SideLaunch]) -> list[Measurement]:
    """Return a side's launches with a valid metric; of each number the last one."""
    by_number = {
        launch.number: launch.measurement
        for launch in launches
        if launch.side is side and launch.measurement is not None
        if launch.why_invalid(metric) is None
    }
    return list(by_number.values())


def _change(figure: _Figure, launches: Sequence[SideLaunch]) -> Effect | None:
    """Return the change of a speed of a pair, with the spread of all pairs; None without one."""
    # What A does beside itself, which is measured later, changes no verdict on B.
    other_figures = [
        _Figure(figure.metric, pair_id, sides)
        for pair_id in dict.fromkeys(launch.pair_id for launch in launches)
        for sides in dict.fromkeys((COMPARED, figure.sides))
    ]
    other_differences = [
        _differences(other, launches) for other in other_figures if other != figure
    ]
    return change_of_pairs(_differences(figure, launches), other_differences)


def _differences(figure: _Figure, launches: Sequence[SideLaunch]) -> list[float]:
    """Return by launch how much better a speed is on the second side, as a log difference."""
    before = _logs_by_number(figure, figure.sides[0], launches)
    now = _logs_by_number(figure, figure.sides[1], launches)
    sign = figure.metric.sign
    return [sign * (now[number] - before[number]) for number in now if number in before]


def _logs_by_number(
    figure: _Figure, side: Side, launches: Sequence[SideLaunch]
) -> Mapping[int, float]:
    """Return by number of the launch the logarithm of a side's speed."""
    logs = {}
    for launch in launches:
        if (launch.pair_id, launch.side) == (figure.pair_id, side):
            log = _log(figure.metric.name, launch)
            if log is not None:
                logs[launch.number] = log
    return logs


@functools.lru_cache(maxsize=4096)
def _log(name: str, launch: SideLaunch) -> float | None:
    """Return the logarithm of a speed on a launch, None where it is invalid or 0."""
    metric = GATE_METRICS[name]
    measurement = launch.measurement
    if measurement is None or measurement.replay is None:
        return None
    if launch.why_invalid(metric) is not None:
        return None
    value = metric.value_of(measurement.replay)
    return math.log(value) if value else None


def _needed(
    metric: Metric, effect: Effect, comparison: Comparison, rules: Rules, count_now: int
) -> int | None:
    """Return about how many launches, or prompts, decide if estimate and spread stay as they are.

    Args:
        metric: what is compared.
        effect: its change.
        comparison: the same, as it was judged.
        rules: how launches are weighed.
        count_now: how many launches or prompts there are.

    Returns:
        None if a thousand times as many as now wouldn't.
    """
    estimate_frac = comparison.change_frac or 0.0
    tolerance_frac = comparison.tolerance_frac or 0.0
    is_within = estimate_frac > -tolerance_frac
    room_frac = estimate_frac + tolerance_frac if is_within else -estimate_frac
    count = count_now
    while count < _MAX_GROWTH_RATIO * count_now:
        count = math.ceil(max(count + 1, count * 1.05))
        planned = dataclasses.replace(rules, launches=max(count, rules.launches))
        # More prompts are for a new gate, whose first look decides about acceptance.
        level = planned.level_after(planned.launches if metric.by_launch else 1, metric)
        if not is_within:
            level /= rules.figures
        reach = t_quantile(level, max(effect.freedom * count / count_now, 1))
        if reach * effect.error_frac * math.sqrt(count_now / count) < room_frac:
            return count
    return None


def why_broken(
    launches: Iterable[SideLaunch], side: Side, metric: Metric | None = None
) -> Reason | None:
    """Return why a side can't be measured, or has no metric; None if it can and has.

    A side is given up once most of its launches failed.
    """
    reasons = [
        launch.failed if metric is None else launch.why_invalid(metric)
        for launch in launches
        if launch.side is side
    ]
    failures = [reason for reason in reasons if reason is not None]
    successes = len(reasons) - len(failures)
    if len(failures) < max(_FAILED_LAUNCHES_TO_GIVE_UP, successes):
        return None
    return Reason(text=f"side {side}: {failures[-1]}")


def _value(metric: Metric, measurements: Sequence[Measurement]) -> float | None:
    """Return acceptance over all launches together; of a speed the geometric mean."""
    if metric.by_launch:
        return _mean_of(metric.value_of, measurements)
    counts = [
        measurement.acceptance.total for measurement in measurements if measurement.acceptance
    ]
    total = sum(counts, NO_STEPS)
    return metric.origin + total.accepted / total.steps if total.steps else None


def _mean_of(
    function: Callable[[Replay], float | None], measurements: Iterable[Measurement]
) -> float | None:
    """Return the geometric mean over the launches that have a value; None where none has."""
    values = [
        value
        for measurement in measurements
        if measurement.replay and (value := function(measurement.replay))
    ]
    return statistics.geometric_mean(values) if values else None


def _parts_of_output(now: Sequence[Measurement], before: Sequence[Measurement]) -> Cause | None:
    """Return the parts of Δ log(throughput), the worst first; None where one isn't known.

    Δ log(throughput) = Δ log(tokens per step) - Δ log(time of a step) + what is left.
    """
    moved = []
    for function in (GATE_METRICS[OUTPUT].value_of, tokens_per_step, GATE_METRICS[STEP].value_of):
        value = _mean_of(function, now)
        expected = _mean_of(function, before)
        if not value or not expected:
            return None
        moved.append(math.log(value / expected))
    output, tokens, step = moved
    log_parts = [
        (GATE_METRICS[ACCEPTANCE].cause, tokens),
        (GATE_METRICS[STEP].cause, -step),
        ("prefill and the rest", output - tokens + step),
    ]
    log_parts.sort(key=lambda part: part[1])
    return Cause(parts=tuple((name, math.expm1(change)) for name, change in log_parts))
