"""The page of a run: the document in, one HTML file out that needs nothing else."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from specreg.report.charts import Chart, charts_of, label_of, speed_over_load
from specreg.report.document import CaseReport, Report
from specreg.report.spreads import COLUMNS, spreads_of
from specreg.report.terminal import format_number, render_next, render_notes
from specreg.verdict import Outcome, Verdict

_MOST_BYTES = 1_900_000
_DRAWN_FRAC = 0.7
"""Where so much of a page is full, further cases come without charts, and then not at all."""

SYMBOLS: Mapping[Outcome, str] = {
    Outcome.REGRESSED: "▼",
    Outcome.WRONG: "✗",
    Outcome.INVALID: "⚠",
    Outcome.INCONCLUSIVE: "?",
    Outcome.NO_BASELINE: "∅",
    Outcome.NOT_COMPARABLE: "≠",
    Outcome.IMPROVED: "▲",
    Outcome.MEASURED: "•",
    Outcome.PASS: "✓",
}
"""The worst first."""

MEANINGS: Mapping[Outcome, str] = {
    Outcome.REGRESSED: "worse for sure, by more than the tolerance, on two launches",
    Outcome.WRONG: "speculation changed a token, or took other steps than its models give",
    Outcome.INVALID: "the meter or the machine was not in order: the figures mean nothing",
    Outcome.INCONCLUSIVE: "the measurements can't tell",
    Outcome.NO_BASELINE: "nothing was recorded to compare with",
    Outcome.NOT_COMPARABLE: "recorded on another kind of machine",
    Outcome.IMPROVED: "better for sure, by more than the tolerance",
    Outcome.MEASURED: "measured, not judged",
    Outcome.PASS: "proven to lie within the tolerance",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One place of the overview: the worst verdict on some metrics of a case."""

    verdict: Verdict
    text: str


def render_page(report: Report, *, wrong: str = "", most_bytes: int = _MOST_BYTES) -> str:
    """The page, 2 MB at most: what fails comes first, and what doesn't fit is named.

    Args:
        report: of the run.
        wrong: what couldn't be read of it, empty where all could.
        most_bytes: how much may be said of single cases.
    """
    columns = list(dict.fromkeys(_column(verdict.metric) for verdict in report.run.verdicts))
    by_case = _by_case(report)
    shown, left_out = _sections(report, by_case, most_bytes)
    return _TEMPLATES.get_template("page.html.jinja").render(
        report=report,
        run=report.run,
        wrong=wrong,
        failing=_failing(by_case),
        headline=_headline(report),
        columns=columns,
        rows=[(case_id, _cells(verdicts, columns)) for case_id, verdicts in by_case.items()],
        red={case_id for case_id, verdicts in by_case.items() if any(v.fails for v in verdicts)},
        loads=[_drawn(chart) for chart in speed_over_load(report.cases)],
        sections=shown,
        left_out=left_out,
        told={case.case_id for case in report.cases} - set(left_out),
        notes=render_notes(
            [verdict for verdict in report.run.verdicts if not verdict.fails],
            report.run.environment,
        ),
        next_steps=render_next(report.run.verdicts, set(report.tier_cases)),
    )


def _by_case(report: Report) -> Mapping[str, list[Verdict]]:
    found: dict[str, list[Verdict]] = {}
    for verdict in report.run.verdicts:
        found.setdefault(verdict.case_id, []).append(verdict)
    return found


def _failing(
    by_case: Mapping[str, Sequence[Verdict]],
) -> Sequence[tuple[str, Sequence[tuple[Verdict, str]]]]:
    """By case the verdicts that fail, each with its reason unless one before has the same."""
    found = []
    for case_id, verdicts in by_case.items():
        failing = [verdict for verdict in verdicts if verdict.fails]
        said: set[str] = set()
        rows = []
        for verdict in failing:
            rows.append((verdict, "" if verdict.reason in said else verdict.reason))
            said.add(verdict.reason)
        if rows:
            found.append((case_id, rows))
    return found


def _sections(
    report: Report, by_case: Mapping[str, Sequence[Verdict]], most_bytes: int
) -> tuple[Sequence[Markup], Sequence[str]]:
    """The details of each case as far as they fit, the failing ones first; the ids of the rest."""
    shown: list[Markup] = []
    left_out: list[str] = []
    used_bytes = 0

    def fails(case: CaseReport) -> bool:
        return any(verdict.fails for verdict in by_case.get(case.case_id, ()))

    for case in sorted(report.cases, key=lambda case: not fails(case)):
        verdicts = by_case.get(case.case_id, ())
        charts = list(charts_of(case)) if used_bytes < _DRAWN_FRAC * most_bytes else []
        section = _section(case, verdicts, charts, is_open=fails(case))
        used_bytes += len(section.encode())
        if used_bytes < most_bytes:
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


def _drawn(chart: Chart) -> Mapping[str, str]:
    """The chart; the drawing is markup that Vega escaped."""
    return {"title": chart.title, "note": chart.note, "svg": Markup(chart.svg)}  # noqa: S704


def _column(metric: str) -> str:
    """Where a metric stands in the overview: all positions share a place."""
    return "acceptance by position" if metric.startswith("acceptance_pos") else label_of(metric)


def _cells(verdicts: Sequence[Verdict], columns: Sequence[str]) -> Sequence[Cell | None]:
    """The worst verdict of each column: by its outcome, then by its change."""
    order = list(SYMBOLS)
    ranked = sorted(verdicts, key=lambda v: (order.index(v.outcome), v.change_frac or 0.0))
    worst: dict[str, Verdict] = {}
    for verdict in ranked:
        worst.setdefault(_column(verdict.metric), verdict)
    return [_cell(worst[column]) if column in worst else None for column in columns]


def _cell(verdict: Verdict) -> Cell:
    change = verdict.change_frac
    return Cell(verdict=verdict, text=_number(verdict.value) if change is None else _frac(change))


def _headline(report: Report) -> str:
    failing = sum(verdict.fails for verdict in report.run.verdicts)
    total = len(report.run.verdicts)
    if not total:
        return "Nothing was judged."
    return f"{failing} of {total} verdicts need a look" if failing else f"All {total} verdicts hold"


def _settings(case: CaseReport) -> Mapping[str, object]:
    """Each setting that has a value, as JSON says it."""
    if case.settings is None:
        return {}
    plain = msgspec.to_builtins(case.settings)
    return {name: value for name, value in plain.items() if value not in (None, "", [], ())}


def _number(value: float | None) -> str:
    return format_number(value)


def _frac(value: float | None) -> str:
    return "–" if value is None else f"{value:+.1%}"


def _interval(verdict: Verdict) -> str:
    if verdict.low_frac is None or verdict.high_frac is None:
        return "–"
    return f"{verdict.low_frac:+.1%} and {verdict.high_frac:+.1%}"


_TEMPLATES = Environment(
    loader=PackageLoader("specreg.report"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters.update(number=_number, frac=_frac, interval=_interval, label=label_of)
_TEMPLATES.globals.update(symbols=SYMBOLS, meanings=MEANINGS, columns=COLUMNS)
