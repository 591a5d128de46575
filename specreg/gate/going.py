"""Going on: what is compared in, launches in ABBA order until all is decided out."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from specreg.gate.judging import Rules, Subject, is_decided, judge_subject
from specreg.gate.launched import Arm, Launched

_ORDER = (Arm.A, Arm.B, Arm.B, Arm.A)
_WITH_CONTROL = (Arm.A, Arm.B, Arm.A2, Arm.A2, Arm.B, Arm.A)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """What shares its launches.

    Attributes:
        name: of the server on both sides.
        subjects: each a case; those of the control have A2 as the other side.
    """

    name: str
    subjects: tuple[Subject, ...]

    @property
    def order(self) -> tuple[Arm, ...]:
        """A block; the same forwards and backwards, so that no side has the better half of it."""
        with_control = any(subject.other is Arm.A2 for subject in self.subjects)
        return _WITH_CONTROL if with_control else _ORDER


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One launch that is due: of which group and arm, in which block, the how-manieth in all."""

    group: Group
    arm: Arm
    block: int
    number: int


Launch = Callable[[Slot], Sequence[Launched]]
"""Starts a side's server and measures all cases of the group on it."""


def go_on(
    groups: Sequence[Group],
    launch: Launch,
    rules: Rules,
    *,
    earlier: Sequence[Launched] = (),
    may_go_on: Callable[[], bool] = lambda: True,
) -> tuple[Launched, ...]:
    """Launches of each group, block by block, as long as something of it is undecided.

    Args:
        groups: what is compared.
        launch: measures; is asked for one launch at a time.
        rules: how many blocks there may be, and what decides.
        earlier: what a gate that was cut off had measured; it isn't measured again.
        may_go_on: asked before each launch; whether there is time for one more.

    Returns:
        All launches, the earlier ones first.
    """
    done = list(earlier)
    for block in range(1, rules.blocks + 1):
        for group in groups:
            if block > 1 and _all_decided(group, done, rules):
                continue
            for slot in _left(group, block, done):
                if not may_go_on():
                    return tuple(done)
                done.extend(launch(slot))
    return tuple(done)


def _left(group: Group, block: int, done: Sequence[Launched]) -> Iterable[Slot]:
    """The launches of a block that are due; those of a gate that was cut off are among `done`."""
    mine = {subject.case_id for subject in group.subjects}
    had = [
        arm
        for _, arm in sorted(
            {(one.number, one.arm) for one in done if one.block == block and one.case_id in mine}
        )
    ]
    number = max((one.number for one in done), default=0)
    for place, arm in enumerate(group.order[len(had) :], start=1):
        yield Slot(group=group, arm=arm, block=block, number=number + place)


def _all_decided(group: Group, done: Sequence[Launched], rules: Rules) -> bool:
    """Whether the sides are; the control has nothing to prove, it must only not differ."""
    ours = [subject for subject in group.subjects if subject.other is not Arm.A2]
    return all(is_decided(judge_subject(subject, done, rules)) for subject in ours)
