"""Recording: decide which further launches to measure in the time that is left."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

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
        case_id: The id of the case.
        measurements: All measurements of the run.
        store: The baselines of this machine.
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
        metric: The speed.
        case: The case.
        launches: The number of launches recorded so far.
        spread: How these launches differ.
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


@dataclass(slots=True, kw_only=True)
class RecordingBudget:
    """The time for launches beyond the planned ones.

    Attributes:
        left_s: The time that is left for all servers together, in seconds.
        store: The baselines of this machine, whose launches show how much launches differ.
        _served: The ids of the servers that have had their share.
    """

    left_s: float
    store: BaselineStore
    _served: set[str] = field(default_factory=set)

    def share_s(self, server: str, servers: AbstractSet[str]) -> float:
        """Return a server's share of the remaining time, in seconds.

        The remaining time is divided equally between the servers that haven't had a share yet.

        Args:
            server: The id of the server's launch.
            servers: The ids of the launches of all servers.
        """
        share_s = self.left_s / max(len(servers - self._served), 1)
        self._served.add(server)
        return share_s

    def spend(self, seconds: float) -> None:
        """Subtract the time of a launch from the remaining time."""
        self.left_s -= seconds

    def undecided(
        self,
        cases: Sequence[Case],
        metrics_of: Mapping[str, Sequence[Metric]],
        measurements: Sequence[Measurement],
    ) -> list[Case]:
        """Return the cases with a speed that later runs may judge better after more launches.

        Args:
            cases: The cases of a server group.
            metrics_of: The metrics that are recorded, by case id.
            measurements: All measurements of the run so far.
        """
        undecided = []
        for case in cases:
            spreads = speed_spreads(case.id, measurements, self.store)
            launches = sum(measurement.case == case for measurement in measurements)
            speeds = [metric for metric in metrics_of[case.id] if metric.by_launch]
            with_spread = [metric for metric in speeds if metric.name in spreads and launches]
            if any(
                more_launches_decide(metric, case, launches, spreads[metric.name])
                for metric in with_spread
            ):
                undecided.append(case)
        return undecided
