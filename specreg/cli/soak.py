"""`specreg soak`: does a server stay as it is while it serves?"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from specreg.cli.gate import FAILED_STATUS, INTERRUPTED_STATUS, ending
from specreg.cli.options import (
    HERE,
    MATRIX,
    WIDTH,
    MatrixOption,
    ReadyOption,
    RootOption,
    TierOption,
    WaitOption,
    case_of,
    tier_of,
)
from specreg.compare.soak import (
    Soak,
    open_soak,
    run_soak,
)
from specreg.core.errors import SpecregError, UnsupportedError
from specreg.core.redaction import hide
from specreg.matrix.case import Case, Tier
from specreg.report.document import exit_status
from specreg.report.terminal import render_verdicts
from specreg.servers.sources import Source
from specreg.telemetry.identity import find_gpus


def soak(  # noqa: PLR0913, PLR0917 - an option each
    case: Annotated[str, typer.Argument(help="its id; else the tier's first that speculates")] = "",
    minutes: Annotated[float, typer.Option(help="how long to keep it under load", min=0.1)] = 10.0,
    engine: Annotated[
        str, typer.Option(help="vllm==0.31.0, a wheel, a git checkout, an interpreter, …")
    ] = "",
    prompts: Annotated[
        int | None,
        typer.Option(help="of a block; else what takes a hundredth of the time", min=1),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            help="the loss in an hour that is fine, as a fraction; else the case's", min=0
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="where soak.jsonl and the log go")] = None,
    ready_within_s: ReadyOption = 600.0,
    wait: WaitOption = True,  # noqa: FBT002 - an option
    tier: TierOption = None,
    root: RootOption = HERE,
    matrix: MatrixOption = MATRIX,
) -> None:
    """Keep one server under a case's load, and say whether acceptance, step time or memory drift.

    Exit status: 0 steady, 1 something drifts, 10 no telling or not to be measured.
    """
    with ending():
        found = tier_of(root / matrix, tier)
        soaked, source = open_soak(
            found,
            case_of(found, case) if case else _first_speculating(found),
            engine=engine,
            minutes=minutes,
            prompts=prompts,
            tolerance_frac=tolerance,
            root=root.resolve(),
            out=out,
            waits=wait,
            show=lambda text: typer.echo(hide(text), err=True),
        )
        raise typer.Exit(
            _soaked(soaked, source, root=root.resolve(), ready_within_s=ready_within_s)
        )


def _first_speculating(tier: Tier) -> Case:
    """The first case of a tier that speculates and fits this machine.

    Raises:
        UnsupportedError: it has none.
    """
    unmet = tier.unmet(find_gpus().memory_gib)
    fitting = (case for case in tier.cases if case.speculates and case.id not in unmet)
    found = next(fitting, None)
    if found is None:
        message = f"tier '{tier.name}': no case that speculates fits this machine; name a case"
        raise UnsupportedError(message)
    return found


def _soaked(soak: Soak, source: Source, *, root: Path, ready_within_s: float) -> int:
    """The exit status; what was measured is told, whatever cuts it short."""
    cut_short = None
    try:
        run_soak(soak, source, root=root, ready_within_s=ready_within_s)
    except KeyboardInterrupt:
        cut_short = INTERRUPTED_STATUS
    except SpecregError as error:
        typer.echo(str(error), err=True)
        cut_short = FAILED_STATUS
    if not soak.blocks:
        return cut_short or FAILED_STATUS
    verdicts = soak.conclude()
    typer.echo(render_verdicts(verdicts, width=WIDTH, color=sys.stdout.isatty()))
    for one in verdicts:
        if one.reason:
            typer.echo(f"{one.metric}: {one.reason}")
    typer.echo(f"{len(soak.blocks)} blocks; a change is that of an hour: {soak.path}")
    return exit_status(verdicts) if cut_short is None else cut_short
