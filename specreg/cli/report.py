"""`specreg report`: a finished run, rendered again."""

import datetime as dt
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from specreg.baselines.schema import read_baselines
from specreg.cli import DEFAULT_OPTIONS, HERE, RootOption, naming, say
from specreg.core.errors import ReportError, check_name
from specreg.core.names import check_spelling
from specreg.measurement.metrics import METRICS
from specreg.report.document import Report, render_schema
from specreg.report.exports import ALWAYS, EXPORT_FORMATS, write_outputs
from specreg.report.files import (
    FILE_NAME,
    load_report,
    load_run_report,
    load_verdict,
    record_document,
    write_in,
)
from specreg.report.side_by_side import side_by_side
from specreg.report.trend import HISTORY_PAGE, MachineHistory, load_histories, render_trend
from specreg.runs.ledger import LEDGER

_MAX_RUNS = 2
_USUAL_FORMS = " and ".join(ALWAYS)
_FORMS = "; ".join(f"{name}: {form.description}" for name, form in EXPORT_FORMATS.items())
RunsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        help="the folder or the name of a run (default: the last one with a verdict); if two are"
        " named, the second is shown against the first; with --history, files or folders of"
        " histories (default: that of this repository)",
        show_default=False,
    ),
]


def report(
    runs: RunsArgument = None,
    to: Annotated[
        list[str] | None, typer.Option(help=f"a form to write (default: {_USUAL_FORMS}); {_FORMS}")
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            help="the folder to write to (default: that of the run; for two runs, one in that of"
            " the second; with --history, that of this repository's history)"
        ),
    ] = None,
    root: RootOption = HERE,
    *,
    history: Annotated[
        bool, typer.Option("--history", help="write one page of all cases over the last nights")
    ] = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="print the JSON Schema of report.json instead")
    ] = False,
) -> None:
    """Render a finished run, two side by side, or the nights of all cases.

    Examples:
        specreg report
        specreg report --to csv --to junit
        specreg report 20261127T020000-1 20261128T020000-1
        specreg report --history
    """
    named = runs or []
    if schema:
        typer.echo(render_schema(), nl=False)
    elif history and to:
        message = f"report --to {', '.join(to)}: --history writes one page, and no other form"
        raise ReportError(f"{message}; leave --to out, or name a run instead of --history")
    elif history:
        _write_trend([Path(path) for path in named], folder, root)
    elif len(named) > _MAX_RUNS:
        message = f"report: {len(named)} runs are named, needed at most two"
        raise ReportError(f"{message}; name one, or two to be shown side by side")
    else:
        _write_run(named, to, folder, root)


def _write_run(names: Sequence[str], to: list[str] | None, folder: Path | None, root: Path) -> None:
    """Write a run in some forms, or the second of two runs against the first."""
    for name in to or ():
        check_name("form", name, EXPORT_FORMATS, "specreg report --to")
    runs = root / DEFAULT_OPTIONS.runs
    run_folders = [_folder_of(runs, name) for name in names] or [_folder_of(runs, None)]
    run_folder = run_folders[-1]
    paths = [each_folder / FILE_NAME for each_folder in run_folders]
    if any(EXPORT_FORMATS[name].takes_ledger for name in to or ALWAYS):
        paths.append(run_folder / LEDGER)
    with naming(*paths):
        target = folder or run_folder
        document: Report
        if len(names) == _MAX_RUNS:
            first, second = (load_run_report(path / FILE_NAME) for path in run_folders)
            document = side_by_side(first, second)
            # The name becomes part of a folder's name, and a report may come from another machine.
            check_spelling("run", first.run.run)
            target = folder or run_folder / f"against-{first.run.run}"
            if target.is_symlink():
                message = f"'{target}': is a symbolic link; remove it, or name another --folder"
                raise ReportError(message)
            record_document(target / FILE_NAME, document)
        else:
            document = load_report(run_folder / FILE_NAME)
        for path in write_outputs(to or ALWAYS, document, run_folder, target):
            say(path)


def _write_trend(paths: Sequence[Path], folder: Path | None, root: Path) -> None:
    """Write the page of the last nights of each machine that has a history."""
    usual = (root / DEFAULT_OPTIONS.runs).parent / "history"
    now = dt.datetime.now(tz=dt.UTC)
    machines = []
    for machine, history in load_histories(paths or [usual], now):
        expected = _expected_values(root / DEFAULT_OPTIONS.baselines / machine)
        machines.append(MachineHistory(machine=machine, history=history, expected=expected))
    for machine_history in machines:
        if machine_history.history.problem:
            say(machine_history.history.problem, err=True)
    page = render_trend(machines, now)
    say(write_in(folder or usual, HISTORY_PAGE, page.encode()))


def _expected_values(folder: Path) -> dict[str, dict[str, float]]:
    """Return the values of each baseline in a folder, by case and metric.

    Baselines that can't be read are left out.
    """
    baselines, _ = read_baselines(sorted(folder.glob("*.json")))
    expected = {}
    for path, baseline in baselines.items():
        values = {metric.name: baseline.expected_value(metric) for metric in METRICS.values()}
        expected[path.stem] = {name: value for name, value in values.items() if value is not None}
    return expected


def _folder_of(runs: Path, run: str | None) -> Path:
    """Find the folder of a run by its path or by its name.

    Args:
        runs: the folder of all runs.
        run: the path or the name; None for the last run that judged something, or else for the last
            one that has a verdict file. If a later run exists, a line on standard error names it.

    Raises:
        ReportError: no run has a verdict file.
        UnknownNameError: no run with a verdict file has that name.
    """
    if run is not None and Path(run).is_dir():
        return Path(run)
    names = sorted((path.parent.name for path in runs.glob("*/verdict.json")), reverse=True)
    if not names and run is not None:
        message = f"run '{run}': is no folder, and no run in '{runs}' was judged"
        raise ReportError(f"{message}; name the folder of a run")
    if not names:
        message = f"report: no run in '{runs}' was judged; run the suite first, or name a folder"
        raise ReportError(message)
    if run is not None:
        check_name("run", run, names, str(runs))
        return runs / run
    judged = [name for name in names if _has_judged(runs / name)]
    chosen = judged[0] if judged else names[0]

    # The name of a run begins with its time.
    last = max(path.name for path in runs.iterdir() if path.is_dir())
    if last > chosen:
        say(f"the last run, '{last}', judged nothing; this is '{chosen}'", err=True)
    return runs / chosen


def _has_judged(folder: Path) -> bool:
    """Return whether a run judged anything.

    False for a run that skipped all of its tests; True if its verdict can't be read.
    """
    verdict = load_verdict(folder / "verdict.json")
    return verdict is None or bool(verdict.verdicts)
