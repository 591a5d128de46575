"""Arrange what the nights of machines measured, as plain numbers, into one table per machine."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from specreg.judging.fold import Night

SoftwareItems = tuple[tuple[str, str], ...]
"""The parts of what a server runs with, each with its version or checksum."""


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
        software: what the case ran with on this night, each part with its version.
        starts_level: whether this night recorded the level that later nights are compared with.
        control_logs: the logarithm of the metric of the server without speculation that ran beside
            the case, on each launch; empty without one.
        two_sided: whether a gain is as bad as a loss.
        decides: whether the metric is decided by itself, and doesn't follow another one.
    """

    case: str
    engine: str
    machine: str
    metric: str
    began_s: float
    logs: tuple[float, ...]
    planned: int = 1
    software: SoftwareItems = ()
    starts_level: bool = False
    control_logs: tuple[float, ...] = ()
    two_sided: bool = False
    decides: bool = True

    @property
    def figure(self) -> "Figure":
        """The figure that was measured."""
        return Figure(
            metric=self.metric,
            engine=self.engine,
            case=self.case,
            two_sided=self.two_sided,
            decides=self.decides,
        )


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Figure:
    """One metric of one case on one machine. The other attributes are those of its samples."""

    metric: str
    engine: str
    case: str
    two_sided: bool = False
    decides: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class NightTable:
    """The nights of one machine, in the order in which they began.

    Attributes:
        figures: the columns.
        began_s: when each night began.
        nights: the rows.
        software: the software of each case, for each night.
    """

    figures: Sequence[Figure]
    began_s: Sequence[float]
    nights: Sequence[Night]
    software: Sequence[Mapping[str, SoftwareItems]]


def table_of(samples: Iterable[Sample], further: Iterable[Figure] = ()) -> NightTable:
    """Return the table of a machine.

    Args:
        samples: its samples in any order.
        further: figures that have a column even if no sample is theirs.
    """
    samples = list(samples)

    # Whatever else has changed, a metric of a case is one figure, as it is now.
    samples.sort(key=lambda sample: sample.began_s)
    latest = {(sample.metric, sample.case): sample.figure for sample in samples}
    latest |= {(figure.metric, figure.case): figure for figure in further}
    figures = sorted(latest.values())
    by_night: dict[float, list[Sample]] = {}
    for sample in samples:
        by_night.setdefault(sample.began_s, []).append(sample)
    began_s = sorted(by_night)
    return NightTable(
        figures=figures,
        began_s=began_s,
        nights=[night_of(by_night[began], figures) for began in began_s],
        software=[software_of(by_night[began]) for began in began_s],
    )


def software_of(samples: Iterable[Sample]) -> Mapping[str, SoftwareItems]:
    """Return the software of each case on a night."""
    return {sample.case: sample.software for sample in samples}


def night_of(samples: Iterable[Sample], figures: Sequence[Figure]) -> Night:
    """Return the row of a night in a table with these columns."""
    columns = {(figure.metric, figure.case): column for column, figure in enumerate(figures)}
    count = len(columns)
    night = Night.of_levels(np.full(count, np.nan), np.zeros(count, bool))
    for sample in samples:
        if not sample.logs:
            continue
        column = columns[sample.metric, sample.case]
        logs = sample.logs
        planned = logs[: sample.planned]
        level = statistics.fmean(logs)
        night.levels[column] = level
        night.launches[column] = len(logs)
        night.planned_levels[column] = statistics.fmean(planned)
        night.planned[column] = len(planned)
        night.launch_squares[column] = sum((log - level) ** 2 for log in logs)
        night.restarts[column] = sample.starts_level
        night.lowest[column] = min(logs)
        night.highest[column] = max(logs)
        if sample.control_logs:
            night.controls[column] = statistics.fmean(sample.control_logs)

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
