"""Two runs side by side: what changed, what can't be compared, and that nothing is judged."""

import dataclasses

import msgspec
import pytest

from specreg.core.errors import ReportError
from specreg.report.document import Report
from specreg.report.page import render_markdown, render_page
from specreg.report.side_by_side import side_by_side
from specreg.verdicts.judge import Outcome
from tests.unit import reports
from tests.unit.report.test_page import Page

replace = msgspec.structs.replace
CASE_ID = reports.CASE.id


def another(version: str = "0.33.0", environment: str = "", **settings: object) -> Report:
    """A later run of the case, a tenth faster than the first one, of this engine."""
    faster = dataclasses.replace(reports.LOST, value=99.0, outcome=Outcome.PASS)
    assert reports.CASE_REPORT.settings is not None
    report = reports.with_case(
        figures=replace(reports.FIGURES, engine_version=version),
        settings=dataclasses.replace(reports.CASE_REPORT.settings, **settings),  # type: ignore[arg-type]
    )
    run = replace(reports.run_of(reports.HELD, faster), run="20261123T020000-2")
    return replace(report, run=replace(run, environment=environment or run.environment))


def test_each_figure_that_both_have_is_compared_and_none_judged() -> None:
    found = side_by_side(reports.REPORT, another())
    held, faster = found.run.verdicts
    assert (held.value, held.expected, held.change_frac) == (2.64, 2.64, 0.0)
    assert (faster.value, faster.expected) == (99.0, 90.0)
    assert faster.change_frac == pytest.approx(0.1)
    assert faster.cause == "REGRESSED in A, PASS in B"
    assert {one.outcome for one in found.run.verdicts} == {Outcome.MEASURED}
    told = "of 2 figures 1 are better in B and 0 worse; none is judged"
    assert str(found.answers[0]) == f"B against A: {told}"


def test_the_page_and_the_markdown_name_both_runs_and_their_engines() -> None:
    found = side_by_side(reports.REPORT, another())
    page = Page(render_page(found))
    for words in (
        f"A is run {reports.REPORT.run.run} on",
        "its servers said vllm 0.32.0",
        "its servers said vllm 0.33.0",
        "B against A",
        "specreg report 20261121T020000-1 20261123T020000-2",
    ):
        assert words in page.text
    assert "the baseline" not in page.text
    assert "| B | change |" in render_markdown(found)


def test_other_settings_machines_and_invalid_figures_have_no_change() -> None:
    found = side_by_side(reports.REPORT, another(draft_tokens=7))
    assert all(one.outcome is Outcome.NOT_COMPARABLE for one in found.run.verdicts)
    assert all("draft_tokens: 3 -> 7" in one.reason for one in found.run.verdicts)
    held, faster = side_by_side(reports.REPORT, another(environment="h100")).run.verdicts
    assert held.outcome is Outcome.MEASURED
    assert faster.outcome is Outcome.NOT_COMPARABLE
    assert faster.change_frac is None
    assert faster.reason == f"measured on {reports.REPORT.run.environment} and on h100"
    bad = dataclasses.replace(reports.HELD, outcome=Outcome.INVALID)
    invalid = replace(another(), run=reports.run_of(bad))
    (one,) = side_by_side(reports.REPORT, invalid).run.verdicts
    assert (one.reason, one.cause) == ("PASS in A, INVALID in B", "")


def test_cases_that_one_run_alone_has_are_told() -> None:
    other = replace(reports.CASE_REPORT, case_id="other")
    more = replace(reports.REPORT, cases=(*reports.REPORT.cases, other))
    assert side_by_side(more, another()).remarks == ("only A has other",)
    with pytest.raises(ReportError, match="no case is in both; name two runs"):
        side_by_side(replace(reports.REPORT, cases=(other,)), another())
    with pytest.raises(ReportError, match="compares two sides already"):
        side_by_side(reports.REPORT, side_by_side(reports.REPORT, another()))
