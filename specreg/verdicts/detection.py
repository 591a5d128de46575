"""Say what launches can tell of a speed, by how they spread: the minimum detectable effect."""

import math
from collections.abc import Mapping

from specreg.baselines.schema import Baseline, Detectable
from specreg.matrix.case import Case
from specreg.measurement.metrics import METRICS, Metric
from specreg.stats.intervals import (
    LEVELS,
    MORE_LAUNCHES,
    Effect,
    Look,
    Spread,
    change_of_launches,
    t_quantile,
)

RUN_LAUNCHES = 1 + MORE_LAUNCHES
"""The most launches that a run takes of an undecided case."""
MOST_LAUNCHES = 12
"""The most launches of a case to record; each takes minutes."""
_POWER_LEVEL = 0.01
"""The minimum detectable effect is proven 99 times out of 100."""
_FURTHEST = 50.0
"""Differences of logarithms are clipped to ± this."""


def detectable(metric: Metric, allowed_frac: float, recorded: int, spread: Spread) -> Detectable:
    """What a run can tell of a speed against a baseline of so many launches, 1 or more."""
    numbers = range(1, MOST_LAUNCHES + 1)
    mdes = {launches: mde_of_launches(metric, launches, recorded, spread) for launches in numbers}
    return Detectable.of(mdes, allowed_frac, RUN_LAUNCHES)


def detects_against(
    baseline: Baseline, case: Case, spreads: Mapping[str, Spread]
) -> dict[str, Detectable]:
    """By speed that is judged, what a run can tell against a baseline; none without a spread."""
    found = {}
    for name in dict.fromkeys(name for row in baseline.launches for name in row):
        metric = METRICS.get(name)
        if metric is not None and name in spreads and metric.is_judged(case):
            launches = len(baseline.launch_values(metric))
            found[name] = detectable(metric, metric.allowed_frac(case), launches, spreads[name])
    return found


def mde_of_launches(metric: Metric, launches: int, recorded: int, spread: Spread) -> float:
    """The minimum detectable effect of so many launches against so many recorded, 0 or more."""
    change = change_of_launches((1.0,) * launches, (1.0,) * recorded, spread, 1)
    look = Look.LAUNCH if launches == 1 else Look.FURTHER_LAUNCH
    return mde_frac(metric, change, LEVELS[look])


def mde_frac(metric: Metric, effect: Effect, level: float) -> float:
    """Return the minimum detectable effect: the loss that would be proven 99 times out of 100.

    Args:
        metric: what is measured.
        effect: its error and degrees of freedom count, its estimate doesn't.
        level: the level at which a loss is proven, 0..0.5.

    Returns:
        A relative change, 0 or more.
    """
    reach = t_quantile(level, effect.freedom) + t_quantile(_POWER_LEVEL, effect.freedom)
    return -to_frac(metric, -reach * effect.error_frac)


def to_frac(metric: Metric, change: float) -> float:
    """Convert a change to a relative one; that of launches is a difference of logarithms.

    Better is positive of such a difference.
    """
    if not metric.by_launch:
        return change
    change = min(max(change, -_FURTHEST), _FURTHEST)
    return math.expm1(change) if metric.sign > 0 else -math.expm1(-change)
