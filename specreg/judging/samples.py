"""Arrange what the nights of machines measured, as plain numbers, into one table per machine."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from specreg.judging.fold import Night


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One figure on one night: one metric of one case, on all launches of that night.

    Attributes:
        case: the id of the case.
        engine: the name of its engine.
        machine: the identity of the machine. Two machines of one kind are two series.
        metric: the name of the metric.
        began_s: when the night began, in seconds since 1970, UTC.
        logs: the logarithm of the metric on each launch; better is positive.
        planned: how many of the launches, the first ones, were taken whatever they showed.
        software: what the engine ran with on this night: packages, build, models, configuration
            and driver. Equal text means equal software.
        starts_level: whether this night recorded the level that later nights are compared with.
    """

    case: str
    engine: str
    machine: str
    metric: str
    began_s: float
    logs: tuple[float, ...]
    planned: int = 1
    software: str = ""
    starts_level: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One metric of one case on one machine."""

    case: str
    engine: str
    metric: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The nights of one machine, in the order in which they began.

    Attributes:
        figures: the columns.
        began_s: when each night began.
        nights: the rows.
        software: the software of each engine, for each night.
    """

    figures: Sequence[Figure]
    began_s: Sequence[float]
    nights: Sequence[Night]
    software: Sequence[Mapping[str, str]]


def tables_of(samples: Iterable[Sample], now_s: float) -> Mapping[str, Table]:
    """Return the table of each machine, by the machine's identity.

    Args:
        samples: the samples in any order.
        now_s: the present moment. A night that began later has a wrong clock, and is left out.
    """
    by_machine: dict[str, list[Sample]] = {}
    for sample in samples:
        if sample.began_s <= now_s:
            by_machine.setdefault(sample.machine, []).append(sample)
    return {machine: _table(of_machine) for machine, of_machine in by_machine.items()}


def _table(samples: Sequence[Sample]) -> Table:
    names = {(sample.metric, sample.engine, sample.case) for sample in samples}
    figures = [
        Figure(case=case, engine=engine, metric=metric) for metric, engine, case in sorted(names)
    ]
    columns = {(figure.metric, figure.case): column for column, figure in enumerate(figures)}
    began_s = sorted({sample.began_s for sample in samples})
    nights = []
    software = []
    for began in began_s:
        of_night = [sample for sample in samples if sample.began_s == began]
        nights.append(_night(of_night, columns))
        software.append({sample.engine: sample.software for sample in of_night})
    return Table(figures=figures, began_s=began_s, nights=nights, software=software)


def _night(samples: Sequence[Sample], columns: Mapping[tuple[str, str], int]) -> Night:
    count = len(columns)
    night = Night.of_levels(np.full(count, np.nan), np.zeros(count, bool))
    for sample in samples:
        if not sample.logs:
            continue
        column = columns[sample.metric, sample.case]
        logs = np.array(sample.logs)
        planned = logs[: sample.planned]
        night.levels[column] = logs.mean()
        night.launches[column] = len(logs)
        night.planned_levels[column] = planned.mean()
        night.planned[column] = len(planned)
        night.launch_squares[column] = ((logs - logs.mean()) ** 2).sum()
        night.restarts[column] = sample.starts_level
    return night


def level_of(values: Iterable[float], *, sign: int, origin: float = 0.0) -> tuple[float, ...]:
    """Return the logarithms of a metric's values, or nothing if one of them has none.

    Args:
        values: the value on each launch.
        sign: 1 if more is better, -1 if less is better.
        origin: what is subtracted before a relative change is taken.
    """
    excesses = [value - origin for value in values]
    if not excesses or min(excesses) <= 0:
        return ()
    return tuple(sign * math.log(excess) for excess in excesses)
