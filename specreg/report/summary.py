"""Show outcomes as symbols and tones, and note what the answer of a report leaves open."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from specreg.measurement.metrics import METRICS
from specreg.report.document import ComparedReport, Report, RunReport, SideReport, Tone
from specreg.verdicts.verdict import JUDGED, Outcome, Verdict

MARKS: Mapping[Tone, str] = {Tone.GOOD: "✓", Tone.DOUBT: "?", Tone.BAD: "✗"}
_MAX_REASONS = 3
"""The most reasons for skipping cases that a note names."""
STYLES: Mapping[Tone, str] = {Tone.GOOD: "green", Tone.DOUBT: "yellow", Tone.BAD: "bold red"}


class OutcomeText(NamedTuple):
    """How an outcome is shown.

    Attributes:
        symbol: one character.
        tone: the tone, which determines its colour.
        word: the adjective for several figures with this outcome; empty for good outcomes.
        meaning: a short explanation.
    """

    symbol: str
    tone: Tone
    word: str
    meaning: str


OUTCOMES: Mapping[Outcome, OutcomeText] = {
    Outcome.REGRESSED: OutcomeText(
        "▼",
        Tone.BAD,
        "worse",
        "worse for sure: by more than is tolerated, or since an earlier night",
    ),
    Outcome.WRONG: OutcomeText(
        "✗",
        Tone.BAD,
        "wrong",
        "speculation changed a token, or took other steps than its models give",
    ),
    Outcome.INVALID: OutcomeText(
        "⚠",
        Tone.BAD,
        "invalid",
        "the meter or the machine was not in order: the figures mean nothing",
    ),
    Outcome.INCONCLUSIVE: OutcomeText(
        "?", Tone.DOUBT, "undecided", "one night can't tell; the nights together may"
    ),
    Outcome.NO_BASELINE: OutcomeText(
        "∅", Tone.DOUBT, "without a baseline", "nothing was recorded to compare with"
    ),
    Outcome.NOT_COMPARABLE: OutcomeText(
        "≠", Tone.DOUBT, "not comparable", "measured on another kind of machine, or in another way"
    ),
    Outcome.MEASURED: OutcomeText("•", Tone.DOUBT, "measured, not judged", "measured, not judged"),
    Outcome.IMPROVED: OutcomeText("▲", Tone.GOOD, "", "better for sure, by more than is tolerated"),
    Outcome.PASS: OutcomeText("✓", Tone.GOOD, "", "proven to lie within what is tolerated"),
}
"""The text of each outcome, the worst outcome first."""


def tone_of(verdicts: Sequence[Verdict]) -> Tone:
    """Return the tone of the worst verdict; doubt without any verdict."""
    tones = {OUTCOMES[verdict.outcome].tone for verdict in verdicts}
    worst_first = (Tone.BAD, Tone.DOUBT, Tone.GOOD)
    for tone in worst_first:
        if tone in tones:
            return tone
    return Tone.DOUBT


def notes_of(report: Report) -> Iterator[str]:
    """Yield a description of each side, if any, and notes on what the headlines leave open."""
    run = report.run
    if isinstance(report, ComparedReport):
        yield from _describe_sides(report.sides)
        if not run.complete:
            yield "The gate was cut short before everything was decided."
    else:
        yield from _notes_of_run(report)

    if run.no_power:
        yield f"Power was not measured: {run.no_power}."


def _notes_of_run(report: RunReport) -> Iterator[str]:
    """Yield notes on what is missing from a run, and on servers that it didn't start."""
    run = report.run
    if run.verdicts and not run.complete:
        yield _incomplete_note(report)
    if run.attached_control:
        yield (
            f"The server at {run.attached} and its control at {run.attached_control} were not"
            " started by this run."
        )
    elif run.attached:
        yield f"The server at {run.attached} was not started by this run."

    if run.skipped:
        yield _skipped_note(run.skipped, len(report.tier_cases))


def busy_note(report: Report) -> str:
    """Say what it means for a run that other programs used its machine; empty if none did."""
    load = report.run.load
    if load is None or not load.is_high:
        return ""
    outcomes = {
        verdict.outcome
        for verdict in report.run.verdicts
        if verdict.metric in METRICS and METRICS[verdict.metric].quantity == "speed"
    }
    speeds = "no speed was judged"
    if outcomes & JUDGED:
        speeds = "speeds do, and were judged all the same"
    elif Outcome.MEASURED in outcomes:
        speeds = "speeds do, so record those on a quiet machine"
    busy = f"The machine was busy when the run began ({load})"
    return f"{busy}. Acceptance doesn't depend on that; {speeds}."


def _incomplete_note(report: RunReport) -> str:
    """Return a note on what is missing from a run that didn't judge the whole tier."""
    judged = {verdict.case_id for verdict in report.run.verdicts}
    cases = len(report.tier_cases)
    if len(judged) < cases:
        return f"This was not the whole tier: {len(judged)} of {cases} cases were judged."
    return "Not all tests of the tier ran, though each case was judged."


def _skipped_note(skipped: Mapping[str, str], cases: int) -> str:
    """Return a note on how many cases were skipped, and why: the most frequent reasons first."""
    ids_by_reason: dict[str, list[str]] = {}
    for case_id, reason in skipped.items():
        ids_by_reason.setdefault(reason, []).append(case_id)
    reasons = sorted(ids_by_reason.items(), key=lambda item: -len(item[1]))

    # Dozens of cases often have the same reason, so only the first of them is named.
    parts = []
    for reason, case_ids in reasons[:_MAX_REASONS]:
        if len(case_ids) == 1:
            parts.append(f"{case_ids[0]}: {reason}")
        else:
            parts.append(f"{len(case_ids)} such as {case_ids[0]}: {reason}")

    if len(reasons) > _MAX_REASONS:
        parts.append(f"{len(reasons) - _MAX_REASONS} other reasons")
    return f"Cases that were skipped: {len(skipped)} of {cases}. {'; '.join(parts)}."


def _describe_sides(sides: Iterable[SideReport]) -> Iterator[str]:
    """Describe each side: what was typed and installed, and which versions its servers reported."""
    names_by_description: dict[str, list[str]] = {}
    for side in sides:
        description = side.text
        if side.installed:
            description += f": {side.installed}"
        if side.engine_versions:
            description += f"; its servers reported {', '.join(side.engine_versions)}"
        names_by_description.setdefault(description, []).append(side.name)

    for description, names in names_by_description.items():
        are = "is" if len(names) == 1 else "are both"
        yield f"{' and '.join(names)} {are} {description}"
