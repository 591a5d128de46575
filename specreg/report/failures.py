"""What failed, why, and since when: a block of text for each case."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

import msgspec

from specreg.report.document import CaseReport, began_at
from specreg.report.tables import label_of, render_value
from specreg.verdicts.history import RunRecord
from specreg.verdicts.judge import Outcome, Verdict

_AS_ABOVE = "(as above)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What pytest shows of a failed test in place of a traceback.

    Attributes:
        message: one line, for the short summary; text: all of it.
        case_id: whose block says it too; empty where none does.
    """

    message: str
    text: str
    case_id: str = ""

    @property
    def reprcrash(self) -> "Failure":
        """Where pytest looks for the message."""
        return self

    def __str__(self) -> str:
        return self.text


def failure_of(verdict: Verdict) -> Failure:
    """What pytest shows of a test whose verdict doesn't hold."""
    return Failure(
        message=f"{verdict.outcome}: {sentence_of(verdict)}",
        text=render_failures([verdict]),
        case_id=verdict.case_id,
    )


def sentence_of(verdict: Verdict) -> str:
    """What was measured, and how far from what was recorded, each number with its unit.

    `tpot p50 2.1 ms, recorded 2 ms: worse by 5.2 % (2.1 to 8.0 %), tolerated are 3 %`
    """
    measured, change = _measured(verdict), verdict.change_frac
    if change is None or verdict.low_frac is None or verdict.high_frac is None:
        return measured
    up, down = ("more", "less") if verdict.two_sided else ("better", "worse")
    bounds = sorted((verdict.low_frac, verdict.high_frac), key=abs)
    if verdict.low_frac * verdict.high_frac >= 0:
        between = " to ".join(f"{100 * abs(bound):.1f}" for bound in bounds) + " %"
    else:
        between = f"{-100 * verdict.low_frac:.1f} % {down} to {100 * verdict.high_frac:.1f} % {up}"
    sentence = (
        f"{measured}, recorded {render_value(verdict.metric, verdict.expected)}:"
        f" {down if change < 0 else up} by {100 * abs(change):.1f} % ({between})"
    )
    if verdict.tolerance_frac is not None:
        sentence += f", tolerated are {100 * verdict.tolerance_frac:.3g} %"
    return f"{sentence}; {verdict.cause}" if verdict.cause else sentence


def render_skip(verdict: Verdict) -> str:
    """Why a test is skipped, in one line."""
    why = " ".join(verdict.reason.split())
    return f"{verdict.case_id}, {_measured(verdict)}: {verdict.outcome}, {why}"


def properties(verdict: Verdict) -> Iterator[tuple[str, str]]:
    """A verdict as names and texts of JUnit properties; what is absent isn't there."""
    for name, value in msgspec.to_builtins(verdict).items():
        if value not in (None, ""):
            yield f"specreg.{name}", str(value)


def render_blocks(verdicts: Sequence[Verdict], errors: Mapping[str, str]) -> Mapping[str, str]:
    """By case that failed, in the order of the run, what went wrong with it.

    Args:
        verdicts: of the run.
        errors: by case that failed otherwise than by a verdict, the whole message; it is shown
            once, whatever it has in common with an earlier case.
    """
    shown: set[str] = set()
    blocks = {}
    for case_id, failed in failing_by_case(verdicts).items():
        error = errors.get(case_id, "")
        head = error.partition("\n")[0]
        again = f"{head}\n{_AS_ABOVE}"
        blocks[case_id] = render_failures(failed, again if head in shown else error)
        shown |= {head} - {""}
    return blocks


def render_failures(verdicts: Sequence[Verdict], error: str = "") -> str:
    """What went wrong with one case: a line for each metric, and below them each reason once.

    Args:
        verdicts: those that don't hold.
        error: the whole message, in place of the reason that is its first line.
    """
    lines = []
    for outcome in dict.fromkeys(verdict.outcome for verdict in verdicts):
        alike = [verdict for verdict in verdicts if verdict.outcome is outcome]
        compared = [verdict for verdict in alike if verdict.change_frac is not None]
        others = [_measured(verdict) for verdict in alike if verdict.change_frac is None]
        sentences = [*map(sentence_of, compared), *filter(None, [", ".join(others)])]
        lines += [f"{outcome}: {one}" for one in sentences]
        # Those of one kind differ in figures that the lines above have.
        reasons = {one.reason.partition(":")[0]: one.reason for one in reversed(alike)}
        for reason in reversed(reasons.values()):
            whole = error if reason and reason == error.partition("\n")[0] else reason
            lines += [f"  {line}" for line in whole.splitlines()]
    return "\n".join(lines)


def moment_of(run: str) -> str:
    """`2026-11-21 02:00 UTC`, or the run's name where that says no time."""
    moment = began_at(run)
    return f"{moment:%Y-%m-%d %H:%M} UTC" if moment else f"run {run}"


def failing_by_case(verdicts: Iterable[Verdict]) -> Mapping[str, Sequence[Verdict]]:
    """By case in the order of the run, the verdicts that fail."""
    cases: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        if verdict.fails:
            cases.setdefault(verdict.case_id, []).append(verdict)
    return cases


def since_when(case: CaseReport, failing: Iterable[Verdict]) -> Iterator[str]:
    """`tpot p50: not fine since …`, of the metrics that earlier runs judged too."""
    since: dict[str, list[str]] = {}
    for verdict in failing:
        if verdict.outcome in {Outcome.REGRESSED, Outcome.WRONG, Outcome.INCONCLUSIVE}:
            label = label_of(verdict.metric)
            since.setdefault(_since(case.history, verdict.metric), []).append(label)
    yield from (f"{', '.join(labels)}: {words}" for words, labels in since.items() if words)


def _since(history: Sequence[RunRecord], metric: str) -> str:
    """From which run on a metric isn't fine; empty where no earlier run judged it."""
    runs = [one for one in history if one.judged(metric)]
    runs = [one for one in runs if one.settings_sha256 == runs[-1].settings_sha256]
    streak = list(takewhile(lambda one: not one.fine(metric), reversed(runs)))
    if not streak or len(runs) == 1:
        return ""
    first, fine = streak[-1], runs[: len(runs) - len(streak)]
    many = f", {len(streak)} judged runs in a row" if len(streak) > 1 else ""
    words = f"not fine since {moment_of(first.run)}{many}"
    if not fine:
        return f"{words}, and never before"
    return f"{words}; last fine {moment_of(fine[-1].run)} with {fine[-1].engine_version}"


def _measured(verdict: Verdict) -> str:
    """`acceptance length 2.19 tokens`; without the value where there is none."""
    label = label_of(verdict.metric)
    if verdict.value is None:
        return label
    return f"{label} {render_value(verdict.metric, verdict.value)}"
