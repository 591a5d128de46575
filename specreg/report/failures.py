"""What failed, why, and since when: a block of text for each case."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specreg.core.readable import readable_block, readable_line
from specreg.core.values import readable_values
from specreg.report.document import CaseReport, began_at, flat_fields
from specreg.report.tables import label_of, render_value
from specreg.verdicts.history import RunRecord, comparable
from specreg.verdicts.verdict import Outcome, Verdict

_VALUES_SHOWN = {"reprfuncargs", "reprlocals"}
"""What pytest calls the values of a function's arguments and variables in a traceback."""
_LASTING = {Outcome.REGRESSED, Outcome.WRONG, Outcome.INCONCLUSIVE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What pytest shows of a failed test in place of a traceback; its summary, `message` alone."""

    message: str
    text: str

    @classmethod
    def of(cls, text: str, message: str = "") -> "Failure":
        """Return a failure that is fit to be shown; its message is its first line by default."""
        shown = readable_block(text)
        return cls(message=readable_line(message or shown.partition("\n")[0]), text=shown)

    @property
    def reprcrash(self) -> "Failure":
        """Where pytest looks for the message."""
        return self

    def toterminal(self, writer: Any) -> None:  # noqa: ANN401 - pytest's, which reports don't import
        """Write it; having this, a worker of pytest-xdist sends it as its text."""
        writer.line(self.text)

    def __str__(self) -> str:
        return self.text


def make_traceback_readable(traceback: Any) -> Any:  # noqa: ANN401 - pytest's, of several types
    """Make what pytest shows of an exception fit to be shown, in place, and return it.

    It has no values of arguments and variables: they may be secrets, and pytest cuts their middle
    out, so that they aren't recognised.
    """
    if isinstance(traceback, str):
        return readable_block(traceback)
    if isinstance(traceback, list | tuple):
        return type(traceback)(map(make_traceback_readable, traceback))
    if dataclasses.is_dataclass(traceback) and not isinstance(traceback, type):
        for field in dataclasses.fields(traceback):
            value = getattr(traceback, field.name)
            shown = None if field.name in _VALUES_SHOWN else make_traceback_readable(value)
            setattr(traceback, field.name, shown)
    return traceback


def sentence_of(verdict: Verdict) -> str:
    """What was measured, and how far from what was recorded, each number with its unit.

    `tpot p50 2.1 ms, recorded 2 ms: worse by 5.2 % (2.1 to 8.0 %), tolerated are 3 %`
    """
    label = label_of(verdict.metric)
    comparison = verdict.comparison
    change = comparison.change_frac
    value = "" if verdict.value is None else f" {render_value(verdict.metric, verdict.value)}"
    low, high = comparison.low_frac, comparison.high_frac
    if change is None or low is None or high is None:
        return f"{label}{value}"
    up, down = ("more", "less") if comparison.two_sided else ("better", "worse")
    if low * high >= 0:
        least, most = sorted((100 * abs(low), 100 * abs(high)))
        between = f"{least:.1f} to {most:.1f} %"
    else:
        between = f"{-100 * low:.1f} % {down} to {100 * high:.1f} % {up}"
    return (
        f"{label}{value}, recorded {render_value(verdict.metric, comparison.expected)}:"
        f" {down if change < 0 else up} by {100 * abs(change):.1f} % ({between})"
        f"{comparison.tolerated and f', tolerated are {comparison.tolerated}'}"
        f"{f'; {verdict.cause}' if verdict.cause else ''}"
    )


def render_skip(verdict: Verdict) -> str:
    """Why a test is skipped, in one line."""
    what = sentence_of(verdict).partition(", recorded")[0]
    return readable_line(f"{verdict.case_id}, {what}: {verdict.outcome}, {verdict.explanation}")


def properties(verdict: Verdict) -> Iterator[tuple[str, str]]:
    """Yield a verdict as names and texts of JUnit properties; what is absent isn't there."""
    for name, value in flat_fields(readable_values(verdict)).items():
        if value not in (None, "", ()):
            yield f"specreg.{name}", readable_line(str(value))


def render_blocks(verdicts: Sequence[Verdict], errors: Mapping[str, str]) -> Mapping[str, str]:
    """By case that failed, in the order of the run, what went wrong with it.

    `errors` has by case that failed otherwise than by a verdict the whole message, which the first
    of several cases shows.
    """
    shown: set[str] = set()
    blocks = {}
    for case_id, failed in by_case(one for one in verdicts if one.fails).items():
        error = errors.get(case_id, "")
        head = error.partition("\n")[0]
        blocks[case_id] = render_failures(failed, f"{head}\n(as above)" if head in shown else error)
        shown.add(head)
    return blocks


def render_failures(verdicts: Sequence[Verdict], error: str = "") -> str:
    """What went wrong with one case: a line for each metric, and below them each reason once.

    The error is shown in place of the reason that is its first line.
    """
    lines = []
    for outcome in dict.fromkeys(verdict.outcome for verdict in verdicts):
        alike = [verdict for verdict in verdicts if verdict.outcome is outcome]
        compared = [sentence_of(one) for one in alike if one.comparison.change_frac is not None]
        others = ", ".join(sentence_of(one) for one in alike if one.comparison.change_frac is None)
        lines += [f"{outcome}: {one}" for one in (*compared, others) if one]
        # Reasons of one kind differ only in figures that the lines above have.
        reasons: dict[str, str] = {}
        for verdict in alike:
            if verdict.reason is not None:
                kind = verdict.reason.code or verdict.reason.text
                reasons.setdefault(kind, verdict.explanation)
        for explanation in reasons.values():
            whole = error if explanation == error.partition("\n")[0] else explanation
            lines += [f"  {line}" for line in whole.splitlines()]
    return "\n".join(lines)


def by_case(verdicts: Iterable[Verdict]) -> Mapping[str, Sequence[Verdict]]:
    """Verdicts by their case, in the order of the run."""
    cases: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        cases.setdefault(verdict.case_id, []).append(verdict)
    return cases


def since_when(case: CaseReport, failing: Iterable[Verdict]) -> Iterator[str]:
    """`tpot p50: not fine since …`, of the metrics that earlier runs judged too."""
    for metric in (one.metric for one in failing if one.outcome in _LASTING):
        runs = comparable(case.history, metric)
        bad = first_bad(runs, metric)
        streak = runs[bad:]
        if not streak or len(runs) == 1:
            continue
        many = f", {len(streak)} judged runs in a row" if len(streak) > 1 else ""
        last = f"; last fine {moment_of(runs[bad - 1])}" if bad else ", and never before"
        yield f"{label_of(metric)}: not fine since {moment_of(streak[0])}{many}{last}"


def first_bad(runs: Sequence[RunRecord], metric: str) -> int:
    """The place of the first run that was not fine, with none that was after it, from 0.

    That behind the last one where that was fine.
    """
    return max((place for place, one in enumerate(runs, start=1) if one.fine(metric)), default=0)


def moment_of(run: RunRecord) -> str:
    """`2026-11-21 02:00 UTC with 0.32.0`; the run's name where that says no time."""
    moment = began_at(run.run)
    when = f"{moment:%Y-%m-%d %H:%M} UTC" if moment else f"run {run.run}"
    return f"{when} with {run.engine_version}"
