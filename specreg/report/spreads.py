"""How what was timed spreads, as a table: latency, lengths and throughput."""

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from specreg.measurement.figures import Figures
from specreg.report.terminal import format_number, render_table
from specreg.stats.percentiles import Summary

TIMED = {
    "ttft_ms": "time to first token, ms",
    "tpot_ms": "time per output token, ms",
    "step_ms": "time of a step, ms",
    "e2e_ms": "whole answer, ms",
    "output_tokens_per_s": "output speed, tokens/s",
    "throughput_tokens_per_s": "throughput, tokens/s",
    "completion_tokens": "length of an answer, tokens",
}
COLUMNS = ("mean", "min", "p50", "p75", "p90", "p95", "p99", "max")


def spreads_of(figures: Figures) -> Iterator[tuple[str, Summary, Summary | None]]:
    """What was timed: its name, how it spreads, and how it does without speculation."""
    if figures.timing is None:
        return
    for field, name in TIMED.items():
        ours = getattr(figures.timing, field)
        if ours is not None:
            yield name, ours, getattr(figures.control, field) if figures.control else None


def render_spreads(figures: Sequence[Figures], *, width: int, color: bool) -> str:
    """Rows for each case, with those of the target alone below; empty where nothing was timed."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("how it spreads", overflow="fold")
    for name in ("count", *COLUMNS):
        table.add_column(name, justify="right", no_wrap=True)
    for one in figures:
        rows = list(spreads_of(one))
        if rows:
            table.add_row(Text(one.case_id, style="bold"))
        for name, ours, alone in rows:
            table.add_row(f"  {name}", *_cells(ours))
            if alone is not None:
                table.add_row("    target alone", *_cells(alone), style="dim")
    return render_table(table, width, color=color) if table.row_count else ""


def _cells(summary: Summary) -> Iterator[str]:
    yield str(summary.count)
    yield from (format_number(getattr(summary, name)) for name in COLUMNS)
