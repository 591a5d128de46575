"""Describe what failed, why, and since when, in a paragraph for each case."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from specreg.core.readable import readable_line
from specreg.core.values import readable_values
from specreg.engines.launch_facts import changed_facts
from specreg.measurement.metrics import ACCEPTANCE_LENGTH
from specreg.report.document import CaseReport, flat_fields
from specreg.report.tables import compared_cells, interval_of, label_of, render_value
from specreg.report.wording import OF_A_RUN
from specreg.verdicts.verdict import Comparison, Outcome, Verdict


def sentence_of(verdict: Verdict, expectation: str = OF_A_RUN.expectation) -> str:
    """Return a sentence with the measured and the expected value of a verdict and their difference.

    Without an interval of the difference, it has only the metric and the measured value.

    `tpot p50 2.1 ms, recorded 2 ms: worse by 5.2 % (2.1 to 8.0 %), tolerance 3 %`

    Args:
        expectation: the word before the expected value, see `Wording`.
    """
    comparison = verdict.comparison
    subject = _label_and_value(verdict)
    if comparison.change_frac is None or comparison.low_frac is None:
        return subject
    expected = render_value(verdict.metric, comparison.expected)
    if verdict.metric == ACCEPTANCE_LENGTH:
        cells = compared_cells(verdict.metric, comparison.expected, verdict.value)
        subject = f"accepted drafts {cells.value} a step"
        expected = f"{cells.expected} a step"

    direction = _direction(comparison, comparison.change_frac)
    percent = 100 * abs(comparison.change_frac)
    interval = _interval_words(verdict)
    change = f"{direction} by {percent:.1f} % ({interval})"
    sentence = f"{subject}, {expectation} {expected}: {change}"
    if comparison.tolerated:
        sentence += f", tolerance {comparison.tolerated}"
    if verdict.cause is not None:
        sentence += f"; {verdict.cause}"
    return sentence


def _label_and_value(verdict: Verdict) -> str:
    """Return the metric with its value, such as `tpot p50 2.1 ms`, or without one."""
    label = label_of(verdict.metric)
    if verdict.value is None:
        return label
    return f"{label} {render_value(verdict.metric, verdict.value)}"


def _direction(comparison: Comparison, change_frac: float) -> str:
    """Return the word for a change: `better` or `worse`, or `more` or `less` if two-sided."""
    if comparison.two_sided:
        return "less" if change_frac < 0 else "more"
    return "worse" if change_frac < 0 else "better"


def _interval_words(verdict: Verdict) -> str:
    """Return the interval of a change in percent, with directions if it contains 0."""
    low_percent, high_percent = (100 * (end_frac or 0.0) for end_frac in interval_of(verdict))

    # If the whole interval is on one side of 0, the sentence says already on which.
    if low_percent * high_percent >= 0:
        nearer, farther = sorted((abs(low_percent), abs(high_percent)))
        return f"{nearer:.1f} to {farther:.1f} %"
    down = _direction(verdict.comparison, -1.0)
    up = _direction(verdict.comparison, 1.0)
    return f"{-low_percent:.1f} % {down} to {high_percent:.1f} % {up}"


def render_skip(verdict: Verdict) -> str:
    """Return one line about why a test is skipped."""
    subject = _label_and_value(verdict)
    return readable_line(f"{verdict.case_id}, {subject}: {verdict.outcome}, {verdict.explanation}")


def properties(verdict: Verdict) -> Iterator[tuple[str, str]]:
    """Yield the fields of a verdict that aren't empty, as the names and texts of properties."""
    for name, value in flat_fields(readable_values(verdict)).items():
        if value not in (None, "", ()):
            yield f"specreg.{name}", readable_line(str(value))


def render_blocks(verdicts: Sequence[Verdict], errors: Mapping[str, str]) -> Mapping[str, str]:
    """Describe what went wrong with each failed case, in the order of the run.

    Args:
        verdicts: the verdicts of the run.
        errors: the error message of each case that failed with an error, by its id. If the messages
            of several cases have the same first line, only the first of them is shown as a whole.

    Returns:
        The description of each case, by its id.
    """
    shown_heads: set[str] = set()
    texts = {}
    failed = [verdict for verdict in verdicts if verdict.fails]
    for case_id, case_verdicts in by_case(failed).items():
        error = errors.get(case_id, "")
        head, _, _ = error.partition("\n")
        shown_error = error
        if head in shown_heads:
            shown_error = f"{head}\n(as above)"
        texts[case_id] = render_failures(case_verdicts, shown_error)
        # A case without an error has nothing that a later case could refer to.
        if head:
            shown_heads.add(head)

    return texts


def render_failures(
    verdicts: Sequence[Verdict], error: str = "", expectation: str = OF_A_RUN.expectation
) -> str:
    """Describe what went wrong with one case: a line for each metric, with the reason below it.

    Metrics with the same reason are grouped, and those that weren't compared share a line.

    Args:
        verdicts: the failed verdicts of the case.
        error: the error message of the case. If the reason of a verdict is only the first line of
            this message, the whole message is shown instead.
        expectation: the word before an expected value, see `Wording`.
    """
    error_head, _, _ = error.partition("\n")
    groups: dict[tuple[Outcome, str], list[Verdict]] = {}
    for verdict in verdicts:
        key = (verdict.outcome, _kind_of_reason(verdict))
        groups.setdefault(key, []).append(verdict)
    lines = []
    for (outcome, _), group in groups.items():
        lines += [f"{outcome}: {sentence}" for sentence in _sentences(group, expectation)]
        explanation = group[0].explanation
        text = error if explanation == error_head else explanation
        lines += [f"  {line}" for line in text.splitlines()]

    return "\n".join(lines)


def _kind_of_reason(verdict: Verdict) -> str:
    """Return a key that is equal for reasons which differ only in their numbers."""
    if verdict.reason is None:
        return ""
    return verdict.reason.shown_code or verdict.reason.text


def _sentences(verdicts: Sequence[Verdict], expectation: str) -> list[str]:
    """Return a sentence for each compared metric, and one sentence for all the others."""
    compared: list[str] = []
    uncompared: list[str] = []
    for verdict in verdicts:
        is_compared = verdict.comparison.change_frac is not None
        sentences = compared if is_compared else uncompared
        sentences.append(sentence_of(verdict, expectation))

    if uncompared:
        compared.append(", ".join(uncompared))
    return compared


def by_case(verdicts: Iterable[Verdict]) -> Mapping[str, Sequence[Verdict]]:
    """Group verdicts by their case, in the order of the run."""
    cases: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        cases.setdefault(verdict.case_id, []).append(verdict)
    return cases


def changes_since_baseline(case: CaseReport) -> Iterator[str]:
    """Yield the facts about the launch that changed since the baseline was recorded."""
    if case.figures is not None and case.expected is not None:
        yield from changed_facts(case.expected.facts, case.figures.facts)
