"""Fold the nights of one machine: the state of its cases, of its engines, and of itself."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specreg.judging.fold import LOST, Change, Fold, Night
from specreg.judging.machine import FEWEST_CASES, Common, Groups, Wandering
from specreg.judging.rules import Evidence
from specreg.judging.samples import Figure
from specreg.judging.spread import Bools, Floats, Ints, Spread

PASS_LEVEL = 0.004
"""The probability that a figure passes although it lost as much as is tolerated."""
_FEWEST_DECISIONS = 24
"""A machine with fewer figures is judged as if it had these, because a false loss stays for many
nights, and would be seen on such a machine as often as on a large one."""
_KEPT_ERRORS = 2.4
"""How many standard errors a proof takes: Student's quantile at 1 % with some 50 nights."""
_SURE_ERRORS = 3.0
"""How many standard errors a spread has to be larger than allowed, so that it surely is."""
_MOST_NIGHTS = 100
"""The most nights that are worth waiting for. They last more than three months."""


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
        figures: the figures.
        tolerances_frac: the tolerated loss of each figure, 0..1.
        prior: the spreads that are assumed at first.
    """

    def __init__(self, figures: Sequence[Figure], tolerances_frac: Floats, prior: Prior) -> None:
        self.figures = figures
        self._tolerated = -np.log1p(-tolerances_frac)
        self._recorded = np.full(len(figures), np.nan)
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

        # With too few cases for a median, the night is a part of the spread of each case.
        most_cases = max(len(members) for members in groups.by_metric)
        own_frac = prior.own_frac if most_cases >= FEWEST_CASES else prior.night_frac
        self.cases = Fold(
            Spread(groups.by_metric, own_frac, prior.launch_frac),
            tolerances_frac,
            decisions=max(len(figures), _FEWEST_DECISIONS),
        )
        # The contrast of one of two engines is that of the other one, so nothing is pooled.
        pairs = len(groups.by_engine)
        self.engines = Fold(
            Spread([np.array([row]) for row in range(pairs)], prior.own_frac, 0.0),
            tolerances_frac[[members[0] for members in groups.by_engine]],
            decisions=pairs,
        )
        self._engine_changes = np.empty((0, len(groups.by_engine)))
        self._contrasts = np.empty((0, len(groups.by_engine)))
        self.machine = Wandering(
            len(groups.by_metric),
            prior.night_frac,
            tolerances_frac[[members[0] for members in groups.by_metric]],
        )
        self.common = self._common(self._recorded)

    def change_of(self, levels: Floats, launches: Floats) -> Change:
        """Return how far figures are tonight from their own earlier nights, in what is their own.

        Args:
            levels: the levels of tonight so far; NaN where nothing is measured yet.
            launches: how many launches they are averaged over.
        """
        shared = _or_nothing(self._common(levels).figures)
        return self.cases.change_of(levels - self._recorded - shared, launches)

    def looks_lost(self, levels: Floats, launches: Floats) -> Bools:
        """Return which figures look worse than tolerated tonight, so that a further launch helps.

        A figure with an open loss doesn't: it is red already.
        """
        change = self.change_of(levels, launches)
        return np.asarray(self.cases.is_usual & (change.estimate < -self._tolerated))

    def add(self, night: Night) -> None:
        """Go one night further."""
        restarts = night.restarts
        common = self._common(np.where(restarts, np.nan, night.levels))
        shared = _or_nothing(common.figures)
        self._recorded = np.where(restarts, night.levels - shared, self._recorded)
        self.common = common
        own = Night(
            levels=night.levels - self._recorded - shared,
            launches=night.launches,
            planned_levels=night.planned_levels - self._recorded - shared,
            planned=night.planned,
            launch_squares=night.launch_squares,
            restarts=restarts,
        )
        self.cases.add(own)
        self._add_engines(common, night)
        self._add_machine(common, night)

    def _common(self, levels: Floats) -> Common:
        changes = levels - self._recorded
        return self._groups.common(changes, self.cases.is_usual, self.engines.is_usual)

    def _add_engines(self, common: Common, night: Night) -> None:
        contrasts = common.contrasts.copy()
        restarts = np.zeros(len(contrasts), bool)
        for row, figures in enumerate(self._groups.by_engine):
            others = self._groups.of_other_engines[row]
            if _starts_anew(figures, night) and _starts_anew(others, night):
                contrasts[row] = 0.0
                restarts[row] = True
        self.engines.add(Night.of_levels(contrasts, restarts))
        of_engines = np.array([common.figures[members[0]] for members in self._groups.by_engine])
        self._engine_changes = np.vstack([self._engine_changes, of_engines])
        self._contrasts = np.vstack([self._contrasts, contrasts])

    def _is_engine_lost(self, pair: int) -> bool:
        """Return whether the cases of an engine have lost together, beside the other engines.

        If an engine is slower beside the others, either it lost or the others gained. It is the one
        that moved further since then.
        """
        if self.engines.state[pair] != LOST:
            return False
        since = self.engines.since[pair]
        of_engine = self._engine_changes[since:, pair]
        of_others = of_engine - self._contrasts[since:, pair]
        return bool(abs(np.nanmean(of_engine)) >= abs(np.nanmean(of_others)))

    def _add_machine(self, common: Common, night: Night) -> None:
        machine = common.machine.copy()
        restarts = np.array([_starts_anew(figures, night) for figures in self._groups.by_metric])
        machine[restarts] = 0.0
        self.machine.add(machine, restarts)

    def evidence(self) -> list[Evidence]:
        """Return what the nights show about each figure on the last of them."""
        lowest, highest = self.cases.kept.bounds(PASS_LEVEL)
        sizes = self.cases.size_of_change()
        needed = self._needed_nights()
        shared = self._shared_change()
        machine_sizes = self.machine.fold.size_of_change()
        rows = []
        for column in range(len(self.figures)):
            pair = self._pair_of[column]
            metric = self._metric_of[column]
            is_engine_lost = self._is_engine_lost(int(pair))
            rows.append(
                Evidence(
                    tolerated=float(self._tolerated[column]),
                    own=float(self.cases.kept.estimate[column]),
                    lowest=float(lowest[column]),
                    highest=float(highest[column]),
                    shared=float(shared[column]),
                    state=int(self.cases.state[column]),
                    size=float(sizes[column]),
                    since=int(self.cases.since[column]),
                    engine_since=int(self.engines.since[pair]) if is_engine_lost else -1,
                    machine_since=int(self.machine.fold.since[metric]),
                    machine_size=float(machine_sizes[metric]),
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

    def _needed_nights(self) -> Floats:
        """Return how many nights would prove that a figure keeps its tolerance; 0 if none would.

        The second half of the nights is compared with the first half.
        """
        spread = self.cases.spread
        variances = spread.of(np.ones(len(self.figures)))
        # Both halves vary, and each has half of the nights, so the variance counts four times.
        nights = np.ceil(4 * variances * (_KEPT_ERRORS / self._tolerated) ** 2)
        # A spread is an estimate. Give up only if the true one is surely too large.
        surely = 1 + _SURE_ERRORS * np.sqrt(2 / spread.freedom)
        return np.where(nights <= _MOST_NIGHTS * surely, np.maximum(nights, 2), 0)


def _starts_anew(figures: Ints, night: Night) -> bool:
    """Return whether a night recorded all of these figures that it measured, and enough of them."""
    is_measured = np.isfinite(night.levels[figures])
    measured = figures[is_measured]
    return len(measured) >= FEWEST_CASES and bool(night.restarts[measured].all())


def _or_nothing(changes: Floats) -> Floats:
    """Return the changes, or 0 where nothing is known of what figures have in common."""
    return np.where(np.isfinite(changes), changes, 0.0)
