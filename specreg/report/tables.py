"""Render numbers as text, and the figures of a run as tables."""

import dataclasses
import io
import math
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from specreg.core.readable import without_ci_commands
from specreg.core.timeline import Phase, RunTime
from specreg.measurement.figures import Figures
from specreg.measurement.metrics import METRICS
from specreg.report.screen import LOG, Screen
from specreg.stats.percentiles import Summary
from specreg.telemetry.power_record import ArmPower, PowerRecord
from specreg.verdicts.verdict import Verdict


class Layout(NamedTuple):
    """How the columns of a table are shown, by their names. All others are aligned right.

    Attributes:
        left: columns that are aligned left and don't wrap.
        folded: columns that are aligned left and wrap.
        optional: columns that are left out, the last one first, where the screen is too narrow.
    """

    left: Collection[str] = ()
    folded: Collection[str] = ()
    optional: Collection[str] = ()


NOTHING = "–"
DISTRIBUTIONS = {
    "ttft_ms": "time to first token, ms",
    "tpot_ms": "time per output token, ms",
    "step_ms": "time of a step, ms",
    "e2e_ms": "whole answer, ms",
    "prompt_tokens": "length of a prompt, tokens",
    "completion_tokens": "length of an answer, tokens",
}
PERCENTILES = ("mean", "p50", "p90", "p99", "max")
"""The fields of a summary that the page shows, in the order of its columns."""
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
"""The unit for each suffix of a metric's name. Longer suffixes come first."""
_FIVE_DIGITS = 9999.5
"""From here on a number is rounded to five digits or more."""
_LARGEST_FRAC = 10
"""A larger end of an interval is shown as `>999` or `<-999`, as its digits mean nothing."""
_TIME = ("ms/token\nalone", "ms/token\nwith", "a token\nfaster")
_THROUGHPUT = ("tokens/s\nalone", "tokens/s\nwith", "output\nfaster")
_LENGTH = "tokens\na step"
_POSITIONS = "drafts accepted\nby position"
_SPEEDUP = ("speedup over\nthe target alone", *_TIME, *_THROUGHPUT, _LENGTH, _POSITIONS)
_SPEEDUP_LAYOUT = Layout(left=(_POSITIONS,), optional=(_POSITIONS, *_THROUGHPUT[:2]))
_WORDS = "alone: without speculation; c4: 4 requests in flight"
"""The abbreviations of the tables and of case ids; docs/reference/glossary.md explains terms."""
MOST_ROWS = 12
"""A table with more rows is only shown where more is asked for."""
_POWER = ("power", "J/token", "alone", "saved", "W", "idle", "remark")
_NUMBER = re.compile(r"[^\d.]*\d+(?P<rest>(\.\d+)?[^\d.]*)")
"""A number with its sign and its unit: `-8.0%`, `×2.47`."""
_BETWEEN_COLUMNS = 2
_POSITION = re.compile(r"\bpos(\d+)$")
_PADDING = "\ue000"
"""Stands for a space at the end of a cell, which rich would strip. It is in no readable text."""
_HEADING = "\ue001"
"""Stands for a heading, until its line is rendered."""
_PHASES_NAMED = 2
"""How many phases of a run are named where their times have no table."""
_SHOWN_S = 0.05
"""A phase has a column only if it took at least this long for some pair of servers."""


def format_number(value: float | None) -> str:
    """Return a number with four significant digits, or with all of its integer digits.

    None is shown as a dash.
    """
    if value is None:
        return NOTHING
    return f"{value:.0f}" if abs(value) >= _FIVE_DIGITS else f"{value:.4g}"


def label_of(metric: str) -> str:
    """Return a metric's name in words: `acceptance length` for `acceptance_length_tokens`."""
    words = metric.removesuffix(_suffix(metric)).replace("_", " ")
    return _POSITION.sub(r"at position \1", words)


def axis_of(metric: str) -> str:
    """Return a metric with its unit: `throughput, tokens/s`. Shares have no unit."""
    return ", ".join(filter(None, (label_of(metric), _unit_of(metric))))


def render_value(metric: str, value: float | None) -> str:
    """Return a value with its unit: `90 tokens/s`, `54.3%`, `×1.65`; a dash for None."""
    if value is None:
        return NOTHING
    if _suffix(metric) == "_frac":
        return f"{100 * value:.4g}%"
    if _suffix(metric) == "_ratio":
        return f"×{value:.2f}"
    return f"{format_number(value)} {_unit_of(metric)}".rstrip()


class ComparedCells(NamedTuple):
    """A metric and two of its values, of which the change beside them can be recalculated."""

    name: str
    expected: str
    value: str


def compared_cells(metric: str, expected: float | None, value: float | None) -> ComparedCells:
    """Return the cells of two values that are compared.

    A token of each step isn't a draft, so the acceptance length is shown and compared without it.
    """
    origin = METRICS[metric].origin if metric in METRICS else 0.0
    if not origin or expected is None or value is None:
        return ComparedCells(metric, format_number(expected), format_number(value))
    return ComparedCells(
        f"{metric.removesuffix(_suffix(metric))}-{origin:g}",
        format_number(expected - origin),
        format_number(value - origin),
    )


def render_change(change_frac: float | None) -> str:
    """Return a change in percent with its sign: `+1.2%`; a dash for None."""
    if change_frac is None:
        return NOTHING
    return f"{change_frac:+.1%}"


def interval_of(verdict: Verdict) -> tuple[float | None, float | None]:
    """Return the ends of the interval of a change.

    The interval of a ratio of counts may reach below -1, but nothing loses more than all of itself.
    Only a time has no such end.
    """
    low_frac = verdict.comparison.low_frac
    metric = METRICS.get(verdict.metric)
    if low_frac is not None and metric is not None and metric.sign > 0:
        low_frac = max(low_frac, -1.0)
    return low_frac, verdict.comparison.high_frac


def render_interval(low_frac: float | None, high_frac: float | None) -> str:
    """Return where a change lies: `-1.2..+0.8%`; a dash for None."""
    if low_frac is None or high_frac is None:
        return NOTHING
    return f"{_render_bound(low_frac)}..{_render_bound(high_frac)}%"


def _render_bound(bound_frac: float) -> str:
    """Return a bound in percent, such as `-1.2`, or `>999` if it is far too large."""
    if abs(bound_frac) < _LARGEST_FRAC:
        return f"{100 * bound_frac:+.1f}"
    return "<-999" if bound_frac < 0 else ">999"


def render_rows(
    head: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    screen: Screen = LOG,
    layout: Layout = Layout(),  # noqa: B008 - it can't be changed
) -> str:
    """Render a table that is as wide as a screen at most; empty without rows.

    A short row leaves the last columns empty, and a row with a single cell is a heading. The first
    column is aligned left, and wraps where the screen is too narrow. In the columns that are
    aligned right, decimal points stand below each other.

    Args:
        head: the names of the columns.
        rows: the cells of each row.
        screen: where the table is shown.
        layout: which columns are aligned left, wrap, or may be left out.
    """
    left = {head[0], *layout.folded, *layout.left}
    right_indices = [index for index, name in enumerate(head) if name not in left]
    all_rows = _with_aligned_decimals([*rows], right_indices)
    shown_head = head
    width = _least_width(head, all_rows, layout)
    for name in reversed([name for name in layout.optional if name in head]):
        if width <= screen.columns:
            break
        index = shown_head.index(name)
        shown_head = (*shown_head[:index], *shown_head[index + 1 :])
        all_rows = [[*row[:index], *row[index + 1 :]] for row in all_rows]
        width = _least_width(shown_head, all_rows, layout)

    head = shown_head

    # Declare the columns.
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in head:
        wraps = name in layout.folded or (name == head[0] and width > screen.columns)
        justify: Literal["left", "right"] = "left" if name in left else "right"
        # No word of a head is broken.
        least = max(map(len, name.split()), default=None)
        table.add_column(name, justify=justify, no_wrap=not wraps, overflow="fold", min_width=least)

    # Add the rows.
    headings = []
    for row in all_rows:
        if len(row) == 1:
            # A heading may be longer than its column, so it gets its place in the end.
            headings.append(str(row[0]))
            table.add_row(_HEADING, style="bold")
            continue
        # In a plain string, rich would interpret brackets as markup.
        cells = [Text(cell) if isinstance(cell, str) else cell for cell in row]
        table.add_row(*cells)

    if not table.row_count:
        return ""

    # Render the table to text.
    text = io.StringIO()
    console = Console(
        file=text,
        width=screen.columns,
        force_terminal=screen.color,
        no_color=not screen.color,
        highlight=False,
    )
    console.print(table)
    rendered = text.getvalue().replace(_PADDING, " ")
    for heading in headings:
        rendered = rendered.replace(_HEADING, heading, 1)
    lines = [line.rstrip() for line in rendered.splitlines()]

    # Wrapping a cell may move something to the start of a line where a CI system takes it for a
    # command.
    return without_ci_commands("\n".join(lines))


def _least_width(head: Sequence[str], rows: Sequence[Sequence[str | Text]], layout: Layout) -> int:
    """Return the width of a table in which only the folded columns wrap, without headings."""
    widths = []
    for index, name in enumerate(head):
        cells = [name, *(str(row[index]) for row in rows if len(row) > max(index, 1))]
        if name in layout.folded:
            parts = [word for cell in cells for word in cell.split()]
        else:
            parts = [line for cell in cells for line in cell.splitlines()]
        widths.append(max(map(len, parts), default=0))

    return sum(widths) + _BETWEEN_COLUMNS * (len(widths) - 1)


def _with_aligned_decimals(
    rows: Sequence[Sequence[str | Text]], indices: Iterable[int]
) -> list[list[str | Text]]:
    """Pad the numbers in some columns, so that their decimal points stand below each other."""
    aligned = [list(row) for row in rows]
    for index in indices:
        cells = [row[index] for row in aligned if len(row) > index]
        longest = max((_after_the_point(cell) for cell in cells), default=0)
        for row in aligned:
            if len(row) > index and isinstance(row[index], str):
                row[index] += _PADDING * (longest - _after_the_point(row[index]))

    return aligned


def _after_the_point(cell: str | Text) -> int:
    """Return how many characters of a number follow its whole part."""
    number = _NUMBER.fullmatch(str(cell))
    return len(number["rest"]) if number else 0


def render_figures(figures: Sequence[Figures], screen: Screen = LOG) -> str:
    """Render tables of the figures of one launch of each case. Tables without rows are left out.

    TPOT is the median over requests, and throughput is the tokens per second while the load was
    full. The share at position i is that of the steps that accepted i drafts or more. J/token is
    all energy divided by all tokens, `alone` is the same without speculation, and `saved` is the
    share that speculation saves. The remark gives the error of the energy, says why the energy
    isn't judged, and notes a power cap.

    Args:
        figures: the figures of one launch of each case.
        screen: where the tables are shown.
    """
    speedup_rows = [_speedup_row(case) for case in figures if case.speedup and case.control]
    power_rows = [[case.case_id, *_power_cells(case.power)] for case in figures if case.power]
    most_rows = math.inf if screen.verbose else MOST_ROWS
    parts = []
    if len(speedup_rows) <= most_rows:
        parts.append(render_rows(_SPEEDUP, speedup_rows, screen, _SPEEDUP_LAYOUT))
    else:
        parts.append(_speedups_in_short(figures))

    if len(power_rows) <= most_rows:
        parts.append(render_rows(_POWER, power_rows, screen, Layout(folded=("remark",))))
    if 0 < len(speedup_rows) <= most_rows:
        parts.append(_WORDS)
    return "\n\n".join(part for part in parts if part)


def _speedups_in_short(figures: Sequence[Figures]) -> str:
    """Say between which cases the speedups lie."""
    ratios = {
        case.case_id: case.speedup.throughput_ratio
        for case in figures
        if case.speedup and case.speedup.throughput_ratio is not None
    }
    if not ratios:
        return ""
    lowest, *_, highest = sorted(ratios, key=lambda case_id: ratios[case_id])
    return (
        f"throughput with speculation: {_gain(ratios[lowest])} ({lowest}) to"
        f" {_gain(ratios[highest])} ({highest}) in {len(ratios)} cases: -v shows each"
    )


def _speedup_row(figures: Figures) -> Sequence[str]:
    """Return the cells of a case in the table of speedups: its times and then its acceptance."""
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
            " ".join(_fixed(share) for share in total.marginal_frac),
        ]

    return cells


def distributions_of(figures: Figures) -> Iterator[tuple[str, Summary, Summary | None]]:
    """Yield the name of each distribution, its summary, and the summary of the control.

    The control's summary is None without a control, or if it equals the summary of the case.
    """
    if figures.timing is None:
        return
    for field, name in DISTRIBUTIONS.items():
        summary = getattr(figures.timing, field)
        if summary is None:
            continue
        control_summary = None
        if figures.control is not None:
            control_summary = getattr(figures.control, field)
        if control_summary == summary:
            # Both servers get the same prompts, so the lengths of the prompts are shown only once.
            control_summary = None
        yield name, summary, control_summary


def _power_cells(power: PowerRecord) -> Sequence[str]:
    """Return the cells of a case in the table of power: only the reason if its power is invalid."""
    arm = power.case
    if arm is None or power.invalid:
        return (*[NOTHING] * 5, str(power.invalid or ""))
    control_j_per_token = None
    if power.control is not None:
        control_j_per_token = power.control.energy_j_per_token
    saved = NOTHING
    if power.energy_ratio is not None:
        saved_frac = 1 - 1 / power.energy_ratio
        saved = f"{saved_frac:+.0%}"
    return (
        format_number(arm.energy_j_per_token),
        format_number(control_j_per_token),
        saved,
        format_number(arm.mean_w),
        format_number(arm.idle_w),
        "; ".join(_power_remarks(power, arm)),
    )


def _power_remarks(power: PowerRecord, arm: ArmPower) -> list[str]:
    """Return remarks about the error of the energy, what isn't judged and why, and a power cap."""
    remarks = []
    if arm.error_frac is not None:
        remarks.append(f"±{arm.error_frac:.1%}")
    if power.too_short:
        remarks.append(power.too_short)
    if any("power cap" in (device.throttled or ()) for device in arm.devices):
        remarks.append("at its power cap")
    idle_problems = dict.fromkeys(device.idle_invalid for device in arm.devices)
    remarks += [f"no idle power: {problem}" for problem in idle_problems if problem]
    return remarks


def render_times(run_time: RunTime, screen: Screen = LOG) -> str:
    """Render how long each phase of a run took, in one line or for each pair of servers.

    Returns:
        Empty if the run used no server.
    """
    if not run_time.pairs:
        return ""
    if not screen.verbose:
        return _time_in_short(run_time)

    # A phase that took no time for any pair has no column.
    phases = []
    for phase in Phase:
        longest_s = max(pair.phases_s.get(phase, 0) for pair in run_time.pairs)
        if longest_s >= _SHOWN_S:
            phases.append(phase)

    rows = []
    for pair in run_time.pairs:
        phase_cells = [f"{pair.phases_s.get(phase, 0):.1f}" for phase in phases]
        rows.append([pair.pair, *phase_cells, f"{pair.total_s:.1f}"])
    no_phases = [""] * len(phases)
    rows.append(["without a server", *no_phases, f"{run_time.idle_s:.1f}"])
    rows.append(["since the process began", *no_phases, f"{run_time.wall_s:.1f}"])
    head = ("where the time went, s", *phases, "total")
    return render_rows(head, rows, screen)


def _time_in_short(run_time: RunTime) -> str:
    """Say how long a run took, and which phases took most of it."""
    seconds = {
        phase: sum(pair.phases_s.get(phase, 0.0) for pair in run_time.pairs) for phase in Phase
    }
    longest = sorted(Phase, key=lambda phase: seconds[phase], reverse=True)[:_PHASES_NAMED]
    phases = [
        f"{phase} {render_seconds(seconds[phase])}" for phase in longest if seconds[phase] >= 1
    ]
    total = f"took {render_seconds(run_time.wall_s)}"
    return f"{total}, of it {' and '.join(phases)}" if phases else total


def render_seconds(seconds: float) -> str:
    """Return a time such as `2 min 14 s`."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _suffix(metric: str) -> str:
    """Return the suffix of a metric's name that stands for its unit; empty without one."""
    for suffix in _UNITS:
        if metric.endswith(suffix):
            return suffix
    return ""


def _unit_of(metric: str) -> str:
    return _UNITS.get(_suffix(metric), "")


def _median(summary: Summary | None) -> str:
    if summary is None:
        return NOTHING
    return format_number(summary.p50)


def _gain(ratio: float | None) -> str:
    return f"×{_fixed(ratio)}"


def _fixed(value: float | None) -> str:
    """Return a number with two decimal places; a dash for None."""
    if value is None:
        return NOTHING
    return f"{value:.2f}"


def changed_settings(settings: Any) -> Iterator[tuple[str, str]]:  # noqa: ANN401 - of a case, or a table in it
    """Yield the settings that differ from their defaults, each with its value as text."""
    for setting in dataclasses.fields(settings):
        value = getattr(settings, setting.name)
        if value != setting.default:
            yield setting.name, _setting_text(value)


def _setting_text(value: object) -> str:
    """Return the value of a setting as text: a table as its settings, and pairs as `NAME=VALUE`."""
    if dataclasses.is_dataclass(value):
        return ", ".join(f"{name} {text}" for name, text in changed_settings(value))
    if isinstance(value, tuple):
        return ", ".join(map(_item_text, value))
    return str(value)


def _item_text(item: object) -> str:
    """Return an item of a setting as text: a pair as `NAME=VALUE`."""
    if isinstance(item, tuple):
        name, value = item
        return f"{name}={value}"
    return str(item)
