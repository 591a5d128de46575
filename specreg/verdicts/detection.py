"""How small a loss can be detected with some number of launches or nights.

The minimum detectable effect (MDE) is the loss that would be proven 99 times out of 100.
"""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from specreg.acceptance.record import AcceptanceRecord
from specreg.baselines.comparison import change_of_acceptance
from specreg.baselines.schema import Baseline, Detectable
from specreg.core.families import Family
from specreg.judging.nights import CPU, GPU
from specreg.judging.spread import nights_to_keep
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
from specreg.stats.variance import Variance, sum_of

RUN_LAUNCHES = 1 + MORE_LAUNCHES
"""The most launches that a run takes of an undecided case."""
MAX_LAUNCHES = 12
"""The most launches that are suggested for a case, or measured to record it. Each takes minutes."""
_MISSED_LEVEL = 0.01
"""The probability that a loss as large as the minimum detectable effect isn't proven."""
_MOST_LOSS_FRAC = 0.999
"""The largest loss that has a logarithm to calculate with."""
_FURTHEST = 50.0
"""Differences of logarithms are limited to ± this, so that their exponentials can't overflow."""


def detectable(
    metric: Metric, allowed_frac: float, recorded: int, spread: Spread, *, kind: str
) -> Detectable:
    """Return how small a loss of a speed a run can detect.

    Args:
        metric: the speed.
        allowed_frac: the tolerated loss, as a share.
        recorded: how many launches the baseline has, 1 or more.
        spread: how launches and nights vary.
        kind: the kind of machine, "cpu" or "gpu".
    """
    mde_frac_by_launches = {}
    for launches in range(1, MAX_LAUNCHES + 1):
        mde_frac_by_launches[launches] = mde_of_launches(metric, launches, recorded, spread)
    launch = Variance(value=spread.within_frac**2, freedom=spread.freedom)

    # A machine without a history is assumed to vary as much as usual for its kind.
    prior = GPU if kind == "gpu" else CPU

    # A speedup compares two servers in the same minutes, so bad hours cancel out.
    usual_frac = prior.own_frac if metric.family is Family.SPEEDUP else prior.night_frac
    between_frac = spread.between_frac or usual_frac
    between_freedom = spread.between_freedom or spread.freedom
    between = Variance(value=between_frac**2, freedom=between_freedom)

    # Nights differ because the machine has better and worse hours, and because launches differ.
    nights = nights_to_hold(metric, allowed_frac, sum_of(launch, between))
    return Detectable.of(mde_frac_by_launches, allowed_frac, RUN_LAUNCHES, nights)


def detects_against(
    baseline: Baseline,
    case: Case,
    spreads: Mapping[str, Spread],
    acceptances: Sequence[AcceptanceRecord] = (),
) -> dict[str, Detectable]:
    """Return how small a loss of each judged metric a run can detect.

    Metrics whose variation is unknown are left out, and so are acceptance metrics that follow
    another one.

    Args:
        baseline: the baseline that the run is compared with.
        case: the case of the baseline.
        spreads: how the launches of each speed vary.
        acceptances: the acceptance of each recorded launch.
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
    """Return how small a loss of an acceptance metric a run can detect.

    Two launches are two draws of the same prompts, so their difference shows the error. If all
    answers repeat, there is no error.

    Args:
        metric: the acceptance metric.
        allowed_frac: the tolerated loss, as a share.
        launches: the acceptance of each recorded launch.

    Returns:
        None with fewer than two launches, or if no two successive ones can be compared.
    """
    changes = []
    for first, second in itertools.pairwise(launches):
        change = change_of_acceptance(metric, first, second)
        if change is not None:
            changes.append(change)

    if not changes:
        return None
    freedom = statistics.fmean(change.freedom for change in changes)

    # The difference of two launches has twice the variance of one launch.
    variance = statistics.fmean(change.error_frac**2 for change in changes) / 2

    # A run has one launch, and is compared with the mean of the recorded launches.
    error = math.sqrt(variance * (1 + 1 / len(launches)))
    unchanged = Effect(estimate_frac=0.0, error_frac=error, freedom=freedom)

    # If the answers of the launches differ, the recording replayed the extension too. So the level
    # is the one of the look after the extension.
    mde = mde_frac(metric, unchanged, LEVELS[Look.EXTENDED])

    # Acceptance hardly depends on the night, so a night varies as a launch does.
    of_launch = Variance(value=variance, freedom=freedom)
    decides = mde <= allowed_frac
    return Detectable(
        decides=decides,
        mde_frac=mde,
        tolerance_frac=allowed_frac,
        # Further launches replay the same prompts, so one launch decides or no number does.
        launches=int(decides),
        nights=nights_to_hold(metric, allowed_frac, of_launch),
    )


def mde_of_launches(metric: Metric, launches: int, recorded: int, spread: Spread) -> float:
    """Return the minimum detectable effect of a speed, 0 or more.

    Args:
        metric: the speed.
        launches: how many launches the run has.
        recorded: how many launches the baseline has.
        spread: how launches and nights vary.
    """
    # Only the error of the change counts, so any equal values will do.
    change = change_of_launches((1.0,) * launches, (1.0,) * recorded, spread, 1)
    look = Look.LAUNCH if launches == 1 else Look.FURTHER_LAUNCH
    return mde_frac(metric, change, LEVELS[look])


def speed_loss(metric: Metric, tolerance_frac: float) -> float:
    """Return the share of a speed that is lost if a metric is worse by its tolerance, 0..1.

    A time that may become 25 % longer is a speed that may lose 20 %.
    """
    if metric.sign < 0:
        return tolerance_frac / (1 + tolerance_frac)
    return min(tolerance_frac, _MOST_LOSS_FRAC)


def nights_to_hold(metric: Metric, tolerance_frac: float, night: Variance) -> int:
    """Return how many nights together prove that no more than the tolerance was lost.

    Args:
        tolerance_frac: the tolerated loss, as a share.
        night: how nights vary.

    Returns:
        0 if no number is enough.
    """
    tolerated = -math.log1p(-speed_loss(metric, tolerance_frac))
    needed = nights_to_keep(
        np.array([night.value]), np.array([night.freedom]), np.array([tolerated])
    )
    return int(needed[0])


def mde_frac(metric: Metric, effect: Effect, level: float) -> float:
    """Return the minimum detectable effect: the loss that would be proven 99 times out of 100.

    Args:
        effect: a change, of which only the error and its degrees of freedom are used.
        level: the level at which a loss is proven, 0..0.5.

    Returns:
        A relative loss, 0 or more.
    """
    # By chance, a loss looks smaller by `missed_reach` errors or more only once in 100 times. What
    # then remains must exceed `proven_reach` errors to be proven.
    proven_reach = t_quantile(level, effect.freedom)
    missed_reach = t_quantile(_MISSED_LEVEL, effect.freedom)
    reach = proven_reach + missed_reach
    return -to_frac(metric, -reach * effect.error_frac)


def to_frac(metric: Metric, change: float) -> float:
    """Convert a difference of logarithms to a relative change. Better is positive in both.

    The change of a time is relative to the earlier time: -0.1 means that it became 10 % longer.
    """
    change = min(max(change, -_FURTHEST), _FURTHEST)
    if metric.sign > 0:
        return math.expm1(change)
    return -math.expm1(-change)
