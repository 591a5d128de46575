"""Recording: decide which cases further launches would let later runs judge better."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

from specreg.baselines.comparison import CaseSpreads, spreads_of
from specreg.baselines.store import BaselineStore
from specreg.matrix.case import Case
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import METRICS, Metric
from specreg.stats.intervals import Spread
from specreg.verdicts.detection import MAX_LAUNCHES, RUN_LAUNCHES, mde_of_launches

_KNOWN_FREEDOM = 8
"""A spread with so many degrees of freedom or more is known well enough to rely on it. A spread of
fewer launches may be wrong by a factor of two."""


def speed_spreads(
    case_id: str, measurements: Iterable[Measurement], store: BaselineStore
) -> Mapping[str, Spread]:
    """Return how the launches of a case differ on this machine, for each speed by its name.

    A case has few launches, so its spread is pulled towards the spreads of other cases, which come
    from their launches in this run, or else from their baselines.

    Args:
        measurements: all measurements of the run.
        store: the baselines of this machine.
    """
    speeds_by_case: dict[str, list[Mapping[str, float]]] = {}
    for measurement in measurements:
        speeds = {
            name: value for name, value in measurement.values.items() if METRICS[name].by_launch
        }
        speeds_by_case.setdefault(measurement.case.id, []).append(speeds)

    spreads_by_case = dict(store.spreads_by_case)
    spreads_by_case |= {name: CaseSpreads.of(speeds) for name, speeds in speeds_by_case.items()}
    case_spreads = spreads_by_case.pop(case_id, CaseSpreads.of(()))
    return spreads_of(case_spreads, list(spreads_by_case.values()))


def more_launches_decide(metric: Metric, case: Case, launches: int, spread: Spread) -> bool:
    """Return whether more launches may let later runs detect a loss that they can't detect now.

    Args:
        metric: the speed.
        launches: the number of launches recorded so far.
        spread: how these launches differ.
    """
    # Further launches are expected to have the same spread, which is then known better.
    freedom = spread.freedom + MAX_LAUNCHES - launches
    final_spread = dataclasses.replace(spread, freedom=freedom)

    # The smallest losses that a later run can detect.
    current_loss_frac = mde_of_launches(metric, RUN_LAUNCHES, launches, spread)
    final_loss_frac = mde_of_launches(metric, RUN_LAUNCHES, MAX_LAUNCHES, final_spread)
    tolerance_frac = metric.allowed_frac(case)
    if current_loss_frac <= tolerance_frac:
        return False

    # If the spread is only a guess, further launches may show that it is smaller.
    is_guess = spread.freedom < _KNOWN_FREEDOM
    return final_loss_frac <= tolerance_frac or is_guess


def undecided_cases(
    cases: Sequence[Case],
    metrics_of: Callable[[Case], Sequence[Metric]],
    measurements: Sequence[Measurement],
    store: BaselineStore,
) -> list[Case]:
    """Return the cases with a speed that later runs may judge better after more launches.

    Args:
        metrics_of: returns the metrics that are recorded of a case.
        measurements: all measurements of the run so far.
        store: the baselines of this machine, whose launches show how much launches differ.
    """
    undecided_cases = []
    for case in cases:
        spreads = speed_spreads(case.id, measurements, store)
        launches = sum(measurement.case == case for measurement in measurements)
        speeds = [metric for metric in metrics_of(case) if metric.by_launch]
        with_spread = [metric for metric in speeds if metric.name in spreads and launches]
        if any(
            more_launches_decide(metric, case, launches, spreads[metric.name])
            for metric in with_spread
        ):
            undecided_cases.append(case)

    return undecided_cases
