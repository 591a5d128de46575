"""Say what a report comes to. The terminal, the page and Markdown render the parts alike."""

from collections.abc import Iterator, Mapping, Sequence

from specreg.report.charts import positions_picture, waterfall
from specreg.report.diagnosis import diagnose, say_once
from specreg.report.document import CaseReport, Report, Tone, last_verdicts
from specreg.report.failures import by_case, changes_since_baseline, render_failures
from specreg.report.next_steps import next_steps
from specreg.report.parts import Chart, Details, Output, Part, Parts, Section, Text, VerdictLine
from specreg.report.sentence import (
    answer_of,
    comparison_of,
    leading_loss,
    short_names,
    unjudged_change,
    weight_of,
)
from specreg.report.since import since_when
from specreg.report.summary import busy_note, notes_of, tone_of
from specreg.report.wording import wording_of
from specreg.verdicts.verdict import Outcome, Verdict

_LOST = {Outcome.WRONG, Outcome.REGRESSED}
_MAX_ERROR_CHARS = 6_000
"""How much of the end of an error message is shown."""


def view_of(report: Report) -> Parts:
    """Return the answer and its causes, what was compared, what to type, and what needs a look."""
    tone, sentence = answer_of(report)
    failing = failing_by_case(report)
    causes, own_findings = _findings(report, failing)
    important = filter(None, (*causes, unjudged_change(report), busy_note(report)))
    return (
        VerdictLine(tone=tone, text=sentence),
        *(Text(text, is_important=True) for text in important),
        Text(comparison_of(report)),
        *map(Text, notes_of(report)),
        *next_steps(report),
        *_sections(report, failing, own_findings),
    )


def failing_by_case(report: Report) -> Mapping[str, Sequence[Verdict]]:
    """Return the failed verdicts of each case. The worst loss is first, as it is in the answer."""
    failing = by_case(verdict for verdict in last_verdicts(report.run.verdicts) if verdict.fails)
    return dict(sorted(failing.items(), key=lambda item: _badness(item[1]), reverse=True))


def _findings(
    report: Report, failing: Mapping[str, Sequence[Verdict]]
) -> tuple[Sequence[str], Mapping[str, Sequence[str]]]:
    """Return what the losses of several cases point to, and those of each case alone."""
    cases = {case.case_id: case for case in report.cases}
    findings = {}
    for case_id, verdicts in failing.items():
        lost = [verdict for verdict in verdicts if verdict.outcome in _LOST]
        if lost and case_id in cases:
            findings[case_id] = list(diagnose(cases[case_id], lost))

    drafters = {case_id: (case.method, case.draft) for case_id, case in cases.items()}
    return say_once(findings, short_names(report), drafters)


def _sections(
    report: Report, failing: Mapping[str, Sequence[Verdict]], findings: Mapping[str, Sequence[str]]
) -> Iterator[Section]:
    """Yield a section for each case with a failed verdict."""
    cases = {case.case_id: case for case in report.cases}
    names = short_names(report)
    for case_id, verdicts in failing.items():
        parts = list(_figures(report, verdicts))
        case = cases.get(case_id)
        if case is not None:
            parts = [*_evidence(report, case, verdicts), *parts, *_logs(case)]
        yield Section(
            case_id=case_id,
            name=names.get(case_id, case_id),
            tone=tone_of(verdicts),
            findings=findings.get(case_id, ()),
            parts=tuple(parts),
        )


def _badness(verdicts: Sequence[Verdict]) -> tuple[bool, tuple[bool, bool, float]]:
    """Return a key by which cases are sorted: the largest is the worst one."""
    return tone_of(verdicts) is Tone.BAD, weight_of(leading_loss(verdicts))


def _evidence(report: Report, case: CaseReport, verdicts: Sequence[Verdict]) -> Iterator[Part]:
    """Yield why nothing was judged, what changed and since when, and pictures of what was lost."""
    has_loss = any(verdict.outcome in _LOST for verdict in verdicts)
    if not has_loss:
        reasons = [verdict.explanation for verdict in verdicts]
        yield from (Text(reason) for reason in dict.fromkeys(reasons) if reason)
    if report.origin.driver_version and case.expected is not None:
        before = case.expected.driver_version
        if before and before != report.origin.driver_version:
            yield Text(f"driver {before} → {report.origin.driver_version}")

    for change in changes_since_baseline(case):
        yield Text(f"Changed since its baseline: {change}")
    yield from (Text(story) for story in since_when(case, verdicts))
    wording = wording_of(report)
    fall = waterfall(verdicts, wording.before, wording.now)
    if fall is not None:
        yield Chart(fall)
    all_verdicts = by_case(last_verdicts(report.run.verdicts))[case.case_id]
    title = f"Accepted drafts by position; grey: {wording.before}"
    positions = positions_picture(case, all_verdicts, title)
    if positions is not None:
        yield Chart(positions)


def _figures(report: Report, verdicts: Sequence[Verdict]) -> Iterator[Part]:
    """Yield the failed figures of a case with their reasons."""
    expectation = wording_of(report).expectation
    lines = render_failures(verdicts, expectation=expectation).splitlines()
    yield Details("The figures", tuple(map(Text, lines)))


def _logs(case: CaseReport) -> Iterator[Part]:
    """Yield the end of a case's error message unless its reason has all of it, and its logs."""
    parts: list[Part] = []
    message = case.error.strip()
    if "\n" in message:
        parts.append(Output(message[-_MAX_ERROR_CHARS:]))
    if case.logs:
        parts.append(Text(f"logs of the servers: {', '.join(case.logs)}"))
    if parts:
        yield Details("The error and the logs" if message else "The logs", tuple(parts))
