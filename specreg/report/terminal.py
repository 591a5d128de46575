"""A document on a terminal, and baselines as tables; below them what to type next."""

import shlex
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path

from rich.text import Text

from specreg.baselines.comparison import change_of_baseline, expected_value, spreads_of
from specreg.baselines.record import RecordedBaseline, commit_of
from specreg.baselines.schema import Baseline
from specreg.core.commands import is_attached, record_command, run_command, specreg_command
from specreg.measurement.metrics import METRICS, Metric, better_frac
from specreg.report.document import Kind, Report
from specreg.report.summary import answers_of, arm_notes_of, notes_of, render_answers, title_of
from specreg.report.tables import NOTHING, format_number, render_rows
from specreg.verdicts.judge import Outcome, Verdict, first_look, log_to_frac

_STYLES = {
    Outcome.PASS: "green",
    Outcome.IMPROVED: "bold green",
    Outcome.MEASURED: "cyan",
    Outcome.NOT_COMPARABLE: "yellow",
    Outcome.INCONCLUSIVE: "yellow",
}
_NOTED = {Outcome.INVALID, Outcome.WRONG, Outcome.REGRESSED, Outcome.INCONCLUSIVE}
_LARGEST_FRAC = 10
"""Beyond a factor of ten, what two launches say for instance, no figure means anything."""


def render_report(report: Report, *, width: int, color: bool) -> str:
    """All of a document that a terminal shows: answers first, what to type next last."""
    now, before = columns_of(report)
    verdicts, control = report.run.verdicts, report.control
    table = render_verdicts(verdicts, width=width, color=color, columns=(now, before))
    again = render_verdicts(control, width=width, color=color, columns=(f"{before}2", before))
    parts = (
        title_of(report),
        render_answers(answers_of(report), color=color),
        "\n".join(arm_notes_of(report)),
        table if verdicts else "",
        f"the control, {before} against itself:\n{again}" if control else "",
        render_notes(verdicts, report.run.environment if report.kind is Kind.RUN else None),
        "\n".join((*notes_of(report), *report.remarks)),
        next_of(report),
    )
    return "\n\n".join(filter(None, parts))


def columns_of(report: Report) -> tuple[str, str]:
    """What a verdict's `value` and `expected` are called: of a gate by its arms."""
    if report.kind is Kind.RUN or not report.arms:
        return "value", "baseline"
    before, now = (arm.name for arm in report.arms)
    return now, before


def next_of(report: Report) -> str:
    """What to type next: the document's own hints, else those that follow from its run."""
    if report.hints or report.kind is not Kind.RUN:
        return "\n".join(report.hints)
    return render_next(report.run.verdicts, set(report.tier_cases), report.options)


def render_verdicts(
    verdicts: Sequence[Verdict],
    *,
    width: int,
    color: bool,
    columns: tuple[str, str] = ("value", "baseline"),
) -> str:
    """A row for each verdict, in the order of the run, grouped by case.

    What was measured with more launches to come is left out where it was judged.
    """
    by_case: dict[str, list[Verdict]] = {}
    for verdict in {(one.case_id, one.metric, one.outcome): one for one in verdicts}.values():
        by_case.setdefault(verdict.case_id, []).append(verdict)
    judged = {(one.case_id, one.metric) for one in verdicts if one.outcome is not Outcome.MEASURED}
    rows: list[Sequence[str | Text]] = []
    for case_id, found in by_case.items():
        rows.append([Text(case_id, style="bold")])
        for one in found:
            if one.outcome is not Outcome.MEASURED or (case_id, one.metric) not in judged:
                style = _STYLES.get(one.outcome, "red")
                rows.append([*_cells(one), Text(one.outcome, style if color else "")])
    head = ("case and metric", *columns, "change", "interval", "tolerance", "outcome")
    return render_rows(head, rows, width=width, color=color, left=("outcome",))


def render_recorded(recorded: Iterable[RecordedBaseline], *, width: int, color: bool) -> str:
    """Old and new value of each metric of baselines that were written, or that changed."""
    rows: list[Sequence[str | Text]] = []
    for record in recorded:
        name = f"{record.path.parent.name}/{record.path.stem}"
        rows += [[Text(name, style="bold")], *_recorded_rows(record)]
    head = ("baseline", "old", "new", "change", "interval", "spread", "launches")
    return render_rows(head, rows, width=width, color=color)


def render_baselines(baselines: Sequence[tuple[Path, Baseline | str]]) -> str:
    """A line for each file, never wrapped; one that can't be read says why.

    Args:
        baselines: path and content, or why there is none.
    """
    head = ("baseline", "recorded", "engine", "prompts", "launches", "AL", "tokens/s", "reason")
    rows = [head, *(_listed(path, one) for path, one in baselines if not isinstance(one, str))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "\n".join([*lines, *(one for _, one in baselines if isinstance(one, str))])


def _listed(path: Path, baseline: Baseline) -> tuple[str, ...]:
    prompts = {one.id for one in baseline.acceptance.prompts} if baseline.acceptance else ()
    values = (
        expected_value(METRICS[name], baseline)
        for name in ("acceptance_length_tokens", "throughput_tokens_per_s")
    )
    return (
        f"{path.parent.name}/{path.stem}",
        baseline.provenance.recorded_on,
        f"{baseline.case.engine}=={baseline.provenance.engine_version}",
        str(len(prompts)),
        str(len(baseline.launches)),
        *map(format_number, values),
        " ".join(baseline.provenance.reason.split()),
    )


def render_notes(verdicts: Sequence[Verdict], environment: str | None) -> str:
    """Why something isn't judged, and what was judged against another machine; may be empty.

    Args:
        verdicts: of a run or a gate.
        environment: the machine's, None where no baseline is compared with.
    """
    lines = [f"{v.case_id}: {v.reason}" for v in _worth_saying(verdicts)]
    foreign = environment and sorted({verdict.against for verdict in verdicts} - {"", environment})
    if foreign:
        lines.append(
            f"nothing was recorded on this kind of machine: acceptance is judged against"
            f" {', '.join(foreign)}, with a wider tolerance; speed is not comparable"
        )
    return "\n".join(lines)


def render_next(
    verdicts: Sequence[Verdict], everything: AbstractSet[str], options: Sequence[str]
) -> str:
    """The commands to run next, empty when there is nothing to do.

    Args:
        verdicts: of this run.
        everything: the ids of all cases of the tier.
        options: with which its cases run as they did.
    """
    # A server that runs already isn't launched here, and not recorded.
    ours = not is_attached(options)
    lines = []
    for outcome, what in (
        (Outcome.WRONG, "look again, on a fresh launch"),
        (Outcome.REGRESSED, "look again, on a fresh launch"),
        (Outcome.INVALID, "measure again, once the reason above is mended"),
    ):
        ids = _case_ids(verdicts, outcome)
        lines += [f"{what}:\n  {run_command(ids, options)}"] if ids else []
    open_ones = [verdict for verdict in verdicts if verdict.needed_launches != 0]
    undecided = _case_ids(open_ones, Outcome.INCONCLUSIVE)
    if undecided:
        needed = max(verdict.needed_launches or 0 for verdict in open_ones)
        more = (f"--specreg-launches={needed}",) if needed and ours else ()
        lines.append(
            f"measure again, until it is decided:\n  {run_command(undecided, (*options, *more))}"
        )
    unlike = [verdict for verdict in verdicts if "record one" in verdict.reason]
    new = _case_ids(verdicts, Outcome.NO_BASELINE) or _case_ids(unlike, Outcome.NOT_COMPARABLE)
    if new and ours:
        chosen = () if set(new) == everything else new
        lines.append(f"record what this machine does:\n  {record_command(chosen, options)}")
    return "\n".join(lines)


def render_written(
    recorded: Sequence[RecordedBaseline], everything: AbstractSet[str], options: Sequence[str]
) -> str:
    """The files of the baselines that were written, and what to type next.

    Args:
        recorded: of this run.
        everything: the ids of all cases of the tier.
        options: with which its cases run as they did.
    """
    paths = [_from_here(record.path) for record in recorded]
    ids = [path.stem for path in paths]
    folder = paths[0].parent
    then = [run_command(() if set(ids) == everything else ids, options)]
    if commit_of(folder):
        diff = specreg_command("baselines", "diff", "--baselines", str(folder.parent))
        # All of it: a baseline that lay in a folder of the old form has left that one.
        then = [diff, *then, shlex.join(("git", "add", str(folder.parent)))]
    lines = (f"  {line}" for line in then)
    return "\n".join(
        [
            "written:",
            *(f"  {path}" for path in paths),
            "look at it, run against it, keep it:",
            *lines,
        ]
    )


def _from_here(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _worth_saying(verdicts: Iterable[Verdict]) -> Iterable[Verdict]:
    """The first of each outcome that failed in a case and has a reason: they share it."""
    first: dict[tuple[str, Outcome], Verdict] = {}
    for verdict in verdicts:
        noted = verdict.outcome in _NOTED
        unlike = verdict.outcome is Outcome.NOT_COMPARABLE and "measured as" in verdict.reason
        unreadable = verdict.outcome is Outcome.NO_BASELINE and "record one" not in verdict.reason
        if verdict.reason and (noted or unreadable or unlike):
            first.setdefault((verdict.case_id, verdict.outcome), verdict)
    return first.values()


def _cells(verdict: Verdict) -> tuple[str, ...]:
    return (
        f"  {verdict.metric}",
        format_number(verdict.value),
        format_number(verdict.expected),
        NOTHING if verdict.change_frac is None else f"{verdict.change_frac:+.1%}",
        _interval(verdict.low_frac, verdict.high_frac),
        NOTHING if verdict.tolerance_frac is None else f"{verdict.tolerance_frac:.1%}",
    )


def _recorded_rows(record: RecordedBaseline) -> Iterator[tuple[str, ...]]:
    for metric in METRICS.values():
        new = expected_value(metric, record.new)
        if new is None:
            continue
        old = expected_value(metric, record.old) if record.old else None
        spread = spreads_of((record.new,)).get(metric.name)
        low, high = _bounds(metric, record)
        yield (
            f"  {metric.name}",
            format_number(old),
            format_number(new),
            NOTHING if old is None else f"{better_frac(metric, new, old):+.1%}",
            _interval(low, high),
            NOTHING if spread is None else f"{spread.within_frac:.1%}",
            str(len(record.new.launches)),
        )


def _bounds(metric: Metric, record: RecordedBaseline) -> tuple[float | None, float | None]:
    """The interval of what a new baseline changes."""
    change = change_of_baseline(metric, record.old, record.new) if record.old else None
    if change is None:
        return None, None
    low, high = change.bounds(first_look(metric).value)
    if metric.by_launch:
        return log_to_frac(metric, low), log_to_frac(metric, high)
    return low, high


def _interval(low: float | None, high: float | None) -> str:
    """`-1.2..+0.8%`: where a change lies."""
    return NOTHING if low is None or high is None else f"{_percent(low)}..{_percent(high)}%"


def _percent(frac: float) -> str:
    beyond = "<-999" if frac < 0 else ">999"
    return f"{100 * frac:+.1f}" if abs(frac) < _LARGEST_FRAC else beyond


def _case_ids(verdicts: Iterable[Verdict], outcome: Outcome) -> tuple[str, ...]:
    return tuple(dict.fromkeys(v.case_id for v in verdicts if v.outcome is outcome))
