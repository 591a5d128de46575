"""The forms in which a run is handed on: a row for each, and where its files go."""

import importlib.util
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from specreg.core.commands import install_command
from specreg.core.errors import ReportError, SpecregError
from specreg.core.files import replace_file
from specreg.core.redaction import hide_known
from specreg.report.document import Report
from specreg.report.exports import aiperf
from specreg.report.exports._measured import Measured, measured_in
from specreg.report.markdown import render_markdown
from specreg.report.prometheus import render_metrics
from specreg.report.tabular import render_spread_rows, render_verdict_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What a form is made of: the document, what is wrong with it, and each request."""

    report: Report
    wrong: str
    measured: Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One form.

    Attributes:
        name: what the command calls it; text: what it is.
        files: its files, by their paths below the run's folder.
        needs: packages of the extra `report` without which it can't be made.
        per_request: whether it takes each request, which the journal has.
    """

    name: str
    text: str
    files: Callable[[Given], Mapping[str, str]]
    needs: tuple[str, ...] = ()
    per_request: bool = False


def _html(given: Given) -> Mapping[str, str]:
    from specreg.report.page import render_page  # noqa: PLC0415 - takes the extra `report`

    return {"report.html": render_page(given.report, wrong=given.wrong)}


def _csv(given: Given) -> Mapping[str, str]:
    return {
        "verdicts.csv": render_verdict_rows(given.report),
        "spreads.csv": render_spread_rows(given.report),
    }


_ROWS = (
    Output(
        name="html",
        text="one page for people, which needs nothing else",
        files=_html,
        needs=("vl_convert",),
    ),
    Output(
        name="markdown",
        text="a summary for a pull request or a job",
        files=lambda given: {"report.md": render_markdown(given.report, wrong=given.wrong)},
    ),
    Output(name="csv", text="verdicts and spreads, a row each", files=_csv),
    Output(
        name="prometheus",
        text="gauges for the node exporter's text files",
        files=lambda given: {"specreg.prom": render_metrics(given.report)},
    ),
    Output(
        name="aiperf",
        text="aiperf's records of each request",
        files=lambda given: aiperf.export(given.report, given.measured),
        per_request=True,
    ),
)
OUTPUTS: Mapping[str, Output] = MappingProxyType({output.name: output for output in _ROWS})

ALWAYS = ("html", "markdown")
"""What each run leaves, as far as what that takes is installed."""


def can_make(output: Output) -> bool:
    """Whether what a form takes is installed."""
    return all(importlib.util.find_spec(package) is not None for package in output.needs)


def write_outputs(
    names: Iterable[str], report: Report, run_folder: Path, folder: Path, *, wrong: str = ""
) -> tuple[list[Path], list[str]]:
    """Writes forms of a run.

    Args:
        names: of OUTPUTS.
        report: of the run.
        run_folder: where it lies.
        folder: where to write.
        wrong: what couldn't be read of it.

    Returns:
        What was written, and in words what wasn't and why.
    """
    written: list[Path] = []
    failed: list[str] = []
    chosen = [OUTPUTS[name] for name in names]
    measured: Measured = {}
    if any(output.per_request for output in chosen):
        try:
            measured = measured_in(run_folder)
        except SpecregError as error:
            failed.append(f"{error}; what takes each request is left out")
    for output in chosen:
        if not can_make(output):
            failed.append(f"report as {output.name}: not made; {install_command('report')} first")
            continue
        files = output.files(Given(report=report, wrong=wrong, measured=measured))
        if not files:
            failed.append(
                f"report as {output.name}: no file, no case of run '{report.run.run}' holds what it"
                " takes; name a run that measured one"
            )
        written.extend(_write(folder / name, text) for name, text in files.items())
    return written, failed


def append_job_summary(text: str) -> None:
    """Adds to the summary of a GitHub job, where one runs. A disk that refuses loses it."""
    place = os.environ.get("GITHUB_STEP_SUMMARY")
    if place:
        try:
            with Path(place).open("a", encoding="utf-8") as file:
                file.write(hide_known(text))
        except OSError:
            return


def _write(path: Path, text: str) -> Path:
    try:
        replace_file(path, text.encode())  # at once: the node exporter may be reading
    except OSError as error:
        message = f"report '{path}': not written, {error.strerror}; make room or mend its rights"
        raise ReportError(message) from error
    return path
