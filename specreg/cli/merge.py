"""`specreg merge`: the shards of a run as one run."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from specreg.cli.options import HERE, WIDTH, RootOption
from specreg.report.document import FILE_NAME, exit_status, load_report
from specreg.report.terminal import render_report
from specreg.suite.finish import record_run, run_verdict
from specreg.suite.merge import open_merged, take_shards
from specreg.suite.plan import PLAN, MergedShards, load_shard
from specreg.suite.recording import record_baselines


def merge(
    runs: Annotated[list[Path], typer.Argument(help="the folders of the shards")],
    into: Annotated[Path, typer.Option(help="the folder of the merged run")],
    root: RootOption = HERE,
) -> None:
    """Join the shards of a run: one report, one verdict, and the baselines if it records."""
    into.mkdir(parents=True, exist_ok=True)
    begun = [run for run in runs if (run / PLAN).exists()] or runs
    said = [f"'{run}': no {PLAN}, so it ended before it began" for run in runs if run not in begun]
    shards = sorted(map(load_shard, begun), key=lambda one: one.plan.number)
    suite = open_merged(root.resolve(), shards, into.resolve())
    said += take_shards(suite, shards, whole=True)
    suite.conclude()
    status = exit_status(suite.verdicts) or int(any(one.failed_otherwise for one in shards))
    color = sys.stdout.isatty()
    if suite.records:
        recorded, all_written = record_baselines(suite, width=WIDTH, color=color)
        status = status or int(bool(said) or not all_written)
        typer.echo("\n\n".join(recorded))
    run = run_verdict(suite, status, cut_short=not MergedShards(shards).is_whole)
    command = shlex.join(("specreg", "merge", *map(str, runs), "--into", str(into)))
    wrong = record_run(suite, run, command=command, said=said)
    path = suite.run_folder / FILE_NAME
    typer.echo("\n".join((render_report(load_report(path), width=WIDTH, color=color), *wrong)))
    typer.echo(path.with_suffix(".html"))
    raise typer.Exit(status)
