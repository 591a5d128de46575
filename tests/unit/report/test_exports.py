"""The forms of a run: each is read back, and says what was measured."""

import csv
import dataclasses
import io
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import msgspec
import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as prometheus

from specreg.core.errors import ReportError, SpecregError
from specreg.core.families import Family
from specreg.core.reasons import Reason
from specreg.load.rounds import Round
from specreg.report.aiperf import render_aiperf
from specreg.report.benchmarks import benchmark_of, render_benchmarks
from specreg.report.document import RunReport
from specreg.report.exports import EXPORT_FORMATS, render_verdict_rows, write_outputs
from specreg.report.files import load_report
from specreg.report.page import render_markdown
from specreg.verdicts.verdict import Outcome
from tests.unit import builders
from tests.unit.builders import reports
from tests.unit.builders.ledgers import KEY, recorded
from tests.unit.builders.reports import CASE, MS, measured

HOSTILE = "<script>alert(1)</script> | `x` @all\n```\n# head"
MEASURED = {CASE.id: measured()}


def with_reason(text: str) -> RunReport:
    """The report with what a server said as the reason of a failure."""
    return reports.with_verdicts(
        reports.HELD, dataclasses.replace(reports.LOST, reason=Reason(text=text))
    )


def parsed(text: str) -> list[Token]:
    """What a reader of GitHub's Markdown sees: the inline parts of all blocks."""
    blocks = MarkdownIt("gfm-like", {"linkify": False}).parse(text)
    return [part for block in blocks for part in (block.children or [block])]


def test_markdown_says_first_what_needs_a_look_and_what_to_type() -> None:
    text = render_markdown(reports.REPORT)
    head, _, details = text.partition("<details>")
    assert head.startswith("## ✗ ")
    assert head.index("pytest tests/perf") < head.index("| **REGRESSED**")
    assert "| **REGRESSED** | 100 | 90 | -10.0% | -8.0% by acceptance" in head
    assert "\npytest tests/perf --specreg-tier=cpu\n" in head
    assert "acceptance_length_tokens" not in head
    values = "1.65 | 1.64 | -0.6% | -1.0..+1.0%; 5 %"
    assert f"| acceptance_length-1 | PASS | {values} |" in details


def test_what_a_server_said_is_no_markup_in_markdown() -> None:
    quotation = (
        f"{HOSTILE} ![i](http://x/i.png) [l](http://x) *b* __u__ ~~s~~ a\\|b &copy; $x$ #12 <b>"
    )
    plain = {token.type for token in parsed(render_markdown(with_reason("it became slower")))}
    report = msgspec.structs.replace(with_reason(quotation), remarks=(quotation,))
    tokens = parsed(render_markdown(report))
    assert {token.type for token in tokens} - plain <= {
        *("bullet_list_open", "bullet_list_close", "list_item_open", "list_item_close")
    }
    words = "".join(token.content for token in tokens).replace("\u200b", "")
    assert words.count(" ".join(quotation.split())) == 2
    assert {"@all", "#12"} & set(render_markdown(report).split()) == set()


def test_markdown_keeps_to_what_github_takes() -> None:
    verdicts = [
        dataclasses.replace(reports.LOST, case_id=f"{CASE.id}-{n}", reason=Reason(text="x " * 2000))
        for n in range(2000)
    ]
    report = msgspec.structs.replace(reports.with_verdicts(*verdicts), remarks=("y " * 2000,) * 100)
    text = render_markdown(report)
    assert len(text) <= 60_000
    assert "… and 1960 more" in text.partition("<details>")[0]
    assert text.count("<details>") == text.count("</details>") == 1
    assert "commit 0123456789ab" in text


@pytest.mark.parametrize(
    ("form", "read"), [("prometheus", prometheus), ("openmetrics", open_metrics)]
)
def test_prometheus_reads_values_verdicts_and_the_status(
    form: str, read: Callable[[str], Iterable[Metric]]
) -> None:
    (page,) = map(str, EXPORT_FORMATS[form].render(reports.REPORT, {}).values())
    families = {family.name: family for family in read(page)}
    verdicts = reports.REPORT.run.verdicts
    expected = {
        "value": {verdict.metric: verdict.value for verdict in verdicts},
        "expected": {verdict.metric: verdict.comparison.expected for verdict in verdicts},
        "change_ratio": {verdict.metric: verdict.comparison.change_frac for verdict in verdicts},
    }
    for name, values in expected.items():
        samples = families[f"specreg_{name}"].samples
        assert {sample.labels["metric"]: sample.value for sample in samples} == values
    rows = families["specreg_verdict"].samples
    outcomes = {row.labels["metric"]: row.labels["outcome"] for row in rows}
    assert outcomes == {
        verdict.metric: str(verdict.outcome) for verdict in reports.REPORT.run.verdicts
    }
    (status,) = families["specreg_exit_status"].samples
    assert (status.value, status.labels["tier"]) == (1, "cpu")
    (began,) = families["specreg_started_timestamp_seconds"].samples
    assert began.value == 1795226400


def test_each_verdict_is_a_row_whatever_its_reason_holds() -> None:
    held, lost = csv.DictReader(io.StringIO(render_verdict_rows(with_reason(HOSTILE))))
    assert (held["outcome"], held["value"], held["p_worse"]) == ("PASS", "2.64", "")
    assert held["by_position_frac"] == ""
    assert (lost["outcome"], lost["reason"]) == ("REGRESSED", HOSTILE)


FORMULAS = (
    '=HYPERLINK("http://x","y")',
    "+1+1",
    "-2+3|cmd",
    "@SUM(A1)",
    " =1",
    "\uff1d1+1",
    "\t=1",
    "\r=1",
)


@pytest.mark.parametrize("text", FORMULAS, ids=ascii)
def test_no_cell_begins_like_a_formula_and_numbers_stay_numbers(text: str) -> None:
    table = render_verdict_rows(with_reason(text))
    held, lost = csv.DictReader(io.StringIO(table))
    assert lost["reason"].startswith("'")
    assert float(lost["change_frac"]) < 0
    assert held["outcome"] == "PASS"


def test_a_spreadsheet_that_splits_at_semicolons_finds_no_formula() -> None:
    table = render_verdict_rows(with_reason("lost; =1+1;=2\n=3"))
    *_, lost = csv.reader(io.StringIO(table), delimiter=";")
    assert not any(cell.strip().startswith("=") for cell in lost)


def test_a_record_of_aiperf_says_when_how_long_and_what_was_accepted() -> None:
    files = render_aiperf(reports.REPORT, MEASURED)
    lines = files[f"aiperf/{CASE.id}/profile_export.jsonl"].splitlines()
    first, second = map(json.loads, lines)
    assert first["metadata"]["request_start_ns"] == 1795226400 * 10**9
    assert first["metadata"]["request_end_ns"] - first["metadata"]["request_start_ns"] == 21 * MS
    assert first["metrics"]["inter_token_latency"] == {"value": 5.0, "unit": "ms"}
    assert second["metrics"]["request_latency"]["value"] == 41.0
    assert second["spec_decode_acceptance"]["mean_acceptance_length"] == 4.0


def test_the_summary_of_aiperf_has_the_percentiles_of_the_report() -> None:
    files = render_aiperf(reports.REPORT, MEASURED)
    summary = json.loads(files[f"aiperf/{CASE.id}/profile_export_aiperf.json"])
    timing = reports.FIGURES.timing
    assert timing is not None
    assert timing.tpot_ms is not None
    latency = summary["inter_token_latency"]
    assert (latency["unit"], latency["avg"], latency["p99"]) == (
        *("ms", timing.tpot_ms.mean, timing.tpot_ms.p99),
    )
    throughput = {"unit": "tokens/sec", "avg": timing.throughput_tokens_per_s}
    assert summary["output_token_throughput"] == throughput
    assert summary["input_config"]["phases"] == [{"name": "profiling", "concurrency": 2}]
    unmeasured = reports.with_case(figures=None)
    (_, bare) = render_aiperf(unmeasured, MEASURED).values()
    assert "inter_token_latency" not in json.loads(bare)


def test_each_replay_of_a_prompt_has_its_own_record_of_aiperf() -> None:
    once = measured()
    assert once.replay is not None
    assert once.acceptance is not None
    (part,) = once.replay.rounds
    first, *later_rounds = once.acceptance.prompts
    again = dataclasses.replace(first, counts=builders.counts(4, 0, 0, 0))
    counted = builders.acceptance_of((first, *later_rounds, again))
    replay = dataclasses.replace(once.replay, rounds=(part, part), acceptance=counted)
    twice = dataclasses.replace(once, replay=replay)
    text = render_aiperf(reports.REPORT, {CASE.id: twice})[f"aiperf/{CASE.id}/profile_export.jsonl"]
    records = [json.loads(line) for line in text.splitlines()]
    lengths = [
        (record["spec_decode_acceptance"] or {}).get("mean_acceptance_length") for record in records
    ]
    assert lengths == [2.5, 4.0, 1.0, None]
    assert [record["metadata"]["session_num"] for record in records] == [0, 1, 2, 3]


@pytest.mark.parametrize("output", EXPORT_FORMATS)
def test_every_form_is_written_for_any_run_or_that_it_is_not(tmp_path: Path, output: str) -> None:
    recorded(tmp_path / "ledger.jsonl")
    for report in (reports.with_case(figures=None), reports.REPORT):
        written = write_outputs([output], report, tmp_path, tmp_path / "out")
        assert written
        assert all(path.is_file() for path in written)
    if EXPORT_FORMATS[output].takes_ledger:
        with pytest.raises(ReportError, match=rf"as {output}: no case of run '.*' has the meas"):
            write_outputs([output], reports.EMPTY, tmp_path, tmp_path / "empty")
    else:
        assert write_outputs([output], reports.EMPTY, tmp_path, tmp_path / "empty")


def stats_of(*rounds: Round) -> dict[str, Any]:
    once = measured()
    assert once.replay is not None
    replay = dataclasses.replace(once.replay, rounds=rounds)
    timed = {CASE.id: dataclasses.replace(once, replay=replay)}
    text = render_benchmarks(reports.REPORT, timed)["benchmark.json"]
    (benchmark,) = json.loads(text)["benchmarks"]
    return dict(benchmark["stats"])


@pytest.mark.parametrize(
    ("times_ms", "quartiles", "outliers", "ends"),
    [
        ((3,), (0.003, 0.003, 0.003), "0;0", (0.003, 0.003)),
        ((4, 1, 2, 3), (0.0015, 0.0025, 0.0035), "2;0", (0.001, 0.004)),
        ((1, 2, 3, 4, 50), (0.00175, 0.003, 0.0155), "1;1", (0.001, 0.004)),
    ],
)
def test_quartiles_and_outliers_are_those_of_pytest_benchmark(
    times_ms: tuple[int, ...],
    quartiles: tuple[float, ...],
    outliers: str,
    ends: tuple[float, float],
) -> None:
    stats = stats_of(*(reports.a_round(time_ms, categories=("chat",)) for time_ms in times_ms))
    assert [stats[name] for name in ("q1", "median", "q3")] == pytest.approx(quartiles)
    assert stats["outliers"] == outliers
    assert (stats["ld15iqr"], stats["hd15iqr"]) == pytest.approx(ends)
    assert stats["ops"] == pytest.approx(1000 * len(times_ms) / sum(times_ms))


def test_the_outcome_of_a_benchmark_is_the_worst_last_word_on_its_case() -> None:
    words = (Outcome.PASS, Outcome.REGRESSED, Outcome.MEASURED, Outcome.NO_BASELINE)
    own_verdicts = [reports.verdict(word, metric=word, case_id=CASE.id) for word in words]
    other_verdicts = [reports.verdict(Outcome.WRONG)]
    for verdicts, outcome in ((own_verdicts + other_verdicts, "REGRESSED"), (other_verdicts, "")):
        info = benchmark_of(measured(), verdicts)["extra_info"]
        assert info == {**measured().values, "outcome": outcome}


@pytest.mark.parametrize("family", [Family.THROUGHPUT, Family.LATENCY])
def test_a_case_whose_speeds_mean_nothing_is_no_benchmark(family: Family) -> None:
    invalid = dataclasses.replace(
        measured(), invalid={family: Reason(code="CLIENT_BEHIND", text="late")}
    )
    assert render_benchmarks(reports.REPORT, {CASE.id: invalid}) == {}


ODD_IDS = ("../../x", "/etc/x", "..", "a/b", "", "a\n", "x" * 300, "a\0b", "$(touch x)")


@pytest.mark.parametrize("case_id", ODD_IDS)
def test_a_report_names_no_file_by_its_cases(tmp_path: Path, case_id: str) -> None:
    """A report and a ledger of another machine may say so together."""
    run = tmp_path / "run"
    into = tmp_path / "into"
    (case,) = reports.with_case(case_id=case_id).cases
    report = msgspec.structs.replace(reports.REPORT, cases=(case,))
    recorded(run / "ledger.jsonl", msgspec.structs.replace(KEY, case_id=case_id), CASE)
    before = {path for path in tmp_path.rglob("*") if not path.is_relative_to(into)}
    with pytest.raises(SpecregError):
        write_outputs(["aiperf"], report, run, into)
    assert {path for path in tmp_path.rglob("*") if not path.is_relative_to(into)} == before
    (run / "report.json").write_bytes(msgspec.json.encode(report))
    with pytest.raises(ReportError, match="regex"):
        load_report(run / "report.json")


def test_a_form_is_written_through_no_link(tmp_path: Path) -> None:
    run = tmp_path / "run"
    outside = tmp_path / "outside"
    outside.mkdir()
    recorded(run / "ledger.jsonl", case=CASE)
    (run / "aiperf").symlink_to(outside)
    with pytest.raises(ReportError, match="is a link, or no folder"):
        write_outputs(["aiperf"], reports.REPORT, run, run)
    assert not list(outside.iterdir())


EIGHT_BIT = "\x9b31m\x9d0;title\x9c\x84\x85"
CONTROLS = f"{EIGHT_BIT}\x1b[31mred\x1b[0m\0\u202e\u2028\ud800\ufffe\n::error::x ##[error]y"


TEXTS = [name for name, form in EXPORT_FORMATS.items() if not form.takes_ledger and name != "png"]


@pytest.mark.parametrize("name", TEXTS)
def test_no_form_has_what_a_terminal_or_a_ci_obeys(tmp_path: Path, name: str) -> None:
    report = with_reason(f"a server said {CONTROLS}")
    controlled = msgspec.structs.replace(report, remarks=(CONTROLS,))
    paths = write_outputs([name], controlled, tmp_path, tmp_path)
    text = "\n".join(path.read_text() for path in paths)
    assert not set("\x1b\0\u202e\u2028\ufffe") & set(text)
    assert not re.search("[\x80-\x9f]", text)
    assert not [line for line in text.splitlines() if line.strip().startswith("::")]
    assert "##[" not in text
    if name == "junit":
        failures = ET.fromstring(text).iter("failure")  # noqa: S314 - our own
        assert any("red" in (failure.text or "") for failure in failures)
