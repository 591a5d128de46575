"""Render numbers as text, and what a run measured as tables."""

import dataclasses
import io
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from specreg.core.readable import without_ci_commands
from specreg.core.timeline import Phase, RunTime
from specreg.measurement.figures import Figures
from specreg.stats.percentiles import Summary
from specreg.telemetry.power_record import ArmPower, PowerRecord

NOTHING = "–"
_WIDTH = 110
SPREADS = {
    "ttft_ms": "time to first token, ms",
    "tpot_ms": "time per output token, ms",
    "step_ms": "time of a step, ms",
    "e2e_ms": "whole answer, ms",
    "output_tokens_per_s": "output speed, tokens/s",
    "prompt_tokens": "length of a prompt, tokens",
    "completion_tokens": "length of an answer, tokens",
}
PERCENTILES = ("mean", "min", "p50", "p75", "p90", "p95", "p99", "max")
_UNITS = {
    "_tokens_per_s": "tokens/s",
    "_requests_per_s": "requests/s",
    "_j_per_token": "J/token",
    "_tokens": "tokens",
    "_ratio": "times",
    "_frac": "",
    "_ms": "ms",
    "_w": "W",
}
"""By the end of a metric's name, its unit; the longer ends come first."""
_FIVE_DIGITS = 9999.5
_LARGEST_FRAC = 10
_TIMED = ("ms/token\nalone", "\nwith", "\ngain", "tokens/s\nalone", "\nwith", "\ngain")
_POSITIONS = "accepted by\nposition"
_SPEEDUP = ("speedup over\nthe target alone", *_TIMED, "\nAL", "\nA/D", _POSITIONS)
_CATEGORIES = ("by category", "requests", "AL", "A/D", "ms/token alone", "with", "gain")
_WORDS = "AL: acceptance length, tokens/step; A/D: accepted/drafted; c4: 4 in flight"
"""The abbreviations of the tables and of case ids; docs/reference/glossary.md explains terms."""
_POWER = ("power", "J/token", "alone", "saved", "W", "idle", "remark")
_SHOWN_S = 0.05
"""A phase that took every pair less time has no column."""


def format_number(value: float | None) -> str:
    """Return four digits, or all before the point if there are more; a dash for None."""
    if value is None:
        return NOTHING
    return f"{value:.0f}" if abs(value) >= _FIVE_DIGITS else f"{value:.4g}"


def label_of(metric: str) -> str:
    """Return the words of a metric's name: `acceptance length` of `acceptance_length_tokens`."""
    return metric.removesuffix(_suffix(metric)).replace("_", " ")


def axis_of(metric: str) -> str:
    """Return a metric with its unit: `throughput, tokens/s`. Shares have no unit."""
    return ", ".join(filter(None, (label_of(metric), _unit_of(metric))))


def render_value(metric: str, value: float | None) -> str:
    """Return a value with its unit: `90 tokens/s`, `54.3%`; a dash for None."""
    if value is None:
        return NOTHING
    if _suffix(metric) == "_frac":
        return f"{100 * value:.4g}%"
    return f"{format_number(value)} {_unit_of(metric)}".rstrip()


def render_change(change_frac: float | None) -> str:
    """Return a change in percent with its sign: `+1.2%`; a dash for None."""
    if change_frac is None:
        return NOTHING
    return f"{change_frac:+.1%}"


def render_interval(low_frac: float | None, high_frac: float | None) -> str:
    """Return where a change lies: `-1.2..+0.8%`; a dash for None."""
    if low_frac is None or high_frac is None:
        return NOTHING
    return f"{_render_bound(low_frac)}..{_render_bound(high_frac)}%"


def _render_bound(bound_frac: float) -> str:
    """Return a bound in percent; beyond a factor of ten no figure means anything."""
    if abs(bound_frac) < _LARGEST_FRAC:
        return f"{100 * bound_frac:+.1f}"
    return "<-999" if bound_frac < 0 else ">999"


def render_rows(
    head: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    *,
    color: bool = False,
    left_columns: Collection[str] = (),
    folded: Collection[str] = (),
) -> str:
    """Render rows below their heads, in 110 columns of text at most; empty without rows.

    A short row leaves the last columns empty, and a single cell is a heading. The first column is
    set left and wraps.

    Args:
        head: the names of the columns.
        rows: the cells of each row.
        color: whether to write escape sequences for colours.
        left_columns: columns that are set left and don't wrap; others are set right.
        folded: columns that are set left and wrap.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in head:
        wraps = name == head[0] or name in folded
        justify: Literal["left", "right"] = "right"
        if wraps or name in left_columns:
            justify = "left"
        table.add_column(name, justify=justify, no_wrap=not wraps, overflow="fold")
    for row in rows:
        # In a plain string, rich would take what is in brackets for markup.
        cells = [Text(cell) if isinstance(cell, str) else cell for cell in row]
        is_heading = len(row) == 1
        table.add_row(*cells, style="bold" if is_heading else None)
    if not table.row_count:
        return ""
    text = io.StringIO()
    console = Console(
        file=text, width=_WIDTH, force_terminal=color, no_color=not color, highlight=False
    )
    console.print(table)
    lines = [line.rstrip() for line in text.getvalue().splitlines()]
    # A cell that wraps may break a long word just before what a CI system takes for a command.
    return without_ci_commands("\n".join(lines))


def render_figures(figures: Sequence[Figures], *, color: bool) -> str:
    """Render the tables of what one launch of each case measured; a table without rows is left out.

    TPOT is the median over requests, throughput all tokens over all time. `A/D` is the draft
    efficiency, and the positions are marginal: how often a step accepted so many drafts or more.
    J/token is all energy over all tokens, `alone` that without speculation, `saved` the share of it
    that speculation saves. The remark says by how much the ends of the block may falsify these.
    """
    speedup_rows = [_speedup_row(case) for case in figures if case.speedup and case.control]
    category_rows = [row for case in figures for row in _category_rows(case)]
    power_rows = [[case.case_id, *_power_cells(case.power)] for case in figures if case.power]
    parts = [
        render_rows(_SPEEDUP, speedup_rows, color=color, folded=(_POSITIONS,)),
        render_rows(_CATEGORIES, category_rows, color=color),
        render_rows(_POWER, power_rows, color=color, folded=("remark",)),
    ]
    if speedup_rows:
        parts.append(_WORDS)
    return "\n\n".join(part for part in parts if part)


def _speedup_row(figures: Figures) -> Sequence[str]:
    """Return the cells of a case in the table of the speedups: times first, then acceptance."""
    cells = [figures.case_id]
    if figures.timing and figures.control and figures.speedup:
        cells += [
            _median(figures.control.tpot_ms),
            _median(figures.timing.tpot_ms),
            _gain(figures.speedup.tpot_ratio),
            format_number(figures.control.throughput_tokens_per_s),
            format_number(figures.timing.throughput_tokens_per_s),
            _gain(figures.speedup.throughput_ratio),
        ]
    if figures.acceptance:
        total = figures.acceptance.total
        cells += [
            _fixed(total.acceptance_length_tokens),
            _fixed(total.acceptance_rate_frac),
            " ".join(_fixed(share) for share in total.marginal_frac),
        ]
    return cells


def _category_rows(figures: Figures) -> Iterator[Sequence[str]]:
    """Yield a row for each category of a case that speculates and has several."""
    if figures.timing is None or figures.acceptance is None:
        return
    if len(figures.timing.by_category) == 1:
        return
    yield [figures.case_id]
    for name, pace in figures.timing.by_category.items():
        cells = [f"  {name}", str(pace.requests)]
        part = figures.acceptance.by_category.get(name)
        if part is None:
            cells += [NOTHING, NOTHING]
        else:
            cells += [_fixed(part.acceptance_length_tokens), _fixed(part.acceptance_rate_frac)]
        if figures.speedup and figures.control:
            control_tpot_ms = None
            control_pace = figures.control.by_category.get(name)
            if control_pace is not None:
                control_tpot_ms = control_pace.tpot_ms
            gain = _gain(figures.speedup.tpot_ratio_by_category.get(name))
            cells += [_median(control_tpot_ms), _median(pace.tpot_ms), gain]
        yield cells


def spreads_of(figures: Figures) -> Iterator[tuple[str, Summary, Summary | None]]:
    """Yield the name of each spread, its summary, and the control's summary; None without one."""
    if figures.timing is None:
        return
    for field, name in SPREADS.items():
        summary = getattr(figures.timing, field)
        if summary is None:
            continue
        control_summary = None
        if figures.control is not None:
            control_summary = getattr(figures.control, field)
        if control_summary == summary:
            # Both servers get the same prompts, so the lengths of the prompts are shown once.
            control_summary = None
        yield name, summary, control_summary


def _power_cells(power: PowerRecord) -> Sequence[str]:
    arm = power.case
    if arm is None:
        return (*[NOTHING] * 5, str(power.invalid or ""))
    control_j_per_token = None
    if power.control is not None:
        control_j_per_token = power.control.energy_j_per_token
    saved = NOTHING
    if power.energy_ratio is not None:
        saved = f"{1 - 1 / power.energy_ratio:+.0%}"
    return (
        format_number(arm.energy_j_per_token),
        format_number(control_j_per_token),
        saved,
        format_number(arm.mean_w),
        format_number(arm.idle_w),
        "; ".join(_power_remarks(power, arm)),
    )


def _power_remarks(power: PowerRecord, arm: ArmPower) -> list[str]:
    """Return the error of an energy, why it isn't judged, and whether the power was capped."""
    remarks = []
    if arm.error_frac is not None:
        remarks.append(f"±{arm.error_frac:.1%}")
    if power.too_short:
        remarks.append(power.too_short)
    if any("power cap" in (device.throttled or ()) for device in arm.devices):
        remarks.append("at its power cap")
    return remarks


def render_times(run_time: RunTime, *, color: bool) -> str:
    """Render where the time of a run went in seconds: a row for each server pair, and the sums.

    Returns:
        Empty if no server was asked for.
    """
    if not run_time.pairs:
        return ""
    phases = [
        phase
        for phase in Phase
        if any(pair.phases_s.get(phase, 0) >= _SHOWN_S for pair in run_time.pairs)
    ]
    rows = []
    for pair in run_time.pairs:
        phase_cells = [f"{pair.phases_s.get(phase, 0):.1f}" for phase in phases]
        rows.append([pair.pair, *phase_cells, f"{pair.total_s:.1f}"])
    no_phases = [""] * len(phases)
    rows.append(["for no pair", *no_phases, f"{run_time.idle_s:.1f}"])
    rows.append(["since the process began", *no_phases, f"{run_time.wall_s:.1f}"])
    head = ("where the time went, s", *phases, "total")
    return render_rows(head, rows, color=color)


def _suffix(metric: str) -> str:
    """Return the end of a metric's name that is its unit; empty if it has none."""
    return next((suffix for suffix in _UNITS if metric.endswith(suffix)), "")


def _unit_of(metric: str) -> str:
    return _UNITS.get(_suffix(metric), "")


def _median(summary: Summary | None) -> str:
    if summary is None:
        return NOTHING
    return format_number(summary.p50)


def _gain(ratio: float | None) -> str:
    return f"×{_fixed(ratio)}"


def _fixed(value: float | None) -> str:
    """Return two digits behind the point; a dash for None."""
    return NOTHING if value is None else f"{value:.2f}"


def settings_of(settings: Any) -> Iterator[tuple[str, str]]:  # noqa: ANN401 - of a case, or a table in it
    """Yield the settings that aren't at their default, each with its value in words."""
    for setting in dataclasses.fields(settings):
        value = getattr(settings, setting.name)
        if value != setting.default:
            yield setting.name, _setting_text(value)


def _setting_text(value: object) -> str:
    """Return a setting's value in words: of a table its settings, of pairs `NAME=VALUE`."""
    if dataclasses.is_dataclass(value):
        return ", ".join(f"{name} {text}" for name, text in settings_of(value))
    if isinstance(value, tuple):
        items = [f"{item[0]}={item[1]}" if isinstance(item, tuple) else str(item) for item in value]
        return ", ".join(items)
    return str(value)
