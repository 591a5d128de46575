"""Decide what a gate does next, from what its ledger has. Nothing here starts or reads anything.

Whenever B seems slower at a look, side A is launched next to itself, up to as many times as B was
launched.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from specreg.compare.answers import answer_verdict, can_ask, wants_answers
from specreg.compare.judging import Decision, Rules, decide, is_lost, is_settled, last_number
from specreg.compare.pairs import COMPARED, CONTROL, Group, Pair, Side
from specreg.correctness.checks import LOSSLESS
from specreg.runs.ledger import ArmLaunch, Ledger, MeasuredLaunch
from specreg.verdicts.verdict import Outcome


class GateStep(NamedTuple):
    """What a gate does next: measure a pair, or compare its answers, on a launch of its servers.

    Attributes:
        pairs: the pair, and those after it that wait for the same servers. If a server fails, the
            launch is lost for all of them.
        number: the number of the launch, from 1.
        sides: the sides whose servers run, at the same time.
        check: the name of the check that compares answers; empty to measure.
    """

    pairs: Group
    number: int
    sides: tuple[Side, ...]
    check: str = ""

    @property
    def pair(self) -> Pair:
        """The pair that is measured, or whose answers are compared."""
        return self.pairs[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class GateGoal:
    """What a gate wants to know, and how long it may take.

    Attributes:
        groups: the groups of pairs that share their servers.
        rules: after how many launches the gate judges, and how strictly.
        together: whether the servers of both sides run at the same time.
        within_s: the time for all launches, in seconds.
        is_done: returns whether the decision of a look is final.
        goes_on_until_done: whether pairs are launched until the decision is final, even if further
            launches can't lead to an upgrade.
    """

    groups: Sequence[Group]
    rules: Rules
    together: bool
    within_s: float = math.inf
    is_done: Callable[[Decision], bool] = is_lost
    goes_on_until_done: bool = False

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """The cases that are compared, as both sides run them."""
        return tuple(itertools.chain.from_iterable(self.groups))

    def decide(self, launches: Sequence[ArmLaunch], ledger: Ledger) -> Decision:
        """Return the decision by some of the launches, and by the answers so far."""
        answer_verdicts = [answer_verdict(pair, ledger) for pair in self.pairs]
        return decide(
            self.pairs,
            launches,
            self.rules,
            answer_verdicts,
            wants_answers=wants_answers(self.pairs, ledger),
        )


def next_step(ledger: Ledger, goal: GateGoal) -> GateStep | None:
    """Return what a gate does next if it has time for it; None at its end.

    A gate ends when it has its answer, or has made all of its launches.
    """
    launches = ledger.launches
    last_launch = last_number(launches)
    open_groups = goal.groups
    for number in range(1, goal.rules.launches + 1):
        for group in open_groups:
            step = _step_on(group, number, COMPARED, ledger, goal)
            if step is not None:
                return step
        if number not in goal.rules.looks:
            continue

        # An earlier look didn't end the gate, but it may have settled groups.
        if number < last_launch:
            decision = goal.decide(_made_until(number, launches), ledger)
        else:
            if goal.is_done(goal.decide(launches[: _at_look(launches)], ledger)):
                return None
            decision = goal.decide(launches, ledger)
            step = _missing_control(open_groups, decision, ledger, goal)
            if step is not None:
                return step
            if goal.is_done(decision):
                return None

        if not goal.goes_on_until_done:
            open_groups = [
                group
                for group in open_groups
                if wants_answers(group, ledger) or not is_settled(group, decision)
            ]

    return None


def has_time(step: GateStep, taken: Sequence[tuple[GateStep, float]], goal: GateGoal) -> bool:
    """Return whether a launch has begun, or would end in time if it took as long as any so far.

    Args:
        step: the next step.
        taken: the steps that were taken before, whatever came of them, each with how long it took,
            in seconds.
        goal: says how long all launches may take.
    """
    groups = {pair.id: index for index, group in enumerate(goal.groups) for pair in group}

    # All pairs of a group are measured on the same launch of its servers.
    launches_s: dict[tuple[int, int, tuple[Side, ...]], float] = defaultdict(float)
    for taken_step, lasted_s in taken:
        if not taken_step.check:
            servers = (groups[taken_step.pair.id], taken_step.number, taken_step.sides)
            launches_s[servers] += lasted_s

    if not taken or (groups[step.pair.id], step.number, step.sides) in launches_s:
        return True
    spent_s = sum(lasted_s for _, lasted_s in taken)
    return spent_s + max(launches_s.values(), default=0.0) <= goal.within_s


def _step_on(
    group: Group, number: int, sides: tuple[Side, Side], ledger: Ledger, goal: GateGoal
) -> GateStep | None:
    """Return the next step on a launch of a group's servers; None if nothing is left to do."""
    missing = [(pair, _missing_sides(pair, number, sides, ledger)) for pair in group]
    for slot in slots_of(number, sides, together=goal.together):
        # Answers are compared on the servers that have just been measured, which still run.
        for pair in group:
            if sides == COMPARED and can_ask(pair, number, slot, ledger):
                return GateStep((pair,), number, slot, LOSSLESS)
        # If one of two servers fails, the other one measures nothing either.
        waiting = tuple(pair for pair, missing_sides in missing if missing_sides >= {*slot})
        if waiting:
            return GateStep(waiting, number, slot)

    return None


def _missing_sides(pair: Pair, number: int, sides: tuple[Side, Side], ledger: Ledger) -> set[Side]:
    """Return the sides on which a launch of a pair is missing.

    A side that was measured alone at another hour is missing too, because it would be compared with
    a launch of now. A launch that failed at this hour isn't missing.
    """
    # A control that failed at an earlier look is launched again.
    first_of_now = _at_look(ledger.launches) if sides == CONTROL else 0
    made_now: set[str] = set()
    measured_before: set[str] = set()
    for index, launch in enumerate(ledger.launches):
        if (launch.case_id, launch.number) != (pair.id, number):
            continue
        if index >= first_of_now and not launch.is_resumed:
            made_now.add(launch.arm)
        elif isinstance(launch, MeasuredLaunch):
            measured_before.add(launch.arm)

    if made_now >= {*sides} or measured_before >= {*sides}:
        return set()
    return {*sides} - made_now


def _at_look(launches: Sequence[ArmLaunch]) -> int:
    """Return how many launches had been made at the last look. The ones after it are controls."""
    indexes = [index for index, launch in enumerate(launches) if launch.arm in COMPARED]
    return indexes[-1] + 1 if indexes else 0


def _made_until(look: int, launches: Sequence[ArmLaunch]) -> Sequence[ArmLaunch]:
    """Return the launches that had been made at a look."""
    for index, launch in enumerate(launches):
        if launch.arm in COMPARED and launch.number > look:
            return launches[:index]
    return launches


def _missing_control(
    groups: Sequence[Group], decision: Decision, ledger: Ledger, goal: GateGoal
) -> GateStep | None:
    """Return the next launch of side A beside itself, as long as that may explain a loss of B."""
    for number in range(1, last_number(ledger.launches) + 1):
        for group in groups:
            doubtful = tuple(pair for pair in group if _is_doubtful(pair, decision))
            step = _step_on(doubtful, number, CONTROL, ledger, goal)
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
