"""The summary of a document as Markdown, for a pull request or a job; failures first."""

import re
from collections.abc import Iterable, Iterator, Sequence

from specreg.report.document import Report
from specreg.report.summary import (
    MARKS,
    answers_of,
    arm_notes_of,
    notes_of,
    title_of,
)
from specreg.report.tables import format_number, render_interval, time_rows
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
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "&#124;"}
# GitHub finds names and numbers in what is already plain text, where a backslash stops nothing.
_APART = {"@": "@\u200b", "#": "\\#\u200b"}
# A line between letters, as in `draft_model`, is no markup, and one that searches for it finds it.
_MARKUP = re.compile(r"[\\`*{}\[\]()#!~$^:@|<>&]|(?<![^\W_])_|_(?![^\W_])|(?<=www)\.")


def render_markdown(report: Report) -> str:
    """The summary, 60,000 characters at most; rows that don't fit are counted."""
    now, before = columns_of(report)
    columns = ("case", "metric", "outcome", before, "now" if now == "value" else now, "change")
    head = "\n".join((*_head(report), ""))
    times = time_rows(report.time) if report.time and report.time.pairs else ()
    foot = _folded("Where the time went", _table(times, _MOST_ASIDE_CHARS)) + _origin(report)
    room_chars = _MOST_CHARS - len(head) - len(foot) - _LEAST_CHARS
    failing = [_row(one, _why(one)) for one in report.run.verdicts if one.fails]
    first = _table([(*columns, "why"), *failing], room_chars)
    rows = [_row(one, _interval(one)) for one in report.run.verdicts]
    room_chars += _LEAST_CHARS - len(first) - len(_folded("All verdicts", " "))
    rest = _table([(*columns, "between; tolerated"), *rows], room_chars)
    return head + first + _folded("All verdicts", rest) + foot


def _head(report: Report) -> Iterator[str]:
    yield f"## specreg: {_plain(title_of(report))}\n"
    for one in answers_of(report):
        yield f"- **{MARKS[one.tone]} {_plain(one.subject)}:** {_plain(one.text)}"
    notes = (
        *arm_notes_of(report),
        *notes_of(report),
        *report.run.skipped.values(),
        *report.remarks,
    )
    lines = [f"- Note: {_plain(text)}" for text in notes if text]
    if lines:
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
    kept = 0
    # The line that counts the rest takes room too.
    room_chars -= len(_more(len(lines)))
    for line in lines:
        room_chars -= len(line) + 1
        if room_chars < 0:
            break
        kept += 1
    rest = len(lines) - kept
    return "".join(f"{line}\n" for line in lines[:kept]) + (_more(rest) if rest else "")


def _more(rest: int) -> str:
    return f"\n… and {rest} more; `report.json` of the run has them.\n"


def _row(verdict: Verdict, last: str) -> Sequence[str]:
    return (
        _plain(verdict.case_id),
        verdict.metric,
        f"**{verdict.outcome}**" if verdict.fails else str(verdict.outcome),
        format_number(verdict.expected),
        format_number(verdict.value),
        "–" if verdict.change_frac is None else f"{verdict.change_frac:+.1%}",
        _plain(last),
    )


def _why(verdict: Verdict) -> str:
    return _joined((verdict.cause, verdict.reason))


def _interval(verdict: Verdict) -> str:
    if verdict.low_frac is None:
        return ""
    tolerated = f"{verdict.tolerance_frac:.1%}" if verdict.tolerance_frac else ""
    return _joined((render_interval(verdict), tolerated))


def _origin(report: Report) -> str:
    origin = report.origin
    versions = dict.fromkeys(
        f"{case.engine} {case.figures.engine_version}" for case in report.cases if case.figures
    )
    parts = (
        f"run {report.run.run}",
        ", ".join(versions),
        origin.specreg_version and f"specreg {origin.specreg_version}",
        origin.commit and f"commit {origin.commit}",
    )
    return f"\n<sub>{_plain(_joined(parts))}</sub>\n"


def _joined(parts: Iterable[str]) -> str:
    return "; ".join(filter(None, parts))


def _plain(text: str) -> str:
    """A text that is data, not markup, on one line: what a server said may stand in it."""
    words = " ".join(text.split())
    if len(words) > _MOST_TEXT_CHARS:
        words = words[: _MOST_TEXT_CHARS - 1] + "…"
    return _MARKUP.sub(lambda found: _inert(found[0]), words)


def _inert(mark: str) -> str:
    return _ENTITIES.get(mark) or _APART.get(mark) or f"\\{mark}"
