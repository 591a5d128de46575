"""What finished runs measured: `specreg report`, `specreg tables` and `specreg history`."""

from pathlib import Path
from typing import Annotated

import typer

from specreg.cli.options import HERE, RUNS, WIDTH, RootOption, RunsOption
from specreg.core.errors import ReportError, SpecregError, UnknownNameError
from specreg.measurement.metrics import METRICS
from specreg.measurement.validity import render_invalid
from specreg.report.cases import render_trends
from specreg.report.document import (
    FILE_NAME,
    last_launches,
    load_figures,
    load_report,
    load_verdict,
    render_schema,
)
from specreg.report.exports import ALWAYS, FORMS, write_outputs
from specreg.report.tables import render_figures
from specreg.verdicts.history import load_history

_FORMS = "; ".join(f"{name}: {text}" for name, text in FORMS.items())
_USUAL = (
    *("acceptance_length_tokens", "throughput_tokens_per_s", "ttft_p50_ms", "tpot_p50_ms"),
    "speedup_ratio",
)
_HISTORY = Path(".specreg/history")


def report(
    run: Annotated[
        str | None,
        typer.Argument(help="its folder, or its name among the runs; else the last that judged"),
    ] = None,
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
    written, failed = write_outputs(
        to or ALWAYS, load_report(found / FILE_NAME), found, folder or found
    )
    for path in written:
        typer.echo(path)
    if failed:
        raise ReportError("\n".join(failed))


def tables(
    run: Annotated[
        str | None, typer.Argument(help="its folder's name; else the last with figures")
    ] = None,
    root: RootOption = HERE,
    runs: RunsOption = RUNS,
    *,
    percentiles: Annotated[
        bool, typer.Option("--percentiles", help="show how all that was timed spreads, too")
    ] = False,
) -> None:
    """Print the speedup over the target alone, and the categories, of a finished run."""
    names = sorted({path.parents[1].name for path in (root / runs).glob("*/figures/*.json")})
    if not names:
        message = f"tables: no run in '{root / runs}' left figures; run the suite first"
        raise SpecregError(message)
    name = run or names[-1]
    if name not in names:
        raise UnknownNameError("run", name, names, str(root / runs))
    if run is None:
        _warn_of_later(root / runs, name, "measured nothing")
    every = load_figures(root / runs / name)
    parts = [
        render_figures(last_launches(every), width=WIDTH, color=False, percentiles=percentiles),
        *(f"{one.case_id}: {render_invalid(one.invalid)}" for one in every if one.invalid),
    ]
    typer.echo("\n\n".join(filter(None, parts)) or f"run '{name}': nothing in it speculates")


def history(
    case: Annotated[str | None, typer.Argument(help="a part of its id; else all cases")] = None,
    metric: Annotated[list[str] | None, typer.Option(help="once for each; else the usual")] = None,
    environment: Annotated[
        str | None, typer.Option(help="whose; else the machine that ran last")
    ] = None,
    folder: Annotated[Path, typer.Option(help="of the histories, from the root")] = _HISTORY,
    root: RootOption = HERE,
) -> None:
    """Print how each case fared in the runs that judged it."""
    for name in metric or ():
        if name not in METRICS:
            raise UnknownNameError("metric", name, METRICS, "specreg history")
    paths = {path.stem: path for path in (root / folder).glob("*.jsonl")}
    if not paths:
        message = f"history: there is none in '{root / folder}'; run the suite first"
        raise ReportError(f"{message}, or name --folder")
    if environment is not None and environment not in paths:
        raise UnknownNameError("environment", environment, paths, str(root / folder))
    newest = max(paths.values(), key=lambda path: path.stat().st_mtime_ns)
    path = newest if environment is None else paths[environment]
    known = load_history(path)
    if known.wrong:
        typer.echo(known.wrong, err=True)
    found = {name: runs for name, runs in known.by_case.items() if case is None or case in name}
    if case is not None and not found:
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
    _warn_of_later(runs, name, "judged nothing")
    return runs / name


def _warn_of_later(runs: Path, shown: str, lacks: str) -> None:
    """Say that the last run isn't the one that is shown, and what that one lacks."""
    last = max((path.name for path in runs.iterdir() if path.is_dir()), default=shown)
    if last > shown:
        typer.echo(f"the last run, '{last}', {lacks}; this is '{shown}'", err=True)
