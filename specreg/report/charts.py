"""Build the pictures of a page: gains, changes, draft positions, power and histories."""

import dataclasses
import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from specreg.baselines.comparison import differing_settings
from specreg.matrix.case import CaseSettings, Load
from specreg.measurement.figures import ArmFigures, Figures
from specreg.measurement.metrics import METRICS, SPEEDUP, Metric, better_frac, is_speed
from specreg.report.diagnosis import LOST_FRAC
from specreg.report.document import (
    CaseReport,
    ComparedReport,
    RunReport,
    Tone,
    began_at,
    last_verdicts,
)
from specreg.report.drawing import (
    Axis,
    AxisStyle,
    Bar,
    BarPicture,
    Curve,
    CurvePicture,
    Dot,
    IntervalPicture,
    IntervalRow,
    Plot,
    Tick,
    draw_intervals,
    spaced,
)
from specreg.report.since import first_bad, is_bad, moment_of
from specreg.report.summary import tone_of
from specreg.report.tables import (
    format_number,
    interval_of,
    label_of,
    render_change,
    render_interval,
    render_value,
)
from specreg.stats.percentiles import Summary
from specreg.telemetry.power_record import PowerRecord
from specreg.verdicts.history import RunRecord, comparable
from specreg.verdicts.verdict import Outcome, Verdict

_T = TypeVar("_T")
_NEUTRAL_LOAD: Mapping[str, Any] = {
    **{load_field.name: load_field.default for load_field in dataclasses.fields(Load)},
    **dict.fromkeys(("prompts", "num_prompts")),
    "prompts_sha256": "",
}
"""A neutral value for each setting in which the points of a line of `gains_over_load` may differ.
With these values, all points of a line have the same settings."""
_FEWEST_RUNS = 2
"""The fewest runs that make a line."""
_FEWEST_LOADS = 3
"""The fewest loads of a picture. Two loads show too little of where a line crosses 1."""
_FLAT_PERCENT = 0.05
"""A line whose changes are all smaller is flat, as that of an acceptance that repeats exactly."""
_MAX_NIGHTS = 30
"""The most nights of a picture."""
_MAX_NAMED_LINES = 6
"""Up to this many lines each have a colour. With more, only those of bad figures stand out."""
_MAX_LISTED = 6
"""The most cases that a note names."""
_SHOWN_CHANGE_FRAC = 0.05
"""A category's change is coloured from this share on; few prompts change by less by chance."""
_LINE_COLORS = tuple(f"line{number}" for number in range(1, 7))
_CHANGES = AxisStyle(unit="%", signed=True, least_range=1.0)
"""The axis of changes in percent. It spans at least 1 %, so that smaller changes look flat."""
_SPEEDUPS = AxisStyle(prefix="×", contains=(0.0, 2.0))
"""The axis of speedups, which is the same in most pictures, so that their bars can be compared."""
_LEFT_OF_ONE = "Left of ×1: slower than without speculation."
_NAMED_SHARES = (50, 90, 99)
"""The shares of requests, in percent, whose times have a dot."""
LABEL_ROOM = 76
"""The width that a label below a picture needs, in the unit of the picture's coordinates."""


def speedup_picture(report: RunReport) -> IntervalPicture | None:
    """Draw the speedup of each case that has one; None if no case has one.

    The interval comes from the change against the baseline, so a case without a baseline has none.
    """
    verdicts = {
        verdict.case_id: verdict
        for verdict in last_verdicts(report.run.verdicts)
        if verdict.metric == SPEEDUP
    }
    rows = []
    for case in report.cases:
        row = _speedup_row(case, verdicts.get(case.case_id))
        if row is not None:
            rows.append(row)

    if not rows:
        return None
    baseline_note = ""
    if any(row.baseline is not None for row in rows):
        baseline_note = "; the short mark is the baseline"
    return draw_intervals(
        "Speedup of each case",
        f"Throughput with speculation over throughput without it{_interval_note(rows)}"
        f"{baseline_note}. {_LEFT_OF_ONE}",
        rows,
        reference=1.0,
        style=_SPEEDUPS,
    )


def _interval_note(rows: Iterable[IntervalRow]) -> str:
    """Return the words for a note that explain the intervals; empty if no row has one."""
    return ", with its interval" if any(row.interval is not None for row in rows) else ""


def _speedup_row(case: CaseReport, verdict: Verdict | None) -> IntervalRow | None:
    """Return the row of a case's speedup; None if the speedup wasn't measured."""
    value = None
    if verdict is not None:
        value = verdict.value

    # If no verdict has a value, show the speedup of the launch that the report shows.
    if value is None and case.figures is not None:
        value = case.figures.judged.get(SPEEDUP)
    if value is None:
        return None
    interval = None
    baseline = None
    tone = "plain"
    text = f"×{value:.2f}"
    if verdict is not None:
        # A recording judges nothing, which is no doubt about its figures.
        if verdict.outcome is not Outcome.MEASURED:
            tone = str(tone_of([verdict]))
        interval = _value_interval(METRICS[SPEEDUP], verdict)
        baseline = verdict.comparison.expected

    if baseline is not None:
        text += f", was ×{baseline:.2f}"
    return IntervalRow(
        label=case.case_id,
        text=text,
        value=value,
        tone=tone,
        target=case.case_id,
        interval=interval,
        baseline=baseline,
    )


def _value_interval(metric: Metric, verdict: Verdict) -> tuple[float, float] | None:
    """Return the interval of a value, derived from the interval of its change; None without one."""
    comparison = verdict.comparison
    expected = comparison.expected
    low_frac, high_frac = interval_of(verdict)
    if expected is None or low_frac is None or high_frac is None:
        return None

    # A change is relative to the distance from the metric's origin: for AL, to AL - 1. A positive
    # change is better, so the highest value of a time belongs to the lowest change.
    base = metric.sign * (expected - metric.origin)
    worse_end = expected + base * low_frac
    better_end = expected + base * high_frac
    return min(worse_end, better_end), max(worse_end, better_end)


def change_pictures(report: ComparedReport) -> Iterator[IntervalPicture]:
    """Yield the pictures of a report with two sides: for each metric, the change of each case.

    Draft positions are left out.
    """
    rows_by_metric: dict[str, list[IntervalRow]] = {}
    two_sided_metrics = set()
    case_ids = {case.case_id for case in report.cases}
    for verdict in last_verdicts(report.run.verdicts):
        comparison = verdict.comparison
        change_frac = comparison.change_frac
        # The draft positions have pictures with bars, in which both sides overlap.
        if change_frac is None or verdict.metric.startswith("acceptance_pos"):
            continue
        interval = None
        text = render_change(change_frac)
        low_frac, high_frac = interval_of(verdict)
        if low_frac is not None and high_frac is not None:
            interval = (100 * low_frac, 100 * high_frac)
            text += f" ({render_interval(low_frac, high_frac)})"
        # A row links to its case, unless the report of the case is missing.
        target = ""
        if verdict.case_id in case_ids:
            target = verdict.case_id
        row = IntervalRow(
            label=verdict.case_id,
            text=text,
            value=100 * change_frac,
            tone=str(tone_of([verdict])),
            target=target,
            interval=interval,
        )
        rows_by_metric.setdefault(verdict.metric, []).append(row)
        if comparison.two_sided:
            two_sided_metrics.add(verdict.metric)

    for metric, rows in rows_by_metric.items():
        # More power is neither better nor worse.
        right = "has more" if metric in two_sided_metrics else "is better"
        yield draw_intervals(
            f"Change of {label_of(metric)}",
            f"B against A{_interval_note(rows)}; right of 0 B {right}.",
            rows,
            reference=0.0,
            style=_CHANGES,
        )


def nights_needed(report: RunReport) -> IntervalPicture | None:
    """Draw after how many nights each undecided figure is decided; None if that isn't known."""
    rows = []
    for verdict in last_verdicts(report.run.verdicts):
        needed = verdict.needed_nights or 0
        tonight = verdict.nights + 1
        if verdict.outcome is Outcome.INCONCLUSIVE and needed > tonight:
            row = IntervalRow(
                label=f"{verdict.case_id}: {label_of(verdict.metric)}",
                text=f"about {needed} nights",
                value=needed,
                tone=str(Tone.DOUBT),
                baseline=tonight,
            )
            rows.append(row)

    if not rows:
        return None
    note = "The upright mark is tonight."
    return draw_intervals("Nights until it is decided", note, rows, reference=0.0)


def waterfall(verdicts: Sequence[Verdict], before: str, now: str) -> IntervalPicture | None:
    """Draw how a lost speed fell from what was expected to its value, cause by cause.

    The causes are left out if they aren't known. The bars of a speedup begin at ×1.

    Args:
        verdicts: the verdicts on a case.
        before: what the expected value is called.
        now: what the value is called.

    Returns:
        None if no verdict is on a lost speed with a known value.
    """
    falls = [
        verdict
        for verdict in verdicts
        if verdict.outcome is Outcome.REGRESSED
        and is_speed(verdict.metric)
        and verdict.value is not None
        and verdict.comparison.expected is not None
    ]

    # The speed whose causes are known says most.
    falls.sort(key=lambda verdict: verdict.cause is None)
    if not falls:
        return None
    fall = falls[0]
    metric = METRICS[fall.metric]
    level = fall.comparison.expected or 0.0
    text = render_value(metric.name, level)
    rows = [IntervalRow(label=before, text=text, value=level, tone="was")]
    for name, change_frac in fall.cause.parts if fall.cause else ():
        # Each cause begins where the one before it ends.
        start = level
        # The parts are factors of the output speed, to which a time is inversely proportional.
        level *= (1 + change_frac) ** metric.sign
        tone = str(Tone.BAD if change_frac < 0 else Tone.GOOD)
        text = f"{render_change(change_frac)}, to {render_value(metric.name, level)}"
        rows.append(IntervalRow(label=f"by {name}", text=text, value=level, start=start, tone=tone))

    value = fall.value or 0.0
    text = render_value(metric.name, value)
    rows.append(IntervalRow(label=now, text=text, value=value, tone="bad"))
    title = label_of(metric.name).capitalize()
    if metric.name == SPEEDUP:
        note = _LEFT_OF_ONE if value < 1 else ""
        return draw_intervals(title, note, rows, reference=1.0, style=_SPEEDUPS)
    return draw_intervals(title, "", rows, reference=0.0)


def positions_picture(
    case: CaseReport, verdicts: Iterable[Verdict] = (), title: str = ""
) -> BarPicture | None:
    """Draw the accepted draft positions of a case beside those of its baseline; None without any.

    A position has the values of its verdict, if there is one. Positions that are REGRESSED are
    marked, and so are those that lost more than a tenth. Without a title, the case's id is the
    title, and links to the case.
    """
    if case.figures is None or case.figures.acceptance is None:
        return None
    shares = list(case.figures.acceptance.total.marginal_frac)
    if not shares:
        return None
    expected = list(case.expected.marginal_frac) if case.expected is not None else []
    lost = set()
    for verdict in verdicts:
        position = METRICS[verdict.metric].position if verdict.metric in METRICS else None
        if position is None:
            continue
        if verdict.outcome is Outcome.REGRESSED:
            lost.add(position)
        before = verdict.comparison.expected
        is_drawn = position <= min(len(shares), len(expected))
        if is_drawn and before is not None and verdict.value is not None:
            shares[position - 1] = verdict.value
            expected[position - 1] = before

    return BarPicture(
        title=title or case.case_id,
        target="" if title else case.case_id,
        bars=_bars(shares, expected, lost),
    )


def _bars(
    shares: Sequence[float], expected: Sequence[float], lost: Collection[int | None] = ()
) -> Sequence[Bar]:
    """Return a bar for each share, from the first position on, in percent."""
    bars = []
    for position, share in enumerate(shares, start=1):
        before = expected[position - 1] if position <= len(expected) else None
        bar = Bar(
            share=round(100 * share, 1),
            expected=None if before is None else round(100 * before, 1),
            is_lost=position in lost or (before is not None and share < LOST_FRAC * before),
        )
        bars.append(bar)

    return bars


@dataclass(frozen=True, slots=True, kw_only=True)
class CategoryCell:
    """A case on the prompts of one category.

    Attributes:
        length: the acceptance length.
        change: its change from what was expected, relative to AL - 1; empty if that isn't known.
        gain: the TPOT without speculation over that with it; empty if it isn't known.
        tone: the colour of the cell.
    """

    length: str
    change: str
    gain: str
    tone: str


def category_map(
    cases: Iterable[CaseReport],
) -> tuple[Sequence[str], Mapping[str, Sequence[CategoryCell | None]]]:
    """Return the categories of all cases, and a cell for each of them by the case's id.

    Cases with prompts of a single category are left out. A cell is None if the case has no prompt
    of the category.
    """
    cells_by_case = {case.case_id: dict(_category_cells(case)) for case in cases}
    cells_by_case = {case_id: cells for case_id, cells in cells_by_case.items() if len(cells) > 1}
    categories = list(dict.fromkeys(itertools.chain.from_iterable(cells_by_case.values())))
    rows = {
        case_id: [cells.get(name) for name in categories]
        for case_id, cells in cells_by_case.items()
    }
    return categories, rows


def _category_cells(case: CaseReport) -> Iterator[tuple[str, CategoryCell]]:
    """Yield each category of a case that has an acceptance length, with its cell."""
    if case.figures is None or case.figures.acceptance is None:
        return
    expected: Mapping[str, float] = {}
    if case.expected is not None:
        expected = case.expected.by_category_length_tokens
    gains: Mapping[str, float | None] = {}
    if case.figures.speedup is not None:
        gains = case.figures.speedup.tpot_ratio_by_category
    for name, part in case.figures.acceptance.by_category.items():
        length = part.acceptance_length_tokens
        if length is None:
            continue
        change = ""
        tone = "plain"
        before = expected.get(name)
        if before is not None and before > 1:
            change_frac = (length - before) / (before - 1)
            change = render_change(change_frac)
            if abs(change_frac) > _SHOWN_CHANGE_FRAC:
                tone = str(Tone.BAD if change_frac < 0 else Tone.GOOD)
        gain_ratio = gains.get(name)
        gain = "" if gain_ratio is None else f"×{gain_ratio:.2f}"
        yield name, CategoryCell(length=f"{length:.2f}", change=change, gain=gain, tone=tone)


def oracle_positions(verdicts: Iterable[Verdict]) -> Iterator[BarPicture]:
    """Yield a picture of the accepted positions next to the oracle's, for each oracle verdict."""
    for verdict in verdicts:
        if verdict.by_position_frac:
            engine_shares = [share for share, _ in verdict.by_position_frac]
            oracle_shares = [share for _, share in verdict.by_position_frac]
            bars = _bars(engine_shares, oracle_shares)
            title = "Accepted by position, against the oracle"
            yield BarPicture(title=title, target="", bars=bars)


def energy_picture(power: PowerRecord) -> IntervalPicture | None:
    """Draw the energy per token with and without speculation, and the part that idle devices use.

    Returns:
        None if the power is invalid, or if the energy of one of the servers isn't known.
    """
    if power.invalid or power.case is None or power.control is None:
        return None
    rows = []
    for name, arm in (("with speculation", power.case), ("without it", power.control)):
        energy_j = arm.energy_j_per_token
        if energy_j is None:
            return None
        at_rest_j = None
        text = f"{format_number(energy_j)} J per token"
        if arm.idle_w is not None and arm.tokens:
            # The energy that idle devices would have used in the same time, for each token.
            at_rest_j = arm.idle_w * arm.window_s / arm.tokens
            text += f", {format_number(at_rest_j)} of it at rest"
        rows.append(IntervalRow(label=name, text=text, value=energy_j, baseline=at_rest_j))

    rest_note = ""
    if any(row.baseline is not None for row in rows):
        rest_note = "; the upright mark is the part that they use at rest"
    return draw_intervals(
        "Energy per token", f"In J, of all devices together{rest_note}.", rows, reference=0.0
    )


def power_picture(power: PowerRecord) -> CurvePicture | None:
    """Draw the power of all devices over the time of the load, with and without speculation.

    Returns:
        None if the power is invalid, or wasn't recorded over time.
    """
    arms = {"without speculation": power.control, "with speculation": power.case}
    lines = {name: arm for name, arm in arms.items() if arm is not None and arm.over_time_w}
    if power.invalid or not lines:
        return None
    watts = [value for arm in lines.values() for value in arm.over_time_w]
    x_axis = Axis.over([0.0, *(arm.window_s for arm in lines.values())])
    plot = Plot(y=Axis.over([0.0, *watts]), x_low=x_axis.low, x_high=x_axis.high)
    curves = []
    for name, arm in lines.items():
        color = "now" if arm is power.case else "muted"
        part_s = arm.window_s / len(arm.over_time_w)
        points = [((part + 0.5) * part_s, value) for part, value in enumerate(arm.over_time_w)]
        peak_s, peak_w = max(points, key=lambda point: point[1])
        text = f"most {name}: {format_number(peak_w)} W, after {peak_s:.0f} s"
        dots = [Dot(plot.x(peak_s), plot.height(peak_w), color, text)]
        curves.append(Curve(name=name, color=color, path=plot.path(points), dots=dots))

    return CurvePicture(
        title="Power over time, W",
        note="All devices together, over the seconds of the load.",
        x_ticks=plot.x_ticks(x_axis),
        y_ticks=plot.y_ticks,
        curves=curves,
        legend=_line_legend(curves),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseNights:
    """A case over its nights.

    Attributes:
        engine: the name of its engine; empty if it isn't known.
        runs: its runs, the earliest first.
        expected: the values in its baseline, by metric.
    """

    case_id: str
    engine: str
    runs: Sequence[RunRecord]
    expected: Mapping[str, float]

    @classmethod
    def of(cls, case: CaseReport) -> "CaseNights":
        """Return the nights of a case in a report."""
        expected = case.expected.values if case.expected is not None else {}
        return cls(case_id=case.case_id, engine=case.engine, runs=case.history, expected=expected)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """One metric of a case over its nights.

    Attributes:
        runs: its runs that judged the metric, the earliest first.
        level: what the changes are relative to: the baseline, or else the first run.
        changes: the change of each run from that level, in percent.
        bad_run: the first bad run after the last fine one; None if there is none.
    """

    case: CaseNights
    runs: Sequence[RunRecord]
    level: float
    changes: Sequence[float]
    bad_run: RunRecord | None


def histories(cases: Sequence[CaseNights]) -> Iterator[CurvePicture]:
    """Yield a picture of the last 30 nights of each metric that says more than another picture.

    A figure that never changed has none. Each case that was judged on two nights or more has a
    line, which shows changes in percent from the baseline of the case, or else from the first of
    these nights. With more than six cases, those that became bad and weren't fine again stand out,
    and the others are grey behind them.
    """
    all_nights = {run.run for case in cases for run in case.runs}
    nights = set(sorted(all_nights)[-_MAX_NIGHTS:])
    colors: Mapping[str, str] = {}
    if len(cases) <= _MAX_NAMED_LINES:
        colors = dict(zip((case.case_id for case in cases), _LINE_COLORS, strict=False))
    drawn: set[str] = set()
    for metric in METRICS.values():
        # The positions have pictures that show their shape, and a metric that follows one with a
        # picture would have the same picture again.
        if metric.position is not None or metric.follows in drawn:
            continue
        lines = [line for case in cases for line in _lines_of(metric, case, nights)]
        if any(abs(change) >= _FLAT_PERCENT for line in lines for change in line.changes):
            drawn.add(metric.name)
            yield _history_picture(metric, lines, colors)


def _lines_of(metric: Metric, case: CaseNights, nights: Collection[str]) -> Iterator[_Line]:
    """Yield the line of a case's metric over these nights, unless it has too few runs."""
    judged = comparable(case.runs, metric.name)

    # The newest nights of all cases are shown, so an old case may have none among them.
    runs = [run for run in judged if run.run in nights and metric.name in run.values]
    if len(runs) < _FEWEST_RUNS:
        return
    level = case.expected.get(metric.name, runs[0].values[metric.name])
    change_fracs = [better_frac(metric, run.values[metric.name], level) for run in runs]
    first_bad_index = first_bad(runs, metric.name)
    yield _Line(
        case=case,
        runs=runs,
        level=level,
        changes=[100 * change_frac for change_frac in change_fracs],
        bad_run=runs[first_bad_index] if first_bad_index < len(runs) else None,
    )


def _history_picture(
    metric: Metric, lines: Sequence[_Line], colors: Mapping[str, str]
) -> CurvePicture:
    """Draw a metric of several cases over all of their nights.

    Args:
        lines: the lines of the cases.
        colors: the colour of each case by its id; empty with too many cases.
    """
    # Number the nights from left to right.
    nights = sorted({run.run for line in lines for run in line.runs})
    numbers = {night: number for number, night in enumerate(nights)}
    changes = [change for line in lines for change in line.changes]
    plot = Plot(y=Axis.over([0.0, *changes], _CHANGES), x_low=0, x_high=len(nights) - 1)

    # Draw the lines, those that became bad in front of the others.
    curves = []
    for line in sorted(lines, key=lambda line: line.bad_run is not None):
        points = list(zip((numbers[run.run] for run in line.runs), line.changes, strict=True))
        case_id = line.case.case_id
        color = colors.get(case_id, "base" if line.bad_run is None else "bad")
        # Grey lines are a background, from which nothing stands out.
        dots = () if color == "base" else tuple(_unfine_dots(metric, line, plot, numbers))
        curves.append(Curve(name=case_id, color=color, path=plot.path(points), dots=dots))

    # Explain the bad lines, and where the engine's version changed.
    bad_runs = {line.case.case_id: line.bad_run for line in lines if line.bad_run is not None}
    notes = list(_bad_notes(bad_runs))
    if len(lines) == 1:
        notes = list(_notes_on(metric, lines[0]))

    # A picture of one engine needs no name of it.
    engines = {line.case.engine for line in lines}
    versions = version_starts(
        (numbers[run.run], line.case.engine if len(engines) > 1 else "", run.engine_version)
        for line in lines
        for run in line.runs
    )
    return CurvePicture(
        title=label_of(metric.name),
        note=" ".join(notes),
        x_ticks=_date_ticks(plot, nights),
        y_ticks=plot.y_ticks,
        curves=curves,
        reference=plot.height(0.0),
        versions=[Tick(at=plot.x(number), label=label) for number, label in versions],
        bad=sorted({plot.x(numbers[run.run]) for run in bad_runs.values()}),
    )


def _unfine_dots(
    metric: Metric, line: _Line, plot: Plot, numbers: Mapping[str, int]
) -> Iterator[Dot]:
    """Yield a dot for each run of a line that isn't fine."""
    for run, change in zip(line.runs, line.changes, strict=True):
        if not run.fine(metric.name):
            yield Dot(
                x=plot.x(numbers[run.run]),
                y=plot.height(change),
                color="bad" if is_bad(run, metric.name) else "doubt",
                text=f"{moment_of(run)}: {render_value(metric.name, run.values[metric.name])}",
            )


def _notes_on(metric: Metric, line: _Line) -> Iterator[str]:
    """Yield since when a line alone is bad, and which value the dashed line stands for."""
    if line.bad_run is not None:
        yield f"Not fine since {moment_of(line.bad_run)}."
    level = render_value(metric.name, line.level)
    subject = "baseline" if metric.name in line.case.expected else "first run"
    yield f"Dashed: the {subject}, {level}."


def version_starts(runs: Iterable[tuple[int, str, str]]) -> list[tuple[int, str]]:
    """Return where each version of an engine begins: the run's number, and engine and version.

    If an engine goes back to an earlier version, that version begins again. A run without the
    engine, or whose server reported no version, begins nothing and ends nothing.

    Args:
        runs: for each case of each run, the number of the run, the name of the engine, and its
            version. The name may be empty if all runs have the same engine.
    """
    versions_by_engine: dict[str, dict[int, dict[str, None]]] = {}
    for number, engine, version in runs:
        if version:
            versions_by_number = versions_by_engine.setdefault(engine, {})
            versions_by_number.setdefault(number, {})[version] = None

    starts = []
    for engine, versions_by_number in versions_by_engine.items():
        previous: set[str] = set()
        for number, versions in sorted(versions_by_number.items()):
            new_versions = [version for version in versions if version not in previous]
            starts += [(number, f"{engine} {version}".lstrip()) for version in new_versions]
            previous = {*versions}

    return sorted(starts, key=lambda start: start[0])


def _bad_notes(bad_runs: Mapping[str, RunRecord]) -> Iterator[str]:
    """Yield a note about when each case became bad, for at most six cases."""
    for case_id, run in itertools.islice(bad_runs.items(), _MAX_LISTED):
        yield f"{case_id} has not been fine since {moment_of(run)}."
    if len(bad_runs) > _MAX_LISTED:
        yield f"{len(bad_runs) - _MAX_LISTED} more cases have not been fine since a bad run."


def _date_ticks(plot: Plot, nights: Sequence[str]) -> Sequence[Tick]:
    """Return ticks with the dates of nights, or with times if all runs are of one day.

    A label appears once, and only if there is room.
    """
    dates = {_date_of(run) for run in nights}
    ticks: list[Tick] = []
    for number, run in enumerate(nights):
        label = _date_of(run)
        moment = began_at(run)
        if len(dates) == 1 and moment is not None:
            label = f"{moment:%H:%M}"
        if not ticks or ticks[-1].label != label:
            ticks.append(Tick(at=plot.x(number), label=label))

    return list(spaced(ticks, LABEL_ROOM))


def _date_of(run: str) -> str:
    """Return the month and the day of a run, or the beginning of its name if it has no time."""
    moment = began_at(run)
    if moment is None:
        return run[:8]
    return f"{moment:%m-%d}"


def crossings(loads: Sequence[tuple[int, float]]) -> list[float]:
    """Return the loads at which a gain crosses 1, interpolated over the logarithm of the load.

    Args:
        loads: the requests in flight and the gain of one load or more, the lightest load first.
    """
    crossed = []
    for (light, gain), (heavy, next_gain) in itertools.pairwise(loads):
        pays = gain >= 1
        pays_next = next_gain >= 1
        if pays != pays_next:
            # How far between the two loads the line is at 1.
            share_frac = (gain - 1) / (gain - next_gain)
            crossed.append(light * (heavy / light) ** share_frac)

    return crossed


def break_even(loads: Sequence[tuple[int, float]]) -> str:
    """Describe at which loads speculation pays: `pays up to about 12 in flight`.

    Args:
        loads: the loads and gains, as for `crossings`.
    """
    crossed = crossings(loads)
    paying = [load for load, gain in loads if gain >= 1]
    costing = [load for load, gain in loads if gain < 1]
    if not crossed:
        pays = "pays" if paying else "never pays"
        lightest, _ = loads[0]
        heaviest, _ = loads[-1]
        return f"{pays} at {lightest} to {heaviest} in flight"

    if len(crossed) == 1:
        pays = "pays up to about" if paying[0] < costing[0] else "pays from about"
        # The format alone would write a load of hundreds with an exponent, as 1.2e+02.
        load = float(f"{crossed[0]:.2g}")
        return f"{pays} {load:g} in flight"

    paying_text = ", ".join(map(str, paying))
    costing_text = ", ".join(map(str, costing))
    return f"pays at {paying_text} in flight, not at {costing_text}"


def gains_over_load(cases: Sequence[CaseReport]) -> Iterator[CurvePicture]:
    """Yield pictures of the gain over the load, for each combination of engine, models and dataset.

    The cases of a line differ only in their load and their number of prompts. There is a picture
    only for three loads or more. Cases with a request rate are left out.
    """
    speedups: dict[str, float] = {}
    savings: dict[str, float] = {}
    for case in cases:
        if case.figures is None:
            continue
        if SPEEDUP in case.figures.judged:
            speedups[case.case_id] = case.figures.judged[SPEEDUP]
        power = case.figures.power
        if power is not None and not (power.invalid or power.too_short) and power.energy_ratio:
            savings[case.case_id] = power.energy_ratio

    formula = "Throughput with speculation over throughput without it"
    for subject, lines in _lines_over_load(cases, speedups).items():
        yield _load_picture(f"Speedup over load: {subject}", formula, lines)
    formula = "Energy per token without speculation over that with it"
    for subject, lines in _lines_over_load(cases, savings).items():
        yield _load_picture(f"Energy saved over load: {subject}", formula, lines)


def throughput_over_latency(cases: Sequence[CaseReport]) -> Iterator[CurvePicture]:
    """Yield pictures of throughput over the time of a token, with and without speculation.

    The lines are those of `gains_over_load`. The one without speculation is that of the controls of
    the first of them.
    """
    paces: dict[str, tuple[_Pace, _Pace]] = {}
    for case in cases:
        if case.figures is not None:
            own_pace = _pace_of(case.figures.timing)
            control_pace = _pace_of(case.figures.control)
            if own_pace is not None and control_pace is not None:
                paces[case.case_id] = (own_pace, control_pace)

    for subject, lines in _lines_over_load(cases, paces).items():
        first_line = next(iter(lines.values()))
        with_speculation = {
            name: [(load, own_pace) for load, (own_pace, _) in line] for name, line in lines.items()
        }
        alone = [(load, control_pace) for load, (_, control_pace) in first_line]
        yield _latency_picture(subject, {"without speculation": alone, **with_speculation})


class _Pace(NamedTuple):
    """The median time of a token and the throughput of a server."""

    tpot_ms: float
    throughput_tokens_per_s: float


def _pace_of(timing: ArmFigures | None) -> _Pace | None:
    if timing is None or timing.tpot_ms is None or timing.throughput_tokens_per_s is None:
        return None
    return _Pace(timing.tpot_ms.p50, timing.throughput_tokens_per_s)


def _latency_picture(
    subject: str, lines: Mapping[str, Sequence[tuple[int, _Pace]]]
) -> CurvePicture:
    """Draw the throughput of each line over the time of a token, and name its heaviest load."""
    paces = [pace for line in lines.values() for _, pace in line]
    x_axis = Axis.over([0.0, *(pace.tpot_ms for pace in paces)])
    y_axis = Axis.over([0.0, *(pace.throughput_tokens_per_s for pace in paces)])
    plot = Plot(y=y_axis, x_low=x_axis.low, x_high=x_axis.high)
    curves = []
    for color, (name, line) in zip(("muted", *_LINE_COLORS), lines.items(), strict=False):
        dots = [
            Dot(
                x=plot.x(pace.tpot_ms),
                y=plot.height(pace.throughput_tokens_per_s),
                color=color,
                text=f"{load} in flight, {name}: {pace.throughput_tokens_per_s:.4g} tokens/s at"
                f" {pace.tpot_ms:.3g} ms per token",
                # Lighter loads lie too close together for names.
                label=f"c{load}" if load == line[-1][0] else "",
            )
            for load, pace in line
        ]
        path = plot.path(line_pace for _, line_pace in line)
        curves.append(Curve(name=name, color=color, path=path, dots=dots))

    return CurvePicture(
        title=f"Throughput over time per token: {subject}",
        note="Tokens/s of all requests together, over the median ms per token of one request, from"
        " the lightest to the heaviest load. Up and to the left is better.",
        x_ticks=plot.x_ticks(x_axis),
        y_ticks=plot.y_ticks,
        curves=curves,
        legend=_line_legend(curves),
    )


def spread_pictures(figures: Figures) -> Iterator[CurvePicture]:
    """Yield how the time to the first token and the time per token spread over the requests.

    There is a picture only if both servers, with and without speculation, were timed.
    """
    if figures.timing is None or figures.control is None:
        return
    for title, own, control in (
        ("Time to first token, ms", figures.timing.ttft_ms, figures.control.ttft_ms),
        ("Time per token, ms", figures.timing.tpot_ms, figures.control.tpot_ms),
    ):
        if own is not None and control is not None:
            yield _spread_picture(title, {"without it": control, "with speculation": own})


def _spread_picture(title: str, summaries: Mapping[str, Summary]) -> CurvePicture:
    """Draw for each server the share of the requests that took at most so long."""
    x_axis = Axis.over(
        value for summary in summaries.values() for value in (summary.min, summary.p99)
    )
    plot = Plot(
        y=Axis.over([0.0, 100.0], AxisStyle(unit="%")), x_low=x_axis.low, x_high=x_axis.high
    )
    curves = []
    for color, (name, summary) in zip(("muted", "now"), summaries.items(), strict=True):
        shares = {"min": 0, "p50": 50, "p75": 75, "p90": 90, "p95": 95, "p99": 99}
        points = [(getattr(summary, field), share) for field, share in shares.items()]
        dots = [
            Dot(plot.x(value), plot.height(share), color, f"{share} % {name}: {value:.4g} ms")
            for value, share in points
            if share in _NAMED_SHARES
        ]
        curves.append(Curve(name=name, color=color, path=plot.path(points), dots=dots))

    # Hundreds of these pictures share one note and one legend, which the page has above them.
    return CurvePicture(
        title=title, note="", x_ticks=plot.x_ticks(x_axis), y_ticks=plot.y_ticks, curves=curves
    )


def _lines_over_load(
    cases: Iterable[CaseReport], values: Mapping[str, _T]
) -> Mapping[str, Mapping[str, Sequence[tuple[int, _T]]]]:
    """Return for each engine, models and dataset the lines by name, with a value for each load.

    Subjects with fewer than three loads are left out.

    Args:
        values: the value of each case that has one, by its id.
    """
    lines_by_subject: dict[str, dict[CaseSettings, dict[int, _T]]] = {}
    for case in cases:
        # The load of a picture is the number of requests in flight, which is 0 for a request rate.
        if case.case_id not in values or case.settings is None or not case.settings.concurrency:
            continue
        subject = f"{case.engine}, {case.models}, {case.dataset}"
        # Cases that are equal but for their load are points of one line.
        line_settings = dataclasses.replace(case.settings, **_NEUTRAL_LOAD)
        lines = lines_by_subject.setdefault(subject, {})
        line = lines.setdefault(line_settings, {})
        line[case.settings.concurrency] = values[case.case_id]

    return {
        subject: _named(lines)
        for subject, lines in lines_by_subject.items()
        if len({load for line in lines.values() for load in line}) >= _FEWEST_LOADS
    }


def _named(
    lines: Mapping[CaseSettings, Mapping[int, _T]],
) -> Mapping[str, Sequence[tuple[int, _T]]]:
    """Return the lines by a name: the method and its draft tokens.

    If several lines have the same method and draft tokens, the settings in which a line differs
    from the first of them are appended to its name.
    """
    first_settings: dict[str, CaseSettings] = {}
    named = {}
    for settings, line in lines.items():
        name = f"{settings.method}-k{settings.draft_tokens}"
        first = first_settings.setdefault(name, settings)
        difference = differing_settings(first, settings)
        if difference:
            name = f"{name} ({difference})"
        named[name] = sorted(line.items())

    return dict(sorted(named.items()))


def _load_picture(
    title: str, formula: str, lines: Mapping[str, Sequence[tuple[int, float]]]
) -> CurvePicture:
    """Draw the gain of each line over the load.

    A line of three loads or more has a diamond where it crosses 1.
    """
    gains = [gain for line in lines.values() for _, gain in line]
    loads = sorted({load for line in lines.values() for load, _ in line})

    # Loads usually double from one to the next, so a logarithmic axis spaces them equally.
    lightest = math.log2(loads[0])
    heaviest = math.log2(loads[-1])
    plot = Plot(y=Axis.over([1.0, *gains]), x_low=lightest, x_high=heaviest)
    curves = []
    findings = []
    for index, (name, line) in enumerate(lines.items()):
        crossed: list[float] = []
        if len(line) >= _FEWEST_LOADS:
            crossed = crossings(line)
            findings.append(f"{name} {break_even(line)}")
        color = _LINE_COLORS[index % len(_LINE_COLORS)]
        points = [(math.log2(load), gain) for load, gain in line]
        dots = [
            Dot(plot.x(math.log2(load)), plot.height(gain), color, f"{load} in flight: ×{gain:.2f}")
            for load, gain in line
        ]
        diamonds = [(plot.x(math.log2(load)), plot.height(1.0)) for load in crossed]
        curve = Curve(name=name, color=color, path=plot.path(points), dots=dots, diamonds=diamonds)
        curves.append(curve)

    note = (
        f"{formula}, by requests in flight. Below the dashed line, at 1, speculation costs more"
        " than it gains; a diamond is where a line crosses it."
    )
    if findings:
        note = f"{note} {'; '.join(findings)}."
    ticks = [Tick(at=plot.x(math.log2(load)), label=str(load)) for load in loads]
    return CurvePicture(
        title=title,
        note=note,
        x_ticks=list(spaced(ticks, LABEL_ROOM / 2)),
        y_ticks=plot.y_ticks,
        curves=curves,
        reference=plot.height(1.0),
        legend=_line_legend(curves),
    )


def _line_legend(curves: Sequence[Curve]) -> Mapping[str, str]:
    """Return the names of the lines by their colour. Lines with the same colour are joined."""
    names_by_color: dict[str, list[str]] = {}
    for curve in curves:
        names_by_color.setdefault(curve.color, []).append(curve.name)
    return {color: ", ".join(names) for color, names in names_by_color.items()}
