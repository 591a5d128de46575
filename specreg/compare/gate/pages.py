"""Pages: a gate's report in; Markdown, HTML, or a table for a terminal out."""

import html
from collections.abc import Iterable, Sequence

from jinja2 import Environment, PackageLoader, StrictUndefined
from rich.table import Table
from rich.text import Text

from specreg.compare.gate.break_even import BreakEven
from specreg.compare.gate.report import (
    CONTROL_HEADER,
    HEADER,
    Failed,
    GateReport,
    Section,
    facts,
    headline,
    how_in_words,
    legend,
    notes,
    sections,
    sides,
)
from specreg.compare.gate.texts import TextsJudged
from specreg.report.tables import render_table

_STYLES = {"PASS": "green", "IMPROVED": "bold green", "INCONCLUSIVE": "yellow", "INVALID": "yellow"}
_TEMPLATES = Environment(
    loader=PackageLoader("specreg.report"),  # in the style of a run's page
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_CONTROL = "The control: side A against itself"


def render_markdown(report: GateReport) -> str:
    """The page for a pull request or a chat."""
    decision = report.decision
    parts = [f"# {_plain(headline(report))}", _plain(facts(report))]
    parts += [_bullets(title, lines) for title, lines in _said(report)]
    parts += [_markdown_section(one, HEADER, "###") for one in sections(decision.judged)]
    if decision.control:
        parts.append(f"### {_CONTROL}")
        control = sections(decision.control)
        parts += [_markdown_section(one, CONTROL_HEADER, "####") for one in control]
    parts += [_bullets("Remarks", list(notes(decision.judged))), legend()]
    return "\n\n".join(filter(None, parts)) + "\n"


def render_html(report: GateReport) -> str:
    """The same page for a browser; it needs nothing but itself."""
    decision = report.decision
    return _TEMPLATES.get_template("gate.html.jinja").render(
        headline=headline(report),
        facts=facts(report),
        said=_said(report),
        judged=list(sections(decision.judged)),
        control=list(sections(decision.control)),
        header=HEADER,
        control_header=CONTROL_HEADER,
        notes=list(notes(decision.judged)),
        legend=legend(),
    )


def render_terminal(report: GateReport, *, width: int, color: bool) -> str:
    """The same for a terminal, the answer last: that is what stays on the screen."""
    decision = report.decision
    parts = [_terminal_table(sections(decision.judged), HEADER, width, color=color)]
    if decision.control:
        parts.append(_CONTROL)
        control = sections(decision.control)
        parts.append(_terminal_table(control, CONTROL_HEADER, width, color=color))
    parts += list(notes(decision.judged))
    for title, lines in _said(report):
        parts += [f"{title}:", *(f"  {line}" for line in lines)]
    return "\n".join((*parts, facts(report), headline(report)))


def _said(report: GateReport) -> Iterable[tuple[str, Sequence[str]]]:
    """Titles with their lines; those without any are left out."""
    decision = report.decision
    found = (
        ("Why", decision.reasons),
        ("What it would take", decision.takes),
        ("Sides", sides(report)),
        ("Answers", tuple(map(_of_texts, decision.texts))),
        ("How", tuple(how_in_words(report))),
        ("Break-even", tuple(map(_of_break_even, report.break_evens))),
        ("Launches that failed", tuple(map(_of_failed, report.failed))),
    )
    return tuple((title, lines) for title, lines in found if lines)


def _of_texts(one: TextsJudged) -> str:
    return f"{one.outcome}: {one.case_id}: {one.reason}"


def _of_break_even(one: BreakEven) -> str:
    ratios = ", ".join(f"{each.ratio:.2f}× at {each.concurrency}" for each in one.speedups)
    return f"{one.server} on side {one.arm}: {one.said}; {ratios}"


def _of_failed(one: Failed) -> str:
    return f"side {one.arm}, block {one.block}, {one.case_id}: {one.reason}"


def _bullets(title: str, lines: Sequence[str]) -> str:
    return (
        "\n".join((f"**{title}**", "", *(f"- {_plain(line)}" for line in lines))) if lines else ""
    )


def _plain(text: str) -> str:
    """A text that is data, not markup: what a server said may stand in it."""
    return html.escape(text, quote=False).replace("|", "\\|")


def _markdown_section(section: Section, header: Sequence[str], level: str) -> str:
    lines = [f"{level} {_plain(section.heading)}", ""]
    lines.append(f"| {' | '.join(header)} |")
    lines.append(f"| --- {'| ---: ' * (len(header) - 1)}|")
    lines += [f"| {' | '.join(map(_plain, row))} |" for row in section.rows]
    return "\n".join(lines)


def _terminal_table(
    parts: Iterable[Section], header: Sequence[str], width: int, *, color: bool
) -> str:
    shown = []
    for section in parts:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for place, name in enumerate(header):
            table.add_column(name, justify="right" if place else "left", no_wrap=True)
        for *cells, outcome in section.rows:
            table.add_row(*cells, Text(outcome, _STYLES.get(outcome, "red")))
        shown.append(f"{section.heading}\n{render_table(table, width, color=color)}")
    return "\n".join(shown)
