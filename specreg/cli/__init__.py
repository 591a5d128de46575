"""`specreg`: what is done besides running the suite. A file for each group of commands."""

import sys
from typing import Annotated

import typer

from specreg.cli.baselines import app as baselines
from specreg.cli.bisect import bisect
from specreg.cli.cases import explain, oracle
from specreg.cli.datasets import convert, prepare
from specreg.cli.doctor import doctor
from specreg.cli.gate import gate
from specreg.cli.history import history
from specreg.cli.matrix import matrix
from specreg.cli.power import power
from specreg.cli.report import report
from specreg.cli.soak import soak
from specreg.cli.tables import tables
from specreg.errors import SpecregError
from specreg.redaction import learn
from specreg.report.engines import render_support

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Baselines of speculative decoding: what is expected, and what was recorded.",
)
app.command()(explain)
app.command()(gate)
app.command()(bisect)
app.command()(soak)
app.command()(oracle)
app.command()(prepare)
app.command()(convert)
app.command()(matrix)
app.command()(doctor)
app.command()(power)
app.command()(tables)
app.command()(report)
app.command()(history)


def main() -> None:
    """The command line; an error of specreg is its message alone, with status 1."""
    try:
        learn({}, sys.argv[1:])
        app()
    except SpecregError as error:
        typer.echo(str(error), err=True)
        raise SystemExit(1) from error


@app.command()
def engines() -> None:
    """Print which engine has which method, in Markdown."""
    typer.echo(render_support())


@app.command()
def selftest(
    nights: Annotated[int, typer.Option(help="identical nights to simulate")] = 200,
) -> None:
    """Plant known changes and simulate identical nights; print what was caught, and what wasn't."""
    from specreg.selftest import run_selftest  # noqa: PLC0415 - seconds of simulation

    text, holds = run_selftest(nights)
    typer.echo(text)
    raise typer.Exit(0 if holds else 1)


app.add_typer(baselines, name="baselines")
