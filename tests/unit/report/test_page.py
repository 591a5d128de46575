"""The page of a run, read by a parser: what it holds, and that data in it stays data."""

import base64
import dataclasses
import hashlib
import re
from pathlib import Path

import msgspec
import pytest

from specreg.core.reasons import Reason
from specreg.engines.launch_facts import LaunchFacts
from specreg.report.charts import (
    CaseNights,
    break_even,
    category_map,
    change_pictures,
    energy_picture,
    gains_over_load,
    histories,
    nights_needed,
    oracle_positions,
    positions_picture,
    power_picture,
    speedup_picture,
    spread_pictures,
    throughput_over_latency,
    waterfall,
)
from specreg.report.document import CaseReport, RunReport
from specreg.report.drawing import CurvePicture
from specreg.report.junit import render_junit
from specreg.report.page import render_page
from specreg.report.side_by_side import side_by_side
from specreg.report.since import since_when
from specreg.telemetry.power_record import PowerRecord
from specreg.verdicts.history import RunRecord
from specreg.verdicts.verdict import Outcome
from tests.unit import builders
from tests.unit.builders import reports
from tests.unit.builders.pages import Page, many, many_nights, points_of
from tests.unit.builders.reports import CASE, FIGURES

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'"
VERSIONS = ("0.31.0", "0.32.0", "0.31.0", "0.32.1", "0.33.0", "0.34.0")


def drawn_nights(*cases: CaseReport) -> list[CurvePicture]:
    return list(histories([CaseNights.of(case) for case in cases]))


def titles(case: CaseReport) -> list[str]:
    return [picture.title for picture in drawn_nights(case)]


def test_what_fails_stands_first_with_its_cause_and_what_to_type() -> None:
    text = Page(render_page(reports.REPORT)).text
    order = ("✗ draft_model c2", "specreg gate", "The figures", "Overview", "The cases")
    assert [text.index(part) for part in order] == sorted(text.index(part) for part in order)
    lost = "throughput 90 tokens/s, recorded 100 tokens/s: worse by 10.0 % (8.0 to 12.0 %)"
    assert f"{lost}, tolerance 5 %" in text
    assert "-8.0% by acceptance, -2.0% by the cost of a step" in text
    # It is the one case of the tier, so that no -k is needed.
    assert "look again, on a fresh launch: pytest tests/perf --specreg-tier=cpu" in text


def test_a_gate_says_that_the_value_of_side_a_is_its_own_and_nothing_was_recorded() -> None:
    report = reports.gate_of(reports.REPORT.run)
    lost = "throughput 90 tokens/s, side A 100 tokens/s: worse by 10.0 % (8.0 to 12.0 %)"
    text = Page(render_page(report)).text
    assert lost in text
    assert lost in render_junit(report)
    assert "Compared with side A, measured on 2026-11-21 with vllm 0.31.0: “first run”." in text


def test_a_card_says_first_what_its_server_ran_with_other_than_its_baseline() -> None:
    expected = reports.CASE_REPORT.expected
    assert expected is not None
    before = LaunchFacts(model_runner="v1", attention_backend="FLASH_ATTN")
    facts_tonight = LaunchFacts(
        model_runner="v2", attention_backend="FLASH_ATTN", flashinfer="none"
    )
    report = reports.with_case(
        figures=msgspec.structs.replace(FIGURES, facts=facts_tonight),
        expected=msgspec.structs.replace(expected, facts=before),
    )
    text = Page(render_page(report)).text
    change = "Changed since its baseline: model runner v1 -> v2"
    assert text.index(change) < text.index("The figures")
    assert "model runner v2, attention backend FLASH_ATTN, FlashInfer none." in text


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
    since = "throughput: not fine since 2026-11-13 02:00 UTC, 2 judged runs in a row"
    last = "last fine 2026-11-12 02:00 UTC; both with 0.32.0"
    for phrase in (since, last, "logs of the servers: logs/a.log", "CUDA says no"):
        assert phrase in text


def test_figures_that_fail_since_the_same_night_are_named_together() -> None:
    names = ("acceptance_length_tokens", "throughput_tokens_per_s")
    fine = reports.past_run(12, **dict.fromkeys(names, 1.0))
    bad = msgspec.structs.replace(
        reports.past_run(13, **dict.fromkeys(names, 0.5)),
        outcomes=dict.fromkeys(names, "REGRESSED"),
    )
    lost_acceptance = dataclasses.replace(reports.HELD, outcome=Outcome.REGRESSED)
    facts = since_when(
        msgspec.structs.replace(reports.CASE_REPORT, history=(fine, bad)),
        [lost_acceptance, reports.LOST],
    )
    (fact,) = facts
    assert fact == (
        "acceptance length, throughput: not fine since 2026-11-13 02:00 UTC; last fine"
        " 2026-11-12 02:00 UTC; both with 0.32.0"
    )


@pytest.mark.parametrize(
    ("outcomes", "before"),
    [
        (("PASS", "INCONCLUSIVE"), "; last fine 2026-11-13 02:00 UTC; both with 0.32.0"),
        (("INCONCLUSIVE", "INCONCLUSIVE"), " with 0.32.0; undecided before"),
    ],
)
def test_a_loss_begins_with_no_night_that_could_not_tell(
    outcomes: tuple[str, ...], before: str
) -> None:
    """On an H200, three undecided nights of a speedup were said to be a loss of four."""
    name = "throughput_tokens_per_s"
    runs = reports.judged_runs(name, *outcomes, "REGRESSED", first_day=13)
    case = msgspec.structs.replace(reports.CASE_REPORT, history=runs)
    (fact,) = since_when(case, [reports.LOST])
    assert fact == f"throughput: not fine since 2026-11-15 02:00 UTC{before}"


@pytest.mark.parametrize("outcome", ["NOT_COMPARABLE", "NO_BASELINE", "INVALID", "MEASURED"])
def test_a_run_that_did_not_judge_a_figure_says_nothing_of_since_when(outcome: str) -> None:
    name = "throughput_tokens_per_s"
    runs = reports.judged_runs(name, *[outcome] * 3, "REGRESSED", first_day=13)
    report = reports.with_case(history=(*reports.CASE_REPORT.history, *runs))
    text = "throughput: not fine since 2026-11-16 02:00 UTC; last fine 2026-11-12"
    assert text in Page(render_page(report)).text
    unjudged = dataclasses.replace(reports.LOST, outcome=Outcome.NO_BASELINE)
    silent = msgspec.structs.replace(report, run=reports.run_of(unjudged))
    cards, _, _ = Page(render_page(silent)).text.partition("Accepted drafts, by position")
    assert "not fine since" not in cards


def test_the_page_needs_nothing_else_and_each_link_leads_somewhere() -> None:
    text = render_page(reports.with_case(logs=("logs/a.log",)))
    page = Page(text)
    targets = {str(link["href"]) for link in page.all("a")}
    anchors = {target.removeprefix("#") for target in targets if target.startswith("#")}
    assert anchors
    assert anchors <= set(page.ids)
    assert targets - {f"#{target}" for target in anchors} == {"logs/a.log"}
    assert len(page.ids) == len(set(page.ids))
    assert page.all("link") == page.all("img") == []
    loading = {"src", "href", "xlink:href", "action", "data"}
    used = [tag[name] for _, tag in page.tags for name in loading & tag.keys()]
    assert all(str(target).startswith(("#", "logs/")) for target in used)
    assert "url(" not in text
    assert "@import" not in text


def test_only_the_page_s_own_script_may_run() -> None:
    text = render_page(reports.REPORT)
    (script,) = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policies = [tag["content"] for tag in Page(text).all("meta") if "http-equiv" in tag]
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert policies == [policy]


@pytest.mark.parametrize(
    "log",
    ["javascript:alert(1)", "/etc/passwd", "logs/../../x", "https://a.b/c", "logs/a b", "//x"],
)
def test_a_log_that_is_no_file_of_the_run_is_no_link(log: str) -> None:
    page = Page(render_page(reports.with_case(logs=(log,))))
    assert all(str(link["href"]).startswith("#") for link in page.all("a"))
    assert log in page.text


def test_what_is_said_of_a_case_comes_as_pictures_and_in_numbers() -> None:
    assert titles(reports.CASE_REPORT) == ["acceptance length", "throughput"]
    page = Page(render_page(reports.REPORT))
    # What was expected, both causes, the value, and their axis; the positions; two histories by
    # figure, the two of the case, two spreads of times, and what they have in common.
    assert len(page.all("svg")) == 15
    for words in ("time per output token, ms", "without speculation", "p99", "0.31.0"):
        assert words in page.text


def test_the_pictures_stand_above_the_table() -> None:
    gained = reports.with_fields(
        reports.HELD, metric="speedup_ratio", value=1.5, expected=1.6, change_frac=-0.06
    )
    text = Page(render_page(reports.with_verdicts(reports.HELD, gained))).text
    headings = (
        "What speculation gains",
        "Accepted drafts, by position",
        "The last runs",
        "Overview",
        "The cases",
    )
    assert [text.index(part) for part in headings] == sorted(map(text.index, headings))


def test_a_speedup_is_drawn_with_its_interval_and_its_baseline() -> None:
    verdict = reports.with_fields(
        reports.LOST,
        metric="speedup_ratio",
        value=1.5,
        expected=2.0,
        change_frac=-0.25,
        low_frac=-0.5,
        high_frac=0.0,
    )
    picture = speedup_picture(reports.with_verdicts(reports.HELD, verdict))
    assert picture is not None
    (row,) = picture.rows
    assert [tick.label for tick in picture.ticks] == ["×0.0", "×0.5", "×1.0", "×1.5", "×2.0"]
    assert (row.label, row.text, row.tone) == (CASE.id, "×1.50, was ×2.00", "bad")
    assert row.interval is not None
    assert row.baseline is not None
    places = (row.value, *row.interval, row.baseline)
    assert [picture.at(value) for value in places] == [75, 50, 100, 100]
    assert picture.at(picture.reference) == 50
    assert speedup_picture(reports.EMPTY) is None


def test_the_fall_of_a_speedup_is_drawn_from_one_and_says_that_it_costs() -> None:
    lost = reports.with_fields(
        reports.LOST, metric="speedup_ratio", value=0.5, expected=1.5, cause=None
    )
    picture = waterfall([lost], "A", "B")
    assert picture is not None
    assert [(row.label, picture.at(row.value)) for row in picture.rows] == [("A", 75), ("B", 25)]
    assert picture.at(picture.reference) == 50
    assert picture.note
    still_gains = waterfall([dataclasses.replace(lost, value=1.1)], "A", "B")
    assert still_gains is not None
    assert not still_gains.note
    # Another speed begins at 0.
    of_output = waterfall([reports.LOST], "A", "B")
    assert of_output is not None
    assert of_output.reference == 0


def test_a_gate_draws_the_change_of_each_figure_with_its_interval() -> None:
    shown = list(change_pictures(reports.gate_of(reports.REPORT.run)))
    assert [picture.title for picture in shown] == [
        "Change of acceptance length",
        "Change of throughput",
    ]
    (row,) = shown[1].rows
    assert row.text == "-10.0% (-12.0..-8.0%)"
    assert [tick.label for tick in shown[1].ticks] == ["-15%", "-10%", "-5%", "0%"]
    assert row.interval is not None
    places = (row.interval[0], row.value, row.interval[1])
    assert [shown[1].at(value) for value in places] == [20, 33.3, 46.7]


def test_a_speedup_without_a_baseline_has_no_interval_and_no_mark_to_explain() -> None:
    verdict = reports.verdict(Outcome.NO_BASELINE, value=1.5)
    first = dataclasses.replace(verdict, case_id=CASE.id, metric="speedup_ratio")
    picture = speedup_picture(reports.with_verdicts(first))
    assert picture is not None
    assert picture.note == (
        "Throughput with speculation over throughput without it. Left of ×1: slower than without"
        " speculation."
    )


def test_an_energy_whose_part_at_rest_is_not_known_has_no_mark_to_explain() -> None:
    known = builders.power(energy_j=3000, window_s=10.0, tokens=1000)
    assert known.case is not None
    arm = msgspec.structs.replace(known.case, idle_w=None)
    picture = energy_picture(PowerRecord(case=arm, control=arm))
    assert picture is not None
    assert picture.note == "In J, of all devices together."


def test_each_skipped_case_is_named_with_its_reason() -> None:
    run = msgspec.structs.replace(reports.REPORT.run, skipped={"big": "2 GPU(s) needed"})
    page = Page(render_page(msgspec.structs.replace(reports.REPORT, run=run)))
    assert "What was skipped big: 2 GPU(s) needed" in page.text


def test_an_engine_whose_versions_are_not_known_is_not_called_the_same() -> None:
    figures = msgspec.structs.replace(FIGURES, engine_version="")
    expected = msgspec.structs.replace(reports.EXPECTED, engine_version="")
    page = Page(render_page(reports.with_case(figures=figures, expected=expected)))
    assert "vllm , as its baseline" not in page.text


def test_a_side_without_figures_is_not_called_measured() -> None:
    comparison = side_by_side(reports.with_case(figures=None), reports.another())
    assert comparison.cases[0].expected is None
    text = Page(render_page(comparison)).text
    assert "Compared with side A" not in text
    assert "Side A has no figures of this case." in text
    assert "There is no baseline" not in text


def test_a_run_without_a_speedup_draws_no_change_of_a_side_that_it_does_not_have() -> None:
    page = render_page(reports.with_case(figures=None))
    assert "B against A" not in page
    assert "What speculation gains" not in page


def test_the_cases_of_a_method_show_their_positions_side_by_side() -> None:
    other = msgspec.structs.replace(reports.CASE_REPORT, case_id="other", expected=None)
    eagle = msgspec.structs.replace(other, case_id="c", method="eagle3")
    run = reports.run_of(reports.HELD)
    alone = msgspec.structs.replace(other, case_id="d", method="none", figures=None)
    cases = (reports.CASE_REPORT, other, eagle, alone)
    text = Page(render_page(msgspec.structs.replace(reports.REPORT, run=run, cases=cases))).text
    section = text.partition("Accepted drafts, by position")[2].partition("Overview")[0]
    assert " none " not in section
    words = ["draft_model", CASE.id, "other", "eagle3"]
    assert [section.index(f" {word} ") for word in words] == sorted(
        section.index(f" {word} ") for word in words
    )


def test_a_position_stands_beside_that_of_its_baseline() -> None:
    drawn = positions_picture(reports.CASE_REPORT)
    assert drawn is not None
    assert [(bar.share, bar.expected) for bar in drawn.bars][:2] == [(63.6, 64), (63.6, 60)]
    judged = reports.with_fields(
        reports.LOST, metric="acceptance_pos2_frac", value=0.01, expected=0.55
    )
    drawn = positions_picture(reports.CASE_REPORT, [judged])
    assert drawn is not None
    assert [(bar.share, bar.expected) for bar in drawn.bars][:2] == [(63.6, 64), (1, 55)]
    unrecorded = msgspec.structs.replace(reports.CASE_REPORT, expected=None)
    without_baseline = positions_picture(unrecorded)
    assert without_baseline is not None
    assert [bar.expected for bar in without_baseline.bars] == [None, None, None]


def test_a_part_that_is_not_known_has_no_picture() -> None:
    bare = msgspec.structs.replace(reports.CASE_REPORT, expected=None, history=())
    assert titles(bare) == []
    without = msgspec.structs.replace(bare, figures=None)
    assert positions_picture(without) is None


def test_only_runs_that_judged_the_figure_are_drawn() -> None:
    words = ("PASS", "NOT_COMPARABLE", "NO_BASELINE", "MEASURED", "INVALID", "REGRESSED")
    runs = reports.judged_runs("acceptance_length_tokens", *words)
    (line,) = history_of("acceptance length", *runs).curves
    assert len(points_of(line.path)) == 2


def test_the_last_thirty_nights_of_all_cases_are_lines_of_one_picture() -> None:
    metric = "throughput_tokens_per_s"
    runs = tuple(
        msgspec.structs.replace(
            reports.past_run(1, **{metric: 100.0 + day}), run=f"2026{month:02}{day:02}T020000-1"
        )
        for month in (10, 11)
        for day in range(1, 31)
    )
    slow = tuple(
        msgspec.structs.replace(
            run, outcomes={metric: "REGRESSED"}, values={metric: 50.0}, engine_version="0.33.0"
        )
        for run in runs[50:]
    )
    cases = [
        msgspec.structs.replace(reports.CASE_REPORT, history=runs),
        msgspec.structs.replace(
            reports.CASE_REPORT, case_id="other", history=(*runs[:50], *slow), expected=None
        ),
    ]
    (picture,) = drawn_nights(*cases)
    assert picture.title == "throughput"
    assert [len(points_of(curve.path)) for curve in picture.curves] == [30, 30]
    assert [tick.label for tick in picture.x_ticks][:3] == ["11-01", "11-05", "11-09"]
    assert [version.label for version in picture.versions] == ["0.32.0", "0.33.0"]
    assert [tick.label for tick in picture.y_ticks] == [
        "-60%",
        "-40%",
        "-20%",
        "0%",
        "+20%",
        "+40%",
    ]
    assert len(picture.bad) == 1
    assert len(picture.curves[1].dots) == 10
    assert "other has not been fine since 2026-11-21 02:00 UTC with 0.33.0." in picture.note


def test_of_many_cases_the_fine_ones_are_grey_behind_those_that_are_not() -> None:
    metric = "throughput_tokens_per_s"
    fine = reports.judged_runs(metric, "INCONCLUSIVE", "PASS")
    bad = reports.judged_runs(metric, "PASS", "REGRESSED")
    cases = [
        msgspec.structs.replace(reports.CASE_REPORT, case_id=f"case-{number}", history=runs)
        for number, runs in enumerate([bad, *[fine] * 7])
    ]
    (picture,) = drawn_nights(*cases)
    assert [curve.color for curve in picture.curves] == [*["base"] * 7, "bad"]
    assert [len(curve.dots) for curve in picture.curves] == [*[0] * 7, 1]
    assert picture.note == "case-0 has not been fine since 2026-11-02 02:00 UTC with 0.32.0."


def test_a_night_that_could_not_tell_has_a_dot_though_nothing_is_lost() -> None:
    runs = reports.judged_runs("throughput_tokens_per_s", "PASS", "INCONCLUSIVE", "PASS")
    case = msgspec.structs.replace(reports.CASE_REPORT, history=runs, expected=None)
    (picture,) = drawn_nights(case)
    assert [dot.color for dot in picture.curves[0].dots] == ["doubt"]


def test_a_dot_and_the_note_of_a_single_case_say_its_values_in_their_unit() -> None:
    metric = "throughput_tokens_per_s"
    runs = reports.judged_runs(metric, "PASS", "REGRESSED", value=90.0)
    expected = msgspec.structs.replace(reports.EXPECTED, values={metric: 100.0})
    case = msgspec.structs.replace(reports.CASE_REPORT, history=runs, expected=expected)
    (picture,) = drawn_nights(case)
    (dot,) = picture.curves[0].dots
    assert dot.text == "2026-11-02 02:00 UTC with 0.32.0: 90 tokens/s"
    assert picture.note.endswith("Dashed: the baseline, 100 tokens/s.")


def test_a_page_of_seventy_two_cases_and_thirty_nights_stays_small(tmp_path: Path) -> None:
    text = render_page(many_nights(tmp_path / "machine.jsonl", cases=72, nights=30))
    assert len(text.encode()) <= 1_100_000
    page = Page(text)
    # A history of each of eight figures but two, of all cases together and of each case. The rate
    # and TPOT follow others, whose pictures they would repeat. Two spreads of each case.
    assert text.count('<figure class="curves">') == 6 * 73 + 2 * 72
    drawn = {link["href"] for link in page.all("use")}
    assert drawn <= {f"#{name}" for name in page.ids}
    assert len(page.ids) == len(set(page.ids))


def test_a_figure_that_never_changed_but_for_noise_of_rounding_has_no_picture() -> None:
    metric = "acceptance_length_tokens"
    values = (3.0516372795969775, 3.0516372795969779, 3.0516372795969775)
    runs = tuple(
        reports.past_run(day, **{metric: value}) for day, value in enumerate(values, start=1)
    )
    case = msgspec.structs.replace(reports.CASE_REPORT, history=runs, expected=None)
    assert drawn_nights(case) == []
    lost = reports.past_run(4, **{metric: 2.9})
    (picture,) = drawn_nights(msgspec.structs.replace(case, history=(*runs, lost)))
    assert len(points_of(picture.curves[0].path)) == 4


def at_load(concurrency: int, drafts: int, ratio: float, **further_settings: int) -> CaseReport:
    """The case at such a load, with so many drafts of a step and such a gain."""
    changes = {"concurrency": concurrency, "draft_tokens": drafts, **further_settings}
    settings = dataclasses.replace(builders.SETTINGS, **changes)  # type: ignore[arg-type]
    figures = msgspec.structs.replace(FIGURES, judged={"speedup_ratio": ratio})
    words = "-".join(map(str, (*changes.values(), drafts)))
    return msgspec.structs.replace(
        reports.CASE_REPORT, case_id=f"case-{words}", settings=settings, figures=figures
    )


def test_each_number_of_drafts_is_a_line_of_its_own() -> None:
    gains = {(1, 3): 2.0, (4, 3): 1.8, (8, 3): 1.5, (1, 7): 2.4, (4, 7): 1.5, (8, 7): 0.5}
    (picture,) = gains_over_load([at_load(*key, ratio) for key, ratio in gains.items()])
    assert [curve.name for curve in picture.curves] == ["draft_model-k3", "draft_model-k7"]
    assert "draft_model-k3 pays at 1 to 8 in flight" in picture.note
    assert "draft_model-k7 pays up to about 5.7" in picture.note
    ((crossing, _),) = picture.curves[1].diamonds
    assert crossing == pytest.approx(96 + 554 * 2.5 / 3, abs=1)  # log2(5.66) of log2(8)
    assert [tick.label for tick in picture.x_ticks] == ["1", "4", "8"]


def test_cases_that_differ_in_more_than_the_load_are_lines_of_their_own() -> None:
    long = [at_load(load, 3, 0.5, output_cap_tokens=64) for load in (1, 4, 8)]
    (picture,) = gains_over_load([*(at_load(load, 3, 1.5) for load in (1, 4, 8)), *long])
    assert "draft_model-k3 pays at 1 to 8 in flight" in picture.note
    settings = "draft_model-k3 (output_cap_tokens: 20 -> 64)"
    assert f"{settings} never pays at 1 to 8 in flight" in picture.note
    assert settings in [curve.name for curve in picture.curves]


def test_two_loads_show_no_place_where_it_stops_to_pay() -> None:
    assert list(gains_over_load([at_load(load, 3, 1.5) for load in (1, 8)])) == []
    fewer = [at_load(load, 3, 1.5) for load in (1, 4, 8)] + [at_load(1, 7, 2.0)]
    (picture,) = gains_over_load(fewer)
    assert "draft_model-k7" in [curve.name for curve in picture.curves]
    assert "k7" not in picture.note


def test_three_loads_show_throughput_over_the_time_of_a_token_with_and_without() -> None:
    cases = [at_load(load, 3, 1.5) for load in (1, 4, 8)]
    (picture,) = throughput_over_latency(cases)
    assert [curve.name for curve in picture.curves] == ["without speculation", "draft_model-k3"]
    assert [dot.label for dot in picture.curves[1].dots] == ["", "", "c8"]
    assert "1 in flight, draft_model-k3: 10 tokens/s at 7.5 ms per token" in {
        dot.text for dot in picture.curves[1].dots
    }
    (right, *_), (left, *_) = (curve.dots for curve in picture.curves)
    assert left.x < right.x
    assert list(throughput_over_latency(cases[:2])) == []


def test_the_times_of_requests_are_drawn_with_and_without_speculation() -> None:
    first_token, token = spread_pictures(FIGURES)
    assert (first_token.title, token.title) == ("Time to first token, ms", "Time per token, ms")
    assert [curve.name for curve in token.curves] == ["without it", "with speculation"]
    without, with_speculation = token.curves
    assert "50 % with speculation: 7.5 ms" in {dot.text for dot in with_speculation.dots}
    assert with_speculation.dots[0].x < without.dots[0].x
    assert list(spread_pictures(msgspec.structs.replace(FIGURES, control=None))) == []


def test_an_undecided_figure_shows_after_how_many_nights_it_is_decided() -> None:
    undecided = dataclasses.replace(
        reports.LOST, outcome=Outcome.INCONCLUSIVE, softened=True, nights=3, needed_nights=9
    )
    picture = nights_needed(reports.with_verdicts(reports.HELD, undecided))
    assert picture is not None
    (row,) = picture.rows
    assert (row.label, row.text) == (f"{CASE.id}: throughput", "about 9 nights")
    assert (row.value, row.baseline, picture.axis.low) == (9, 4, 0)
    assert "Nights until it is decided" in render_page(reports.with_verdicts(undecided))
    late = dataclasses.replace(undecided, nights=9)
    assert nights_needed(reports.with_verdicts(late)) is None


@pytest.mark.parametrize(
    ("loads", "words"),
    [
        ([(1, 2.0), (4, 1.5), (8, 1.2)], "pays at 1 to 8 in flight"),
        ([(1, 0.9), (4, 0.5), (8, 0.4)], "never pays at 1 to 8 in flight"),
        ([(1, 2.0), (4, 1.5), (16, 0.5)], "pays up to about 8 in flight"),
        ([(1, 0.5), (4, 1.5), (8, 1.6)], "pays from about 2 in flight"),
        ([(64, 2.0), (256, 1.5), (1024, 0.5)], "pays up to about 510 in flight"),
        ([(1, 1.5), (4, 0.5), (8, 1.6)], "pays at 1, 8 in flight, not at 4"),
    ],
)
def test_where_it_stops_to_pay_is_told(loads: list[tuple[int, float]], words: str) -> None:
    assert break_even(loads) == words


def test_acceptance_by_position_stands_against_the_oracle_where_it_was_asked() -> None:
    oracle = reports.verdict(Outcome.WRONG, by_position_frac=((0.8, 0.9), (0.3, 0.7)))
    known = dataclasses.replace(oracle, case_id=CASE.id)
    page = Page(render_page(reports.with_verdicts(reports.HELD, known)))
    assert "the engine the oracle, for the engine's text and models" in page.text
    (picture,) = oracle_positions([oracle])
    assert [(bar.share, bar.expected) for bar in picture.bars] == [(80, 90), (30, 70)]


def with_power(case: CaseReport, power: PowerRecord) -> CaseReport:
    assert case.figures is not None
    return msgspec.structs.replace(case, figures=msgspec.structs.replace(case.figures, power=power))


def test_energy_is_drawn_for_both_servers_where_both_are_known() -> None:
    own_power, alone = (
        builders.power(energy_j=e, window_s=10.0, tokens=1000) for e in (3000, 4000)
    )
    power = msgspec.structs.replace(own_power, control=alone.case, energy_ratio=4 / 3)
    case = with_power(reports.CASE_REPORT, power)
    page = Page(render_page(reports.with_case(figures=case.figures)))
    assert "3 J per token (±0.1 %), 300 W on average" in page.text
    invalid_power = msgspec.structs.replace(
        power, invalid=Reason(code="POWER_INVALID", text="shared")
    )
    invalid_case = with_power(reports.CASE_REPORT, invalid_power)
    page = Page(render_page(reports.with_case(figures=invalid_case.figures)))
    assert "POWER_INVALID: shared" in page.text
    assert "J per token" not in page.text
    picture = energy_picture(power)
    assert picture is not None
    assert [(row.label, row.text) for row in picture.rows] == [
        ("with speculation", "3 J per token, 1 of it at rest"),
        ("without it", "4 J per token, 1 of it at rest"),
    ]
    assert [picture.at(row.value) for row in picture.rows] == [75, 100]
    assert [picture.at(row.baseline or 0) for row in picture.rows] == [25, 25]
    at_loads = [at_load(load, 3, 1.5) for load in (1, 4, 8)]
    for invalid, expected in (({}, ["Speedup", "Energy"]), ({"too_short": "5 s"}, ["Speedup"])):
        known = msgspec.structs.replace(power, **invalid)
        loads = [with_power(load, known) for load in at_loads]
        assert [chart.title.split()[0] for chart in gains_over_load(loads)] == expected
    assert energy_picture(own_power) is None


def test_power_is_drawn_over_the_time_of_the_load_where_it_was_measured() -> None:
    own, alone = (builders.power(window_s=20.0).case for _ in range(2))
    assert own is not None
    assert alone is not None
    own = msgspec.structs.replace(own, over_time_w=(200.0, 400.0, 300.0, 0.0))
    alone = msgspec.structs.replace(alone, window_s=10.0, over_time_w=(100.0, 100.0))
    picture = power_picture(PowerRecord(case=own, control=alone))
    assert picture is not None
    assert [curve.name for curve in picture.curves] == ["without speculation", "with speculation"]
    assert [dot.text for curve in picture.curves for dot in curve.dots] == [
        "most without speculation: 100 W, after 2 s",
        "most with speculation: 400 W, after 8 s",
    ]
    drawn = with_power(reports.CASE_REPORT, PowerRecord(case=own, control=alone))
    assert "Power over time, W" in Page(render_page(reports.with_case(figures=drawn.figures))).text
    still = msgspec.structs.replace(own, over_time_w=(0.0, 0.0))
    assert power_picture(PowerRecord(case=still)) is not None
    invalid = Reason.of("POWER_INVALID", fault="shared")
    assert power_picture(PowerRecord(case=own, invalid=invalid)) is None
    assert power_picture(builders.power()) is None


def history_of(title: str, *runs: RunRecord) -> CurvePicture:
    case = msgspec.structs.replace(reports.CASE_REPORT, history=runs, expected=None)
    (picture,) = [picture for picture in drawn_nights(case) if picture.title == title]
    return picture


def test_each_metric_that_was_judged_has_a_history_with_the_engines_versions() -> None:
    names = ("energy_j_per_token", "ttft_p50_ms", "acceptance_pos1_frac")
    days = tuple(
        msgspec.structs.replace(
            reports.past_run(day, **dict.fromkeys(names, float(day))), engine_version=version
        )
        for day, version in enumerate(("0.31.0", *VERSIONS), start=1)
    )
    case = msgspec.structs.replace(reports.CASE_REPORT, history=days)
    assert titles(case) == ["ttft p50", "energy"]
    picture = history_of("energy", *days)
    assert [version.label for version in picture.versions] == list(VERSIONS)


def test_a_night_without_an_engine_begins_none_of_its_versions_again() -> None:
    metric = "throughput_tokens_per_s"
    runs = tuple(reports.past_run(day, **{metric: 100.0 + day}) for day in (1, 2, 3))
    cases = [
        msgspec.structs.replace(reports.CASE_REPORT, history=runs),
        msgspec.structs.replace(
            reports.CASE_REPORT, case_id="other", engine="sglang", history=(runs[0], runs[2])
        ),
    ]
    (picture,) = drawn_nights(*cases)
    assert [version.label for version in picture.versions] == ["vllm 0.32.0", "sglang 0.32.0"]


def test_the_first_bad_run_of_those_that_still_are_is_marked() -> None:
    days = reports.judged_runs("ttft_p50_ms", "REGRESSED", "PASS", "INCONCLUSIVE", "REGRESSED")
    picture = history_of("ttft p50", *days)
    assert picture.note.startswith("Not fine since 2026-11-04 02:00 UTC with 0.32.0. Dashed")
    assert picture.bad == [650]
    fine = history_of("ttft p50", *days[:2])
    assert "Not fine" not in fine.note
    assert fine.bad == []


def hostile_reports() -> dict[str, RunReport]:
    """By place the report with a hostile text there."""
    report = reports.REPORT
    replace = msgspec.structs.replace
    lost = dataclasses.replace(reports.LOST, reason=Reason(text=HOSTILE))
    hostile = dataclasses.replace(reports.LOST, case_id=HOSTILE)
    loads = [replace(at_load(load, 3, 1.5), models=HOSTILE) for load in (1, 4, 8)]
    return {
        "reason": reports.with_verdicts(lost),
        "remark": replace(report, remarks=(HOSTILE,)),
        "case_id": replace(reports.with_case(case_id=HOSTILE), run=reports.run_of(hostile)),
        "models": replace(report, cases=tuple(loads)),
        "error": reports.with_case(error=f"{HOSTILE}\n{HOSTILE}"),
    }


@pytest.mark.parametrize("location", hostile_reports())
def test_what_others_said_is_shown_and_not_obeyed(location: str) -> None:
    text = render_page(hostile_reports()[location])
    page = Page(text)
    assert len(page.all("script")) == 1
    assert page.all("img") == []
    assert "&lt;script&gt;" in text


def test_a_loss_of_a_check_or_of_an_unknown_metric_has_no_fall_to_draw() -> None:
    for name in ("lossless_frac", "of_another_specreg"):
        lost = dataclasses.replace(reports.LOST, metric=name)
        assert "Overview" in Page(render_page(reports.with_verdicts(lost))).text


def test_each_category_of_a_case_has_its_length_beside_what_was_expected() -> None:
    expected = msgspec.structs.replace(
        reports.EXPECTED, by_category_length_tokens={"chat": 2.0, "math": 4.0}
    )
    case = msgspec.structs.replace(reports.CASE_REPORT, expected=expected)
    names, rows = category_map([case])
    assert list(names) == ["chat", "math"]
    chat, math = rows[CASE.id]
    assert chat is not None
    assert (chat.length, chat.change, chat.gain, chat.tone) == ("2.50", "+50.0%", "×2.00", "good")
    assert math is not None
    assert (math.length, math.change, math.tone) == ("4.00", "+0.0%", "plain")
    assert category_map([msgspec.structs.replace(case, figures=None)]) == ([], {})


def test_a_run_without_cases_is_said() -> None:
    page = Page(render_page(reports.EMPTY))
    assert "Nothing was judged" in page.text
    assert "pytest tests/perf --specreg-tier=cpu" in page.text
    assert page.all("table") == []


def test_of_many_cases_those_that_fail_come_first() -> None:
    page = Page(render_page(many(9)))
    details = [str(tag["id"]) for tag in page.all("details") if "id" in tag]
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
    """What to type comes at its end."""
    page = Page(render_page(reports.REPORT, in_progress="case 3 of 12, 18:40:12 UTC"))
    assert {"http-equiv": "refresh", "content": "10"} in page.all("meta")
    assert "Run in progress , case 3 of 12, 18:40:12 UTC: this page reloads itself" in page.text
    assert "If the time above is long past, the run was killed." in page.text
    assert "What to type next" not in page.text
    assert "refresh" not in render_page(reports.REPORT)
