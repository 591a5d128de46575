"""The page of a document, one HTML file that needs nothing else, and its summary as Markdown."""

import re
from collections.abc import Sequence

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from specreg.core.commands import install_command, run_command
from specreg.core.readable import readable_block, readable_line
from specreg.core.values import readable_values
from specreg.engines.launch_facts import known_facts
from specreg.measurement.metrics import render_invalid
from specreg.report.charts import can_draw, charts_of, gains_over_load
from specreg.report.document import Report, Tone, last_words
from specreg.report.failures import by_case, changes_since_baseline, sentence_of, since_when
from specreg.report.summary import MARKS, OUTCOMES, answers_of, notes_of, title_of, tone_of
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
from specreg.verdicts.verdict import Verdict

_MOST_NEXT_CHARS = 8_000
_MOST_TEXT_CHARS = 300
"""Of one text that others wrote."""
# GitHub finds names and numbers in what is already plain text, where a backslash stops nothing.
_INERT = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "&#124;", "@": "@\u200b", "#": "\\#\u200b"}
# A line between letters, as in `draft_model`, is no markup, and one that searches for it finds it.
_MARKUP = re.compile(r"[\\`*{}\[\]()#!~$^:@|<>&]|(?<![^\W_])_|_(?![^\W_])|(?<=www)\.")


def render_page(report: Report, in_progress: str = "") -> str:
    """The page: what fails comes first.

    Of a run that goes on `in_progress` says which case it is at, and when: the page then reloads
    itself and has no charts, which a process that measures doesn't draw.
    """
    report = readable_values(report)
    draws = can_draw() and not in_progress
    run, is_run, verdicts = report.run, not report.arms, last_words(report.run.verdicts)
    found, red = by_case(verdicts), by_case(one for one in verdicts if one.fails)
    known = {case.case_id: case for case in report.cases}
    columns = list(dict.fromkeys(_column(verdict.metric) for verdict in verdicts))
    again = run_command((), report.origin.options) if is_run else report.origin.command
    held = (one for one in verdicts if not one.fails)
    return _TEMPLATES.get_template("page.html.jinja").render(
        report=report,
        run=run,
        is_run=is_run,
        title=title_of(report),
        names=columns_of(report),
        charted=[columns_of(report)] if report.arms else [],
        answers=answers_of(report),
        open=[] if in_progress else list(notes_of(report)),
        red=dict(sorted(red.items(), key=lambda item: tone_of(item[1]) is not Tone.BAD)),
        by_case=found,
        found={one.outcome for one in verdicts},
        known=known,
        columns=columns,
        rows=[(case_id, _worst(every, columns)) for case_id, every in found.items()],
        in_progress=in_progress,
        draws=draws,
        loads=list(gains_over_load(report.cases)) if draws else [],
        lacking="" if draws or in_progress else install_command("report"),
        notes=render_notes(held, run.environment if is_run else None),
        next_steps=next_of(report) or f"nothing needs to be done; the same again:\n  {again}",
        cases=[known[name] for name in dict.fromkeys((*red, *found, *known)) if name in known],
    )


def render_markdown(report: Report) -> str:
    """The summary for a pull request or a job, as much as GitHub takes; failures first."""
    report = readable_values(report)
    run, origin, verdicts = report.run, report.origin, last_words(report.run.verdicts)
    engines = (
        f"{case.engine} {case.figures.engine_version}" for case in report.cases if case.figures
    )
    made_of = (
        f"run {run.run}",
        ", ".join(dict.fromkeys(engines)),
        origin.specreg_version and f"specreg {origin.specreg_version}",
        origin.commit and f"commit {origin.commit}",
    )
    next_steps = next_of(report)
    if len(next_steps) > _MOST_NEXT_CHARS:
        next_steps = "the commands are too long for here: report.html has them"
    text = _MARKDOWN.get_template("report.md.jinja").render(
        title=title_of(report),
        names=columns_of(report),
        answers=answers_of(report),
        notes=[*notes_of(report), *run.skipped.values(), *report.remarks],
        next_steps=Markup(next_steps.replace("```", "'''")),  # noqa: S704 - ours, in a block
        failing=[one for one in verdicts if one.fails],
        verdicts=verdicts,
        why=lambda one: _joined(str(one.cause or ""), one.explanation),
        interval=lambda one: (
            ""
            if one.comparison.low_frac is None
            else _joined(_interval_of(one), one.comparison.tolerated)
        ),
        origin=_joined(*made_of),
    )
    return f"{text}\n"


def _column(metric: str) -> str:
    """A metric's column in the overview; all positions share one."""
    return "acceptance by position" if metric.startswith("acceptance_pos") else axis_of(metric)


def _worst(verdicts: Sequence[Verdict], columns: Sequence[str]) -> Sequence[Verdict | None]:
    """The worst verdict of a case for each column: by its outcome, then by its change."""
    order = list(OUTCOMES)
    ranked = sorted(
        verdicts, key=lambda v: (order.index(v.outcome), v.comparison.change_frac or 0.0)
    )
    worst = {_column(verdict.metric): verdict for verdict in reversed(ranked)}
    return [worst.get(column) for column in columns]


def _interval_and_tolerance(verdict: Verdict) -> str:
    """Render the interval of a change and what is tolerated; empty without an interval."""
    if verdict.comparison.low_frac is None:
        return ""
    return _joined(_interval_of(verdict), verdict.comparison.tolerated)


def _interval_of(verdict: Verdict) -> str:
    return render_interval(verdict.comparison.low_frac, verdict.comparison.high_frac)


def _readable(value: object) -> object:
    """Return what the page shows of a value; a drawing holds texts too, and stays markup."""
    if isinstance(value, Markup):
        return Markup(readable_block(value))  # noqa: S704 - it is markup already
    return readable_block(str(value))


def _joined(*parts: str) -> str:
    return "; ".join(filter(None, parts))


def _plain(value: object) -> Markup:
    """A text that is data, not Markdown, on one line: what a server said may stand in it."""
    if isinstance(value, Markup):
        return value
    words = readable_line(str(value), _MOST_TEXT_CHARS)
    plain = _MARKUP.sub(lambda found: _INERT.get(found[0], f"\\{found[0]}"), words)
    return Markup(plain)  # noqa: S704 - that is what makes it so


_TEMPLATES = Environment(
    loader=PackageLoader("specreg.report"),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=_readable,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters.update(
    number=format_number,
    change=render_change,
    interval=_interval_of,
    changes=changes_since_baseline,
    charts=lambda case, *others: list(charts_of(case, *others)),
    invalid=render_invalid,
    label=label_of,
    sentence=sentence_of,
    facts=lambda case: list(known_facts(case.figures.facts)) if case.figures else [],
    drawing=lambda chart: Markup(chart.svg),  # noqa: S704 - Vega escaped it
    settings=lambda case: msgspec.to_builtins(case.settings) or {},
    since=since_when,
    spreads=lambda case: list(spreads_of(case.figures)) if case.figures else [],
    tone=tone_of,
)
_TEMPLATES.globals.update(marks=MARKS, outcomes=OUTCOMES, spread_columns=PERCENTILES)
_MARKDOWN = _TEMPLATES.overlay(finalize=_plain)
