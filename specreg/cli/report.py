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

_FORMS = "; ".join(f"{name}: {form.description}" for name, form in FORMS.items())
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
    run_folder = _folder_of(root / USUAL.runs, run)
    document = load_report(run_folder / FILE_NAME)
    declare_report_vocabulary(document)
    target = folder or run_folder
    if other is not None:
        first = document
        run_folder = _folder_of(root / USUAL.runs, other)
        document = side_by_side(first, load_report(run_folder / FILE_NAME))
        check_spelling("run", first.run.run)  # whatever was written there becomes a folder
        target = folder or run_folder / f"against-{first.run.run}"
        if target.is_symlink():
            message = f"'{target}': is a symbolic link; remove it, or name another --folder"
            raise ReportError(message)
        record_document(target / FILE_NAME, document)
    for path in write_outputs(to or ALWAYS, document, run_folder, target):
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
    judged = [name for name in names if _has_judged(runs / name)]
    shown = judged[0] if judged else names[0]
    last = max(path.name for path in runs.iterdir() if path.is_dir())
    if last > shown:
        say(f"the last run, '{last}', judged nothing; this is '{shown}'", err=True)
    return runs / shown


def _has_judged(folder: Path) -> bool:
    """Return whether a run has a verdict; one that skipped all it was asked for has none."""
    verdict = load_verdict(folder / "verdict.json")
    return verdict is None or bool(verdict.verdicts)
