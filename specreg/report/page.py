"""The page of a document: one HTML file that needs nothing else."""

import datetime as dt
from collections.abc import Mapping, Sequence

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from specreg.core.commands import install_command, run_command
from specreg.measurement.validity import render_invalid
from specreg.report.charts import Chart, can_draw, charts_of, speed_over_load
from specreg.report.document import CaseReport, Kind, Report, Tone, began_at
from specreg.report.failures import failing_by_case, moment_of, since_when
from specreg.report.summary import (
    MARKS,
    answers_of,
    arm_notes_of,
    notes_of,
    title_of,
    tone_of,
)
from specreg.report.tables import (
    NOTHING,
    PERCENTILES,
    axis_of,
    format_number,
    label_of,
    render_interval,
    render_value,
    spreads_of,
    time_rows,
)
from specreg.report.terminal import columns_of, next_of, render_notes
from specreg.verdicts.judge import Outcome, Verdict

MEANINGS: Mapping[Outcome, tuple[str, str]] = {
    Outcome.REGRESSED: ("▼", "worse for sure, by more than the tolerance, on two launches"),
    Outcome.WRONG: ("✗", "speculation changed a token, or took other steps than its models give"),
    Outcome.INVALID: ("⚠", "the meter or the machine was not in order: the figures mean nothing"),
    Outcome.INCONCLUSIVE: ("?", "the measurements can't tell"),
    Outcome.NO_BASELINE: ("∅", "nothing was recorded to compare with"),
    Outcome.NOT_COMPARABLE: ("≠", "recorded on another kind of machine"),
    Outcome.IMPROVED: ("▲", "better for sure, by more than the tolerance"),
    Outcome.MEASURED: ("•", "measured, not judged"),
    Outcome.PASS: ("✓", "proven to lie within the tolerance"),
}
"""By outcome its symbol and what it means, the worst first."""
_MOST_BYTES = 2_000_000
_DRAWN_FRAC = 0.7
"""Where so much of its room is full, further cases come without charts, and then not at all."""
_LEGEND = {"now": "this run", "base": "the baseline", "alone": "without speculation"}
_S_PER_MIN = 60


def render_page(report: Report, *, most_bytes: int = _MOST_BYTES) -> str:
    """The page, 2 MB at most: what fails comes first, and what doesn't fit is named.

    Args:
        report: of a run or a gate.
        most_bytes: how much it may weigh; the details of single cases give way.
    """
    run = report.run
    by_case: dict[str, list[Verdict]] = {}
    for verdict in run.verdicts:
        by_case.setdefault(verdict.case_id, []).append(verdict)
    columns = list(dict.fromkeys(_column(verdict.metric) for verdict in run.verdicts))
    passed = [verdict for verdict in run.verdicts if not verdict.fails]
    is_run = report.kind is Kind.RUN
    frame = {
        "report": report,
        "run": run,
        "is_run": is_run,
        "title": title_of(report),
        "names": columns_of(report),
        "answers": answers_of(report),
        "open": [*arm_notes_of(report), *notes_of(report)],
        "when": _when(report),
        "cards": _cards(report),
        "columns": columns,
        "rows": [(case_id, _worst(found, columns)) for case_id, found in by_case.items()],
        "loads": list(speed_over_load(report.cases)) if can_draw() else [],
        "lacking": "" if can_draw() else install_command("report"),
        "notes": render_notes(passed, run.environment if is_run else None),
        "times": time_rows(report.time) if report.time and report.time.pairs else (),
        "next_steps": next_of(report)
        or f"nothing needs to be done; the same again:\n  {_again(report)}",
    }
    page = _TEMPLATES.get_template("page.html.jinja")
    case_ids = [case.case_id for case in report.cases]
    # As heavy as the frame can be: each case is linked, and is named as one that was left out.
    bare = page.render(**frame, sections=(), left_out=case_ids, linked=set(case_ids))
    sections = _sections(report, by_case, most_bytes - len(bare.encode()))
    left_out = [case_id for case_id in case_ids if case_id not in sections]
    return page.render(
        **frame, sections=list(sections.values()), left_out=left_out, linked=set(sections)
    )


def _sections(
    report: Report, by_case: Mapping[str, Sequence[Verdict]], most_bytes: int
) -> Mapping[str, Markup]:
    """By case its details as far as they fit, the failing ones first."""
    sections: dict[str, Markup] = {}
    used_bytes = 0
    places = {case_id: place for place, case_id in enumerate(by_case)}
    red = failing_by_case(report.run.verdicts)

    def order(case: CaseReport) -> tuple[bool, int]:
        return case.case_id not in red, places.get(case.case_id, len(places))

    for case in sorted(report.cases, key=order):
        is_drawn = can_draw() and used_bytes < _DRAWN_FRAC * most_bytes
        text = _TEMPLATES.get_template("case.html.jinja").render(
            case=case,
            names=columns_of(report),
            verdicts=by_case.get(case.case_id, ()),
            charts=list(charts_of(case)) if is_drawn else (),
            is_open=case.case_id in red,
            percentiles=list(spreads_of(case.figures)) if case.figures else [],
            settings=_settings(case),
        )
        size_bytes = len(text.encode()) + 1
        if used_bytes + size_bytes <= most_bytes:
            used_bytes += size_bytes
            sections[case.case_id] = Markup(text)  # noqa: S704 - the template has escaped it
    return sections


def _cards(
    report: Report,
) -> Sequence[tuple[str, Tone, Sequence[Verdict], CaseReport | None]]:
    """Each case that needs a look, its colour and the verdicts that fail, the red ones first."""
    known = {case.case_id: case for case in report.cases}
    cards = []
    for case_id, failing in failing_by_case(report.run.verdicts).items():
        is_bad = any(tone_of(verdict) is Tone.BAD for verdict in failing)
        cards.append((case_id, Tone.BAD if is_bad else Tone.DOUBT, failing, known.get(case_id)))
    return sorted(cards, key=lambda card: card[1] is not Tone.BAD)


def _column(metric: str) -> str:
    """A metric's column in the overview; all positions share one."""
    return "acceptance by position" if metric.startswith("acceptance_pos") else axis_of(metric)


def _worst(verdicts: Sequence[Verdict], columns: Sequence[str]) -> Sequence[Verdict | None]:
    """The worst verdict of a case for each column: by its outcome, then by its change."""
    order = list(MEANINGS)
    ranked = sorted(verdicts, key=lambda v: (order.index(v.outcome), v.change_frac or 0.0))
    worst = {_column(verdict.metric): verdict for verdict in reversed(ranked)}
    return [worst.get(column) for column in columns]


def _when(report: Report) -> str:
    """When the run began and how long it took; empty where neither is known."""
    began = began_at(report.run.run)
    if began is None:
        return ""
    start = f"Began {moment_of(report.run.run)}"
    if not report.ended_at:
        return f"{start}."
    took = dt.datetime.fromisoformat(report.ended_at) - began
    return f"{start}, done {max(1, round(took.total_seconds() / _S_PER_MIN))} min later."


def _again(report: Report) -> str:
    return run_command((), report.options) if report.kind is Kind.RUN else report.origin.command


def _settings(case: CaseReport) -> Mapping[str, object]:
    """Each setting that has a value, as JSON says it."""
    plain = msgspec.to_builtins(case.settings) if case.settings else {}
    return {name: value for name, value in plain.items() if value not in (None, "", [], ())}


def _values(verdict: Verdict) -> str:
    """`100 → 90 tokens/s`: of the baseline and of now."""
    before, now = (
        render_value(verdict.metric, value) for value in (verdict.expected, verdict.value)
    )
    number, _, unit = before.partition(" ")
    return f"{number if unit and now.endswith(f' {unit}') else before} → {now}"


def _short(verdict: Verdict) -> str:
    """The change, or the value where there is nothing to compare with."""
    if verdict.change_frac is not None:
        return f"{verdict.change_frac:+.1%}"
    return render_value(verdict.metric, verdict.value).partition(" ")[0]


def _frac(value: float | None) -> str:
    return NOTHING if value is None else f"{value:+.1%}"


def _drawing(chart: Chart) -> Markup:
    return Markup(chart.svg)  # noqa: S704 - Vega escaped it


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
    interval=render_interval,
    invalid=render_invalid,
    label=label_of,
    values=_values,
    short=_short,
    drawing=_drawing,
    since=since_when,
)
_TEMPLATES.globals.update(
    marks=MARKS, meanings=MEANINGS, spread_columns=PERCENTILES, legend=_LEGEND
)
