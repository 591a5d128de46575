"""Baselines as tables: what there is, and what changes."""

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from specreg.baseline import Baseline
from specreg.comparison import expected_value
from specreg.metrics import METRICS
from specreg.recording import Recorded
from specreg.report.terminal import format_number, render_recorded, render_table


def render_list(baselines: Sequence[tuple[Path, Baseline | str]], *, width: int) -> str:
    """A row for each file, grouped by machine; one that can't be read says why.

    Args:
        baselines: path and content, or why there is none.
        width: columns of the text.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("baseline", overflow="fold")
    for name in ("recorded", "engine", "prompts", "launches", "AL", "tokens/s"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("reason", overflow="fold")
    machine, unreadable = None, []
    for path, baseline in baselines:
        if isinstance(baseline, str):
            unreadable.append(baseline)
            continue
        if path.parent.name != machine:
            machine = path.parent.name
            table.add_row(Text(machine, style="bold"))
        table.add_row(*map(Text, _cells(path, baseline)))
    return "\n".join([render_table(table, width, color=False), *unreadable])


def render_changes(changes: Sequence[tuple[Path, Baseline | None, Baseline]], *, width: int) -> str:
    """Old and new value of each metric of some files; `None` for a file that is new."""
    recorded = [Recorded(path=path, old=old, new=new) for path, old, new in changes]
    return render_recorded(recorded, width=width, color=False)


def _cells(path: Path, baseline: Baseline) -> tuple[str, ...]:
    prompts = {one.id for one in baseline.acceptance.prompts} if baseline.acceptance else ()
    values = (
        expected_value(METRICS[name], baseline)
        for name in ("acceptance_length_tokens", "throughput_tokens_per_s")
    )
    return (
        f"  {path.stem}",
        baseline.provenance.recorded_on,
        f"{baseline.case.engine} {baseline.provenance.engine_version}",
        str(len(prompts)),
        str(len(baseline.launches)),
        *map(format_number, values),
        baseline.provenance.reason,
    )
