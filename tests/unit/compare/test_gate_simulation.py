"""Whole gates, simulated: how often the answer errs, and whether it names the right cause."""

from collections import Counter

import numpy as np
import pytest

from specreg.compare.gate.answer import Answer, Decision, cause_of
from specreg.compare.gate.simulation import Planted, Scene, simulated_decision
from specreg.verdicts.judge import Outcome

RUNS = 3
IDENTICAL_RUNS = 20


def decisions(  # noqa: PLR0913 - by name, each with a use of its own
    planted: Planted | None = None,
    *,
    repeating_frac: float = 0.5,
    drift_frac: float = 0.0,
    moved_frac: float = 0.0,
    launch_spread_frac: float = 0.01,
    machine_spread_frac: float = 0.0,
    together: bool = False,
    runs: int = RUNS,
) -> list[Decision]:
    return [
        simulated_decision(
            Scene(
                random=np.random.default_rng(seed),
                planted=planted or Planted(),
                repeating_frac=repeating_frac,
                drift_frac=drift_frac,
                moved_frac=moved_frac,
                launch_spread_frac=launch_spread_frac,
                machine_spread_frac=machine_spread_frac,
            ),
            together=together,
        )
        for seed in range(runs)
    ]


def outcomes(found: list[Decision]) -> Counter[Outcome]:
    return Counter(one.outcome for decision in found for one in decision.judged)


def answers(found: list[Decision]) -> set[Answer]:
    return {decision.answer for decision in found}


def causes(found: list[Decision]) -> set[str]:
    """Of each case of each gate."""
    return {
        cause_of([one for one in decision.judged if one.case_id == f"case-{number}"])
        for decision in found
        for number in range(3)
    }


@pytest.mark.parametrize("repeating_frac", [0.5, 1.0])
def test_identical_sides_get_no_verdict_but_pass(repeating_frac: float) -> None:
    found = decisions(repeating_frac=repeating_frac, runs=IDENTICAL_RUNS)
    assert set(outcomes(found)) == {Outcome.PASS}
    assert answers(found) == {Answer.UPGRADE}


def test_side_by_side_a_restless_machine_moves_no_verdict() -> None:
    found = decisions(machine_spread_frac=0.1, together=True, runs=IDENTICAL_RUNS)
    assert {one.outcome for d in found for one in d.judged if one.decides} == {Outcome.PASS}
    in_turn = decisions(machine_spread_frac=0.1)
    assert answers(in_turn) == {Answer.UNDECIDED}


def test_side_by_side_5_percent_of_a_step_are_found_on_a_restless_machine() -> None:
    found = decisions(Planted(step_frac=0.05), machine_spread_frac=0.1, together=True)
    assert answers(found) == {Answer.DONT}
    assert causes(found) == {"the cost of a step"}


def test_a_machine_that_tires_moves_no_verdict() -> None:
    found = decisions(drift_frac=0.003)
    assert set(outcomes(found)) == {Outcome.PASS}


def test_a_step_that_costs_5_percent_more_is_found_and_called_so() -> None:
    found = decisions(Planted(step_frac=0.05))
    assert answers(found) == {Answer.DONT}
    assert causes(found) == {"the cost of a step"}
    kept = {one.outcome for d in found for one in d.judged if one.quantity == "ttft_p50_ms"}
    assert kept == {Outcome.PASS}


@pytest.mark.parametrize("frac", [0.03, 0.049])  # of AL - 1; 0.049 is 3 % of AL
def test_a_lost_3_percent_of_acceptance_is_found_and_called_so(frac: float) -> None:
    found = decisions(Planted(acceptance_frac=frac))
    assert answers(found) == {Answer.DONT}
    assert causes(found) == {"acceptance"}
    steps = {one.outcome for d in found for one in d.judged if one.quantity == "step_p50_ms"}
    assert Outcome.REGRESSED not in steps


def test_a_slower_prefill_is_found_and_called_so() -> None:
    found = decisions(Planted(prefill_frac=0.1))
    assert answers(found) == {Answer.DONT}
    assert causes(found) == {"prefill"}


def test_a_slower_start_is_told_and_decides_nothing() -> None:
    found = decisions(Planted(start_up_frac=0.4))
    assert answers(found) == {Answer.UPGRADE}
    told = {one.outcome for d in found for one in d.judged if one.quantity == "ready_s"}
    assert told == {Outcome.REGRESSED}
    assert causes(found) == {""}


def test_a_control_that_differs_from_itself_leaves_speeds_undecided() -> None:
    found = decisions(moved_frac=0.1)
    assert answers(found) == {Answer.UNDECIDED}
    assert all("the machine moved" in decision.reasons[0] for decision in found)
    speeds = {one.outcome for d in found for one in d.judged if one.quantity == "step_p50_ms"}
    assert speeds == {Outcome.INVALID}


def test_a_noisy_machine_is_undecided_and_says_what_it_takes() -> None:
    found = decisions(launch_spread_frac=0.04)
    assert answers(found) == {Answer.UNDECIDED}
    assert all("type the same with --resume --launches " in d.takes[0] for d in found)
    assert Outcome.REGRESSED not in outcomes(found)
