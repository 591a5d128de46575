"""Figures side by side: those of measurements in, what is shown of cases and categories out."""

import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from specreg.core.decoding import UNREADABLE
from specreg.core.errors import SpecregError
from specreg.measurement.figures import ArmFigures, Figures
from specreg.measurement.metrics import Family


class CategoryFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What is shown of one category of a case; null where there is no value.

    Attributes:
        requests: how many were timed.
        acceptance_length_tokens, acceptance_rate_frac: AL, AR.
        tpot_p50_ms: the median; control_tpot_p50_ms: without speculation.
        tpot_ratio: the second over the first: the speedup.
    """

    requests: int
    acceptance_length_tokens: float | None
    acceptance_rate_frac: float | None
    tpot_p50_ms: float | None
    control_tpot_p50_ms: float | None
    tpot_ratio: float | None


def categories_of(figures: Figures) -> Mapping[str, CategoryFigures]:
    """The categories of a case that speculates; none where there is only one."""
    timing, acceptance, speedup = figures.timing, figures.acceptance, figures.speedup
    if timing is None or acceptance is None or len(timing.by_category) == 1:
        return {}
    found = {}
    for name, pace in timing.by_category.items():
        part = acceptance.by_category.get(name)
        found[name] = CategoryFigures(
            requests=pace.requests,
            acceptance_length_tokens=part.acceptance_length_tokens if part else None,
            acceptance_rate_frac=part.acceptance_rate_frac if part else None,
            tpot_p50_ms=_tpot_p50_ms(timing, name),
            control_tpot_p50_ms=_tpot_p50_ms(figures.control, name),
            tpot_ratio=speedup.tpot_ratio_by_category.get(name) if speedup else None,
        )
    return found


def last_launches(figures: Iterable[Figures]) -> tuple[Figures, ...]:
    """Of each case the figures of the last of its launches that are valid in most.

    The cases are in the order given; one that is valid in nothing isn't there.
    """
    found: dict[str, Figures] = {}
    for one in figures:
        before = found.get(one.case_id)
        if len(_invalid(one)) < len(Family) and (before is None or _rank(one) > _rank(before)):
            found[one.case_id] = one
    return tuple(found.values())


def _invalid(figures: Figures) -> Mapping[Family, str]:
    return figures.invalid or {}


def _rank(figures: Figures) -> tuple[int, int]:
    return -len(_invalid(figures)), figures.launch


def slowed_of(figures: Iterable[Figures]) -> dict[str, float]:
    """By case that speculation slows down, its speedup: the geometric mean over valid launches.

    Only where each of several rounds of each launch was slower than any without speculation.
    """
    launches: dict[str, list[Figures]] = {}
    for one in figures:
        if one.speedup is not None and one.speedup.throughput_ratio:
            launches.setdefault(one.case_id, []).append(one)
    return {
        case_id: statistics.geometric_mean(
            one.speedup.throughput_ratio or 1.0 for one in found if one.speedup
        )
        for case_id, found in launches.items()
        if all(map(_is_slower, found))
    }


def _is_slower(figures: Figures) -> bool:
    ours, theirs = (
        arm.throughput_tokens_per_s if arm else None for arm in (figures.timing, figures.control)
    )
    return ours is not None and theirs is not None and ours.count > 1 and ours.max < theirs.min


def load_figures(run_folder: Path) -> tuple[Figures, ...]:
    """All figures that a run left, in the order of their names.

    Raises:
        SpecregError: there are none, or a file can't be read.
    """
    paths = sorted((run_folder / "figures").glob("*.json"))
    if not paths:
        message = f"run '{run_folder}': it left no figures; name a run that measured something"
        raise SpecregError(message)
    return tuple(map(_load, paths))


def readable_figures(run_folder: Path) -> tuple[tuple[Figures, ...], tuple[str, ...]]:
    """The figures that a run left as far as they can be read, and why the others can't."""
    figures, unread = [], []
    for path in sorted((run_folder / "figures").glob("*.json")):
        try:
            figures.append(_load(path))
        except SpecregError as error:
            unread.append(str(error))
    return tuple(figures), tuple(unread)


def _load(path: Path) -> Figures:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Figures)
    except (OSError, *UNREADABLE) as error:
        message = f"figures '{path}': {error}; run the case again with this specreg"
        raise SpecregError(message) from error


def _tpot_p50_ms(arm: ArmFigures | None, category: str) -> float | None:
    pace = arm.by_category.get(category) if arm else None
    return pace.tpot_ms.p50 if pace and pace.tpot_ms else None
