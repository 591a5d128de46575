"""Choose which launches of a case a report shows, and name the cases that speculation slows."""

import statistics
from collections.abc import Iterable

from specreg.core.families import Family
from specreg.measurement.figures import Figures, SpeedupFigures
from specreg.stats.percentiles import Summary


def last_launches(figures: Iterable[Figures]) -> tuple[Figures, ...]:
    """Return, for each case, the figures of its launch with the fewest invalid metric families.

    The last of several such launches counts. A case is left out if all families of its best launch
    are invalid. The cases are in the order of their first launches.
    """
    last_by_case: dict[str, Figures] = {}
    for launch in figures:
        last = last_by_case.setdefault(launch.case_id, launch)
        if _validity_and_number(launch) > _validity_and_number(last):
            last_by_case[launch.case_id] = launch

    return tuple(
        launch for launch in last_by_case.values() if len(launch.invalid or ()) < len(Family)
    )


def _validity_and_number(launch: Figures) -> tuple[int, int]:
    """Return a sort key. The last one has the fewest invalid families, then the highest number."""
    return -len(launch.invalid or ()), launch.launch


def slowed_of(figures: Iterable[Figures]) -> dict[str, float]:
    """Return the speedup of each case that speculation slows down.

    A case counts as slowed down if, in each of its launches, at least nine in ten rounds were
    slower than the control's rounds next to them. Its speedup is the geometric mean over its
    launches.
    """
    speedups: dict[str, list[SpeedupFigures]] = {}
    for launch in figures:
        if launch.speedup is not None and launch.speedup.throughput_ratio:
            speedups.setdefault(launch.case_id, []).append(launch.speedup)
    slowed = {}
    for case_id, case_speedups in speedups.items():
        if not all(_is_slower(speedup.round_ratio) for speedup in case_speedups):
            continue
        ratios = [speedup.throughput_ratio for speedup in case_speedups if speedup.throughput_ratio]
        slowed[case_id] = statistics.geometric_mean(ratios)

    return slowed


def _is_slower(round_ratio: Summary | None) -> bool:
    """Return True if nine in ten rounds were slower than those of the control."""
    # A single round shows nothing about how rounds vary.
    return round_ratio is not None and round_ratio.count > 1 and round_ratio.p90 < 1
