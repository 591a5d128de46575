"""The summary of a run as Markdown, for a pull request or a job: what fails first, then all."""

import re
from collections.abc import Iterator, Sequence

from specreg.report.document import Report
from specreg.report.headline import MARKS, answers_of, moved_alone, notes_of
from specreg.report.tables import time_rows
from specreg.report.terminal import format_number, next_of
from specreg.verdicts.judge import Verdict

_MOST_CHARS = 60_000
"""GitHub takes 65,536 characters of a comment."""
_MOST_ASIDE_CHARS = 8_000
"""Of the commands, and of all that is said beside the tables."""
_LEAST_CHARS = 500
"""Of the last table, if no row of it fits."""
_MOST_TEXT_CHARS = 600
"""Of one text that others wrote."""
_FOLDED = "\n<details><summary>All verdicts</summary>\n{}\n</details>\n"
_TIMES = "\n<details><summary>Where the time went</summary>\n\n{}\n</details>\n"
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "&#124;"}
# GitHub finds names and numbers in what is already plain text, where a backslash stops nothing.
_APART = {"@": "@\u200b", "#": "\\#\u200b"}
# A line between letters, as in `draft_model`, is no markup, and one that searches for it finds it.
_MARKUP = re.compile(r"[\\`*{}\[\]()#!~$^:@|<>&]|(?<![^\W_])_|_(?![^\W_])|(?<=www)\.")


def render_markdown(report: Report, *, wrong: str = "") -> str:
    """The summary, 60,000 characters at most; rows that don't fit are counted.

    Args:
        report: of the run.
        wrong: what couldn't be read of it, empty where all could.
    """
    head = "\n".join((*_head(report, wrong), ""))
    foot = f"{_times(report)}\n{_origin(report)}\n"
    verdicts = report.run.verdicts
    failing = [verdict for verdict in verdicts if verdict.fails]
    room_chars = _MOST_CHARS - len(head) - len(foot) - _LEAST_CHARS
    first = _table("why", [_row(one, _why(one)) for one in failing], room_chars)
    rows = [_row(one, _interval(one)) for one in verdicts]
    room_chars += _LEAST_CHARS - len(first) - len(_FOLDED)
    rest = _FOLDED.format(_table("between; tolerated", rows, room_chars)) if rows else ""
    return head + first + rest + foot


def _times(report: Report) -> str:
    """A table of where the time went; empty of a run that doesn't know."""
    if report.time is None or not report.time.pairs:
        return ""
    head, *rows = time_rows(report.time)
    rule = ("---", *("---:" for _ in head[1:]))
    lines = [f"| {' | '.join(row)} |" for row in (head, rule, *rows)]
    return _TIMES.format(_fitting(lines, _MOST_ASIDE_CHARS).rstrip("\n"))


def _table(last: str, rows: Sequence[str], room_chars: int) -> str:
    """A table of verdicts with as many rows as fit; empty without any."""
    head = (
        f"\n| case | metric | outcome | baseline | now | change | {last} |\n"
        "| --- | --- | --- | ---: | ---: | ---: | --- |\n"
    )
    return head + _fitting(rows, room_chars - len(head)) if rows else ""


def _head(report: Report, wrong: str) -> Iterator[str]:
    run = report.run
    yield f"## specreg: tier {_plain(run.tier)} on {_plain(run.environment)}"
    yield ""
    if report.gate is not None:
        yield f"**{_plain(report.gate.headline)}**\n"
    for one in answers_of(run):
        yield f"- **{MARKS[one.tone]} {one.subject}:** {_plain(one.text)}"
    if wrong:
        yield f"\n> Not whole: {_plain(wrong)}"
    told = (*notes_of(run), moved_alone(report), *run.skipped.values(), *report.remarks)
    lines = [f"- Note: {_plain(text)}" for text in told if text]
    if lines:
        yield "\n" + _fitting(lines, _MOST_ASIDE_CHARS).rstrip("\n")
    next_steps = next_of(report)
    if len(next_steps) > _MOST_ASIDE_CHARS:
        next_steps = "the commands are too long for here: report.html has them"
    if next_steps:
        yield "\n```\n" + next_steps.replace("```", "'''") + "\n```"


def _fitting(lines: Sequence[str], room_chars: int) -> str:
    """As many whole lines as fit, and how many more there are."""
    kept = 0
    # What is said of the rest takes a row too.
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


def _row(verdict: Verdict, last: str) -> str:
    cells = (
        _plain(verdict.case_id),
        verdict.metric,
        f"**{verdict.outcome}**" if verdict.fails else str(verdict.outcome),
        format_number(verdict.expected),
        format_number(verdict.value),
        "–" if verdict.change_frac is None else f"{verdict.change_frac:+.1%}",
        _plain(last),
    )
    return f"| {' | '.join(cells)} |"


def _why(verdict: Verdict) -> str:
    return "; ".join(filter(None, (verdict.cause, verdict.reason)))


def _interval(verdict: Verdict) -> str:
    if verdict.low_frac is None or verdict.high_frac is None:
        return ""
    bounds = f"{verdict.low_frac:+.1%} and {verdict.high_frac:+.1%}"
    return bounds + (f"; {verdict.tolerance_frac:.1%}" if verdict.tolerance_frac else "")


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
    return f"<sub>{_plain('; '.join(filter(None, parts)))}</sub>"


def _plain(text: str) -> str:
    """A text that is data, not markup, on one line: what a server said may stand in it."""
    words = " ".join(text.split())
    if len(words) > _MOST_TEXT_CHARS:
        words = words[: _MOST_TEXT_CHARS - 1] + "…"
    return _MARKUP.sub(lambda found: _inert(found[0]), words)


def _inert(mark: str) -> str:
    return _ENTITIES.get(mark) or _APART.get(mark) or f"\\{mark}"
