"""`specreg report`: a finished run again, in the form that is asked for."""

import functools
from pathlib import Path
from typing import Annotated

import typer

from specreg.cli.options import HERE, RUNS, RootOption, RunsOption, say_later
from specreg.core.errors import ReportError, UnknownNameError
from specreg.report.document import render_schema
from specreg.report.json import load_verdict
from specreg.report.outputs import ALWAYS, OUTPUTS, write_outputs
from specreg.report.prometheus import push_metrics
from specreg.report.uploading import upload_folder
from specreg.suite.document import report_in

_FORMS = "; ".join(f"{output.name}: {output.text}" for output in OUTPUTS.values())


def report(  # noqa: PLR0913 - each is an option
    run: Annotated[
        str | None,
        typer.Argument(help="its folder, or its name among the runs; else the last that judged"),
    ] = None,
    to: Annotated[list[str] | None, typer.Option(help=f"once for each form; {_FORMS}")] = None,
    folder: Annotated[Path | None, typer.Option(help="where to write; else the run's own")] = None,
    push: Annotated[str | None, typer.Option(help="URL of a Prometheus push gateway")] = None,
    upload: Annotated[
        str | None, typer.Option(help="where to copy the run's folder, e.g. s3://BUCKET/specreg")
    ] = None,
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
        if name not in OUTPUTS:
            raise UnknownNameError("form", name, OUTPUTS, "specreg report --to")
    found = _folder_of(root / runs, run)
    if run is None:
        say_later(root / runs, found.name, "judged nothing")
    document, wrong = report_in(found)
    if wrong:
        typer.echo(wrong, err=True)
    names = to or (() if push or upload else ALWAYS)
    written, failed = write_outputs(names, document, found, folder or found, wrong=wrong)
    for path in written:
        typer.echo(path)
    if push:
        push_metrics(document, push)
        typer.echo(f"pushed to {push}")
    if upload:
        typer.echo(f"copied to {upload_folder(found, upload)}")
    if failed:
        raise ReportError("\n".join(failed))


def _folder_of(runs: Path, run: str | None) -> Path:
    """The folder of a run: itself, by its name, or the last one."""
    if run is not None and Path(run).is_dir():
        return Path(run)
    names = sorted((path.parent.name for path in runs.glob("*/verdict.json")), reverse=True)
    if not names:
        message = f"report: no run in '{runs}' was judged; run the suite first, or name a folder"
        raise ReportError(message)
    if run is not None and run not in names:
        raise UnknownNameError("run", run, names, str(runs))
    return runs / (run or next(filter(functools.partial(_judged, runs), names), names[0]))


def _judged(runs: Path, name: str) -> bool:
    """Whether a run came to any verdict; one that skipped all it was asked for has none."""
    verdict = load_verdict(runs / name / "verdict.json")
    return verdict is None or bool(verdict.verdicts)
