"""Go through the nights of figures in order, and find the losses and gains that last.

The state after a night follows from the state before it and from that night alone, by one rule. So
an open loss is remembered without being stored: it stays open until nights prove that it is over.
A figure is one column of an array: one metric of a case, of an engine, or of a machine.
"""

import math
from dataclasses import dataclass

import numpy as np

from specreg.judging.spread import Bools, Floats, Ints, SpreadEstimator, nights_to_keep, quantiles

NIGHT_LEVEL = 0.01
"""The probability per night that chance alone shows a loss in any figure."""
_LASTING_SHARE = 1 / 64
"""The part of it for lasting losses. It is small because each night tries many first nights of a
loss, and because what chance shows stays for several nights."""
OVER_LEVEL = 0.0002
"""The probability that chance alone shows that a loss is over."""
KEPT_LEVEL = 0.01
"""The probability that nights with a loss beyond the tolerance become a part of the level."""
LEVEL_NIGHTS = 20
"""The most nights that define a level, and the most nights among which a loss may begin."""
LEAST_FRAC = 0.02
"""The smallest lasting change that is reported, unless a quarter of the tolerance is more."""
NIGHT_SHARE = 0.75
"""The least share of a night's variance that further launches leave. They are taken where the first
one looks bad, so such nights are bad more often than others, and more launches don't mend that."""
_MOST_SPREADS = 3.5
"""How far a single night may move a level, in standard errors."""
_MIDDLE_SPREADS = 1.5
"""How far a night may be from the middle one of a lasting change, in spreads."""
_FREEDOM_PER_NIGHT = 30.0
"""The degrees of freedom that each night of a comparison is worth at most. One night may be far off
by chance, and then it is off for all nights that are compared with it."""
_HEAVY_TAIL = 3.0
"""The degrees of freedom of single nights: some are far worse than a normal distribution has it."""
CLEAR_LOSS = -math.log1p(-0.25)
"""The loss that one night may prove however much nights vary."""
_FEWEST_FIRST = 4
"""The fewest first nights with which later ones are compared, to find a slow loss."""

LOST = -1
USUAL = 0
GAINED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """What one night measured of each figure.

    Attributes:
        levels: the mean logarithm over the launches, better positive; NaN without a value.
        launches: how many launches were averaged, 1 or more.
        planned_levels: the mean over the launches that were taken whatever they showed. Only they
            show how nights vary: further launches bring what is far off back to the middle.
        planned: how many these are.
        launch_squares: the sum of squares of the launches around their mean.
        restarts: whether the level of a figure starts anew on this night.
        controls: the level of the control beside each figure; NaN without one.
        lowest: the level of the worst launch; NaN without a value.
        highest: the level of the best launch.
        unshared_variance: the variance of what figures have in common where it isn't known, and so
            isn't subtracted.
    """

    levels: Floats
    launches: Floats
    planned_levels: Floats
    planned: Floats
    launch_squares: Floats
    restarts: Bools
    controls: Floats
    lowest: Floats
    highest: Floats
    unshared_variance: Floats | float = 0.0

    @classmethod
    def of_levels(cls, levels: Floats, restarts: Bools) -> "Night":
        """Return a night whose levels have no launches of their own."""
        count = len(levels)
        return cls(
            levels=levels,
            launches=np.ones(count),
            planned_levels=levels.copy(),
            planned=np.ones(count),
            launch_squares=np.zeros(count),
            restarts=restarts,
            controls=np.full(count, np.nan),
            lowest=levels.copy(),
            highest=levels.copy(),
        )

    def without_extreme(self, sign: int) -> Floats:
        """Return the levels without the worst launch, or without the best one; NaN of one launch.

        Args:
            sign: -1 for the worst, 1 for the best.
        """
        extreme = self.highest if sign > 0 else self.lowest
        others = np.where(self.launches > 1, self.launches - 1, np.nan)
        return np.asarray((self.levels * self.launches - extreme) / others)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A difference of levels for each figure, with its standard error; NaN if unknown."""

    estimate: Floats
    error: Floats
    freedom: Floats

    def bounds(self, level: float) -> tuple[Floats, Floats]:
        """Return the interval that misses the truth with this probability, on each side."""
        reach = quantiles(level, self.freedom) * self.error
        return self.estimate - reach, self.estimate + reach


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mean:
    """A weighted mean of nights for each figure; NaN without any."""

    value: Floats
    variance: Floats
    nights: Floats


@dataclass(slots=True, kw_only=True)
class _Rows:
    """The nights that are compared with each other: a row for each, and a column for each figure.

    Attributes:
        numbers: the number of each night, from 0.
        levels: as in `Night`.
        clipped: the levels, limited because no single night moves a level far.
        launches: as in `Night`.
        planned: as in `Night`.
        unshared_variances: as in `Night`.
        stands: whether a night may be a part of the level of a figure.
    """

    numbers: Ints
    levels: Floats
    clipped: Floats
    launches: Floats
    planned: Floats
    unshared_variances: Floats
    stands: Bools

    @classmethod
    def none(cls, figures: int) -> "_Rows":
        """Return no nights of so many figures."""
        no_night = np.empty((0, figures))
        return cls(
            numbers=np.empty(0, np.intp),
            levels=no_night,
            clipped=no_night,
            launches=no_night,
            planned=no_night,
            unshared_variances=no_night,
            stands=np.empty((0, figures), bool),
        )

    @property
    def ranks(self) -> Ints:
        """How many nights that stand came before, for those that stand themselves."""
        return np.asarray(np.cumsum(self.stands, axis=0) - 1)

    def level_nights(self) -> Bools:
        """Return the nights that later ones are compared with: the first ones that stand."""
        return np.asarray(self.stands & (self.ranks < LEVEL_NIGHTS))

    def last_nights(self) -> Bools:
        """Return the nights among which a change of each figure may begin: its last ones."""
        is_measured = np.isfinite(self.levels)
        return np.asarray(is_measured & (_sums_from(is_measured) <= LEVEL_NIGHTS))

    def append(self, night: "_Rows") -> None:
        """Add a night, whose arrays have no rows but only columns."""
        for name in self.__slots__:
            rows = [getattr(self, name), getattr(night, name)[np.newaxis]]
            setattr(self, name, np.concatenate(rows))

    def keep(self, is_needed: Bools) -> None:
        """Keep only the nights that are needed."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name)[is_needed])


class Fold:
    """The state of figures after the nights so far.

    Args:
        spread: how the figures vary.
        tolerances_frac: the tolerated loss of each figure, 0..1.
        decides: the figures whose decisions share the probability of a false loss; None for all.
        fewest_decisions: how many decisions share it at least.
        two_sided: whether a gain of a figure is as bad as a loss; None if it is for none.
        level: the probability of a false loss per night, in any figure.

    Attributes:
        state: for each figure LOST, USUAL or GAINED.
        since: the index of the first night of an open loss or gain; -1 without one.
        level_before: the level before the open loss or gain.
        tonight: the change of the last night from the nights before it.
        kept: the change of the last night from the level that it has to keep.
    """

    def __init__(  # noqa: PLR0913 - what a fold depends on
        self,
        spread: SpreadEstimator,
        tolerances_frac: Floats,
        *,
        decides: Bools | None = None,
        fewest_decisions: int = 1,
        two_sided: Bools | None = None,
        level: float = NIGHT_LEVEL,
    ) -> None:
        figures = len(tolerances_frac)
        self.spread = spread
        self._two_sided = np.zeros(figures, bool) if two_sided is None else two_sided
        self._tolerated = -np.log1p(-tolerances_frac)
        self._least = -np.log1p(-np.maximum(LEAST_FRAC, tolerances_frac / 4))
        self._decides = np.ones(figures, bool) if decides is None else decides
        self._fewest_decisions = fewest_decisions
        self._level_of_all = level
        self._level = level / fewest_decisions
        self._seen = np.zeros(figures, bool)
        self._count = 0
        self._rows = _Rows.none(figures)
        self._forgotten = np.zeros(figures, np.intp)
        self._kept_nights = np.zeros(figures)
        self.state = np.full(figures, USUAL)
        self.since = np.full(figures, -1)
        self.level_before = np.full(figures, np.nan)
        self.tonight = self.kept = self.change_of(self.level_before, np.ones(figures))

    @property
    def is_usual(self) -> Bools:
        """Whether a figure has neither an open loss nor an open gain."""
        return np.asarray(self.state == USUAL)

    @property
    def nights(self) -> Ints:
        """How many nights of each figure before the last one stand, besides the first one."""
        return np.asarray(np.maximum(self._forgotten + self._rows.stands[:-1].sum(axis=0) - 1, 0))

    @property
    def level_nights(self) -> Ints:
        """How many nights the level that a figure has to keep consists of, at least 1."""
        return np.asarray(np.maximum(self._kept_rows().sum(axis=0), 1))

    def needed_nights(self) -> Ints:
        """Return how many nights would prove that a figure keeps its tolerance; 0 if none would."""
        one_launch = np.ones(len(self.state))
        return nights_to_keep(self.spread.of(one_launch), self.spread.freedom, self._tolerated)

    def change_of(
        self, levels: Floats, launches: Floats, unshared_variance: Floats | float = 0.0
    ) -> Change:
        """Return how levels differ from those of the nights so far; see `Night`."""
        return self._change(
            levels, launches, unshared_variance, self._mean(self._rows.level_nights())
        )

    def size_of_change(self) -> Floats:
        """Return the size of the open loss or gain of each figure; NaN without one."""
        numbers = self._rows.numbers[:, np.newaxis]
        changed = ~self.is_usual & (numbers >= self.since) & np.isfinite(self._rows.levels)
        levels = np.where(changed, self._rows.levels, 0.0)
        mean = levels.sum(axis=0) / _or_unknown(changed.sum(axis=0))
        return np.asarray(mean - self.level_before)

    def add(self, night: Night) -> None:
        """Go one night further."""
        # What was never measured so far takes no part in the decisions.
        self._seen |= np.isfinite(night.levels)
        decisions = max(int((self._seen & self._decides).sum()), self._fewest_decisions)
        self._level = self._level_of_all / decisions
        self.spread.add_launches(night.launch_squares, night.launches - 1)
        shows_spread = self.is_usual & (np.asarray(night.unshared_variance) == 0)
        self.spread.add_night(night.planned_levels, night.planned, shows_spread, night.restarts)
        self.tonight = self.change_of(night.levels, night.launches, night.unshared_variance)
        self.kept = self._change(
            night.levels, night.launches, night.unshared_variance, self._mean(self._kept_rows())
        )
        self._append(night)
        self._close_what_is_over()
        self._open_what_lasts()
        self._open_what_is_clear(night, LOST, self.is_usual)
        self._open_what_is_clear(night, GAINED, self.is_usual & self._two_sided)
        self._restart(night.restarts)
        self._extend_the_level()
        self._forget_nights()

    def _append(self, night: Night) -> None:
        # No single night moves a level far. The first one of a figure is the level.
        reach = _MOST_SPREADS * self.tonight.error
        excess = self.tonight.estimate - np.clip(self.tonight.estimate, -reach, reach)
        clipped = np.where(np.isfinite(excess), night.levels - excess, night.levels)
        row = _Rows(
            numbers=np.array(self._count),
            levels=night.levels,
            clipped=clipped,
            launches=night.launches,
            planned=night.planned,
            unshared_variances=np.broadcast_to(night.unshared_variance, night.levels.shape),
            # A night of an open loss or gain never becomes a part of the level.
            stands=np.isfinite(night.levels) & self.is_usual,
        )
        self._rows.append(row)
        self._count += 1

    def _kept_rows(self) -> Bools:
        """Return the first night, and those after it that are proven to keep the tolerance."""
        return np.asarray(self._rows.stands & (self._rows.ranks <= self._kept_nights))

    def _variances(self) -> Floats:
        """Return the variance of each night."""
        least = NIGHT_SHARE * self.spread.of(self._rows.planned)
        of_launches = self.spread.of(self._rows.launches)
        return np.maximum(of_launches, least) + self._rows.unshared_variances

    def _mean(self, rows: Bools) -> _Mean:
        weights = np.where(rows, 1 / self._variances(), 0.0)
        known = _or_unknown(weights.sum(axis=0))
        levels = np.where(rows, self._rows.clipped, 0.0)
        return _Mean(
            value=(weights * levels).sum(axis=0) / known,
            variance=1 / known,
            nights=rows.sum(axis=0),
        )

    def _change(
        self, levels: Floats, launches: Floats, unshared_variance: Floats | float, before: _Mean
    ) -> Change:
        error = np.sqrt(self.spread.of(launches) + unshared_variance + before.variance)
        return Change(
            estimate=levels - before.value, error=error, freedom=self._freedom(before.nights)
        )

    def _freedom(self, nights: Floats) -> Floats:
        """Return the degrees of freedom of a comparison with this number of nights."""
        freedom = np.minimum(self.spread.freedom, _FREEDOM_PER_NIGHT * nights)
        return np.asarray(np.maximum(freedom, 1.0))

    def _open(self, opened: Bools, state: int, since: Ints, level_before: Floats) -> None:
        """Open losses or gains. Their nights no longer stand."""
        self.state = np.where(opened, state, self.state)
        self.since = np.where(opened, since, self.since)
        self.level_before = np.where(opened, level_before, self.level_before)
        self._rows.stands &= ~(opened & (self._rows.numbers[:, np.newaxis] >= since))

    def _open_what_is_clear(self, night: Night, state: int, may_open: Bools) -> None:
        """Open the losses, or the gains, that tonight proves alone, also without one launch."""
        sign = 1 if state == GAINED else -1
        figures = len(self.state)
        heavy_tail = np.full(figures, _HEAVY_TAIL)

        # Student's distribution with 3 degrees of freedom has a standard deviation of √3.
        spreads = quantiles(self._level, heavy_tail) / math.sqrt(_HEAVY_TAIL)
        clear = np.minimum(
            spreads * np.sqrt(self.spread.night + night.unshared_variance), CLEAR_LOSS
        )
        lowest, highest = self.tonight.bounds(self._level)
        is_proven = lowest > 0 if state == GAINED else highest < 0
        is_clear = sign * self.tonight.estimate > np.maximum(clear, self._tolerated)

        # The others have to show it too. With a single launch this is NaN, and so not proven.
        without_extreme = night.without_extreme(sign) - night.levels + self.tonight.estimate
        is_seen_twice = sign * without_extreme > self._tolerated
        opened = may_open & is_clear & is_proven & is_seen_twice
        tonight = np.full(figures, self._count - 1)
        self._open(opened, state, tonight, self._rows.levels[-1] - self.tonight.estimate)

    def _open_what_lasts(self) -> None:
        """Open the losses and the gains that the last nights prove together.

        The nights from each night on are compared with all nights before it, and with the first
        half of these, against which a slow loss shows. The clearest comparison counts.
        """
        rows = self._rows
        variances = self._variances()
        weights = np.where(rows.stands, 1 / variances, 0.0)
        levels = np.where(rows.stands, rows.levels, 0.0)
        is_level = rows.level_nights()
        level_weights = _sums_before(np.where(is_level, weights, 0.0))
        level_sums = _sums_before(np.where(is_level, weights * rows.clipped, 0.0))
        level_nights = _sums_before(is_level)

        # Each comparison is a row: of the nights from `firsts` on with those before `ends`.
        pairs = self._compared_nights()
        if not pairs:
            return
        firsts, ends = np.searchsorted(rows.numbers, pairs).T
        after_weights = _or_unknown(_sums_from(weights)[firsts])
        after_nights = _sums_from(rows.stands)[firsts]
        in_window = rows.last_nights() & (_sums_from(rows.stands) > 1)
        known = _or_unknown(level_weights[ends])
        before = level_sums[ends] / known
        change = _sums_from(weights * levels)[firsts] / after_weights - before
        freedom = self._freedom(np.minimum(level_nights[ends], after_nights))
        needed = quantiles(_LASTING_SHARE * self._level, freedom)
        proof = needed * np.sqrt(1 / after_weights + 1 / known)

        for state in (LOST, GAINED):
            sign = 1 if state == GAINED else -1
            size = sign * change
            # Tonight has to be nearer to the new level than to the old one.
            lasts = rows.stands[-1] & (sign * (levels[-1] - before) > size / 2)
            is_large = (size > self._least) & (size > proof) & in_window[firsts]
            clearness = np.where(self.is_usual & lasts & is_large, size / proof, 0.0)
            # Few comparisons come so far. They must hold without what a single night is far off by.
            for row in np.flatnonzero(clearness.any(axis=1)):
                columns = np.flatnonzero(clearness[row])
                nights = np.ix_(np.arange(firsts[row], len(levels)), columns)
                limited = _near_middle(levels[nights], rows.stands[nights], variances[nights], sign)
                mean = (weights[nights] * limited).sum(axis=0) / after_weights[row, columns]
                is_proven = sign * (mean - before[row, columns]) > proof[row, columns]
                clearness[row, columns[~is_proven]] = 0.0

            clearest = clearness.argmax(axis=0)
            figures = np.arange(len(self.state))
            opened = clearness[clearest, figures] > 0
            self._open(opened, state, rows.numbers[firsts[clearest]], before[clearest, figures])

    def _compared_nights(self) -> list[tuple[int, int]]:
        """Return the first nights of what may last, each with the end of the nights before it."""
        is_measured_tonight = np.isfinite(self._rows.levels[-1])
        is_first = (self._rows.last_nights() & is_measured_tonight).any(axis=1)
        pairs = []
        for first in map(int, self._rows.numbers[:-1][is_first[:-1]]):
            if first == 0:
                continue
            pairs.append((first, first))
            half = (first + 1) // 2
            if _FEWEST_FIRST <= half < first:
                pairs.append((first, half))

        return pairs

    def _close_what_is_over(self) -> None:
        """Close the losses and gains of which nights prove that they are over."""
        needed = quantiles(OVER_LEVEL, self.spread.freedom)
        variances = self._variances()
        for figure in np.flatnonzero(~self.is_usual):
            since = int(np.searchsorted(self._rows.numbers, self.since[figure]))
            # Turn a gain into a loss, so that both are over when the figure has risen again.
            sign = -self.state[figure]
            first = _first_night_over(
                sign * (self._rows.levels[since:, figure] - self.level_before[figure]),
                variances[since:, figure],
                float(needed[figure]),
            )
            if first is not None:
                self._rows.stands[since + first :, figure] = np.isfinite(
                    self._rows.levels[since + first :, figure]
                )
                self.state[figure] = USUAL
                self.since[figure] = -1

    def _restart(self, restarts: Bools) -> None:
        """Start the level of some figures anew with the last night."""
        rows = self._rows
        rows.stands[:, restarts] = False
        rows.stands[-1, restarts] = np.isfinite(rows.levels[-1, restarts])
        rows.clipped[-1, restarts] = rows.levels[-1, restarts]
        self._forgotten[restarts] = 0
        self._kept_nights[restarts] = 0
        self.state = np.where(restarts, USUAL, self.state)
        self.since = np.where(restarts, -1, self.since)

    def _extend_the_level(self) -> None:
        """Let the nights after the first join the level, once together they prove to keep it.

        If nights joined one by one, those that are good by luck would raise the level. And if
        undecided nights joined, a loss on the first nights would become the level.
        """
        is_level = self._rows.level_nights()
        first = self._mean(is_level & (self._rows.ranks == 0))
        later = self._mean(is_level & (self._rows.ranks > 0))
        error = np.sqrt(first.variance + later.variance)
        change = Change(
            estimate=later.value - first.value, error=error, freedom=self.spread.freedom
        )
        lowest, _ = change.bounds(KEPT_LEVEL)
        keeps = self.is_usual & (lowest > -self._tolerated)
        self._kept_nights = np.where(keeps, later.nights, self._kept_nights)

    def _forget_nights(self) -> None:
        """Forget the nights that no later one is compared with, so that a long history is fast."""
        open_since = self.since[~self.is_usual]
        oldest = min([self._count - 1, *open_since])
        compared = self._rows.level_nights() | self._rows.last_nights()
        is_needed = (self._rows.numbers >= oldest) | compared.any(axis=1)
        self._forgotten += self._rows.stands[~is_needed].sum(axis=0)
        self._rows.keep(is_needed)


def _or_unknown(weights: Floats | Ints) -> Floats:
    """Return the weights, with NaN for 0, so that a mean of nothing is unknown."""
    return np.asarray(np.where(weights > 0, weights, np.nan))


def _sums_before(rows: Floats | Bools) -> Floats:
    """Return the sum of the rows before each row, and last the sum of all rows."""
    return np.concatenate([np.zeros_like(rows[:1], float), np.cumsum(rows, axis=0)])


def _sums_from(rows: Floats | Bools) -> Floats:
    """Return the sum of the rows from each row on."""
    return np.asarray(np.cumsum(rows[::-1], axis=0, dtype=float)[::-1])


def _near_middle(levels: Floats, stands: Bools, variances: Floats, sign: int) -> Floats:
    """Return levels of which none is far from the middle one, so that one night proves nothing.

    Of two nights, the one that changed less is the middle.
    """
    ordered = np.sort(np.where(stands, sign * levels, np.inf), axis=0)
    rows = np.maximum(stands.sum(axis=0) - 1, 0) // 2
    middle = np.take_along_axis(ordered, rows[np.newaxis], axis=0)
    middle = sign * np.where(np.isfinite(middle), middle, 0.0)
    reach = _MIDDLE_SPREADS * np.sqrt(variances)
    return np.asarray(np.clip(levels, middle - reach, middle + reach))


def _first_night_over(changes: Floats, variances: Floats, needed: float) -> int | None:
    """Return the night from which a loss is over; None if that isn't proven.

    It is over if the nights from then on have regained half of it, and are proven to be better than
    the lost nights, or than half of the loss. A single lost night varies too much for the former.

    Args:
        changes: the changes from the level before the loss, for each night since; NaN if unknown.
        variances: their variances.
        needed: how many standard errors prove it.
    """
    if np.isnan(changes[-1]):
        return None
    weights = np.where(np.isfinite(changes), 1 / variances, 0.0)
    changes = np.where(np.isfinite(changes), changes, 0.0)
    clearest = needed
    first_over = None
    for first in range(1, len(changes)):
        weight_lost = weights[:first].sum()
        weight_over = weights[first:].sum()
        if not weight_lost:
            continue
        lost = float((weights[:first] * changes[:first]).sum() / weight_lost)
        over = float((weights[first:] * changes[first:]).sum() / weight_over)
        regained = over - lost
        clearness = max(
            regained / math.sqrt(1 / weight_lost + 1 / weight_over),
            (over - lost / 2) * math.sqrt(weight_over),
        )
        if lost < 0 and regained > -lost / 2 and clearness > clearest:
            clearest = clearness
            first_over = first

    return first_over
