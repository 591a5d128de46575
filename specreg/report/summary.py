"""The summary of a document: its heading, its answers, and what they leave open.

The page, the Markdown and the terminal say the same. "Don't know" is never green.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from rich.style import Style

from specreg.measurement.metrics import METRICS, Family
from specreg.report.document import Headline, Report, RunVerdict, Tone, last_words
from specreg.report.tables import label_of
from specreg.verdicts.verdict import GOOD, Outcome, Verdict

MARKS: Mapping[Tone, str] = {Tone.GOOD: "✓", Tone.DOUBT: "?", Tone.BAD: "✗"}
STYLES: Mapping[Tone, str] = {Tone.GOOD: "green", Tone.DOUBT: "yellow", Tone.BAD: "bold red"}


class OutcomeText(NamedTuple):
    """How an outcome is shown: `word` is what it says of several figures, empty of good ones."""

    symbol: str
    tone: Tone
    word: str
    meaning: str


_BAD, _DOUBT, _GOOD = Tone.BAD, Tone.DOUBT, Tone.GOOD
OUTCOMES: Mapping[Outcome, OutcomeText] = {
    Outcome.REGRESSED: OutcomeText(
        "▼", _BAD, "worse", "worse for sure, by more than is tolerated, on two launches"
    ),
    Outcome.WRONG: OutcomeText(
        "✗", _BAD, "wrong", "speculation changed a token, or took other steps than its models give"
    ),
    Outcome.INVALID: OutcomeText(
        "⚠", _BAD, "invalid", "the meter or the machine was not in order: the figures mean nothing"
    ),
    Outcome.INCONCLUSIVE: OutcomeText("?", _DOUBT, "undecided", "the measurements can't tell"),
    Outcome.UNDECIDABLE: OutcomeText(
        *("≈", _DOUBT, "undecidable here"),
        "launches of this machine differ too much for what is tolerated, as was recorded",
    ),
    Outcome.NO_BASELINE: OutcomeText(
        "∅", _DOUBT, "without a baseline", "nothing was recorded to compare with"
    ),
    Outcome.NOT_COMPARABLE: OutcomeText(
        "≠", _DOUBT, "not comparable", "measured on another kind of machine, or in another way"
    ),
    Outcome.IMPROVED: OutcomeText("▲", _GOOD, "", "better for sure, by more than is tolerated"),
    Outcome.MEASURED: OutcomeText("•", _DOUBT, "measured, not judged", "measured, not judged"),
    Outcome.PASS: OutcomeText("✓", _GOOD, "", "proven to lie within what is tolerated"),
}
"""The worst first."""
_SUBJECTS: Mapping[str, set[Family]] = {
    "acceptance": {Family.ACCEPTANCE},
    "speed": {Family.THROUGHPUT, Family.LATENCY, Family.SPEEDUP},
    "power": {Family.POWER},
}


def title_of(report: Report) -> str:
    """The heading: the document's own, else the tier and the machine of the run."""
    return report.title or f"tier {report.run.tier} on {report.run.environment}"


def answers_of(report: Report) -> Sequence[Headline]:
    """The document's own answers, else those that follow from its run."""
    return report.answers or answers_of_run(report.run)


def answers_of_run(run: RunVerdict) -> Sequence[Headline]:
    """An answer on acceptance (and losslessness), speed and power, in this order always.

    Green is a whole run that ended well, and in it each verdict of the subject PASS or IMPROVED.
    """
    by_subject: dict[str, list[Verdict]] = {subject: [] for subject in _SUBJECTS}
    for verdict in last_words(run.verdicts):
        metric = METRICS.get(verdict.metric)
        family = metric.family if metric else Family.ACCEPTANCE  # a correctness check
        by_subject[next(name for name, has in _SUBJECTS.items() if family in has)].append(verdict)
    return [_answer(run, subject, verdicts) for subject, verdicts in by_subject.items()]


def render_answers(answers: Sequence[Headline], *, color: bool) -> str:
    """The answers as lines of text."""
    styles = [Style.parse(STYLES[one.tone] if color else "none") for one in answers]
    return "\n".join(style.render(str(one)) for style, one in zip(styles, answers, strict=True))


def tone_of(verdicts: Sequence[Verdict]) -> Tone:
    """The colour of some verdicts: that of the worst."""
    tones = {OUTCOMES[verdict.outcome].tone for verdict in verdicts}
    return next((one for one in (Tone.BAD, Tone.DOUBT, Tone.GOOD) if one in tones), Tone.DOUBT)


def notes_of(report: Report) -> Iterator[str]:
    """What each arm of a gate is, and what the answers leave open."""
    run, is_run = report.run, not report.arms
    for arm in report.arms:
        overrides = f" with {', '.join(arm.overrides)}" if arm.overrides else ""
        installed = f": {arm.installed}" if arm.installed else ""
        said = f"; its servers said {', '.join(arm.engine_versions)}" if arm.engine_versions else ""
        yield f"{arm.name} is {arm.text}{overrides}{installed}{said}"
    if not run.complete:
        yield (
            "This was not the whole tier: part of it was left out, or it was cut short."
            if is_run
            else "It was cut short before all was decided."
        )
    if is_run and _ended_badly(run):
        yield (
            f"The run ended with status {run.exit_status}, and not for a verdict: something else"
            " failed or stopped it, and its output says what."
        )
    if run.attached:
        yield f"The server at {run.attached} was not started by this run."
    if run.skipped:
        yield f"Cases that were skipped: {len(run.skipped)}."


def _answer(run: RunVerdict, subject: str, verdicts: Sequence[Verdict]) -> Headline:
    if not verdicts:
        why = run.no_power if subject == "power" else ""
        if run.skipped and not run.verdicts:
            why = next(iter(run.skipped.values()))
        text = f"not measured: {why}" if why else "not judged: no test of it ran"
        return Headline(subject=subject, tone=Tone.DOUBT, text=text)
    tone, parts, is_speed = tone_of(verdicts), [_counts(run, verdicts)], subject == "speed"
    if is_speed and run.slowed:
        worst = sorted(run.slowed.items(), key=lambda item: item[1])
        named = ", ".join(f"'{name}' down: ×{ratio:.2f}" for name, ratio in worst)
        parts.append(f"speculation slows {named} tokens/s")
    if is_speed and run.load is not None and run.load.is_high:
        parts.append(f"the machine was busy when the run began: {run.load}")
    # A speculation that costs speed may well equal its baseline; that is nothing to be glad of.
    if tone is Tone.GOOD and ((is_speed and run.slowed) or not run.complete or _ended_badly(run)):
        tone = Tone.DOUBT
    return Headline(subject=subject, tone=tone, text="; ".join(parts))


def _ended_badly(run: RunVerdict) -> bool:
    """Whether the run ended badly, and not for a verdict."""
    return bool(run.exit_status) and not any(verdict.fails for verdict in run.verdicts)


def _counts(run: RunVerdict, verdicts: Sequence[Verdict]) -> str:
    """`3 of 12 figures worse (a-case: throughput -8.0%), 2 undecided, 7 hold`."""
    parts: list[str] = []
    for outcome, shown in OUTCOMES.items():
        found = [verdict for verdict in verdicts if verdict.outcome is outcome]
        if found and shown.word:
            of, example = ("", "") if parts else (f" of {len(verdicts)} figures", _example(found))
            parts.append(f"{len(found)}{of} {shown.word}{example}")
    if not parts:
        cases = len({one.case_id for one in verdicts})
        whole = f"all {cases} cases" if cases > 1 else "the one case"
        part = f"the {cases} cases that ran" if cases > 1 else "the case that ran"
        return f"holds in {whole if run.complete else part}"
    held = sum(verdict.outcome in GOOD for verdict in verdicts)
    return ", ".join((*parts, *([f"{held} hold{'s' * (held == 1)}"] if held else [])))


def _example(found: Sequence[Verdict]) -> str:
    """In brackets what changed most of several verdicts, or why; empty where neither is known."""
    most = max(found, key=lambda verdict: abs(verdict.comparison.change_frac or 0.0))
    change_frac = most.comparison.change_frac
    if change_frac is not None:
        return f" ({most.case_id}: {label_of(most.metric)} {change_frac:+.1%})"
    return f" ({most.case_id}: {most.reason.headline})" if most.reason is not None else ""
