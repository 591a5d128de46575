"""Summarise a report document: its title, its headlines, and notes on what they leave open.

The page, the Markdown and the terminal show the same summary. An undecided figure is never green.
Cases that a run left out are mentioned in a note, and don't change the colour of the others.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from rich.style import Style

from specreg.measurement.metrics import METRICS, Family
from specreg.report.document import ArmReport, Headline, Report, RunVerdict, Tone, last_verdicts
from specreg.report.tables import label_of
from specreg.verdicts.verdict import GOOD, JUDGED, SKIPPED, Outcome, Verdict

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
_SUBJECTS: Mapping[str, set[Family]] = {
    "acceptance": {Family.ACCEPTANCE},
    "speed": {Family.THROUGHPUT, Family.LATENCY, Family.SPEEDUP},
    "power": {Family.POWER},
}


def title_of(report: Report) -> str:
    """Return the title of a document, or else the tier and the machine of its run.

    If the run left out most of its tier, the title says so, because the headlines about the other
    cases may all be good.
    """
    if report.title:
        return report.title
    title = f"tier {report.run.tier} on {report.run.environment}"
    skipped = len(report.run.skipped)
    cases = len(report.tier_cases)
    if skipped > cases / 2:
        title += f", which left out {skipped} of {cases} cases"
    return title


def answers_of(report: Report) -> Sequence[Headline]:
    """Return the headlines of a document, or else those that follow from its run."""
    return report.answers or answers_of_run(report.run)


def answers_of_run(run: RunVerdict) -> Sequence[Headline]:
    """Return headlines on acceptance (including losslessness), speed and power, in this order.

    A headline is green if all verdicts on its subject are PASS or IMPROVED; the headline on speed
    isn't if speculation slows a case down. Correctness checks that don't apply to a case are
    ignored.
    """
    by_subject: dict[str, list[Verdict]] = {subject: [] for subject in _SUBJECTS}
    for verdict in last_verdicts(run.verdicts):
        by_subject[_subject_of(verdict)].append(verdict)
    return [_answer(run, subject, verdicts) for subject, verdicts in by_subject.items()]


def _subject_of(verdict: Verdict) -> str:
    """Return the subject of the headline that a verdict belongs to."""
    # A correctness check isn't a metric. It belongs to acceptance.
    family = Family.ACCEPTANCE
    metric = METRICS.get(verdict.metric)
    if metric is not None:
        family = metric.family
    return next(subject for subject, families in _SUBJECTS.items() if family in families)


def render_answers(answers: Sequence[Headline], *, color: bool) -> str:
    """Render headlines as lines of text."""
    lines = [str(answer) for answer in answers]
    if color:
        lines = [Style.parse(STYLES[answer.tone]).render(str(answer)) for answer in answers]
    return "\n".join(lines)


def tone_of(verdicts: Sequence[Verdict]) -> Tone:
    """Return the tone of the worst verdict; doubt without any verdict."""
    tones = {_tone_of_verdict(verdict) for verdict in verdicts}
    worst_first = (Tone.BAD, Tone.DOUBT, Tone.GOOD)
    for tone in worst_first:
        if tone in tones:
            return tone
    return Tone.DOUBT


def _tone_of_verdict(verdict: Verdict) -> Tone:
    """Return the tone of a verdict. An INCONCLUSIVE one is bad if its test fails."""
    if verdict.outcome is Outcome.INCONCLUSIVE and verdict.fails:
        return Tone.BAD
    return OUTCOMES[verdict.outcome].tone


def notes_of(report: Report) -> Iterator[str]:
    """Yield a description of each side, if any, and notes on what the headlines leave open."""
    run = report.run
    is_gate = bool(report.arms)
    for arm in report.arms:
        yield _describe_arm(arm)
    if not run.complete and is_gate:
        yield "The gate was cut short before everything was decided."
    elif not run.complete:
        yield "This was not the whole tier: cases were left out, or the run was cut short."
    if not is_gate and _ended_badly(run):
        yield (
            f"The run ended with status {run.exit_status}, but not because of a verdict: something"
            " else failed or stopped it; see its output."
        )
    if run.attached:
        yield f"The server at {run.attached} was not started by this run."
    if run.skipped:
        yield _skipped_note(run.skipped, len(report.tier_cases))


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


def _describe_arm(arm: ArmReport) -> str:
    """Describe a side: what was typed and installed, and which versions its servers reported."""
    description = f"{arm.name} is {arm.text}"
    if arm.overrides:
        description += f" with {', '.join(arm.overrides)}"
    if arm.installed:
        description += f": {arm.installed}"
    if arm.engine_versions:
        description += f"; its servers reported {', '.join(arm.engine_versions)}"
    return description


def _answer(run: RunVerdict, subject: str, verdicts: Sequence[Verdict]) -> Headline:
    """Return the headline on a subject, with the tone of its worst verdict."""
    if not verdicts:
        return Headline(subject=subject, tone=Tone.DOUBT, text=_why_no_verdict(run, subject))
    applicable = _without_inapplicable_checks(verdicts)
    tone = tone_of(applicable)
    parts = [_counts(run, applicable)]
    if subject == "speed":
        parts += _speed_remarks(run)
        # Speculation that slows a case down may equal its baseline, but it isn't good news.
        if tone is Tone.GOOD and run.slowed:
            tone = Tone.DOUBT
    return Headline(subject=subject, tone=tone, text="; ".join(parts))


def _without_inapplicable_checks(verdicts: Sequence[Verdict]) -> Sequence[Verdict]:
    """Leave out skipped correctness checks of cases whose metrics were compared.

    For example, sampled text can't be compared token by token, but its acceptance can be compared.
    """
    compared_cases = {
        verdict.case_id
        for verdict in verdicts
        if verdict.metric in METRICS and verdict.outcome in JUDGED
    }
    applicable = []
    for verdict in verdicts:
        is_skipped_check = verdict.metric not in METRICS and verdict.outcome in SKIPPED
        if not (is_skipped_check and verdict.case_id in compared_cases):
            applicable.append(verdict)
    return applicable


def _why_no_verdict(run: RunVerdict, subject: str) -> str:
    """Say why a subject has no verdict."""
    reason = ""
    if subject == "power":
        reason = run.no_power
    # If nothing at all ran, the reason is the same for each subject.
    if run.skipped and not run.verdicts:
        reason = next(iter(run.skipped.values()))
    if reason:
        return f"not measured: {reason}"
    return "not judged: no test of it ran"


def _speed_remarks(run: RunVerdict) -> list[str]:
    """Return remarks about cases that speculation slows down, and about a busy machine."""
    remarks = []
    if run.slowed:
        worst_first = sorted(run.slowed.items(), key=lambda item: item[1])
        slowed = [f"'{case_id}' (throughput ×{ratio:.2f})" for case_id, ratio in worst_first]
        remarks.append(f"speculation slows down {', '.join(slowed)}")
    if run.load is not None and run.load.is_high:
        remarks.append(f"the machine was busy when the run began: {run.load}")
    return remarks


def _ended_badly(run: RunVerdict) -> bool:
    """Return whether the run has a bad exit status without a failed verdict."""
    # A failed verdict explains the exit status.
    has_failed_verdict = any(verdict.fails for verdict in run.verdicts)
    return bool(run.exit_status) and not has_failed_verdict


def _counts(run: RunVerdict, verdicts: Sequence[Verdict]) -> str:
    """Count verdicts: `3 of 12 figures worse (a-case: throughput -8.0%), 2 undecided, 7 hold`."""
    parts: list[str] = []
    for outcome, outcome_text in OUTCOMES.items():
        same_outcome = [verdict for verdict in verdicts if verdict.outcome is outcome]
        if not same_outcome or not outcome_text.word:
            continue
        if parts:
            parts.append(f"{len(same_outcome)} {outcome_text.word}")
        else:
            # The worst outcome comes first, and has an example.
            example = _example(same_outcome)
            count = f"{len(same_outcome)} of {len(verdicts)} figures"
            parts.append(f"{count} {outcome_text.word}{example}")
    if not parts:
        return _all_hold(run, verdicts)
    held = sum(verdict.outcome in GOOD for verdict in verdicts)
    if held == 1:
        parts.append("1 holds")
    elif held:
        parts.append(f"{held} hold")
    return ", ".join(parts)


def _all_hold(run: RunVerdict, verdicts: Sequence[Verdict]) -> str:
    """Say that a subject holds, and in how many cases."""
    cases = len({verdict.case_id for verdict in verdicts})
    if run.complete and cases == 1:
        return "holds in the one case"
    if run.complete:
        return f"holds in all {cases} cases"
    if cases == 1:
        return "holds in the case that ran"
    return f"holds in the {cases} cases that ran"


def _example(verdicts: Sequence[Verdict]) -> str:
    """Return the verdict with the largest change as an example in brackets.

    Without a change, its reason is given. The example is empty without either.
    """
    # A metric that follows another one, such as a draft position, would be a worse example.
    independent = [verdict for verdict in verdicts if _is_independent(verdict)]
    candidates = independent or verdicts
    most = max(candidates, key=lambda verdict: abs(verdict.comparison.change_frac or 0.0))
    change_frac = most.comparison.change_frac
    if change_frac is not None:
        return f" ({most.case_id}: {label_of(most.metric)} {change_frac:+.1%})"
    if most.reason is not None:
        return f" ({most.case_id}: {most.reason.headline})"
    return ""


def _is_independent(verdict: Verdict) -> bool:
    """Return whether a verdict is about a metric that doesn't follow another one."""
    metric = METRICS.get(verdict.metric)
    return metric is None or not metric.follows
