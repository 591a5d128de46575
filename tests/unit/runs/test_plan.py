"""What a night does next, from what its ledger has. Nothing starts here."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import pytest

from specreg.correctness.checks import LOSSLESS
from specreg.matrix.case import Case
from specreg.runs.goals import CaseGoal, CaseLaunch, Further, NightGoal, Wanted
from specreg.runs.ledger import Ledger, LedgerEntry
from specreg.runs.plan import NightStep, next_step
from tests.unit import builders
from tests.unit.builders.steps import Played, empty_ledger, failed, measured, succeed, timed

PLAIN = builders.PLAIN_CASE
DRAFTING, EAGLE, NGRAM = (
    dataclasses.replace(builders.on_server(method=name), control=builders.PLAIN_SPEC)
    for name in ("draft_model", "eagle3", "ngram")
)
EAGLE_4 = builders.with_concurrency(4, EAGLE)
NGRAM_4 = builders.with_concurrency(4, NGRAM)
ALL = (PLAIN, DRAFTING, EAGLE, NGRAM)


def night(goals: Sequence[CaseGoal], *, launches: int = 1, side_by_side: bool = True) -> NightGoal:
    """A night of these cases."""
    planned = NightGoal.of(goals, launches=launches)
    return dataclasses.replace(planned, side_by_side=side_by_side)


def wanting(*cases: Case, launches: int) -> Wanted:
    """These cases want launches until they have one with this number."""

    def wanted(ledger: Ledger, group: Sequence[Case]) -> list[Case]:
        def has_all(case: Case) -> bool:
            numbers = [launch.number for launch in ledger.launches if launch.case_id == case.id]
            return max(numbers, default=0) >= launches

        return [case for case in group if case in cases and not has_all(case)]

    return wanted


def test_all_methods_and_their_control_are_measured_in_one_step() -> None:
    played = Played(night(timed(*ALL)))

    assert played.play() == ["1: none-c2+draft_model-c2+eagle3-c2+ngram-c2"]


def test_cases_of_other_loads_follow_on_the_same_servers() -> None:
    played = Played(night(timed(EAGLE, EAGLE_4, NGRAM, NGRAM_4)))

    assert played.play() == ["1: eagle3-c2+ngram-c2", "1: eagle3-c4+ngram-c4"]
    first, second = played.steps
    assert {launch.server for launch in second.launches} <= first.keeps


def test_acceptance_alone_is_measured_without_other_cases() -> None:
    goals = [CaseGoal(case=DRAFTING), CaseGoal(case=EAGLE)]

    assert Played(night(goals)).play() == ["1: draft_model-c2", "1: eagle3-c2"]


def test_cases_of_which_one_needs_power_are_measured_apart() -> None:
    needs_power = CaseGoal(case=EAGLE, speed=True, power=True)
    goals = [*timed(DRAFTING), needs_power, *timed(NGRAM)]

    assert Played(night(goals)).play() == ["1: draft_model-c2+ngram-c2", "1: eagle3-c2"]


def test_each_server_is_launched_once_before_any_is_launched_again() -> None:
    played = Played(night(timed(EAGLE, NGRAM), launches=2, side_by_side=False))

    assert played.play() == ["1: eagle3-c2", "1: ngram-c2", "2: eagle3-c2", "2: ngram-c2"]


def test_cases_are_checked_on_the_first_launch_while_their_servers_run() -> None:
    played = Played(night(timed(EAGLE, NGRAM, checks=[LOSSLESS]), launches=2))

    assert played.play() == [
        "1: eagle3-c2+ngram-c2",
        "1: eagle3-c2 lossless_frac",
        "1: ngram-c2 lossless_frac",
        "2: eagle3-c2+ngram-c2",
    ]
    measuring, checking, *_ = played.steps
    ngram_server = CaseLaunch.of(NGRAM, 1).server
    assert ngram_server in measuring.keeps & checking.keeps


def test_a_case_of_which_only_a_check_is_wanted_is_not_measured() -> None:
    goal = CaseGoal(case=EAGLE, is_measured=False, checks=(LOSSLESS,))

    assert Played(night([goal])).play() == ["1: eagle3-c2 lossless_frac"]


def beside_failing(step: NightStep, case: Case, *, died: bool) -> Iterator[LedgerEntry]:
    """A case fails beside others: it alone if it didn't start, and all if it died."""
    failure = failed(case, step.number, died=died)
    yield dataclasses.replace(failure, is_beside_others=True)
    if not died:
        others = tuple(goal for goal in step.goals if goal.case != case)
        yield from succeed(dataclasses.replace(step, goals=others))


def test_a_case_whose_server_did_not_start_beside_others_is_measured_alone() -> None:
    def result_of(step: NightStep) -> Iterator[LedgerEntry]:
        return beside_failing(step, EAGLE, died=False) if len(step.goals) > 1 else succeed(step)

    assert Played(night(timed(*ALL)), result_of).play() == [
        "1: none-c2+draft_model-c2+eagle3-c2+ngram-c2",
        "1: eagle3-c2",
    ]


def test_where_a_server_dies_beside_others_each_case_is_measured_alone() -> None:
    def result_of(step: NightStep) -> Iterator[LedgerEntry]:
        return beside_failing(step, PLAIN, died=True) if len(step.goals) > 1 else succeed(step)

    assert Played(night(timed(*ALL)), result_of).play() == [
        "1: none-c2+draft_model-c2+eagle3-c2+ngram-c2",
        *("1: none-c2", "1: draft_model-c2", "1: eagle3-c2", "1: ngram-c2"),
    ]


@pytest.mark.parametrize(
    ("died", "attempts", "steps"),
    [
        pytest.param(True, 2, 2, id="a-death"),
        pytest.param(True, 1, 1, id="a-server-of-others"),
        pytest.param(False, 2, 1, id="another-error"),
    ],
)
@pytest.mark.parametrize("check", ["", LOSSLESS])
def test_what_fails_is_tried_again_only_after_a_death(
    check: str, *, died: bool, attempts: int, steps: int
) -> None:
    goal = CaseGoal(case=EAGLE, is_measured=not check, checks=(check,) if check else ())
    goal_night = dataclasses.replace(night([goal]), attempts=attempts)

    played = Played(goal_night, lambda _: [failed(EAGLE, 1, check, died=died)])

    assert len(played.play()) == steps


def test_what_a_group_lost_is_confirmed_before_the_next_group() -> None:
    goals = timed(EAGLE, EAGLE_4, NGRAM)
    confirming = dataclasses.replace(
        night(goals, side_by_side=False), unconfirmed=wanting(EAGLE, EAGLE_4, launches=2)
    )

    played = Played(confirming)

    assert played.play() == [
        *("1: eagle3-c2", "1: eagle3-c4"),
        *("2: eagle3-c2", "2: eagle3-c4"),
        "1: ngram-c2",
    ]
    first, second = [step for step in played.steps if step.is_further]
    server = CaseLaunch.of(EAGLE, 2).server
    assert server in first.keeps, "the second case is measured on the same launch"
    assert CaseLaunch.of(EAGLE, 1).server not in second.keeps


def test_speeds_take_further_launches_once_everything_is_measured() -> None:
    goals = timed(EAGLE, NGRAM)
    further = Further(wanted=wanting(EAGLE, NGRAM, launches=3), last_number=4)

    played = Played(dataclasses.replace(night(goals), further=further))

    assert played.play() == [
        "1: eagle3-c2+ngram-c2",
        *("2: eagle3-c2", "2: ngram-c2", "3: eagle3-c2", "3: ngram-c2"),
    ]


def test_a_further_launch_whose_server_died_is_made_once_more() -> None:
    deaths = iter([True, False])

    def result_of(step: NightStep) -> Iterator[LedgerEntry]:
        if step.is_further and next(deaths):
            return iter([failed(EAGLE, 2, died=True)])
        return succeed(step)

    confirming = dataclasses.replace(night(timed(EAGLE)), unconfirmed=wanting(EAGLE, launches=2))

    assert Played(confirming, result_of).play() == ["1: eagle3-c2", "2: eagle3-c2", "2: eagle3-c2"]


def recording(within_s: float, *cases: Case, launches: int = 12) -> NightGoal:
    """A recording whose cases want so many launches, and one of which lasts a second."""
    further = Further(
        wanted=wanting(*cases, launches=launches), within_s=within_s, last_number=launches
    )
    return dataclasses.replace(night(timed(*cases), side_by_side=False), further=further)


def test_servers_share_the_time_for_further_launches() -> None:
    played = Played(recording(6.5, EAGLE, NGRAM))

    steps = played.play()

    assert steps.count("2: eagle3-c2") == 1
    numbers = {case.id: 0 for case in (EAGLE, NGRAM)}
    for step in played.steps:
        numbers[step.goals[0].case.id] = step.number
    assert numbers == {EAGLE.id: 4, NGRAM.id: 4}, "3 s of 3.25 each, and then 3 s of 3.5"


def test_a_server_gets_its_part_of_what_the_others_left() -> None:
    further = Further(wanted=wanting(NGRAM, launches=12), within_s=6.5, last_number=12)
    goals = dataclasses.replace(night(timed(EAGLE, NGRAM), side_by_side=False), further=further)

    assert Played(goals).play()[-1] == "7: ngram-c2"


@pytest.mark.parametrize("within_s", [0.0, 0.5])
def test_no_further_launch_is_begun_that_would_take_too_long(within_s: float) -> None:
    assert Played(recording(within_s, EAGLE)).play() == ["1: eagle3-c2"]


def test_a_launch_that_was_begun_is_ended_for_all_of_its_cases() -> None:
    played = Played(recording(2.5, EAGLE, EAGLE_4))

    assert played.play() == ["1: eagle3-c2", "1: eagle3-c4", "2: eagle3-c2", "2: eagle3-c4"]


def test_a_server_that_dies_slowly_uses_up_the_time_for_further_launches() -> None:
    def result_of(step: NightStep) -> Iterable[LedgerEntry]:
        if step.is_further and step.goals[0].case == EAGLE_4:
            return [failed(EAGLE_4, step.number, died=True, lasted_s=2.0)]
        return succeed(step)

    played = Played(recording(12.0, EAGLE, EAGLE_4), result_of)

    assert played.play() == [
        *("1: eagle3-c2", "1: eagle3-c4"),
        *("2: eagle3-c2", "2: eagle3-c4", "2: eagle3-c4"),
        *("3: eagle3-c2", "3: eagle3-c4", "3: eagle3-c4"),
    ], "two launches of 5 s each, and 2 s are left"


def test_no_further_launch_follows_one_that_failed_for_all_cases() -> None:
    def result_of(step: NightStep) -> Iterator[LedgerEntry]:
        return iter([failed(EAGLE, step.number)]) if step.number == 3 else succeed(step)

    played = Played(recording(60.0, EAGLE), result_of)

    assert played.play() == ["1: eagle3-c2", "2: eagle3-c2", "3: eagle3-c2"]


def test_a_part_of_a_night_launches_one_server_alone() -> None:
    goals = timed(EAGLE, EAGLE_4, NGRAM, checks=[LOSSLESS])

    part = night(goals, launches=2, side_by_side=False).part(NGRAM)

    assert Played(part).play() == ["1: ngram-c2", "1: ngram-c2 lossless_frac", "2: ngram-c2"]


def test_a_night_goes_as_far_as_the_stage_of_a_case() -> None:
    whole = night(timed(EAGLE, NGRAM), launches=2, side_by_side=False)

    assert Played(whole.until(NGRAM, 1)).play() == ["1: eagle3-c2", "1: ngram-c2"]


def test_a_night_that_pauses_measures_later_cases_beside_the_present_one() -> None:
    whole = night(timed(EAGLE, NGRAM, NGRAM_4))

    played = Played(whole.until(EAGLE, 1))

    assert played.play() == ["1: eagle3-c2+ngram-c2"]
    assert CaseLaunch.of(NGRAM, 1).server in played.steps[0].keeps, "its other load comes next"


def test_a_night_that_was_cut_off_anywhere_goes_on_where_it_was() -> None:
    goals = timed(EAGLE, EAGLE_4, NGRAM, NGRAM_4, checks=[LOSSLESS])
    whole_night = dataclasses.replace(
        night(goals, launches=2),
        unconfirmed=wanting(EAGLE, launches=3),
        further=Further(wanted=wanting(NGRAM_4, launches=4), last_number=6),
    )
    whole = Played(whole_night)
    steps = whole.play()
    assert len(steps) > 8

    for cut in range(len(steps) + 1):
        ledger = empty_ledger()
        for entries in whole.entries[:cut]:
            for entry in entries:
                ledger.add(entry)
        assert Played(whole_night, ledger=ledger).play() == steps[cut:]


def test_a_case_that_was_measured_beside_others_is_left_out_after_a_resume() -> None:
    ledger = empty_ledger()
    ledger.add(measured(EAGLE, 1))

    assert Played(night(timed(*ALL)), ledger=ledger).play() == [
        "1: none-c2+draft_model-c2+ngram-c2"
    ]


def test_a_night_without_cases_is_done() -> None:
    assert next_step(empty_ledger(), night([])) is None
