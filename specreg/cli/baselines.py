"""List, compare and look after what was recorded."""

import contextlib
import subprocess
from pathlib import Path
from typing import Annotated

import typer

from specreg.baselines.record import RecordedBaseline
from specreg.baselines.schema import (
    Baseline,
    baseline_files,
    parse_baseline,
    read_baselines,
    render_schema,
)
from specreg.cli.options import (
    BASELINES,
    HERE,
    MATRIX,
    RUNS,
    WIDTH,
    FolderOption,
    MatrixOption,
    RootOption,
    RunsOption,
    TierOption,
    shelf_of,
    tier_of,
)
from specreg.core.errors import BaselineError
from specreg.matrix.tier import all_case_ids
from specreg.report.document import load_verdict
from specreg.report.terminal import render_baselines, render_recorded

baselines = typer.Typer(no_args_is_help=True, help=__doc__)


@baselines.command("list")
def list_baselines(root: RootOption = HERE, folder: FolderOption = BASELINES) -> None:
    """Print all baselines: what was recorded where, when and why; status 1 if one can't be read."""
    found, unreadable = read_baselines(baseline_files(root / folder))
    typer.echo("\n".join((render_baselines(found.items(), width=WIDTH), *unreadable)))
    raise typer.Exit(1 if unreadable else 0)


@baselines.command()
def diff(
    revision: Annotated[str, typer.Argument(help="of git, to compare with")] = "HEAD",
    root: RootOption = HERE,
    folder: FolderOption = BASELINES,
) -> None:
    """Print what the baselines on disk change against those of a revision."""
    if _git(root, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}").returncode:
        message = f"revision '{revision}': git knows none of this name in '{root}'; see git log"
        raise BaselineError(message)
    found, unreadable = read_baselines(baseline_files(root / folder))
    changes = [
        RecordedBaseline(path=path, old=old, new=new)
        for path, new in found.items()
        if (old := _baseline_at(revision, path)) != new
    ]
    shown = render_recorded(changes, width=WIDTH, color=False)
    typer.echo("\n".join(filter(None, (shown, *unreadable))) or f"as in {revision}")


@baselines.command()
def prune(
    tier: TierOption = None,
    root: RootOption = HERE,
    folder: FolderOption = BASELINES,
    matrix: MatrixOption = MATRIX,
    runs: RunsOption = RUNS,
) -> None:
    """Remove this machine's baselines that no case of any tier asks for.

    Refused unless the last run judged its whole tier and nothing failed.
    """
    folders = sorted(path for path in (root / runs).glob("*") if path.is_dir())
    last = load_verdict(folders[-1] / "verdict.json") if folders else None
    if last is None or not last.complete or last.exit_status:
        raise BaselineError(
            "prune: refused, the last run must have judged its whole tier and passed;"
            " run the suite without -k first"
        )
    store = shelf_of(root / folder, tier_of(root / matrix, tier))
    if last.environment != store.environment.name:
        raise BaselineError(
            f"prune: refused, the last run was on '{last.environment}', this is"
            f" '{store.environment.name}'; run the suite here, or give its --tier"
        )
    unused = store.unused(all_case_ids(root / matrix))
    for path in unused:
        path.unlink()
        typer.echo(f"removed {path}")
    typer.echo(f"{len(unused)} removed of {store.environment.name}")


@baselines.command()
def schema() -> None:
    """Print the JSON Schema of a baseline file."""
    typer.echo(render_schema(), nl=False)


def _baseline_at(revision: str, path: Path) -> Baseline | None:
    """A baseline as git has it, None where it hasn't, or in another form."""
    where = path.resolve()
    done = _git(where.parent, "show", f"{revision}:./{where.name}")
    with contextlib.suppress(BaselineError):
        return parse_baseline(done.stdout, path) if done.returncode == 0 else None
    return None


def _git(folder: Path, *command: str) -> subprocess.CompletedProcess[bytes]:
    typed = ("git", "-C", str(folder), *command)
    return subprocess.run(typed, check=False, capture_output=True)  # noqa: S603
