"""The page of many nights: the outcomes and figures of every case, and since when it isn't fine."""

import datetime as dt
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specreg.core.errors import ReportError
from specreg.core.redaction import known_secrets
from specreg.core.values import readable_values
from specreg.report.charts import case_histories
from specreg.report.document import Tone, began_at
from specreg.report.drawing import CurvePicture
from specreg.report.failures import first_bad, moment_of
from specreg.report.page import TEMPLATES, SharedDrawings
from specreg.report.summary import OUTCOMES
from specreg.report.tables import label_of
from specreg.verdicts.history import History, RunRecord, comparable, load_history
from specreg.verdicts.verdict import Outcome

FILE_NAME = "history.html"
MAX_NIGHTS = 30
"""So many of the last nights of a machine are shown."""
_RECORDED = "B"
"""The symbol of a run that recorded a baseline and judged nothing."""
_PLAIN = "plain"
_UNKNOWN = "·"
"""The symbol of an outcome that this specreg doesn't have: another one wrote the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineHistory:
    """What a machine did in its last nights.

    Attributes:
        machine: the name of the kind of machine.
        history: its cases, each with its records, the earliest first.
        expected: by case, what its baseline holds of each figure.
    """

    machine: str
    history: History
    expected: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Night:
    """A column of the map: one run of a machine.

    Attributes:
        run: the name of the run.
        label: its month and day.
        moment: when it began.
    """

    run: str
    label: str
    moment: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cell:
    """The worst that a case came to in one night.

    Attributes:
        symbol: of the outcome.
        tone: its colour.
        text: which figures had it; empty where all was well.
        is_first_bad: whether a figure that isn't fine today wasn't fine from this night on.
        version: of the engine, if that is the first night with it; else empty.
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
        case_id: the id of the case.
        anchor: the id of its element on the page.
        cells: a cell for each night; None where the case didn't run.
        bad: since when each figure isn't fine.
        pictures: the history of each figure.
    """

    case_id: str
    anchor: str
    cells: Sequence[_Cell | None]
    bad: Sequence[str]
    pictures: Sequence[CurvePicture]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Map:
    """The cases of one machine over its nights, with what couldn't be read of them."""

    machine: str
    nights: Sequence[_Night]
    rows: Sequence[_Row]
    versions: Sequence[str]
    problem: str


def load_histories(paths: Iterable[Path]) -> Iterator[tuple[str, History]]:
    """Yield the history of each machine, in files or in folders of them, by the name of its file.

    Raises:
        ReportError: there is no history, or what is named can't be read.
    """
    for path in paths:
        files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
        if not files or not path.exists():  # an empty folder, or no such file
            message = f"history '{path}': no history is there"
            raise ReportError(f"{message}; run the suite first, or name a file or a folder of it")
        for file in files:
            yield file.stem, load_history(file)


def render_trend(histories: Iterable[MachineHistory], made_at: dt.datetime) -> str:
    """Return the page of the last nights, one HTML file that needs nothing else.

    Args:
        histories: the machines.
        made_at: the time, in UTC.
    """
    maps = [_map_of(history, number) for number, history in enumerate(histories, start=1)]
    cells = [cell for shown in maps for row in shown.rows for cell in row.cells if cell]
    return TEMPLATES.get_template("trend.html.jinja").render(
        secrets=known_secrets(),
        shared=SharedDrawings(),
        maps=maps,
        bad=[(row, shown.machine) for shown in maps for row in shown.rows if row.bad],
        cases=sum(len(shown.rows) for shown in maps),
        symbols={cell.symbol for cell in cells},
        made_at=f"{made_at:%Y-%m-%d %H:%M} UTC",
        most_nights=MAX_NIGHTS,
        recorded=_RECORDED,
        unknown=_UNKNOWN,
    )


def _map_of(shown: MachineHistory, number: int) -> _Map:
    """Return the map of the machine with a number on the page."""
    machine = readable_values(shown.machine)
    records_by_case = {
        case_id: [readable_values(record) for record in records]
        for case_id, records in sorted(shown.history.by_case.items(), key=_by_number)
    }
    every_record = sorted(
        (record for records in records_by_case.values() for record in records),
        key=lambda record: record.run,
    )
    runs = list(dict.fromkeys(record.run for record in every_record))[-MAX_NIGHTS:]
    rows = [
        _row_of(
            records, runs, anchor=f"{number}-{case_id}", expected=shown.expected.get(case_id, {})
        )
        for case_id, records in records_by_case.items()
    ]
    return _Map(
        machine=machine,
        nights=[_night_of(run) for run in runs],
        rows=[row for row in rows if any(row.cells)],
        versions=list(_versions(record for record in every_record if record.run in runs)),
        problem=shown.history.problem,
    )


def _by_number(item: tuple[str, object]) -> list[str | int]:
    """Return what sorts the cases by name, and the numbers in it as numbers: c2 before c16."""
    case_id, _ = item
    # Every second part is a number, so that no number is compared with a text.
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", case_id)]


def _night_of(run: str) -> _Night:
    began = began_at(run)
    if began is None:
        return _Night(run=run, label=run[:5], moment=f"run {run}")
    return _Night(run=run, label=f"{began:%m-%d}", moment=f"{began:%Y-%m-%d %H:%M} UTC")


def _row_of(
    records: Sequence[RunRecord], runs: Sequence[str], *, anchor: str, expected: Mapping[str, float]
) -> _Row:
    """Return the row of a case, whose records are the earliest first."""
    bad_runs = dict(_bad_runs(records))
    first_bad_names = {run.run for run in bad_runs.values()}
    cells: dict[str, _Cell] = {}
    version = ""
    for record in records:
        # Only the first night of a version names it.
        new_version = ""
        if record.engine_version != version:
            new_version = record.engine_version
        version = record.engine_version
        cells[record.run] = _cell_of(
            record, is_first_bad=record.run in first_bad_names, version=new_version
        )
    shown_records = [record for record in records if record.run in runs]
    return _Row(
        case_id=records[0].case_id,
        anchor=anchor,
        cells=[cells.get(run) for run in runs],
        bad=[
            f"{label_of(metric)}: not fine since {moment_of(run)}"
            for metric, run in bad_runs.items()
        ],
        pictures=list(case_histories(shown_records, expected)),
    )


def _bad_runs(records: Sequence[RunRecord]) -> Iterator[tuple[str, RunRecord]]:
    """Yield each figure that isn't fine in the last run that judged it, and since which run."""
    names = dict.fromkeys(name for record in records for name in record.outcomes)
    for name in names:
        runs = comparable(records, name)
        bad = first_bad(runs, name)
        if bad < len(runs):
            yield name, runs[bad]


def _cell_of(record: RunRecord, *, is_first_bad: bool, version: str) -> _Cell:
    """Return the cell of a case in one night: its worst outcome, and which figures had it."""
    if record.recorded:
        return _Cell(
            symbol=_RECORDED,
            tone=_PLAIN,
            text="recorded a baseline",
            is_first_bad=False,
            version=version,
        )
    order = {str(outcome): number for number, outcome in enumerate(OUTCOMES)}
    worst = min(record.outcomes.values(), key=lambda name: order.get(name, len(order)), default="")
    symbol = _UNKNOWN
    tone = str(Tone.DOUBT)
    if worst in order:
        shown = OUTCOMES[Outcome(worst)]
        symbol = shown.symbol
        tone = str(shown.tone)
    text = ""
    if tone != Tone.GOOD:
        figures = [label_of(name) for name, outcome in record.outcomes.items() if outcome == worst]
        text = f"{worst}: {', '.join(figures)}"
    return _Cell(symbol=symbol, tone=tone, text=text, is_first_bad=is_first_bad, version=version)


def _versions(records: Iterable[RunRecord]) -> Iterator[str]:
    """Yield each version of an engine with its first night, the earliest first."""
    first_runs: dict[str, str] = {}
    for record in records:
        first_runs.setdefault(record.engine_version, record.run)
    for version, run in first_runs.items():
        if version:
            yield f"{version} since {_night_of(run).moment}"
