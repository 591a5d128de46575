"""The page of a run, read by a parser: what it holds, and that data in it stays data."""

import dataclasses
import re

import msgspec
import pytest

from specreg.core.reasons import Reason
from specreg.report.charts import Chart, break_even, charts_of, gains_over_load
from specreg.report.document import CaseReport, Report
from specreg.report.page import render_page
from specreg.telemetry.power_record import PowerRecord
from specreg.verdicts.history import RunRecord
from specreg.verdicts.verdict import Outcome, Verdict
from tests.unit import builders
from tests.unit.builders import reports
from tests.unit.builders.pages import Page, many
from tests.unit.builders.reports import CASE, FIGURES

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'"
VERSIONS = ("0.31.0", "0.32.0", "0.31.0", "0.32.1", "0.33.0", "0.34.0")


def titles(case: CaseReport) -> list[str]:
    return [chart.title for chart in charts_of(case)]


def test_what_fails_stands_first_with_its_cause_and_what_to_type() -> None:
    text = Page(render_page(reports.REPORT)).text
    headings = ("What to type next", "What needs a look", "Overview", "The cases")
    order = ("1 of 1 figures worse", *headings)
    assert [text.index(part) for part in order] == sorted(text.index(part) for part in order)
    lost = "throughput 90 tokens/s, recorded 100 tokens/s: worse by 10.0 % (8.0 to 12.0 %)"
    assert f"{lost}, tolerated are 5 %" in text
    assert "-8.0% by acceptance, -2.0% by the cost of a step" in text
    again = f"pytest tests/perf -k {CASE.id}- --specreg-tier=cpu"
    assert f"look again, on a fresh launch: {again}" in text


def test_a_card_says_since_when_with_what_and_where_to_look() -> None:
    words = ("REGRESSED", "REGRESSED")
    slow = reports.judged_runs("throughput_tokens_per_s", *words, first_day=13)
    once = msgspec.structs.replace(slow[0], run="20261101T010000-1")
    report = reports.with_case(
        history=(once, *reports.CASE_REPORT.history, *slow),
        logs=("logs/a.log",),
        error="server 'a': out of memory\nlast lines of a.log:\nCUDA says no",
    )
    text = Page(render_page(report)).text.partition("Overview")[0]
    assert "vllm 0.31.0 → 0.32.0" in text
    since = "throughput: not fine since 2026-11-13 02:00 UTC with 0.32.0, 2 judged runs in a row"
    last = "last fine 2026-11-12 02:00 UTC with 0.32.0"
    for said in (since, last, "what the servers said: logs/a.log", "CUDA says no"):
        assert said in text


@pytest.mark.parametrize("outcome", ["NOT_COMPARABLE", "NO_BASELINE", "INVALID", "MEASURED"])
def test_a_run_that_did_not_judge_a_figure_says_nothing_of_since_when(outcome: str) -> None:
    name = "throughput_tokens_per_s"
    runs = reports.judged_runs(name, *[outcome] * 3, "REGRESSED", first_day=13)
    report = reports.with_case(history=(*reports.CASE_REPORT.history, *runs))
    told = "throughput: not fine since 2026-11-16 02:00 UTC with 0.32.0; last fine 2026-11-12"
    assert told in Page(render_page(report)).text
    unjudged = dataclasses.replace(reports.LOST, outcome=Outcome.NO_BASELINE)
    silent = msgspec.structs.replace(report, run=reports.run_of(unjudged))
    assert "not fine since" not in Page(render_page(silent)).text


def test_the_page_needs_nothing_else_and_each_link_leads_somewhere() -> None:
    page = Page(render_page(reports.REPORT))
    targets = {str(link["href"]).removeprefix("#") for link in page.all("a")}
    assert targets
    assert targets <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    text = render_page(reports.REPORT)
    assert page.all("script") == page.all("link") == page.all("img") == []
    loading = {"src", "href", "xlink:href", "action", "data"}
    used = [one[name] for _, one in page.tags for name in loading & one.keys()]
    assert all(str(target).startswith("#") for target in used)
    assert "url(" not in text
    assert "@import" not in text


def test_what_is_said_of_a_case_comes_as_charts_and_in_numbers() -> None:
    assert titles(reports.CASE_REPORT) == [
        "Accepted, by position of the draft",
        "History of acceptance length",
        "History of throughput",
    ]
    page = Page(render_page(reports.REPORT))
    assert len(page.all("svg")) == 3
    for words in ("time per output token, ms", "without speculation", "p99", "0.31.0"):
        assert words in page.text


def test_a_part_that_is_not_known_has_no_chart() -> None:
    bare = msgspec.structs.replace(reports.CASE_REPORT, expected=None, history=())
    assert len(titles(bare)) == 1
    assert titles(msgspec.structs.replace(bare, figures=None)) == []
    without = msgspec.structs.replace(FIGURES, acceptance=None)
    assert titles(msgspec.structs.replace(bare, figures=without)) == []


def test_only_runs_that_judged_the_figure_are_drawn() -> None:
    words = ("PASS", "NOT_COMPARABLE", "NO_BASELINE", "MEASURED", "INVALID", "REGRESSED")
    runs = reports.judged_runs("acceptance_length_tokens", *words)
    assert "The last 2 runs that judged it" in history_of("acceptance length", *runs).note


def at_load(concurrency: int, drafts: int, ratio: float, **others: int) -> CaseReport:
    """The case at such a load, with so many drafts of a step and such a gain."""
    changes = {"concurrency": concurrency, "draft_tokens": drafts, **others}
    settings = dataclasses.replace(builders.SETTINGS, **changes)  # type: ignore[arg-type]
    figures = msgspec.structs.replace(FIGURES, judged={"speedup_ratio": ratio})
    return msgspec.structs.replace(reports.CASE_REPORT, settings=settings, figures=figures)


def test_each_number_of_drafts_is_a_line_of_its_own() -> None:
    gains = {(1, 3): 2.0, (4, 3): 1.8, (8, 3): 1.5, (1, 7): 2.4, (4, 7): 1.5, (8, 7): 0.5}
    (chart,) = gains_over_load([at_load(*key, ratio) for key, ratio in gains.items()])
    assert "method: draft_model-k3" in chart.svg
    assert "method: draft_model-k7" in chart.svg
    assert "draft_model-k3 pays at 1 to 8 in flight; draft_model-k7 pays up to about" in chart.note
    marks = re.findall(r"requests in flight: ([\d.]+); [^\"]*method: draft_model-k7", chart.svg)
    assert round(float(marks[-1]), 2) == 5.66
    assert re.findall(r">(\d)<", chart.svg) == ["1", "4", "8"]


def test_cases_that_differ_in_more_than_the_load_are_lines_of_their_own() -> None:
    long = [at_load(load, 3, 0.5, output_cap_tokens=64) for load in (1, 4, 8)]
    (chart,) = gains_over_load([*(at_load(load, 3, 1.5) for load in (1, 4, 8)), *long])
    assert "draft_model-k3 pays at 1 to 8 in flight" in chart.note
    other = "draft_model-k3 (output_cap_tokens: 20 -> 64)"
    assert f"{other} never pays at 1 to 8 in flight" in chart.note
    assert f"method: {other}" in chart.svg.replace("&gt;", ">")


def test_two_loads_show_no_place_where_it_stops_to_pay() -> None:
    assert list(gains_over_load([at_load(load, 3, 1.5) for load in (1, 8)])) == []
    fewer = [at_load(load, 3, 1.5) for load in (1, 4, 8)] + [at_load(1, 7, 2.0)]
    (chart,) = gains_over_load(fewer)
    assert "k7" in chart.svg
    assert "k7" not in chart.note


@pytest.mark.parametrize(
    ("loads", "said"),
    [
        ([(1, 2.0), (4, 1.5), (8, 1.2)], "pays at 1 to 8 in flight"),
        ([(1, 0.9), (4, 0.5), (8, 0.4)], "never pays at 1 to 8 in flight"),
        ([(1, 2.0), (4, 1.5), (16, 0.5)], "pays up to about 8 in flight"),
        ([(1, 0.5), (4, 1.5), (8, 1.6)], "pays from about 2 in flight"),
        ([(1, 1.5), (4, 0.5), (8, 1.6)], "pays at 1, 8 in flight, not at 4"),
    ],
)
def test_where_it_stops_to_pay_is_told(loads: list[tuple[int, float]], said: str) -> None:
    assert break_even(loads) == said


def shown(title: str, case: CaseReport, *verdicts: Verdict) -> str:
    return next(one.svg for one in charts_of(case, verdicts) if one.title == title)


def test_acceptance_by_position_stands_against_the_oracle_where_it_was_asked() -> None:
    oracle = reports.verdict(Outcome.WRONG, by_position_frac=((0.8, 0.9), (0.3, 0.7)))
    known = dataclasses.replace(oracle, case_id=CASE.id)
    page = Page(render_page(reports.with_verdicts(reports.HELD, known)))
    assert "the engine its text and models" in page.text
    title = "Accepted, by position of the draft, against the oracle"
    svg = shown(title, reports.CASE_REPORT, oracle)
    drawn = re.findall(r"position in the draft: (\d); share of steps: (\d+)%", svg)
    assert drawn == [("1", "90"), ("2", "70"), ("1", "80"), ("2", "30")]


def with_power(case: CaseReport, power: PowerRecord) -> CaseReport:
    assert case.figures is not None
    return msgspec.structs.replace(case, figures=msgspec.structs.replace(case.figures, power=power))


def test_energy_is_drawn_for_both_servers_where_both_are_known() -> None:
    ours, alone = (builders.power(energy_j=e, window_s=10.0, tokens=1000) for e in (3000, 4000))
    power = msgspec.structs.replace(ours, control=alone.case, energy_ratio=4 / 3)
    case = with_power(reports.CASE_REPORT, power)
    page = Page(render_page(reports.with_case(figures=case.figures)))
    assert "3 J per token (±0.1 %), 300 W on average" in page.text
    title = "Energy per token, with speculation and without"
    drawn = re.findall(r"J per token: ([\d.]+); (?:arm: )?(\w+)\"", shown(title, case))
    assert drawn == [("3", "with"), ("4", "without"), ("1", "with"), ("1", "without")]
    at_loads = [at_load(load, 3, 1.5) for load in (1, 4, 8)]
    for said, found in (({}, ["Speedup", "Energy"]), ({"too_short": "5 s"}, ["Speedup"])):
        known = msgspec.structs.replace(power, **said)
        loads = [with_power(one, known) for one in at_loads]
        assert [one.title.split()[0] for one in gains_over_load(loads)] == found
    assert title not in titles(with_power(case, ours))


def history_of(title: str, *runs: RunRecord) -> Chart:
    case = msgspec.structs.replace(reports.CASE_REPORT, history=runs)
    (found,) = [one for one in charts_of(case) if one.title == f"History of {title}"]
    return found


def test_each_metric_that_was_judged_has_a_history_with_the_engines_versions() -> None:
    names = ("energy_j_per_token", "ttft_p50_ms", "acceptance_pos1_frac")
    run, versions = reports.past_run(1, **dict.fromkeys(names, 1.0)), ("0.31.0", *VERSIONS)
    days = tuple(msgspec.structs.replace(run, engine_version=one) for one in versions)
    case = msgspec.structs.replace(reports.CASE_REPORT, history=days)
    assert titles(case)[1:] == ["History of ttft p50", "History of energy"]
    svg = history_of("energy", *days).svg
    assert re.findall(r">(0\.3\d\.\d)<", svg) == list(VERSIONS)


def test_the_first_bad_run_of_those_that_still_are_is_marked() -> None:
    days = reports.judged_runs("ttft_p50_ms", "REGRESSED", "PASS", "INCONCLUSIVE", "REGRESSED")
    chart = history_of("ttft p50", *days)
    assert "Not fine since 2026-11-03 02:00 UTC with 0.32.0, at the red line" in chart.note
    assert chart.svg.count('stroke="var(--bad)"') == 1
    fine = history_of("ttft p50", *days[:2])
    assert "Not fine since" not in fine.note
    assert 'stroke="var(--bad)"' not in fine.svg


def hostile_reports() -> dict[str, Report]:
    """By place the report with a hostile text there."""
    report, replace = reports.REPORT, msgspec.structs.replace
    lost = dataclasses.replace(reports.LOST, reason=Reason(text=HOSTILE))
    other = dataclasses.replace(reports.LOST, case_id=HOSTILE)
    loads = [replace(at_load(load, 3, 1.5), models=HOSTILE) for load in (1, 4, 8)]
    return {
        "reason": reports.with_verdicts(lost),
        "remark": replace(report, remarks=(HOSTILE,)),
        "case_id": replace(reports.with_case(case_id=HOSTILE), run=reports.run_of(other)),
        "models": replace(report, cases=tuple(loads)),
        "error": reports.with_case(error=f"{HOSTILE}\n{HOSTILE}"),
    }


@pytest.mark.parametrize("place", hostile_reports())
def test_what_others_said_is_shown_and_not_obeyed(place: str) -> None:
    text = render_page(hostile_reports()[place])
    page = Page(text)
    assert page.all("script") == page.all("img") == []
    assert "&lt;script&gt;" in text


def test_a_run_without_cases_is_said() -> None:
    page = Page(render_page(reports.EMPTY))
    assert "acceptance: not judged: no test of it ran" in page.text
    assert "pytest tests/perf --specreg-tier=cpu" in page.text
    assert page.all("table") == []


def test_of_many_cases_those_that_fail_come_first() -> None:
    page = Page(render_page(many(9)))
    details = [str(one["id"]) for one in page.all("details") if "id" in one]
    assert len(details) == 9
    assert details[0] == "case-8"


def test_of_several_positions_the_worst_is_shown() -> None:
    lost = [
        reports.with_fields(reports.LOST, metric=f"acceptance_pos{n}_frac", change_frac=change)
        for n, change in enumerate((-0.1, -0.3, -0.2), start=1)
    ]
    text = Page(render_page(reports.with_verdicts(reports.HELD, *lost))).text
    overview = text.partition("Overview")[2].partition("The cases")[0]
    assert "▼ -30.0%" in overview
    assert overview.count("▼ -") == 1


def test_the_page_of_a_run_that_goes_on_says_so_and_reloads_itself() -> None:
    """Charts and what to type come at its end."""
    page = Page(render_page(reports.REPORT, in_progress="case 3 of 12, 18:40:12 UTC"))
    assert {"http-equiv": "refresh", "content": "10"} in page.all("meta")
    assert "Run in progress , case 3 of 12, 18:40:12 UTC: this page reloads itself" in page.text
    assert page.all("svg") == []
    assert "Charts are drawn once" not in page.text
    assert "Where that time is long past, the run was killed." in page.text
    assert "What to type next" not in page.text
    assert "refresh" not in render_page(reports.REPORT)


def test_without_the_extra_a_page_has_all_but_its_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specreg.report.page.can_draw", lambda: False)
    page = Page(render_page(reports.REPORT))
    assert page.all("svg") == []
    assert "Charts are drawn once you type" in page.text
    assert "time per output token, ms" in page.text
