"""Render a report document and recorded baselines for a terminal, with the next commands."""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from rich.style import Style
from rich.text import Text as StyledText

from specreg.baselines.comparison import CaseSpreads, change_of_baseline, spreads_of
from specreg.baselines.record import RecordedBaseline
from specreg.core.values import readable_values
from specreg.measurement.metrics import METRICS, Metric, better_frac
from specreg.report.document import ComparedReport, Report, SideReport, is_release, last_verdicts
from specreg.report.parts import Commands, Details, Output, Part, Section, Table, Text, VerdictLine
from specreg.report.screen import LOG, Screen
from specreg.report.sentence import recorded_cases
from specreg.report.summary import OUTCOMES, STYLES, tone_of
from specreg.report.tables import (
    MOST_ROWS,
    NOTHING,
    Layout,
    compared_cells,
    interval_of,
    label_of,
    render_change,
    render_interval,
    render_rows,
)
from specreg.report.view import failing_by_case, view_of
from specreg.report.wording import OF_A_RUN
from specreg.stats.intervals import LEVELS, Look
from specreg.verdicts.detection import to_frac
from specreg.verdicts.judge import PUBLISHED
from specreg.verdicts.verdict import WORSE, Lack, Outcome, Verdict

_NOTED = {*WORSE, Outcome.INVALID, Outcome.INCONCLUSIVE}
_LEGEND = "change: better is +; interval: where the change lies"
_LACKS_NOTED = {Lack.SOURCE, Lack.FILE}


def render_report(
    report: Report,
    screen: Screen = LOG,
    *,
    details: Sequence[str] = (),
    shows_failures: bool = False,
) -> str:
    """Render a document for a terminal: the answer first, and what to type next last.

    Args:
        report: the document.
        screen: where it is shown.
        details: further paragraphs below the tables.
        shows_failures: whether the failed verdicts are explained above already.
    """
    report = readable_values(report)

    # The case that the answer names is the first one of the table.
    order = {case_id: number for number, case_id in enumerate(failing_by_case(report))}
    verdicts = sorted(
        report.run.verdicts, key=lambda verdict: order.get(verdict.case_id, len(order))
    )
    if isinstance(report, ComparedReport):
        tables = list(_render_sides(report, verdicts, screen))
        # The sides are compared with each other, and not with a baseline.
        environment = None
    else:
        if recorded_cases(report):
            verdicts = [verdict for verdict in verdicts if verdict.outcome is not Outcome.MEASURED]
        tables = [_render_most(verdicts, screen)]
        environment = report.run.environment

    to_explain = [verdict for verdict in verdicts if not (shows_failures and verdict.fails)]
    below = (*tables, *details, render_notes(to_explain, environment), "\n".join(report.remarks))
    view = view_of(report)
    commands = [part for part in view if isinstance(part, Commands)]
    answer = [part for part in view if part not in commands]
    return render_view((*answer, *map(Output, below), *commands), screen)


def render_view(view: Iterable[Part], screen: Screen = LOG) -> str:
    """Render the parts of a view: sentences as lines, and all else with a blank line around it."""
    blocks: list[str] = []
    was_sentence = False
    for part in view:
        rendered = _render_part(part, screen)
        is_sentence = isinstance(part, VerdictLine | Text | Section)
        if rendered and is_sentence and was_sentence:
            blocks[-1] += f"\n{rendered}"
        elif rendered:
            blocks.append(rendered)
            was_sentence = is_sentence

    return "\n\n".join(blocks)


def _render_part(part: Part, screen: Screen) -> str:
    """Render a part of a view; empty for a picture."""
    rendered = ""
    match part:
        case VerdictLine():
            style = Style.parse(STYLES[part.tone])
            rendered = style.render(str(part)) if screen.color else str(part)
        case Text() | Output():
            rendered = part.text
        case Table():
            rendered = render_rows(part.head, part.rows, screen, part.layout)
        case Details():
            lines = render_view(part.parts, screen).splitlines()
            rendered = "\n  ".join((f"{part.title}:", *lines))
        case Commands():
            rendered = "\n  ".join((f"{part.purpose}:", *part.commands))
        case Section():
            rendered = "\n".join(f"{part.name}: {finding}" for finding in part.findings)
    return rendered


def _render_sides(
    report: ComparedReport, verdicts: Sequence[Verdict], screen: Screen
) -> Iterator[str]:
    """Yield a table with all verdicts, because a gate has no switch to show more, and its control.

    For the control, side A is launched twice, as A1 and A2. The table calls A1 just A.
    """
    side_a, side_b = report.sides
    columns = (_with_version(side_b), _with_version(side_a))
    yield render_verdicts(verdicts, screen, columns=columns)
    if report.control:
        columns = (f"{side_a.name}2", side_a.name)
        table = render_verdicts(report.control, screen, columns=columns)
        yield f"the control, {side_a.name} against itself:\n{table}"


def _render_most(verdicts: Sequence[Verdict], screen: Screen) -> str:
    """Render the verdicts of a run, and only count those that pass if they are many."""
    shown = last_verdicts(verdicts)
    folded = [verdict for verdict in shown if not _is_always_shown(verdict)]
    if screen.verbose or len(folded) <= MOST_ROWS:
        return render_verdicts(shown, screen)
    always_shown = [verdict for verdict in shown if _is_always_shown(verdict)]
    table = render_verdicts(always_shown, screen)
    counts = Counter(verdict.outcome for verdict in folded)
    words = [f"{counts[outcome]} {_word_of(outcome)}" for outcome in OUTCOMES if counts[outcome]]
    count = f"{', '.join(reversed(words))}: -v shows each"
    if not table:
        # The answer has the numbers already.
        count = "-v shows each figure"
    return "\n\n".join(filter(None, (table, count)))


def _is_always_shown(verdict: Verdict) -> bool:
    return verdict.fails or verdict.outcome in {Outcome.IMPROVED, *WORSE}


def _word_of(outcome: Outcome) -> str:
    return OUTCOMES[outcome].word or "hold"


def _with_version(side: SideReport) -> str:
    """Return the title of a side's column: its name, and its version below it if that is short."""
    name = side.text.replace("==", "\n") if is_release(side.text) else ""
    return f"{side.name}: {name}".removesuffix(": ")


def render_verdicts(
    verdicts: Sequence[Verdict],
    screen: Screen = LOG,
    *,
    columns: tuple[str, str] = OF_A_RUN.columns,
) -> str:
    """Render a table with verdicts, grouped by case in their order.

    Args:
        screen: where the table is shown.
        columns: the titles of the columns for a verdict's `value` and `expected`. What a value is
            compared with stands before it.
    """
    rows_by_case: dict[str, list[Sequence[str | StyledText]]] = {
        verdict.case_id: [[verdict.case_id]] for verdict in verdicts
    }
    for verdict in last_verdicts(verdicts):
        comparison = verdict.comparison
        style = ""
        if screen.color:
            style = STYLES[tone_of([verdict])]
        cells = compared_cells(verdict.metric, comparison.expected, verdict.value)
        row: Sequence[str | StyledText] = [
            f"  {cells.name}",
            cells.expected,
            cells.value,
            render_change(comparison.change_frac),
            render_interval(*interval_of(verdict)),
            comparison.tolerated or NOTHING,
            StyledText(verdict.outcome, style),
        ]
        rows_by_case[verdict.case_id].append(row)

    head = ("case and metric", *reversed(columns), "change", "interval", "tolerated", "outcome")
    rows = itertools.chain.from_iterable(rows_by_case.values())
    table = render_rows(head, rows, screen, Layout(left=("outcome",), optional=("tolerated",)))
    if not table:
        return ""
    legend = f"{_LEGEND}; tolerated: the loss that passes" if "tolerated" in table else _LEGEND
    return f"{table}\n{legend}"


def render_recorded(recorded: Iterable[RecordedBaseline], screen: Screen = LOG) -> str:
    """Render a table with the old and the new value of each metric of recorded baselines."""
    rows: list[Sequence[str]] = []
    for record in recorded:
        # A row with a single cell is the heading of the baseline.
        rows.append([f"{record.path.parent.name}/{record.path.stem}"])
        spreads = spreads_of(CaseSpreads.of(record.new.launches))
        # A baseline of acceptance alone doesn't say how many launches it has.
        launches = str(len(record.new.launches) or NOTHING)
        for metric in METRICS.values():
            new_value = record.new.expected_value(metric)
            if new_value is None:
                continue
            spread = spreads.get(metric.name)
            spread_text = NOTHING
            if spread is not None:
                spread_text = f"{spread.within_frac:.1%}"
            old_value = record.old.expected_value(metric) if record.old else None
            compared = compared_cells(metric.name, old_value, new_value)
            changes = _change_cells(metric, record, old_value, new_value)
            rows.append(
                (
                    f"  {compared.name}",
                    compared.expected,
                    compared.value,
                    *changes,
                    spread_text,
                    launches,
                )
            )

    head = ("baseline", "old", "new", "change", "interval", "spread", "launches")
    return render_rows(head, rows, screen)


def _change_cells(
    metric: Metric, record: RecordedBaseline, old_value: float | None, new_value: float
) -> tuple[str, str]:
    """Return the change of a value and its interval."""
    if record.old is None or old_value is None:
        return NOTHING, NOTHING
    interval = NOTHING
    effect = change_of_baseline(metric, record.old, record.new)
    if effect is not None:
        # The level is that of a run, so the interval shows what a run could prove.
        low, high = effect.bounds(LEVELS[Look.LAUNCH if metric.by_launch else Look.FULL])
        low_frac = to_frac(metric, low)
        high_frac = to_frac(metric, high)
        interval = render_interval(low_frac, high_frac)

    return render_change(better_frac(metric, new_value, old_value)), interval


def render_undecidable(recorded: Iterable[RecordedBaseline]) -> str:
    """List the metrics that one run can't decide against new baselines; empty if there are none."""
    lines = []
    for record in recorded:
        undecidable = [
            f"{label_of(name)} {detectable}"
            for name, detectable in record.new.detects.items()
            if not detectable.decides
        ]
        if undecidable:
            lines.append(f"  {record.path.stem}: {', '.join(undecidable)}")

    if not lines:
        return ""
    head = "one run can't decide these here:"
    return "\n".join((head, *lines))


def render_unjudged(recorded: Iterable[RecordedBaseline], timed_launches: Mapping[str, int]) -> str:
    """List what no run can judge because new baselines lack figures; empty if they lack nothing.

    Args:
        timed_launches: on how many launches the speed of a case was measured, by the case's id; it
            doesn't have the cases whose speed wasn't measured.
    """
    lines = []
    for record in recorded:
        acceptance = record.new.acceptance
        # Without counts of prompts or rounds, nothing shows how acceptance varies.
        if acceptance is not None and not (acceptance.prompts or acceptance.rounds):
            lines.append(
                f"  {record.path.stem}: acceptance, as the engine counts for all requests together;"
                " use an engine whose answers carry their own counts"
            )
        launches = timed_launches.get(record.path.stem, 0)
        if launches and not record.new.launches:
            problem = "a launch has no valid values of them; record the case again"
            # The speed of a single launch isn't recorded.
            if launches == 1:
                problem = (
                    "one launch doesn't show how launches differ; leave out --specreg-launches"
                )
            lines.append(f"  {record.path.stem}: speed and power, as {problem}")

    if not lines:
        return ""
    head = "no run can judge these by what was recorded:"
    return "\n".join((head, *lines))


def render_notes(verdicts: Iterable[Verdict], environment: str | None) -> str:
    """Render the reasons of verdicts, the first one for each case and outcome.

    Reasons are rendered only for figures that are bad or undecided, or whose baseline is unreadable
    or was measured in another way. The last line names the baselines of other machines with which
    acceptance was compared.

    Args:
        verdicts: the verdicts of the run.
        environment: the environment of this machine; None if nothing was compared with a baseline.
    """
    noted: dict[tuple[str, Outcome], list[Verdict]] = {}
    foreign_origins: dict[str, str] = {}
    for verdict in verdicts:
        is_noted = verdict.outcome in _NOTED or verdict.lacks in _LACKS_NOTED
        if verdict.reason is not None and is_noted:
            noted.setdefault((verdict.case_id, verdict.outcome), []).append(verdict)
        if verdict.comparison.against not in {"", environment}:
            foreign_origins[verdict.case_id] = verdict.comparison.against

    lines = [_note_on(verdicts[0], len(verdicts)) for verdicts in noted.values()]
    if foreign_origins and environment is not None:
        lines.append(_foreign_note(foreign_origins))
    return "\n".join(lines)


def _note_on(verdict: Verdict, figures: int) -> str:
    """Render the reason of the first of so many figures of a case with one outcome."""
    subject = verdict.case_id
    expected = verdict.comparison.expected
    if expected is not None:
        subject += f", {compared_cells(verdict.metric, expected, verdict.value).name}"
        if figures > 1:
            subject += f" (and {figures - 1} more)"
    return f"{subject}: {verdict.explanation}"


def _foreign_note(origins: Mapping[str, str]) -> str:
    """Say that acceptance was compared with baselines of other machines, or with publications.

    Args:
        origins: what each such case was compared with, by the case's id.
    """
    cases = f"{len(origins)} cases"
    possessive = "their"
    if len(origins) == 1:
        (case_id,) = origins
        cases = f"'{case_id}'"
        possessive = "its"

    environments = sorted({*origins.values()} - {PUBLISHED})
    if PUBLISHED in origins.values():
        environments.append("published figures")
    return (
        f"nothing was recorded on this kind of machine for {cases}: {possessive} acceptance is"
        f" judged against {' and '.join(environments)}, where more is tolerated; {possessive}"
        " speed is not comparable"
    )


def render_written(recorded: Sequence[RecordedBaseline]) -> str:
    """List the files of recorded baselines, at least one."""
    here = Path.cwd()
    paths = []
    for record in recorded:
        path = record.path
        if path.is_relative_to(here):
            path = path.relative_to(here)
        paths.append(str(path))

    return "\n  ".join(("written:", *paths))
