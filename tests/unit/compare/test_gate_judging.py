"""The truth table of a quantity, and what an answer makes of them."""

import dataclasses
import math
from collections.abc import Sequence

import msgspec
import pytest

from specreg.compare.gate.answer import Answer, Decision, cause_of, decide
from specreg.compare.gate.judging import DIFFERS, Judged, Rules, Subject, judge_quantity
from specreg.compare.gate.launched import Arm, Launched
from specreg.compare.gate.quantities import ACCEPTANCE, OUTPUT, QUANTITIES, Cause
from specreg.compare.gate.report import sections
from specreg.compare.gate.texts import TextsJudged
from specreg.verdicts.judge import Outcome
from tests.unit import builders

ORDER = (Arm.A, Arm.B, Arm.B, Arm.A)
SUBJECT = Subject(case_id="case", quantities=(QUANTITIES[OUTPUT],), deciding=frozenset({OUTPUT}))
RULES = Rules(blocks=5, figures=3)
NOISE = (0.004, -0.003, 0.003, -0.004, -0.004, 0.003, -0.003, 0.004)
"""Of each launch, as logarithms; nothing of it is of a side or a drift."""


def launches(
    change_frac: float, *, noise: float = 1.0, blocks: int = 4, case_id: str = "case"
) -> list[Launched]:
    return [
        Launched(
            case_id=case_id,
            arm=arm,
            block=1 + place // 4,
            number=place + 1,
            values={
                OUTPUT: 100
                * (1 + change_frac if arm is Arm.B else 1)
                * math.exp(noise * NOISE[place % len(NOISE)])
            },
        )
        for place, arm in enumerate(ORDER * blocks)
    ]


def judge(some: Sequence[Launched], rules: Rules = RULES) -> Judged:
    return judge_quantity(QUANTITIES[OUTPUT], SUBJECT, some, rules)


def answer(
    some: Sequence[Launched], *texts: TextsJudged, subjects: Sequence[Subject] = (SUBJECT,)
) -> Decision:
    return decide(subjects, some, RULES, texts)


def texts(outcome: Outcome) -> TextsJudged:
    return TextsJudged(case_id="case", outcome=outcome, reason="token 4", asked=5)


@pytest.mark.parametrize(
    ("change_frac", "outcome"),
    [
        (0.0, Outcome.PASS),
        (-0.01, Outcome.PASS),
        (-0.1, Outcome.REGRESSED),
        (0.1, Outcome.IMPROVED),
        (-0.0295, Outcome.INCONCLUSIVE),  # close to the tolerance
    ],
)
def test_the_outcome_looks_at_the_whole_interval(change_frac: float, outcome: Outcome) -> None:
    assert judge(launches(change_frac)).outcome is outcome


def test_a_first_block_alone_decides_no_speed() -> None:
    assert judge(launches(-0.1, blocks=1)).outcome is Outcome.INCONCLUSIVE


def test_what_a_look_has_decided_stays_decided() -> None:
    later = [
        Launched(
            case_id="case",
            arm=one.arm,
            block=one.block + 4,
            number=one.number + 16,
            values=one.values,
        )
        for one in launches(-0.5, blocks=1)
    ]
    found = judge([*launches(0.0), *later])
    assert found.outcome is Outcome.PASS
    assert found.launches < 10


def test_a_loss_must_stand_among_all_figures() -> None:
    some = launches(-0.06, noise=3, blocks=2)
    assert judge(some, Rules(blocks=1, figures=1)).outcome is Outcome.REGRESSED
    assert judge(some, Rules(blocks=1, figures=10_000)).outcome is Outcome.INCONCLUSIVE


def test_what_is_undecided_says_about_what_it_would_take() -> None:
    found = judge(launches(0.0, noise=10))
    assert found.outcome is Outcome.INCONCLUSIVE
    assert found.needed_launches is not None
    assert found.needed_launches > found.launches


def test_as_many_launches_as_were_said_decide() -> None:
    """With the same spread and estimate; and with far fewer there would be none."""
    found = judge(launches(0.0, noise=3, blocks=2), Rules(blocks=20, figures=3))
    assert found.needed_launches is not None
    assert found.needed_launches > 4
    rules = Rules(blocks=20, figures=3)
    enough = judge(launches(0.0, noise=3, blocks=found.needed_launches // 2), rules)
    assert enough.outcome is Outcome.PASS
    assert enough.launches > found.needed_launches * 0.6


@pytest.mark.parametrize("change_frac", [0.034, -0.034])
def test_a_control_that_differs_either_way_says_so(change_frac: float) -> None:
    subject = dataclasses.replace(SUBJECT, other=Arm.A2)
    some = [
        msgspec.structs.replace(one, arm=Arm.A2 if one.arm is Arm.B else Arm.A)
        for one in launches(change_frac)
    ]
    found = judge_quantity(QUANTITIES[OUTPUT], subject, some, RULES)
    assert found.outcome in DIFFERS
    assert found.low_frac is not None
    assert found.low_frac < 0.03  # so B would have passed, were it that much faster


def test_what_no_launch_can_tell_is_invalid_at_once() -> None:
    subject = dataclasses.replace(SUBJECT, quantities=(QUANTITIES[ACCEPTANCE],))
    found = judge_quantity(QUANTITIES[ACCEPTANCE], subject, launches(0.0), RULES)
    assert found.outcome is Outcome.INVALID
    assert "0 prompts to compare by, 5 are needed" in found.reason


def test_a_side_that_fails_twice_is_invalid_and_says_why() -> None:
    broken = [
        Launched(case_id="case", arm=one.arm, block=one.block, number=one.number, invalid="it died")
        if one.arm is Arm.B
        else one
        for one in launches(0.0, blocks=1)
    ]
    found = judge(broken)
    assert (found.outcome, found.reason) == (Outcome.INVALID, "side B: it died")


def test_one_launch_that_failed_is_left_out() -> None:
    some = launches(0.0)
    some[1] = Launched(case_id="case", arm=Arm.B, block=1, number=2, invalid="it died")
    assert judge(some).outcome is Outcome.PASS


def died(arm: Arm, block: int, number: int) -> Launched:
    return Launched(case_id="case", arm=arm, block=block, number=number, invalid="it died")


def accepted(arm: Arm, number: int) -> Launched:
    record = builders.acceptance(builders.counts(0, 0, 10), prompts=6)
    block = 1 + (number - 1) // 2
    return Launched(case_id="case", arm=arm, block=block, number=number, acceptance=record)


@pytest.mark.parametrize("quantity", [ACCEPTANCE, OUTPUT])
def test_a_failure_of_each_side_in_the_first_block_decides_nothing(quantity: str) -> None:
    """Side by side the first sitting fails by A, the second by B."""
    subject = dataclasses.replace(SUBJECT, quantities=(QUANTITIES[quantity],))
    some = [died(Arm.A, 1, 1), died(Arm.B, 1, 2)]
    found = judge_quantity(QUANTITIES[quantity], subject, some, RULES)
    assert (found.outcome, found.reason) == (Outcome.INCONCLUSIVE, "side A has no launch yet")


def test_what_isnt_there_yet_is_no_reason_against_what_comes() -> None:
    """As in turn, where it was cut off after A's first launch."""
    subject = dataclasses.replace(SUBJECT, quantities=(QUANTITIES[ACCEPTANCE],))
    some = [accepted(Arm.A, 1)]
    found = judge_quantity(QUANTITIES[ACCEPTANCE], subject, some, RULES)
    assert (found.outcome, found.reason) == (Outcome.INCONCLUSIVE, "side B has no launch yet")
    failed = [died(Arm.A, 1, 1), died(Arm.B, 1, 2)]
    later = [accepted(arm, number) for number in range(3, 17) for arm in (Arm.A, Arm.B)]
    found = judge_quantity(QUANTITIES[ACCEPTANCE], subject, [*failed, *later], RULES)
    assert found.outcome is Outcome.PASS


def test_a_tolerance_may_be_another() -> None:
    rules = Rules(blocks=5, figures=3, tolerances={OUTPUT: 0.2})
    assert judge(launches(-0.1), rules).outcome is Outcome.PASS


def test_all_proven_is_an_upgrade_and_one_loss_is_none() -> None:
    assert answer(launches(0.0)).answer is Answer.UPGRADE
    lost = answer(launches(-0.1))
    assert lost.answer is Answer.DONT
    assert lost.reasons == ("case is worse by output: throughput_tokens_per_s -10.0%",)
    assert Answer.UPGRADE.exit_status == 0
    assert Answer.DONT.exit_status == 1


def test_dont_know_is_no_upgrade() -> None:
    found = answer(launches(0.0, noise=10))
    assert found.answer is Answer.UNDECIDED
    assert found.answer.exit_status == 10
    assert "type the same with --resume --launches " in found.takes[0]
    assert answer([]).answer is Answer.UNDECIDED


def test_a_changed_text_is_no_upgrade_however_fast() -> None:
    assert answer(launches(0.1), texts(Outcome.PASS)).answer is Answer.UPGRADE
    wrong = answer(launches(0.1), texts(Outcome.WRONG))
    assert (wrong.answer, wrong.reasons) == (Answer.DONT, ("case: token 4",))
    untold = answer(launches(0.1), texts(Outcome.INVALID))
    assert untold.answer is Answer.UNDECIDED
    assert untold.takes == ("case, the answers: --resume compares them once more",)


def test_a_control_that_differs_blames_the_machine_and_no_side() -> None:
    control = Subject(
        case_id="case",
        quantities=SUBJECT.quantities,
        deciding=SUBJECT.deciding,
        other=Arm.A2,
    )
    moved = [
        Launched(case_id="case", arm=Arm.A2, block=one.block, number=one.number, values=one.values)
        for one in launches(-0.1)
        if one.arm is Arm.B
    ]
    found = answer([*launches(-0.1), *moved], subjects=(SUBJECT, control))
    assert found.answer is Answer.UNDECIDED
    said = "side A differs from itself in throughput_tokens_per_s of case by -10.0%"
    assert found.reasons == (f"the machine moved: {said}",)
    assert found.judged[0].outcome is Outcome.INVALID


def test_a_loss_of_output_is_of_what_it_is_made_of() -> None:
    one = Judged(
        case_id="case",
        quantity=OUTPUT,
        cause=Cause.OUTPUT,
        outcome=Outcome.REGRESSED,
        tolerance_frac=0.03,
        parts_frac={"acceptance": -0.01, "the cost of a step": -0.09, "prefill": 0.0},
    )
    assert cause_of([one]) == "the cost of a step"
    assert cause_of([]) == ""


def test_only_what_decides_names_a_cause() -> None:
    """With more drafts a step takes longer and output is better all the same."""
    step = Judged(
        case_id="case",
        quantity="step_p50_ms",
        cause=Cause.STEP,
        outcome=Outcome.REGRESSED,
        decides=False,
        tolerance_frac=0.03,
    )
    output = Judged(
        case_id="case",
        quantity=OUTPUT,
        cause=Cause.OUTPUT,
        outcome=Outcome.IMPROVED,
        tolerance_frac=0.03,
    )
    assert cause_of([step, output]) == ""
    assert [one.heading for one in sections([step, output])] == ["case"]
    parts = {"acceptance": -0.02, "the cost of a step": 0.01}
    lost = msgspec.structs.replace(output, outcome=Outcome.REGRESSED, parts_frac=parts)
    assert cause_of([step, lost]) == "acceptance"


def test_answers_of_which_few_are_equal_pass_but_not_in_silence() -> None:
    said = "0.0% of 5 answers are equal; 5 part where B holds both tokens within 0.25 nats"
    none = TextsJudged(case_id="case", outcome=Outcome.PASS, reason=said, asked=5, equal_frac=0.0)
    found = answer(launches(0.0), none)
    assert (found.answer, found.reasons) == (Answer.UPGRADE, (f"case: {said}",))
    most = msgspec.structs.replace(none, equal_frac=0.8)
    assert answer(launches(0.0), most).reasons == ()


def test_answers_that_neednt_be_the_same_are_in_nobodys_way() -> None:
    assert answer(launches(0.0), texts(Outcome.NOT_COMPARABLE)).answer is Answer.UPGRADE


def test_what_is_launched_once_more_later_changes_no_look_that_was_made() -> None:
    """The second sitting failed; made up for after the fourth block, it counts there."""
    some = launches(0.0)
    first = judge([one for one in some if one.number != 2])
    late = msgspec.structs.replace(some[1], number=17, values={OUTPUT: 50.0})
    again = judge([*(one for one in some if one.number != 2), late])
    assert first.outcome is Outcome.PASS
    assert first.launches < 7
    assert (again.low_frac, again.launches) == (first.low_frac, first.launches)


def test_what_is_left_open_of_a_lost_case_says_so() -> None:
    """Here by its answers; of the case itself nothing is proven."""
    noisy = launches(0.0, noise=10)
    [kept] = answer(noisy, texts(Outcome.WRONG)).judged
    assert (kept.outcome, kept.reason) == (
        Outcome.INCONCLUSIVE,
        "left open, as the case is lost already",
    )
    [kept] = answer(noisy, texts(Outcome.PASS)).judged
    assert kept.reason == ""
