"""The page of a document: one HTML file that needs nothing else."""

from collections.abc import Mapping, Sequence

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from specreg.core.commands import install_command, run_command
from specreg.measurement.validity import render_invalid
from specreg.report.charts import can_draw, charts_of, speed_over_load
from specreg.report.document import Report, Tone
from specreg.report.failures import failing_by_case, sentence_of, since_when
from specreg.report.summary import MARKS, answers_of, notes_of, title_of, tone_of
from specreg.report.tables import (
    PERCENTILES,
    axis_of,
    format_number,
    label_of,
    render_change,
    render_interval,
    spreads_of,
)
from specreg.report.terminal import columns_of, next_of, render_notes
from specreg.verdicts.judge import Outcome, Verdict

MEANINGS: Mapping[Outcome, tuple[str, str]] = {
    Outcome.REGRESSED: ("▼", "worse for sure, by more than is tolerated, on two launches"),
    Outcome.WRONG: ("✗", "speculation changed a token, or took other steps than its models give"),
    Outcome.INVALID: ("⚠", "the meter or the machine was not in order: the figures mean nothing"),
    Outcome.INCONCLUSIVE: ("?", "the measurements can't tell"),
    Outcome.NO_BASELINE: ("∅", "nothing was recorded to compare with"),
    Outcome.NOT_COMPARABLE: ("≠", "recorded on another kind of machine"),
    Outcome.IMPROVED: ("▲", "better for sure, by more than is tolerated"),
    Outcome.MEASURED: ("•", "measured, not judged"),
    Outcome.PASS: ("✓", "proven to lie within what is tolerated"),
}
"""By outcome its symbol and what it means, the worst first."""


def render_page(report: Report) -> str:
    """The page: what fails comes first."""
    run, is_run = report.run, not report.arms
    by_case: dict[str, list[Verdict]] = {}
    for verdict in run.verdicts:
        by_case.setdefault(verdict.case_id, []).append(verdict)
    known = {case.case_id: case for case in report.cases}
    red = failing_by_case(run.verdicts)
    columns = list(dict.fromkeys(_column(verdict.metric) for verdict in run.verdicts))
    again = run_command((), report.origin.options) if is_run else report.origin.command
    held = (one for one in run.verdicts if not one.fails)
    return _TEMPLATES.get_template("page.html.jinja").render(
        report=report,
        run=run,
        is_run=is_run,
        title=title_of(report),
        names=columns_of(report),
        answers=answers_of(report),
        open=list(notes_of(report)),
        red=dict(sorted(red.items(), key=lambda item: tone_of(item[1]) is not Tone.BAD)),
        by_case=by_case,
        known=known,
        columns=columns,
        rows=[(case_id, _worst(found, columns)) for case_id, found in by_case.items()],
        loads=list(speed_over_load(report.cases)) if can_draw() else [],
        lacking="" if can_draw() else install_command("report"),
        notes=render_notes(held, run.environment if is_run else None),
        next_steps=next_of(report) or f"nothing needs to be done; the same again:\n  {again}",
        cases=[known[name] for name in dict.fromkeys((*red, *by_case, *known)) if name in known],
    )


def _column(metric: str) -> str:
    """A metric's column in the overview; all positions share one."""
    return "acceptance by position" if metric.startswith("acceptance_pos") else axis_of(metric)


def _worst(verdicts: Sequence[Verdict], columns: Sequence[str]) -> Sequence[Verdict | None]:
    """The worst verdict of a case for each column: by its outcome, then by its change."""
    order = list(MEANINGS)
    ranked = sorted(verdicts, key=lambda v: (order.index(v.outcome), v.change_frac or 0.0))
    worst = {_column(verdict.metric): verdict for verdict in reversed(ranked)}
    return [worst.get(column) for column in columns]


_TEMPLATES = Environment(
    loader=PackageLoader("specreg.report"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters.update(
    number=format_number,
    change=render_change,
    interval=lambda verdict: render_interval(verdict.low_frac, verdict.high_frac),
    charts=lambda case: list(charts_of(case)) if can_draw() else [],
    invalid=render_invalid,
    label=label_of,
    sentence=sentence_of,
    drawing=lambda chart: Markup(chart.svg),  # noqa: S704 - Vega escaped it
    settings=lambda case: msgspec.to_builtins(case.settings) or {},
    since=since_when,
    spreads=lambda case: list(spreads_of(case.figures)) if case.figures else [],
    tone=tone_of,
)
_TEMPLATES.globals.update(marks=MARKS, meanings=MEANINGS, spread_columns=PERCENTILES)
