"""Say what a report comes to. The terminal, the page and Markdown render the parts alike."""

from collections.abc import Iterator, Sequence

from specreg.report.charts import positions_picture, waterfall
from specreg.report.diagnosis import diagnose
from specreg.report.document import CaseReport, Report, Tone, last_verdicts
from specreg.report.failures import by_case, changes_since_baseline, expectation_of, render_failures
from specreg.report.next_steps import next_steps
from specreg.report.parts import Chart, Details, Output, Part, Parts, Section, Text, VerdictLine
from specreg.report.sentence import answer_of, comparison_of, leading_loss, short_names, weight_of
from specreg.report.since import since_when
from specreg.report.summary import notes_of, tone_of
from specreg.verdicts.verdict import Outcome, Verdict

_LOST = {Outcome.WRONG, Outcome.REGRESSED}
_MAX_ERROR_CHARS = 6_000
"""How much of the end of an error message is shown."""


def view_of(report: Report) -> Parts:
    """Return the answer, what was compared, notes, what to type next, and what needs a look."""
    tone, sentence = answer_of(report)
    notes = [Text(note) for note in notes_of(report)]
    return (
        VerdictLine(tone=tone, text=sentence),
        Text(comparison_of(report)),
        *notes,
        *next_steps(report),
        *_sections(report),
    )


def _sections(report: Report) -> Iterator[Section]:
    """Yield a section for each case with a failed verdict, those with bad news first."""
    failing = [verdict for verdict in last_verdicts(report.run.verdicts) if verdict.fails]
    cases = {case.case_id: case for case in report.cases}
    names = short_names(report)
    # The worst loss comes first, as it does in the sentence.
    worst_first = sorted(by_case(failing).items(), key=lambda item: _badness(item[1]), reverse=True)
    for case_id, verdicts in worst_first:
        findings: Sequence[str] = ()
        parts = list(_figures(report, verdicts))
        case = cases.get(case_id)
        if case is not None:
            lost = [verdict for verdict in verdicts if verdict.outcome in _LOST]
            findings = [str(finding) for finding in diagnose(case, lost)]
            parts = [*_evidence(report, case, verdicts), *parts, *_logs(case)]
        yield Section(
            case_id=case_id,
            name=names.get(case_id, case_id),
            tone=tone_of(verdicts),
            findings=findings,
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
    fall = waterfall(verdicts)
    if fall is not None:
        yield Chart(fall)
    before = report.arms[0].name if report.arms else "before"
    positions = positions_picture(case, verdicts, f"Accepted drafts by position; grey: {before}")
    if positions is not None:
        yield Chart(positions)


def _figures(report: Report, verdicts: Sequence[Verdict]) -> Iterator[Part]:
    """Yield the failed figures of a case with their reasons."""
    lines = render_failures(verdicts, expectation=expectation_of(report)).splitlines()
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
