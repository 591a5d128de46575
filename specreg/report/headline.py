"""What a run comes to, in one line and one colour: the page and the Markdown say the same.

"Don't know" is never green.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from specreg.metrics import METRICS, Family
from specreg.report.document import Report
from specreg.report.quantities import label_of
from specreg.verdict import Outcome, Verdict


class Tone(StrEnum):
    """A colour: all is well, nobody can tell or part is missing, something is wrong."""

    GOOD = "good"
    DOUBT = "doubt"
    BAD = "bad"


_BAD = {Outcome.REGRESSED, Outcome.WRONG, Outcome.INVALID}
_GOOD = {Outcome.PASS, Outcome.IMPROVED}
_WORDS: Mapping[Outcome, str] = {
    Outcome.REGRESSED: "regressed",
    Outcome.WRONG: "wrong",
    Outcome.INVALID: "invalid",
    Outcome.INCONCLUSIVE: "undecided",
    Outcome.NO_BASELINE: "without a baseline",
    Outcome.NOT_COMPARABLE: "not comparable",
    Outcome.MEASURED: "measured only",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """What stands first. `notes` are sentences on what the line leaves open."""

    tone: Tone
    text: str
    notes: tuple[str, ...]


def headline_of(report: Report) -> Headline:
    """Green is a whole run that ended well, each verdict PASS or IMPROVED, and nothing else."""
    verdicts, notes = report.run.verdicts, tuple(_notes(report))
    outcomes = {verdict.outcome for verdict in verdicts}
    if outcomes & _BAD:
        tone = Tone.BAD
    elif verdicts and outcomes <= _GOOD and report.run.complete and not report.run.exit_status:
        tone = Tone.GOOD
    else:
        tone = Tone.DOUBT
    return Headline(tone=tone, text=_text(verdicts, tone), notes=notes)


def tone_of(verdict: Verdict) -> Tone:
    """The colour of one verdict."""
    if verdict.outcome in _BAD:
        return Tone.BAD
    return Tone.GOOD if verdict.outcome in _GOOD else Tone.DOUBT


def moved_alone(report: Report) -> str:
    """Says which speeds of the target alone are otherwise than recorded; empty where none is.

    What moves a server without speculation, the machine or its engine, moves the others as well.
    """
    alone = {case.case_id for case in report.cases if case.method == "none"}
    farthest: dict[str, Verdict] = {}
    for verdict in report.run.verdicts:
        metric = METRICS.get(verdict.metric)
        change = verdict.change_frac
        if verdict.case_id not in alone or metric is None or change is None:
            continue
        before = farthest.get(verdict.case_id)
        if metric.family in {Family.THROUGHPUT, Family.LATENCY} and (
            abs(change) > max(metric.tolerance_frac, abs((before and before.change_frac) or 0.0))
        ):
            farthest[verdict.case_id] = verdict
    if not farthest:
        return ""
    told = ", ".join(
        f"{label_of(one.metric)} of {case_id} {one.change_frac:+.1%}"
        f" (between {one.low_frac:+.1%} and {one.high_frac:+.1%})"
        for case_id, one in farthest.items()
    )
    return (
        f"Without speculation these read otherwise than recorded: {told}."
        " What moves the target alone, the machine or the engine, moves the other cases with it."
    )


def _text(verdicts: tuple[Verdict, ...], tone: Tone) -> str:
    if not verdicts:
        return "Nothing was judged."
    if tone is Tone.GOOD:
        return f"All {len(verdicts)} verdicts hold"
    failing = sum(verdict.fails for verdict in verdicts)
    head = f"{failing} of {len(verdicts)} verdicts need a look: " if failing else ""
    return head + ", ".join(_counts(verdicts))


def _counts(verdicts: tuple[Verdict, ...]) -> Iterator[str]:
    for outcome, word in _WORDS.items():
        count = sum(verdict.outcome is outcome for verdict in verdicts)
        if count:
            yield f"{count} {word}"
    held = sum(verdict.outcome in _GOOD for verdict in verdicts)
    if held:
        yield f"{held} {'holds' if held == 1 else 'hold'}"


def _notes(report: Report) -> Iterator[str]:
    run = report.run
    if not run.complete:
        yield "This was not the whole tier: part of it was left out, or it was cut short."
    if run.exit_status and not any(verdict.fails for verdict in run.verdicts):
        yield (
            f"The run ended with status {run.exit_status}, and not for a verdict: something else"
            " failed or stopped it, and its output says what."
        )
    if run.attached:
        yield f"The server at {run.attached} is one that somebody else runs."
    if run.skipped:
        yield f"Cases that were skipped: {len(run.skipped)}."
