"""Tables of a run: the gain over the target alone, by category too, and where the time went."""

from collections.abc import Iterator, Mapping, Sequence

from rich.table import Table

from specreg.core.timeline import PairTime, Phase, RunTime
from specreg.measurement.figures import ArmFigures, Figures, PartFigures, SpeedupFigures
from specreg.report.breakdown import CategoryFigures, categories_of
from specreg.report.terminal import format_number, render_table
from specreg.stats.percentiles import Summary

_ALL = "all"
_SHOWN_S = 0.05
"""Of a phase; one that took no pair longer has no column."""
_GAP = 2
"""Columns that rich leaves between two cells."""


def render_speedups(figures: Sequence[Figures], *, width: int, color: bool) -> str:
    """A row for each case that was measured beside its target alone; empty without one.

    Medians: of TPOT over requests, of throughput over rounds. `A/D` is the draft efficiency, and
    the positions are marginal: how often a step accepted so many drafts or more.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("speedup over\nthe target alone", overflow="fold")
    for name in ("ms/token\nalone", "\nwith", "\ngain", "tokens/s\nalone", "\nwith", "\ngain"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("\nAL", "\nA/D"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("accepted by\nposition")
    for one in figures:
        if one.speedup and one.timing and one.control:
            accepted = _accepted_cells(one.acceptance.total) if one.acceptance else ()
            cells = _speedup_cells(one.control, one.timing, one.speedup)
            table.add_row(one.case_id, *cells, *accepted)
    return render_table(table, width, color=color) if table.row_count else ""


def render_categories(figures: Sequence[Figures], *, width: int, color: bool) -> str:
    """The categories of each case that has several: AL, and the gain in time per token.

    One case has a row for each category; several have a row each, so that they can be compared,
    with as many categories beside one another as fit, and the others below. Empty without one.
    """
    cases = {one.case_id: (one, categories_of(one)) for one in figures if categories_of(one)}
    if len(cases) == 1:
        ((one, categories),) = cases.values()
        return _categories_of_one(one, categories, width, color=color)
    rows = {case_id: _short_cells(*case) for case_id, case in cases.items()}
    names = dict.fromkeys(name for _, categories in cases.values() for name in categories)
    if not rows:
        return ""
    head = "AL and gain"
    first = max(len(text) for text in (head, *rows))
    parts = []
    for columns in _fitting([*names, _ALL], rows, width - first):
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column(head, overflow="fold")
        for name in columns:
            table.add_column(name, justify="right", no_wrap=True)
        for case_id, cells in rows.items():
            table.add_row(case_id, *(cells.get(name, "") for name in columns))
        parts.append(render_table(table, width, color=color))
    return "\n".join(parts)


def _speedup_cells(alone: ArmFigures, ours: ArmFigures, speedup: SpeedupFigures) -> Iterator[str]:
    yield format_number(_p50(alone.tpot_ms))
    yield format_number(_p50(ours.tpot_ms))
    yield _gain(speedup.tpot_ratio)
    yield format_number(_p50(alone.throughput_tokens_per_s))
    yield format_number(_p50(ours.throughput_tokens_per_s))
    yield _gain(speedup.throughput_ratio)


def _accepted_cells(total: PartFigures) -> Iterator[str]:
    yield _fixed(total.acceptance_length_tokens)
    yield _fixed(total.acceptance_rate_frac)
    yield " ".join(map(_fixed, total.marginal_frac))


def time_rows(run_time: RunTime) -> Sequence[Sequence[str]]:
    """Where the time of a run went, in seconds: a head, a row for each server pair, and the sum.

    In brackets is what each server of the pair took by itself to its first token.
    """
    phases = [
        phase
        for phase in Phase
        if any(pair.phases_s.get(phase, 0) >= _SHOWN_S for pair in run_time.pairs)
    ]
    rows = [[pair.pair, *(_phase_cell(pair, one) for one in phases)] for pair in run_time.pairs]
    totals = [f"{pair.total_s:.1f}" for pair in run_time.pairs]
    gaps = [""] * len(phases)
    return (
        ["where the time went, s", *phases, "total"],
        *([*row, total] for row, total in zip(rows, totals, strict=True)),
        ["for no pair", *gaps, f"{run_time.idle_s:.1f}"],
        ["since the process began", *gaps, f"{run_time.wall_s:.1f}"],
    )


def render_times(run_time: RunTime, *, width: int, color: bool) -> str:
    """The same as a table; empty where no server was asked for."""
    if not run_time.pairs:
        return ""
    head, *rows = time_rows(run_time)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(head[0], overflow="fold")
    for name in head[1:]:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*row)
    return render_table(table, width, color=color)


def _phase_cell(pair: PairTime, phase: Phase) -> str:
    seconds = pair.phases_s.get(phase, 0.0)
    if phase is not Phase.STARTING or not pair.ready_s:
        return f"{seconds:.1f}"
    return f"{seconds:.1f} ({', '.join(f'{one_s:.1f}' for one_s in pair.ready_s.values())})"


def _categories_of_one(
    one: Figures, categories: Mapping[str, CategoryFigures], width: int, *, color: bool
) -> str:
    """All that is known of each category of a case; times only beside the target alone."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(one.case_id, overflow="fold")
    timed = ("ms/token alone", "with", "gain") if one.speedup else ()
    for name in ("requests", "AL", "A/D", *timed):
        table.add_column(name, justify="right", no_wrap=True)
    for name, category in categories.items():
        cells = [
            str(category.requests),
            _fixed(category.acceptance_length_tokens),
            _fixed(category.acceptance_rate_frac),
        ]
        if timed:
            cells.append(format_number(category.control_tpot_p50_ms))
            cells.append(format_number(category.tpot_p50_ms))
            cells.append(_gain(category.tpot_ratio))
        table.add_row(f"  {name}", *cells)
    return render_table(table, width, color=color)


def _short_cells(one: Figures, categories: Mapping[str, CategoryFigures]) -> Mapping[str, str]:
    """`2.71 ×1.85` by category, and of all; the gain only beside the target alone."""

    def cell(length: float | None, gain: float | None) -> str:
        return f"{_fixed(length)} {_gain(gain)}" if one.speedup else _fixed(length)

    cells = {
        name: cell(category.acceptance_length_tokens, category.tpot_ratio)
        for name, category in categories.items()
    }
    total = one.acceptance.total.acceptance_length_tokens if one.acceptance else None
    return {**cells, _ALL: cell(total, one.speedup.tpot_ratio if one.speedup else None)}


def _fitting(
    names: Sequence[str], rows: Mapping[str, Mapping[str, str]], width: int
) -> Iterator[Sequence[str]]:
    """The names in runs whose columns fit beside one another, one at least."""
    run: list[str] = []
    left = width
    for name in names:
        needed = max(len(text) for text in (name, *(row.get(name, "") for row in rows.values())))
        if run and _GAP + needed > left:
            yield run
            run, left = [], width
        run.append(name)
        left -= _GAP + needed
    if run:
        yield run


def _p50(summary: Summary | None) -> float | None:
    return summary.p50 if summary else None


def _gain(ratio: float | None) -> str:
    return f"×{_fixed(ratio)}"


def _fixed(value: float | None) -> str:
    """Two digits behind the point, or a dash for what is unknown."""
    return "–" if value is None else f"{value:.2f}"
