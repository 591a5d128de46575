"""What this machine is, and what is in the way of a tier on it: `specreg doctor`."""

import io
import os
import sys
from typing import Annotated

import typer

from specreg.cli.options import HERE, WIDTH, RootOption, TierOption
from specreg.report.progress import Progress
from specreg.suite.configure import open_suite
from specreg.suite.options import Options
from specreg.suite.preflight import State, examine, render_findings


def doctor(
    tier: TierOption = None,
    root: RootOption = HERE,
    engine_python: Annotated[
        str | None, typer.Option(help="an interpreter that has the engine already")
    ] = None,
) -> None:
    """Print what this machine is, what can be measured on it, and what is in the way of a tier.

    Status 1 where something is. Nothing is started, fetched or changed.
    """
    options = Options(tier=tier, engine_python=engine_python)
    found = tuple(examine(open_suite(root, options, Progress(io.StringIO()))))
    color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    typer.echo(render_findings(found, width=WIDTH, color=color))
    raise typer.Exit(int(any(one.state is State.IN_THE_WAY for one in found)))
