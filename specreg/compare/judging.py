"""The launches of both sides of a gate judged: a verdict on each metric, and the answer.

It looks after 1, 2, 4, 8, … launches. Looks share the level equally, so that all of them together
are wrong no more often than one would be; what a look has decided stays decided.
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
from specreg.baselines.comparison import paired_ratio_change
from specreg.compare.options import TOLERANCE, ComparisonOptions
from specreg.compare.pairs import ACCEPTANCE, COMPARED, CONTROL, OUTPUT, STEP, Group, Pair, Side
from specreg.core.errors import UnsupportedError, check_name
from specreg.core.files import UNREADABLE
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import GATE_METRICS, Metric, Replay, tokens_per_step
from specreg.report.document import REGRESSED_STATUS, UNDECIDED_STATUS, exit_status
from specreg.report.tables import label_of
from specreg.stats.intervals import LEVEL, Effect, change_of_pairs, t_quantile
from specreg.verdicts.judge import Outcome, Verdict, with_effect
from specreg.verdicts.multiple_testing import MACHINE_MOVED

UNCHECKED = "side A is still to be measured against itself"
_MOST_FAILED = 2
_FEW_EQUAL_FRAC = 0.5

_Share = Annotated[float, msgspec.Meta(gt=0, lt=1)]


@dataclass(frozen=True, slots=True, eq=False)
class SideLaunch:
    """A pair on one launch of a side's server, from 1; `failed`: why it came to nothing."""

    pair_id: str
    side: Side
    number: int
    measurement: Measurement | None = None
    failed: str = ""

    def why_invalid(self, metric: Metric) -> str:
        """Why a metric's value is invalid, empty where it isn't."""
        invalid = self.measurement.invalid if self.measurement is not None else {}
        return self.failed or invalid.get(metric.family, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How much evidence there may be, and how it is weighed.

    Attributes:
        launches: the most of each side.
        figures: how many are judged; a loss of any stops an upgrade, and must stand among all
            (Bonferroni).
        tolerances: by metric, one that overrides its own.
    """

    launches: int
    figures: int
    tolerances: Mapping[str, float] = field(default_factory=dict)

    @property
    def looks(self) -> tuple[int, ...]:
        """The numbers of launches after which it looks; few, as starting servers costs most."""
        return (*(2**n for n in range((self.launches - 1).bit_length())), self.launches)

    @property
    def level(self) -> float:
        """How often a look may wrongly call something proven."""
        return LEVEL / len(self.looks)

    @property
    def loss_level(self) -> float:
        """The level of a loss, shared by all figures."""
        return self.level / self.figures


def rules_of(options: ComparisonOptions, *, figures: int) -> Rules:
    """The rules that options ask for, else an error that says what of them can't be read."""
    found = {}
    for text in options.tolerances:
        name, _, frac = text.partition("=")
        where = f"{TOLERANCE} {text}"
        check_name("metric", name, GATE_METRICS, where)
        try:
            found[name] = msgspec.convert(frac, _Share, strict=False)
        except UNREADABLE as error:
            message = f"{where}: '{frac}' is no fraction between 0 and 1; 0.03 is 3 %"
            raise UnsupportedError(message) from error
    return Rules(launches=options.launches, figures=figures, tolerances=found)


class _Figure(NamedTuple):
    """A metric of a pair: the second of two sides compared with the first."""

    metric: Metric
    pair_id: str
    sides: tuple[Side, Side] = COMPARED


class Answer(StrEnum):
    """Whether B may take the place of A."""

    UPGRADE = "upgrade"
    DONT = "don't"
    UNDECIDED = "undecided"


_ANSWERS = {0: Answer.UPGRADE, REGRESSED_STATUS: Answer.DONT, UNDECIDED_STATUS: Answer.UNDECIDED}
"""The answer, by the exit status of all verdicts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a gate decided: why, the weightiest first, and what is unclear, figure by figure.

    `verdicts` are on each pair, and on its answers; `control` is on side A against itself. About
    `needed_launches` of each side would decide, 0 where no number does.
    """

    answer: Answer
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
    """Decide by the launches, in their order, and the verdicts on each pair's answers."""
    verdicts = [one for pair in pairs for one in judge_pair(pair, launches, rules)]
    wrong = any(one.outcome is Outcome.WRONG for one in answers)
    worse = wrong or any(_is_lost(one) and not _is_speed(one) for one in verdicts)
    verdicts = [_beside_itself(one, launches, is_worse=worse) for one in verdicts]
    lost = [one for one in verdicts if _is_lost(one)]
    every = (*verdicts, *answers)
    answer = _ANSWERS[exit_status(every)]
    unclear = [one for one in every if one.fails] if answer is Answer.UNDECIDED else []
    controlled = {one.pair_id for one in launches if one.side in CONTROL}
    return Decision(
        answer=answer,
        reasons=(*_reasons(answers, lost), *_bounds(unclear)),
        unclear=tuple(f"{v.case_id}: {v.reason or 'no telling'} ({v.metric})" for v in unclear),
        needed_launches=max((one.needed_launches or 0 for one in unclear), default=0),
        verdicts=every,
        control=tuple(
            one
            for pair in pairs
            if pair.id in controlled
            for one in judge_pair(pair, launches, rules, CONTROL)
            if _is_speed(one)
        ),
    )


def launches_of(
    groups: Sequence[Group],
    rules: Rules,
    look: Callable[[], Decision],
    done: Callable[[Decision], bool],
    wanted: Callable[[Group], bool] = lambda _: False,
) -> Iterator[tuple[Group, int, tuple[Side, Side]]]:
    """Yield what to launch until the answer is there: a group, the number, and which sides.

    After each look at which B seems slower side A is launched beside itself, on no more launches
    than B had. `look` is asked for what is known by then, with all that was launched so far, `done`
    whether that is the answer, and `wanted` whether a group is launched even if it is settled.
    """
    left = list(groups)
    for number in range(1, rules.launches + 1):
        yield from ((group, number, COMPARED) for group in left)
        if number in rules.looks:
            if done(look()):
                return
            for again, group in itertools.product(range(1, number + 1), left):
                doubtful = {
                    one.case_id
                    for one in look().verdicts
                    if one.reason.startswith((UNCHECKED, MACHINE_MOVED)) and not _is_lost(one)
                }
                if pairs := tuple(pair for pair in group if pair.id in doubtful):
                    yield pairs, again, CONTROL
            decision = look()
            if done(decision):
                return
            left = [one for one in left if wanted(one) or not is_settled(one, decision)]


def is_lost(decision: Decision) -> bool:
    """Whether no further launch would turn it into an upgrade."""
    return decision.answer is Answer.DONT


def _is_lost(verdict: Verdict) -> bool:
    return verdict.outcome is Outcome.REGRESSED


def _is_speed(verdict: Verdict) -> bool:
    return GATE_METRICS[verdict.metric].by_launch


def _beside_itself(verdict: Verdict, launches: Sequence[SideLaunch], *, is_worse: bool) -> Verdict:
    """Judge a lost speed again, by how much side A differs from itself.

    A loss that isn't beyond that, 1 % being chance, is the machine's. Until that is measured there
    is no loss, unless B `is_worse` in another way.
    """
    if not (_is_lost(verdict) and _is_speed(verdict)):
        return verdict
    figure = _Figure(GATE_METRICS[verdict.metric], verdict.case_id)
    change = _change(figure, launches)
    itself = _change(figure._replace(sides=CONTROL), launches)
    if change is None or itself is None:
        outcome = Outcome.REGRESSED if is_worse else Outcome.INCONCLUSIVE
        return dataclasses.replace(verdict, outcome=outcome, reason=UNCHECKED)
    beyond = Effect(
        estimate_frac=change.estimate_frac - itself.estimate_frac,
        error_frac=math.hypot(change.error_frac, itself.error_frac),
        freedom=min(change.freedom, itself.freedom),
    )
    if beyond.bounds(LEVEL)[1] < 0:
        return verdict
    reason = (
        f"MACHINE_MOVED: side A differs from itself by {math.expm1(itself.estimate_frac):+.1%};"
        " quieten the machine, and run again"
    )
    return dataclasses.replace(verdict, outcome=Outcome.INVALID, reason=reason)


def _reasons(answers: Iterable[Verdict], lost: Sequence[Verdict]) -> Iterator[str]:
    """Yield which answers differ, can't be told or mostly round; then what was lost, and by what.

    That is output itself where no other cause is proven.
    """
    for one in answers:
        few = one.value is not None and one.value < _FEW_EQUAL_FRAC
        if few or one.outcome in {Outcome.WRONG, Outcome.INVALID}:
            yield f"{one.case_id}: {one.reason}"
    for case_id in dict.fromkeys(one.case_id for one in lost):
        ones = [one for one in lost if one.case_id == case_id]
        own = [GATE_METRICS[one.metric].cause for one in ones if one.metric != OUTPUT]
        told = [one.cause.partition(" by ")[2].partition(",")[0] for one in ones]
        causes = ", ".join(own) or next(filter(None, told), "output")
        figures = ", ".join(f"{one.metric} {one.change_frac:+.1%}" for one in ones)
        yield f"{case_id} is worse by {causes}: {figures}"


def _bounds(unclear: Iterable[Verdict]) -> Iterator[str]:
    """Yield by undecided figure what is proven of it: the largest loss of any case."""
    worst: dict[str, tuple[float, str]] = {}
    for one in unclear:
        if one.outcome is Outcome.INCONCLUSIVE and one.low_frac is not None:
            loss = max(-one.low_frac, 0.0), one.case_id
            worst[one.metric] = max(worst.get(one.metric, loss), loss)
    for name, (frac, case_id) in worst.items():
        yield f"B is not worse than A in {label_of(name)} by more than {frac:.1%} ({case_id})"


def is_settled(group: Group, decision: Decision) -> bool:
    """Whether no further launch would change the answer on the pairs of a group.

    Of one that is lost, by its answers or by more than output, the rest needs but an interval.
    """
    verdicts = [one for one in decision.verdicts if one.case_id in {pair.id for pair in group}]
    lost = {
        one.case_id
        for one in verdicts
        if one.outcome is Outcome.WRONG or (_is_lost(one) and one.metric != OUTPUT)
    }
    unclear = [one for one in verdicts if one.outcome is Outcome.INCONCLUSIVE]
    return all(one.case_id in lost and one.low_frac is not None for one in unclear)


def judge_pair(
    pair: Pair, launches: Sequence[SideLaunch], rules: Rules, sides: tuple[Side, Side] = COMPARED
) -> tuple[Verdict, ...]:
    """The verdict on each metric of a pair, at the look that decides or else at the last one.

    Compared is the first of the `sides` with the other. Launches are of all pairs, as they came.
    """
    found = []
    for metric in pair.metrics:
        verdict = _judge(_Figure(metric, pair.id, sides), launches, rules)
        if metric.name not in pair.deciding or sides is CONTROL:
            verdict = dataclasses.replace(verdict, outcome=Outcome.MEASURED, reason="")
        found.append(verdict)
    return tuple(found)


def _judge(figure: _Figure, launches: Sequence[SideLaunch], rules: Rules) -> Verdict:
    found = _look(figure, (), rules)
    # A launch repeated after it had failed changes no earlier look: it counts from the number of
    # launches on that there were by then.
    told_at = list(itertools.accumulate((one.number for one in launches), max))
    for look in [*(one for one in rules.looks if one < max(told_at, default=0)), math.inf]:
        some = [one for one, at in zip(launches, told_at, strict=True) if at <= look]
        verdict = _look(figure, some, rules)
        # That it holds is soon proven; that it is better by more may show later.
        if found.outcome is Outcome.INCONCLUSIVE or verdict.outcome is Outcome.IMPROVED:
            found = verdict
        if found.outcome not in {Outcome.PASS, Outcome.INCONCLUSIVE}:
            break
    return found


def _look(figure: _Figure, launches: Sequence[SideLaunch], rules: Rules) -> Verdict:
    metric, pair_id, sides = figure
    mine = [one for one in launches if one.pair_id == pair_id]
    theirs, ours = (_measured(metric, side, mine) for side in sides)
    verdict = Verdict(
        case_id=pair_id,
        metric=metric.name,
        outcome=Outcome.INCONCLUSIVE,
        value=_value(metric, ours),
        expected=_value(metric, theirs),
        tolerance_frac=rules.tolerances.get(metric.name, metric.gate_tolerance_frac),
        against=f"side {sides[0]}",
        launches=min(len(ours), len(theirs)),
    )
    say = functools.partial(dataclasses.replace, verdict)
    for broken in filter(None, (why_broken(mine, side, metric) for side in sides)):
        return say(outcome=Outcome.INVALID, reason=broken)
    if not (ours and theirs):
        missing = sides[1] if theirs else sides[0]
        return say(reason=f"side {missing} has no launch yet", needed_launches=1)
    if not metric.by_launch:
        moved = paired_ratio_change(metric, ours, theirs)
        if isinstance(moved, str):  # no further launch would tell
            return say(outcome=Outcome.INVALID, reason=moved)
        return _with_needed(verdict, metric, moved, rules)
    change = _change(figure, launches)
    if change is None:
        more = 2 * (verdict.launches + 1)
        return say(reason="too few launches to tell how they spread", needed_launches=more)
    if metric.name == OUTPUT:
        verdict = say(cause=_parts_of_output(ours, theirs))
    return _with_needed(verdict, metric, change, rules)


def _measured(metric: Metric, side: Side, launches: Iterable[SideLaunch]) -> list[Measurement]:
    """Return a side's launches with a valid metric; of each number the last one."""
    found = {
        one.number: one.measurement
        for one in launches
        if one.side is side and one.measurement is not None and not one.why_invalid(metric)
    }
    return [*found.values()]


def _change(figure: _Figure, launches: Sequence[SideLaunch]) -> Effect | None:
    """The change of a speed of a pair, with the spread of all pairs; None without a spread."""
    # What A does beside itself, which is measured later, changes no verdict on B.
    others = [
        _Figure(figure.metric, pair_id, sides)
        for pair_id in dict.fromkeys(one.pair_id for one in launches)
        for sides in dict.fromkeys((COMPARED, figure.sides))
    ]
    spreads = [_differences(one, launches) for one in others if one != figure]
    return change_of_pairs(_differences(figure, launches), spreads)


def _differences(figure: _Figure, launches: Sequence[SideLaunch]) -> list[float]:
    """By launch how much better a speed is on the other side: a difference of logarithms."""
    theirs, ours = (
        {
            one.number: value
            for one in launches
            if (one.pair_id, one.side) == (figure.pair_id, side)
            if (value := _log(figure.metric.name, one)) is not None
        }
        for side in figure.sides
    )
    sign = figure.metric.sign
    return [sign * (ours[number] - theirs[number]) for number in ours if number in theirs]


@functools.lru_cache(maxsize=4096)
def _log(name: str, launch: SideLaunch) -> float | None:
    """Return the logarithm of a speed on a launch, None where it is invalid or 0."""
    metric, measured = GATE_METRICS[name], launch.measurement
    if measured is None or measured.replay is None or launch.why_invalid(metric):
        return None
    value = metric.function(measured.replay)
    return math.log(value) if value else None


def _with_needed(verdict: Verdict, metric: Metric, change: Effect, rules: Rules) -> Verdict:
    """Return the verdict with its change and, if undecided, what would decide it."""
    # A loss must be certain among all figures; that there is none only at this look.
    verdict = with_effect(verdict, metric, change, rules.level, loss_level=rules.loss_level)
    if verdict.outcome is not Outcome.INCONCLUSIVE:
        return verdict
    needed = _needed(verdict, metric, change, rules)
    if metric.by_launch:
        reason = f"about {needed} launches instead of {verdict.launches}"
    else:
        reason = f"about {needed} prompts: a new gate, with --prompts {needed} and another --out"
    return dataclasses.replace(
        verdict, reason=reason if needed else "", needed_launches=needed if metric.by_launch else 0
    )


def _needed(verdict: Verdict, metric: Metric, change: Effect, rules: Rules) -> int | None:
    """About how many launches, or prompts, decide if estimate and spread stay what they are."""
    estimate, tolerance = verdict.change_frac or 0.0, verdict.tolerance_frac or 0.0
    within = estimate > -tolerance
    room = estimate + tolerance if within else -estimate
    had = verdict.launches if metric.by_launch else round(change.freedom) + 1
    count = had
    while count < 1000 * had:
        count = math.ceil(max(count + 1, count * 1.05))
        launches = max(count, rules.launches) if metric.by_launch else rules.launches
        some = dataclasses.replace(rules, launches=launches)
        level = some.level if within else some.loss_level
        reach = t_quantile(level, max(change.freedom * count / had, 1))
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
    """Return acceptance over all launches together; of a speed the geometric mean."""
    if metric.by_launch:
        return _mean_of(metric.function, measured)
    total = sum((one.acceptance.total for one in measured if one.acceptance), NO_STEPS)
    return metric.origin + total.accepted / total.steps if total.steps else None


def _mean_of(
    function: Callable[[Replay], float | None], measured: Iterable[Measurement]
) -> float | None:
    """The geometric mean over the launches that have a value; None where none has."""
    values = [value for one in measured if one.replay and (value := function(one.replay))]
    return statistics.geometric_mean(values) if values else None


def _parts_of_output(ours: Sequence[Measurement], theirs: Sequence[Measurement]) -> str:
    """Δ log(throughput) = Δ log(tokens per step) - Δ log(time of a step) + what is left.

    In words, the worst part first; empty where one isn't known.
    """
    functions = (GATE_METRICS[OUTPUT].function, tokens_per_step, GATE_METRICS[STEP].function)
    means = [(_mean_of(one, ours), _mean_of(one, theirs)) for one in functions]
    moved = [math.log(value / expected) for value, expected in means if value and expected]
    if len(moved) < len(functions):
        return ""
    output, tokens, step = moved
    parts = {
        GATE_METRICS[ACCEPTANCE].cause: tokens,
        GATE_METRICS[STEP].cause: -step,
        "prefill and the rest": output - tokens + step,
    }
    worst_first = sorted(parts, key=parts.__getitem__)
    return ", ".join(f"{math.expm1(parts[name]):+.1%} by {name}" for name in worst_first)
