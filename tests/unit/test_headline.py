"""What a run comes to: green is only what is known to be well."""

import dataclasses

import msgspec
import pytest

from specreg.report.document import Report
from specreg.report.headline import Tone, headline_of, moved_alone
from specreg.report.markdown import render_markdown
from specreg.report.page import render_page
from specreg.verdict import Outcome, Verdict
from tests.unit import reports
from tests.unit.test_breakdown import CASE

TONES = {
    Outcome.PASS: Tone.GOOD,
    Outcome.IMPROVED: Tone.GOOD,
    Outcome.MEASURED: Tone.DOUBT,
    Outcome.INCONCLUSIVE: Tone.DOUBT,
    Outcome.NO_BASELINE: Tone.DOUBT,
    Outcome.NOT_COMPARABLE: Tone.DOUBT,
    Outcome.REGRESSED: Tone.BAD,
    Outcome.WRONG: Tone.BAD,
    Outcome.INVALID: Tone.BAD,
}


def run_with(*outcomes: Outcome, **changes: object) -> Report:
    """A run whose verdicts are these; what nobody can tell passes in it."""
    verdicts = [dataclasses.replace(reports.HELD, outcome=one, softened=True) for one in outcomes]
    run = msgspec.structs.replace(reports.run_of(*verdicts), **changes)
    return msgspec.structs.replace(reports.REPORT, run=run, remarks=())


def test_each_outcome_has_its_colour() -> None:
    assert set(TONES) == set(Outcome)
    for outcome, tone in TONES.items():
        beside = headline_of(run_with(Outcome.PASS, outcome))
        assert beside.tone is tone, outcome
        assert ("All" in beside.text) == (tone is Tone.GOOD)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"complete": False}, "This was not the whole tier"),
        ({"exit_status": 1}, "ended with status 1, and not for a verdict"),
    ],
    ids=["cut-short", "broken-elsewhere"],
)
def test_a_run_that_is_not_whole_is_not_green_and_both_forms_say_why(
    changes: dict[str, object], said: str
) -> None:
    report = run_with(Outcome.PASS, Outcome.PASS, **changes)
    headline = headline_of(report)
    assert (headline.tone, headline.text) == (Tone.DOUBT, "2 hold")
    page, markdown = render_page(report), render_markdown(report)
    assert 'class="banner doubt"' in page
    assert 'class="banner good"' not in page
    assert said in page
    assert said in markdown
    assert "**? 2 hold**" in markdown


def test_another_machine_is_amber_and_the_words_are_counted() -> None:
    outcomes = [Outcome.PASS] * 36 + [Outcome.NOT_COMPARABLE] * 30
    assert headline_of(run_with(*outcomes)).text == "30 not comparable, 36 hold"


def test_a_first_run_without_baselines_is_not_red() -> None:
    report = run_with(Outcome.NO_BASELINE)
    assert headline_of(report).tone is Tone.DOUBT
    assert report.run.exit_status == 11
    assert 'class="banner bad"' not in render_page(report)
    assert 'class="card bad"' not in render_page(report)


def test_nothing_is_not_green() -> None:
    assert headline_of(reports.EMPTY).tone is Tone.DOUBT


def test_markdown_says_what_was_left_out_and_who_ran_the_server() -> None:
    report = run_with(
        Outcome.PASS, skipped={"big": "'big' needs 4 GPUs, here are 2"}, attached="http://h:1"
    )
    text = render_markdown(msgspec.structs.replace(report, remarks=("lower your tolerance",)))
    assert "needs 4 GPUs" in text
    assert "is one that somebody else runs" in text
    assert "lower your tolerance" in text


def alone(change_frac: float, metric: str = "tpot_p50_ms") -> Report:
    """A run in which a case without speculation read so much otherwise."""
    verdict = Verdict(
        case_id=CASE.id,
        metric=metric,
        outcome=Outcome.PASS,
        change_frac=change_frac,
        low_frac=change_frac - 0.5,
        high_frac=change_frac + 0.5,
        tolerance_frac=1.0,
    )
    report = reports.with_case(method="none")
    return msgspec.structs.replace(report, run=reports.run_of(verdict))


def test_a_machine_that_moved_is_said_though_the_tolerance_is_wide() -> None:
    report = alone(-0.216)
    told = f"tpot p50 of {CASE.id} -21.6% (between -71.6% and +28.4%)"
    assert told in moved_alone(report)
    assert told in render_page(report)
    assert moved_alone(alone(-0.04)) == ""
    assert moved_alone(msgspec.structs.replace(report, cases=reports.REPORT.cases)) == ""
