"""What the losses of a case point to."""

import dataclasses

import msgspec
import pytest

from specreg.measurement.figures import AcceptanceFigures
from specreg.report.diagnosis import FINDINGS, Finding, diagnose, say_once
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
    assert finding.amount == "60.0% → 30.0%"
    assert finding.facts == (("drafts", "drafts from position 2 on are"),)


def test_the_shares_of_a_position_are_those_that_its_verdict_compared() -> None:
    position = dataclasses.replace(
        LENGTH_LOST,
        metric="acceptance_pos2_frac",
        value=0.29,
        comparison=dataclasses.replace(LENGTH_LOST.comparison, expected=0.61),
    )
    (finding,) = diagnose(case_with((0.8, 0.3, 0.2)), [LENGTH_LOST, position])
    assert finding.amount == "61.0% → 29.0%"


def test_a_loss_of_a_single_category_is_one_of_its_prompts() -> None:
    lost = case_with((0.7, 0.5, 0.3), coding=(3.12, 1.85), math=(2.74, 2.73))
    (finding,) = diagnose(lost, [LENGTH_LOST])
    assert finding.code == "ONE_CATEGORY"
    assert finding.facts == (("category", "coding"),)
    assert finding.amount == "2.12 → 0.85 drafts a step"


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
    assert codes(case_with((0.8, 0.6, 0.1)), LENGTH_LOST, slower) == [
        "STEP_COSTS_MORE",
        "LATER_POSITIONS",
    ]
    worse_draft = Cause(parts=(("acceptance", -0.3), ("the cost of a step", -0.1)))
    slower = dataclasses.replace(slower, cause=worse_draft)
    assert codes(case_with((0.8, 0.6, 0.1)), LENGTH_LOST, slower) == [
        "LATER_POSITIONS",
        "STEP_COSTS_MORE",
    ]
    little = dataclasses.replace(slower, cause=Cause(parts=(("the cost of a step", -0.01),)))
    assert codes(case_with((0.8, 0.6, 0.1)), LENGTH_LOST, little) == ["LATER_POSITIONS"]


@pytest.mark.parametrize(
    ("metric", "change_frac", "amount"),
    [
        ("throughput_tokens_per_s", -0.8, "-80.0% of the speed"),
        # A time that became five times as long leaves a fifth of the speed.
        ("tpot_p50_ms", -4.0, "-80.0% of the speed"),
    ],
)
def test_a_step_costs_the_whole_loss_if_acceptance_is_as_before(
    metric: str, change_frac: float, amount: str
) -> None:
    lost = reports.with_fields(reports.LOST, metric=metric, cause=None, change_frac=change_frac)
    (finding,) = diagnose(case_with(BEFORE), [lost])
    assert (finding.code, finding.amount) == ("STEP_COSTS_MORE", amount)


@pytest.mark.parametrize(("throughput", "said"), [(50.0, ["STEP_COSTS_MORE"]), (99.0, [])])
def test_a_lost_speedup_is_the_cost_of_a_step_only_if_the_case_itself_is_slower(
    throughput: float, said: list[str]
) -> None:
    """Else the server without speculation became faster."""
    name = "throughput_tokens_per_s"
    case = case_with(BEFORE)
    assert case.figures is not None
    assert case.expected is not None
    slower = msgspec.structs.replace(
        case,
        figures=msgspec.structs.replace(case.figures, judged={name: throughput}),
        expected=msgspec.structs.replace(case.expected, values={name: 100.0}),
    )
    lost = reports.with_fields(reports.LOST, metric="speedup_ratio", cause=None, change_frac=-0.2)
    assert codes(slower, lost) == said


def test_a_time_to_first_token_says_nothing_of_a_step() -> None:
    lost = reports.with_fields(reports.LOST, metric="ttft_p50_ms", cause=None)
    assert codes(case_with(BEFORE), lost) == []


STEP = Finding(code="STEP_COSTS_MORE", amount="-78.0% of the speed")
THIRD = Finding(code="LATER_POSITIONS", facts=(("drafts", "the draft at position 3 is"),))
NAMES = {"a": "eagle3 c1", "b": "draft_model c1", "c": "ngram c1", "d": "eagle3 c4"}
DRAFTERS = {"a": "eagle3", "b": "draft_model", "c": "ngram", "d": "eagle3"}


def test_what_several_cases_share_is_said_once_with_the_amount_of_the_worst() -> None:
    milder = dataclasses.replace(STEP, amount="-60.0% of the speed")
    shared, own = say_once({"a": [STEP, THIRD], "c": [milder]}, NAMES, DRAFTERS)
    (sentence,) = shared
    assert sentence.startswith("In both cases a step takes longer (-78.0% of the speed in eagle3")
    assert own == {"a": [str(THIRD)], "c": []}


def test_different_drafters_that_fail_alike_point_to_the_engine() -> None:
    step_alone = {"c": [STEP]}
    shared, _ = say_once({"a": [THIRD], "b": [THIRD], **step_alone}, NAMES, DRAFTERS)
    assert [sentence.partition(" only")[0] for sentence in shared] == [
        "In eagle3 c1 and draft_model c1"
    ]
    assert "look first at the engine" in shared[0]
    # One drafter at two loads is still one drafter.
    shared, _ = say_once({"a": [THIRD], "d": [THIRD]}, NAMES, DRAFTERS)
    assert FINDINGS["LATER_POSITIONS"].advice in shared[0]


def test_of_many_cases_the_number_is_said() -> None:
    findings = {str(number): [STEP] for number in range(4)}
    names = {case_id: f"case {case_id}" for case_id in findings}
    shared, _ = say_once({**findings, "other": [THIRD]}, names, names)
    assert shared[0].startswith("In 4 of them ")
    shared, _ = say_once(findings, names, names)
    assert shared[0].startswith("In all 4 of them ")


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
    assert str(finding) in render_markdown(report).replace("\\", "")
