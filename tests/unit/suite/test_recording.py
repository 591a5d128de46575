"""Recording: which cases want more launches, and what a further launch replays."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from specreg.acceptance.record import StepCounts
from specreg.matrix.case import Case
from specreg.runs.goals import NightGoal
from specreg.runs.ledger import Ledger, LedgerEntry, MeasuredLaunch
from specreg.runs.plan import NightStep, next_step
from specreg.stats.intervals import Look
from specreg.suite.context import RunContext
from specreg.suite.night import night_settings
from tests.unit import builders
from tests.unit.builders import runs
from tests.unit.builders.runs import MEASURED, SPEED
from tests.unit.builders.steps import Played, failed

ONE = builders.with_concurrency(1)
OTHER = builders.with_concurrency(4)
STEADY = (100.0,) * 12
UNSTEADY = (100.0, 101.0, 99.0) * 4


def recording(context: RunContext) -> tuple[NightGoal, Ledger]:
    """The night of a run that records the speed of all cases, and its empty ledger."""
    names = {case.id: [SPEED.name] for case in context.tier.cases}
    run = runs.run(context, runs.selection(context, names))
    return run.night, run.ledger


def launch_of(case: Case, number: int, speeds: Sequence[float]) -> LedgerEntry:
    """A launch of a case; it fails if no speed is left for it."""
    if number > len(speeds):
        return failed(case, number)
    measurement = builders.measurement({SPEED.name: speeds[number - 1]}, case=case)
    return MeasuredLaunch(case_id=case.id, number=number, measurement=measurement, lasted_s=1.0)


@pytest.mark.parametrize(
    ("first", "second", "minutes", "further_launches"),
    [
        pytest.param(STEADY, STEADY, 1.0, 0, id="three-decide"),
        pytest.param(UNSTEADY, UNSTEADY, 1.0, 1, id="more-decide"),
        pytest.param(UNSTEADY[:3], UNSTEADY[:3], 1.0, 1, id="no-more-start"),
        # Until eight degrees of freedom are known, the spread itself is a guess.
        pytest.param((100.0, 200.0, 50.0) * 4, STEADY, 1.0, 2, id="none-would"),
        pytest.param(UNSTEADY, UNSTEADY, 0.0, 0, id="no-time"),
    ],
)
def test_more_launches_are_measured_while_they_let_later_runs_judge_more(
    tmp_path: Path,
    first: Sequence[float],
    second: Sequence[float],
    minutes: float,
    further_launches: int,
) -> None:
    context = runs.context(
        tmp_path, cases=(ONE, OTHER), update_baselines=True, record_minutes=minutes
    )
    night, ledger = recording(context)
    speeds = {ONE.id: first, OTHER.id: second}

    def result_of(step: NightStep) -> list[LedgerEntry]:
        return [launch_of(goal.case, step.number, speeds[goal.case.id]) for goal in step.goals]

    played = Played(night, result_of, ledger)
    played.play()

    further = [step.number for step in played.steps if step.is_further]
    assert further == [number for number in range(4, 4 + further_launches) for _ in range(2)]


def test_a_run_whose_launches_the_user_counts_takes_no_more(tmp_path: Path) -> None:
    context = runs.context(tmp_path, cases=(ONE,), update_baselines=True, launches=2)
    night, ledger = recording(context)

    played = Played(night, lambda step: [launch_of(ONE, step.number, UNSTEADY)], ledger)
    played.play()

    assert [step.number for step in played.steps] == [1, 2]
    assert next_step(ledger, night) is None


@pytest.mark.parametrize(
    ("second", "is_enough"),
    [
        pytest.param(runs.COUNTS, True, id="repeats-the-first"),
        pytest.param(builders.counts(9, 0, 5, 6), False, id="differs"),
    ],
)
def test_a_further_recorded_launch_replays_all_prompts_unless_it_repeats(
    tmp_path: Path, *, second: StepCounts, is_enough: bool
) -> None:
    """The prompts of the extension would repeat as well."""
    context = runs.context(tmp_path, update_baselines=True)
    ledger = Ledger(tmp_path / "ledger.jsonl")
    settings = night_settings(context, runs.everything(context), ledger)
    ledger.add(MeasuredLaunch(case_id=builders.CASE.id, number=1, measurement=MEASURED))

    first_rule, second_rule = (settings.enough_of(builders.CASE, number) for number in (1, 2))

    assert first_rule is not None
    assert second_rule is not None
    assert not first_rule(MEASURED.acceptance, Look.FULL)
    acceptance = builders.acceptance(second, prompts=3)
    assert second_rule(acceptance, Look.FULL) == is_enough
    without_prompts = builders.acceptance(second, prompts=0)
    assert second_rule(without_prompts, Look.FULL), "more prompts say no more about a sum"
