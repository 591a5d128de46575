"""`specreg tables`: what a finished run measured."""

from typing import Annotated

import typer

from specreg.cli.options import HERE, RUNS, WIDTH, RootOption, RunsOption, say_later
from specreg.core.errors import SpecregError, UnknownNameError
from specreg.measurement.validity import render_invalid
from specreg.report.breakdown import last_launches, load_figures
from specreg.report.spreads import render_spreads
from specreg.report.tables import render_categories, render_speedups


def tables(
    run: Annotated[
        str | None, typer.Argument(help="its folder's name; else the last with figures")
    ] = None,
    root: RootOption = HERE,
    runs: RunsOption = RUNS,
    *,
    percentiles: Annotated[
        bool, typer.Option("--percentiles", help="show how all that was timed spreads, too")
    ] = False,
) -> None:
    """Print the speedup over the target alone, and the categories, of a finished run."""
    names = sorted({path.parents[1].name for path in (root / runs).glob("*/figures/*.json")})
    if not names:
        message = f"tables: no run in '{root / runs}' left figures; run the suite first"
        raise SpecregError(message)
    name = run or names[-1]
    if name not in names:
        raise UnknownNameError("run", name, names, str(root / runs))
    if run is None:
        say_later(root / runs, name, "measured nothing")
    every = load_figures(root / runs / name)
    figures = last_launches(every)
    parts = [
        render_speedups(figures, width=WIDTH, color=False),
        render_categories(figures, width=WIDTH, color=False),
        render_spreads(figures, width=WIDTH, color=False) if percentiles else "",
        *(f"{one.case_id}: {render_invalid(one.invalid)}" for one in every if one.invalid),
    ]
    typer.echo("\n\n".join(filter(None, parts)) or f"run '{name}': nothing in it speculates")
