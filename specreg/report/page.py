"""The page of a run: the document in, one HTML file out that needs nothing else."""

import datetime as dt
from collections.abc import Mapping, Sequence

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from specreg.core.commands import run_command
from specreg.measurement.validity import render_invalid
from specreg.report.cards import cards_of, moment_of
from specreg.report.charts import charts_of
from specreg.report.document import CaseReport, Report, began_at
from specreg.report.drawing import Chart
from specreg.report.headline import MARKS, answers_of, moved_alone, notes_of
from specreg.report.loads import speed_over_load
from specreg.report.overview import MEANINGS, SYMBOLS, cells_of, columns_of
from specreg.report.quantities import label_of, render_value
from specreg.report.spreads import COLUMNS, spreads_of
from specreg.report.tables import time_rows
from specreg.report.terminal import NOTHING, format_number, next_of, render_notes
from specreg.verdicts.judge import Verdict

_MOST_BYTES = 2_000_000
_DRAWN_FRAC = 0.7
"""Where so much of its room is full, further cases come without charts, and then not at all."""
_LEGEND = {"now": "this run", "base": "the baseline", "alone": "without speculation"}
_S_PER_MIN = 60


def render_page(report: Report, *, wrong: str = "", most_bytes: int = _MOST_BYTES) -> str:
    """The page, 2 MB at most: what fails comes first, and what doesn't fit is named.

    Args:
        report: of the run.
        wrong: what couldn't be read of it, empty where all could.
        most_bytes: how much it may weigh; what is said of single cases gives way.
    """
    verdicts = report.run.verdicts
    by_case: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        by_case.setdefault(verdict.case_id, []).append(verdict)
    columns = columns_of(verdicts)
    names = [case.case_id for case in report.cases]
    frame = {
        "report": report,
        "run": report.run,
        "wrong": wrong,
        "answers": answers_of(report.run),
        "open": list(notes_of(report.run)),
        "when": _when(report),
        "cards": list(cards_of(report, by_case)),
        "columns": columns,
        "rows": [(case_id, cells_of(found, columns)) for case_id, found in by_case.items()],
        "red": {verdict.case_id for verdict in verdicts if verdict.fails},
        "moved": moved_alone(report),
        "loads": [_drawn(chart) for chart in speed_over_load(report.cases)],
        "notes": render_notes([one for one in verdicts if not one.fails], report.run.environment),
        "times": time_rows(report.time) if report.time and report.time.pairs else (),
        "next_steps": next_of(report)
        or f"nothing needs to be done; the same again:\n  {run_command((), report.options)}",
    }
    page = _TEMPLATES.get_template("page.html.jinja")
    # As heavy as the frame can be: each case is linked, and is named as one that was left out.
    bare = page.render(**frame, sections=(), left_out=names, told=set(names))
    shown, left_out = _sections(report, by_case, most_bytes - len(bare.encode()))
    told = set(names) - set(left_out)
    return page.render(**frame, sections=shown, left_out=left_out, told=told)


def _sections(
    report: Report, by_case: Mapping[str, Sequence[Verdict]], most_bytes: int
) -> tuple[Sequence[Markup], Sequence[str]]:
    """The details of each case as far as they fit, the failing ones first; the ids of the rest."""
    shown: list[Markup] = []
    left_out: list[str] = []
    used_bytes = 0
    places = {case_id: place for place, case_id in enumerate(by_case)}

    def fails(case: CaseReport) -> bool:
        return any(verdict.fails for verdict in by_case.get(case.case_id, ()))

    def order(case: CaseReport) -> tuple[bool, int]:
        return not fails(case), places.get(case.case_id, len(places))

    for case in sorted(report.cases, key=order):
        verdicts = by_case.get(case.case_id, ())
        charts = list(charts_of(case)) if used_bytes < _DRAWN_FRAC * most_bytes else []
        section = _section(case, verdicts, charts, is_open=fails(case))
        size_bytes = len(section.encode()) + 1
        if used_bytes + size_bytes <= most_bytes:
            used_bytes += size_bytes
            shown.append(section)
        else:
            left_out.append(case.case_id)
    return shown, left_out


def _section(
    case: CaseReport, verdicts: Sequence[Verdict], charts: Sequence[Chart], *, is_open: bool
) -> Markup:
    text = _TEMPLATES.get_template("case.html.jinja").render(
        case=case,
        verdicts=verdicts,
        charts=[_drawn(chart) for chart in charts],
        is_open=is_open,
        percentiles=list(spreads_of(case.figures)) if case.figures else [],
        settings=_settings(case),
    )
    return Markup(text)  # noqa: S704 - the template has escaped what it was given


def _drawn(chart: Chart) -> Mapping[str, object]:
    """The chart; the drawing is markup that Vega escaped."""
    svg = Markup(chart.svg)  # noqa: S704
    legend = {color: _LEGEND[color] for color in chart.colors}
    return {"title": chart.title, "note": chart.note, "svg": svg, "legend": legend}


def _when(report: Report) -> str:
    """When the run began and how long it took; empty where neither is known."""
    began = began_at(report.run.run)
    if began is None:
        return ""
    told = f"Began {moment_of(report.run.run)}"
    if not report.ended_at:
        return f"{told}."
    took = dt.datetime.fromisoformat(report.ended_at) - began
    return f"{told}, done {max(1, round(took.total_seconds() / _S_PER_MIN))} min later."


def _settings(case: CaseReport) -> Mapping[str, object]:
    """Each setting that has a value, as JSON says it."""
    if case.settings is None:
        return {}
    plain = msgspec.to_builtins(case.settings)
    return {name: value for name, value in plain.items() if value not in (None, "", [], ())}


def _values(verdict: Verdict) -> str:
    """`100 → 90 tokens/s`: of the baseline and of now."""
    before, now = (
        render_value(verdict.metric, value) for value in (verdict.expected, verdict.value)
    )
    number, _, unit = before.partition(" ")
    return f"{number if unit and now.endswith(f' {unit}') else before} → {now}"


def _frac(value: float | None) -> str:
    return NOTHING if value is None else f"{value:+.1%}"


def _interval(verdict: Verdict) -> str:
    if verdict.low_frac is None or verdict.high_frac is None:
        return NOTHING
    return f"{verdict.low_frac:+.1%} and {verdict.high_frac:+.1%}"


_TEMPLATES = Environment(
    loader=PackageLoader("specreg.report"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters.update(
    number=format_number,
    frac=_frac,
    interval=_interval,
    invalid=render_invalid,
    label=label_of,
    values=_values,
)
_TEMPLATES.globals.update(marks=MARKS, symbols=SYMBOLS, meanings=MEANINGS, spread_columns=COLUMNS)
