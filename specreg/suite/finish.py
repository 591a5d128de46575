"""End a run: write its documents, add it to the history, and render the summary."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from specreg.core.commands import specreg_command
from specreg.core.errors import SpecregError
from specreg.matrix.case import Case
from specreg.report.document import RunReport, RunVerdict
from specreg.report.exports import ALWAYS, append_job_summary, write_outputs
from specreg.report.files import FILE_NAME, record_document
from specreg.report.launches import last_launches
from specreg.report.page import render_markdown
from specreg.report.screen import LOG, Screen
from specreg.report.tables import render_figures, render_times
from specreg.report.terminal import render_report, render_verdicts
from specreg.runs.goals import CaseLaunch
from specreg.suite.benchmarks import round_times_s
from specreg.suite.document import report_of
from specreg.suite.remarks import remarks_of
from specreg.suite.result import RunResult
from specreg.verdicts.history import RunRecord, SourceRun, record_history, run_record

VERDICT_FILE = "verdict.json"


def record_run(
    result: RunResult, run: RunVerdict, *, command: str, remarks: Sequence[str] = ()
) -> tuple[RunReport | None, list[str]]:
    """Add a run to the history, and write its documents to its folder and a CI job's summary.

    If the history or the verdict can't be written, the rest is written all the same. If one form
    of the report can't be written, the forms after it are left out. The verdicts always stand.

    Args:
        run: the verdict of the whole run.
        command: the command that the user typed.
        remarks: further remarks for a reader of the report.

    Returns:
        The report, or None if it can't be made, and lines for the summary that it doesn't have:
        what couldn't be written and why, and the path of the benchmarks of a merged run.
    """
    folder = result.context.run_folder
    report = None

    # The history is written first, because the report shows this run as the last one in it.
    lines = _attempt(lambda: add_to_history(result))
    lines += _attempt(lambda: record_document(folder / VERDICT_FILE, run))
    try:
        all_remarks = (*remarks, *lines, *remarks_of(result))
        report = report_of(result, run, command=command, remarks=all_remarks)
        lines = _write_report(result, report, folder)
    except Exception as error:  # noqa: BLE001 - a failed report must lose no verdict
        problem = f"incomplete, {type(error).__name__}: {error}"
        cure = f"the verdicts stand, and {specreg_command('report')} makes it again"
        lines.append(f"report of '{folder}': {problem}; {cure}")

    return report, lines


def _attempt(write: Callable[[], None]) -> list[str]:
    """Write a file, and return a line that says why it couldn't be written, or else no line."""
    try:
        write()
    except SpecregError as error:
        return [str(error)]
    return []


def _write_report(result: RunResult, report: RunReport, folder: Path) -> list[str]:
    """Write the report in each of its forms, and return lines for the summary.

    A worker writes only the document, from which the merged run takes what it needs.
    """
    record_document(folder / FILE_NAME, report)
    if result.context.is_worker:
        return []
    append_job_summary(render_markdown(report))
    if not result.is_merged:
        write_outputs(ALWAYS, report, folder, folder)
        return []

    # No process of pytest has all tests of a merged run, so JUnit's file and the file of
    # pytest-benchmark are written here.
    write_outputs((*ALWAYS, "junit"), report, folder, folder)
    if not any(round_times_s(result.launches, case.id) for case in result.cases):
        return []
    (path,) = write_outputs(("benchmark",), report, folder, folder)
    return [f"benchmarks of the run, as --benchmark-json writes them: {path}"]


def add_to_history(result: RunResult) -> None:
    """Add a run that judged to the history of its machine.

    A run isn't added if it measured an attached server, if it will be merged with other runs, or if
    the user wants no history. A run that records is added when its baselines are written.

    Raises:
        SpecregError: the history can't be written, or a case's models or prompts can't be read.
    """
    context = result.context
    if context.is_recording or context.provision.attached is not None or context.is_part:
        return
    if not context.has_history:
        return
    history = context.load_history()
    records: list[RunRecord] = []
    for case in result.cases:
        # A run that is resumed, or whose shards are merged again, isn't added a second time.
        was_added_before = any(record.run == context.name for record in history.of(case.id))
        measurements = [
            measurement for measurement in result.measurements_of(case) if measurement.values
        ]
        verdicts = result.verdicts_of(case.id)
        if measurements and verdicts and not was_added_before:
            baseline = context.exact_baseline(case)
            settings = context.settings(case)
            origin = SourceRun(
                run=context.name,
                machine=result.machine_of(case.id),
                driver_version=result.driver_version,
                commit=context.commit,
            )
            records.append(run_record(origin, measurements, verdicts, settings, baseline))

    record_history(context.history_path, records)


def render_end(
    result: RunResult,
    report: RunReport | None,
    lines: Iterable[str],
    *,
    shows_failures: bool,
    screen: Screen = LOG,
) -> str:
    """Render the summary of a run: the answer, verdicts, figures, remarks, and the next command.

    Args:
        report: the report of the run; None if it has no verdicts and wasn't meant to judge, or if
            the report can't be made.
        lines: extra lines, which are shown below the table of verdicts.
        shows_failures: True if the failed verdicts are explained above the summary already.
        screen: where the summary is shown.
    """
    context = result.context
    resumed = [
        CaseLaunch.of(launch.case, launch.number).name
        for launch in result.launches
        if launch.is_resumed
    ]
    resumed_line = ""
    if resumed:
        resumed_line = f"taken over from the interrupted run: {', '.join(resumed)}"
    details = (
        *lines,
        render_figures(last_launches(result.figures), screen),
        render_times(result.time, screen),
        _remark_on_speeds(context.tier.cases),
        resumed_line,
        _report_line(context.run_folder),
    )
    if report is None:
        table = render_verdicts(result.verdicts, screen)
        return "\n\n".join(part for part in (table, *details) if part)
    return render_report(report, screen, details=details, shows_failures=shows_failures)


def _remark_on_speeds(cases: Sequence[Case]) -> str:
    """Return a remark on the cases whose servers have no realistic speed; empty without any."""
    count = sum(not case.judging.speed for case in cases)
    if not count:
        return ""
    servers = "the servers"
    if count < len(cases):
        servers = f"the servers of {count} of {len(cases)} cases"
    return f"{servers} of this tier have no realistic speed, so none is shown for them"


def _report_line(run_folder: Path) -> str:
    """Return a line with the path of the run's page, or of its Markdown; empty without either."""
    for suffix in ("html", "md"):
        path = run_folder / f"report.{suffix}"
        if path.exists():
            return f"report: {path}"
    return ""
