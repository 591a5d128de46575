"""The truth table of a metric, and what an answer makes of them."""

import dataclasses
from collections.abc import Sequence

import pytest

from specreg.compare.judging import (
    Answer,
    Decision,
    Rules,
    SideLaunch,
    causes_of,
    decide,
    is_settled,
    judge_pair,
)
from specreg.compare.pairs import ACCEPTANCE, OUTPUT, STEP, Group, Pair, Side
from specreg.verdicts.judge import Outcome, Verdict
from tests.unit.compare.launches import PAIR, accepted, failed, launch, launches

RULES = Rules(blocks=5, figures=3)


def judge(
    some: Sequence[SideLaunch],
    rules: Rules = RULES,
    metric: str = OUTPUT,
    other: Side = Side.B,
) -> Verdict:
    return {one.metric: one for one in judge_pair(PAIR, some, rules, other)}[metric]


def answer(some: Sequence[SideLaunch], *answers: Verdict, with_control: bool = False) -> Decision:
    group = Group(pairs=(PAIR,), with_control=with_control, together=True)
    return decide([group], some, RULES, answers)


def answers(outcome: Outcome, reason: str = "token 4", equal_frac: float = 1.0) -> Verdict:
    return Verdict(
        case_id=PAIR.id, metric="lossless_frac", outcome=outcome, reason=reason, value=equal_frac
    )


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
    found = judge(launches(change_frac))
    assert found.outcome is outcome
    assert found.change_frac == pytest.approx(change_frac, abs=0.002)
    assert found.value == pytest.approx(100 * (1 + change_frac), rel=0.01)
    assert found.expected == pytest.approx(100, rel=0.01)


def test_what_hits_both_sides_alike_is_no_change_and_no_noise() -> None:
    """A machine that is half as fast for some launches."""
    some = [
        launch(side, number, tokens_per_s=100.0 / (1 + number % 2))
        for number in range(1, 9)
        for side in (Side.A, Side.B)
    ]
    found = judge(some)
    assert (found.outcome, found.change_frac) == (Outcome.PASS, 0.0)


def test_a_first_block_alone_decides_no_speed() -> None:
    assert judge(launches(-0.1, blocks=1)).outcome is Outcome.INCONCLUSIVE


def test_what_a_look_has_decided_stays_decided() -> None:
    later = [dataclasses.replace(one, number=one.number + 8) for one in launches(-0.5, blocks=1)]
    found = judge([*launches(0.0), *later])
    assert found.outcome is Outcome.PASS
    assert found.launches < 8


def test_a_loss_must_stand_among_all_figures() -> None:
    some = launches(-0.1, noise=2, blocks=2)
    assert judge(some, Rules(blocks=1, figures=1)).outcome is Outcome.REGRESSED
    assert judge(some, Rules(blocks=1, figures=10_000)).outcome is Outcome.INCONCLUSIVE


def test_as_many_launches_as_were_said_decide() -> None:
    """With the same spread and estimate; and with far fewer there would be none."""
    rules = Rules(blocks=20, figures=3)
    found = judge(launches(0.0, noise=5, blocks=2), rules)
    assert found.outcome is Outcome.INCONCLUSIVE
    assert found.needed_launches is not None
    assert found.needed_launches > 4
    enough = judge(launches(0.0, noise=5, blocks=found.needed_launches // 2), rules)
    assert enough.outcome is Outcome.PASS
    assert enough.launches > found.needed_launches * 0.6


@pytest.mark.parametrize("change_frac", [0.034, -0.034])
def test_a_control_that_differs_either_way_says_so(change_frac: float) -> None:
    found = judge(launches(change_frac, other=Side.A2), other=Side.A2)
    assert found.outcome in {Outcome.IMPROVED, Outcome.REGRESSED}
    assert found.low_frac is not None
    assert found.low_frac < 0.03  # so B would have passed, were it that much faster


@pytest.mark.parametrize(
    ("b", "outcome"),
    [((2, 3, 4, 1), Outcome.PASS), ((4, 3, 2, 1), Outcome.REGRESSED)],
)
def test_acceptance_is_compared_prompt_by_prompt(b: tuple[int, ...], outcome: Outcome) -> None:
    some = [launch(Side.A, 1), launch(Side.B, 1, acceptance=accepted(*b))]
    assert judge(some, metric=ACCEPTANCE).outcome is outcome


def test_what_no_launch_can_tell_is_invalid_at_once() -> None:
    few = accepted().only({"chat-0", "chat-1"})
    some = [launch(side, 1, acceptance=few) for side in (Side.A, Side.B)]
    found = judge(some, metric=ACCEPTANCE)
    assert found.outcome is Outcome.INVALID
    assert "2 prompts to compare by, 5 are needed" in found.reason


def test_a_side_that_fails_twice_is_invalid_and_says_why() -> None:
    some = [launch(Side.A, 1), failed(Side.B, 1), launch(Side.A, 2), failed(Side.B, 2)]
    found = judge(some)
    assert (found.outcome, found.reason) == (Outcome.INVALID, "side B: it died")


def test_one_launch_that_failed_is_left_out() -> None:
    some = [
        failed(Side.B, 1) if (one.side, one.number) == (Side.B, 1) else one for one in launches()
    ]
    assert judge(some).outcome is Outcome.PASS


@pytest.mark.parametrize("metric", [OUTPUT, ACCEPTANCE])
def test_a_failure_of_each_side_in_the_first_block_decides_nothing(metric: str) -> None:
    found = judge([failed(Side.A, 1), failed(Side.B, 2)], metric=metric)
    assert (found.outcome, found.reason) == (Outcome.INCONCLUSIVE, "side A has no launch yet")


def test_what_is_launched_once_more_later_changes_no_look_that_was_made() -> None:
    """A first launch failed; made up for after the fourth block, it counts there."""
    some = [one for one in launches() if one.number != 1]
    late = [launch(side, 1, tokens_per_s=50.0 + 50 * (side is Side.A)) for side in (Side.A, Side.B)]
    first, again = judge(some), judge([*some, *late])
    assert first.outcome is Outcome.PASS
    assert (again.low_frac, again.launches) == (first.low_frac, first.launches)


def test_a_tolerance_may_be_another() -> None:
    rules = Rules(blocks=5, figures=3, tolerances={OUTPUT: 0.2})
    assert judge(launches(-0.1), rules).outcome is Outcome.PASS


def test_what_does_not_decide_is_measured_only() -> None:
    drafts_more = dataclasses.replace(PAIR.b.server, draft_tokens=5)
    pair = Pair(a=PAIR.a, b=dataclasses.replace(PAIR.b, server=drafts_more))
    some = [dataclasses.replace(one, pair_id=pair.id) for one in launches(-0.1)]
    found = {one.metric: one for one in judge_pair(pair, some, RULES)}
    assert found[OUTPUT].outcome is Outcome.REGRESSED
    assert (found[STEP].outcome, found[STEP].reason) == (Outcome.MEASURED, "")
    assert found[STEP].change_frac == 0.0


def test_all_proven_is_an_upgrade_and_one_loss_is_none() -> None:
    assert answer(launches()).answer is Answer.UPGRADE
    lost = answer(launches(-0.1))
    assert lost.answer is Answer.DONT
    said = f"{PAIR.id} is worse by prefill and the rest: throughput_tokens_per_s -10.0%"
    assert lost.reasons == (said,)
    assert (answer(launches()).exit_status, lost.exit_status) == (0, 1)


def test_dont_know_is_no_upgrade() -> None:
    found = answer(launches(noise=10))
    assert found.answer is Answer.UNDECIDED
    assert found.exit_status == 10
    assert "type the same with --resume --launches " in found.takes[0]
    assert answer([]).answer is Answer.UNDECIDED


def test_changed_answers_are_no_upgrade_however_fast() -> None:
    assert answer(launches(0.1), answers(Outcome.PASS)).answer is Answer.UPGRADE
    assert answer(launches(), answers(Outcome.NOT_COMPARABLE)).answer is Answer.UPGRADE
    wrong = answer(launches(0.1), answers(Outcome.WRONG))
    assert (wrong.answer, wrong.reasons) == (Answer.DONT, (f"{PAIR.id}: token 4",))
    unknown = answer(launches(0.1), answers(Outcome.INVALID))
    assert unknown.answer is Answer.UNDECIDED
    assert unknown.takes == (f"{PAIR.id}: token 4 (lossless_frac)",)


def test_answers_of_which_few_are_equal_pass_but_not_in_silence() -> None:
    said = "0.0% of 5 answers are equal; 5 part where B holds both tokens within 0.25 nats"
    found = answer(launches(), answers(Outcome.PASS, said, 0.0))
    assert (found.answer, found.reasons) == (Answer.UPGRADE, (f"{PAIR.id}: {said}",))
    assert answer(launches(), answers(Outcome.PASS, said, 0.8)).reasons == ()


def test_a_control_that_differs_blames_the_machine_and_no_side() -> None:
    moved = [one for one in launches(-0.1, other=Side.A2) if one.side is Side.A2]
    found = answer([*launches(-0.1), *moved], with_control=True)
    assert found.answer is Answer.UNDECIDED
    said = f"side A differs from itself in {OUTPUT} of {PAIR.id} by -10.0%"
    assert found.reasons == (f"the machine moved: {said}",)
    assert {one.metric: one.outcome for one in found.verdicts}[OUTPUT] is Outcome.INVALID


def test_a_loss_of_output_is_of_what_it_is_made_of() -> None:
    some = [
        launch(
            side,
            number,
            tokens_per_s=91.0 if side is Side.B else 100.0,
            step_ms=11.0 if side is Side.B else 10.0,
        )
        for number in range(1, 9)
        for side in (Side.A, Side.B)
    ]
    found = judge(some)
    assert found.outcome is Outcome.REGRESSED
    assert found.cause.split(" by ")[1].startswith("the cost of a step, ")
    assert causes_of([found]) == "the cost of a step"
    assert causes_of(judge_pair(PAIR, some, RULES)) == "the cost of a step"
    assert causes_of([]) == ""


def test_a_lost_pair_is_settled_once_all_has_an_interval() -> None:
    lost = Verdict(case_id="c", metric="step_p50_ms", outcome=Outcome.REGRESSED)
    open_yet = Verdict(case_id="c", metric=OUTPUT, outcome=Outcome.INCONCLUSIVE)
    told = dataclasses.replace(open_yet, low_frac=-0.1)
    assert not is_settled([lost, open_yet])
    assert is_settled([lost, told])
    assert not is_settled([told])
    assert is_settled([told], lost=True)
