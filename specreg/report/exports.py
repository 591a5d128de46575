"""Write a report in other formats: a page, Markdown, CSV, and the formats of other tools."""

import contextlib
import csv
import io
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from specreg.core.errors import ReportError
from specreg.core.values import readable_values
from specreg.measurement.measure import Measurement
from specreg.report.aiperf import render_aiperf
from specreg.report.benchmarks import BENCHMARKS, render_benchmarks
from specreg.report.document import Report, flat_fields
from specreg.report.files import write_in
from specreg.report.gauges import render_metrics
from specreg.report.junit import render_junit
from specreg.report.page import render_markdown, render_page
from specreg.report.pictures import render_bitmaps, render_pictures
from specreg.runs.ledger import LEDGER, read_ledger
from specreg.verdicts.verdict import Outcome, Verdict

ALWAYS = ("html", "markdown")
"""The formats that every run writes."""

_FORMULA = re.compile(r"(^|;)(\s*[=+\-@\uff0b\uff0d\uff1d\uff20])", re.MULTILINE)
"""The beginning of a formula. Some spreadsheets accept the full-width forms too, and in many
countries they split cells at semicolons and lines, whatever the quotes."""
_Measured = Mapping[str, Measurement]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportFormat:
    """A format in which a run's report can be written.

    Attributes:
        description: a description for users who choose a format.
        path: its file, or the folder of its files, below the report's folder.
        render: returns the contents of its files, by their paths, from the report and the run's
            measurements.
        takes_ledger: whether it needs the measurements. Otherwise it gets none.
    """

    description: str
    path: str
    render: Callable[[Report, _Measured], Mapping[str, str | bytes]]
    takes_ledger: bool = False


def write_outputs(
    names: Iterable[str], report: Report, run_folder: Path, folder: Path
) -> list[Path]:
    """Write a report in several formats.

    Args:
        names: the names of the formats in `EXPORT_FORMATS`.
        report: the report of the run.
        run_folder: the folder with the run's ledger.
        folder: the folder that the files are written to.

    Returns:
        The files that were written.

    Raises:
        SpecregError: the ledger can't be read, no case has what a format needs, or a file can't be
            written.
    """
    written: list[Path] = []
    for name in names:
        form = EXPORT_FORMATS[name]
        measured = _shown_measurements(report, run_folder) if form.takes_ledger else {}
        files = form.render(report, measured)
        if not files:
            lack = f"no case of run '{report.run.run}' has the measurements that it needs"
            raise ReportError(f"report as {name}: {lack}; name a run that has them")
        for path, content in files.items():
            # The file is written as a whole, because the node exporter may be reading it.
            encoded = content.encode() if isinstance(content, str) else content
            written.append(write_in(folder, path, encoded))

    return written


def _shown_measurements(report: Report, run_folder: Path) -> _Measured:
    """Return the measurement of each case on the launch that the report shows, by the case's id.

    For a case without figures it is the measurement on the last launch.
    """
    shown_launches = {case.case_id: case.figures.launch for case in report.cases if case.figures}
    launches = read_ledger(run_folder / LEDGER).measured.items()
    measured = {}
    for key, measurement in sorted(launches, key=lambda launch: launch[0].launch):
        # Without figures, each launch replaces the one before it.
        shown_launch = shown_launches.get(key.case_id, key.launch)
        if key.launch == shown_launch:
            measured[key.case_id] = measurement

    return measured


def append_job_summary(text: str) -> None:
    """Append a text to the summary of a GitHub job, if there is one. Errors are ignored."""
    summary_path = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary_path:
        with contextlib.suppress(OSError), Path(summary_path).open("a", encoding="utf-8") as file:
            file.write(text)


def render_verdict_rows(report: Report) -> str:
    """Return CSV with a row for each verdict and a column for each of its fields.

    A spreadsheet executes a cell that begins like a formula, so a formula in a text gets an
    apostrophe before it.
    """
    text = io.StringIO()
    columns = flat_fields(Verdict(case_id="", metric="", outcome=Outcome.PASS))
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for verdict in readable_values(report).run.verdicts:
        writer.writerow({name: _cell(value) for name, value in flat_fields(verdict).items()})
    return text.getvalue()


def _cell(value: object) -> object:
    """Return a field as a cell of CSV in which no spreadsheet finds a formula."""
    # An empty tuple would be written as `()`.
    if value == ():
        return ""
    if isinstance(value, str):
        return _FORMULA.sub(r"\1'\2", value)
    return value


def _render_openmetrics(report: Report) -> str:
    return render_metrics(report, generate_openmetrics)


def _one_file(description: str, path: str, render: Callable[[Report], str]) -> ExportFormat:
    """Return a form that is one file, made of the report alone."""
    return ExportFormat(
        description=description, path=path, render=lambda report, _: {path: render(report)}
    )


EXPORT_FORMATS: Mapping[str, ExportFormat] = {
    "html": _one_file("one page for people, which needs nothing else", "report.html", render_page),
    "markdown": _one_file("a summary for a pull request or a job", "report.md", render_markdown),
    "svg": ExportFormat(
        description="pictures for a pull request or a page of your own",
        path="pictures",
        render=lambda report, _: render_pictures(report),
    ),
    "png": ExportFormat(
        description="the same pictures where SVG can't be shown",
        path="pictures",
        render=lambda report, _: render_bitmaps(report),
    ),
    "junit": _one_file("JUnit's XML, a test for each verdict", "junit.xml", render_junit),
    "csv": _one_file("verdicts, a row each", "verdicts.csv", render_verdict_rows),
    "prometheus": _one_file(
        "gauges for the node exporter's text files", "specreg.prom", render_metrics
    ),
    "openmetrics": _one_file(
        "the same gauges as OpenMetrics", "specreg.openmetrics", _render_openmetrics
    ),
    "benchmark": ExportFormat(
        description="what pytest --benchmark-json writes",
        path=BENCHMARKS,
        render=render_benchmarks,
        takes_ledger=True,
    ),
    "aiperf": ExportFormat(
        description="aiperf's records of each request, and its summary of each case",
        path="aiperf",
        render=render_aiperf,
        takes_ledger=True,
    ),
}
"""The forms by the names that users give."""
