"""The summary of a document as Markdown, for a pull request or a job; failures first."""

import re
from collections.abc import Iterator, Sequence

from specreg.report.document import Report
from specreg.report.summary import MARKS, answers_of, notes_of, title_of
from specreg.report.tables import format_number, render_change, render_interval
from specreg.report.terminal import columns_of, next_of
from specreg.verdicts.judge import Verdict

_MOST_FAILED, _MOST_ROWS, _MOST_NOTES = 40, 100, 20
"""GitHub takes 65,536 characters of a comment."""
_MOST_NEXT_CHARS = 8_000
_MOST_TEXT_CHARS = 300
"""Of one text that others wrote."""
# GitHub finds names and numbers in what is already plain text, where a backslash stops nothing.
_INERT = {
    "&": "&amp;",
    "<": "&lt;",
    ">": "&gt;",
    "|": "&#124;",
    "@": "@\u200b",
    "#": "\\#\u200b",
}
# A line between letters, as in `draft_model`, is no markup, and one that searches for it finds it.
_MARKUP = re.compile(r"[\\`*{}\[\]()#!~$^:@|<>&]|(?<![^\W_])_|_(?![^\W_])|(?<=www)\.")


def render_markdown(report: Report) -> str:
    """The summary, as much as GitHub takes; rows that are left out are counted."""
    now, before = columns_of(report)
    columns = ("case", "metric", "outcome", before, "now" if now == "value" else now, "change")
    verdicts = report.run.verdicts
    failing = [_row(one, _joined(one.cause, one.reason)) for one in verdicts if one.fails]
    every = [_row(one, _interval(one)) for one in verdicts]
    parts = (
        *_head(report),
        _table([(*columns, "why"), *failing], _MOST_FAILED),
        _folded("All verdicts", _table([(*columns, "interval; tolerated"), *every], _MOST_ROWS)),
        _origin(report),
    )
    return "\n".join(filter(None, parts))


def _head(report: Report) -> Iterator[str]:
    yield f"## specreg: {_plain(title_of(report))}\n"
    for one in answers_of(report):
        yield f"- **{MARKS[one.tone]} {_plain(one.subject)}:** {_plain(one.text)}"
    notes = (*notes_of(report), *report.run.skipped.values(), *report.remarks)
    if notes:
        yield "\n" + _first([f"- Note: {_plain(text)}" for text in notes], _MOST_NOTES)
    next_steps = next_of(report)
    if len(next_steps) > _MOST_NEXT_CHARS:
        next_steps = "the commands are too long for here: report.html has them"
    if next_steps:
        yield "\n```\n" + next_steps.replace("```", "'''") + "\n```"


def _table(rows: Sequence[Sequence[str]], most: int) -> str:
    """A table with so many rows at most below its head; empty without any."""
    if len(rows) < 2:  # noqa: PLR2004 - the head and a row
        return ""
    # Numbers are set right.
    rule = ("---:" if cell and cell[0] in "+-–0123456789" else "---" for cell in rows[1])
    head, line, *lines = (f"| {' | '.join(row)} |" for row in (rows[0], rule, *rows[1:]))
    return f"\n{head}\n{line}\n{_first(lines, most)}"


def _folded(title: str, text: str) -> str:
    return f"\n<details><summary>{title}</summary>\n{text}\n\n</details>" if text else ""


def _first(lines: Sequence[str], most: int) -> str:
    """So many lines, and how many more there are."""
    more = f"\n… and {len(lines) - most} more; `report.json` of the run has them."
    return "\n".join((*lines[:most], *([more] if len(lines) > most else [])))


def _row(verdict: Verdict, last: str) -> Sequence[str]:
    return (
        _plain(verdict.case_id),
        verdict.metric,
        f"**{verdict.outcome}**" if verdict.fails else str(verdict.outcome),
        format_number(verdict.expected),
        format_number(verdict.value),
        render_change(verdict.change_frac),
        _plain(last),
    )


def _interval(verdict: Verdict) -> str:
    if verdict.low_frac is None:
        return ""
    tolerated = f"{verdict.tolerance_frac:.1%}" if verdict.tolerance_frac else ""
    return _joined(render_interval(verdict.low_frac, verdict.high_frac), tolerated)


def _origin(report: Report) -> str:
    origin = report.origin
    versions = dict.fromkeys(
        f"{case.engine} {case.figures.engine_version}" for case in report.cases if case.figures
    )
    text = _joined(
        f"run {report.run.run}",
        ", ".join(versions),
        origin.specreg_version and f"specreg {origin.specreg_version}",
        origin.commit and f"commit {origin.commit}",
    )
    return f"\n<sub>{_plain(text)}</sub>\n"


def _joined(*parts: str) -> str:
    return "; ".join(filter(None, parts))


def _plain(text: str) -> str:
    """A text that is data, not markup, on one line: what a server said may stand in it."""
    words = " ".join(text.split())
    if len(words) > _MOST_TEXT_CHARS:
        words = words[: _MOST_TEXT_CHARS - 1] + "…"
    return _MARKUP.sub(lambda found: _INERT.get(found[0], f"\\{found[0]}"), words)
