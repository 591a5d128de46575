"""Recording: which launches to measure beyond the first ones, within a time."""

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
"""With so many degrees of freedom a spread is known well enough to say what can't be told."""


def speed_spreads(
    case_id: str, measurements: Iterable[Measurement], store: BaselineStore
) -> Mapping[str, Spread]:
    """Return by speed how launches of a case differ on this machine.

    Launches of one case are few, so its spread is moderated by the launches of all cases of the
    run, and by the baselines of the cases that it doesn't have.

    Args:
        case_id: the case.
        measurements: all launches of the run.
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
    own = spreads_by_case.pop(case_id, CaseSpreads.of(()))
    return spreads_of(own, list(spreads_by_case.values()))


def more_launches_decide(metric: Metric, case: Case, launches: int, spread: Spread) -> bool:
    """Whether later runs can't judge a speed of a case now, but could if more were recorded.

    Args:
        metric: the speed.
        case: whose speed it is.
        launches: how many were recorded so far.
        spread: how the launches differ.
    """
    # Further launches are taken to differ as much as those so far, which are then better known.
    freedom = spread.freedom + MAX_LAUNCHES - launches
    most_spread = dataclasses.replace(spread, freedom=freedom)
    tolerance_frac = metric.allowed_frac(case)
    current = mde_of_launches(metric, RUN_LAUNCHES, launches, spread)
    with_most = mde_of_launches(metric, RUN_LAUNCHES, MAX_LAUNCHES, most_spread)
    # A spread that few launches guess is uncertain by a factor of two.
    is_guess = spread.freedom < _KNOWN_FREEDOM
    return current > tolerance_frac and (with_most <= tolerance_frac or is_guess)


@dataclass(slots=True, kw_only=True)
class RecordingBudget:
    """The time for launches beyond the first ones.

    Attributes:
        left_s: for all servers together, in seconds.
        store: the baselines of this machine, whose launches show how launches differ.
    """

    left_s: float
    store: BaselineStore
    _served: set[str] = field(default_factory=set)

    def share_s(self, server: str, servers: AbstractSet[str]) -> float:
        """Return the share of a server in the time that is left, in seconds.

        Servers that had their share get nothing of what is left.

        Args:
            server: the id of the launch that asks.
            servers: the ids of all launches that may ask.
        """
        share_s = self.left_s / max(len(servers - self._served), 1)
        self._served.add(server)
        return share_s

    def spend(self, seconds: float) -> None:
        """Take the time of a launch off what is left."""
        self.left_s -= seconds

    def undecided(
        self,
        cases: Sequence[Case],
        metrics_of: Mapping[str, Sequence[Metric]],
        measurements: Sequence[Measurement],
    ) -> list[Case]:
        """Return the cases of which later runs could judge more if more launches were recorded.

        Args:
            cases: those that share a server.
            metrics_of: by the id of a case the metrics that are recorded for it.
            measurements: all of the run so far.
        """
        undecided = []
        for case in cases:
            spreads = speed_spreads(case.id, measurements, self.store)
            launches = sum(measurement.case == case for measurement in measurements)
            speeds = [metric for metric in metrics_of[case.id] if metric.by_launch]
            known = [metric for metric in speeds if metric.name in spreads and launches]
            if any(
                more_launches_decide(metric, case, launches, spreads[metric.name])
                for metric in known
            ):
                undecided.append(case)
        return undecided
