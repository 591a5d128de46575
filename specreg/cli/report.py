"""`specreg report`: a finished run, rendered again."""

from pathlib import Path
from typing import Annotated

import typer

from specreg.cli import HERE, USUAL, RootOption, say
from specreg.core.errors import ReportError, check_name
from specreg.core.names import check_spelling
from specreg.report.document import (
    FILE_NAME,
    load_report,
    load_verdict,
    record_document,
    render_schema,
    side_by_side,
)
from specreg.report.exports import ALWAYS, FORMS, write_outputs
from specreg.report.vocabulary import declare_report_vocabulary

_FORMS = "; ".join(f"{name}: {text}" for name, (text, *_) in FORMS.items())
RunArgument = Annotated[
    str | None,
    typer.Argument(help="the folder or the name of a run (default: the last one with a verdict)"),
]
OtherArgument = Annotated[
    str | None,
    typer.Argument(help="a second run to show beside the first; written into its folder"),
]


def report(
    run: RunArgument = None,
    other: OtherArgument = None,
    to: Annotated[list[str] | None, typer.Option(help=f"a form to write; {_FORMS}")] = None,
    folder: Annotated[
        Path | None, typer.Option(help="the folder to write to (default: that of the run)")
    ] = None,
    root: RootOption = HERE,
    *,
    schema: Annotated[
        bool, typer.Option("--schema", help="print the JSON Schema of report.json instead")
    ] = False,
) -> None:
    """Render a finished run, or two side by side: as a page and Markdown, or as what --to names."""
    if schema:
        typer.echo(render_schema(), nl=False)
        return
    for name in to or ():
        check_name("form", name, FORMS, "specreg report --to")
    found = _folder_of(root / USUAL.runs, run)
    shown, into = load_report(found / FILE_NAME), folder or found
    declare_report_vocabulary(shown)
    if other is not None:
        first, found = shown, _folder_of(root / USUAL.runs, other)
        shown = side_by_side(first, load_report(found / FILE_NAME))
        check_spelling("run", first.run.run)  # whatever was written there becomes a folder
        into = folder or found / f"against-{first.run.run}"
        if into.is_symlink():
            raise ReportError(f"'{into}': is a symbolic link; remove it, or name another --folder")
        record_document(into / FILE_NAME, shown)
    for path in write_outputs(to or ALWAYS, shown, found, into):
        say(path)


def _folder_of(runs: Path, run: str | None) -> Path:
    """Find the folder of a run: by path, by name, or the last that reached a verdict."""
    if run is not None and Path(run).is_dir():
        return Path(run)
    names = sorted((path.parent.name for path in runs.glob("*/verdict.json")), reverse=True)
    if not names:
        message = f"report: no run in '{runs}' was judged; run the suite first, or name a folder"
        raise ReportError(message)
    if run is not None:
        check_name("run", run, names, str(runs))
        return runs / run
    # One that skipped all it was asked for has no verdict.
    verdicts = ((name, load_verdict(runs / name / "verdict.json")) for name in names)
    name = next((name for name, one in verdicts if one is None or one.verdicts), names[0])
    last = max(path.name for path in runs.iterdir() if path.is_dir())
    if last > name:
        say(f"the last run, '{last}', judged nothing; this is '{name}'", err=True)
    return runs / name
