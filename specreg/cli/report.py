"""What finished runs measured: `specreg report`, `specreg tables` and `specreg history`."""

from pathlib import Path
from typing import Annotated

import typer

from specreg.cli.options import HERE, RUNS, WIDTH, RootOption, RunsOption
from specreg.core.errors import ReportError, UnknownNameError
from specreg.measurement.metrics import METRICS
from specreg.measurement.validity import render_invalid
from specreg.report.cases import render_trends
from specreg.report.document import FILE_NAME, load_report, load_verdict, render_schema
from specreg.report.exports import ALWAYS, FORMS, write_outputs
from specreg.report.tables import render_figures
from specreg.verdicts.history import load_history

_FORMS = "; ".join(f"{name}: {text}" for name, text in FORMS.items())
_USUAL = (
    *("acceptance_length_tokens", "throughput_tokens_per_s", "ttft_p50_ms", "tpot_p50_ms"),
    "speedup_ratio",
)
RunArgument = Annotated[
    str | None,
    typer.Argument(help="its folder, or its name among the runs; else the last that judged"),
]


def report(
    run: RunArgument = None,
    to: Annotated[list[str] | None, typer.Option(help=f"once for each form; {_FORMS}")] = None,
    folder: Annotated[Path | None, typer.Option(help="where to write; else the run's own")] = None,
    root: RootOption = HERE,
    runs: RunsOption = RUNS,
    *,
    schema: Annotated[
        bool, typer.Option("--schema", help="print the JSON Schema of report.json instead")
    ] = False,
) -> None:
    """Render a finished run again: as a page and Markdown, or as what --to names."""
    if schema:
        typer.echo(render_schema(), nl=False)
        return
    for name in to or ():
        if name not in FORMS:
            raise UnknownNameError("form", name, FORMS, "specreg report --to")
    found = _folder_of(root / runs, run)
    for path in write_outputs(to or ALWAYS, load_report(found / FILE_NAME), found, folder or found):
        typer.echo(path)


def tables(
    run: RunArgument = None,
    root: RootOption = HERE,
    runs: RunsOption = RUNS,
) -> None:
    """Print the speedup over the target alone, and the categories, of a finished run."""
    found = _folder_of(root / runs, run)
    figures = [one.figures for one in load_report(found / FILE_NAME).cases if one.figures]
    invalid = (f"{one.case_id}: {render_invalid(one.invalid)}" for one in figures if one.invalid)
    shown = render_figures(figures, width=WIDTH, color=False)
    text = "\n\n".join(filter(None, (shown, *invalid)))
    typer.echo(text or f"run '{found.name}': nothing in it speculates")


def history(
    case: Annotated[str, typer.Argument(help="a part of its id; else all cases")] = "",
    metric: Annotated[list[str] | None, typer.Option(help="once for each; else the usual")] = None,
    root: RootOption = HERE,
    runs: RunsOption = RUNS,
) -> None:
    """Print how each case fared in the runs that judged it, on the machine that ran last."""
    for name in metric or ():
        if name not in METRICS:
            raise UnknownNameError("metric", name, METRICS, "specreg history")
    folder = (root / runs).parent / "history"
    path = max(folder.glob("*.jsonl"), key=lambda one: one.stat().st_mtime_ns, default=None)
    if path is None:
        raise ReportError(f"history: there is none in '{folder}'; run the suite first")
    known = load_history(path)
    if known.wrong:
        typer.echo(known.wrong, err=True)
    found = {name: records for name, records in known.by_case.items() if case in name}
    if case and not found:
        raise UnknownNameError("case", case, known.by_case, f"history '{path}'")
    nothing = f"history '{path}': no case has two runs that judged it with the same settings yet"
    typer.echo(render_trends(found, metric or _USUAL, width=WIDTH) or nothing)


def _folder_of(runs: Path, run: str | None) -> Path:
    """The folder of a run: itself, by its name, or the last one that came to a verdict."""
    if run is not None and Path(run).is_dir():
        return Path(run)
    names = sorted((path.parent.name for path in runs.glob("*/verdict.json")), reverse=True)
    if not names:
        message = f"report: no run in '{runs}' was judged; run the suite first, or name a folder"
        raise ReportError(message)
    if run is not None and run not in names:
        raise UnknownNameError("run", run, names, str(runs))
    if run is not None:
        return runs / run
    # One that skipped all it was asked for has no verdict.
    verdicts = ((name, load_verdict(runs / name / "verdict.json")) for name in names)
    name = next((name for name, one in verdicts if one is None or one.verdicts), names[0])
    last = max(path.name for path in runs.iterdir() if path.is_dir())
    if last > name:
        typer.echo(f"the last run, '{last}', judged nothing; this is '{name}'", err=True)
    return runs / name
