"""What is known before a run: `specreg matrix`, `baselines`, `prepare` and `selftest`."""

import functools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import typer

from specreg.baselines.estimate import READ_GIB_PER_S, START_S, Estimate, estimate_of, run_s
from specreg.baselines.schema import baseline_files, read_baselines, render_schema
from specreg.baselines.store import BaselineStore
from specreg.cli import HERE, USUAL, RootOption, TierOption, say
from specreg.core.commands import specreg_command
from specreg.core.files import data_dir
from specreg.datasets.prepare import prepare as prepare_set
from specreg.datasets.table import dataset_named
from specreg.engines.registry import render_methods
from specreg.matrix.case import Tier, render_memory
from specreg.matrix.tier import load_tier, tier_names
from specreg.measurement.metrics import METRICS, check_allowed
from specreg.report.tables import NOTHING, format_number, render_rows
from specreg.telemetry.identity import Gpus, current_environment, find_gpus

_S_PER_MIN = 60.0


def baselines(
    what: Annotated[
        Literal["list", "schema"],
        typer.Argument(help="list, or schema for the JSON Schema of a file"),
    ],
    root: RootOption = HERE,
) -> None:
    """List the baselines with date, engine and reason; status 1 if one of them can't be read."""
    if what == "schema":
        typer.echo(render_schema(), nl=False)
        return
    found, unreadable = read_baselines(baseline_files(root / USUAL.baselines))
    names = ("acceptance_length_tokens", "throughput_tokens_per_s")
    rows = [
        (
            f"{path.parent.name}/{path.stem}",
            one.provenance.recorded_on,
            f"{one.case.engine}=={one.provenance.engine_version}",
            str(len(one.launches)),
            *(format_number(one.expected_value(METRICS[name])) for name in names),
            " ".join(one.provenance.reason.split()),
        )
        for path, one in found.items()
    ]
    head = ("baseline", "recorded", "engine", "launches", "AL", "tokens/s", "reason")
    table = render_rows(head, rows, left=("engine",), folded=("reason",))
    say("\n".join((table, *unreadable)))
    raise typer.Exit(1 if unreadable else 0)


def engines() -> None:
    """Print which engine has which method, and which of them were seen running."""
    say(render_methods())


def prepare(
    name: Annotated[str, typer.Argument(help="a prompt set, such as gsm8k")],
    given: Annotated[Path | None, typer.Option("--from", help="your copy of the file")] = None,
) -> None:
    """Fetch a dataset, or read your copy, check it, and write it as cases replay it.

    No dataset is part of specreg: each has a licence of its own, which is shown first. It is
    written to SPECREG_DATA, else to specreg's cache.
    """
    prepare_set(
        dataset_named(name), data_dir=data_dir(), given=given, show=functools.partial(say, err=True)
    )


def selftest(
    nights: Annotated[int, typer.Option(help="how many identical nights to simulate")] = 200,
) -> None:
    """Simulate nights with and without planted changes, and print how often verdicts err."""
    from specreg.verdicts.selftest import run_selftest  # noqa: PLC0415 - seconds of simulation

    text, holds = run_selftest(nights)
    say(text)
    raise typer.Exit(0 if holds else 1)


def tier_of(folder: Path, name: str | None) -> Tier:
    """The tier of a name, else that of this machine, with the model pairs that its GPUs hold."""
    gpus = find_gpus()
    if name is None:
        gpus.check_usable()
    return load_tier(folder, name or ("gpu" if gpus.devices else "cpu")).chosen(gpus.memory_gib)


def matrix(tier: TierOption = None, root: RootOption = HERE) -> None:
    """Print a tier's cases, what each needs, and about how long it takes."""
    files = root / USUAL.matrix
    found = tier_of(files, tier)
    for case in found.cases:
        check_allowed(case, found.places[case.id])
    gpus = find_gpus()
    environment = current_environment(needs_gpus=found.gpus_used(gpus.memory_gib))
    store = BaselineStore(folder=root / USUAL.baselines, environment=environment)
    kind = "gpu" if found.needs_gpus else "cpu"
    estimates = {case.id: estimate_of(case, store, kind) for case in found.cases}
    say(render_matrix(found, estimates, gpus))
    say(f"tiers: {', '.join(tier_names(files))}")


def render_matrix(tier: Tier, estimates: Mapping[str, Estimate], gpus: Gpus) -> str:
    """A row for each case; below it the total, what to prepare, and what doesn't fit the GPUs."""
    on_gpu = tier.needs_gpus > 0
    rows = []
    for case in tier.cases:
        estimate, memory_gib = estimates[case.id], case.memory_gib
        rows.append(
            (
                case.id,
                str(case.server.parallel.gpus_by_node) if on_gpu else NOTHING,
                str(math.ceil(memory_gib)) if on_gpu and memory_gib is not None else NOTHING,
                str(case.prompts),
                f"{estimate.case_s / _S_PER_MIN:.1f}",
                estimate.source,
            )
        )
    columns = ("case", "GPUs", "GiB each", "prompts", "minutes", "by")
    kind, unit = ("gpu", "minutes of a GPU") if on_gpu else ("cpu", "minutes")
    total = f"about {run_s(tier.cases, estimates, kind) / _S_PER_MIN:.0f} {unit} in all"
    lines = [render_rows(columns, rows, folded=("by",)), ""]
    lines.append(f"{total}, {START_S[kind]:.0f} s for each server's start")
    datasets = sorted({case.dataset for case in tier.cases})
    if prepared := [name for name in datasets if dataset_named(name).licence]:
        commands = "; ".join(specreg_command("prepare", name) for name in prepared)
        lines.append(f"to prepare: {commands}")
    if any("guess" in estimate.source for estimate in estimates.values()):
        reads = f"a step reads all weights at {READ_GIB_PER_S:.0f} GiB/s"
        lines.append(f"guess: {reads}; no draft is accepted")
    if lacking := tier.unmet(gpus.memory_gib):
        why = render_memory(gpus.memory_gib) or f"no GPU ({gpus.why_none})"
        lines.append(f"{len(lacking)} of {len(tier.cases)} cases don't fit this machine: {why}")
    return "\n".join(lines)
