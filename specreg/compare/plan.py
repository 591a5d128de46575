"""Decide what a gate launches next, from what it has launched so far.

The gate looks at the launches after 1, 2, 4, 8, … of them. Whenever B seems slower at a look, side
A is launched next to itself, up to as many times as B was launched.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from specreg.compare.judging import Decision, Rules, is_lost, is_settled
from specreg.compare.pairs import COMPARED, CONTROL, Group, Pair, Side
from specreg.runs.ledger import ArmLaunch, Ledger, MeasuredLaunch
from specreg.verdicts.verdict import Outcome


class Step(NamedTuple):
    """A launch of the servers of one or two sides.

    Attributes:
        group: the pairs to measure on them.
        number: the number of the launch, from 1.
        sides: the sides, which run at the same time.
    """

    group: Group
    number: int
    sides: tuple[Side, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What a gate wants to know.

    Attributes:
        groups: the groups of pairs that share their servers.
        rules: after how many launches the gate judges.
        together: whether the servers of both sides run at the same time.
        decide: returns the decision on launches.
        is_done: returns whether a decision is final.
        is_wanted: returns whether a group is launched even if it is settled.
    """

    groups: Sequence[Group]
    rules: Rules
    together: bool
    decide: Callable[[Sequence[ArmLaunch]], Decision]
    is_done: Callable[[Decision], bool] = is_lost
    is_wanted: Callable[[Group], bool] = lambda _: False


@dataclass(frozen=True, slots=True)
class _Made:
    """The launches of a gate so far.

    Attributes:
        launches: all launches, in the order in which they were made.
        together: whether both sides run at the same time.
    """

    launches: Sequence[ArmLaunch]
    together: bool

    @property
    def at_look(self) -> int:
        """How many launches had been made at the last look. The ones after it are controls."""
        for index in range(len(self.launches), 0, -1):
            if self.launches[index - 1].arm in COMPARED:
                return index
        return 0

    def missing_step(self, group: Group, number: int, sides: tuple[Side, Side]) -> Step | None:
        """Return the next step of a launch, with the pairs that lack it; None if no pair does."""
        sides_of_pairs = [(pair, self._missing_sides(pair, number, sides)) for pair in group]
        for slot in slots_of(number, sides, together=self.together):
            # If one of two servers fails, the other one measures nothing either.
            pairs = tuple(pair for pair, missing in sides_of_pairs if missing >= {*slot})
            if pairs:
                return Step(pairs, number, slot)
        return None

    def _missing_sides(self, pair: Pair, number: int, sides: tuple[Side, Side]) -> set[Side]:
        """Return the sides on which a launch of a pair is missing.

        A side that was measured alone at another hour is missing too, because it would be compared
        with a launch of now. A launch that failed at this hour isn't missing.
        """
        # A control that failed at an earlier look is launched again.
        first_of_now = self.at_look if sides == CONTROL else 0
        made_now: set[str] = set()
        measured_before: set[str] = set()
        for index, launch in enumerate(self.launches):
            if (launch.case_id, launch.number) != (pair.id, number):
                continue
            is_resumed = isinstance(launch, MeasuredLaunch) and launch.is_resumed
            if index >= first_of_now and not is_resumed:
                made_now.add(launch.arm)
            elif isinstance(launch, MeasuredLaunch):
                measured_before.add(launch.arm)
        if made_now | measured_before >= {*sides}:
            return set()
        return {*sides} - made_now


def next_step(ledger: Ledger, goal: Goal) -> Step | None:
    """Return what a gate launches next; None if it has its answer, or may launch no more."""
    launches = ledger.launches
    made = _Made(launches, goal.together)
    last_number = max((launch.number for launch in launches if launch.arm in COMPARED), default=0)
    open_groups = goal.groups
    for number in range(1, goal.rules.launches + 1):
        for group in open_groups:
            step = made.missing_step(group, number, COMPARED)
            if step is not None:
                return step
        if number not in goal.rules.looks:
            continue

        # An earlier look didn't end the gate, but it may have settled groups.
        if number < last_number:
            decision = goal.decide(_made_until(number, launches))
        else:
            if goal.is_done(goal.decide(launches[: made.at_look])):
                return None
            decision = goal.decide(launches)
            step = _missing_control(open_groups, number, decision, made)
            if step is not None:
                return step
            if goal.is_done(decision):
                return None

        open_groups = [
            group
            for group in open_groups
            if goal.is_wanted(group) or not is_settled(group, decision)
        ]
    return None


def _made_until(look: int, launches: Sequence[ArmLaunch]) -> Sequence[ArmLaunch]:
    """Return the launches that had been made at a look."""
    for index, launch in enumerate(launches):
        if launch.arm in COMPARED and launch.number > look:
            return launches[:index]
    return launches


def _missing_control(
    groups: Sequence[Group], look: int, decision: Decision, made: _Made
) -> Step | None:
    """Return the next launch of side A beside itself, as long as that may explain a loss of B."""
    for number in range(1, look + 1):
        for group in groups:
            doubtful = tuple(pair for pair in group if _is_doubtful(pair, decision))
            step = made.missing_step(doubtful, number, CONTROL)
            if step is not None:
                return step
    return None


def _is_doubtful(pair: Pair, decision: Decision) -> bool:
    """Return whether B seems slower on a pair, but side A may differ from itself as much."""
    return any(
        verdict.has_code("UNCHECKED", "MACHINE_MOVED") and verdict.outcome is not Outcome.REGRESSED
        for verdict in decision.verdicts
        if verdict.case_id == pair.id
    )


def slots_of(
    launch: int, sides: tuple[Side, Side], *, together: bool
) -> Iterator[tuple[Side, ...]]:
    """Yield the sides to start for a launch, in order. The sides of a tuple run at the same time.

    The order is reversed on every second launch, so that a drift of the machine affects both sides.

    Args:
        launch: the number of the launch, from 1.
        sides: the two sides that are compared.
        together: whether both sides run at the same time.
    """
    order = sides
    if launch % 2 == 0:
        order = sides[::-1]
    if together:
        yield order
    else:
        yield from ((side,) for side in order)
