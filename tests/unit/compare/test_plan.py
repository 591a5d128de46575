"""What a gate launches next follows from its launches alone."""

import dataclasses
from pathlib import Path

import pytest

from specreg.compare.judging import Rules, decide
from specreg.compare.pairs import COMPARED, CONTROL, Side
from specreg.compare.plan import Goal, Step, next_step, slots_of
from specreg.runs.ledger import ArmLaunch, Ledger
from tests.unit.builders.gates import PAIR, failed, launch, launches

RULES = Rules(launches=4, figures=3)


def step_after(*made: ArmLaunch, together: bool = True, rules: Rules = RULES) -> Step | None:
    """The next step of a gate of one pair that has made these launches."""
    ledger = Ledger(Path("unused"))
    for made_launch in made:
        ledger.add(made_launch)
    goal = Goal(
        groups=[(PAIR,)],
        rules=rules,
        together=together,
        decide=lambda some: decide([PAIR], some, rules),
    )
    return next_step(ledger, goal)


def resumed(side: Side, number: int) -> ArmLaunch:
    """A launch that an interrupted gate had measured."""
    return dataclasses.replace(launch(side, number), is_resumed=True)


@pytest.mark.parametrize(
    ("sides", "together", "order"),
    [
        (COMPARED, True, ["A B", "B A", "A B", "B A"]),
        (COMPARED, False, ["A", "B", "B", "A", "A", "B", "B", "A"]),
        (CONTROL, True, ["A1 A2", "A2 A1", "A1 A2", "A2 A1"]),
    ],
)
def test_the_sides_take_turns_at_being_first(
    sides: tuple[Side, Side], *, together: bool, order: list[str]
) -> None:
    slots = [slot for n in range(1, 5) for slot in slots_of(n, sides, together=together)]
    assert [" ".join(slot) for slot in slots] == order


def test_a_gate_begins_with_both_sides() -> None:
    assert step_after() == Step((PAIR,), 1, (Side.A, Side.B))
    assert step_after(together=False) == Step((PAIR,), 1, (Side.A,))


def test_the_other_side_follows_in_turn() -> None:
    assert step_after(launch(Side.A, 1), together=False) == Step((PAIR,), 1, (Side.B,))


def test_a_side_that_failed_is_not_launched_again_at_once() -> None:
    step = step_after(failed(Side.A, 1), together=False)
    assert step == Step((PAIR,), 1, (Side.B,))
    assert step_after(failed(Side.A, 1)) == Step((PAIR,), 2, (Side.B, Side.A))


def test_a_side_that_was_measured_alone_at_another_hour_is_measured_again() -> None:
    assert step_after(resumed(Side.A, 1), together=False) == Step((PAIR,), 1, (Side.A,))
    assert step_after(resumed(Side.B, 1)) == Step((PAIR,), 1, (Side.A, Side.B))


def test_what_both_sides_had_measured_is_taken_over() -> None:
    made = [resumed(side, number) for number in (1, 2) for side in COMPARED]
    assert step_after(*made) == Step((PAIR,), 3, (Side.A, Side.B))


def test_after_the_last_launch_nothing_follows() -> None:
    assert step_after(*launches(0.0, count=4)) is None


def test_a_loss_is_checked_by_side_a_beside_itself_and_a_failed_check_at_the_next_look() -> None:
    rules = Rules(launches=8, figures=3)
    slow = launches(-0.1, count=4)
    assert step_after(*slow, rules=rules) == Step((PAIR,), 1, (Side.A1, Side.A2))

    failing = failed(Side.A2, 1)
    assert step_after(*slow, failing, rules=rules) == Step((PAIR,), 2, (Side.A2, Side.A1))

    later = [made for made in launches(-0.1, count=8) if made.number > 4]
    assert step_after(*slow, failing, *later, rules=rules) == Step((PAIR,), 1, (Side.A1, Side.A2))


def test_a_gate_that_is_asked_again_gives_the_same_answer() -> None:
    """Nothing but the ledger decides, so an interrupted gate goes on where it was."""
    made = [*launches(-0.1, count=4)]
    assert step_after(*made) == step_after(*made)
    assert step_after(*made, *launches(0.0, sides=CONTROL, count=1)) is None
