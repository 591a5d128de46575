"""A run: what its tests make it do, and the verdicts on what its ledger has then."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from specreg.acceptance.record import StepCounts
from specreg.core.errors import SpecregError
from specreg.core.reasons import Reason
from specreg.correctness.checks import LOSSLESS
from specreg.measurement.measure import Measurement
from specreg.runs.ledger import FailedLaunch, LedgerEntry, MeasuredLaunch
from specreg.runs.plan import NightStep
from specreg.runs.verdicts import Asked
from specreg.suite.run import Run
from specreg.verdicts.verdict import Outcome
from tests.unit import builders
from tests.unit.builders import runs
from tests.unit.builders.runs import LENGTH, MEASURED, SPEED
from tests.unit.builders.steps import Played, checked, failed, measured

CASE = builders.CASE
LOST = builders.measurement({LENGTH.name: 1.2}, of=builders.counts(8, 2, 0, 0))
"""A launch whose drafter has become worse."""


def test_a_baseline_that_cannot_be_read_does_not_hinder_its_replacement(tmp_path: Path) -> None:
    context = runs.context(tmp_path, update_baselines=True, launches=1)
    path = context.store.path(CASE.id)
    path.parent.mkdir(parents=True)
    path.write_text("{")

    verdict = runs.judge(runs.measured_run(context, MEASURED), LENGTH)

    assert (verdict.outcome, verdict.value) == (Outcome.MEASURED, 2.5)


def test_a_speed_waits_for_all_launches_and_acceptance_does_not(tmp_path: Path) -> None:
    launch, _ = runs.record(runs.context(tmp_path))
    context = runs.context(tmp_path, launches=2)
    selected = runs.selection(context, {CASE.id: [LENGTH.name, SPEED.name]})
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


def test_the_verdicts_have_the_order_of_the_run_whatever_is_asked_first(tmp_path: Path) -> None:
    launch, _ = runs.record(runs.context(tmp_path))
    context = runs.context(tmp_path, launches=2)
    selected = runs.selection(context, {CASE.id: [LENGTH.name, SPEED.name]})
    run = runs.measured_run(context, launch, launch, selected=selected)

    runs.judge(run, SPEED, 2)
    outcome = runs.judge(run, LENGTH, 1).outcome

    names = [verdict.metric for verdict in run.verdicts]
    assert names == [LENGTH.name, SPEED.name, LENGTH.name, SPEED.name]
    assert run.verdicts[0].outcome is outcome


def test_a_case_of_which_only_a_check_is_selected_is_not_measured(tmp_path: Path) -> None:
    case = builders.with_concurrency(4)
    context = runs.context(tmp_path, cases=(CASE, case))
    names = {CASE.id: [LENGTH.name], case.id: [LOSSLESS]}
    run = runs.measured_run(context, MEASURED, selected=runs.selection(context, names))
    run.ledger.add(checked(case, LOSSLESS))

    runs.judge(run, LENGTH)

    assert [launch.measurement for launch in run.ledger.measured] == [MEASURED]


def test_a_test_that_judges_by_itself_asks_for_no_verdict(tmp_path: Path) -> None:
    run = runs.measured_run(runs.context(tmp_path), MEASURED)

    assert run.measurement(CASE, 1) is MEASURED
    run.end()

    assert run.verdicts == ()


def test_a_run_that_was_cut_short_leaves_a_loss_unproven(tmp_path: Path) -> None:
    """No fresh launch followed, so no launch confirmed it."""
    context = runs.context(tmp_path)
    runs.record(context)
    lost = builders.measurement({SPEED.name: 50.0, LENGTH.name: 2.5}, of=runs.COUNTS)
    run = runs.measured_run(context, lost)

    runs.judge(run, LENGTH)
    before = [verdict.metric for verdict in run.verdicts]
    run.end()

    assert SPEED.name not in before, "speeds are judged once everything is measured"
    outcomes = {verdict.metric: verdict.outcome for verdict in run.verdicts}
    assert outcomes[SPEED.name] is Outcome.INCONCLUSIVE


def test_a_part_of_a_run_says_that_speeds_are_judged_later(tmp_path: Path) -> None:
    launch, _ = runs.record(runs.context(tmp_path))
    part = runs.context(tmp_path, shard="1/2")
    run = runs.measured_run(part, launch)

    verdict = runs.judge(run, SPEED)

    assert (verdict.outcome, verdict.value) == (Outcome.MEASURED, 100.0)
    assert verdict.has_code("JUDGED_LATER")
    assert runs.judge(run, LENGTH).outcome is Outcome.PASS


def lost_run(folder: Path, *further: Measurement) -> Run:
    """A run whose acceptance was lost on the planned launch, and what further launches had."""
    context = runs.context(folder)
    runs.record(context)
    selected = runs.selection(context, {CASE.id: [LENGTH.name]})
    run = runs.measured_run(context, LOST, *further, selected=selected)
    run.judge.ask([CASE], 1)
    return run


def test_a_loss_of_acceptance_wants_one_fresh_launch(tmp_path: Path) -> None:
    run = lost_run(tmp_path)

    assert run.judge.unconfirmed(run.ledger, [CASE]) == [CASE]
    (verdict,) = run.verdicts
    assert verdict.outcome is Outcome.INCONCLUSIVE


def test_a_fresh_launch_confirms_a_loss_of_acceptance(tmp_path: Path) -> None:
    run = lost_run(tmp_path, LOST)

    assert run.judge.unconfirmed(run.ledger, [CASE]) == []
    assert runs.judge(run, LENGTH).outcome is Outcome.REGRESSED


def test_a_fresh_launch_that_failed_leaves_the_loss_invalid(tmp_path: Path) -> None:
    run = lost_run(tmp_path)
    run.ledger.add(FailedLaunch(case_id=CASE.id, number=2, reason=Reason(text="ended")))

    assert run.judge.unconfirmed(run.ledger, [CASE]) == []
    verdict = runs.judge(run, LENGTH)
    assert verdict.outcome is Outcome.INVALID
    assert verdict.explanation.endswith("a further launch failed: ended")


def play_speeds(folder: Path, *speeds: float) -> tuple[Run, list[int]]:
    """Play the night of a speed; a launch without a speed fails. The numbers of its launches."""
    context = runs.context(folder)
    runs.record(context)
    run = runs.run(context, runs.selection(context, {CASE.id: [SPEED.name]}))
    run.judge.ask_all()

    def result_of(step: NightStep) -> list[LedgerEntry]:
        if step.number > len(speeds):
            return [failed(CASE, step.number)]
        measurement = builders.measurement({SPEED.name: speeds[step.number - 1]}, of=runs.COUNTS)
        return [MeasuredLaunch(case_id=CASE.id, number=step.number, measurement=measurement)]

    played = Played(run.night, result_of, run.ledger)
    played.play()
    return run, [step.number for step in played.steps]


@pytest.mark.parametrize(
    ("speeds", "launches", "outcome"),
    [
        pytest.param((100.0,), [1], Outcome.INCONCLUSIVE, id="as-before"),
        pytest.param((50.0, 50.0), [1, 2], Outcome.REGRESSED, id="lost-for-good"),
        pytest.param(
            (50.0, 100.0, 100.0, 100.0), [1, 2, 3, 4], Outcome.INCONCLUSIVE, id="lost-once"
        ),
        pytest.param((50.0,), [1, 2], Outcome.INVALID, id="a-further-launch-fails"),
    ],
)
def test_a_speed_that_looks_lost_takes_further_launches(
    tmp_path: Path, speeds: Sequence[float], launches: Sequence[int], outcome: Outcome
) -> None:
    run, numbers = play_speeds(tmp_path, *speeds)

    assert numbers == launches
    assert runs.judge(run, SPEED).outcome is outcome


def test_a_case_that_could_not_be_measured_says_so_each_time(tmp_path: Path) -> None:
    """Its prompts can't be read."""
    run = runs.run(runs.context(tmp_path, root=tmp_path))

    messages = []
    for metric in (LENGTH, SPEED):
        with pytest.raises(SpecregError) as raised:
            runs.judge(run, metric)
        messages.append(str(raised.value))

    assert messages[0] == messages[1]
    assert len(run.ledger.failures) == 1
    assert {verdict.outcome for verdict in run.verdicts} == {Outcome.INVALID}
    assert {LENGTH.name, SPEED.name} <= {verdict.metric for verdict in run.verdicts}


def test_a_case_that_was_skipped_has_no_verdicts(tmp_path: Path) -> None:
    run = runs.run(runs.context(tmp_path, root=tmp_path))
    with pytest.raises(SpecregError):
        runs.judge(run, LENGTH)

    run.noted.skipped[CASE.id] = "its model can't be fetched"

    assert run.verdicts == ()


def test_what_was_measured_before_is_taken_over(tmp_path: Path) -> None:
    context = runs.context(tmp_path, launches=2)
    run = runs.measured_run(context, MEASURED)
    second = builders.measurement({LENGTH.name: 2.5}, of=runs.COUNTS)
    run.ledger.add(MeasuredLaunch(case_id=CASE.id, number=2, measurement=second))

    launches = run.result().launches

    assert [launch.is_resumed for launch in launches] == [True, False]
    assert [launch.read_from for launch in launches] == [run.ledger.path, None]


@pytest.mark.parametrize(
    ("check", "words"), [("", "measured again"), (LOSSLESS, f"{LOSSLESS} checked again")]
)
def test_a_second_attempt_after_a_death_is_remarked(tmp_path: Path, check: str, words: str) -> None:
    run = runs.run(runs.context(tmp_path))
    run.ledger.add(failed(CASE, 1, check, died=True))
    assert run.result().retried == (f"{CASE.id}: to be {words}, ended",)

    run.ledger.add(checked(CASE, check) if check else measured(CASE, 1))

    assert run.result().retried == (f"{CASE.id}: {words}, ended",)


def test_an_attempt_that_another_one_follows_is_no_verdict(tmp_path: Path) -> None:
    run = runs.run(runs.context(tmp_path))
    run.judge.ask_all()

    run.ledger.add(failed(CASE, 1, died=True))
    assert [str(verdict.outcome) for verdict in run.verdicts] == []

    run.ledger.add(failed(CASE, 1, died=True))
    assert {str(verdict.outcome) for verdict in run.verdicts} == {"INVALID"}


def test_a_measurement_that_cannot_be_calculated_with_names_its_ledger(tmp_path: Path) -> None:
    context = runs.context(tmp_path)
    runs.record(context)
    impossible = StepCounts(steps=4, accepted=-6, proposed=12, position_counts=(-2, -2, -2))
    resumed = builders.measurement({LENGTH.name: 1.5, SPEED.name: 100.0}, of=impossible)
    run = runs.measured_run(context, resumed)

    length = runs.judge(run, LENGTH)
    speed = runs.judge(run, SPEED)

    assert length.outcome is Outcome.INVALID
    assert str(run.ledger.path) in length.explanation
    assert speed.outcome is not Outcome.INVALID


def test_the_first_error_of_a_case_is_kept_in_full(tmp_path: Path) -> None:
    run = runs.run(runs.context(tmp_path))
    first = Reason(text="first")
    second = Reason(text="second")

    verdict = run.noted.note_failure(Asked(CASE.id, SPEED.name, 1), first, "first\nits log")
    run.noted.note_failure(Asked(CASE.id, LENGTH.name, 1), second, "second\nits log")

    assert (verdict.outcome, verdict.reason) == (Outcome.INVALID, first)
    assert run.result().errors == {CASE.id: "first\nits log"}
    assert len(run.result().verdicts) == 2
