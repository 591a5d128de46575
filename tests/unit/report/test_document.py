"""`report.json`: what was written is read again, and what can't be read is said."""

import dataclasses
import json
from pathlib import Path

import jsonschema
import msgspec
import pytest

from specreg.acceptance.record import AcceptanceRecord
from specreg.baselines.record import record_measurements
from specreg.core.errors import ReportError
from specreg.measurement.figures import figures_of, record_figures
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import Replay
from specreg.report.document import load_report, record_report, render_schema
from specreg.report.json import record_verdict
from specreg.suite.document import report_in, report_of
from specreg.suite.finish import run_verdict
from tests.unit import builders, reports
from tests.unit.report.test_breakdown import CASE, measured
from tests.unit.suite.test_run import COUNTS, LENGTH, SPEED, suite
from tests.unit.suite.test_run import measured as with_measurement

SCHEMA = builders.ROOT / "docs/report.schema.json"


def folder_of(path: Path) -> Path:
    """A run's folder with verdicts, figures and the document."""
    record_verdict(path / "verdict.json", reports.REPORT.run)
    record_figures(path / "figures" / f"{CASE.id}.json", figures_of(measured(), 1))
    record_report(path / "report.json", reports.REPORT)
    return path


def test_the_published_schema_is_that_of_the_code() -> None:
    assert SCHEMA.read_text() == render_schema(), (
        "specreg report --schema > docs/report.schema.json"
    )


@pytest.mark.parametrize("report", [reports.REPORT, reports.EMPTY], ids=["full", "no-cases"])
def test_what_is_written_keeps_to_the_schema_and_is_read_again(
    tmp_path: Path, report: msgspec.Struct
) -> None:
    path = tmp_path / "run/report.json"
    record_report(path, report)  # type: ignore[arg-type]
    jsonschema.validate(json.loads(path.read_text()), json.loads(SCHEMA.read_text()))
    assert load_report(path) == report


def test_the_schema_refuses_what_no_report_is() -> None:
    content = json.loads(msgspec.json.encode(reports.REPORT))
    content["cases"][0]["reproduce"] = 7
    with pytest.raises(jsonschema.ValidationError, match="7 is not of type 'string'"):
        jsonschema.validate(content, json.loads(SCHEMA.read_text()))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"schema_version": 0}', "schema version 0, this specreg reads 1; run the tier again"),
        (b'{"schema_version": 9}', "schema version 9, this specreg reads 1; use a newer specreg"),
        (b'{"schema_version": 1, "cases": []}', "missing required field `run`"),
        (b'{"schema_version": 1, "run"', "Input data was truncated"),
        (b"\xff", "run the tier again"),
    ],
    ids=["older", "newer", "lacking", "torn", "no-text"],
)
def test_a_report_that_cannot_be_read_is_said_and_the_rest_is_shown(
    tmp_path: Path, content: bytes, said: str
) -> None:
    path = folder_of(tmp_path) / "report.json"
    path.write_bytes(content)
    with pytest.raises(ReportError, match="report"):
        load_report(path)
    report, wrong = report_in(tmp_path)
    assert str(path) in wrong
    assert said in wrong
    assert wrong.endswith("shown is what its other files tell")
    assert report.run == reports.REPORT.run
    assert report.cases[0].figures is not None
    assert report.cases[0].expected is None


def test_figures_that_cannot_be_read_are_named_and_the_others_are_shown(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    (folder / "report.json").unlink()
    old = folder / "figures" / "another.json"
    old.write_text("{}")
    report, wrong = report_in(folder)
    assert f"figures '{old}': " in wrong
    assert report.cases[0].figures is not None


def test_a_report_of_an_earlier_specreg_is_read(tmp_path: Path) -> None:
    """What it doesn't say yet has a default."""
    content = json.loads(msgspec.json.encode(reports.REPORT))
    del content["ended_at"], content["origin"]["options"]
    del content["cases"][0]["logs"], content["cases"][0]["error"]
    path = tmp_path / "report.json"
    path.write_text(json.dumps(content))
    assert load_report(path).options == ("--specreg-tier=cpu",)


def test_a_folder_that_holds_nothing_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="No such file"):
        report_in(tmp_path)


def test_a_whole_folder_is_read_without_a_word(tmp_path: Path) -> None:
    assert report_in(folder_of(tmp_path)) == (reports.REPORT, "")


def test_a_disk_that_refuses_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ReportError, match=r"report '.*': not written, .*; make room"):
        record_report(tmp_path / "file" / "report.json", reports.REPORT)
    assert (tmp_path / "file").read_text() == ""


def test_the_document_of_a_run_holds_what_was_measured(tmp_path: Path) -> None:
    launch = builders.measurement({LENGTH.name: 2.5, SPEED.name: 100.0}, of=COUNTS)
    one = with_measurement(suite(tmp_path), launch)
    one.note_failure(builders.CASE, LENGTH, "it broke")
    report = report_of(one, run_verdict(one, 10, cut_short=False), command="pytest x")
    (case,) = report.cases
    assert case.case_id == builders.CASE.id
    assert case.settings == one.settings(builders.CASE)
    assert case.expected is None
    assert report.origin.command == "pytest x"


def test_the_baseline_is_shown_of_the_prompts_that_were_measured(tmp_path: Path) -> None:
    """Those of its extension differ, and a run that is as it was must look so."""
    plain = builders.prompt_acceptance(COUNTS)
    names = [f"chat-{number}" for number in range(8)]
    told = [dataclasses.replace(plain, prompt_id=name) for name in names]
    further = [dataclasses.replace(one, counts=builders.counts(1, 0, 0, 9)) for one in told[4:]]
    one = suite(tmp_path)
    full = with_prompts(builders.acceptance_of([*told[:4], *further]))
    record_measurements([full, full], one.settings(builders.CASE), one.shelf, reason="first")
    with_measurement(one, with_prompts(builders.acceptance_of(told[:4])))
    one.note_failure(builders.CASE, LENGTH, "so that it is there")
    (case,) = report_of(one, run_verdict(one, 10, cut_short=False), command="").cases
    assert case.figures is not None
    assert case.figures.acceptance is not None
    assert case.expected is not None
    assert case.expected.marginal_frac == case.figures.acceptance.total.marginal_frac
    assert case.expected.histogram == case.figures.acceptance.total.histogram
    assert case.expected.values[LENGTH.name] == COUNTS.acceptance_length


@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_speed_of_another_machine_is_no_baseline(tmp_path: Path, *, elsewhere: bool) -> None:
    one, launch = suite(tmp_path), builders.measurement({LENGTH.name: 2.5, SPEED.name: 100.0})
    environment = builders.OTHER_ENVIRONMENT if elsewhere else builders.ENVIRONMENT
    shelf = dataclasses.replace(one.shelf, environment=environment)
    record_measurements([launch, launch], one.settings(builders.CASE), shelf, reason="first")
    with_measurement(one, launch)
    one.note_failure(builders.CASE, LENGTH, "so that it is there")
    (case,) = report_of(one, run_verdict(one, 10, cut_short=False), command="").cases
    assert case.expected is not None
    assert case.expected.environment == environment.name
    assert (SPEED.name in case.expected.values) is not elsewhere


def with_prompts(record: AcceptanceRecord) -> Measurement:
    """A launch that did this."""
    launch = builders.measurement({LENGTH.name: 2.5, SPEED.name: 100.0})
    replay = Replay(rounds=(), control_rounds=(), acceptance=record)
    return dataclasses.replace(launch, replay=replay)
