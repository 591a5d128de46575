"""`specreg bisect`: the release in which a case became worse."""

from pathlib import Path
from typing import Annotated

import typer

from specreg.cli.gate import ending, going_on
from specreg.cli.options import (
    HERE,
    MATRIX,
    MatrixOption,
    ReadyOption,
    RootOption,
    SecondsOption,
    TierOption,
    WaitOption,
    fitting_tier_of,
)
from specreg.compare.bisect import PAGE, open_search, render_search
from specreg.compare.document import set_aside
from specreg.compare.request import Request
from specreg.core.redaction import hide


def bisect(  # noqa: PLR0913, PLR0917 - an option each
    case: Annotated[str, typer.Argument(help="the case that became worse")],
    good: Annotated[str, typer.Option(help="the release that was well: vllm==0.29.0")],
    bad: Annotated[str, typer.Option(help="a later one that isn't: vllm==0.32.0")],
    versions: Annotated[str, typer.Option(help="0.30.0,0.31.0,…: search among these alone")] = "",
    launches: Annotated[int, typer.Option(help="the most of each side; even")] = 16,
    prompts: Annotated[int | None, typer.Option(help="how many the case replays", min=1)] = None,
    tolerance: Annotated[list[str], typer.Option(help="METRIC=FRACTION, a loss that is fine")] = [],  # noqa: B006
    seconds: SecondsOption = 20.0,
    out: Annotated[
        Path | None,
        typer.Option(help="where all gates go; a search goes on with what lies there"),
    ] = None,
    ready_within_s: ReadyOption = 600.0,
    wait: WaitOption = True,  # noqa: FBT002 - an option
    tier: TierOption = None,
    root: RootOption = HERE,
    matrix: MatrixOption = MATRIX,
) -> None:
    """Find the release in which a case became worse, by gates against the good one.

    Exit status: 0 found, 10 not to be found, or only between which releases.
    """
    with ending():
        folder = (out or root / ".specreg" / "bisect").resolve()
        set_aside(folder / case, (PAGE,))
        request = Request(
            a=good,
            b=bad,
            tier=fitting_tier_of(root / matrix, tier),
            case_ids=(case,),
            launches=launches,
            prompts=prompts,
            tolerances=tolerance,
            with_control=False,
            least_s=seconds,
            ready_within_s=ready_within_s,
            waits=wait,
            root=root.resolve(),
            show=lambda text: typer.echo(hide(text), err=True),
        )
        named = tuple(filter(None, map(str.strip, versions.split(","))))
        asked = open_search(good, bad, named, request, folder)
        try:
            with going_on("type the same again"):
                found = asked.run()
        finally:
            typer.echo(f"gates: {asked.gates}")
        typer.echo(render_search(found))
        raise typer.Exit(found.exit_status)
