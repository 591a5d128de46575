"""`specreg matrix` and `specreg engines`: what a tier runs, needs and takes; who has a method."""

from typing import Annotated

import typer

from specreg.baselines.estimate import estimates_of
from specreg.cli.options import (
    BASELINES,
    HERE,
    MATRIX,
    WIDTH,
    FolderOption,
    MatrixOption,
    RootOption,
    TierOption,
    fitting_tier_of,
    shelf_of,
)
from specreg.engines.methods import METHODS
from specreg.engines.registry import ENGINES
from specreg.matrix.schema import render_schema
from specreg.matrix.tier import tier_names
from specreg.measurement.metrics import check_allowed
from specreg.report.cases import render_matrix
from specreg.report.tables import NOTHING
from specreg.telemetry.identity import find_gpus


def engines() -> None:
    """Print which engine has which method, in Markdown."""
    rows = [["method", *ENGINES], *[["---"] * (len(ENGINES) + 1)]]
    for method in METHODS.values():
        has = (engine.spelling in method.spelling for engine in ENGINES.values())
        rows.append([f"`{method.name}`", *("yes" if one else NOTHING for one in has)])
    typer.echo("\n".join(f"| {' | '.join(row)} |" for row in rows))


def matrix(
    tier: TierOption = None,
    root: RootOption = HERE,
    folder: FolderOption = BASELINES,
    files: MatrixOption = MATRIX,
    *,
    schema: Annotated[
        bool, typer.Option("--schema", help="print the JSON Schema of a tier's file instead")
    ] = False,
) -> None:
    """Print a tier's cases, what each needs, and about how long it takes."""
    if schema:
        typer.echo(render_schema(), nl=False)
        return
    found = fitting_tier_of(root / files, tier)
    for case in found.cases:
        check_allowed(case, found.places[case.id])
    gpus = find_gpus()
    estimates = estimates_of(found, shelf_of(root / folder, found), gpus, root)
    typer.echo(render_matrix(found, estimates, gpus, width=WIDTH))
    for remark in found.remarks:
        typer.echo(remark)
    typer.echo(f"tiers: {', '.join(tier_names(root / files))}")
