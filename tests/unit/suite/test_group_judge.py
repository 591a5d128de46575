"""Judging the cases that share a server: what waits, what fails, and what changes at the end."""

from pathlib import Path

from specreg.acceptance.record import StepCounts
from specreg.core.reasons import Reason
from specreg.correctness.checks import LOSSLESS
from specreg.suite.group_judge import changes_between, properties_of, render_changes
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


def test_a_verdict_that_the_whole_run_changes_is_told_apart(tmp_path: Path) -> None:
    """The line of its test was written before, and says REGRESSED; no fresh launch followed."""
    context = runs.context(tmp_path)
    runs.record(context)
    run = runs.run(context)
    lost = builders.measurement({LENGTH.name: 1.2}, of=builders.counts(8, 2, 0, 0))
    run.judge.confirmation.judge(LENGTH, [lost])

    before = run.judge.verdicts
    run.judge.conclude()
    changes = changes_between(before, run.judge.verdicts)

    outcomes = [verdict.outcome for verdict in run.judge.verdicts]
    assert outcomes == [Outcome.INCONCLUSIVE]
    change = f"{builders.CASE.id} {LENGTH.name}: REGRESSED -> INCONCLUSIVE"
    sentence = f"1 verdict changed when the whole run was judged: {change}"
    assert render_changes(changes) == sentence
    assert [*properties_of(changes)] == [f"specreg.final.{builders.CASE.id}.{LENGTH.name}"]


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
