"""Judge the launches of both sides of a gate: return a verdict on each metric, and the answer.

Each look at the launches, see `Rules.looks`, gets a part of one level of significance, so that all
looks together are wrong no more often than a single one would be. If a look decides a metric, the
metric stays decided.
"""

import bisect
import dataclasses
import functools
import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from specreg.acceptance.record import NO_STEPS
from specreg.baselines.answer_lengths import changed_lengths
from specreg.baselines.comparison import (
    PairedCounts,
    over_common_steps,
    paired_counts,
    paired_ratio_change,
)
from specreg.compare.options import MOST_WORTH_ASKING
from specreg.compare.pairs import COMPARED, CONTROL, Group, Pair, Side
from specreg.core.reasons import Reason
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import ACCEPTANCE_LENGTH, GATE_METRICS, STEP, THROUGHPUT, Metric
from specreg.report.tables import label_of
from specreg.runs.ledger import ArmLaunch, FailedLaunch
from specreg.stats.intervals import LEVEL, Effect, change_of_pairs, t_quantile
from specreg.verdicts.changed_lengths import weigh_changed_lengths
from specreg.verdicts.detection import to_frac
from specreg.verdicts.judge import Reference, judge_effect
from specreg.verdicts.status import REGRESSED_STATUS, UNDECIDED_STATUS, exit_status
from specreg.verdicts.verdict import Cause, Comparison, Outcome, Verdict

_FEWEST_LAUNCHES = 4
"""With fewer launches of each side, a single case doesn't show how much its speed varies."""
_FAILED_LAUNCHES_TO_GIVE_UP = 2
"""After this many failed launches a side is given up, unless more of its launches succeeded."""
_FEW_EQUAL_FRAC = 0.5
"""If a smaller share of the answers is equal, the reasons of the decision mention it."""
_SPENT_EXPONENT = 2
"""After the share x of the launches, the looks at a speed have spent the part x² of the level,
where 2 is this exponent. So most of the level is left for the late looks."""
_OWN_LOSS_LEVEL = LEVEL / 10
"""The probability that a pair's launches alone, without those of the other pairs, show a loss of
speed by chance."""
_OWN_PASS_LEVEL = LEVEL / 2
"""The probability that a pair's launches alone show by chance that a loss is within the
tolerance."""
_FIRST_LOOK_FRAC = 0.5
"""The share of the level of significance that the first look at acceptance gets, in addition to its
part of the rest."""
_MAX_GROWTH_RATIO = 1000
"""The largest estimate of how many launches or prompts would decide, as a multiple of the present
number."""

_NEVER_DECIDED = "no number of launches or prompts would decide it"


def why_invalid(launch: ArmLaunch, metric: Metric) -> Reason | None:
    """Return why a launch has no valid value of a metric; None if it has one."""
    if isinstance(launch, FailedLaunch):
        return launch.reason
    return launch.measurement.invalid.get(metric.family)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How many launches a gate may take, and how strictly it judges them.

    Attributes:
        launches: the most launches of each side.
        figures: how many metrics decide, over all pairs. Chance may show a loss in each of them,
            and a single loss stops the upgrade, so the level at which a loss is proven is divided
            by their number (Bonferroni).
        tolerances: the tolerances that override those of the metrics, by the metric's name.
    """

    launches: int
    figures: int
    tolerances: Mapping[str, float] = field(default_factory=dict)

    @property
    def looks(self) -> tuple[int, ...]:
        """The numbers of launches after which the gate judges.

        Each is twice the one before, except for the last, which is the most launches. More looks
        would spend more of the level on early, noisy figures.
        """
        doublings = (self.launches - 1).bit_length()
        powers_of_2 = [2**exponent for exponent in range(doublings)]
        return (*powers_of_2, self.launches)

    def level_after(self, launches: int, metric: Metric) -> float:
        """Return the level of a look: the probability that it decides a metric wrongly.

        The part of the level that the looks at a speed have spent grows with the square of the
        launches (Kim and DeMets, 1987). So most of the level is left for the late looks, which have
        more launches. Acceptance varies with the prompt and hardly with the launch. Its first look
        therefore has nearly all information. It gets half of the level in addition to its part of
        the other half.

        Args:
            launches: how many launches of each side the look judges.
            metric: the metric that it judges.
        """
        earlier_looks = [look for look in self.looks if look < launches]
        last_earlier = max(earlier_looks, default=0)
        level = self._spent_after(launches) - self._spent_after(last_earlier)
        if metric.by_launch:
            return level

        # The first look at acceptance gets a share of its own. All looks divide the rest in the
        # same proportions in which the looks at a speed divide the whole level.
        level *= 1 - _FIRST_LOOK_FRAC
        if not earlier_looks:
            level += LEVEL * _FIRST_LOOK_FRAC
        return level

    def _spent_after(self, launches: int) -> float:
        """Return the part of the level that all looks up to this number of launches spend."""
        share_frac = min(launches / self.launches, 1.0)
        return LEVEL * share_frac**_SPENT_EXPONENT


class _Figure(NamedTuple):
    """A metric of a pair, for which the second of two sides is compared with the first."""

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
"""The answer for each exit status that all verdicts together may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a gate decided.

    Attributes:
        reasons: the reasons for the answer, the most important one first.
        unclear: a sentence for each verdict that leaves the answer undecided; empty for any other
            answer.
        needed_launches: about how many launches of each side would decide all metrics that launches
            can decide; 0 without such a metric, or if the answer is decided.
        verdicts: the verdicts on the metrics of all pairs, and on the answers that both sides
            generated.
        control: the verdicts on side A compared with itself.
        wants_answers: whether a further launch should try to compare answers.
    """

    answer: GateAnswer
    reasons: tuple[str, ...] = ()
    unclear: tuple[str, ...] = ()
    needed_launches: int = 0
    verdicts: tuple[Verdict, ...]
    control: tuple[Verdict, ...] = ()
    wants_answers: bool = False


def decide(
    pairs: Sequence[Pair],
    launches: Sequence[ArmLaunch],
    rules: Rules,
    answer_verdicts: Sequence[Verdict] = (),
    *,
    wants_answers: bool = False,
) -> Decision:
    """Decide on the basis of the launches so far.

    Args:
        pairs: the pairs that are compared.
        launches: the launches of all pairs, in the order in which they were made.
        rules: how strictly they are judged.
        answer_verdicts: the verdicts on the answers that both sides of each pair generated.
        wants_answers: as in `Decision`.
    """
    # Judge each metric. A loss of speed may also come from the machine, so it is compared with how
    # much side A differs from itself.
    first_verdicts: list[Verdict] = []
    for pair in pairs:
        first_verdicts += judge_pair(pair, launches, rules)
    has_wrong_answers = any(verdict.outcome is Outcome.WRONG for verdict in answer_verdicts)
    first_losses = [verdict for verdict in first_verdicts if _is_proven_loss(verdict)]
    has_lost_acceptance = any(not _is_speed(loss) for loss in first_losses)
    is_worse_anyway = has_wrong_answers or has_lost_acceptance
    verdicts = [
        _against_control(verdict, launches, is_worse_anyway=is_worse_anyway)
        for verdict in first_verdicts
    ]

    # Derive the answer from all verdicts, and explain it.
    losses = [verdict for verdict in verdicts if _is_proven_loss(verdict)]
    all_verdicts = (*verdicts, *answer_verdicts)
    answer = _ANSWERS[exit_status(all_verdicts)]

    # What is undecided matters only if the answer depends on it. A lost gate stays lost.
    unclear: list[Verdict] = []
    if answer is GateAnswer.UNDECIDED:
        unclear = [verdict for verdict in all_verdicts if verdict.fails]
    unclear_lines = []
    needed_launches = 0
    for verdict in unclear:
        explanation = verdict.explanation or _NEVER_DECIDED
        unclear_lines.append(f"{verdict.case_id}: {explanation} ({verdict.metric})")
        needed_launches = max(needed_launches, verdict.needed_launches or 0)

    return Decision(
        answer=answer,
        reasons=(*_reasons(answer_verdicts, losses), *_bounds(unclear)),
        unclear=tuple(unclear_lines),
        needed_launches=needed_launches,
        verdicts=all_verdicts,
        control=tuple(_control_verdicts(pairs, launches, rules)),
        wants_answers=wants_answers,
    )


def _control_verdicts(
    pairs: Sequence[Pair], launches: Sequence[ArmLaunch], rules: Rules
) -> Iterator[Verdict]:
    """Yield the verdicts on the speeds of side A against itself, for the pairs that measured it."""
    controlled_ids = {launch.case_id for launch in launches if launch.arm in CONTROL}
    controlled_pairs = [pair for pair in pairs if pair.id in controlled_ids]
    for pair in controlled_pairs:
        verdicts = judge_pair(pair, launches, rules, CONTROL)
        # Acceptance hardly varies with the launch, so only speeds are compared with a control.
        yield from (verdict for verdict in verdicts if _is_speed(verdict))


def is_lost(decision: Decision) -> bool:
    """Return whether no further launch would turn a decision into an upgrade."""
    return decision.answer is GateAnswer.DONT


def _is_proven_loss(verdict: Verdict) -> bool:
    """Return whether a verdict is a proven loss."""
    return verdict.outcome is Outcome.REGRESSED


def _is_speed(verdict: Verdict) -> bool:
    """Return whether a verdict is about a metric that varies from launch to launch."""
    return GATE_METRICS[verdict.metric].by_launch


def _against_control(
    verdict: Verdict, launches: Sequence[ArmLaunch], *, is_worse_anyway: bool
) -> Verdict:
    """Judge the loss of a speed again, by how much side A differs from itself.

    If the loss isn't significantly larger than that difference, it comes from the machine and is
    INVALID. As long as side A hasn't been measured against itself, the loss is INCONCLUSIVE.

    Args:
        verdict: the verdict. If it isn't the proven loss of a speed, it is returned unchanged.
        launches: all launches.
        is_worse_anyway: whether B is worse for another reason. The loss then stands at once, since
            measuring side A against itself would not change the answer.
    """
    if not (_is_proven_loss(verdict) and _is_speed(verdict)):
        return verdict
    figure = _Figure(GATE_METRICS[verdict.metric], verdict.case_id)
    change = _change(figure, launches)
    control_change = _change(figure._replace(sides=CONTROL), launches)
    if change is None or control_change is None:
        reason = Reason.of("UNCHECKED")
        outcome = Outcome.INCONCLUSIVE
        if is_worse_anyway:
            outcome = Outcome.REGRESSED
        return dataclasses.replace(verdict, outcome=outcome, reason=reason)

    # Both changes are estimates, so the variance of their difference is the sum of their variances.
    # The smaller number of degrees of freedom gives the wider interval.
    beyond_control = Effect(
        estimate_frac=change.estimate_frac - control_change.estimate_frac,
        error_frac=math.hypot(change.error_frac, control_change.error_frac),
        freedom=min(change.freedom, control_change.freedom),
    )
    _, high = beyond_control.bounds(LEVEL)
    if high < 0:
        return verdict

    # The estimate is a difference of logarithms, and shown as a ratio.
    control_change_frac = math.expm1(control_change.estimate_frac)
    finding = f"side A differs from itself by {control_change_frac:+.1%}"
    reason = Reason.of("MACHINE_MOVED", finding=finding)
    return dataclasses.replace(verdict, outcome=Outcome.INVALID, reason=reason)


def _reasons(answer_verdicts: Iterable[Verdict], losses: Sequence[Verdict]) -> Iterator[str]:
    """Yield the reasons for a decision: the answers first, and then the proven losses.

    The answers of a pair are mentioned if they are wrong, mostly different, or not compared yet.

    Args:
        answer_verdicts: the verdicts on the answers that both sides of each pair generated.
        losses: the verdicts that are proven losses.
    """
    for verdict in answer_verdicts:
        # Many answers that differ are mentioned even if rounding explains all of them.
        few_are_equal = verdict.value is not None and verdict.value < _FEW_EQUAL_FRAC
        if few_are_equal or verdict.outcome in {Outcome.WRONG, Outcome.INVALID}:
            yield f"{verdict.case_id}: {verdict.explanation}"

    case_ids = dict.fromkeys(loss.case_id for loss in losses)
    for case_id in case_ids:
        case_losses = [loss for loss in losses if loss.case_id == case_id]
        changes = [f"{loss.metric} {loss.comparison.change_frac:+.1%}" for loss in case_losses]
        yield f"{case_id} is worse because of {_causes(case_losses)}: {', '.join(changes)}"


def _causes(losses: Sequence[Verdict]) -> str:
    """Name what made a case worse, the part of a lost throughput that contributes most first."""
    causes = [GATE_METRICS[loss.metric].cause for loss in losses if loss.metric != THROUGHPUT]
    for loss in losses:
        if loss.cause is not None:
            worst_part, _ = loss.cause.parts[0]
            # "prefill and the rest" is proven to be "prefill" by the time of the first token.
            proven = [cause for cause in causes if worst_part.startswith(cause)]
            causes = [*(proven or [worst_part]), *causes]

    return ", ".join(dict.fromkeys(causes)) or "output"


def _bounds(unclear: Iterable[Verdict]) -> Iterator[str]:
    """Yield a sentence for each undecided metric: the largest loss that isn't excluded."""
    largest_losses: dict[str, tuple[float, str]] = {}
    for verdict in unclear:
        low_frac = verdict.comparison.low_frac
        if verdict.outcome is Outcome.INCONCLUSIVE and low_frac is not None:
            loss = max(-low_frac, 0.0), verdict.case_id
            largest_loss = largest_losses.get(verdict.metric, loss)
            largest_losses[verdict.metric] = max(largest_loss, loss)

    for name, (loss_frac, case_id) in largest_losses.items():
        yield f"{label_of(name)} is worse by {loss_frac:.1%} at most ({case_id})"


def is_settled(group: Group, decision: Decision) -> bool:
    """Return whether no further launch would change the answer on the pairs of a group.

    That is so if each undecided metric has an interval to show, and its pair can no longer lead to
    an upgrade. A pair can no longer do so if B's answers are wrong, or if a metric other than
    throughput is proven to be worse. The same holds for a pair that compares two drafts, if its
    acceptance is undecided: each launch replays the same prompts, so none would decide it.
    """
    pair_ids = {pair.id for pair in group}
    draft_ids = {pair.id for pair in group if pair.compares_drafts}
    verdicts = [verdict for verdict in decision.verdicts if verdict.case_id in pair_ids]
    unclear = [verdict for verdict in verdicts if verdict.outcome is Outcome.INCONCLUSIVE]
    settled_ids = set()
    for verdict in verdicts:
        is_lost_by_part = _is_proven_loss(verdict) and verdict.metric != THROUGHPUT
        if verdict.outcome is Outcome.WRONG or is_lost_by_part:
            settled_ids.add(verdict.case_id)

    for verdict in unclear:
        # `needed_launches` is 0 for an acceptance that was compared, because further launches would
        # replay the same prompts. It is 1 if a side has no valid launch yet.
        is_stuck = verdict.metric == ACCEPTANCE_LENGTH and verdict.needed_launches == 0
        if is_stuck and verdict.case_id in draft_ids:
            settled_ids.add(verdict.case_id)

    return all(
        verdict.case_id in settled_ids and verdict.comparison.low_frac is not None
        for verdict in unclear
    )


def judge_pair(
    pair: Pair, launches: Sequence[ArmLaunch], rules: Rules, sides: tuple[Side, Side] = COMPARED
) -> tuple[Verdict, ...]:
    """Judge each metric of a pair, at the look that decides it or else at the last look.

    The metrics that aren't in `pair.deciding` have no looks: all launches count.

    Args:
        pair: the case as both sides run it.
        launches: the launches of all pairs, in the order in which they were made.
        rules: how strictly they are judged.
        sides: two sides, of which the second is compared with the first.
    """
    verdicts = []
    for metric in pair.metrics:
        figure = _Figure(metric, pair.id, sides)
        is_deciding = metric.name in pair.deciding
        if is_deciding:
            verdict = _judge(figure, launches, rules)
        else:
            verdict = _look(figure, launches, rules, last_number(launches))
        # A control shows the noise of the machine, which is never a loss.
        if sides == CONTROL or not is_deciding:
            verdict = dataclasses.replace(verdict, outcome=Outcome.MEASURED, reason=None)
        verdicts.append(verdict)

    return tuple(verdicts)


def last_number(launches: Sequence[ArmLaunch]) -> int:
    """Return the highest number of some launches; 0 without one."""
    return max((launch.number for launch in launches), default=0)


def _judge(figure: _Figure, launches: Sequence[ArmLaunch], rules: Rules) -> Verdict:
    """Judge a figure at each look, and return the verdict of the look that decides it."""
    # A launch belongs to the look that came after it: the first look at or above the highest number
    # of this launch and all before it. The number of the launch itself would be too low if it was
    # repeated after a failure. It would belong to an earlier look, and could change what that look
    # decided.
    highest_numbers = list(itertools.accumulate((launch.number for launch in launches), max))
    last_look = last_number(launches)
    earlier_looks = [number for number in rules.looks if number < last_look]

    def verdict_at(look: int) -> Verdict:
        # The highest number never falls, so the first launches of all are those until this look.
        launches_of_look = bisect.bisect_right(highest_numbers, look)
        return _look(figure, launches[:launches_of_look], rules, look)

    first_look, *later_looks = [*earlier_looks, last_look]
    decided = verdict_at(first_look)
    for look in later_looks:
        if decided.outcome not in {Outcome.PASS, Outcome.INCONCLUSIVE}:
            break
        verdict = verdict_at(look)
        # An early look may prove PASS. A later one may still prove a gain beyond the tolerance.
        if decided.outcome is Outcome.INCONCLUSIVE or verdict.outcome is Outcome.IMPROVED:
            decided = verdict

    return decided


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sides:
    """What both sides of a figure have measured up to a look.

    Attributes:
        figure: the figure that is judged.
        first: the measurements of the first side.
        second: the measurements of the second side, which is compared with the first.
        tolerance_frac: the tolerated loss, 0..1.
        rules: how strictly the launches are judged.
        level: the probability that this look decides the figure wrongly.
    """

    figure: _Figure
    first: Sequence[Measurement]
    second: Sequence[Measurement]
    tolerance_frac: float
    rules: Rules
    level: float

    @property
    def launches(self) -> int:
        """The number of launches that each side has at least."""
        return min(len(self.first), len(self.second))

    @property
    def expected(self) -> float | None:
        """The value of the first side."""
        return _value(self.figure.metric, self.first)

    def unjudged(
        self, outcome: Outcome, reason: Reason, *, needed_launches: int | None = None
    ) -> Verdict:
        """Return the verdict on a figure whose change can't be estimated."""
        return Verdict(
            case_id=self.figure.pair_id,
            metric=self.figure.metric.name,
            outcome=outcome,
            value=_value(self.figure.metric, self.second),
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
        """Return the verdict on a change, with what would decide it if it is undecided.

        Args:
            effect: the change of the second side.
            cause: what changed a speed; None if unknown.
            prompts: how many prompts an acceptance was compared on; 0 for a speed.
        """
        metric = self.figure.metric

        # Chance may show a loss in any figure, so the level of a loss is divided by their number.
        loss_level = self.level / self.rules.figures
        reference = Reference(self.expected, f"side {self.figure.sides[0]}", self.tolerance_frac)
        outcome, comparison = judge_effect(metric, effect, reference, self.level, loss_level)
        reason: Reason | None = None
        needed_launches: int | None = None
        if outcome is Outcome.INCONCLUSIVE:
            count = self.launches if metric.by_launch else prompts
            needed_count = _needed_count(metric, effect, comparison, self.rules, count)
            # Only more prompts decide an acceptance. Further launches replay the same prompts.
            needed_launches = needed_count if metric.by_launch else 0
            reason = self._why_undecided(needed_count)

        return Verdict(
            case_id=self.figure.pair_id,
            metric=metric.name,
            outcome=outcome,
            value=_value(metric, self.second),
            comparison=comparison,
            cause=cause,
            reason=reason,
            launches=self.launches,
            needed_launches=needed_launches,
        )

    def _why_undecided(self, needed_count: int | None) -> Reason | None:
        """Say how many launches or prompts would decide; None if no number would."""
        if needed_count is None:
            return None
        if self.figure.metric.by_launch and needed_count > MOST_WORTH_ASKING:
            return Reason.of("undecidable")
        if self.figure.metric.by_launch:
            return Reason.of("more_launches", needed=needed_count, launches=self.launches)
        return Reason.of("more_prompts", needed=needed_count)


def _look(figure: _Figure, launches: Sequence[ArmLaunch], rules: Rules, look: int) -> Verdict:
    """Judge a figure at one look.

    Args:
        figure: the figure that is judged.
        launches: the launches of all pairs that belong to the look or to an earlier one.
        rules: how strictly they are judged.
        look: the number of launches of each side after which the look takes place.
    """
    # Collect the valid measurements of both sides.
    metric, pair_id, (first_side, second_side) = figure
    pair_launches = [launch for launch in launches if launch.case_id == pair_id]
    first_measurements = _measured(metric, first_side, pair_launches)
    second_measurements = _measured(metric, second_side, pair_launches)

    # vLLM's two model runners count different steps of `ngram`, so both sides are brought to one
    # rule.
    first, second = over_common_steps(first_measurements, second_measurements)
    default_tolerance_frac = metric.gate_tolerance_frac or 0.0
    sides = _Sides(
        figure=figure,
        first=first,
        second=second,
        tolerance_frac=rules.tolerances.get(metric.name, default_tolerance_frac),
        rules=rules,
        level=rules.level_after(look, metric),
    )

    # A side that is broken or has no valid measurement can't be judged.
    for side in figure.sides:
        broken = why_broken(pair_launches, side, metric)
        if broken is not None:
            return sides.unjudged(Outcome.INVALID, broken)

    if not (sides.first and sides.second):
        missing = second_side if sides.first else first_side
        reason = _why_missing(pair_launches, missing, metric)
        # A single launch decides an acceptance.
        needed_launches = _FEWEST_LAUNCHES if metric.by_launch else 1
        return sides.unjudged(Outcome.INCONCLUSIVE, reason, needed_launches=needed_launches)

    if metric.by_launch:
        return _judge_speed(sides, launches)
    return _judge_acceptance(sides)


def _judge_speed(sides: _Sides, launches: Sequence[ArmLaunch]) -> Verdict:
    """Judge a speed by its launches on both sides.

    Args:
        sides: the valid measurements of both sides.
        launches: the launches of all pairs that belong to the look or to an earlier one.
    """
    figure = sides.figure
    metric = figure.metric

    # A version may lack a counter that the metric needs, and became no worse by that.
    if metric.counters and None in (_value(metric, sides.first), _value(metric, sides.second)):
        reason = Reason.of("not_counted", whose="a side's")
        return sides.unjudged(Outcome.NOT_COMPARABLE, reason)

    # A speed is judged with the spread of all pairs. The pair's own launches must then confirm the
    # verdict.
    change = _change(figure, launches)
    if change is None:
        reason = Reason.of("few_launches")
        needed_launches = max(_FEWEST_LAUNCHES, 2 * (sides.launches + 1))
        return sides.unjudged(Outcome.INCONCLUSIVE, reason, needed_launches=needed_launches)

    cause: Cause | None = None
    if metric.name == THROUGHPUT:
        cause = _parts_of_output(sides.second, sides.first)
    verdict = sides.judged(change, cause)
    own_change = change_of_pairs(_differences(figure, launches))
    if verdict.outcome is Outcome.INCONCLUSIVE or _own_launches_confirm(verdict, own_change, sides):
        return verdict
    reason = Reason.of("launches_vary")
    needed_launches = max(_FEWEST_LAUNCHES, 2 * sides.launches)
    return dataclasses.replace(
        verdict, outcome=Outcome.INCONCLUSIVE, reason=reason, needed_launches=needed_launches
    )


def _why_missing(launches: Iterable[ArmLaunch], side: Side, metric: Metric) -> Reason:
    """Return why a side has no valid value of a metric yet, by its last launch."""
    reason = Reason.of("not_launched", side=side)
    for launch in launches:
        invalid = why_invalid(launch, metric)
        if launch.arm == side and invalid is not None:
            reason = Reason.of("no_valid_launch", side=side, invalid=invalid)
    return reason


def _own_launches_confirm(verdict: Verdict, own_change: Effect | None, sides: _Sides) -> bool:
    """Return whether a pair's own launches confirm a verdict that used the spread of all pairs.

    The spread of all pairs is too small for a load that is noisier than the rest. In simulations of
    six pairs, one of them three times noisier, 6 % of the losses as large as the tolerance passed
    without this check, and 0.8 % with it. Without the check, 3 % of the gates between identical
    sides found a loss; with the check, 0.5 % did.

    Args:
        verdict: the verdict that used the spread of all pairs.
        own_change: the change according to the pair's own launches; None with too few of them.
        sides: what was measured.
    """
    if own_change is None:
        return False
    if _is_proven_loss(verdict):
        _, high = own_change.bounds(_OWN_LOSS_LEVEL)
        return high < 0
    low, _ = own_change.bounds(_OWN_PASS_LEVEL)
    largest_loss_frac = -to_frac(sides.figure.metric, low)
    return largest_loss_frac < sides.tolerance_frac


def _judge_acceptance(sides: _Sides) -> Verdict:
    """Judge acceptance over all prompts, and over those whose answers kept their length."""
    counts = paired_counts(sides.second, sides.first)
    if isinstance(counts, Reason):
        return sides.unjudged(Outcome.INVALID, counts)
    verdict = _judge_counts(sides, counts)
    changes = changed_lengths(counts.measured, counts.reference)
    if not changes:
        return verdict
    changed_ids = {change.prompt_id for change in changes}
    unchanged_prompts = counts.without(changed_ids)
    verdict_on_unchanged = _judge_counts(sides, unchanged_prompts)
    prompts = len(counts.measured.prompt_ids)
    return weigh_changed_lengths(verdict, verdict_on_unchanged, changes, prompts)


def _judge_counts(sides: _Sides, counts: PairedCounts) -> Verdict:
    """Judge the change of acceptance over the prompts of the counts."""
    change = paired_ratio_change(sides.figure.metric, counts)
    if isinstance(change, Reason):
        # Further launches replay the same prompts, so they wouldn't help.
        return sides.unjudged(Outcome.INVALID, change)
    return sides.judged(change, prompts=len(counts.measured.prompt_ids))


def _measured(metric: Metric, side: Side, launches: Iterable[ArmLaunch]) -> list[Measurement]:
    """Return a side's measurements with a valid value of a metric.

    If a launch was repeated, the last valid one with its number counts.
    """
    by_number = {}
    for launch in launches:
        if isinstance(launch, FailedLaunch) or launch.arm != side:
            continue
        if why_invalid(launch, metric) is None:
            by_number[launch.number] = launch.measurement
    return list(by_number.values())


def _change(figure: _Figure, launches: Sequence[ArmLaunch]) -> Effect | None:
    """Return the change of a speed of a pair. Its spread is estimated with the help of all pairs.

    Returns:
        None if there are too few launches to estimate the spread.
    """
    # The differences of side A from itself help only to judge side A against itself. They are
    # measured later than B, and would change what was decided about B before.
    all_sides = dict.fromkeys((COMPARED, figure.sides))
    pair_ids = dict.fromkeys(launch.case_id for launch in launches)
    other_differences = []
    for pair_id, sides in itertools.product(pair_ids, all_sides):
        other_figure = _Figure(figure.metric, pair_id, sides)
        if other_figure != figure:
            other_differences.append(_differences(other_figure, launches))

    differences = _differences(figure, launches)
    return change_of_pairs(differences, other_differences)


def _differences(figure: _Figure, launches: Sequence[ArmLaunch]) -> list[float]:
    """Return for each launch how much better a speed is on the second side, in logarithms."""
    first_side, second_side = figure.sides
    first_logs = _logs_by_number(figure, first_side, launches)
    second_logs = _logs_by_number(figure, second_side, launches)
    sign = figure.metric.sign
    differences = []

    # Two launches of one number were made next to each other, so what the machine did at that hour
    # cancels out in their difference.
    for number, second_log in second_logs.items():
        if number in first_logs:
            differences.append(sign * (second_log - first_logs[number]))
    return differences


def _logs_by_number(
    figure: _Figure, side: Side, launches: Sequence[ArmLaunch]
) -> Mapping[int, float]:
    """Return the logarithm of a side's speed on each launch, by the number of the launch."""
    logs = {}
    for launch in launches:
        if (launch.case_id, launch.arm) == (figure.pair_id, side):
            log = _log(figure.metric.name, launch)
            if log is not None:
                logs[launch.number] = log
    return logs


# Each look asks again for the speeds of all launches before it, for every pair.
@functools.lru_cache(maxsize=4096)
def _log(name: str, launch: ArmLaunch) -> float | None:
    """Return the logarithm of a speed on a launch; None if the speed is missing, invalid or 0."""
    metric = GATE_METRICS[name]
    if isinstance(launch, FailedLaunch) or why_invalid(launch, metric) is not None:
        return None
    if launch.measurement.replay is None:
        return None
    value = metric.value_of(launch.measurement.replay)
    if not value:
        return None
    return math.log(value)


def _needed_count(
    metric: Metric, effect: Effect, comparison: Comparison, rules: Rules, present_count: int
) -> int | None:
    """Estimate how many launches, or prompts, would decide a metric.

    The estimate assumes that the change and the spread stay as they are.

    Args:
        effect: its change.
        comparison: the same change as it was judged.
        rules: how strictly launches are judged.
        present_count: how many launches or prompts there are now.

    Returns:
        None if not even a thousand times as many would decide.
    """
    estimate_frac = comparison.change_frac or 0.0
    tolerance_frac = comparison.tolerance_frac or 0.0

    # Within the tolerance, the metric is decided once the interval excludes a loss of that size.
    # Beyond the tolerance, it is decided once the interval excludes 0.
    is_within = estimate_frac > -tolerance_frac

    # The reach is half of the width of the interval.
    needed_reach_frac = -estimate_frac
    if is_within:
        needed_reach_frac = estimate_frac + tolerance_frac
    count = present_count
    while count < _MAX_GROWTH_RATIO * present_count:
        # Steps of 5 % are fine enough for an estimate, and the limit is reached after few of them.
        count = math.ceil(max(count + 1, count * 1.05))
        planned = dataclasses.replace(rules, launches=max(count, rules.launches))
        # More prompts need a new gate, whose first look decides about acceptance.
        look = planned.launches if metric.by_launch else 1
        level = planned.level_after(look, metric)
        if not is_within:
            level /= rules.figures
        # The pair's own launches must confirm what the spread of all pairs shows of a speed.
        if metric.by_launch and count < _FEWEST_LAUNCHES:
            continue
        # The degrees of freedom grow with the number, and the standard error falls with its root.
        freedom = max(effect.freedom * count / present_count, 1)
        error_frac = effect.error_frac * math.sqrt(present_count / count)
        reach_frac = t_quantile(level, freedom) * error_frac
        if reach_frac < needed_reach_frac:
            return count

    return None


def why_broken(
    launches: Iterable[ArmLaunch], side: Side, metric: Metric | None = None
) -> Reason | None:
    """Return why a side is given up; None if it isn't.

    A side is given up if at least two of its launches failed, and at least as many as succeeded.

    Args:
        launches: the launches of both sides.
        metric: if set, a launch without a valid value of this metric counts as failed.
    """
    failures = []
    successes = 0
    for launch in launches:
        if launch.arm != side:
            continue
        reason: Reason | None = None
        if isinstance(launch, FailedLaunch):
            reason = launch.reason
        elif metric is not None:
            reason = why_invalid(launch, metric)
        if reason is None:
            successes += 1
        else:
            failures.append(reason)

    if len(failures) < max(_FAILED_LAUNCHES_TO_GIVE_UP, successes):
        return None
    return Reason(text=f"side {side}: {failures[-1]}")


def _value(metric: Metric, measurements: Sequence[Measurement]) -> float | None:
    """Return the value of a metric over several launches.

    Returns:
        The acceptance of all launches together, or the geometric mean of a speed; None without a
        value.
    """
    if metric.by_launch:
        return _mean(_speed(metric, measurement) for measurement in measurements)

    # All steps of all launches count equally, as in the acceptance length of a single launch.
    total = NO_STEPS
    for measurement in measurements:
        if measurement.acceptance is not None:
            total += measurement.acceptance.total
    if not total.steps:
        return None
    return metric.origin + total.accepted / total.steps


def _speed(metric: Metric, measurement: Measurement) -> float | None:
    """Return a speed of a launch; None if it has no value."""
    return None if measurement.replay is None else metric.value_of(measurement.replay)


def _mean(values: Iterable[float | None]) -> float | None:
    """Return the geometric mean of the values of launches; None if none has a value."""
    # A value of 0 has no place in a geometric mean.
    positive_values = [value for value in values if value]
    if not positive_values:
        return None
    return statistics.geometric_mean(positive_values)


def _tokens_per_step(measurement: Measurement) -> float | None:
    """Return the tokens per step, as the server counts its steps.

    Returns:
        None if the server's counts aren't valid, or if the time of a step is unknown because the
        tokens of a step came in several chunks.
    """
    if not measurement.case.speculates:
        return 1.0
    acceptance = measurement.acceptance
    if acceptance is None or acceptance.chunks_split_steps:
        return None
    return acceptance.over_all_steps.total.acceptance_length


def _parts_of_output(second: Sequence[Measurement], first: Sequence[Measurement]) -> Cause | None:
    """Split the change of throughput into its parts, the worst one first.

    Δ log(throughput) = Δ log(tokens per step) - Δ log(time of a step) + remainder.

    Args:
        second: the measurements of the second side.
        first: the measurements of the first side, with which it is compared.

    Returns:
        None if a part is unknown.
    """
    log_changes = []
    output_of = functools.partial(_speed, GATE_METRICS[THROUGHPUT])
    step_time_of = functools.partial(_speed, GATE_METRICS[STEP])
    for function in (output_of, _tokens_per_step, step_time_of):
        value = _mean(map(function, second))
        expected = _mean(map(function, first))
        if not value or not expected:
            return None
        log_changes.append(math.log(value / expected))

    output, tokens, step = log_changes
    remainder = output - tokens + step
    log_parts = [
        (GATE_METRICS[ACCEPTANCE_LENGTH].cause, tokens),
        (GATE_METRICS[STEP].cause, -step),
        ("prefill and the rest", remainder),
    ]
    log_parts.sort(key=lambda part: part[1])
    parts = [(name, math.expm1(log_change)) for name, log_change in log_parts]
    return Cause(parts=tuple(parts))
