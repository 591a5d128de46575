"""Numbers as text, and the tables of what a run measured beside its verdicts."""

import io
from collections.abc import Collection, Iterable, Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from specreg.core.timeline import PairTime, Phase, RunTime
from specreg.measurement.figures import Figures
from specreg.stats.percentiles import Summary
from specreg.verdicts.judge import Verdict

NOTHING = "–"
SPREADS = {
    "ttft_ms": "time to first token, ms",
    "tpot_ms": "time per output token, ms",
    "step_ms": "time of a step, ms",
    "e2e_ms": "whole answer, ms",
    "output_tokens_per_s": "output speed, tokens/s",
    "throughput_tokens_per_s": "throughput, tokens/s",
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


def render_interval(verdict: Verdict) -> str:
    """`-1.2% and +0.8%`: between what the change lies, or a dash."""
    if verdict.low_frac is None or verdict.high_frac is None:
        return NOTHING
    return f"{verdict.low_frac:+.1%} and {verdict.high_frac:+.1%}"


def render_table(table: Table, width: int, *, color: bool) -> str:
    """A table as text of at most so many columns."""
    buffer = io.StringIO()
    console = Console(
        file=buffer, width=width, force_terminal=color, no_color=not color, highlight=False
    )
    console.print(table)
    return buffer.getvalue().rstrip()


def render_rows(
    head: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    *,
    width: int,
    color: bool = False,
    left: Collection[str] = (),
    folded: Collection[str] = (),
) -> str:
    """Rows below their heads; empty without rows.

    Args:
        head: of the columns. The first is set left and wraps, the others right and don't.
        rows: of cells; a short one leaves the last columns empty.
        width: columns of the text.
        color: whether it is for a terminal.
        left: heads of further columns that are set left.
        folded: of these, those that wrap.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(head[0], overflow="fold")
    for name in head[1:]:
        wraps = name in folded
        is_left = wraps or name in left
        table.add_column(
            name, justify="left" if is_left else "right", no_wrap=not wraps, overflow="fold"
        )
    for row in rows:
        # Not as strings: rich takes what stands in brackets for markup.
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return render_table(table, width, color=color) if table.row_count else ""


def render_figures(
    figures: Sequence[Figures], *, width: int, color: bool, percentiles: bool = False
) -> str:
    """All tables of what some cases measured, each where there is something to show.

    Args:
        figures: of one launch of each case.
        width: columns of the text.
        color: whether it is for a terminal.
        percentiles: whether to show how all that was timed spreads, too.
    """
    parts = (
        render_side_by_side(figures, width=width, color=color),
        render_gauges(figures),
        render_speedups(figures, width=width, color=color),
        render_categories(figures, width=width, color=color),
        render_spreads(figures if percentiles else (), width=width, color=color),
        render_power(figures, width=width, color=color),
    )
    return "\n\n".join(filter(None, parts))


def render_speedups(figures: Iterable[Figures], *, width: int, color: bool) -> str:
    """A row for each case that was measured beside its target alone; empty without one.

    Medians: of TPOT over requests, of throughput over rounds. `A/D` is the draft efficiency, and
    the positions are marginal: how often a step accepted so many drafts or more.
    """
    timed = ("ms/token\nalone", "\nwith", "\ngain", "tokens/s\nalone", "\nwith", "\ngain")
    positions = "accepted by\nposition"
    head = ("speedup over\nthe target alone", *timed, "\nAL", "\nA/D", positions)
    rows = map(_speedup_row, (one for one in figures if one.speedup and one.control))
    return render_rows(head, rows, width=width, color=color, folded=(positions,))


def _speedup_row(one: Figures) -> Sequence[str]:
    cells = [one.case_id]
    if one.timing and one.control and one.speedup:
        for field, gain in (
            ("tpot_ms", one.speedup.tpot_ratio),
            ("throughput_tokens_per_s", one.speedup.throughput_ratio),
        ):
            arms = (getattr(arm, field) for arm in (one.control, one.timing))
            cells += [*(format_number(arm.p50 if arm else None) for arm in arms), _gain(gain)]
    if one.acceptance:
        total = one.acceptance.total
        cells += map(_fixed, (total.acceptance_length_tokens, total.acceptance_rate_frac))
        cells.append(" ".join(map(_fixed, total.marginal_frac)))
    return cells


def render_categories(figures: Iterable[Figures], *, width: int, color: bool) -> str:
    """A row for each category of each case that speculates and has several; empty without one."""
    rows: list[Sequence[str | Text]] = []
    for one in figures:
        timing, acceptance, speedup = one.timing, one.acceptance, one.speedup
        if timing is None or acceptance is None or len(timing.by_category) == 1:
            continue
        rows.append([Text(one.case_id, style="bold")])
        for name, pace in timing.by_category.items():
            cells = [f"  {name}", str(pace.requests)]
            part = acceptance.by_category.get(name)
            cells.append(_fixed(part.acceptance_length_tokens if part else None))
            cells.append(_fixed(part.acceptance_rate_frac if part else None))
            if speedup and one.control:
                alone = one.control.by_category.get(name)
                tpots_ms = (alone.tpot_ms if alone else None, pace.tpot_ms)
                cells += [format_number(each.p50 if each else None) for each in tpots_ms]
                cells.append(_gain(speedup.tpot_ratio_by_category.get(name)))
            rows.append(cells)
    head = ("by category", "requests", "AL", "A/D", "ms/token alone", "with", "gain")
    return render_rows(head, rows, width=width, color=color)


def spreads_of(figures: Figures) -> Iterator[tuple[str, Summary, Summary | None]]:
    """What was timed: its name, how it spreads, and how it does without speculation."""
    for field, name in SPREADS.items():
        ours = getattr(figures.timing, field) if figures.timing else None
        if ours is not None:
            yield name, ours, getattr(figures.control, field) if figures.control else None


def render_spreads(figures: Iterable[Figures], *, width: int, color: bool) -> str:
    """Rows for each case, with those of the target alone below; empty where nothing was timed."""
    rows: list[Sequence[str | Text]] = []
    for one in figures:
        found = list(spreads_of(one))
        rows += [[Text(one.case_id, style="bold")]] if found else []
        for name, ours, alone in found:
            for label, summary in ((f"  {name}", ours), ("    target alone", alone)):
                if summary is not None:
                    values = (getattr(summary, field) for field in PERCENTILES)
                    rows.append([label, str(summary.count), *map(format_number, values)])
    head = ("how it spreads", "count", *PERCENTILES)
    return render_rows(head, rows, width=width, color=color)


def render_power(figures: Iterable[Figures], *, width: int, color: bool) -> str:
    """A row for each case whose power was watched; empty without one.

    J/token: all energy over all tokens, that beyond idle, and alone: without speculation; saved:
    the share of it that speculation saves; the remark says how far off the ends of the block may
    make these.
    """
    columns = ("J/token", "beyond idle", "alone", "saved", "W", "peak", "idle", "°C", "MHz")
    rows = [[one.case_id, *_power_cells(one)] for one in figures if one.power]
    head = ("power", *columns, "remark")
    return render_rows(head, rows, width=width, color=color, folded=("remark",))


def _power_cells(one: Figures) -> Sequence[str]:
    power = one.power
    arm = power.case if power else None
    if power is None or arm is None:
        return (*[NOTHING] * 9, power.invalid if power else "")
    alone = power.control.energy_j_per_token if power.control else None
    peaks = [device.peak_w for device in arm.devices if device.peak_w is not None]
    hottest = [device.temperature_c for device in arm.devices if device.temperature_c]
    clocks = [device.sm_clock_mhz for device in arm.devices if device.sm_clock_mhz]
    capped = any("power cap" in device.throttled for device in arm.devices)
    error = "" if arm.error_frac is None else f"±{arm.error_frac:.1%}"
    return (
        *map(format_number, (arm.energy_j_per_token, arm.above_idle_j_per_token, alone)),
        NOTHING if power.energy_ratio is None else f"{1 - 1 / power.energy_ratio:+.0%}",
        *map(format_number, (arm.mean_w, sum(peaks) if peaks else None, arm.idle_w)),
        *map(format_number, (max(hottest, default=None), min(clocks, default=None))),
        "; ".join(filter(None, (error, power.too_short, "at its power cap" if capped else ""))),
    )


def time_rows(run_time: RunTime) -> Sequence[Sequence[str]]:
    """Where the time of a run went, in seconds: a head, a row for each server pair, and the sum.

    In brackets is what each server of the pair took by itself to its first token.
    """
    phases = [
        phase
        for phase in Phase
        if any(pair.phases_s.get(phase, 0) >= _SHOWN_S for pair in run_time.pairs)
    ]
    gaps = [""] * len(phases)
    return (
        ["where the time went, s", *phases, "total"],
        *(
            [pair.pair, *(_phase_cell(pair, one) for one in phases), f"{pair.total_s:.1f}"]
            for pair in run_time.pairs
        ),
        ["for no pair", *gaps, f"{run_time.idle_s:.1f}"],
        ["since the process began", *gaps, f"{run_time.wall_s:.1f}"],
    )


def render_times(run_time: RunTime, *, width: int, color: bool) -> str:
    """The same as a table; empty where no server was asked for."""
    head, *rows = time_rows(run_time)
    return render_rows(head, rows, width=width, color=color) if run_time.pairs else ""


def _phase_cell(pair: PairTime, phase: Phase) -> str:
    seconds = pair.phases_s.get(phase, 0.0)
    if phase is not Phase.STARTING or not pair.ready_s:
        return f"{seconds:.1f}"
    return f"{seconds:.1f} ({', '.join(f'{one_s:.1f}' for one_s in pair.ready_s.values())})"


def render_side_by_side(figures: Iterable[Figures], *, width: int, color: bool) -> str:
    """The acceptance of each case that was measured on several engines; empty without one.

    The change is that of AL - 1 against the first of them, where both count the same (the
    verifier's tokens, or those delivered) of as many requests.
    """
    groups: dict[str, list[Figures]] = {}
    for one in figures:
        if one.acceptance is not None:
            groups.setdefault(one.case_id.partition("-")[2], []).append(one)
    rows: list[Sequence[str]] = []
    for name, group in groups.items():
        if len(group) > 1:
            rows += [[name], *(_engine_row(one, group[0]) for one in group)]
    left = ("version", "source", "view")
    head = ("on several engines", *left, "steps", "AL", "acceptance rate", "change")
    return render_rows(head, rows, width=width, color=color, left=left)


def _engine_row(one: Figures, first: Figures) -> Sequence[str]:
    ours, theirs = one.acceptance, first.acceptance
    if ours is None or theirs is None:
        return ()
    change = NOTHING
    length, its = ours.total.acceptance_length_tokens, theirs.total.acceptance_length_tokens
    alike = (ours.view, _requests(one)) == (theirs.view, _requests(first))
    if one is not first and alike and length and its and its != 1:
        change = f"{(length - its) / (its - 1):+.1%}"
    return (
        f"  {one.case_id.partition('-')[0]}",
        *(one.engine_version, ours.source, ours.view, str(ours.total.steps)),
        *map(format_number, (length, ours.total.acceptance_rate_frac)),
        change,
    )


def _requests(one: Figures) -> int | None:
    """How many its acceptance is of; counters don't say, and are of those that were timed."""
    counted = one.acceptance.total.requests if one.acceptance else None
    return counted or (one.timing.requests if one.timing else None)


def render_gauges(figures: Iterable[Figures]) -> str:
    """What servers say of their own acceptance, a line for each case; empty without one.

    That is of SGLang's last 40 decode iterations, unless it was started with another
    `--decode-log-interval`.
    """
    return "\n".join(
        f"{one.case_id}: the server's own gauges, of its last 40 decode iterations and never"
        f" judged: length {format_number(one.gauges.acceptance_length_tokens)},"
        f" rate {format_number(one.gauges.acceptance_rate_frac)}"
        for one in figures
        if one.gauges is not None
    )


def _suffix(metric: str) -> str:
    return next((suffix for suffix in _UNITS if metric.endswith(suffix)), "")


def _gain(ratio: float | None) -> str:
    return f"×{_fixed(ratio)}"


def _fixed(value: float | None) -> str:
    """Two digits behind the point, or a dash for what is unknown."""
    return NOTHING if value is None else f"{value:.2f}"
