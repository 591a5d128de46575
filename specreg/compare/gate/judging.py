"""Judging: the launches of both sides in, an outcome per quantity out. Pure, and so simulated.

Each block of ABBA is a look. Looks share the level equally, so that all of them together are wrong
no more often than one would be; what a look has decided stays decided.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import msgspec

from specreg.compare.gate.changes import (
    acceptance_length,
    change_of_acceptance,
    change_of_speed,
    geometric_mean,
    parts_of_output,
)
from specreg.compare.gate.launched import Arm, Launched
from specreg.compare.gate.quantities import ACCEPTANCE, OUTPUT, Cause, Quantity
from specreg.measurement.metrics import Direction
from specreg.stats.alpha_spending import LEVEL
from specreg.stats.intervals import Change, t_quantile
from specreg.verdicts.judge import Outcome

LAUNCHES_PER_BLOCK = 2
"""Of each side."""
_LOSS_LEVEL = 0.001
"""How often a gate may call an upgrade worse that isn't.

A loss that matters is far beyond its noise once that is small enough to prove anything.
"""
_MOST_INVALID = 2
_FURTHEST = 50.0
DIFFERS = frozenset({Outcome.IMPROVED, Outcome.REGRESSED})
DECIDED = frozenset({Outcome.PASS, Outcome.IMPROVED, Outcome.REGRESSED, Outcome.INVALID})


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is compared.

    Attributes:
        case_id: of the launches.
        quantities: that it has.
        deciding: the names of those that the answer rests on; the others are told beside them.
        other: what A is compared with: B, or A itself.
    """

    case_id: str
    quantities: tuple[Quantity, ...]
    deciding: frozenset[str]
    other: Arm = Arm.B

    @property
    def is_control(self) -> bool:
        """Whether A is compared with itself."""
        return self.other is Arm.A2

    @property
    def told_later(self) -> frozenset[Outcome]:
        """What may still be said of a figure that has passed."""
        return DIFFERS if self.is_control else frozenset({Outcome.IMPROVED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How much evidence there may be, and how it is weighed.

    Attributes:
        blocks: the most blocks of ABBA, and so of looks.
        figures: how many the gate judges: any of them alone may stop an upgrade, so a loss must
            stand among all of them (Bonferroni).
        tolerances: by quantity, one that overrides its own.
        loss_frac: how often the gate as a whole may see a loss where there is none.
    """

    blocks: int
    figures: int
    tolerances: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    loss_frac: float = _LOSS_LEVEL

    def of_control(self, figures: int) -> "Rules":
        """Those of a control of so many figures: it accuses no side, so it may speak up sooner."""
        return dataclasses.replace(self, figures=max(figures, 1), loss_frac=LEVEL)

    def tolerance_frac(self, quantity: Quantity) -> float:
        """The loss of a quantity that is still fine."""
        return self.tolerances.get(quantity.name, quantity.tolerance_frac)

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


def count_figures(subjects: Sequence[Subject]) -> int:
    """How many figures an answer on some subjects rests on, one at least; a control's don't."""
    return max(sum(len(one.deciding) for one in subjects if one.other is not Arm.A2), 1)


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be thought of one quantity of one case; better is positive.

    Attributes:
        case_id, quantity: whose; cause: what a loss of it is a loss of.
        outcome: in a word; `reason`: in a sentence, empty where the figures say it all.
        decides: whether the answer rests on it.
        a, b: the value of each side, null where there is none.
        change_frac: from A to B; of an acceptance length that of AL - 1.
        low_frac, high_frac: the interval of that change at the look that decided.
        tolerance_frac: the loss that would still have been fine.
        launches: of each side that were compared.
        needed_launches, needed_prompts: about how many would decide, null where that is known or
            can't be told.
        parts_frac: of output, how much came from what.
    """

    case_id: str
    quantity: str
    cause: Cause
    outcome: Outcome
    reason: str = ""
    decides: bool = True
    a: float | None = None
    b: float | None = None
    change_frac: float | None = None
    low_frac: float | None = None
    high_frac: float | None = None
    tolerance_frac: float
    launches: int = 0
    needed_launches: int | None = None
    needed_prompts: int | None = None
    parts_frac: dict[str, float] = {}


def judge_subject(
    subject: Subject, launches: Sequence[Launched], rules: Rules
) -> tuple[Judged, ...]:
    """The outcome of each quantity of a case.

    Args:
        subject: what is compared.
        launches: of all arms and cases so far.
        rules: see there.
    """
    ours = [
        one
        for one in launches
        if one.case_id == subject.case_id and one.arm in {Arm.A, subject.other}
    ]
    return tuple(judge_quantity(quantity, subject, ours, rules) for quantity in subject.quantities)


def judge_quantity(
    quantity: Quantity, subject: Subject, launches: Sequence[Launched], rules: Rules
) -> Judged:
    """The outcome of one quantity at the look that decides, else at the last one there is.

    Args:
        quantity: which.
        subject: of what.
        launches: of both sides of that, one at least.
        rules: see there.
    """
    decided = None
    for some in _looks(launches):
        judged = _look(quantity, subject, some, rules)
        # Proven within the tolerance is soon proven; that it is better by more may show later, and
        # so may that the machine moved.
        if judged.outcome in subject.told_later or (decided is None and judged.outcome in DECIDED):
            decided = judged
        if decided is not None and decided.outcome is not Outcome.PASS:
            return decided
    return decided or _look(quantity, subject, launches, rules)


def _looks(launches: Sequence[Launched]) -> Iterator[list[Launched]]:
    """What was there at each look, block by block.

    What was launched once more in a block that had failed counts from the block on that was the
    last by then: it changes no look before.
    """
    in_order = sorted(launches, key=lambda one: one.number)
    told_at = list(itertools.accumulate((one.block for one in in_order), max))
    for look in sorted(set(told_at)):
        yield [one for one, at in zip(in_order, told_at, strict=True) if at <= look]


def _look(
    quantity: Quantity, subject: Subject, launches: Sequence[Launched], rules: Rules
) -> Judged:
    valid = [one for one in launches if not one.invalid]
    other = subject.other
    by_prompt = quantity.name == ACCEPTANCE
    judged = Judged(
        case_id=subject.case_id,
        quantity=quantity.name,
        cause=quantity.cause,
        outcome=Outcome.INCONCLUSIVE,
        decides=quantity.name in subject.deciding,
        a=_value(quantity, valid, Arm.A),
        b=_value(quantity, valid, other),
        tolerance_frac=rules.tolerance_frac(quantity),
        launches=min(sum(one.arm is arm for one in valid) for arm in (Arm.A, other)),
    )
    broken = why_broken(launches, Arm.A) or why_broken(launches, other)
    if broken:
        return msgspec.structs.replace(judged, outcome=Outcome.INVALID, reason=broken)
    absent = {Arm.A, other} - {one.arm for one in valid}
    if absent:
        reason = f"side {min(absent)} has no launch yet"
        return msgspec.structs.replace(judged, reason=reason)
    if by_prompt:
        change = change_of_acceptance(valid, other)
        if isinstance(change, str):
            # No launch more would tell.
            return msgspec.structs.replace(judged, outcome=Outcome.INVALID, reason=change)
        return _decide(judged, change, rules, lambda frac: frac, control=subject.is_control)
    moved = change_of_speed(valid, other, quantity.name, quantity.direction.value)
    if moved is None:
        return msgspec.structs.replace(judged, reason="too few launches to tell how they spread")
    parts = parts_of_output(valid, other) if quantity.name == OUTPUT else None
    if parts is not None:
        shown = {name: math.expm1(part) for name, part in parts.items()}
        judged = msgspec.structs.replace(judged, parts_frac=shown)
    to_frac = functools.partial(_to_frac, quantity.direction)
    return _decide(judged, moved, rules, to_frac, control=subject.is_control)


def _value(quantity: Quantity, launches: Sequence[Launched], arm: Arm) -> float | None:
    if quantity.name == ACCEPTANCE:
        return acceptance_length(launches, arm)
    return geometric_mean(launches, arm, quantity.name)


def _decide(
    judged: Judged,
    change: Change,
    rules: Rules,
    to_frac: Callable[[float], float],
    *,
    control: bool,
) -> Judged:
    low, high = map(to_frac, change.bounds(rules.level))
    estimate, tolerance = to_frac(change.estimate_frac), judged.tolerance_frac
    certain_low, certain_high = map(to_frac, change.bounds(rules.loss_level))
    judged = msgspec.structs.replace(judged, change_frac=estimate, low_frac=low, high_frac=high)
    if control and abs(estimate) > tolerance and (certain_low > 0 or certain_high < 0):
        outcome = Outcome.IMPROVED if estimate > 0 else Outcome.REGRESSED
        return msgspec.structs.replace(judged, outcome=outcome)
    if low > -tolerance:
        outcome = Outcome.IMPROVED if low > tolerance else Outcome.PASS
        return msgspec.structs.replace(judged, outcome=outcome)
    if certain_high < 0 and estimate < -tolerance:
        return msgspec.structs.replace(judged, outcome=Outcome.REGRESSED)
    return _with_needed(judged, change, rules)


def _with_needed(judged: Judged, change: Change, rules: Rules) -> Judged:
    """About how much evidence would decide, if the estimate and the spread stay what they are."""
    estimate, tolerance = judged.change_frac or 0.0, judged.tolerance_frac
    within = estimate > -tolerance
    room = estimate + tolerance if within else -estimate

    def decides(count: int, was: int, freedom: float, blocks: int) -> bool:
        some = dataclasses.replace(rules, blocks=max(blocks, rules.blocks))
        reach = t_quantile(some.level if within else some.loss_level, freedom)
        return reach * change.error_frac * math.sqrt(was / count) < room

    if judged.quantity == ACCEPTANCE:
        prompts = round(change.freedom) + 1
        needed = next(
            (n for n in _growing(prompts) if decides(n, prompts, n - 1, rules.blocks)), None
        )
        return msgspec.structs.replace(judged, needed_prompts=needed)
    had = judged.launches
    needed = next(
        (
            n
            for n in _growing(had)
            # Pairs gain a degree of freedom per launch of a side, launches in turn two.
            if decides(n, had, change.freedom + (n - had), math.ceil(n / LAUNCHES_PER_BLOCK))
        ),
        None,
    )
    return msgspec.structs.replace(judged, needed_launches=needed)


def _growing(count: int) -> Iterator[int]:
    """Even numbers above one, ever coarser, up to a thousand times as many."""
    most, number = 1000 * count, float(count)
    while number < most:
        number = max(number + 2, number * 1.05)
        yield 2 * math.ceil(number / 2)


def why_broken(launches: Sequence[Launched], arm: Arm) -> str:
    """Why an arm can't be measured, empty where it can: most of its launches were invalid.

    Args:
        launches: of one case.
        arm: which.
    """
    broken = [one.invalid for one in launches if one.arm is arm and one.invalid]
    sound = sum(one.arm is arm and not one.invalid for one in launches)
    return f"side {arm}: {broken[-1]}" if len(broken) >= max(_MOST_INVALID, sound) else ""


def _to_frac(direction: Direction, change: float) -> float:
    """A difference of logarithms, better being positive, as a relative change of the value."""
    # An interval of one degree of freedom may reach beyond what a float holds.
    change = min(max(change, -_FURTHEST), _FURTHEST)
    return math.expm1(change) if direction is Direction.UP else -math.expm1(-change)


def is_lost(judged: Sequence[Judged]) -> bool:
    """Whether a loss of a case is proven, and by what: output alone is lost by something else."""
    lost = (one for one in judged if one.decides and one.outcome is Outcome.REGRESSED)
    return any(one.cause is not Cause.OUTPUT for one in lost)


def is_decided(judged: Sequence[Judged], *, lost: bool = False, whole: bool = False) -> bool:
    """Whether no further launch would change the answer on a case.

    Args:
        judged: its figures. Where one is a proven loss, the others need but an interval.
        lost: whether the case is lost by something else.
        whole: whether each figure is to be decided all the same.
    """
    lost = not whole and (lost or is_lost(judged))
    return all(
        one.outcome in DECIDED or (lost and one.low_frac is not None)
        for one in judged
        if one.decides
    )


def as_moved(judged: Judged) -> Judged:
    """The same figure where the machine itself moved: it tells nothing of the sides."""
    reason = "MACHINE_MOVED: side A differs from itself; quieten the machine, and run again"
    return msgspec.structs.replace(judged, outcome=Outcome.INVALID, reason=reason)
