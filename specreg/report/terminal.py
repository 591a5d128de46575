"""A document on a terminal, and baselines as tables; below them what to type next."""

import itertools
import shlex
from collections.abc import Container, Iterable, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path

from rich.text import Text

from specreg.baselines.comparison import change_of_baseline, spreads_of
from specreg.baselines.record import RecordedBaseline, commit_of
from specreg.core.commands import is_attached, record_command, run_command
from specreg.core.values import readable_values
from specreg.measurement.metrics import METRICS, better_frac
from specreg.report.document import Report, last_words
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
from specreg.verdicts.judge import first_look
from specreg.verdicts.verdict import Lack, Outcome, Verdict

_WORSE = {Outcome.WRONG, Outcome.REGRESSED}
_NOTED = {*_WORSE, Outcome.INVALID, Outcome.INCONCLUSIVE}
_LACKS_NOTED = {Lack.SOURCE, Lack.FILE}


def render_report(report: Report, *, color: bool) -> str:
    """All of a document that a terminal shows: answers first, what to type next last."""
    report = readable_values(report)
    now, before = columns_of(report)
    run, control = report.run, report.control
    again = render_verdicts(control, color=color, columns=(f"{before}2", before))
    parts = (
        title_of(report),
        render_answers(answers_of(report), color=color),
        render_verdicts(run.verdicts, color=color, columns=(now, before)),
        f"the control, {before} against itself:\n{again}" if control else "",
        render_notes(run.verdicts, None if report.arms else run.environment),
        "\n".join((*notes_of(report), *report.remarks)),
        next_of(report),
    )
    return "\n\n".join(filter(None, parts))


def columns_of(report: Report) -> tuple[str, str]:
    """What a verdict's `value` and `expected` are called: of a gate by its arms."""
    if not report.arms:
        return "value", "baseline"
    before, now = (arm.name for arm in report.arms)
    return now, before


def next_of(report: Report) -> str:
    """What to type next: the document's own hints, else those that follow from its run."""
    if report.arms:
        return "\n".join(report.hints)
    return render_next(report.run.verdicts, set(report.tier_cases), report.origin.options)


def render_verdicts(
    verdicts: Sequence[Verdict], *, color: bool, columns: tuple[str, str] = ("value", "baseline")
) -> str:
    """A row for the last word on each figure, in the order of the run, grouped by case."""
    rows: dict[str, list[Sequence[str | Text]]] = {one.case_id: [[one.case_id]] for one in verdicts}
    for one in last_words(verdicts):
        cells = (
            f"  {one.metric}",
            format_number(one.value),
            format_number(one.comparison.expected),
            render_change(one.comparison.change_frac),
            render_interval(one.comparison.low_frac, one.comparison.high_frac),
            one.comparison.tolerated or NOTHING,
        )
        style = STYLES[tone_of([one])] if color else ""
        rows[one.case_id].append([*cells, Text(one.outcome, style)])
    head = ("case and metric", *columns, "change", "interval", "tolerated", "outcome")
    every = itertools.chain.from_iterable(rows.values())
    return render_rows(head, every, color=color, left=("outcome",))


def render_recorded(recorded: Iterable[RecordedBaseline], *, color: bool) -> str:
    """Old and new value of each metric of baselines that were written, or that changed."""
    rows: list[Sequence[str]] = []
    for record in recorded:
        rows.append([f"{record.path.parent.name}/{record.path.stem}"])
        spreads, was, now = spreads_of((record.new,)), record.old, record.new
        for name, metric in METRICS.items():
            if (new := now.expected_value(metric)) is None:
                continue
            old = was.expected_value(metric) if was else None
            change = change_of_baseline(metric, was, now) if was else None
            bounds = change.bounds(LEVELS[first_look(metric)]) if change else ()
            cells = (
                f"  {name}",
                format_number(old),
                format_number(new),
                render_change(None if old is None else better_frac(metric, new, old)),
                render_interval(*(to_frac(metric, end) for end in bounds)) if bounds else NOTHING,
                f"{spreads[name].within_frac:.1%}" if name in spreads else NOTHING,
                str(len(now.launches)),
            )
            rows.append(cells)
    head = ("baseline", "old", "new", "change", "interval", "spread", "launches")
    return render_rows(head, rows, color=color)


def render_undecidable(recorded: Iterable[RecordedBaseline]) -> str:
    """The speeds that no run can decide against new baselines, empty without any."""
    lines = []
    for record in recorded:
        told = ", ".join(
            f"{label_of(name)} {one}" for name, one in record.new.detects.items() if not one.decides
        )
        lines += [f"  {record.path.stem}: {told}"] if told else []
    head = "a run can't decide these here, so they will be skipped where there is doubt:"
    return "\n".join((head, *lines)) if lines else ""


def render_unjudged(recorded: Iterable[RecordedBaseline], timed: AbstractSet[str]) -> str:
    """List what new baselines don't hold, so that no run can judge it; empty if they hold all.

    Args:
        recorded: the baselines that were written.
        timed: the ids of the cases whose speed was measured.
    """
    lines = []
    for record in recorded:
        acceptance = record.new.acceptance
        if acceptance is not None and not acceptance.prompts:
            lines.append(
                f"  {record.path.stem}: acceptance, as the engine counts for all requests together;"
                " use an engine whose answers carry their own counts"
            )
        if not record.new.launches and record.path.stem in timed:
            lines.append(
                f"  {record.path.stem}: speed and power, as one launch doesn't show how launches"
                " differ; leave out --specreg-launches"
            )
    head = "no run can judge these by what was recorded:"
    return "\n".join((head, *lines)) if lines else ""


def render_notes(verdicts: Iterable[Verdict], environment: str | None) -> str:
    """Why something isn't judged, once a case and outcome; what another machine's baseline judged.

    The environment is the machine's, None where no baseline is compared with.
    """
    first: dict[tuple[str, Outcome], str] = {}
    foreign = set()
    for one in verdicts:
        if one.reason and (one.outcome in _NOTED or one.lacks in _LACKS_NOTED):
            first.setdefault((one.case_id, one.outcome), f"{one.case_id}: {one.reason}")
        foreign |= {one.comparison.against} - {"", environment}
    lines = list(first.values())
    if foreign and environment is not None:
        lines.append(
            f"nothing was recorded on this kind of machine: acceptance is judged against"
            f" {', '.join(sorted(foreign))}, where more is tolerated; speed is not comparable"
        )
    return "\n".join(lines)


def render_next(
    verdicts: Sequence[Verdict], everything: AbstractSet[str], options: Sequence[str]
) -> str:
    """The commands to run next, empty when there is nothing to do.

    `everything` are the ids of all cases of the tier, which run again as they did with `options`.
    """
    # A server that runs already isn't launched here, and not recorded.
    ours = not is_attached(options)
    undecided = [one for one in verdicts if one.outcome is Outcome.INCONCLUSIVE]
    open_ones = [one for one in undecided if one.needed_launches != 0]
    needed = max((verdict.needed_launches or 0 for verdict in open_ones), default=0)
    more = (f"--specreg-launches={needed}",) if needed and ours else ()
    steps = [
        (f"{what}:\n  {run_command(ids, (*options, *added))}")
        for what, outcomes, found, added in (
            ("look again, on a fresh launch", _WORSE, verdicts, ()),
            ("measure again, once the reason above is mended", {Outcome.INVALID}, verdicts, ()),
            ("measure again, until it is decided", {Outcome.INCONCLUSIVE}, open_ones, more),
        )
        if (ids := _case_ids(found, outcomes))
    ]
    new = _case_ids(verdicts, {Outcome.NO_BASELINE})
    new = new or _case_ids((one for one in verdicts if one.lacks), {Outcome.NOT_COMPARABLE})
    if new and ours:
        chosen = () if set(new) == everything else new
        steps.append(f"record what this machine does:\n  {record_command(chosen, options)}")
    return "\n".join(steps)


def render_written(
    recorded: Sequence[RecordedBaseline], everything: AbstractSet[str], options: Sequence[str]
) -> str:
    """The files of the baselines that were written, and what to type next, as `render_next`."""
    here = Path.cwd()
    paths = [
        one.path.relative_to(here) if one.path.is_relative_to(here) else one.path
        for one in recorded
    ]
    ids = [path.stem for path in paths]
    folder = paths[0].parent.parent
    then = [run_command(() if set(ids) == everything else ids, options)]
    if commit_of(folder):
        diff, add = (shlex.join(("git", verb, str(folder))) for verb in ("diff", "add"))
        then = [diff, *then, add]
    return "\n  ".join(("written:", *map(str, paths))) + "\n  ".join(
        ("\nlook at it, run against it, keep it:", *then)
    )


def _case_ids(verdicts: Iterable[Verdict], outcomes: Container[Outcome]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(v.case_id for v in verdicts if v.outcome in outcomes))
