"""Change points: what runs measured in, where that shifted for good out.

Apache Otava finds them, by "Hunter: Using Change Point Detection to Hunt for Performance
Regressions" (doi.org/10.1145/3578244.3583719); it is an extra, since it is heavy.
"""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from specreg.history import Lived
from specreg.metrics import METRICS, better_frac

_FEWEST = 2
_LEVEL = 0.01
"""How often chance alone would look like a shift, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """From one run on, something is otherwise than before.

    Attributes:
        place: of the first run that is otherwise, from 0.
        change_frac: of the mean, relative to that of the runs between this shift and the last one.
    """

    place: int
    change_frac: float


def can_find_shifts() -> bool:
    """Whether what it takes is installed."""
    return importlib.util.find_spec("otava") is not None


def shifts_in(values: Sequence[float]) -> tuple[Shift, ...]:
    """Where a row of values shifts; none without the extra, and of fewer than two values."""
    if not can_find_shifts() or len(values) < _FEWEST:
        return ()
    from otava.analysis import compute_change_points  # noqa: PLC0415 - an extra, and slow

    found, _ = compute_change_points(values, max_pvalue=_LEVEL)
    return tuple(
        Shift(place=int(one.index), change_frac=float(one.stats.forward_rel_change()))
        for one in found
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A shift of a case's metric, in words that a reader looks for.

    Attributes:
        place: of the first run that is otherwise, from 0; run: its name.
        versions: of the engine, of the run before and of that one.
        change_frac: of the mean from shift to shift, better is positive.
    """

    place: int
    run: str
    versions: tuple[str, ...]
    change_frac: float


def turns_in(runs: Sequence[Lived], metric: str) -> tuple[Turn, ...]:
    """Where comparable runs shift in a metric, the oldest first; none without the extra."""
    values = [run.values[metric] for run in runs]
    places = [shift.place for shift in shifts_in(values)]
    ends = [*places[1:], len(values)]
    turns = []
    for before, place, end in zip([0, *places], places, ends, strict=False):
        old, new = fmean(values[before:place]), fmean(values[place:end])
        versions = dict.fromkeys(run.engine_version for run in runs[place - 1 : place + 1])
        turns.append(
            Turn(
                place=place,
                run=runs[place].run,
                versions=tuple(versions),
                change_frac=better_frac(METRICS[metric], new, old),
            )
        )
    return tuple(turns)


def comparable(lived: Sequence[Lived], metric: str) -> tuple[Lived, ...]:
    """The runs that judged a metric, with the settings of the last one: others differ in more."""
    having = [one for one in lived if metric in one.values and one.judged(metric)]
    return tuple(one for one in having if one.settings_sha256 == having[-1].settings_sha256)
