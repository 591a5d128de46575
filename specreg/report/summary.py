"""The summary of a document: its heading, its answers, and what they leave open.

The page, the Markdown and the terminal say the same. "Don't know" is never green.
"""

from collections.abc import Iterator, Mapping, Sequence

from rich.style import Style

from specreg.measurement.metrics import METRICS, Family
from specreg.report.document import Answer, Kind, Report, RunVerdict, Tone
from specreg.report.tables import label_of
from specreg.verdicts.judge import GOOD, Outcome, Verdict

MARKS: Mapping[Tone, str] = {Tone.GOOD: "✓", Tone.DOUBT: "?", Tone.BAD: "✗"}
_BAD = {Outcome.REGRESSED, Outcome.WRONG, Outcome.INVALID}
_WORDS: Mapping[Outcome, str] = {
    Outcome.REGRESSED: "worse",
    Outcome.WRONG: "wrong",
    Outcome.INVALID: "invalid",
    Outcome.INCONCLUSIVE: "undecided",
    Outcome.NO_BASELINE: "without a baseline",
    Outcome.NOT_COMPARABLE: "not comparable",
    Outcome.MEASURED: "measured, not judged",
}
"""The worst first."""
_SUBJECTS: Mapping[str, frozenset[Family]] = {
    "acceptance": frozenset({Family.ACCEPTANCE}),
    "speed": frozenset({Family.THROUGHPUT, Family.LATENCY, Family.SPEEDUP}),
    "power": frozenset({Family.POWER}),
}
_STYLES = {Tone.GOOD: "green", Tone.DOUBT: "yellow", Tone.BAD: "bold red"}
_MOST_NAMED = 3


def title_of(report: Report) -> str:
    """The heading: the document's own, else the tier and the machine of the run."""
    return report.title or f"tier {report.run.tier} on {report.run.environment}"


def answers_of(report: Report) -> tuple[Answer, ...]:
    """The document's own answers, else those that follow from its run."""
    return report.answers or answers_of_run(report.run)


def answers_of_run(run: RunVerdict) -> tuple[Answer, ...]:
    """An answer on acceptance, speed and power, in this order always.

    Losslessness belongs to acceptance. Green is a whole run that ended well, and in it each verdict
    of the subject PASS or IMPROVED.
    """
    return tuple(_answer(run, subject, families) for subject, families in _SUBJECTS.items())


def render_answers(answers: Sequence[Answer], *, color: bool) -> str:
    """The answers as lines of text."""
    styles = [Style.parse(_STYLES[one.tone] if color else "none") for one in answers]
    return "\n".join(style.render(str(one)) for style, one in zip(styles, answers, strict=True))


def tone_of(verdict: Verdict) -> Tone:
    """The colour of one verdict."""
    if verdict.outcome in _BAD:
        return Tone.BAD
    return Tone.GOOD if verdict.outcome in GOOD else Tone.DOUBT


def notes_of(report: Report) -> Iterator[str]:
    """Sentences on what the answers leave open."""
    run = report.run
    if not run.complete and report.kind is Kind.RUN:
        yield "This was not the whole tier: part of it was left out, or it was cut short."
    elif not run.complete:
        yield "It was cut short before all was decided."
    if report.kind is Kind.RUN and _ended_badly(run):
        yield (
            f"The run ended with status {run.exit_status}, and not for a verdict: something else"
            " failed or stopped it, and its output says what."
        )
    if run.attached:
        yield f"The server at {run.attached} was not started by this run."
    if run.skipped:
        yield f"Cases that were skipped: {len(run.skipped)}."


def arm_notes_of(report: Report) -> Iterator[str]:
    """What each arm of a gate is, and by its servers' own word."""
    for arm in report.arms:
        overrides = f" with {', '.join(arm.overrides)}" if arm.overrides else ""
        installed = f": {arm.installed}" if arm.installed else ""
        versions = ", ".join(arm.engine_versions)
        word = f"; its servers said {versions}" if versions else ""
        yield f"{arm.name} is {arm.text}{overrides}{installed}{word}"


def _answer(run: RunVerdict, subject: str, families: frozenset[Family]) -> Answer:
    verdicts = [one for one in run.verdicts if _family(one) in families]
    outcomes = {verdict.outcome for verdict in verdicts}
    remarks = list(_speed_remarks(run)) if verdicts and subject == "speed" else []
    if outcomes & _BAD:
        tone = Tone.BAD
    elif verdicts and outcomes <= GOOD and run.complete and not _ended_badly(run):
        # A speculation that costs speed may well equal its baseline; that is nothing to be glad of.
        tone = Tone.DOUBT if subject == "speed" and run.slowed else Tone.GOOD
    else:
        tone = Tone.DOUBT
    if not verdicts:
        text = _why_none(run, subject)
    elif outcomes <= GOOD:
        text = _where_held(len({one.case_id for one in verdicts}), whole=run.complete)
    else:
        text = ", ".join(_counts(verdicts))
    return Answer(subject=subject, tone=tone, text="; ".join((text, *remarks)))


def _family(verdict: Verdict) -> Family:
    """The family of its metric; a correctness check is of what speculation accepts."""
    metric = METRICS.get(verdict.metric)
    return metric.family if metric else Family.ACCEPTANCE


def _ended_badly(run: RunVerdict) -> bool:
    """Whether the run ended badly, and not for a verdict."""
    return bool(run.exit_status) and not any(verdict.fails for verdict in run.verdicts)


def _why_none(run: RunVerdict, subject: str) -> str:
    if not run.verdicts and run.skipped:
        return f"not measured: {next(iter(run.skipped.values()))}"
    if subject == "power" and run.no_power:
        return f"not measured: {run.no_power}"
    return "not judged: no test of it ran"


def _where_held(cases: int, *, whole: bool) -> str:
    if whole:
        return f"holds in all {cases} cases" if cases > 1 else "holds in the one case"
    return f"holds in the {cases} cases that ran" if cases > 1 else "holds in the case that ran"


def _counts(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """`3 of 12 figures worse (a-case: throughput -8.0%)`, `2 undecided`, `7 hold`."""
    is_first, total = True, len(verdicts)
    for outcome, word in _WORDS.items():
        found = [verdict for verdict in verdicts if verdict.outcome is outcome]
        if found and is_first:
            many = f"all {total}" if len(found) == total > 1 else f"{len(found)} of {total}"
            example = _example(found)
            yield f"{many} figures {word}{example and f' ({example})'}"
        elif found:
            yield f"{len(found)} {word}"
        is_first = is_first and not found
    held = sum(verdict.outcome in GOOD for verdict in verdicts)
    if held:
        yield f"{held} {'holds' if held == 1 else 'hold'}"


def _example(found: Sequence[Verdict]) -> str:
    """The one of several verdicts that changed most, or why it has the outcome that it has.

    Empty of figures that are only measured, and nothing says why.
    """
    most = max(found, key=lambda verdict: abs(verdict.change_frac or 0.0))
    if most.change_frac is not None:
        return f"{most.case_id}: {label_of(most.metric)} {most.change_frac:+.1%}"
    reasons = {verdict.reason.partition("\n")[0].partition("; ")[0] for verdict in found}
    if most.outcome is Outcome.MEASURED and not any(reasons):
        return ""
    why = min(reasons) or label_of(most.metric)
    return why if len(found) > len(reasons) == 1 else f"{most.case_id}: {why}"


def _speed_remarks(run: RunVerdict) -> Iterator[str]:
    """What must stand beside the speeds, whatever their verdicts are."""
    if run.slowed:
        worst = sorted(run.slowed.items(), key=lambda item: item[1])
        named = ", ".join(f"'{name}' down: ×{ratio:.2f}" for name, ratio in worst[:_MOST_NAMED])
        more = len(worst) - _MOST_NAMED
        yield f"speculation slows {named} tokens/s{f', and {more} more' if more > 0 else ''}"
    if run.load is not None and run.load.is_high:
        yield f"the machine was busy when the run began: {run.load}"
