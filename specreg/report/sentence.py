"""Answer the question of a report in one sentence, and say what was compared with what."""

import datetime as dt
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from specreg.core.counted import counted
from specreg.correctness.checks import LOSSLESS, ORACLE, SAMPLING
from specreg.measurement.metrics import ACCEPTANCE_LENGTH, METRICS, SPEEDUP, better_frac
from specreg.report.document import (
    CaseReport,
    ComparedReport,
    Headline,
    Report,
    RunReport,
    SideReport,
    Tone,
    began_at,
    last_verdicts,
)
from specreg.report.tables import format_number, label_of, render_value
from specreg.report.wording import wording_of
from specreg.telemetry.identity import UNKNOWN_ENVIRONMENT
from specreg.verdicts.verdict import GOOD, JUDGED, WORSE, Outcome, Verdict

_ALONE_FRAC = 0.9
"""A part of a change is named as its only cause from this share on."""
_LARGE_FRAC = 0.1
"""An undecided change for the worse is mentioned from this share on."""
_MOST_LISTED = 3
"""The most cases that a sentence lists."""
_LONGEST_NAME = 40
"""A side with a longer name, such as one of several settings, is named below the answer."""
_WRONG = {
    LOSSLESS: "changes the text of answers",
    SAMPLING: "draws tokens from another distribution",
    ORACLE: "takes other steps than its models give",
}
"""What speculation does in a case whose check is WRONG."""


def answer_of(report: Report) -> tuple[Tone, str]:
    """Return the answer to the question of a report as a sentence without a full stop.

    A loss makes it bad, and so does another figure whose test fails, whatever its own tone is. A
    figure that was worse than is tolerated without a proof makes it doubtful. A figure that a
    single night can't decide doesn't.
    """
    if isinstance(report, ComparedReport):
        return _answer_of_sides(report)
    run = report.run
    verdicts = last_verdicts(run.verdicts)
    if not verdicts:
        return Tone.DOUBT, f"Nothing was judged: {_why_nothing(report)}"
    failing = [verdict for verdict in verdicts if verdict.fails]
    lost = [verdict for verdict in failing if verdict.outcome in WORSE]
    if lost:
        return Tone.BAD, _losses(report, lost)
    if any(verdict.outcome is not Outcome.NO_BASELINE for verdict in failing):
        return Tone.BAD, _unjudged(report, failing)
    if run.exit_status and not failing:
        other = "something else than a verdict failed or stopped it; see its output"
        return Tone.BAD, f"The run ended with status {run.exit_status}: {other}"
    return _nothing_lost(report, verdicts)


def recorded_cases(report: RunReport) -> Sequence[str]:
    """Return the ids of the cases whose baselines this run recorded."""
    return [
        case.case_id
        for case in report.cases
        if any(record.recorded and record.run == report.run.run for record in case.history)
    ]


def short_names(report: Report) -> Mapping[str, str]:
    """Return a short name for each case, such as `eagle3 c1`, or its id where that isn't unique."""
    names: dict[str, str] = {}
    for case in report.cases:
        _, _, load = case.case_id.rpartition("-")
        names[case.case_id] = f"{case.method} {load}"
    taken = list(names.values())
    return {case_id: name if taken.count(name) == 1 else case_id for case_id, name in names.items()}


def _why_nothing(report: RunReport) -> str:
    """Return why a run judged nothing."""
    reasons = list(dict.fromkeys(report.run.skipped.values()))
    if len(reasons) == 1:
        return reasons[0]
    if reasons:
        return f"all {len(report.run.skipped)} cases were skipped, such as: {reasons[0]}"
    return "no test of a case came to a verdict"


def _losses(report: Report, lost: Sequence[Verdict]) -> str:
    """Describe the case that lost most, after the number of cases that lost anything."""
    worst = leading_loss(lost)
    names = short_names(report)
    description = f"{names.get(worst.case_id, worst.case_id)} {describe_loss(worst, lost)}"
    lost_ids = {verdict.case_id for verdict in lost}
    if len(lost_ids) == 1:
        return description
    judged_ids = {verdict.case_id for verdict in report.run.verdicts}
    return f"{len(lost_ids)} of {len(judged_ids)} cases are worse; {description}"


def leading_loss(lost: Iterable[Verdict]) -> Verdict:
    """Return the loss that says most: wrong text first, then the largest of a deciding metric."""
    return max(lost, key=weight_of)


def weight_of(verdict: Verdict) -> tuple[bool, bool, float]:
    """Return a key by which losses are sorted: the largest says most."""
    metric = METRICS.get(verdict.metric)
    decides = metric is None or not metric.follows
    size = abs(verdict.comparison.change_frac or 0.0)
    return verdict.outcome is Outcome.WRONG, decides, size


def describe_loss(loss: Verdict, lost: Iterable[Verdict]) -> str:
    """Describe a loss as the end of a sentence that begins with the name of its case.

    If acceptance explains nearly all of a lost speed, the lost acceptance is described instead.

    Args:
        lost: all losses of the run.
    """
    own = [verdict for verdict in lost if verdict.case_id == loss.case_id]
    length = next((verdict for verdict in own if verdict.metric == ACCEPTANCE_LENGTH), None)
    causes = [verdict for verdict in own if verdict.cause is not None]
    cause = _main_cause(causes[0]) if causes else ""
    if length is not None and cause == "by acceptance alone":
        loss = length
    comparison = loss.comparison
    change_frac = comparison.change_frac
    if loss.outcome is Outcome.WRONG:
        return _WRONG.get(loss.metric, "is wrong")
    if change_frac is None or comparison.expected is None or loss.value is None:
        return f"lost {label_of(loss.metric)}"
    before = render_value(loss.metric, comparison.expected)
    values = f"{before} → {render_value(loss.metric, loss.value)}"
    percent = f"{100 * abs(change_frac):.1f} %"
    if loss.metric == ACCEPTANCE_LENGTH:
        drafts = f"{comparison.expected - 1:.2f} → {loss.value - 1:.2f} a step"
        text = f"accepts {percent} fewer drafts ({drafts})"
    elif loss.metric == SPEEDUP:
        values = f"×{comparison.expected:.2f} → ×{loss.value:.2f}"
        if loss.value < 1 < comparison.expected:
            values += ", slower than without speculation"
        text = f"lost {percent} of its speedup ({values})"
    elif comparison.two_sided:
        direction = "more" if change_frac > 0 else "less"
        text = f"has {percent} {direction} {label_of(loss.metric)} ({values})"
    else:
        text = f"is worse in {label_of(loss.metric)} by {percent} ({values})"

    return f"{text}, {cause}" if cause else text


def _main_cause(loss: Verdict) -> str:
    """Return which part of a loss explains most of it: `by acceptance alone`."""
    if loss.cause is None:
        return ""
    losses = {
        name: max(0.0, -math.log1p(max(change_frac, -0.999)))
        for name, change_frac in loss.cause.parts
    }
    total = sum(losses.values())
    if not total:
        return ""
    name = max(losses, key=lambda part: losses[part])
    return f"by {name} alone" if losses[name] >= _ALONE_FRAC * total else f"mostly by {name}"


def unjudged_change(report: Report) -> str:
    """Name a figure of each case that looks much worse, though too few launches can tell.

    Returns:
        Empty without such a figure.
    """
    names = short_names(report)
    changes: dict[str, str] = {}
    needed_launches = 0
    for verdict in last_verdicts(report.run.verdicts):
        comparison = verdict.comparison
        is_undecided = verdict.outcome is Outcome.INCONCLUSIVE and comparison.change_frac is None
        if verdict.case_id in changes or not (is_undecided and verdict.needed_launches):
            continue
        metric = METRICS.get(verdict.metric)
        if metric is None or comparison.expected is None or verdict.value is None:
            continue
        if better_frac(metric, verdict.value, comparison.expected) < -_LARGE_FRAC:
            before = format_number(comparison.expected)
            values = f"{before} → {render_value(metric.name, verdict.value)}"
            name = names.get(verdict.case_id, verdict.case_id)
            changes[verdict.case_id] = f"{label_of(metric.name)} {values} in {name}"
            needed_launches = max(needed_launches, verdict.needed_launches)

    if not changes:
        return ""
    parts = list(changes.values())[:_MOST_LISTED]
    if len(changes) > _MOST_LISTED:
        parts.append(f"{len(changes) - _MOST_LISTED} more")
    listed = ", ".join(parts)
    option = f"{wording_of(report).launches}{needed_launches}"
    return f"Too few launches to judge: {listed}; with {option} they can be."


def _unjudged(report: Report, failing: Sequence[Verdict]) -> str:
    """Say how many figures couldn't be judged, and why the first of them couldn't."""
    # A broken meter or machine explains more than a figure that is undecided.
    first = next((item for item in failing if item.outcome is Outcome.INVALID), failing[0])
    name = short_names(report).get(first.case_id, first.case_id)
    why = label_of(first.metric)
    if first.reason is not None:
        why = first.reason.headline
    total = len(last_verdicts(report.run.verdicts))
    return f"{len(failing)} of {counted(total, 'figure')} can't be judged; {name}: {why}"


def _nothing_lost(report: RunReport, verdicts: Sequence[Verdict]) -> tuple[Tone, str]:
    """Return the answer of a run in which nothing is proven to be worse, and no meter failed."""
    recorded = recorded_cases(report)
    if recorded:
        return Tone.GOOD, f"{counted(len(recorded), 'baseline')} recorded"
    parts = []
    held = sum(verdict.outcome in GOOD for verdict in verdicts)
    if held:
        parts.append(_held(verdicts))
        parts += _speedups(verdicts)
    undecided = [verdict for verdict in verdicts if verdict.outcome is Outcome.INCONCLUSIVE]
    if undecided:
        parts.append(_needed_nights(undecided))
    doubts = list(_doubts(report, verdicts))
    if not parts and not doubts:
        doubts.append("Nothing was compared: what was measured has nothing to be compared with")
    tone = Tone.GOOD if held and not doubts else Tone.DOUBT
    return tone, "; ".join(filter(None, (", ".join(parts), *doubts)))


def _needed_nights(undecided: Sequence[Verdict]) -> str:
    """Say how many figures need more nights, and about how many nights the last of them needs."""
    needs = "needs" if len(undecided) == 1 else "need"
    most = max((verdict.needed_nights or 0) - verdict.nights - 1 for verdict in undecided)
    nights = f"about {counted(most, 'more night')}" if most > 0 else "more nights"
    return f"{len(undecided)} {needs} {nights}"


def _held(verdicts: Sequence[Verdict]) -> str:
    """Say how many figures hold."""
    held = [verdict for verdict in verdicts if verdict.outcome in GOOD]
    cases = len({verdict.case_id for verdict in held})
    figures = counted(len(held), "figure")
    if cases > 1:
        figures += f" of {cases} cases"
    return f"{figures} {'holds' if len(held) == 1 else 'hold'}"


def _speedups(verdicts: Iterable[Verdict]) -> Iterator[str]:
    """Say between which values the speedups of a run lie; nothing without one."""
    values = sorted(
        verdict.value
        for verdict in verdicts
        if verdict.metric == SPEEDUP and verdict.value is not None and verdict.outcome in JUDGED
    )
    if values:
        ends = dict.fromkeys(render_value(SPEEDUP, value) for value in (values[0], values[-1]))
        yield f"speedup {' to '.join(ends)}"


def _doubts(report: RunReport, verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Yield what keeps a run without a loss from being good news."""
    run = report.run
    names = short_names(report)
    new_ids = {verdict.case_id for verdict in verdicts if verdict.outcome is Outcome.NO_BASELINE}
    if new_ids:
        have = "has" if len(new_ids) == 1 else "have"
        yield f"{counted(len(new_ids), 'case')} {have} no baseline to be compared with"
    suspects = [verdict for verdict in verdicts if _looks_lost(verdict)]
    if suspects:
        worst = leading_loss(suspects)
        change = f"{label_of(worst.metric)} {worst.comparison.change_frac or 0.0:+.1%}"
        name = names.get(worst.case_id, worst.case_id)
        yield f"{name} looks worse tonight, which isn't proven: {change}"

    if run.slowed:
        slowest = min(run.slowed, key=lambda case_id: run.slowed[case_id])
        ratio = f"throughput ×{run.slowed[slowest]:.2f}"
        yield f"speculation slows {names.get(slowest, slowest)} down ({ratio})"

    if len(run.skipped) > len(report.tier_cases) / 2:
        yield f"{len(run.skipped)} of {len(report.tier_cases)} cases were left out"


def _looks_lost(verdict: Verdict) -> bool:
    """Return whether an undecided figure was worse by more than is tolerated."""
    comparison = verdict.comparison
    if verdict.outcome is not Outcome.INCONCLUSIVE or comparison.change_frac is None:
        return False
    change_frac = comparison.change_frac
    if comparison.two_sided:
        change_frac = -abs(change_frac)
    return change_frac < -(comparison.tolerance_frac or 0.0)


def _answer_of_sides(report: ComparedReport) -> tuple[Tone, str]:
    """Return the answer of a gate: whether to upgrade. Two runs side by side aren't judged."""
    headline = Headline(subject="B against A", tone=Tone.DOUBT, text="none is judged")

    # A report of another machine may have no answer.
    if report.answers:
        headline = report.answers[0]
    if headline.subject not in _GATE_WORDS:
        return headline.tone, str(headline)
    _, side_b = side_names(report.sides)
    if len(side_b) > _LONGEST_NAME:
        side_b = "side B"
    verdicts = last_verdicts(report.run.verdicts)
    failing = [verdict for verdict in verdicts if verdict.fails]
    lost = [verdict for verdict in failing if verdict.outcome in WORSE]
    details = _held(verdicts)
    if lost:
        details = _losses(report, lost)
    elif failing:
        details = _unjudged(report, failing)

    a, b = ((side.text, side.engine_versions) for side in report.sides)
    words = _GATE_WORDS[headline.subject].format("switch" if a == b else "upgrade")
    return headline.tone, f"{words[0].upper()}{words[1:]} to {side_b}: {details}"


_GATE_WORDS = {"UPGRADE": "{}", "DON'T": "don't {}", "UNDECIDED": "can't tell yet whether to {}"}
"""The beginning of a gate's sentence, by the subject of its headline. An equal version needs no
upgrade."""


def side_names(sides: Sequence[SideReport]) -> tuple[str, str]:
    """Return what the sides of a gate are: `vllm 0.31.0`, and else what was typed.

    Sides of the same version have the settings that differ as their names.
    """
    versions = [side.engine_versions for side in sides]
    are_versions_known = all(versions) and versions[0] != versions[1]
    names = []
    for side in sides:
        # A folder or a wheel says less than the version that its servers reported.
        name = side.text.replace("==", " ")
        if are_versions_known:
            name = ", ".join(side.engine_versions)
        if side.overrides:
            name = f"{name} with {', '.join(side.overrides)}"
        names.append(name)

    side_a, side_b = names
    return side_a, side_b


def comparison_of(report: Report) -> str:
    """Say what was compared with what: engine, version, commit, machine and date."""
    run = report.run
    parts = []
    if isinstance(report, ComparedReport):
        side_a, side_b = side_names(report.sides)
        parts.append(f"B, {side_b}, against A, {side_a}")
    else:
        measured = ", ".join(_engines(report.cases))
        # A recording is compared with nothing.
        recorded = "" if recorded_cases(report) else _baselines(report.cases)
        parts.append(f"{measured} against {recorded}" if recorded else measured)

    if run.attached:
        parts.append(f"at {run.attached}")

    # It is the servers' environment, which is known of attached ones only if the user names it.
    if not run.attached or run.environment != UNKNOWN_ENVIRONMENT.name:
        parts.append(f"on {run.environment}")
    if report.origin.commit:
        parts.append(f"commit {report.origin.commit[:12]}")
    began = began_at(run.run)
    if began is None and report.ended_at:
        began = dt.datetime.fromisoformat(report.ended_at)
    if began is not None:
        parts.append(f"{began.day} {began:%B %Y, %H:%M} UTC")
    parts.append(f"tier {run.tier}")
    return ", ".join(filter(None, parts))


def _engines(cases: Iterable[CaseReport]) -> Sequence[str]:
    """Return each engine that was measured, with its version."""
    names = [
        f"{case.engine} {case.figures.engine_version}".rstrip()
        for case in cases
        if case.figures is not None
    ]
    return list(dict.fromkeys(names))


def _baselines(cases: Sequence[CaseReport]) -> str:
    """Describe the baselines of the cases by their date and the version of their engine."""
    expected = [case.expected for case in cases if case.expected is not None]
    if not expected:
        return ""
    days = sorted({_day(baseline.recorded_on) for baseline in expected}, key=len)
    versions = sorted({baseline.engine_version for baseline in expected} - {""})
    dates = days[0] if len(days) == 1 else "several days"
    text = f"the baselines of {dates}"
    return f"{text} ({', '.join(versions)})" if versions else text


def _day(date: str) -> str:
    """Return a date as people write it; a text that is no date as it is."""
    try:
        day = dt.date.fromisoformat(date)
    except ValueError:
        return date
    return f"{day.day} {day:%B %Y}"
