"""The summary of a document as Markdown, for a pull request or a job; failures first."""

import re
from collections.abc import Iterator, Sequence

from specreg.report.document import Report
from specreg.report.summary import MARKS, answers_of, notes_of, title_of
from specreg.report.tables import NOTHING, format_number, render_interval, time_rows
from specreg.report.terminal import columns_of, next_of
from specreg.verdicts.judge import Verdict

_MOST_CHARS = 60_000
"""GitHub takes 65,536 characters of a comment."""
_MOST_ASIDE_CHARS = 8_000
"""Of the commands, of the notes, and of where the time went."""
_LEAST_CHARS = 500
"""Of the last table, if no row of it fits."""
_MOST_TEXT_CHARS = 600
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
    """The summary, 60,000 characters at most; rows that don't fit are counted."""
    now, before = columns_of(report)
    columns = ("case", "metric", "outcome", before, "now" if now == "value" else now, "change")
    head = "\n".join((*_head(report), ""))
    times = _table(time_rows(report.time) if report.time else (), _MOST_ASIDE_CHARS)
    foot = _folded("Where the time went", times) + _origin(report)
    room_chars = _MOST_CHARS - len(head) - len(foot) - _LEAST_CHARS
    failing = [
        _row(one, _joined(one.cause, one.reason)) for one in report.run.verdicts if one.fails
    ]
    first = _table([(*columns, "why"), *failing], room_chars)
    rows = [_row(one, _interval(one)) for one in report.run.verdicts]
    room_chars += _LEAST_CHARS - len(first) - len(_folded("All verdicts", " "))
    rest = _table([(*columns, "between; tolerated"), *rows], room_chars)
    return head + first + _folded("All verdicts", rest) + foot


def _head(report: Report) -> Iterator[str]:
    yield f"## specreg: {_plain(title_of(report))}\n"
    for one in answers_of(report):
        yield f"- **{MARKS[one.tone]} {_plain(one.subject)}:** {_plain(one.text)}"
    notes = (*notes_of(report), *report.run.skipped.values(), *report.remarks)
    if notes:
        lines = [f"- Note: {_plain(text)}" for text in notes]
        yield "\n" + _fitting(lines, _MOST_ASIDE_CHARS).rstrip("\n")
    next_steps = next_of(report)
    if len(next_steps) > _MOST_ASIDE_CHARS:
        next_steps = "the commands are too long for here: report.html has them"
    if next_steps:
        yield "\n```\n" + next_steps.replace("```", "'''") + "\n```"


def _table(rows: Sequence[Sequence[str]], room_chars: int) -> str:
    """A table with as many rows as fit, its head among them; empty without further ones."""
    if len(rows) < 2:  # noqa: PLR2004 - the head and a row
        return ""
    # Numbers are set right.
    rule = ("---:" if cell and cell[0] in "+-–0123456789" else "---" for cell in rows[1])
    head, line, *lines = (f"| {' | '.join(row)} |" for row in (rows[0], rule, *rows[1:]))
    top = f"\n{head}\n{line}\n"
    return top + _fitting(lines, room_chars - len(top))


def _folded(title: str, text: str) -> str:
    return f"\n<details><summary>{title}</summary>\n{text}\n</details>\n" if text else ""


def _fitting(lines: Sequence[str], room_chars: int) -> str:
    """As many whole lines as fit, and how many more there are."""
    more = "\n… and {} more; `report.json` of the run has them.\n"
    left_chars = room_chars - len(more.format(len(lines)))
    kept = []
    for line in lines:
        left_chars -= len(line) + 1
        if left_chars < 0:
            break
        kept.append(f"{line}\n")
    rest = len(lines) - len(kept)
    return "".join(kept) + (more.format(rest) if rest else "")


def _row(verdict: Verdict, last: str) -> Sequence[str]:
    return (
        _plain(verdict.case_id),
        verdict.metric,
        f"**{verdict.outcome}**" if verdict.fails else str(verdict.outcome),
        format_number(verdict.expected),
        format_number(verdict.value),
        NOTHING if verdict.change_frac is None else f"{verdict.change_frac:+.1%}",
        _plain(last),
    )


def _interval(verdict: Verdict) -> str:
    if verdict.low_frac is None:
        return ""
    tolerated = f"{verdict.tolerance_frac:.1%}" if verdict.tolerance_frac else ""
    return _joined(render_interval(verdict), tolerated)


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
