"""The launches of both sides of a gate judged: a verdict on each metric of each pair.

Each block, which is two launches of a side, is a look. Looks share the level equally, so that all
of them together are wrong no more often than one would be; what a look has decided stays decided.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from specreg.baselines.comparison import paired_difference, paired_ratio_change
from specreg.compare.pairs import ACCEPTANCE, OUTPUT, Side, Subject
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import GATE_METRICS, Metric, tokens_per_step
from specreg.stats.alpha_spending import LEVEL
from specreg.stats.intervals import Change, change_of_pairs, t_quantile
from specreg.verdicts.judge import Outcome, Verdict, log_to_frac, outcome_of

LAUNCHES_PER_BLOCK = 2
"""Of each side."""
SPEED_LAUNCHES = 4
"""With fewer of each side a speed has no interval."""
DIFFERS = frozenset({Outcome.IMPROVED, Outcome.REGRESSED})
DECIDED = DIFFERS | {Outcome.PASS, Outcome.INVALID, Outcome.MEASURED}
_LOSS_LEVEL = 0.001
"""How often a gate may call an upgrade worse that isn't.

A loss that matters is far beyond its noise once that is small enough to prove anything.
"""
_MOST_FAILED = 2
_FURTHEST = 50.0
"""A difference of logarithms beyond it isn't told: a float holds no more."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SideLaunch:
    """A case on one launch of a side's server.

    Attributes:
        pair_id: of what is compared.
        side: whose server; number: of its launch, from 1.
        measurement: None where it failed.
        failed: why it came to nothing, empty where it didn't.
    """

    pair_id: str
    side: Side
    number: int
    measurement: Measurement | None = None
    failed: str = ""

    @property
    def block(self) -> int:
        """From 1."""
        return math.ceil(self.number / LAUNCHES_PER_BLOCK)

    def why_invalid(self, metric: Metric) -> str:
        """Why a metric's value means nothing, empty where it does."""
        invalid = self.measurement.invalid if self.measurement is not None else {}
        return self.failed or invalid.get(metric.family, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How much evidence there may be, and how it is weighed.

    Attributes:
        blocks: the most, and so the most looks.
        figures: how many the gate judges: any of them alone may stop an upgrade, so a loss must
            stand among all of them (Bonferroni).
        tolerances: by metric, one that overrides its own.
        loss_frac: how often the gate as a whole may see a loss where there is none.
    """

    blocks: int
    figures: int
    tolerances: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    loss_frac: float = _LOSS_LEVEL

    def of_control(self, figures: int) -> "Rules":
        """Those of a control of so many figures: it accuses no side, so it may speak up sooner."""
        return dataclasses.replace(self, figures=max(figures, 1), loss_frac=LEVEL)

    def tolerance_frac(self, metric: Metric) -> float:
        """The loss of a metric that is still fine."""
        return self.tolerances.get(metric.name, metric.gate_tolerance_frac or 0.0)

    @property
    def launches(self) -> int:
        """The most of each side."""
        return LAUNCHES_PER_BLOCK * self.blocks

    @property
    def level(self) -> float:
        """How often a look may call something proven that isn't."""
        return LEVEL / self.blocks

    @property
    def loss_level(self) -> float:
        """The same of a loss, among all figures."""
        return self.loss_frac / self.blocks / self.figures


def judge_subject(
    subject: Subject, launches: Sequence[SideLaunch], rules: Rules
) -> tuple[Verdict, ...]:
    """The verdict on each metric of a pair, at the look that decides or else at the last one.

    Args:
        subject: what is compared.
        launches: of all sides and pairs so far, as they came.
        rules: see there.

    Returns:
        What doesn't decide is MEASURED.
    """
    sides = {Side.A, subject.other}
    ours = [one for one in launches if one.pair_id == subject.pair.id and one.side in sides]
    return tuple(_judge(metric, subject, ours, rules) for metric in subject.metrics)


def _judge(
    metric: Metric, subject: Subject, launches: Sequence[SideLaunch], rules: Rules
) -> Verdict:
    # Proven within the tolerance is soon proven; that it is better by more may show later, and so
    # may that the machine moved.
    later = DIFFERS if subject.is_control else {Outcome.IMPROVED}
    decided = verdict = _look(metric, subject, (), rules)
    for some in _looks(launches):
        verdict = _look(metric, subject, some, rules)
        open_yet = decided.outcome is Outcome.INCONCLUSIVE
        if verdict.outcome in later or (open_yet and verdict.outcome in DECIDED):
            decided = verdict
        if decided.outcome not in {Outcome.PASS, Outcome.INCONCLUSIVE}:
            break
    found = verdict if decided.outcome is Outcome.INCONCLUSIVE else decided
    if metric.name in subject.deciding:
        return found
    return dataclasses.replace(found, outcome=Outcome.MEASURED, reason="")


def _looks(launches: Sequence[SideLaunch]) -> Iterator[list[SideLaunch]]:
    """What was there at each look, block by block.

    What was launched once more in a block that had failed counts from the last block that there was
    by then on: it changes no look before.
    """
    told_at = list(itertools.accumulate((one.block for one in launches), max))
    for look in sorted(set(told_at)):
        yield [one for one, at in zip(launches, told_at, strict=True) if at <= look]


def _look(
    metric: Metric, subject: Subject, launches: Sequence[SideLaunch], rules: Rules
) -> Verdict:
    sides = (Side.A, subject.other)
    valid = {
        side: [one for one in launches if one.side is side and not one.why_invalid(metric)]
        for side in sides
    }
    verdict = Verdict(
        case_id=subject.pair.id,
        metric=metric.name,
        outcome=Outcome.INCONCLUSIVE,
        value=_value(metric, valid[subject.other]),
        expected=_value(metric, valid[Side.A]),
        tolerance_frac=rules.tolerance_frac(metric),
        against="side A",
        launches=min(map(len, valid.values())),
    )
    say = functools.partial(dataclasses.replace, verdict)
    broken = next(filter(None, (why_broken(launches, side, metric) for side in sides)), "")
    if broken:
        return say(outcome=Outcome.INVALID, reason=broken)
    absent = [side for side in sides if not valid[side]]
    if absent:
        return say(reason=f"side {absent[0]} has no launch yet")
    if not metric.by_launch:
        moved = paired_ratio_change(metric, *map(_measured, (valid[subject.other], valid[Side.A])))
        if isinstance(moved, str):  # no launch more would tell
            return say(outcome=Outcome.INVALID, reason=moved)
        return _decided(verdict, metric, moved, rules, control=subject.is_control)
    change = change_of_pairs(_differences(metric, valid[subject.other], valid[Side.A]))
    if change is None:
        return say(reason="too few launches to tell how they spread")
    if metric.name == OUTPUT:
        verdict = say(cause=_parts_of_output(valid[subject.other], valid[Side.A]))
    return _decided(verdict, metric, change, rules, control=subject.is_control)


def _decided(
    verdict: Verdict, metric: Metric, change: Change, rules: Rules, *, control: bool
) -> Verdict:
    def to_frac(moved: float) -> float:
        bounded = min(max(moved, -_FURTHEST), _FURTHEST)
        return log_to_frac(metric, bounded) if metric.by_launch else moved

    low, high = map(to_frac, change.bounds(rules.level))
    certain_low, certain_high = map(to_frac, change.bounds(rules.loss_level))
    estimate, tolerance = to_frac(change.estimate_frac), verdict.tolerance_frac or 0.0
    say = functools.partial(
        dataclasses.replace,
        verdict,
        change_frac=estimate,
        low_frac=low,
        high_frac=high,
        p_worse=change.p_worse,
    )
    if control and abs(estimate) > tolerance and (certain_low > 0 or certain_high < 0):
        return say(outcome=Outcome.IMPROVED if estimate > 0 else Outcome.REGRESSED)
    # A loss must be certain among all figures; that there is none only at this look.
    outcome = outcome_of(estimate, low, certain_high, tolerance)
    if outcome is not Outcome.INCONCLUSIVE:
        return say(outcome=outcome)
    needed = _needed(metric, verdict.launches, change, estimate, tolerance, rules)
    if metric.by_launch:
        words = f"about {needed} launches instead of {verdict.launches}" if needed else ""
        return say(reason=words, needed_launches=needed)
    words = f"about {needed} prompts: a new gate, with --prompts {needed} and another --out"
    return say(reason=words if needed else "", needed_launches=0)


def _needed(
    metric: Metric, launches: int, change: Change, estimate: float, tolerance: float, rules: Rules
) -> int | None:
    """About how many launches, or prompts, decide if estimate and spread stay what they are."""
    within = estimate > -tolerance
    room = estimate + tolerance if within else -estimate
    had = launches if metric.by_launch else round(change.freedom) + 1
    count = had
    while count < 1000 * had:
        count = 2 * math.ceil(max(count + 2, count * 1.05) / 2)
        blocks = math.ceil(count / LAUNCHES_PER_BLOCK) if metric.by_launch else 0
        some = dataclasses.replace(rules, blocks=max(blocks, rules.blocks))
        reach = t_quantile(some.level if within else some.loss_level, count - 1)
        if reach * change.error_frac * math.sqrt(had / count) < room:
            return count
    return None


def why_broken(launches: Sequence[SideLaunch], side: Side, metric: Metric | None = None) -> str:
    """Why a side can't be measured, empty where it can: most of its launches failed.

    Args:
        launches: of one pair.
        side: which.
        metric: one whose values are to mean something; None for launches that failed as a whole.
    """
    ours = [one for one in launches if one.side is side]
    whys = [one.why_invalid(metric) if metric else one.failed for one in ours]
    broken = list(filter(None, whys))
    most = max(_MOST_FAILED, len(whys) - len(broken))
    return f"side {side}: {broken[-1]}" if len(broken) >= most else ""


def _measured(launches: Sequence[SideLaunch]) -> list[Measurement]:
    return [one.measurement for one in launches if one.measurement is not None]


def _differences(
    metric: Metric, ours: Sequence[SideLaunch], theirs: Sequence[SideLaunch]
) -> list[float]:
    """How much better each launch was than the other side's of the same number."""
    by_number = {one.number: one for one in theirs}
    found = [
        _difference(metric, one, by_number[one.number]) for one in ours if one.number in by_number
    ]
    return [one for one in found if one is not None]


@functools.cache
def _difference(metric: Metric, ours: SideLaunch, theirs: SideLaunch) -> float | None:
    if ours.measurement is None or theirs.measurement is None:
        return None
    return paired_difference(metric, ours.measurement, theirs.measurement)


def value_of(metric: Metric, launch: SideLaunch) -> float | None:
    """A metric's value on a launch."""
    replay = launch.measurement.replay if launch.measurement is not None else None
    return metric.function(replay) if replay is not None else None


def _value(metric: Metric, launches: Sequence[SideLaunch]) -> float | None:
    """Of acceptance that of all launches together; else the geometric mean."""
    if not metric.by_launch:
        totals = [one.acceptance.total for one in _measured(launches) if one.acceptance]
        steps = sum(one.steps for one in totals)
        return metric.origin + sum(one.accepted for one in totals) / steps if steps else None
    return _geometric_mean([value_of(metric, one) for one in launches])


def _geometric_mean(values: Sequence[float | None]) -> float | None:
    told = [one for one in values if one]
    return math.exp(math.fsum(map(math.log, told)) / len(told)) if told else None


def _parts_of_output(ours: Sequence[SideLaunch], theirs: Sequence[SideLaunch]) -> str:
    """Δ log(throughput) = Δ log(tokens per step) - Δ log(time of a step) + what is left.

    Returns:
        In words, the worst part first; empty where one isn't known.
    """
    each = [
        [
            _value(GATE_METRICS[OUTPUT], side),
            _geometric_mean([tokens_per_step(one.replay) for one in _measured(side) if one.replay]),
            _value(GATE_METRICS["step_p50_ms"], side),
        ]
        for side in (ours, theirs)
    ]
    moved = [math.log(a / b) if a and b else None for a, b in zip(*each, strict=True)]
    if any(one is None for one in moved):
        return ""
    output, tokens, step = (one or 0.0 for one in moved)
    parts = {
        GATE_METRICS[ACCEPTANCE].cause: tokens,
        GATE_METRICS["step_p50_ms"].cause: -step,
        "prefill and the rest": output - tokens + step,
    }
    worst_first = sorted(parts, key=parts.__getitem__)
    return ", ".join(f"{math.expm1(parts[name]):+.1%} by {name}" for name in worst_first)


def causes_of(verdicts: Sequence[Verdict]) -> str:
    """What the loss of a pair comes from, in words; empty where nothing was lost that decides.

    Output is lost by what it is made of: its own row names the cause only where none of the others
    was proven.
    """
    lost = [one for one in verdicts if one.outcome is Outcome.REGRESSED]
    own = [GATE_METRICS[one.metric].cause for one in lost if one.metric != OUTPUT]
    told = [one.cause.partition(" by ")[2].partition(",")[0] for one in lost]
    return ", ".join(own) or next(filter(None, told), "output" if lost else "")


def is_lost(verdicts: Sequence[Verdict]) -> bool:
    """Whether a loss is proven, and by what: output alone is lost by something else."""
    return any(one.outcome is Outcome.REGRESSED and one.metric != OUTPUT for one in verdicts)


def is_settled(verdicts: Sequence[Verdict], *, lost: bool = False, whole: bool = False) -> bool:
    """Whether no further launch would change the answer on a pair.

    Args:
        verdicts: on its metrics. Where one is a proven loss, the others need but an interval.
        lost: whether the pair is lost by something else.
        whole: whether each metric is to be decided all the same.
    """
    lost = not whole and (lost or is_lost(verdicts))
    return all(one.outcome in DECIDED or (lost and one.low_frac is not None) for one in verdicts)
