"""What this machine is, and what is in the way of a tier on it: `specreg doctor`."""

import os
import sys

import typer

from specreg.cli.options import (
    BASELINES,
    HERE,
    MATRIX,
    RUNS,
    WIDTH,
    EnginePythonOption,
    FolderOption,
    MatrixOption,
    RootOption,
    RunsOption,
    TierOption,
    fitting_tier_of,
)
from specreg.report.doctor import State, render_findings
from specreg.suite.preflight import examine, preflight_of


def doctor(
    tier: TierOption = None,
    root: RootOption = HERE,
    matrix: MatrixOption = MATRIX,
    folder: FolderOption = BASELINES,
    runs: RunsOption = RUNS,
    engine_python: EnginePythonOption = None,
) -> None:
    """Print what this machine is, what can be measured on it, and what is in the way of a tier.

    Status 1 where something is. Nothing is started, fetched or changed.
    """
    preflight = preflight_of(
        lambda: fitting_tier_of(root / matrix, tier),
        root=root,
        runs=root / runs,
        baselines=root / folder,
        variables=os.environ,
        engine_python=engine_python,
    )
    found = examine(preflight)
    color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    typer.echo(render_findings(found, width=WIDTH, color=color))
    states = {one.state for findings in found.values() for one in findings}
    raise typer.Exit(1 if State.IN_THE_WAY in states else 0)
