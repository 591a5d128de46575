"""Fold the nights of one machine: the state of its cases, of its engines, and of itself."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specreg.judging.fold import LOST, NIGHT_LEVEL, Change, Fold, Night
from specreg.judging.machine import FEWEST_CASES, Common, Groups, Wandering
from specreg.judging.rules import Evidence
from specreg.judging.samples import Figure
from specreg.judging.spread import Bools, Floats, Ints, SpreadEstimator

PASS_LEVEL = 0.004
"""The probability that a figure passes although it lost as much as is tolerated."""
_FEWEST_DECISIONS = 24
"""A machine with fewer figures is judged as if it had these, because a false loss stays for many
nights, and would be seen on such a machine as often as on a large one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """The spreads that are assumed until a machine has shown its own, as standard deviations.

    Attributes:
        night_frac: between nights.
        own_frac: the part of it that cases don't share.
        launch_frac: between the launches of a night.
    """

    night_frac: float
    own_frac: float
    launch_frac: float


CPU = Prior(night_frac=0.065, own_frac=0.033, launch_frac=0.03)
"""From the committed baselines of CPUs."""
GPU = Prior(night_frac=0.05, own_frac=0.015, launch_frac=0.01)
"""From four launches on three H100s; what cases don't share is an assumption."""


class MachineNights:
    """The state of all figures of one machine after its nights so far.

    Args:
        tolerances_frac: the tolerated loss of each figure, 0..1.
        prior: the spreads that are assumed at first.
        has_controls: whether servers without speculation ran beside the cases.
        level: the probability of a false loss per night, in any figure.
    """

    def __init__(
        self,
        figures: Sequence[Figure],
        tolerances_frac: Floats,
        prior: Prior,
        *,
        has_controls: bool = False,
        level: float = NIGHT_LEVEL,
    ) -> None:
        self.figures = figures
        self._tolerated = -np.log1p(-tolerances_frac)
        self._two_sided = np.array([figure.two_sided for figure in figures], bool)
        self._recorded = np.full(len(figures), np.nan)
        self._recorded_controls = np.full(len(figures), np.nan)
        groups = Groups(
            [figure.metric for figure in figures], [figure.engine for figure in figures]
        )
        self._groups = groups
        self._metric_of = np.empty(len(figures), np.intp)
        for row, members in enumerate(groups.by_metric):
            self._metric_of[members] = row
        self._pair_of = np.empty(len(figures), np.intp)
        for row, members in enumerate(groups.by_engine):
            self._pair_of[members] = row

        # With neither enough cases for a median nor controls, the night is a part of the spread of
        # each case.
        most_cases = max(map(len, groups.by_metric), default=0)
        self._shows_common = has_controls or most_cases >= FEWEST_CASES
        own_frac = prior.own_frac if self._shows_common else prior.night_frac
        self.cases = Fold(
            SpreadEstimator(groups.by_metric, own_frac, prior.launch_frac),
            tolerances_frac,
            decides=np.array([figure.decides for figure in figures], bool),
            fewest_decisions=_FEWEST_DECISIONS,
            two_sided=self._two_sided,
            level=level,
        )
        pairs = len(groups.by_engine)
        self.engines = Fold(
            SpreadEstimator(groups.metrics_of_engines, prior.own_frac, 0.0),
            tolerances_frac[[members[0] for members in groups.by_engine]],
            level=level,
        )
        self._engine_changes = np.empty((0, len(groups.by_engine)))
        self._contrasts = np.empty((0, len(groups.by_engine)))

        # The night on which the level of each of these pairs began.
        self._engine_began = np.zeros(pairs, np.intp)
        self.machine = Wandering(
            len(groups.by_metric),
            prior.night_frac,
            tolerances_frac[[members[0] for members in groups.by_metric]],
            self._two_sided[[members[0] for members in groups.by_metric]],
        )
        self.common = self._common(self._recorded, self._recorded_controls)

    def change_of(self, night: Night) -> Change:
        """Return how far figures are on a night from their earlier nights, in what is their own."""
        common = self._common(night.levels, night.controls)
        own = night.levels - self._recorded - _or_nothing(common.figures)
        return self.cases.change_of(own, night.launches, self._unshared_variance(common))

    def looks_lost(self, night: Night) -> Bools:
        """Return which figures look worse than tolerated, so that a further launch helps.

        A figure with an open loss doesn't: it is red already.

        Args:
            night: tonight so far; its level is NaN where nothing is measured yet.
        """
        estimate = self.change_of(night).estimate
        loss = np.where(self._two_sided, np.abs(estimate), -estimate)
        return np.asarray(self.cases.is_usual & (loss > self._tolerated))

    def add(self, night: Night) -> None:
        """Go one night further."""
        restarts = night.restarts
        common = self._common(
            np.where(restarts, np.nan, night.levels), np.where(restarts, np.nan, night.controls)
        )
        shared = _or_nothing(common.figures)
        self._recorded_controls = np.where(restarts, night.controls, self._recorded_controls)
        self._recorded = np.where(restarts, night.levels - shared, self._recorded)
        self.common = common
        own = Night(
            levels=night.levels - self._recorded - shared,
            launches=night.launches,
            planned_levels=night.planned_levels - self._recorded - shared,
            planned=night.planned,
            launch_squares=night.launch_squares,
            restarts=restarts,
            controls=night.controls,
            lowest=night.lowest - self._recorded - shared,
            highest=night.highest - self._recorded - shared,
            unshared_variance=np.where(restarts, 0.0, self._unshared_variance(common)),
        )
        self.cases.add(own)
        self._add_engines(common, night)
        self._add_machine(common, night)

    def _unshared_variance(self, common: Common) -> Floats:
        """Return the variance of what figures have in common tonight, where it isn't known.

        On a machine that never shows it, it is a part of the spread of each figure.
        """
        is_unknown = np.isnan(common.figures) & self._shows_common
        return np.where(is_unknown, self.machine.variances()[self._metric_of], 0.0)

    def _common(self, levels: Floats, controls: Floats) -> Common:
        return self._groups.common(
            levels - self._recorded,
            controls - self._recorded_controls,
            self.cases.is_usual,
            self.engines.is_usual,
        )

    def _add_engines(self, common: Common, night: Night) -> None:
        contrasts = common.contrasts.copy()
        restarts = np.zeros(len(contrasts), bool)
        for row, figures in enumerate(self._groups.by_engine):
            others = self._groups.of_other_engines[row]
            if _starts_anew(figures, night) and _starts_anew(others, night):
                contrasts[row] = 0.0
                restarts[row] = True
                self._engine_began[row] = len(self._contrasts)

        self.engines.add(Night.of_levels(contrasts, restarts))
        of_engines = np.array([common.figures[members[0]] for members in self._groups.by_engine])
        of_engines = np.where(restarts, 0.0, of_engines)
        self._engine_changes = np.vstack([self._engine_changes, of_engines])
        self._contrasts = np.vstack([self._contrasts, contrasts])

    def _is_engine_lost(self, pair: int) -> bool:
        """Return whether the cases of an engine have lost together, beside the other engines.

        If an engine is slower beside the others, either it lost or the others gained. It is the one
        that moved further since then. The recorded night alone is no measure of that, because all
        engines may have been slow on it.
        """
        if self.engines.state[pair] != LOST:
            return False
        of_engine = self._engine_changes[:, pair]
        of_others = of_engine - self._contrasts[:, pair]
        since = self.engines.since[pair]
        before = slice(self._engine_began[pair], since)
        moved, others_moved = (
            np.nanmean(changes[since:]) - np.nanmean(changes[before])
            for changes in (of_engine, of_others)
        )
        return bool(abs(moved) >= abs(others_moved))

    def _add_machine(self, common: Common, night: Night) -> None:
        machine = common.machine.copy()
        restarts = np.array([_starts_anew(figures, night) for figures in self._groups.by_metric])
        machine[restarts] = 0.0
        self.machine.add(machine, restarts)

    def evidence(self) -> list[Evidence]:
        """Return what the nights show about each figure on the last of them."""
        lowest, highest = self.cases.kept.bounds(PASS_LEVEL)
        sizes = self.cases.size_of_change()
        needed = self.cases.needed_nights()
        shared = self._shared_change()
        rows = []
        for column in range(len(self.figures)):
            pair = self._pair_of[column]
            metric = self._metric_of[column]
            is_engine_lost = self._is_engine_lost(int(pair))
            rows.append(
                Evidence(
                    tolerated=float(self._tolerated[column]),
                    two_sided=bool(self._two_sided[column]),
                    own=float(self.cases.kept.estimate[column]),
                    error_frac=float(self.cases.kept.error[column]),
                    freedom=float(self.cases.kept.freedom[column]),
                    lowest=float(lowest[column]),
                    highest=float(highest[column]),
                    shared=float(shared[column]),
                    state=int(self.cases.state[column]),
                    size=float(sizes[column]),
                    since=int(self.cases.since[column]),
                    engine_since=int(self.engines.since[pair]) if is_engine_lost else -1,
                    machine_since=int(self.machine.fold.since[metric]),
                    is_machine_too_slow=bool(self.machine.is_too_slow[metric]),
                    needed_nights=int(needed[column]),
                    nights=int(self.cases.nights[column]),
                )
            )

        return rows

    def _shared_change(self) -> Floats:
        """Return by how much each figure changed together with others, from the machine's level."""
        tonight = self.common.machine
        level = tonight - self.machine.change
        return _or_nothing(self.common.figures - level[self._metric_of])


def _starts_anew(figures: Ints, night: Night) -> bool:
    """Return whether a night recorded all of these figures that it measured, and enough of them."""
    is_measured = np.isfinite(night.levels[figures])
    measured = figures[is_measured]
    are_enough = len(measured) >= min(FEWEST_CASES, len(figures)) > 0
    return are_enough and bool(night.restarts[measured].all())


def _or_nothing(changes: Floats) -> Floats:
    """Return the changes, or 0 where nothing is known of what figures have in common."""
    return np.where(np.isfinite(changes), changes, 0.0)
