"""What a gate launches next follows from its launches alone."""

import dataclasses
from pathlib import Path

import pytest

from specreg.compare.judging import Rules
from specreg.compare.pairs import COMPARED, CONTROL, Pair, Side
from specreg.compare.plan import GateGoal, GateStep, has_time, next_step, slots_of
from specreg.correctness.checks import LOSSLESS
from specreg.runs.ledger import Checked, Ledger, LedgerEntry, MeasuredLaunch
from tests.unit import builders
from tests.unit.builders.gates import PAIR, equal_answers, failed, key_of, launch, launches

RULES = Rules(launches=4, figures=3)


EQUAL = equal_answers(PAIR)


def gate_of(*pairs: Pair, together: bool = True, rules: Rules = RULES) -> GateGoal:
    """A gate whose pairs share their servers."""
    return GateGoal(groups=[pairs], rules=rules, together=together)


def ledger_of(*made: LedgerEntry) -> Ledger:
    """The ledger of a gate that has made these launches."""
    ledger = Ledger(Path("unused"))
    for entry in made:
        ledger.add(entry)
    return ledger


def step_after(*made: LedgerEntry, together: bool = True, rules: Rules = RULES) -> GateStep | None:
    """The next step of a gate of one pair, whose answers are equal."""
    ledger = ledger_of(EQUAL, *made)
    return next_step(ledger, gate_of(PAIR, together=together, rules=rules))


def resumed(side: Side, number: int) -> MeasuredLaunch:
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
    assert step_after() == GateStep((PAIR,), 1, (Side.A, Side.B))
    assert step_after(together=False) == GateStep((PAIR,), 1, (Side.A,))


def test_the_other_side_follows_in_turn() -> None:
    assert step_after(launch(Side.A, 1), together=False) == GateStep((PAIR,), 1, (Side.B,))


def test_a_side_that_failed_is_not_launched_again_at_once() -> None:
    step = step_after(failed(Side.A, 1), together=False)
    assert step == GateStep((PAIR,), 1, (Side.B,))
    assert step_after(failed(Side.A, 1)) == GateStep((PAIR,), 2, (Side.B, Side.A))


def test_a_side_that_was_measured_alone_at_another_hour_is_measured_again() -> None:
    assert step_after(resumed(Side.A, 1), together=False) == GateStep((PAIR,), 1, (Side.A,))
    assert step_after(resumed(Side.B, 1)) == GateStep((PAIR,), 1, (Side.A, Side.B))


def test_what_both_sides_had_measured_is_taken_over() -> None:
    made = [resumed(side, number) for number in (1, 2) for side in COMPARED]
    assert step_after(*made) == GateStep((PAIR,), 3, (Side.A, Side.B))


def test_after_the_last_launch_nothing_follows() -> None:
    assert step_after(*launches(0.0, count=4)) is None


def test_a_loss_is_checked_by_side_a_beside_itself_and_a_failed_check_at_the_next_look() -> None:
    rules = Rules(launches=8, figures=3)
    slow = launches(-0.1, count=4)
    assert step_after(*slow, rules=rules) == GateStep((PAIR,), 1, (Side.A1, Side.A2))

    failing = failed(Side.A2, 1)
    assert step_after(*slow, failing, rules=rules) == GateStep((PAIR,), 2, (Side.A2, Side.A1))

    later = [made for made in launches(-0.1, count=8) if made.number > 4]
    assert step_after(*slow, failing, *later, rules=rules) == GateStep(
        (PAIR,), 1, (Side.A1, Side.A2)
    )


def test_a_side_of_another_hour_is_not_compared_with_one_of_now() -> None:
    made = (resumed(Side.B, 1), launch(Side.A, 1))
    assert step_after(*made, together=False) == GateStep((PAIR,), 1, (Side.B,))


def test_a_side_of_another_hour_counts_no_more_once_its_repetition_has_failed() -> None:
    made = (resumed(Side.A, 1), failed(Side.A, 1))
    assert step_after(*made, together=False) == GateStep((PAIR,), 1, (Side.B,))
    assert ledger_of(*made, launch(Side.B, 1)).find(PAIR.id, 1, Side.A) is None


def test_pairs_that_share_servers_are_measured_on_one_launch() -> None:
    other = builders.with_concurrency(4)
    second = Pair(a=other, b=other)
    goal = gate_of(PAIR, second)
    equal = (EQUAL, equal_answers(second))
    first_launches = [launch(side, 1) for side in COMPARED]

    assert next_step(ledger_of(*equal), goal) == GateStep((PAIR, second), 1, COMPARED)
    after_first = next_step(ledger_of(*equal, *first_launches), goal)
    assert after_first == GateStep((second,), 1, COMPARED)
    dead = [failed(Side.B, 1, pair=pair) for pair in (PAIR, second)]
    assert next_step(ledger_of(*equal, *dead), goal) == GateStep((PAIR, second), 2, COMPARED[::-1])


def not_compared(side: Side, number: int) -> LedgerEntry:
    """A launch on which the answers of a side couldn't be had."""
    return dataclasses.replace(failed(side, number), check=LOSSLESS)


def answers_of_a(number: int) -> Checked:
    """The answers of side A, which a launch generated."""
    return Checked.of(key_of(PAIR, Side.A, number), "answers")


ASK_BOTH = GateStep((PAIR,), 1, COMPARED, LOSSLESS)


@pytest.mark.parametrize(
    ("made", "together", "step"),
    [
        pytest.param([], True, ASK_BOTH, id="not yet"),
        pytest.param([answers_of_a(1)], True, ASK_BOTH, id="A before"),
        pytest.param([EQUAL], True, GateStep((PAIR,), 2, COMPARED[::-1]), id="compared"),
        pytest.param(
            [not_compared(Side.A, 1)], True, GateStep((PAIR,), 2, COMPARED[::-1]), id="failed"
        ),
        pytest.param(
            [not_compared(Side.A, 1)], False, GateStep((PAIR,), 2, (Side.B,)), id="A failed"
        ),
        pytest.param(
            [answers_of_a(1)], False, GateStep((PAIR,), 1, (Side.B,), LOSSLESS), id="B after A"
        ),
    ],
)
def test_answers_are_compared_on_the_servers_that_were_measured(
    made: list[LedgerEntry], step: GateStep, *, together: bool
) -> None:
    ledger = ledger_of(*made, *(launch(side, 1) for side in COMPARED))
    assert next_step(ledger, gate_of(PAIR, together=together)) == step


def test_side_a_answers_first_if_the_sides_run_in_turn() -> None:
    ledger = ledger_of(launch(Side.A, 1))
    goal = gate_of(PAIR, together=False)
    assert next_step(ledger, goal) == GateStep((PAIR,), 1, (Side.A,), LOSSLESS)
    ledger.add(answers_of_a(1))
    assert next_step(ledger, goal) == GateStep((PAIR,), 1, (Side.B,))


def test_answers_are_not_asked_for_on_servers_that_an_earlier_command_had() -> None:
    ledger = ledger_of(*(resumed(side, 1) for side in COMPARED))
    assert next_step(ledger, gate_of(PAIR)) == GateStep((PAIR,), 2, COMPARED[::-1])


def step_of(number: int, *sides: Side, check: str = "") -> GateStep:
    """A step on a launch of a gate of one pair."""
    return GateStep((PAIR,), number, sides, check)


@pytest.mark.parametrize(
    ("taken", "within_s", "is_affordable"),
    [
        pytest.param([], 0.0, True, id="the first launch"),
        pytest.param([(step_of(1, *COMPARED), 70.0)], 140.0, True, id="just enough"),
        pytest.param([(step_of(1, *COMPARED), 70.0)], 139.0, False, id="too little"),
        pytest.param(
            [(step_of(1, *COMPARED), 30.0), (step_of(1, *COMPARED, check=LOSSLESS), 50.0)],
            110.0,
            True,
            id="answers are compared on one launch only",
        ),
        pytest.param(
            [(step_of(1, Side.A), 20.0), (step_of(1, Side.B), 30.0)],
            80.0,
            True,
            id="in turn, each server is a launch",
        ),
    ],
)
def test_a_launch_is_made_if_there_is_time_for_one_as_long_as_the_longest(
    taken: list[tuple[GateStep, float]], within_s: float, *, is_affordable: bool
) -> None:
    goal = dataclasses.replace(gate_of(PAIR), within_s=within_s)
    assert has_time(step_of(2, *COMPARED[::-1]), taken, goal) == is_affordable


def test_the_pairs_of_a_group_take_the_time_of_one_launch() -> None:
    other = builders.with_concurrency(4)
    second = Pair(a=other, b=other)
    goal = dataclasses.replace(gate_of(PAIR, second), within_s=99.0)
    taken = [(GateStep((PAIR, second), 1, COMPARED), 30.0)]
    begun = GateStep((second,), 1, COMPARED)
    assert has_time(begun, taken, dataclasses.replace(goal, within_s=1.0)), "it has begun"
    taken.append((begun, 20.0))
    assert not has_time(GateStep((PAIR, second), 2, COMPARED[::-1]), taken, goal)


def test_a_gate_that_is_asked_again_gives_the_same_answer() -> None:
    """Nothing but the ledger decides, so an interrupted gate goes on where it was."""
    made = [*launches(-0.1, count=4)]
    assert step_after(*made) == step_after(*made)
    assert step_after(*made, *launches(0.0, sides=CONTROL, count=1)) is None
