"""The minimum detectable effect of launches of a speed, by how they differ."""

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
    """Return what a run can detect of a speed.

    Args:
        metric: the speed.
        allowed_frac: the loss that is tolerated, 0..1.
        recorded: how many launches the baseline has, 1 or more.
        spread: how launches differ.
    """
    mde_frac_by_launches = {
        launches: mde_of_launches(metric, launches, recorded, spread)
        for launches in range(1, MOST_LAUNCHES + 1)
    }
    return Detectable.of(mde_frac_by_launches, allowed_frac, RUN_LAUNCHES)


def detects_against(
    baseline: Baseline, case: Case, spreads: Mapping[str, Spread]
) -> dict[str, Detectable]:
    """Return what a run can detect of each speed that is judged and has a spread, by its name."""
    detectables = {}
    for name in dict.fromkeys(name for launch in baseline.launches for name in launch):
        metric = METRICS.get(name)
        if metric is not None and name in spreads and metric.is_judged(case):
            recorded = len(baseline.launch_values(metric))
            allowed_frac = metric.allowed_frac(case)
            detectables[name] = detectable(metric, allowed_frac, recorded, spreads[name])
    return detectables


def mde_of_launches(metric: Metric, launches: int, recorded: int, spread: Spread) -> float:
    """Return the minimum detectable effect of launches against the recorded ones, 0 or more."""
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
    """Convert the change of an effect to a relative one.

    That of a speed is a difference of logarithms of which better is positive; that of acceptance is
    relative already.
    """
    if not metric.by_launch:
        return change
    change = min(max(change, -_FURTHEST), _FURTHEST)
    return math.expm1(change) if metric.sign > 0 else -math.expm1(-change)
