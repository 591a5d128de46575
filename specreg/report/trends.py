"""What became of each case from run to run, as text."""

from collections.abc import Iterator, Mapping, Sequence

from rich.table import Table
from rich.text import Text

from specreg.measurement.metrics import METRICS, better_frac
from specreg.report.tables import format_number, render_table
from specreg.verdicts.history import RunRecord, comparable

_FEWEST_RUNS = 2
_LAST_RUNS = 30
_TICKS = "▁▂▃▄▅▆▇█"


def render_trends(
    history: Mapping[str, Sequence[RunRecord]], metrics: Sequence[str], *, width: int
) -> str:
    """A row for each case and metric that two comparable runs judged.

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
    return render_table(table, width, color=False) if table.row_count else ""


def _rows(lived: Sequence[RunRecord], metrics: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for metric in metrics:
        values = [one.values[metric] for one in comparable(lived, metric)]
        if len(values) < _FEWEST_RUNS:
            continue
        first, last = values[0], values[-1]
        change = f"{better_frac(METRICS[metric], last, first):+.1%}"
        name = f"  {metric}"
        yield name, str(len(values)), *map(format_number, (first, last)), change, _line(values)


def _line(values: Sequence[float]) -> str:
    """The last values as ticks between the least and the greatest of them."""
    shown = values[-_LAST_RUNS:]
    low, high = min(shown), max(shown)
    if low == high:
        return _TICKS[0] * len(shown)
    most = len(_TICKS) - 1
    return "".join(_TICKS[round(most * (value - low) / (high - low))] for value in shown)
