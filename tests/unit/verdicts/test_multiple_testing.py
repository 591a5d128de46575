"""One decision for each draw of a case, and what several launches say of it."""

import dataclasses

import pytest

from specreg.core.reasons import Reason
from specreg.verdicts.multiple_testing import confirm, follow
from specreg.verdicts.verdict import Comparison, Outcome, Verdict

SPEED = "throughput_tokens_per_s"
TIME = "tpot_p50_ms"
LENGTH = "acceptance_length_tokens"
RATE = "acceptance_rate_frac"
FIRST = "acceptance_pos1_frac"
THIRD = "acceptance_pos3_frac"
PASS = Outcome.PASS
REGRESSED = Outcome.REGRESSED
INCONCLUSIVE = Outcome.INCONCLUSIVE


def verdict(
    metric: str, outcome: Outcome, change_frac: float = 0.0, *, case_id: str = "case"
) -> Verdict:
    """A verdict on something that was compared, at a tolerance of 5 %."""
    return Verdict(
        case_id=case_id,
        metric=metric,
        outcome=outcome,
        value=100.0,
        comparison=Comparison(change_frac=change_frac, tolerance_frac=0.05),
    )


def outcomes_of(*verdicts: Verdict) -> list[Outcome]:
    return [verdict.outcome for verdict in follow(verdicts)]


@pytest.mark.parametrize("leader", [PASS, REGRESSED, INCONCLUSIVE, Outcome.IMPROVED])
@pytest.mark.parametrize("follower", [PASS, REGRESSED, INCONCLUSIVE])
def test_the_figures_of_a_draw_follow_the_one_that_decides(
    leader: Outcome, follower: Outcome
) -> None:
    """They are one draw, so that five figures aren't five chances to be red.

    What a loss has kept stays PASS, because it tells where the loss isn't.
    """
    decided = outcomes_of(
        verdict(RATE, follower),
        verdict(LENGTH, leader),
        verdict(FIRST, follower),
        verdict(SPEED, leader),
        verdict(TIME, follower),
    )
    is_kept = leader is REGRESSED and follower is PASS
    assert decided[1] is decided[3] is leader
    assert {decided[0], decided[2], decided[4]} == {PASS if is_kept else leader}


def test_what_improved_is_not_turned_into_a_loss() -> None:
    decided = outcomes_of(verdict(LENGTH, REGRESSED, -0.1), verdict(FIRST, Outcome.IMPROVED, 0.12))
    assert decided == [REGRESSED, Outcome.IMPROVED]


def test_each_case_and_each_draw_decides_for_itself() -> None:
    decided = outcomes_of(
        verdict(LENGTH, REGRESSED),
        verdict(RATE, PASS),
        verdict(SPEED, PASS),
        verdict(TIME, PASS),
        verdict(LENGTH, PASS, case_id="other"),
        verdict(RATE, REGRESSED, case_id="other"),
    )
    assert decided == [REGRESSED, PASS, PASS, PASS, PASS, PASS]


@pytest.mark.parametrize("outcome", [Outcome.INVALID, Outcome.NO_BASELINE, Outcome.NOT_COMPARABLE])
def test_what_was_not_compared_neither_leads_nor_follows(outcome: Outcome) -> None:
    assert outcomes_of(verdict(LENGTH, outcome), verdict(RATE, PASS)) == [outcome, PASS]
    assert outcomes_of(verdict(LENGTH, PASS), verdict(RATE, outcome)) == [PASS, outcome]


def test_a_figure_that_is_selected_alone_decides_for_itself() -> None:
    assert outcomes_of(verdict(RATE, REGRESSED)) == [REGRESSED]


@pytest.mark.parametrize(
    ("first_change_frac", "decided"),
    [
        pytest.param(-0.01, REGRESSED, id="the-first-is-kept"),
        pytest.param(-0.04, PASS, id="the-first-lost-too"),
    ],
)
def test_a_later_position_is_judged_by_itself_where_the_first_is_kept(
    first_change_frac: float, decided: Outcome
) -> None:
    """A drafter whose later heads broke loses less of its length than is tolerated."""
    *_, third = follow(
        [
            verdict(LENGTH, PASS, -0.04),
            verdict(FIRST, PASS, first_change_frac),
            verdict(THIRD, REGRESSED, -0.3),
        ]
    )
    assert third.outcome is decided


def test_a_figure_that_follows_says_which_one_decided_and_why() -> None:
    lost = dataclasses.replace(
        verdict(LENGTH, REGRESSED, -0.1), reason=Reason(text="by category: chat 2 -> 1.5")
    )
    _, rate = follow([lost, verdict(RATE, INCONCLUSIVE, -0.1)])
    assert rate.explanation == "decided by acceptance_length_tokens: by category: chat 2 -> 1.5"
    assert not rate.holds


def of_speed(outcome: Outcome, change_frac: float) -> Verdict:
    return verdict(SPEED, outcome, change_frac)


@pytest.mark.parametrize(
    ("second", "outcome", "code"),
    [
        (REGRESSED, REGRESSED, "loss_confirmed"),
        (PASS, INCONCLUSIVE, "fresh_launch_differs"),
        (INCONCLUSIVE, INCONCLUSIVE, "fresh_launch_differs"),
    ],
)
def test_acceptance_is_lost_if_a_fresh_launch_loses_it_too(
    second: Outcome, outcome: Outcome, code: str
) -> None:
    confirmed = confirm(verdict(LENGTH, REGRESSED, -0.2), verdict(LENGTH, second))
    assert confirmed.outcome is outcome
    assert confirmed.reason == Reason.of(code, first="a first launch had 99")


def test_the_share_of_a_first_launch_is_shown_in_percent() -> None:
    shares = [dataclasses.replace(verdict(RATE, REGRESSED, -0.2), value=0.4261)] * 2
    first = "a first launch had 42.61%"
    assert confirm(*shares).reason == Reason.of("loss_confirmed", first=first)
