"""`specreg merge`: the shards of a run as one run."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from specreg.cli.options import HERE, WIDTH, RootOption
from specreg.report.document import FILE_NAME, exit_status, record_document
from specreg.report.exports import ALWAYS, write_outputs
from specreg.report.terminal import render_recorded, render_report
from specreg.suite.finish import record_baselines, record_runs, remarks, report_of, run_verdict
from specreg.suite.merge import (
    MergedShards,
    check_alike,
    copy_files,
    join_journals,
    load_shard,
    open_merged,
    take_shards,
)


def merge(
    runs: Annotated[list[Path], typer.Argument(help="the folders of the shards")],
    into: Annotated[Path, typer.Option(help="the folder of the merged run")],
    root: RootOption = HERE,
) -> None:
    """Join the shards of a run: one report, one verdict, and the baselines if it records."""
    root = root.resolve()
    into.mkdir(parents=True, exist_ok=True)
    shards = sorted((load_shard(run) for run in runs), key=lambda one: one.plan.number)
    check_alike(shards)
    suite = open_merged(root, shards, into.resolve())
    said = list(take_shards(suite, shards, whole=True))
    suite.conclude()
    copy_files(shards, suite.run_folder)
    join_journals(shards, suite.journal.path)
    status = exit_status(suite.verdicts)
    if suite.update_reason is not None:
        written, refused = record_baselines(suite)
        said.extend(refused.values())
        status = status or int(bool(refused or said))
        if written:
            typer.echo(render_recorded(written, width=WIDTH, color=False))
    else:
        record_runs(suite)
    said.extend(remarks(suite))
    run = run_verdict(suite, status, cut_short=bool(MergedShards(shards).missing))
    report = report_of(
        suite,
        run,
        command=shlex.join(("specreg", "merge", *map(str, runs), "--into", str(into))),
        options=suite.store.options,
        remarks=said,
    )
    record_document(suite.run_folder / "verdict.json", run)
    record_document(suite.run_folder / FILE_NAME, report)
    written_files = write_outputs((*ALWAYS, "junit"), report, suite.run_folder, suite.run_folder)
    typer.echo(render_report(report, width=WIDTH, color=sys.stdout.isatty()))
    for path in written_files:
        typer.echo(path)
    raise typer.Exit(status)
