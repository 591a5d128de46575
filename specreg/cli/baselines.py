"""List and look after what was recorded."""

from pathlib import Path

import typer

from specreg.baselines.schema import (
    Baseline,
    baseline_files,
    load_baseline,
    record_baseline,
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
from specreg.report.terminal import render_baselines
from specreg.verdicts.history import history_path, load_history, with_noise

baselines = typer.Typer(no_args_is_help=True, help=__doc__)


@baselines.command("list")
def list_baselines(root: RootOption = HERE, folder: FolderOption = BASELINES) -> None:
    """Print all baselines: what was recorded where, when and why; status 1 if one can't be read."""
    found, unreadable = _readable(root / folder)
    typer.echo("\n".join((render_baselines(found.items(), width=WIDTH), *unreadable)))
    raise typer.Exit(1 if unreadable else 0)


@baselines.command()
def learn(
    tier: TierOption = None,
    root: RootOption = HERE,
    folder: FolderOption = BASELINES,
    matrix: MatrixOption = MATRIX,
    runs: RunsOption = RUNS,
) -> None:
    """Write how hours differ into this machine's baselines, from the history of identical runs.

    Nothing else of them changes. It takes five runs of a case or more.
    """
    store = shelf_of(root / folder, tier_of(root / matrix, tier))
    history = load_history(history_path((root / runs).parent / "history", store.environment.name))
    if history.wrong:
        typer.echo(history.wrong, err=True)
    found, unreadable = _readable(root / folder)
    for line in unreadable:
        typer.echo(line)
    for path, old in found.items():
        if path.parent.name not in store.environment.names:
            continue
        new = with_noise(old, history.of(path.stem))
        if new == old:
            continue
        record_baseline(path, new)
        shown = (f"{name} {noise.between_frac:.1%}" for name, noise in new.noise.items())
        typer.echo(f"{path.stem}: {', '.join(shown)}")


@baselines.command()
def schema() -> None:
    """Print the JSON Schema of a baseline file."""
    typer.echo(render_schema(), nl=False)


def _readable(folder: Path) -> tuple[dict[Path, Baseline], list[str]]:
    """The baselines below a folder by their files, and why others can't be read."""
    found: dict[Path, Baseline] = {}
    unreadable: list[str] = []
    for path in baseline_files(folder):
        try:
            baseline = load_baseline(path)
        except BaselineError as error:
            unreadable.append(str(error))
        else:
            if baseline is not None:
                found[path] = baseline
    return found, unreadable
