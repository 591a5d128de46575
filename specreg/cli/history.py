"""`specreg history`: what all runs did with the cases of a machine."""

from pathlib import Path
from typing import Annotated

import typer

from specreg.cli.options import HERE, WIDTH, RootOption
from specreg.core.errors import ReportError, UnknownNameError
from specreg.measurement.metrics import METRICS
from specreg.report.trends import render_trends
from specreg.report.uploading import upload_histories
from specreg.verdicts.history import load_history

_USUAL = (
    *("acceptance_length_tokens", "throughput_tokens_per_s", "ttft_p50_ms", "tpot_p50_ms"),
    "speedup_ratio",
)
_FOLDER = Path(".specreg/history")


def history(
    case: Annotated[str | None, typer.Argument(help="a part of its id; else all cases")] = None,
    metric: Annotated[list[str] | None, typer.Option(help="once for each; else the usual")] = None,
    environment: Annotated[
        str | None, typer.Option(help="whose; else the machine that ran last")
    ] = None,
    folder: Annotated[Path, typer.Option(help="of the histories, from the root")] = _FOLDER,
    upload: Annotated[
        str | None, typer.Option(help="where to add all of them, e.g. s3://BUCKET/specreg")
    ] = None,
    root: RootOption = HERE,
) -> None:
    """Print how each case fared in the runs that judged it."""
    for name in metric or ():
        if name not in METRICS:
            raise UnknownNameError("metric", name, METRICS, "specreg history")
    path = _path(root / folder, environment)
    lived = load_history(path)
    if lived.wrong:
        typer.echo(lived.wrong, err=True)
    found = {name: runs for name, runs in lived.by_case.items() if case is None or case in name}
    if case is not None and not found:
        raise UnknownNameError("case", case, lived.by_case, f"history '{path}'")
    nothing = f"history '{path}': no case has two runs that judged it with the same settings yet"
    typer.echo(render_trends(found, metric or _USUAL, width=WIDTH) or nothing)
    if upload:
        typer.echo(f"added to {upload_histories(root / folder, upload)}")


def _path(folder: Path, environment: str | None) -> Path:
    """The history of an environment, else the one that was written to last."""
    paths = {path.stem: path for path in folder.glob("*.jsonl")}
    if not paths:
        message = f"history: there is none in '{folder}'; run the suite first, or name --folder"
        raise ReportError(message)
    if environment is None:
        return max(paths.values(), key=lambda path: path.stat().st_mtime_ns)
    if environment not in paths:
        raise UnknownNameError("environment", environment, paths, str(folder))
    return paths[environment]
