"""List and look after what was recorded."""

import typer

from specreg.baselines.schema import (
    baseline_files,
    read_baselines,
    render_schema,
)
from specreg.cli.options import (
    BASELINES,
    HERE,
    WIDTH,
    FolderOption,
    RootOption,
)
from specreg.report.terminal import render_baselines

baselines = typer.Typer(no_args_is_help=True, help=__doc__)


@baselines.command("list")
def list_baselines(root: RootOption = HERE, folder: FolderOption = BASELINES) -> None:
    """Print all baselines: what was recorded where, when and why; status 1 if one can't be read."""
    found, unreadable = read_baselines(baseline_files(root / folder))
    typer.echo("\n".join((render_baselines(found.items(), width=WIDTH), *unreadable)))
    raise typer.Exit(1 if unreadable else 0)


@baselines.command()
def schema() -> None:
    """Print the JSON Schema of a baseline file."""
    typer.echo(render_schema(), nl=False)
