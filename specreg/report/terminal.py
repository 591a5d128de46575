"""Render a report document and recorded baselines for a terminal, with the next commands."""

import itertools
import shlex
from collections.abc import Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path

from rich.text import Text

from specreg.baselines.comparison import CaseSpreads, change_of_baseline, spreads_of
from specreg.baselines.record import RecordedBaseline, commit_of
from specreg.core.commands import is_attached, record_command, run_command
from specreg.core.values import readable_values
from specreg.measurement.metrics import METRICS, Metric, better_frac
from specreg.report.document import Report, last_verdicts
from specreg.report.summary import STYLES, answers_of, notes_of, render_answers, title_of, tone_of
from specreg.report.tables import (
    NOTHING,
    format_number,
    label_of,
    render_change,
    render_interval,
    render_rows,
)
from specreg.stats.intervals import LEVELS
from specreg.verdicts.detection import to_frac
from specreg.verdicts.judge import PUBLISHED, planned_look
from specreg.verdicts.verdict import Lack, Outcome, Verdict

_WORSE = {Outcome.WRONG, Outcome.REGRESSED}
_NOTED = {*_WORSE, Outcome.INVALID, Outcome.INCONCLUSIVE}
_LACKS_NOTED = {Lack.SOURCE, Lack.FILE}


def render_report(report: Report, *, color: bool) -> str:
    """Render a document for a terminal: the headlines first, and the next commands last."""
    report = readable_values(report)
    run = report.run
    new, before = columns_of(report)
    control_text = ""
    if report.control:
        # For the control, side A is launched twice, as A1 and A2. The table calls A1 just A.
        columns = (f"{before}2", before)
        control_table = render_verdicts(report.control, color=color, columns=columns)
        control_text = f"the control, {before} against itself:\n{control_table}"
    # The sides of a gate are compared with each other, and not with a baseline.
    environment = None
    if not report.arms:
        environment = run.environment
    notes = (*notes_of(report), *report.remarks)
    parts = (
        title_of(report),
        render_answers(answers_of(report), color=color),
        render_verdicts(run.verdicts, color=color, columns=(new, before)),
        control_text,
        render_notes(run.verdicts, environment),
        "\n".join(notes),
        next_of(report),
    )
    return "\n\n".join(part for part in parts if part)


def columns_of(report: Report) -> tuple[str, str]:
    """Return the titles of the columns for a verdict's `value` and `expected`."""
    if not report.arms:
        return "value", "baseline"
    before, new = (arm.name for arm in report.arms)
    return new, before


def next_of(report: Report) -> str:
    """Return the next commands: the hints of a gate, or those that follow from the run."""
    if report.arms:
        return "\n".join(report.hints)
    verdicts = report.run.verdicts
    whole_ids = set(report.tier_cases)
    if report.run.complete:
        # A complete run has verdicts on all cases that have something to judge.
        whole_ids = {verdict.case_id for verdict in verdicts}
    return render_next(verdicts, whole_ids, report.origin.options)


def render_verdicts(
    verdicts: Sequence[Verdict], *, color: bool, columns: tuple[str, str] = ("value", "baseline")
) -> str:
    """Render a table with the verdicts of `last_verdicts`, grouped by case in the run's order."""
    rows_by_case: dict[str, list[Sequence[str | Text]]] = {
        verdict.case_id: [[verdict.case_id]] for verdict in verdicts
    }
    for verdict in last_verdicts(verdicts):
        comparison = verdict.comparison
        style = ""
        if color:
            style = STYLES[tone_of([verdict])]
        row: Sequence[str | Text] = [
            f"  {verdict.metric}",
            format_number(verdict.value),
            format_number(comparison.expected),
            render_change(comparison.change_frac),
            render_interval(comparison.low_frac, comparison.high_frac),
            comparison.tolerated or NOTHING,
            Text(verdict.outcome, style),
        ]
        rows_by_case[verdict.case_id].append(row)
    head = ("case and metric", *columns, "change", "interval", "tolerated", "outcome")
    rows = itertools.chain.from_iterable(rows_by_case.values())
    return render_rows(head, rows, color=color, left_columns=("outcome",))


def render_recorded(recorded: Iterable[RecordedBaseline], *, color: bool) -> str:
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
            cells = (
                f"  {metric.name}",
                *_change_cells(metric, record, new_value),
                spread_text,
                launches,
            )
            rows.append(cells)
    head = ("baseline", "old", "new", "change", "interval", "spread", "launches")
    return render_rows(head, rows, color=color)


def _change_cells(
    metric: Metric, record: RecordedBaseline, new_value: float
) -> tuple[str, str, str, str]:
    """Return the old value, the new value, the change and its interval."""
    old_value = record.old.expected_value(metric) if record.old else None
    if record.old is None or old_value is None:
        return NOTHING, format_number(new_value), NOTHING, NOTHING
    interval = NOTHING
    effect = change_of_baseline(metric, record.old, record.new)
    if effect is not None:
        # The level is that of a run, so the interval shows what a run could prove.
        low, high = effect.bounds(LEVELS[planned_look(metric)])
        low_frac = to_frac(metric, low)
        high_frac = to_frac(metric, high)
        interval = render_interval(low_frac, high_frac)
    change = render_change(better_frac(metric, new_value, old_value))
    return format_number(old_value), format_number(new_value), change, interval


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
        recorded: the recorded baselines.
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
    first_notes: dict[tuple[str, Outcome], str] = {}
    foreign_origins: dict[str, str] = {}
    for verdict in verdicts:
        is_noted = verdict.outcome in _NOTED or verdict.lacks in _LACKS_NOTED
        if verdict.reason is not None and is_noted:
            note = f"{verdict.case_id}: {verdict.explanation}"
            first_notes.setdefault((verdict.case_id, verdict.outcome), note)
        if verdict.comparison.against not in {"", environment}:
            foreign_origins[verdict.case_id] = verdict.comparison.against
    lines = list(first_notes.values())
    if foreign_origins and environment is not None:
        lines.append(_foreign_note(foreign_origins))
    return "\n".join(lines)


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


def render_next(
    verdicts: Sequence[Verdict], whole_ids: AbstractSet[str], options: Sequence[str]
) -> str:
    """Return the commands to run next; empty if there is nothing to do.

    Args:
        verdicts: the verdicts of the run.
        whole_ids: the ids of all cases that a run without `-k` judges.
        options: the options with which the cases ran, and will run again.
    """
    # An attached server can be neither launched again nor recorded.
    can_launch = not is_attached(options)
    failing = [verdict for verdict in verdicts if verdict.fails]
    unclear = [verdict for verdict in failing if verdict.outcome is Outcome.INCONCLUSIVE]
    # If no number of launches would decide a figure, measuring it again is no use.
    decidable = [verdict for verdict in unclear if verdict.needed_launches != 0]
    needed_launches = max((verdict.needed_launches or 0 for verdict in decidable), default=0)
    options_until_decided = list(options)
    if needed_launches and can_launch:
        options_until_decided.append(f"--specreg-launches={needed_launches}")
    worse_ids = _case_ids(verdicts, _WORSE)
    invalid_ids = _case_ids(verdicts, {Outcome.INVALID})
    decidable_ids = _case_ids(decidable, {Outcome.INCONCLUSIVE})
    steps = [
        _step("look again, on a fresh launch", worse_ids, whole_ids, options),
        _step("measure again, once the reason above is mended", invalid_ids, whole_ids, options),
        _step(
            "measure again, until it is decided", decidable_ids, whole_ids, options_until_decided
        ),
    ]
    unrecorded = _case_ids(verdicts, {Outcome.NO_BASELINE})
    # If each case has a baseline, some baselines may still lack what a comparison needs.
    if not unrecorded:
        lacking = [verdict for verdict in verdicts if verdict.lacks]
        unrecorded = _case_ids(lacking, {Outcome.NOT_COMPARABLE})
    if unrecorded and can_launch:
        chosen = _ids_that_need_naming(unrecorded, whole_ids)
        steps.append(f"record what this machine does:\n  {record_command(chosen, options)}")
    return "\n".join(step for step in steps if step)


def _step(
    purpose: str, case_ids: Sequence[str], whole_ids: AbstractSet[str], options: Sequence[str]
) -> str:
    """Return the command for a purpose; empty if no case needs it."""
    if not case_ids:
        return ""
    command = run_command(_ids_that_need_naming(case_ids, whole_ids), options)
    return f"{purpose}:\n  {command}"


def _ids_that_need_naming(case_ids: Sequence[str], whole_ids: AbstractSet[str]) -> Sequence[str]:
    """Return the cases that a command must name: none if it runs all cases anyway."""
    if whole_ids <= set(case_ids):
        return ()
    return case_ids


def render_written(
    recorded: Sequence[RecordedBaseline], whole_ids: AbstractSet[str], options: Sequence[str]
) -> str:
    """List the files of recorded baselines, and the next commands.

    Args:
        recorded: the baselines, at least one.
        whole_ids: the ids of all cases that a run without `-k` judges.
        options: the options with which the cases ran.
    """
    here = Path.cwd()
    paths = []
    for record in recorded:
        path = record.path
        if path.is_relative_to(here):
            path = path.relative_to(here)
        paths.append(path)
    case_ids = [path.stem for path in paths]
    # The file of a baseline is in the folder of its environment, in the folder of all baselines.
    folder = paths[0].parent.parent
    named_ids = _ids_that_need_naming(case_ids, whole_ids)
    commands = [run_command(named_ids, options)]
    # Without a repository there is nothing to compare with and nothing to commit.
    if commit_of(folder):
        diff = shlex.join(("git", "diff", str(folder)))
        add = shlex.join(("git", "add", str(folder)))
        commands = [diff, *commands, add]
    written = "\n  ".join(("written:", *map(str, paths)))
    next_steps = "\n  ".join(("look at it, run against it, keep it:", *commands))
    return f"{written}\n{next_steps}"


def _case_ids(verdicts: Iterable[Verdict], outcomes: Container[Outcome]) -> tuple[str, ...]:
    """Return the ids of the cases that have one of these outcomes, in the verdicts' order."""
    case_ids = [verdict.case_id for verdict in verdicts if verdict.outcome in outcomes]
    return tuple(dict.fromkeys(case_ids))
