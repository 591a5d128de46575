"""`specreg soak`: does a server stay as it is while it serves?"""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from specreg.cli import options as of
from specreg.cli.gate import ending, show
from specreg.compare.soak import LAST_LEVEL, Soak
from specreg.core.errors import UnsupportedError
from specreg.matrix.case import Case, Tier
from specreg.report.document import exit_status
from specreg.report.terminal import render_verdicts
from specreg.telemetry.identity import find_gpus


def soak(  # noqa: PLR0913, PLR0917 - an option each
    case: Annotated[str, typer.Argument(help="its id; else the tier's first that speculates")] = "",
    minutes: Annotated[float, typer.Option(help="how long to keep it under load", min=0.1)] = 10.0,
    engine: Annotated[
        str, typer.Option(help="vllm==0.31.0, a wheel, a git checkout, an interpreter, …")
    ] = "",
    prompts: Annotated[
        int | None,
        typer.Option(help="of a block; else four times what is in flight at once", min=1),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            help="the loss in an hour that is fine, as a fraction; else the case's", min=0
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="where soak.jsonl and the log go")] = None,
    ready_within_s: of.ReadyOption = 600.0,
    tier: of.TierOption = None,
    root: of.RootOption = of.HERE,
    matrix: of.MatrixOption = of.MATRIX,
) -> None:
    """Keep one server under a case's load, and say whether acceptance, step time or memory drift.

    Exit status: 0 steady, 1 something drifts, 10 no telling or not to be measured.
    """
    with ending():
        found = of.tier_of(root / matrix, tier)
        folder = out or root / ".specreg" / "soaks" / time.strftime("%Y-%m-%dT%H-%M-%S")
        soaked = Soak(
            tier=found,
            case=of.case_of(found, case) if case else _first_speculating(found),
            engine=engine,
            length_s=60 * minutes,
            prompts=prompts,
            tolerance_frac=tolerance,
            root=root.resolve(),
            path=folder.resolve() / "soak.jsonl",
            ready_within_s=ready_within_s,
            show=show,
        )
        try:
            with ending():
                soaked.run()
        finally:  # what was measured is told, whatever cuts it short
            status = _conclude(soaked) if soaked.blocks else 0
        raise typer.Exit(status)


def _first_speculating(tier: Tier) -> Case:
    """The first case of a tier that speculates and fits this machine."""
    unmet = tier.unmet(find_gpus().memory_gib)
    fitting = (case for case in tier.cases if case.speculates and case.id not in unmet)
    found = next(fitting, None)
    if found is None:
        message = f"tier '{tier.name}': no case that speculates fits this machine; name a case"
        raise UnsupportedError(message)
    return found


def _conclude(soak: Soak) -> int:
    """Print what a soak found; its status."""
    verdicts = soak.look(LAST_LEVEL)
    typer.echo(render_verdicts(verdicts, width=of.WIDTH, color=sys.stdout.isatty()))
    for one in verdicts:
        if one.reason:
            typer.echo(f"{one.metric}: {one.reason}")
    typer.echo(f"{len(soak.blocks)} blocks; a change is that of an hour: {soak.path}")
    return exit_status(verdicts)
