"""What the cases of a machine have in common on a night, and how far the machine wanders.

Cases that share an engine and a machine become faster and slower together: with the hour, with the
temperature, or with a version of the engine. The median of their changes is what they have in
common; with too few cases for a median, it is the change of the server without speculation that
runs beside each case. It is subtracted before a case is judged, and it is judged by itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specreg.judging.fold import GAINED, LOST, USUAL, Fold, Night
from specreg.judging.spread import Bools, Floats, Ints, SpreadEstimator, quantiles

FEWEST_CASES = 5
"""The fewest cases whose median shows what they have in common."""
SLOW_LEVEL = 0.001
"""The probability that a machine counts as too slow although it wanders as it always does."""
_WANDER_FREEDOM = 8.0
"""How many degrees of freedom the assumed wandering of a machine is worth."""
_MOST_SPREADS = 3.5
"""A night counts as no further from the middle than this, so that one bad night doesn't hide a slow
machine for good."""
_LASTING_SHARE = 0.5
"""The least share of a night's variance that further nights leave, because a machine that is slow
tonight is often slow tomorrow too."""
_MIDDLE_DISTANCE = 0.6745
"""The median distance from its middle of a normal distribution with the spread 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """What figures changed by together tonight; NaN where too few of them show it.

    Attributes:
        figures: the change that each figure shares with those of its engine.
        contrasts: for each engine and metric, by how much more it changed than the other engines.
        machine: for each metric, the change of all engines.
    """

    figures: Floats
    contrasts: Floats
    machine: Floats


class Groups:
    """The figures that change together.

    Args:
        metrics: the metric of each figure.
        engines: the engine of each figure.

    Attributes:
        by_metric: the figures of each metric.
        by_engine: the figures of each pair of a metric and an engine.
        of_other_engines: for each of these pairs, the figures of the metric on other engines.
        metric_of_pair: for each of these pairs, the row of its metric in `by_metric`.
        metrics_of_engines: the pairs of each engine. The contrast of one of two engines is that of
            the other one, so spreads are pooled over metrics, and not over engines.
    """

    def __init__(self, metrics: Sequence[str], engines: Sequence[str]) -> None:
        metric_names = np.array(metrics)
        engine_names = np.array(engines)
        self.by_metric: list[Ints] = []
        self.by_engine: list[Ints] = []
        self.of_other_engines: list[Ints] = []
        self.metric_of_pair: list[int] = []
        pairs: dict[str, list[int]] = {}
        for row, metric in enumerate(dict.fromkeys(metrics)):
            is_metric = metric_names == metric
            self.by_metric.append(np.flatnonzero(is_metric))
            for engine in dict.fromkeys(engine_names[is_metric].tolist()):
                is_engine = engine_names == engine
                self.by_engine.append(np.flatnonzero(is_metric & is_engine))
                self.of_other_engines.append(np.flatnonzero(is_metric & ~is_engine))
                self.metric_of_pair.append(row)
                pairs.setdefault(engine, []).append(len(self.metric_of_pair) - 1)

        self.metrics_of_engines = [np.array(rows) for rows in pairs.values()]

    def common(
        self, changes: Floats, control_changes: Floats, is_usual: Bools, engine_is_usual: Bools
    ) -> Common:
        """Return what figures changed by together.

        Args:
            changes: how each figure changed since its level was recorded; NaN if unknown.
            control_changes: how the control beside each figure changed since then.
            is_usual: whether a figure has no open loss or gain, and so speaks for others.
            engine_is_usual: the same for all cases of an engine together.
        """
        speaks = is_usual & np.isfinite(changes)
        speaks_for_machine = speaks.copy()
        for row, figures in enumerate(self.by_engine):
            speaks_for_machine[figures] &= engine_is_usual[row]
        machine = np.array(
            [_median(changes, figures, speaks_for_machine, speaks) for figures in self.by_metric]
        )
        for row, figures in enumerate(self.by_metric):
            known = control_changes[figures]
            known = known[np.isfinite(known)]
            if np.isnan(machine[row]) and len(known):
                machine[row] = np.median(known)

        shared = np.full(len(changes), np.nan)
        contrasts = np.full(len(self.by_engine), np.nan)
        for row, figures in enumerate(self.by_engine):
            of_engine = _median(changes, figures, speaks)
            of_others = _median(changes, self.of_other_engines[row], speaks)
            contrasts[row] = of_engine - of_others
            shared[figures] = of_engine
            if np.isnan(of_engine):
                # The engine has too few cases, so the control of each case takes their place, or
                # else all cases of the machine.
                of_machine = machine[self.metric_of_pair[row]]
                of_controls = control_changes[figures]
                shared[figures] = np.where(np.isfinite(of_controls), of_controls, of_machine)

        return Common(figures=shared, contrasts=contrasts, machine=machine)


def _median(changes: Floats, figures: Ints, *selections: Bools) -> float:
    """Return the median of the first selection that has enough figures; NaN if none has."""
    for selection in selections:
        chosen = changes[figures[selection[figures]]]
        if len(chosen) >= FEWEST_CASES:
            return float(np.median(chosen))
    return float("nan")


class Wandering:
    """How the speed of a machine wanders from night to night, for each metric.

    A machine that is slow tonight is often slow tomorrow, so the differences of successive nights
    would understate how far it wanders. Its spread is that of all nights around their middle, but
    for those of an open loss or gain, which would hide themselves.

    Args:
        metrics: how many metrics there are.
        prior_frac: the spread that is assumed at first.
        tolerances_frac: the tolerated loss of each metric, 0..1.
        two_sided: whether a gain of a metric is as bad as a loss.

    Attributes:
        fold: the lasting changes of the machine. They only name since when it is slower.
        change: the change of tonight from the level; NaN if unknown.
    """

    def __init__(
        self, metrics: int, prior_frac: float, tolerances_frac: Floats, two_sided: Bools
    ) -> None:
        groups = [np.array([row]) for row in range(metrics)]
        self.fold = Fold(SpreadEstimator(groups, prior_frac, 0.0), tolerances_frac)
        self._prior = prior_frac**2
        self._two_sided = two_sided
        self._tolerated = -np.log1p(-tolerances_frac)
        self._levels = np.empty((0, metrics))

        # The night on which the level of each metric began.
        self._began = np.zeros(metrics, np.intp)
        self._level_nights = self.fold.level_nights
        self.change = np.full(metrics, np.nan)
        self._was_too_slow = np.zeros(metrics, bool)

    @property
    def is_too_slow(self) -> Bools:
        """Whether tonight is proven to be slower than tolerated.

        For a two-sided metric, whether it is further from the level. A night that doesn't show its
        speed isn't too slow, and says nothing about the nights after it.
        """
        return np.asarray(self._was_too_slow & np.isfinite(self.change))

    def add(self, common: Floats, restarts: Bools) -> None:
        """Add the common change of a night."""
        self._level_nights = self.fold.level_nights
        self.fold.add(Night.of_levels(common, restarts))
        self.change = self.fold.kept.estimate
        self._began[restarts] = len(self._levels)
        self._levels = np.vstack([self._levels, common])

        for row in range(len(common)):
            is_too_far = self._is_too_far(row, LOST) or (
                bool(self._two_sided[row]) and self._is_too_far(row, GAINED)
            )
            stays = bool(self._was_too_slow[row]) and not restarts[row] and not self._is_back(row)
            self._was_too_slow[row] = is_too_far or stays

    def _is_too_far(self, row: int, state: int) -> bool:
        """Return whether tonight alone, or the nights of an open loss or gain, prove it."""
        sign = -1 if state == LOST else 1
        past = self._past(row)
        tonight = float(self.change[row])
        if not len(past) or np.isnan(tonight):
            return False
        variance, freedom = self._variance(past)
        needed = float(quantiles(SLOW_LEVEL, np.array([freedom]))[0])
        error = float(np.sqrt(variance * (1 + 1 / self._level_nights[row])))
        if sign * tonight > max(self._tolerated[row], needed * error):
            return True
        if self.fold.state[row] != state or self._is_back(row):
            return False
        lost = self._levels[int(self.fold.since[row]) :, row]
        lost = lost[np.isfinite(lost)]
        reach = _MOST_SPREADS * np.sqrt(variance)
        middle = np.median(lost)
        mean = float(np.clip(lost, middle - reach, middle + reach).mean())
        share = _LASTING_SHARE + (1 - _LASTING_SHARE) / len(lost)
        error = float(np.sqrt(variance * (share + 1 / len(past))))
        change = mean - float(self.fold.level_before[row])
        return bool(sign * change > max(self._tolerated[row], needed * error))

    def variances(self) -> Floats:
        """Return the variance of the machine's nights, for each metric."""
        columns = [self._levels[began:, row] for row, began in enumerate(self._began)]
        known = [column[np.isfinite(column)] for column in columns]
        return np.array(
            [self._variance(levels)[0] if len(levels) else self._prior for levels in known]
        )

    def _is_back(self, row: int) -> bool:
        """Return whether a machine that was too slow is near its level again tonight."""
        variance, _ = self._variance(self._past(row))
        tonight = float(self.change[row])
        change = abs(tonight) if self._two_sided[row] else -tonight
        return bool(change < max(self._tolerated[row] / 2, np.sqrt(variance)))

    def _past(self, row: int) -> Floats:
        """Return the levels of the nights before tonight, or before an open loss or gain."""
        is_open = self.fold.state[row] != USUAL
        end = int(self.fold.since[row]) if is_open else len(self._levels) - 1
        past = self._levels[self._began[row] : end, row]
        return np.asarray(past[np.isfinite(past)])

    def _variance(self, past: Floats) -> tuple[float, float]:
        """Return the variance of nights around their middle, and its degrees of freedom."""
        distances = np.abs(past - np.median(past))
        nights = len(past) - 1
        freedom = _WANDER_FREEDOM + nights
        middle_spread = float(np.median(distances)) / _MIDDLE_DISTANCE
        typical = (_WANDER_FREEDOM * self._prior + nights * middle_spread**2) / freedom
        squares = np.minimum(distances**2, _MOST_SPREADS**2 * typical)
        return (_WANDER_FREEDOM * self._prior + float(squares.sum())) / freedom, freedom
