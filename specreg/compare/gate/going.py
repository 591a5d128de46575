"""Going on: what is compared in, launches in ABBA order until all is decided out."""

import dataclasses
import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from specreg.compare.gate.judging import Rules, Subject, is_decided, judge_subject, why_broken
from specreg.compare.gate.launched import Arm, Launched

_ARMS = (Arm.A, Arm.B)
_WITH_CONTROL = (Arm.A, Arm.B, Arm.A2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """What shares its launches.

    Attributes:
        name: of the server on both sides.
        subjects: each a case; those of the control have A2 as the other side.
        together: whether all sides are up at the same time, or one after another.
    """

    name: str
    subjects: tuple[Subject, ...]
    together: bool = False

    def block(self, number: int) -> tuple[tuple[Arm, ...], ...]:
        """Which sides are launched, in order; in brackets those that are up at the same time.

        The same forwards and backwards, so that no side has the better half of it. Of three one
        stands in the middle, each of them in its turn.

        Args:
            number: of the block, from 1.
        """
        with_control = any(subject.is_control for subject in self.subjects)
        arms = _WITH_CONTROL if with_control else _ARMS
        first = (number - 1) % len(arms) if with_control else 0
        turned = (*arms[first:], *arms[:first])
        there_and_back = (turned, turned[::-1])
        if self.together:
            return there_and_back
        return tuple((arm,) for way in there_and_back for arm in way)

    @property
    def alone(self) -> "Group":
        """The same without its control."""
        ours = tuple(subject for subject in self.subjects if not subject.is_control)
        return dataclasses.replace(self, subjects=ours)

    @property
    def launches(self) -> int:
        """Of a block, all sides together."""
        return sum(map(len, self.block(1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """What is due: of which group and arms, in which block, the how-manieth in all."""

    group: Group
    arms: tuple[Arm, ...]
    block: int
    number: int


Launch = Callable[[Slot], Sequence[Launched]]
"""Starts the servers of one side or more, and measures all cases of the group on them."""


def go_on(
    groups: Sequence[Group],
    launch: Launch,
    rules: Rules,
    *,
    earlier: Sequence[Launched] = (),
    may_go_on: Callable[[], bool] = lambda: True,
    is_done: Callable[[Group, Sequence[Launched]], bool] | None = None,
) -> tuple[Launched, ...]:
    """Launches of each group, block by block, as long as it needs them.

    Args:
        groups: what is compared.
        launch: measures; is asked for what is up at the same time.
        rules: how many blocks there may be, and what decides.
        earlier: what a gate that was cut off had measured. It isn't measured again; what had failed
            is, once more, but no control that was given up.
        may_go_on: asked before each launch; whether there is time for one more.
        is_done: asked before each further block; whether a group needs no launches beyond those so
            far. Without it, `is_settled`.

    Returns:
        All launches, the earlier ones first, without those that had failed.
    """
    done = [one for one in earlier if not one.invalid]
    failed = [one for one in earlier if one.invalid]
    enough = is_done or (lambda group, some: is_settled(group, some, rules))
    for block in range(1, rules.blocks + 1):
        for group in groups:
            if block > 1 and enough(group, done):
                continue
            before = max((one.number for one in (*earlier, *done)), default=0)
            due = group.alone if why_no_control(group, (*failed, *done)) else group
            for number, arms in enumerate(_left(due, block, done), start=before + 1):
                if not may_go_on():
                    return tuple(done)
                done.extend(launch(Slot(group=group, arms=arms, block=block, number=number)))
    return tuple(done)


def _left(group: Group, block: int, done: Sequence[Launched]) -> list[tuple[Arm, ...]]:
    """The sittings of a block that are due: those that aren't whole among `done`.

    Of one whose line is torn, or that failed for a side or a case, something is missing.
    """
    cases = {subject.case_id for subject in group.subjects}
    told: dict[int, set[tuple[str, Arm]]] = {}
    for one in done:
        if one.block == block and one.case_id in cases:
            told.setdefault(one.number, set()).add((one.case_id, one.arm))
    left = []
    for arms in group.block(block):
        wanted = set(itertools.product(cases, arms))
        number = next((number for number, had in told.items() if had >= wanted), None)
        if number is None:
            left.append(arms)
        else:
            del told[number]
    return left


def why_no_control(group: Group, launches: Sequence[Launched]) -> str:
    """Why side A isn't launched once more any more, empty where it is: that failed too often.

    Where all sides are up at the same time, it takes the others with it.
    """
    cases = {subject.case_id for subject in group.subjects if subject.is_control}
    whys = (
        why_broken([one for one in launches if one.case_id == case_id], Arm.A2)
        for case_id in sorted(cases)
    )
    return next(filter(None, whys), "")


def is_settled(
    group: Group,
    launches: Sequence[Launched],
    rules: Rules,
    *,
    wrong: Collection[str] = (),
    whole: bool = False,
) -> bool:
    """Whether no further launch would change the answer on a group's cases.

    The control has nothing to prove, it must only not differ.

    Args:
        group: which.
        launches: so far.
        rules: see there.
        wrong: cases that are lost by their answers.
        whole: whether each figure is to be decided, also of a case that is lost.
    """
    ours = [subject for subject in group.subjects if not subject.is_control]
    return all(
        is_decided(
            judge_subject(subject, launches, rules), lost=subject.case_id in wrong, whole=whole
        )
        for subject in ours
    )
