"""What became of each case from run to run, as text: trends, and from when on it was otherwise."""

from collections.abc import Iterator, Mapping, Sequence

from rich.table import Table
from rich.text import Text

from specreg.changes import can_find_shifts, comparable, turns_in
from specreg.commands import install_command
from specreg.history import Lived
from specreg.metrics import METRICS, better_frac
from specreg.report.terminal import format_number, render_table

_FEWEST_RUNS = 2
_LAST_RUNS = 30
_TICKS = "▁▂▃▄▅▆▇█"


def render_trends(
    history: Mapping[str, Sequence[Lived]], metrics: Sequence[str], *, width: int
) -> str:
    """A row for each case and metric that two comparable runs judged, and its shifts below.

    A change is as in every verdict: better is positive.

    Args:
        history: by case, the oldest first.
        metrics: which to show.
        width: columns of the text.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("case and metric", overflow="fold")
    for name in ("runs", "first", "last", "change"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column(f"the last {_LAST_RUNS}", no_wrap=True)
    for case_id, lived in history.items():
        rows = list(_rows(lived, metrics))
        if rows:
            table.add_row(Text(case_id, style="bold"))
        for row in rows:
            table.add_row(*map(Text, row))
    parts = [render_table(table, width, color=False)] if table.row_count else []
    if parts and not can_find_shifts():
        parts.append(f"change points aren't looked for: {install_command('changes')} first")
    return "\n\n".join(parts)


def _rows(lived: Sequence[Lived], metrics: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for metric in metrics:
        runs = comparable(lived, metric)
        values = [one.values[metric] for one in runs]
        if len(values) < _FEWEST_RUNS:
            continue
        first, last = values[0], values[-1]
        change = f"{better_frac(METRICS[metric], last, first):+.1%}"
        name = f"  {metric}"
        yield name, str(len(values)), *map(format_number, (first, last)), change, _line(values)
        for turn in turns_in(runs, metric):
            yield (
                f"    since {turn.run}, {' → '.join(turn.versions)}",
                "",
                *map(format_number, (values[turn.place - 1], values[turn.place])),
                f"{turn.change_frac:+.1%}",
                "",
            )


def _line(values: Sequence[float]) -> str:
    """The last values as ticks between the least and the greatest of them."""
    shown = values[-_LAST_RUNS:]
    low, high = min(shown), max(shown)
    if low == high:
        return _TICKS[0] * len(shown)
    most = len(_TICKS) - 1
    return "".join(_TICKS[round(most * (value - low) / (high - low))] for value in shown)
