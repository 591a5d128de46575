"""Pages: a gate's report in; Markdown, HTML, or a table for a terminal out."""

import html
from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text

from specreg.gate.break_even import BreakEven
from specreg.gate.report import (
    HEADER,
    GateReport,
    Section,
    facts,
    headline,
    legend,
    notes,
    sections,
)
from specreg.gate.texts import TextsJudged
from specreg.report.terminal import render_table

_STYLES = {"PASS": "green", "IMPROVED": "bold green", "INCONCLUSIVE": "yellow", "INVALID": "yellow"}
_CSS = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td { padding: .2rem .6rem; text-align: right; border-bottom: 1px solid #8884 }
th:first-child, td:first-child { text-align: left }
.PASS, .IMPROVED { color: #1a7f37 } .REGRESSED, .WRONG { color: #cf222e; font-weight: bold }
.INCONCLUSIVE, .INVALID { color: #9a6700 }
@media (prefers-color-scheme: dark) { body { background: #111; color: #ddd } }
"""


def render_markdown(report: GateReport) -> str:
    """The page for a pull request or a chat."""
    decision = report.decision
    parts = [f"# {headline(report)}", facts(report)]
    parts += [_bullets(title, lines) for title, lines in _said(report)]
    parts += [_markdown_section(one, "###") for one in sections(decision.judged)]
    if decision.control:
        parts.append("### The control: side A against itself")
        parts += [_markdown_section(one, "####") for one in sections(decision.control)]
    parts += [_bullets("Remarks", list(notes(decision.judged))), legend()]
    return "\n\n".join(filter(None, parts)) + "\n"


def render_html(report: GateReport) -> str:
    """The same page for a browser; it needs nothing but itself."""
    decision = report.decision
    parts = [f"<h1>{_escaped(headline(report))}</h1>", f"<p>{_escaped(facts(report))}</p>"]
    parts += [_html_bullets(title, lines) for title, lines in _said(report)]
    parts += [_html_section(one) for one in sections(decision.judged)]
    if decision.control:
        parts.append("<h2>The control: side A against itself</h2>")
        parts += [_html_section(one) for one in sections(decision.control)]
    parts.append(_html_bullets("Remarks", list(notes(decision.judged))))
    parts.append(f"<p><small>{_escaped(legend())}</small></p>")
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8">'
        f"<title>{_escaped(headline(report))}</title><style>{_CSS}</style>\n"
        + "\n".join(filter(None, parts))
        + "\n</html>\n"
    )


def render_terminal(report: GateReport, *, width: int, color: bool) -> str:
    """The same for a terminal, the answer last: that is what stays on the screen."""
    decision = report.decision
    parts = [_terminal_table(sections(decision.judged), width, color=color)]
    if decision.control:
        parts.append("control: side A against itself")
        parts.append(_terminal_table(sections(decision.control), width, color=color))
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
        ("Sides", (f"A: {report.a.installed}", f"B: {report.b.installed}")),
        ("Answers", tuple(map(_of_texts, decision.texts))),
        ("Break-even", tuple(map(_of_break_even, report.break_evens))),
    )
    return tuple((title, lines) for title, lines in found if lines)


def _of_texts(one: TextsJudged) -> str:
    return f"{one.outcome}: {one.case_id}: {one.reason}"


def _of_break_even(one: BreakEven) -> str:
    ratios = ", ".join(f"{each.ratio:.2f}× at {each.concurrency}" for each in one.speedups)
    return f"{one.server} on side {one.arm}: {one.said}; {ratios}"


def _bullets(title: str, lines: Sequence[str]) -> str:
    return "\n".join((f"**{title}**", "", *(f"- {line}" for line in lines))) if lines else ""


def _markdown_section(section: Section, level: str) -> str:
    lines = [f"{level} {_titled(section)}", ""]
    lines.append(f"| {' | '.join(HEADER)} |")
    lines.append(f"| --- {'| ---: ' * (len(HEADER) - 1)}|")
    lines += [f"| {' | '.join(row)} |" for row in section.rows]
    return "\n".join(lines)


def _titled(section: Section) -> str:
    return f"{section.title}{f': worse by {section.cause}' if section.cause else ''}"


def _escaped(text: str) -> str:
    return html.escape(text)


def _html_bullets(title: str, lines: Sequence[str]) -> str:
    if not lines:
        return ""
    items = "".join(f"<li>{_escaped(line)}</li>" for line in lines)
    return f"<h3>{_escaped(title)}</h3><ul>{items}</ul>"


def _html_section(section: Section) -> str:
    head = "".join(f"<th>{_escaped(name)}</th>" for name in HEADER)
    rows = "".join(
        f'<tr class="{_escaped(row[-1])}">'
        + "".join(f"<td>{_escaped(cell)}</td>" for cell in row)
        + "</tr>"
        for row in section.rows
    )
    return f"<h3>{_escaped(_titled(section))}</h3><table><tr>{head}</tr>{rows}</table>"


def _terminal_table(parts: Iterable[Section], width: int, *, color: bool) -> str:
    shown = []
    for section in parts:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for place, name in enumerate(HEADER):
            table.add_column(name, justify="right" if place else "left", no_wrap=True)
        for *cells, outcome in section.rows:
            table.add_row(*cells, Text(outcome, _STYLES.get(outcome, "red")))
        shown.append(f"{_titled(section)}\n{render_table(table, width, color=color)}")
    return "\n".join(shown)
