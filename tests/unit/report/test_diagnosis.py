"""What the losses of a case point to."""

import dataclasses

import msgspec
import pytest

from specreg.measurement.figures import AcceptanceFigures
from specreg.report.diagnosis import diagnose
from specreg.report.document import CaseReport
from specreg.report.page import render_markdown, render_page
from specreg.report.screen import LOG
from specreg.report.terminal import render_report
from specreg.verdicts.verdict import Cause, Outcome, Verdict
from tests.unit.builders import reports
from tests.unit.builders.pages import Page

LENGTH_LOST = dataclasses.replace(reports.HELD, outcome=Outcome.REGRESSED)
BEFORE = (0.8, 0.6, 0.4)


def case_with(
    now: tuple[float, ...], before: tuple[float, ...] = BEFORE, **lengths: tuple[float, float]
) -> CaseReport:
    """A case that accepted shares by position, and has AL before and now by category."""
    figures = reports.FIGURES
    assert figures.acceptance is not None
    total = msgspec.structs.replace(figures.acceptance.total, marginal_frac=now)
    by_category = {
        name: msgspec.structs.replace(total, acceptance_length_tokens=length)
        for name, (_, length) in lengths.items()
    }
    acceptance: AcceptanceFigures = msgspec.structs.replace(
        figures.acceptance, total=total, by_category=by_category
    )
    expected = msgspec.structs.replace(
        reports.EXPECTED,
        marginal_frac=before,
        by_category_length_tokens={name: length for name, (length, _) in lengths.items()},
    )
    return msgspec.structs.replace(
        reports.CASE_REPORT,
        figures=msgspec.structs.replace(figures, acceptance=acceptance),
        expected=expected,
    )


def codes(case: CaseReport, *lost: Verdict) -> list[str]:
    return [finding.code for finding in diagnose(case, lost)]


@pytest.mark.parametrize(
    ("now", "code"),
    [
        ((0.8, 0.6, 0.0), "LATER_POSITIONS"),
        ((0.8, 0.3, 0.2), "LATER_POSITIONS"),
        ((0.01, 0.0, 0.0), "DRAFT_NOT_LOADED"),
        ((0.5, 0.3, 0.1), "OTHER_MODEL"),
    ],
)
def test_the_first_lost_position_tells_what_is_wrong(now: tuple[float, ...], code: str) -> None:
    assert codes(case_with(now), LENGTH_LOST) == [code]


def test_the_first_lost_position_is_named_with_both_shares() -> None:
    (finding,) = diagnose(case_with((0.8, 0.3, 0.2)), [LENGTH_LOST])
    assert finding.facts == {"position": "2", "before": "60.0%", "now": "30.0%"}


def test_the_shares_of_a_position_are_those_that_its_verdict_compared() -> None:
    position = dataclasses.replace(
        LENGTH_LOST,
        metric="acceptance_pos2_frac",
        value=0.29,
        comparison=dataclasses.replace(LENGTH_LOST.comparison, expected=0.61),
    )
    (finding,) = diagnose(case_with((0.8, 0.3, 0.2)), [LENGTH_LOST, position])
    assert finding.facts == {"position": "2", "before": "61.0%", "now": "29.0%"}


def test_a_loss_of_a_single_category_is_one_of_its_prompts() -> None:
    lost = case_with((0.7, 0.5, 0.3), coding=(3.12, 1.85), math=(2.74, 2.73))
    (finding,) = diagnose(lost, [LENGTH_LOST])
    assert finding.code == "ONE_CATEGORY"
    assert finding.facts == {"category": "coding", "before": "2.12", "now": "0.85"}


@pytest.mark.parametrize(
    "lengths",
    [
        {"coding": (3.12, 1.85), "math": (2.74, 1.9)},
        {"coding": (3.12, 1.85), "math": (2.74, 2.6)},
        {"coding": (3.12, 1.85)},
    ],
    ids=["both", "the-other-too-a-little", "the-only-one"],
)
def test_a_loss_of_several_categories_is_none_of_prompts(
    lengths: dict[str, tuple[float, float]],
) -> None:
    assert codes(case_with((0.5, 0.3, 0.1), **lengths), LENGTH_LOST) == ["OTHER_MODEL"]


def test_an_equal_acceptance_with_a_lost_speed_is_the_engine() -> None:
    assert codes(case_with(BEFORE), reports.LOST) == ["STEP_COSTS_MORE"]


def test_an_acceptance_and_a_step_that_are_both_lost_are_both_named() -> None:
    cause = Cause(parts=(("acceptance", -0.1), ("the cost of a step", -0.3)))
    slower = dataclasses.replace(reports.LOST, cause=cause)
    assert codes(case_with((0.8, 0.6, 0.1)), LENGTH_LOST, slower) == ["STEP_TOO", "LATER_POSITIONS"]
    worse_draft = Cause(parts=(("acceptance", -0.3), ("the cost of a step", -0.1)))
    slower = dataclasses.replace(slower, cause=worse_draft)
    assert codes(case_with((0.8, 0.6, 0.1)), LENGTH_LOST, slower) == ["LATER_POSITIONS", "STEP_TOO"]
    little = dataclasses.replace(slower, cause=Cause(parts=(("the cost of a step", -0.01),)))
    assert codes(case_with((0.8, 0.6, 0.1)), LENGTH_LOST, little) == ["LATER_POSITIONS"]


def test_wrong_text_points_to_the_verifier() -> None:
    wrong = Verdict(case_id=reports.CASE.id, metric="lossless_frac", outcome=Outcome.WRONG)
    assert codes(case_with(BEFORE), wrong) == ["lossless_frac"]


def test_positions_that_fit_no_rule_point_to_nothing() -> None:
    assert codes(case_with(BEFORE), LENGTH_LOST) == []
    assert codes(case_with((0.5,), before=()), LENGTH_LOST) == []
    assert codes(msgspec.structs.replace(reports.CASE_REPORT, expected=None), LENGTH_LOST) == []


def test_a_finding_stands_in_the_terminal_on_the_page_and_in_markdown() -> None:
    case = case_with((0.8, 0.6, 0.0))
    report = msgspec.structs.replace(reports.with_verdicts(LENGTH_LOST), cases=(case,))
    (finding,) = diagnose(case, [LENGTH_LOST])
    assert str(finding) in render_report(report, LOG)
    assert str(finding) in Page(render_page(report)).text
    assert "drafter's own state is probably wrong" in render_markdown(report)
