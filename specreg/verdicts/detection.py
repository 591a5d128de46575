"""The minimum detectable effect of launches, by how they differ."""

import bisect
import itertools
import math
import statistics
from collections.abc import Mapping, Sequence

from specreg.acceptance.record import AcceptanceRecord
from specreg.baselines.comparison import change_of_acceptance
from specreg.baselines.schema import Baseline, Detectable
from specreg.matrix.case import Case
from specreg.measurement.metrics import METRICS, Metric
from specreg.stats.intervals import (
    LEVEL,
    LEVELS,
    MORE_LAUNCHES,
    Effect,
    Look,
    Spread,
    change_of_launches,
    t_quantile,
)
from specreg.stats.nights import DIFFERENCE_FREEDOM, MAX_TOGETHER, NightSpread
from specreg.stats.variance import Variance, sum_of
from specreg.verdicts.nights import NightEvidence, usual_night_frac

RUN_LAUNCHES = 1 + MORE_LAUNCHES
"""The most launches that a run takes of an undecided case."""
MAX_LAUNCHES = 12
"""The most launches of a case to record; each takes minutes."""
MAX_NIGHTS_TO_HOLD = 2 * MAX_TOGETHER
"""What so many nights don't hold isn't held in a season."""
_POWER_LEVEL = 0.01
"""The minimum detectable effect is proven 99 times out of 100."""
_FURTHEST = 50.0
"""Differences of logarithms are clipped to ± this."""


def detectable(
    metric: Metric, allowed_frac: float, recorded: int, spread: Spread, *, kind: str
) -> Detectable:
    """Return what a run can detect of a speed.

    Args:
        metric: the speed.
        allowed_frac: the loss that is tolerated, 0..1.
        recorded: how many launches the baseline has, 1 or more.
        spread: how launches differ.
        kind: the kind of machine, "cpu" or "gpu".
    """
    mde_frac_by_launches = {
        launches: mde_of_launches(metric, launches, recorded, spread)
        for launches in range(1, MAX_LAUNCHES + 1)
    }
    launch = Variance(value=spread.within_frac**2, freedom=spread.freedom)
    between_frac = spread.between_frac or usual_night_frac(metric, kind)
    between = Variance(value=between_frac**2, freedom=spread.between_freedom or spread.freedom)
    night_spread = NightSpread(night=sum_of(launch, between), launch=launch)
    nights = nights_to_hold(metric, allowed_frac, night_spread)
    return Detectable.of(mde_frac_by_launches, allowed_frac, RUN_LAUNCHES, nights)


def detects_against(
    baseline: Baseline,
    case: Case,
    spreads: Mapping[str, Spread],
    acceptances: Sequence[AcceptanceRecord] = (),
) -> dict[str, Detectable]:
    """Return what a run can detect of each metric that decides, is judged and has a spread.

    Args:
        baseline: what the run is compared with.
        case: whose baseline it is.
        spreads: by speed, how launches differ.
        acceptances: what each recorded launch accepted.
    """
    recorded_names = {name for launch in baseline.launches for name in launch}
    detectables = {}
    for metric in METRICS.values():
        if not metric.is_judged(case):
            continue
        allowed_frac = metric.allowed_frac(case)
        if metric.by_launch and metric.name in recorded_names and metric.name in spreads:
            recorded = len(baseline.launch_values(metric))
            detectables[metric.name] = detectable(
                metric, allowed_frac, recorded, spreads[metric.name], kind=baseline.environment.kind
            )
        elif not metric.by_launch and not metric.follows:
            of_prompts = detectable_acceptance(metric, allowed_frac, acceptances)
            if of_prompts is not None:
                detectables[metric.name] = of_prompts
    return detectables


def detectable_acceptance(
    metric: Metric, allowed_frac: float, launches: Sequence[AcceptanceRecord]
) -> Detectable | None:
    """Return what a run can detect of an acceptance, by how its recorded launches differ.

    Two launches are two draws of the same prompts. Where all answers repeat there is no error.

    Args:
        metric: the acceptance.
        allowed_frac: the loss that is tolerated, 0..1.
        launches: what each recorded launch accepted.

    Returns:
        None with fewer than two launches, or if they share too few prompts.
    """
    changes = [
        change_of_acceptance(metric, first, second)
        for first, second in itertools.pairwise(launches)
    ]
    known = [change for change in changes if change is not None]
    if not known:
        return None
    freedom = statistics.fmean(change.freedom for change in known)
    # The difference of two launches has twice the variance of one.
    variance = statistics.fmean(change.error_frac**2 for change in known) / 2
    error = math.sqrt(variance * (1 + 1 / len(launches)))
    change = Effect(estimate_frac=0.0, error_frac=error, freedom=freedom)
    # Launches that differ were recorded on all prompts, the extension's among them.
    mde = mde_frac(metric, change, LEVELS[Look.EXTENDED])
    of_launch = Variance(value=variance, freedom=freedom)
    decides = mde <= allowed_frac
    return Detectable(
        decides=decides,
        mde_frac=mde,
        tolerance_frac=allowed_frac,
        launches=int(decides),
        nights=nights_to_hold(metric, allowed_frac, NightSpread(night=of_launch, launch=of_launch)),
    )


def mde_of_launches(metric: Metric, launches: int, recorded: int, spread: Spread) -> float:
    """Return the minimum detectable effect of launches against the recorded ones, 0 or more."""
    change = change_of_launches((1.0,) * launches, (1.0,) * recorded, spread, 1)
    look = Look.LAUNCH if launches == 1 else Look.FURTHER_LAUNCH
    return mde_frac(metric, change, LEVELS[look])


def nights_to_hold(metric: Metric, tolerance_frac: float, spread: NightSpread) -> int:
    """Return how many nights together hold a tolerance if nothing changes, 0 if no number does.

    Half of the nights are held against the other half. The more nights are known, the better is
    their spread.
    """

    def is_held(nights: int) -> bool:
        last = nights // 2
        error = math.sqrt(spread.of(1) * (1 / last + 1 / (nights - last)))
        freedom = round(spread.night.freedom + DIFFERENCE_FREEDOM * nights)
        reach = t_quantile(LEVEL, freedom)
        return -to_frac(metric, -reach * error) <= tolerance_frac

    counts = range(2, MAX_NIGHTS_TO_HOLD + 1)
    row = bisect.bisect_left(counts, True, key=is_held)  # noqa: FBT003 - False before True
    return counts[row] if row < len(counts) else 0


def launches_to_hold(
    metric: Metric, tolerance_frac: float, nights: NightEvidence, *, launches: int
) -> int:
    """Return how many launches of one night hold a tolerance, 0 if no reasonable number does."""
    reach = t_quantile(LEVELS[Look.FURTHER_LAUNCH], nights.spread.night.freedom)
    reference = max(nights.effect.error_frac**2 - nights.spread.of(launches), 0.0)
    for count in range(launches + 1, MAX_LAUNCHES + 1):
        error = math.sqrt(nights.spread.of(count) + reference)
        if -to_frac(metric, -reach * error) <= tolerance_frac:
            return count
    return 0


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
    """Convert the change of an effect, a difference of logarithms, to a relative one.

    Better is positive in both.
    That of a time is relative to the time: it gets longer by as much as the value is negative.
    """
    change = min(max(change, -_FURTHEST), _FURTHEST)
    return math.expm1(change) if metric.sign > 0 else -math.expm1(-change)
