"""A tier as a table: its cases, what each needs, and about how long it takes."""

import math
from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from specreg.baselines.estimate import (
    START_S,
    USUAL_BANDWIDTH_GIB_PER_S,
    Estimate,
    Estimates,
    run_min,
)
from specreg.core.commands import specreg_command
from specreg.matrix.case import Case, Tier
from specreg.report.tables import NOTHING, render_table
from specreg.telemetry.identity import Gpus

_S_PER_MIN = 60.0


def render_matrix(tier: Tier, estimates: Estimates, gpus: Gpus, *, width: int) -> str:
    """A row for each case; below it the total, what to prepare, and where the minutes come from.

    Args:
        tier: whose cases.
        estimates: of them.
        gpus: of this machine.
        width: columns of the text.
    """
    on_gpu = tier.needs_gpus > 0
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("case", overflow="fold")
    for name in ("GPUs", "GiB each", "prompts", "minutes"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("by", overflow="fold")
    for case in tier.cases:
        table.add_row(*map(Text, _cells(case, estimates[case.id], on_gpu=on_gpu)))
    lines = (render_table(table, width, color=False), "", *_notes(tier, estimates, gpus))
    return "\n".join(lines)


def _cells(case: Case, estimate: Estimate | None, *, on_gpu: bool) -> tuple[str, ...]:
    memory_gib = case.needs.memory_gib
    return (
        case.id,
        str(case.needs.gpus) if on_gpu else NOTHING,
        str(math.ceil(memory_gib)) if on_gpu and memory_gib is not None else NOTHING,
        str(case.prompts),
        NOTHING if estimate is None else f"{estimate.case_s(case.prompts) / _S_PER_MIN:.1f}",
        "" if estimate is None else estimate.source,
    )


def _notes(tier: Tier, estimates: Estimates, gpus: Gpus) -> Iterator[str]:
    kind = "gpu" if tier.needs_gpus else "cpu"
    unknown = sum(estimates[case.id] is None for case in tier.cases)
    unit = "minutes of a GPU" if tier.needs_gpus else "minutes"
    rest = f", and {unknown} case(s) of which nothing tells" if unknown else ""
    total = run_min(tier.cases, estimates, kind)
    yield f"about {total:.0f} {unit} in all, {START_S[kind]:.0f} s for each server's start{rest}"
    datasets = sorted({case.dataset for case in tier.cases} - {"toy"})
    prepared = [name for name in datasets if not name.startswith("random-")]
    if prepared:
        yield "to prepare: " + "; ".join(specreg_command("prepare", name) for name in prepared)
    if any(estimate is not None and "guess" in estimate.source for estimate in estimates.values()):
        yield _guess_note(gpus)
    lacking = tier.unmet(gpus.memory_gib)
    if lacking:
        there = ", ".join(f"{math.floor(each)} GiB" for each in gpus.memory_gib)
        why = there or f"no GPU ({gpus.why_none})"
        yield f"{len(lacking)} of {len(tier.cases)} cases don't fit this machine: {why}"


def _guess_note(gpus: Gpus) -> str:
    """How a guess comes about."""
    bandwidth = gpus.bandwidth_gib_per_s or USUAL_BANDWIDTH_GIB_PER_S
    whose = "this GPU's" if gpus.bandwidth_gib_per_s else "an H100's, as no GPU is here"
    return (
        "guess: each step reads all weights at half of the memory's bandwidth"
        f" ({bandwidth:.0f} GiB/s, {whose}), and no draft is accepted"
    )
