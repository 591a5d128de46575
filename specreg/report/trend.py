"""Render the page of many nights: the outcomes and figures of all cases, and when losses began."""

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from specreg.core.commands import run_command
from specreg.core.errors import ReportError
from specreg.core.natural_order import natural_key
from specreg.core.redaction import known_secrets
from specreg.core.values import readable_values
from specreg.report.charts import CaseNights, histories, version_starts
from specreg.report.document import Tone, began_at
from specreg.report.drawing import CurvePicture
from specreg.report.page import TEMPLATES, SharedDrawings
from specreg.report.parts import Commands, Parts, Text, VerdictLine
from specreg.report.since import Loss, losses_of
from specreg.report.summary import OUTCOMES
from specreg.report.tables import label_of, render_change
from specreg.verdicts.history import History, RunRecord, load_history
from specreg.verdicts.verdict import Outcome

HISTORY_PAGE = "history.html"
MAX_NIGHTS = 30
"""The most nights of a machine that the page shows."""
_RECORDED = "B"
"""The symbol of a run that recorded a baseline and judged nothing."""
_UNKNOWN = "·"
"""The symbol of an outcome that this version of specreg doesn't have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineHistory:
    """The history of a machine and what its baselines expect.

    Attributes:
        history: its cases, each with its records, the earliest first.
        expected: the values in the baseline of each case, by the case's id and the metric.
    """

    machine: str
    history: History
    expected: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


class _Night(NamedTuple):
    """A column of the table: one run of a machine."""

    label: str
    moment: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cell:
    """The worst outcome of a case in one night.

    Attributes:
        tone: the tone, which determines its colour.
        text: the outcome and the figures that have it, or that a baseline was recorded; empty if
            all figures are good.
        is_first_bad: whether a figure that is still bad became bad on this night.
        version: the version of the engine; empty if it isn't known, or if the case had the same
            version on the last night on which it was known.
    """

    symbol: str
    tone: str
    text: str
    is_first_bad: bool
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A case of a machine.

    Attributes:
        anchor: the id of its element on the page.
        cells: a cell for each night; None if the case didn't run.
        bad: the figures that became bad and weren't fine again.
    """

    case_id: str
    anchor: str
    cells: Sequence[_Cell | None]
    bad: Sequence[Loss]
    pictures: Sequence[CurvePicture]


@dataclass(frozen=True, slots=True, kw_only=True)
class _OutcomeMap:
    """The cases of one machine over its nights, which is one table of the page.

    Attributes:
        versions: for each version of each engine, a note with its first night.
        problem: a message about records that can't be read; empty if all can.
    """

    machine: str
    nights: Sequence[_Night]
    rows: Sequence[_Row]
    versions: Sequence[str]
    problem: str


def load_histories(paths: Iterable[Path], now: dt.datetime) -> Iterator[tuple[str, History]]:
    """Yield the name of each history file without its extension, and its history.

    Args:
        paths: history files, or folders with such files.
        now: the present time, in UTC.

    Raises:
        ReportError: a path doesn't exist, or a folder has no history.
    """
    for path in paths:
        files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
        if not files or not path.exists():
            problem = f"history '{path}': there is no history"
            advice = "run the suite first, or name the file of a history or a folder of such files"
            raise ReportError(f"{problem}; {advice}")
        for file in files:
            yield file.stem, load_history(file, now)


def render_trend(machines: Iterable[MachineHistory], made_at: dt.datetime) -> str:
    """Render the page of the last nights as a self-contained HTML file.

    Args:
        machines: the histories of all machines.
        made_at: the present time, in UTC.
    """
    outcome_maps = [_map_of(history, number) for number, history in enumerate(machines, start=1)]
    symbols: set[str] = set()
    bad_rows = []
    for outcome_map in outcome_maps:
        for row in outcome_map.rows:
            symbols.update(cell.symbol for cell in row.cells if cell is not None)
            if row.bad:
                bad_rows.append((row, outcome_map.machine))

    case_count = sum(len(outcome_map.rows) for outcome_map in outcome_maps)
    return TEMPLATES.get_template("trend.html.jinja").render(
        secrets=known_secrets(),
        shared=SharedDrawings(),
        outcome_maps=outcome_maps,
        bad_rows=bad_rows,
        view=_view_of([row for row, _ in bad_rows], case_count, made_at),
        subject="nights",
        symbols=symbols,
        recorded=_RECORDED,
        unknown=_UNKNOWN,
    )


def _view_of(bad_rows: Sequence[_Row], case_count: int, made_at: dt.datetime) -> Parts:
    """Return the answer of the page, which runs it shows, and what to type if it shows none."""
    moment = f"{made_at:%Y-%m-%d %H:%M} UTC"
    shown = Text(f"Night by night: the last {MAX_NIGHTS} runs of each machine, by {moment}.")
    if not case_count:
        answer = VerdictLine(tone=Tone.DOUBT, text="Nothing was judged yet")
        command = run_command((), ())
        return answer, shown, Commands("run the suite; each run adds a night", (command,))

    if not bad_rows:
        are = "case is" if case_count == 1 else "cases is"
        text = f"none of {case_count} {are} proven worse or wrong"
        return VerdictLine(tone=Tone.GOOD, text=text), shown

    losses = [(loss, row) for row in bad_rows for loss in row.bad]
    worst, row = min(losses, key=lambda item: item[0].change_frac or 0.0)
    text = f"{len(bad_rows)} of {case_count} cases became worse or wrong; no later run was fine"
    if worst.change_frac is not None:
        change = render_change(worst.change_frac)
        text += f"; {row.case_id}: {label_of(worst.metric)} {change}"
    return VerdictLine(tone=Tone.BAD, text=text), shown


def _map_of(machine_history: MachineHistory, number: int) -> _OutcomeMap:
    """Return the table of a machine.

    Args:
        number: the number of the table, which makes the anchors on the page unique.
    """
    machine = readable_values(machine_history.machine)
    records_by_case = {}
    all_records: list[RunRecord] = []
    history = machine_history.history.by_case
    for case_id in sorted(history, key=natural_key):
        readable_records = [readable_values(record) for record in history[case_id]]
        records_by_case[case_id] = readable_records
        all_records += readable_records

    # The name of a run begins with its date.
    all_records.sort(key=lambda record: record.run)
    all_runs = list(dict.fromkeys(record.run for record in all_records))
    runs = all_runs[-MAX_NIGHTS:]
    rows = []
    for case_id, case_records in records_by_case.items():
        expected = machine_history.expected.get(case_id, {})
        row = _row_of(case_records, runs, anchor=f"{number}-{case_id}", expected=expected)
        # A case that ran on none of these nights has no row.
        if any(row.cells):
            rows.append(row)

    return _OutcomeMap(
        machine=machine,
        nights=[_night_of(run) for run in runs],
        rows=rows,
        versions=list(_versions(all_records, runs)),
        problem=machine_history.history.problem,
    )


def _night_of(run: str) -> _Night:
    began = began_at(run)
    if began is None:
        return _Night(label=run[:5], moment=f"run {run}")
    return _Night(label=f"{began:%m-%d}", moment=f"{began:%Y-%m-%d %H:%M} UTC")


def _row_of(
    records: Sequence[RunRecord], runs: Sequence[str], *, anchor: str, expected: Mapping[str, float]
) -> _Row:
    """Return the row of a case.

    Args:
        records: its records, the earliest first.
        runs: the runs that are shown.
        anchor: the id of the row's element.
        expected: the values in the baseline of the case, by metric.
    """
    losses = list(losses_of(records, expected))
    first_bad_names = {loss.bad[0].run for loss in losses}
    cells: dict[str, _Cell] = {}
    version = ""
    for record in records:
        # A night names its version only if it differs from the last known version of the case.
        new_version = ""
        if record.engine_version not in {"", version}:
            new_version = record.engine_version
            version = new_version
        cells[record.run] = _cell_of(
            record, is_first_bad=record.run in first_bad_names, version=new_version
        )

    nights = CaseNights(
        case_id=records[0].case_id,
        engine="",
        runs=[record for record in records if record.run in runs],
        expected=expected,
    )
    return _Row(
        case_id=records[0].case_id,
        anchor=anchor,
        cells=[cells.get(run) for run in runs],
        bad=losses,
        pictures=list(histories([nights])),
    )


def _cell_of(record: RunRecord, *, is_first_bad: bool, version: str) -> _Cell:
    """Return the cell of a case in one night: its worst outcome and the figures that have it."""
    if record.recorded:
        return _Cell(
            symbol=_RECORDED,
            tone="plain",
            text="recorded a baseline",
            is_first_bad=False,
            version=version,
        )

    # An outcome that this version doesn't have counts as better than any other.
    order = {str(outcome): number for number, outcome in enumerate(OUTCOMES)}

    def rank(outcome: str) -> int:
        return order.get(outcome, len(order))

    worst = min(record.outcomes.values(), key=rank, default="")
    symbol = _UNKNOWN
    tone = str(Tone.DOUBT)
    if worst in order:
        outcome_text = OUTCOMES[Outcome(worst)]
        symbol = outcome_text.symbol
        tone = str(outcome_text.tone)

    text = ""
    if tone != Tone.GOOD:
        figures = [label_of(name) for name, outcome in record.outcomes.items() if outcome == worst]
        text = f"{worst}: {', '.join(figures)}"
    return _Cell(symbol=symbol, tone=tone, text=text, is_first_bad=is_first_bad, version=version)


def _versions(records: Iterable[RunRecord], runs: Sequence[str]) -> Iterator[str]:
    """Yield a note about the first night of each version of each engine, the earliest first.

    Args:
        records: the records of all cases, the earliest first.
        runs: the runs that are shown, the earliest first.
    """
    records = list(records)

    # A line of an older specreg doesn't name the engine, but other lines of its case may.
    engines = {record.case_id: record.engine for record in records if record.engine}
    numbers = {run: number for number, run in enumerate(runs)}
    shown_versions = [
        (numbers[record.run], engines.get(record.case_id, ""), record.engine_version)
        for record in records
        if record.run in numbers
    ]
    for number, version in version_starts(shown_versions):
        yield f"{version} since {_night_of(runs[number]).moment}"
