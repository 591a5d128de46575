"""What is known of cases: `specreg explain`, `matrix`, `engines` and `selftest`."""

from typing import Annotated

import typer

from specreg.baselines.estimate import estimate_of
from specreg.baselines.store import settings_in
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
    fitting_tier_of,
    shelf_of,
    tier_of,
)
from specreg.engines.methods import METHODS
from specreg.engines.registry import ENGINES
from specreg.matrix.schema import render_schema
from specreg.matrix.tier import tier_names
from specreg.measurement.metrics import check_allowed
from specreg.report.cases import render_explanation, render_matrix
from specreg.report.tables import NOTHING
from specreg.telemetry.identity import find_gpus
from specreg.verdicts.history import history_path, load_history


def explain(
    case: Annotated[str, typer.Argument(help="its id, e.g. vllm-eagle3-tiny-toy-c4")],
    tier: TierOption = None,
    root: RootOption = HERE,
    folder: FolderOption = BASELINES,
    matrix: MatrixOption = MATRIX,
    runs: RunsOption = RUNS,
) -> None:
    """Print what is expected of a case, where that comes from, and what the case can see."""
    found = tier_of(root / matrix, tier)
    one = found.named(case)
    store = shelf_of(root / folder, found)
    known = store.look_up(one, settings_in(root, one))
    history = load_history(history_path((root / runs).parent / "history", store.environment.name))
    if history.wrong:
        typer.echo(history.wrong, err=True)
    typer.echo(render_explanation(one, known, history.of(case), width=WIDTH))


def selftest(
    nights: Annotated[int, typer.Option(help="identical nights to simulate")] = 200,
) -> None:
    """Plant known changes and simulate identical nights; print what was caught, and what wasn't."""
    from specreg.verdicts.selftest import run_selftest  # noqa: PLC0415 - seconds of simulation

    text, holds = run_selftest(nights)
    typer.echo(text)
    raise typer.Exit(0 if holds else 1)


def engines() -> None:
    """Print which engine has which method, in Markdown."""
    rows = [["method", *ENGINES], *[["---"] * (len(ENGINES) + 1)]]
    for method in METHODS.values():
        has = (method.name in engine.methods for engine in ENGINES.values())
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
    store, kind = shelf_of(root / folder, found), "gpu" if found.needs_gpus else "cpu"
    estimates = {case.id: estimate_of(case, store, kind) for case in found.cases}
    typer.echo(render_matrix(found, estimates, gpus, width=WIDTH))
    typer.echo(f"tiers: {', '.join(tier_names(root / files))}")
