"""A soak as text: how each figure moved, and what is to be thought of it."""

import math
from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

from specreg.compare.soak.drift import PARTS, Drift, State
from specreg.report.tables import NOTHING, render_table

_STYLES = {State.STEADY: "green", State.DRIFTS: "red", State.UNTOLD: "yellow"}
_COLUMNS = ("at first", "at last", "change/h", "interval/h", "tolerance/h", "alarm after")


def render_soak(
    drifts: Sequence[Drift], alarms: Mapping[str, float], *, width: int, color: bool
) -> str:
    """A row for each figure, and a sentence for each that isn't steady.

    Args:
        drifts: at the end.
        alarms: by figure, after how many seconds its drift was first seen.
        width: columns.
        color: whether for a terminal that has some.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("figure", no_wrap=True)
    for name in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for drift in drifts:
        alarm_s = alarms.get(drift.watched.name)
        table.add_row(
            f"{drift.watched.title}, {drift.watched.unit}",
            _value(drift, drift.first),
            _value(drift, drift.last),
            NOTHING if drift.change is None else _percent(drift.change.estimate_frac),
            NOTHING if drift.change is None else _interval(drift),
            f"{drift.tolerance_frac:.1%}",
            NOTHING if alarm_s is None else f"{alarm_s / 60:.1f} min",
            Text(drift.state, _STYLES[drift.state]),
        )
    told = [sentence for drift in drifts if (sentence := render_drift(drift))]
    return "\n".join((render_table(table, width, color=color), *told))


def render_drift(drift: Drift) -> str:
    """What one should know of a figure that isn't steady, and do; empty of one that is."""
    title = drift.watched.title
    if drift.state is State.STEADY:
        return ""
    if drift.state is State.DRIFTS and drift.lost_after_h is not None:
        return (
            f"{title}: worse by {-drift.change_frac:.1%} in an hour; what is fine for one is lost"
            f" after {_hours(drift.lost_after_h)}; look at the server's log for what grows or fills"
        )
    why = f"{title}: no telling from {drift.blocks} blocks"
    if drift.blocks < PARTS:
        return f"{why}, {PARTS} are needed; soak longer, or with fewer --prompts"
    if drift.change is None:
        return f"{title}: it is never beyond {drift.watched.origin:g}; there is nothing to lose"
    if drift.needed_min is None:
        return f"{why}; soak longer"
    return f"{why}; soak for {math.ceil(drift.needed_min)} minutes or more"


def _value(drift: Drift, value: float | None) -> str:
    return NOTHING if value is None else f"{value * drift.watched.scale:.4g}"


def _interval(drift: Drift) -> str:
    return f"{_percent(drift.low_frac)}..{_percent(drift.high_frac)}"


def _percent(frac: float) -> str:
    """With a sign, but none of what rounds to nothing."""
    return f"{round(frac, 3) + 0.0:+.1%}"


def _hours(hours: float) -> str:
    return f"{hours:.1f} h" if hours >= 1 else f"{hours * 60:.0f} min"
