"""The summary of a run as Markdown, for a pull request or a job: what fails first, then all."""

from collections.abc import Iterator, Sequence

from specreg.report.document import Report
from specreg.report.terminal import format_number, render_next
from specreg.verdict import Verdict

_MOST_CHARS = 60_000
"""GitHub takes 65,536 characters of a comment."""
_HARMLESS = {"&": "&amp;", "<": "&lt;", "|": "\\|", "`": "'", "@": "@\u200b"}
_CUT = "\n\n… cut off here; `report.json` of the run has the rest.\n"


def render_markdown(report: Report, *, wrong: str = "") -> str:
    """The summary, 60,000 characters at most.

    Args:
        report: of the run.
        wrong: what couldn't be read of it, empty where all could.
    """
    text = "\n".join(_lines(report, wrong)) + "\n"
    return text if len(text) <= _MOST_CHARS else text[: _MOST_CHARS - len(_CUT)] + _CUT


def _lines(report: Report, wrong: str) -> Iterator[str]:
    run = report.run
    failing = [verdict for verdict in run.verdicts if verdict.fails]
    yield f"## specreg: tier {_plain(run.tier)} on {_plain(run.environment)}"
    yield ""
    yield _headline(run.verdicts, failing)
    if wrong:
        yield f"\n> {_plain(wrong)}"
    if failing:
        yield from ("", "| case | metric | outcome | baseline | now | change | why |")
        yield "| --- | --- | --- | ---: | ---: | ---: | --- |"
        for verdict in failing:
            yield _row(verdict, "; ".join(filter(None, (verdict.cause, verdict.reason))))
        next_steps = render_next(run.verdicts, set(report.tier_cases))
        if next_steps:
            yield from ("", "```", next_steps.replace("```", "'''"), "```")
    if run.verdicts:
        yield from ("", "<details><summary>All verdicts</summary>", "")
        yield "| case | metric | outcome | baseline | now | change | between |"
        yield "| --- | --- | --- | ---: | ---: | ---: | --- |"
        for verdict in run.verdicts:
            yield _row(verdict, _interval(verdict))
        yield from ("", "</details>")
    yield from ("", _origin(report))


def _headline(verdicts: Sequence[Verdict], failing: Sequence[Verdict]) -> str:
    if not verdicts:
        return "**Nothing was judged.**"
    if failing:
        return f"**{len(failing)} of {len(verdicts)} verdicts need a look.**"
    return f"**All {len(verdicts)} verdicts hold.**"


def _row(verdict: Verdict, last: str) -> str:
    change = "–" if verdict.change_frac is None else f"{verdict.change_frac:+.1%}"
    cells = (
        _plain(verdict.case_id),
        verdict.metric,
        f"**{verdict.outcome}**" if verdict.fails else str(verdict.outcome),
        format_number(verdict.expected),
        format_number(verdict.value),
        change,
        _plain(last),
    )
    return f"| {' | '.join(cells)} |"


def _interval(verdict: Verdict) -> str:
    if verdict.low_frac is None or verdict.high_frac is None:
        return ""
    return f"{verdict.low_frac:+.1%} and {verdict.high_frac:+.1%}"


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
    """A text that is data, not markup: what a server said may stand in it."""
    for mark, harmless in (
        ("&", "&amp;"),
        ("<", "&lt;"),
        ("|", "\\|"),
        ("`", "'"),
        ("@", "@\u200b"),
    ):
        text = text.replace(mark, harmless)
    return " ".join(text.split())
