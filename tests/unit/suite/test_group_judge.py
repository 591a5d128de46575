"""Judging the cases that share a server: what waits, what fails, and what changes at the end."""

from pathlib import Path

from specreg.acceptance.record import StepCounts
from specreg.core.reasons import Reason
from specreg.correctness.checks import LOSSLESS
from specreg.suite.group_judge import JUDGED_LATER
from specreg.verdicts.verdict import Outcome
from tests.unit import builders
from tests.unit.builders import runs
from tests.unit.builders.runs import LENGTH, MEASURED, SPEED


def test_a_baseline_that_cannot_be_read_does_not_hinder_its_replacement(tmp_path: Path) -> None:
    context = runs.context(tmp_path, update_baselines=True, launches=1)
    path = context.store.path(builders.CASE.id)
    path.parent.mkdir(parents=True)
    path.write_text("{")

    verdict = runs.judge(runs.measured_run(context, MEASURED), LENGTH)

    assert (verdict.outcome, verdict.value) == (Outcome.MEASURED, 2.5)


def test_a_speed_waits_for_all_launches_and_acceptance_does_not(tmp_path: Path) -> None:
    launch, _ = runs.record(runs.context(tmp_path))
    context = runs.context(tmp_path, launches=2)
    selected = runs.selection(context, {builders.CASE.id: [LENGTH.name, SPEED.name]})
    run = runs.measured_run(context, launch, launch, selected=selected)

    verdicts = [
        runs.judge(run, LENGTH, 1),
        runs.judge(run, SPEED, 1),
        runs.judge(run, LENGTH, 2),
        runs.judge(run, SPEED, 2),
    ]

    outcomes = [verdict.outcome for verdict in verdicts]
    # Nobody knows on the first night how nights differ.
    assert outcomes == [Outcome.PASS, Outcome.MEASURED, Outcome.PASS, Outcome.INCONCLUSIVE]
    assert [verdict.launches for verdict in verdicts] == [1, 1, 1, 2]


def test_a_case_of_which_only_a_check_is_selected_is_not_measured(tmp_path: Path) -> None:
    case = builders.with_concurrency(4)
    context = runs.context(tmp_path, cases=(builders.CASE, case))
    names = {builders.CASE.id: [LENGTH.name], case.id: [LOSSLESS]}
    run = runs.measured_run(context, MEASURED, selected=runs.selection(context, names))

    run.judge.judge(LENGTH, builders.CASE, runs.servers())

    assert [launch.measurement for launch in run.cases.ledger.measured] == [MEASURED]


def test_a_run_that_was_cut_short_leaves_a_loss_unproven(tmp_path: Path) -> None:
    """No fresh launch followed, so no launch confirmed it."""
    context = runs.context(tmp_path)
    runs.record(context)
    lost = builders.measurement({SPEED.name: 50.0, LENGTH.name: 2.5}, of=runs.COUNTS)
    run = runs.measured_run(context, lost)

    runs.judge(run, LENGTH)
    before = [verdict.metric for verdict in run.judge.verdicts]
    run.judge.conclude()

    assert SPEED.name not in before, "speeds are judged once everything is measured"
    outcomes = {verdict.metric: verdict.outcome for verdict in run.judge.verdicts}
    assert outcomes[SPEED.name] is Outcome.INCONCLUSIVE


def test_a_part_of_a_run_says_that_speeds_are_judged_later(tmp_path: Path) -> None:
    launch, _ = runs.record(runs.context(tmp_path))
    part = runs.context(tmp_path, shard="1/2")
    run = runs.measured_run(part, launch)

    verdict = runs.judge(run, SPEED)

    assert (verdict.outcome, verdict.value) == (Outcome.MEASURED, 100.0)
    assert verdict.has_code(JUDGED_LATER)
    assert runs.judge(run, LENGTH).outcome is Outcome.PASS


def test_a_measurement_that_cannot_be_calculated_with_names_its_ledger(tmp_path: Path) -> None:
    context = runs.context(tmp_path)
    runs.record(context)
    impossible = StepCounts(steps=4, accepted=-6, proposed=12, position_counts=(-2, -2, -2))
    resumed = builders.measurement({LENGTH.name: 1.5, SPEED.name: 100.0}, of=impossible)
    run = runs.measured_run(context, resumed)

    length = runs.judge(run, LENGTH)
    speed = runs.judge(run, SPEED)

    assert length.outcome is Outcome.INVALID
    assert str(run.cases.ledger.path) in length.explanation
    assert speed.outcome is not Outcome.INVALID


def test_the_first_error_of_a_case_is_kept_in_full(tmp_path: Path) -> None:
    run = runs.run(runs.context(tmp_path))

    first = Reason(text="first")
    second = Reason(text="second")

    verdict = run.judge.note_failure(builders.CASE, SPEED.name, first, "first\nits log")
    run.judge.note_failure(builders.CASE, LENGTH.name, second, "second\nits log")

    assert (verdict.outcome, verdict.reason) == (Outcome.INVALID, first)
    assert run.result().errors == {builders.CASE.id: "first\nits log"}
    assert len(run.result().verdicts) == 2
