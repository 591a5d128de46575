"""The launches of both sides of a gate judged: a verdict on each metric, and the answer.

Each block, which is two launches of a side, is a look. Looks share the level equally, so that all
of them together are wrong no more often than one would be; what a look has decided stays decided.
"""

import dataclasses
import functools
import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from specreg.baselines.comparison import paired_difference, paired_ratio_change
from specreg.compare.pairs import ACCEPTANCE, OUTPUT, STEP, Group, Pair, Side
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import GATE_METRICS, Metric, Replay, tokens_per_step
from specreg.stats.alpha_spending import LEVEL
from specreg.stats.intervals import Change, change_of_pairs, t_quantile
from specreg.verdicts.judge import GOOD, Outcome, Verdict, decided

LAUNCHES_PER_BLOCK = 2
"""Of each side."""
_SPEED_LAUNCHES = 4
"""With fewer of each side a speed has no interval."""
_DIFFERS = frozenset({Outcome.IMPROVED, Outcome.REGRESSED})
_SETTLED = GOOD | {Outcome.MEASURED, Outcome.NOT_COMPARABLE}
_LOSS_LEVEL = 0.001
"""How often a gate may call an upgrade worse that isn't; one that matters is beyond noise."""
_MOST_FAILED = 2
_FEW_EQUAL_FRAC = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class SideLaunch:
    """A pair on one launch of a side's server, from 1; `failed`: why it came to nothing."""

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
        figures: how many are judged; a loss of any stops an upgrade, and must stand among all
            (Bonferroni).
        tolerances: by metric, one that overrides its own.
        loss_frac: how often the gate as a whole may see a loss where there is none.
    """

    blocks: int
    figures: int
    tolerances: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    loss_frac: float = _LOSS_LEVEL

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


class Answer(StrEnum):
    """Whether B may take the place of A."""

    UPGRADE = "upgrade"
    DONT = "don't"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a gate decided: why, the weightiest first, and what it would take to decide.

    `verdicts` are on each pair, and on its answers; `control` is on side A against itself.
    """

    answer: Answer
    reasons: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    verdicts: tuple[Verdict, ...]
    control: tuple[Verdict, ...] = ()

    @property
    def exit_status(self) -> int:
        """0, 1 and 10, as of a run of the suite."""
        return {Answer.UPGRADE: 0, Answer.DONT: 1, Answer.UNDECIDED: 10}[self.answer]


def decide(
    groups: Sequence[Group],
    launches: Sequence[SideLaunch],
    rules: Rules,
    answers: Sequence[Verdict] = (),
) -> Decision:
    """The answer that launches, as they came, and verdicts on each pair's answers give."""
    controls = [pair for group in groups if group.with_control for pair in group.pairs]
    # A control accuses no side, so it may speak up sooner.
    figures = max(sum(len(pair.deciding(Side.A2)) for pair in controls), 1)
    strict = dataclasses.replace(rules, figures=figures, loss_frac=LEVEL)
    control = [one for pair in controls for one in judge_pair(pair, launches, strict, Side.A2)]
    moved = [one for one in control if one.outcome in _DIFFERS]
    # Of what the machine moves by itself nothing can be said.
    untold = {one.metric for one in moved}
    reason = "MACHINE_MOVED: side A differs from itself; quieten the machine, and run again"
    verdicts = [
        dataclasses.replace(one, outcome=Outcome.INVALID, reason=reason)
        if one.metric in untold and one.outcome is not Outcome.MEASURED
        else one
        for group in groups
        for pair in group.pairs
        for one in judge_pair(pair, launches, rules)
    ]
    wrong = any(one.outcome is Outcome.WRONG for one in answers)
    regressed = [one for one in verdicts if one.outcome is Outcome.REGRESSED]
    unclear = [one for one in (*verdicts, *answers) if one.outcome not in _SETTLED]
    if wrong or regressed:
        answer = Answer.DONT
    elif moved or unclear or not verdicts:
        answer = Answer.UNDECIDED
    else:
        answer = Answer.UPGRADE
    return Decision(
        answer=answer,
        reasons=tuple(_reasons(answers, regressed, moved)),
        takes=tuple(_takes(unclear, rules)) if answer is Answer.UNDECIDED else (),
        verdicts=(*verdicts, *answers),
        control=tuple(control),
    )


def _reasons(
    answers: Iterable[Verdict], lost: Sequence[Verdict], moved: Sequence[Verdict]
) -> Iterator[str]:
    """Answers that differ, can't be told or mostly round; then what was lost, and what moved."""
    for one in answers:
        few = one.value is not None and one.value < _FEW_EQUAL_FRAC
        if few or one.outcome in {Outcome.WRONG, Outcome.INVALID}:
            yield f"{one.case_id}: {one.reason}"
    for case_id in dict.fromkeys(one.case_id for one in lost):
        ones = [one for one in lost if one.case_id == case_id]
        figures = ", ".join(f"{one.metric} {one.change_frac:+.1%}" for one in ones)
        yield f"{case_id} is worse by {causes_of(ones)}: {figures}"
    for one in moved:
        yield (
            f"the machine moved: side A differs from itself in {one.metric} of {one.case_id} by"
            f" {one.change_frac:+.1%}"
        )


def _takes(unclear: Sequence[Verdict], rules: Rules) -> Iterator[str]:
    """What it would take to decide: first what to type, then why, figure by figure."""
    undecided = [one for one in unclear if one.outcome is Outcome.INCONCLUSIVE]
    if most := max((one.needed_launches or 0 for one in undecided), default=0):
        more = f" --launches {most}" if most > rules.launches else ""
        yield (
            f"about {most} launches of each side: type the same with --resume{more}; a quieter"
            " machine needs fewer"
        )
    for one in unclear:
        yield f"{one.case_id}: {one.reason or 'there is no telling'} ({one.metric})"


def causes_of(verdicts: Sequence[Verdict]) -> str:
    """What the loss of a pair comes from, in words: output's own where no other is proven."""
    lost = [one for one in verdicts if one.outcome is Outcome.REGRESSED]
    own = [GATE_METRICS[one.metric].cause for one in lost if one.metric != OUTPUT]
    told = [one.cause.partition(" by ")[2].partition(",")[0] for one in lost]
    return ", ".join(own) or next(filter(None, told), "output" if lost else "")


def is_settled(verdicts: Sequence[Verdict], *, lost: bool = False) -> bool:
    """Whether no further launch would change the answer on a pair.

    Where it is lost, by its answers or by more than output, what else it has needs but an interval.
    """
    lost = lost or any(
        one.outcome is Outcome.REGRESSED and one.metric != OUTPUT for one in verdicts
    )
    unclear = [one for one in verdicts if one.outcome is Outcome.INCONCLUSIVE]
    return not unclear or (lost and all(one.low_frac is not None for one in unclear))


def judge_pair(
    pair: Pair, launches: Sequence[SideLaunch], rules: Rules, other: Side = Side.B
) -> tuple[Verdict, ...]:
    """The verdict on each metric of a pair, at the look that decides or else at the last one.

    Compared is A with `other`: B, or A itself, which is the control. Launches are as they came.
    """
    ours = [one for one in launches if one.pair_id == pair.id and one.side in {Side.A, other}]
    deciding = pair.deciding(other)
    found = []
    for metric in pair.metrics(other):
        verdict = _judge(metric, pair.id, other, ours, rules)
        if metric.name not in deciding:
            verdict = dataclasses.replace(verdict, outcome=Outcome.MEASURED, reason="")
        found.append(verdict)
    return tuple(found)


def _judge(
    metric: Metric, case_id: str, other: Side, launches: Sequence[SideLaunch], rules: Rules
) -> Verdict:
    # Proven within the tolerance is soon proven; that it is better by more may show later, and so
    # may that the machine moved.
    later = _DIFFERS if other is Side.A2 else {Outcome.IMPROVED}
    found = _look(metric, case_id, other, (), rules)
    # What was launched once more in a block that had failed changes no look before: it counts from
    # the last block on that there was by then.
    told_at = list(itertools.accumulate((one.block for one in launches), max))
    for look in sorted(set(told_at)):
        some = [one for one, at in zip(launches, told_at, strict=True) if at <= look]
        verdict = _look(metric, case_id, other, some, rules)
        if found.outcome is Outcome.INCONCLUSIVE or verdict.outcome in later:
            found = verdict
        if found.outcome not in {Outcome.PASS, Outcome.INCONCLUSIVE}:
            break
    return found


def _look(
    metric: Metric, case_id: str, other: Side, launches: Sequence[SideLaunch], rules: Rules
) -> Verdict:
    ours, theirs = (
        {
            one.number: one.measurement
            for one in launches
            if one.side is side and one.measurement is not None and not one.why_invalid(metric)
        }
        for side in (other, Side.A)
    )
    verdict = Verdict(
        case_id=case_id,
        metric=metric.name,
        outcome=Outcome.INCONCLUSIVE,
        value=_value(metric, ours.values()),
        expected=_value(metric, theirs.values()),
        tolerance_frac=rules.tolerances.get(metric.name, metric.gate_tolerance_frac),
        against="side A",
        launches=min(len(ours), len(theirs)),
    )
    say = functools.partial(dataclasses.replace, verdict)
    broken = why_broken(launches, Side.A, metric) or why_broken(launches, other, metric)
    if broken:
        return say(outcome=Outcome.INVALID, reason=broken)
    least = _SPEED_LAUNCHES if metric.by_launch else LAUNCHES_PER_BLOCK
    more = max(least, verdict.launches + LAUNCHES_PER_BLOCK)
    if not (ours and theirs):
        missing = other if theirs else Side.A
        return say(reason=f"side {missing} has no launch yet", needed_launches=more)
    if not metric.by_launch:
        moved = paired_ratio_change(metric, [*ours.values()], [*theirs.values()])
        if isinstance(moved, str):  # no launch more would tell
            return say(outcome=Outcome.INVALID, reason=moved)
        return _decided(verdict, metric, moved, rules, other)
    differences = [
        apart
        for number in ours
        if number in theirs
        and (apart := paired_difference(metric, ours[number], theirs[number])) is not None
    ]
    change = change_of_pairs(differences)
    if change is None:
        return say(reason="too few launches to tell how they spread", needed_launches=more)
    if metric.name == OUTPUT:
        verdict = say(cause=_parts_of_output([*ours.values()], [*theirs.values()]))
    return _decided(verdict, metric, change, rules, other)


def _decided(
    verdict: Verdict, metric: Metric, change: Change, rules: Rules, other: Side
) -> Verdict:
    """The verdict with its change, by the whole interval."""
    # A loss must be certain among all figures; that there is none only at this look.
    verdict = decided(verdict, metric, change, rules.level, loss_level=rules.loss_level)
    estimate, tolerance = verdict.change_frac or 0.0, verdict.tolerance_frac or 0.0
    # A control that gains differs as one that loses does.
    if other is Side.A2 and estimate > tolerance and change.bounds(rules.loss_level)[0] > 0:
        return dataclasses.replace(verdict, outcome=Outcome.IMPROVED)
    if verdict.outcome is not Outcome.INCONCLUSIVE:
        return verdict
    needed = _needed(metric, verdict.launches, change, estimate, tolerance, rules)
    if metric.by_launch:
        reason = f"about {needed} launches instead of {verdict.launches}"
    else:
        reason = f"about {needed} prompts: a new gate, with --prompts {needed} and another --out"
    return dataclasses.replace(
        verdict,
        reason=reason if needed else "",
        needed_launches=needed if metric.by_launch else 0,
    )


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


def why_broken(launches: Iterable[SideLaunch], side: Side, metric: Metric | None = None) -> str:
    """Why a side can't be measured, or has no metric: most of its launches failed; else empty."""
    ours = [one for one in launches if one.side is side]
    whys = [one.why_invalid(metric) if metric else one.failed for one in ours]
    broken = list(filter(None, whys))
    most = max(_MOST_FAILED, len(whys) - len(broken))
    return f"side {side}: {broken[-1]}" if len(broken) >= most else ""


def _value(metric: Metric, measured: Iterable[Measurement]) -> float | None:
    """Of acceptance that of all launches together; else the geometric mean."""
    if metric.by_launch:
        return _mean_of(metric.function, measured)
    totals = [one.acceptance.total for one in measured if one.acceptance]
    steps = sum(one.steps for one in totals)
    return metric.origin + sum(one.accepted for one in totals) / steps if steps else None


def _mean_of(
    function: Callable[[Replay], float | None], measured: Iterable[Measurement]
) -> float | None:
    """The geometric mean of what launches have of it; None where none has."""
    values = [value for one in measured if one.replay and (value := function(one.replay))]
    return statistics.geometric_mean(values) if values else None


def _parts_of_output(ours: Sequence[Measurement], theirs: Sequence[Measurement]) -> str:
    """Δ log(throughput) = Δ log(tokens per step) - Δ log(time of a step) + what is left.

    In words, the worst part first; empty where one isn't known.
    """
    moved = []
    for function in (GATE_METRICS[OUTPUT].function, tokens_per_step, GATE_METRICS[STEP].function):
        value, expected = _mean_of(function, ours), _mean_of(function, theirs)
        if value is None or expected is None:
            return ""
        moved.append(math.log(value / expected))
    output, tokens, step = moved
    parts = {
        GATE_METRICS[ACCEPTANCE].cause: tokens,
        GATE_METRICS[STEP].cause: -step,
        "prefill and the rest": output - tokens + step,
    }
    worst_first = sorted(parts, key=parts.__getitem__)
    return ", ".join(f"{math.expm1(parts[name]):+.1%} by {name}" for name in worst_first)
