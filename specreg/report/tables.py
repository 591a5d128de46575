"""Numbers as text, and the tables of what a run measured beside its verdicts."""

import io
from collections.abc import Collection, Iterable, Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from specreg.core.timeline import Phase, RunTime
from specreg.measurement.figures import Figures
from specreg.stats.percentiles import Summary
from specreg.telemetry.power_record import PowerRecord

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
"""The longer ones first: what ends in `_tokens_per_s` doesn't end in another."""
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
"""Of a phase; one that took no pair longer has no column."""


def format_number(value: float | None) -> str:
    """Four digits, all that stand before the point, or a dash for what is unknown."""
    if value is None:
        return NOTHING
    return f"{value:.0f}" if abs(value) >= _FIVE_DIGITS else f"{value:.4g}"


def label_of(metric: str) -> str:
    """`acceptance length` of `acceptance_length_tokens`."""
    return metric.removesuffix(_suffix(metric)).replace("_", " ")


def axis_of(metric: str) -> str:
    """`throughput, tokens/s` of `throughput_tokens_per_s`; shares have no unit."""
    return ", ".join(filter(None, (label_of(metric), _UNITS.get(_suffix(metric), ""))))


def render_value(metric: str, value: float | None) -> str:
    """`90 tokens/s`, `54.3%`, or a dash for what is unknown."""
    if value is None:
        return NOTHING
    if _suffix(metric) == "_frac":
        return f"{100 * value:.4g}%"
    return " ".join(filter(None, (format_number(value), _UNITS.get(_suffix(metric), ""))))


def render_change(change_frac: float | None) -> str:
    """`+1.2%`, or a dash for what is unknown."""
    return NOTHING if change_frac is None else f"{change_frac:+.1%}"


def render_interval(low: float | None, high: float | None) -> str:
    """`-1.2..+0.8%`: where a change lies; beyond a factor of ten no figure means anything."""
    if low is None or high is None:
        return NOTHING
    ends = (
        f"{100 * end:+.1f}" if abs(end) < _LARGEST_FRAC else "<-999" if end < 0 else ">999"
        for end in (low, high)
    )
    return f"{'..'.join(ends)}%"


def render_rows(
    head: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    *,
    color: bool = False,
    left: Collection[str] = (),
    folded: Collection[str] = (),
) -> str:
    """Rows below their heads, 110 columns of text at most; empty without rows.

    A short row leaves the last columns empty, and one cell alone is a heading. The first column is
    set left and wraps, those `folded` too; those `left` don't wrap, others are set right.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in head:
        wraps = name == head[0] or name in folded
        is_left = wraps or name in left
        table.add_column(
            name, justify="left" if is_left else "right", no_wrap=not wraps, overflow="fold"
        )
    for row in rows:
        # Not as strings: rich takes what stands in brackets for markup.
        cells = (Text(cell) if isinstance(cell, str) else cell for cell in row)
        table.add_row(*cells, style="bold" if len(row) == 1 else None)
    text = io.StringIO()
    console = Console(
        file=text, width=_WIDTH, force_terminal=color, no_color=not color, highlight=False
    )
    console.print(table)
    return "\n".join(map(str.rstrip, text.getvalue().splitlines())) if table.row_count else ""


def render_figures(figures: Sequence[Figures], *, color: bool) -> str:
    """All tables of what one launch of each case measured, each where there is something to show.

    TPOT is the median over requests, throughput all tokens over all time. `A/D` is the draft
    efficiency, and the positions are marginal: how often a step accepted so many drafts or more.
    J/token is all energy over all tokens, `alone` that without speculation, `saved` the share of it
    that speculation saves; the remark says by how much the block's ends may falsify these.
    """
    speedups = [_speedup_row(one) for one in figures if one.speedup and one.control]
    tables = (
        (_SPEEDUP, speedups),
        (_CATEGORIES, [row for one in figures for row in _category_rows(one)]),
        (_POWER, [[one.case_id, *_power_cells(one.power)] for one in figures if one.power]),
    )
    shown = (
        render_rows(head, rows, color=color, folded=(_POSITIONS, "remark")) for head, rows in tables
    )
    return "\n\n".join(filter(None, (*shown, _WORDS if speedups else "")))


def _speedup_row(one: Figures) -> Sequence[str]:
    cells = [one.case_id]
    if one.timing and one.control and one.speedup:
        arms = one.control, one.timing
        cells += [*(_median(arm.tpot_ms) for arm in arms), _gain(one.speedup.tpot_ratio)]
        cells += [format_number(arm.throughput_tokens_per_s) for arm in arms]
        cells.append(_gain(one.speedup.throughput_ratio))
    if one.acceptance:
        total = one.acceptance.total
        cells += map(_fixed, (total.acceptance_length_tokens, total.acceptance_rate_frac))
        cells.append(" ".join(map(_fixed, total.marginal_frac)))
    return cells


def _category_rows(one: Figures) -> Iterator[Sequence[str]]:
    """A row for each category of a case that speculates and has several."""
    if one.timing is None or one.acceptance is None or len(one.timing.by_category) == 1:
        return
    yield [one.case_id]
    for name, pace in one.timing.by_category.items():
        part = one.acceptance.by_category.get(name)
        known = (part.acceptance_length_tokens, part.acceptance_rate_frac) if part else (None,) * 2
        cells = [f"  {name}", str(pace.requests), *map(_fixed, known)]
        if one.speedup and one.control:
            alone = one.control.by_category.get(name)
            cells += [_median(alone.tpot_ms if alone else None), _median(pace.tpot_ms)]
            cells.append(_gain(one.speedup.tpot_ratio_by_category.get(name)))
        yield cells


def spreads_of(figures: Figures) -> Iterator[tuple[str, Summary, Summary | None]]:
    """What was timed: its name, how it spreads, and how it does without speculation."""
    for field, name in SPREADS.items():
        ours = getattr(figures.timing, field) if figures.timing else None
        if ours is not None:
            yield name, ours, getattr(figures.control, field) if figures.control else None


def _power_cells(power: PowerRecord) -> Sequence[str]:
    arm = power.case
    if arm is None:
        return (*[NOTHING] * 5, str(power.invalid or ""))
    alone = power.control.energy_j_per_token if power.control else None
    capped = any("power cap" in (device.throttled or ()) for device in arm.devices)
    error = "" if arm.error_frac is None else f"±{arm.error_frac:.1%}"
    return (
        *map(format_number, (arm.energy_j_per_token, alone)),
        NOTHING if power.energy_ratio is None else f"{1 - 1 / power.energy_ratio:+.0%}",
        *map(format_number, (arm.mean_w, arm.idle_w)),
        "; ".join(filter(None, (error, power.too_short, "at its power cap" if capped else ""))),
    )


def render_times(run_time: RunTime, *, color: bool) -> str:
    """Where the time of a run went, in seconds: a row for each server pair, and the sum.

    Nothing where no server was asked for.
    """
    pairs = run_time.pairs
    phases = [
        phase for phase in Phase if any(one.phases_s.get(phase, 0) >= _SHOWN_S for one in pairs)
    ]
    rows = []
    for one in pairs:
        spent_s = (*(one.phases_s.get(phase, 0) for phase in phases), one.total_s)
        rows.append([one.pair, *(f"{each_s:.1f}" for each_s in spent_s)])
    sums_s = {"for no pair": run_time.idle_s, "since the process began": run_time.wall_s}
    rows += [[name, *[""] * len(phases), f"{each_s:.1f}"] for name, each_s in sums_s.items()]
    head = ("where the time went, s", *phases, "total")
    return render_rows(head, rows, color=color) if pairs else ""


def _suffix(metric: str) -> str:
    return next((suffix for suffix in _UNITS if metric.endswith(suffix)), "")


def _median(summary: Summary | None) -> str:
    return format_number(summary.p50 if summary else None)


def _gain(ratio: float | None) -> str:
    return f"×{_fixed(ratio)}"


def _fixed(value: float | None) -> str:
    """Two digits behind the point, or a dash for what is unknown."""
    return NOTHING if value is None else f"{value:.2f}"
