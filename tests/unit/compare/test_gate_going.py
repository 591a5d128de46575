import math
from collections.abc import Sequence

import pytest

from specreg.compare.gate.going import Group, Slot, go_on, is_settled, why_no_control
from specreg.compare.gate.judging import Rules, Subject
from specreg.compare.gate.launched import Arm, Launched
from specreg.compare.gate.quantities import OUTPUT, QUANTITIES


def group(name: str, *others: Arm, together: bool = False) -> Group:
    return Group(
        name=name,
        together=together,
        subjects=tuple(
            Subject(
                case_id=name,
                quantities=(QUANTITIES[OUTPUT],),
                deciding=frozenset({OUTPUT}),
                other=other,
            )
            for other in others or (Arm.B,)
        ),
    )


class Machine:
    """Launches that are as fast as they are told to be; it notes what was asked of it."""

    def __init__(self, *speeds: float) -> None:
        self.slots: list[Slot] = []
        self.speeds = speeds or (100.0,)

    def launch(self, slot: Slot) -> Sequence[Launched]:
        self.slots.append(slot)
        speed = self.speeds[(slot.number - 1) % len(self.speeds)]
        return [
            Launched(
                case_id=slot.group.name,
                arm=arm,
                block=slot.block,
                number=slot.number,
                values={OUTPUT: speed},
            )
            for arm in slot.arms
        ]

    @property
    def said(self) -> str:
        return " ".join(
            f"{slot.group.name}{'+'.join(slot.arms)}{slot.block}" for slot in self.slots
        )


def rules(blocks: int) -> Rules:
    return Rules(blocks=blocks, figures=1)


def test_a_block_is_abba_and_stops_when_all_is_decided() -> None:
    machine = Machine()
    go_on([group("x")], machine.launch, rules(5))
    assert machine.said == "xA1 xB1 xB1 xA1 xA2 xB2 xB2 xA2"
    assert [slot.number for slot in machine.slots] == [1, 2, 3, 4, 5, 6, 7, 8]


def test_the_control_stands_in_the_middle_of_a_block() -> None:
    machine = Machine()
    go_on([group("x", Arm.B, Arm.A2), group("y")], machine.launch, rules(1))
    assert machine.said == "xA1 xB1 xA21 xA21 xB1 xA1 yA1 yB1 yB1 yA1"


def test_sides_that_are_up_together_start_there_and_back() -> None:
    machine = Machine()
    groups = [group("x", Arm.B, Arm.A2, together=True), group("y", together=True)]
    done = go_on(groups, machine.launch, rules(1))
    assert machine.said == "xA+B+A21 xA2+B+A1 yA+B1 yB+A1"
    assert [one.number for one in done] == [1, 1, 1, 2, 2, 2, 3, 3, 4, 4]
    assert [one.launches for one in groups] == [6, 4]


def test_with_a_control_each_side_is_the_first_as_often() -> None:
    machine = Machine()
    go_on(
        [group("x", Arm.B, Arm.A2, together=True)],
        machine.launch,
        rules(3),
        is_done=lambda *_: False,
    )
    assert machine.said == "xA+B+A21 xA2+B+A1 xB+A2+A2 xA+A2+B2 xA2+A+B3 xB+A+A23"


def test_together_too_it_goes_on_where_it_was_cut_off() -> None:
    first, second = Machine(), Machine()
    left = iter((True, False))
    x = group("x", together=True)
    earlier = go_on([x], first.launch, rules(5), may_go_on=lambda: next(left))
    assert first.said == "xA+B1"
    go_on([x], second.launch, rules(5), earlier=earlier)
    assert second.said == "xB+A1 xA+B2 xB+A2"


def test_a_sitting_of_which_a_side_is_missing_is_made_again() -> None:
    """As where the journal's last line was torn."""
    first, second = Machine(), Machine()
    x = group("x", together=True)
    earlier = go_on([x], first.launch, rules(1))
    go_on([x], second.launch, rules(1), earlier=earlier[:-1])
    assert second.said == "xB+A1"
    assert second.slots[0].number == 3


def test_what_is_undecided_goes_on_to_the_last_block_and_the_rest_doesnt() -> None:
    noisy = Machine(100.0, 100.0, 100.0, 100.0, 90.0, 130.0, 80.0, 140.0)
    go_on([group("x"), group("y")], noisy.launch, rules(3))
    blocks = {name: {s.block for s in noisy.slots if s.group.name == name} for name in "xy"}
    assert blocks == {"x": {1, 2}, "y": {1, 2, 3}}


def test_it_goes_on_where_it_was_cut_off() -> None:
    first, second = Machine(), Machine()
    left = iter((True, True, True, False))
    earlier = go_on([group("x")], first.launch, rules(5), may_go_on=lambda: next(left))
    assert first.said == "xA1 xB1 xB1"
    whole = go_on([group("x")], second.launch, rules(5), earlier=earlier)
    assert second.said == "xA1 xA2 xB2 xB2 xA2"
    assert [one.number for one in whole] == [1, 2, 3, 4, 5, 6, 7, 8]


def test_what_has_failed_twice_isnt_tried_again() -> None:
    calls: list[Slot] = []

    def fail(slot: Slot) -> Sequence[Launched]:
        calls.append(slot)
        return [
            Launched(
                case_id="x",
                arm=slot.arms[0],
                block=slot.block,
                number=slot.number,
                invalid="the server died" if slot.arms[0] is Arm.B else "",
                values={OUTPUT: 1.0 + slot.number},
            )
        ]

    go_on([group("x")], fail, rules(5))
    assert len(calls) == 4


def test_blocks_more_are_launched_until_somebody_says_that_it_is_done() -> None:
    machine = Machine()
    go_on([group("x")], machine.launch, rules(5), is_done=lambda *_: len(machine.slots) == 12)
    assert {slot.block for slot in machine.slots} == {1, 2, 3}


def failed(slot: Slot, arm: Arm, case_id: str = "x") -> Launched:
    """A side's launch of which nothing came."""
    return Launched(
        case_id=case_id, arm=arm, block=slot.block, number=slot.number, invalid="it died"
    )


def test_where_it_goes_on_what_had_failed_is_tried_again() -> None:
    """In its own place: the second of four."""
    first, second = Machine(), Machine()

    def launch(slot: Slot) -> Sequence[Launched]:
        done = first.launch(slot)
        return [failed(slot, Arm.B)] if slot.number == 2 else done

    earlier = go_on([group("x")], launch, rules(1))
    assert first.said == "xA1 xB1 xB1 xA1"
    whole = go_on([group("x")], second.launch, rules(1), earlier=earlier)
    assert second.said == "xB1"
    assert [(one.number, one.arm) for one in whole] == [(1, "A"), (3, "B"), (4, "A"), (5, "B")]


def test_a_sitting_in_which_one_of_two_cases_failed_is_made_again() -> None:
    slots: list[Slot] = []
    cases = ("x", "y")
    subjects = (*group("x").subjects, *group("y").subjects)
    both = Group(name="both", subjects=subjects, together=True)

    def launch(slot: Slot, failing: int) -> Sequence[Launched]:
        slots.append(slot)
        return [
            failed(slot, arm, case)
            if (case, arm, slot.number) == ("y", Arm.B, failing)
            else Launched(case_id=case, arm=arm, block=slot.block, number=slot.number)
            for case in cases
            for arm in slot.arms
        ]

    earlier = go_on([both], lambda slot: launch(slot, 1), rules(1))
    assert [slot.number for slot in slots] == [1, 2]
    go_on([both], lambda slot: launch(slot, 0), rules(1), earlier=earlier)
    assert [(slot.number, slot.block) for slot in slots[2:]] == [(3, 1)]


def test_what_fails_again_counts_again_and_no_more() -> None:
    """The failures of the run before don't: each run may fail twice before a side is given up."""
    calls: list[Slot] = []

    def fail(slot: Slot) -> Sequence[Launched]:
        calls.append(slot)
        return [failed(slot, arm) for arm in slot.arms]

    earlier = go_on([group("x")], fail, rules(5))
    assert len(calls) == 4
    whole = go_on([group("x")], fail, rules(5), earlier=earlier)
    assert [one.number for one in whole] == [5, 6, 7, 8]
    assert len(calls) == 8


class WithoutControl(Machine):
    """Side A's second server dies each time; up together, nothing is told of the others then."""

    def launch(self, slot: Slot) -> Sequence[Launched]:
        done = super().launch(slot)
        return [failed(slot, Arm.A2)] if Arm.A2 in slot.arms else done


def test_a_control_that_fails_twice_is_launched_no_more() -> None:
    """Up together it took both sides with it, to the last block."""
    machine = WithoutControl()
    done = go_on([group("x", Arm.B, Arm.A2, together=True)], machine.launch, rules(8))
    assert machine.said == "xA+B+A21 xA2+B+A1 xA+B2 xB+A2 xA+B3 xB+A3"
    assert why_no_control(machine.slots[0].group, done) == "side A2: it died"


def test_in_turn_a_control_that_fails_twice_is_launched_no_more() -> None:
    machine = WithoutControl()
    go_on([group("x", Arm.B, Arm.A2)], machine.launch, rules(8))
    assert machine.said == "xA1 xB1 xA21 xA21 xB1 xA1 xA2 xB2 xB2 xA2"


def test_where_it_goes_on_a_control_that_was_given_up_stays_so() -> None:
    first, second = WithoutControl(), WithoutControl()
    x = group("x", Arm.B, Arm.A2, together=True)
    earlier = go_on([x], first.launch, rules(2))
    go_on([x], second.launch, rules(2), earlier=earlier)
    assert second.said == "xA+B1 xB+A1"


def test_a_control_that_failed_once_is_launched_again() -> None:
    first, second = Machine(), Machine()
    x = group("x", Arm.B, Arm.A2, together=True)

    def launch(slot: Slot) -> Sequence[Launched]:
        done = first.launch(slot)
        return [failed(slot, Arm.A2)] if slot.number == 1 else done

    earlier = go_on([x], launch, rules(1))
    go_on([x], second.launch, rules(1), earlier=earlier)
    assert second.said == "xA2+B+A1"
    assert why_no_control(x, earlier) == ""


STEP, PREFILL = "step_p50_ms", "ttft_p50_ms"


def lossy(number: int, arm: Arm, quantity: str) -> Launched:
    """A quantity of which B loses a fifth, and a prefill of which nobody can tell."""
    values = {STEP: 12.0 if arm is Arm.B else 10.0, OUTPUT: 80.0 if arm is Arm.B else 100.0}
    return Launched(
        case_id="x",
        arm=arm,
        block=(number + 3) // 4,
        number=number,
        values={quantity: values[quantity], PREFILL: 10 * math.exp(0.4 * math.sin(7 * number))},
    )


def of_two(quantity: str) -> Group:
    """One case of two quantities."""
    names = (quantity, PREFILL)
    subject = Subject(
        case_id="x",
        quantities=tuple(QUANTITIES[name] for name in names),
        deciding=frozenset(names),
    )
    return Group(name="x", subjects=(subject,))


@pytest.mark.parametrize(("quantity", "blocks"), [(STEP, 2), (OUTPUT, 8)])
def test_a_case_is_done_once_it_is_lost_by_something_that_is_its_own_cause(
    quantity: str, blocks: int
) -> None:
    """What output is lost by, the other figures have yet to say."""
    slots: list[Slot] = []

    def launch(slot: Slot) -> Sequence[Launched]:
        slots.append(slot)
        return [lossy(slot.number, arm, quantity) for arm in slot.arms]

    go_on([of_two(quantity)], launch, rules(8))
    assert {slot.block for slot in slots} == set(range(1, blocks + 1))


def test_a_case_with_other_answers_is_done_once_each_figure_has_an_interval() -> None:
    x = of_two(OUTPUT)
    arms = (Arm.A, Arm.B, Arm.B, Arm.A) * 2
    some = [lossy(number, arm, OUTPUT) for number, arm in enumerate(arms, start=1)]
    assert not is_settled(x, some, rules(8))
    assert is_settled(x, some, rules(8), wrong={"x"})
    assert not is_settled(x, some[:4], rules(8), wrong={"x"})
    assert not is_settled(x, some, rules(8), wrong={"y"})
