"""`specreg doctor`: what this machine is, what can be measured on it, and what is in the way."""

import os
import sys
from pathlib import Path

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
from specreg.core.errors import MatrixError
from specreg.matrix.case import Tier
from specreg.report.doctor import State, render_findings
from specreg.suite.needs import CHECKS
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
        lambda: _tier_of(root / matrix, tier),
        root=root,
        runs=root / runs,
        baselines=root / folder,
        variables=os.environ,
        engine_python=engine_python,
    )
    found = examine(preflight, CHECKS)
    color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    typer.echo(render_findings(found, width=WIDTH, color=color))
    states = {one.state for findings in found.values() for one in findings}
    raise typer.Exit(1 if State.IN_THE_WAY in states else 0)


def _tier_of(matrix: Path, name: str | None) -> Tier:
    """The tier of a name, else that of this machine.

    Raises:
        SpecregError: it can't be read, or there are none.
    """
    if not matrix.is_dir():
        message = f"tiers '{matrix}': no such folder; run this in the repository, or give --root"
        raise MatrixError(message)
    return fitting_tier_of(matrix, name)
