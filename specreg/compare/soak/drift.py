"""Drift: what the blocks of a soak measured in, how fast a figure moves and how sure that is out.

What differs from block to block hangs together: a neighbour comes and goes, a buffer is made once
and stays. So no line is fitted, whose error would take each block for a draw of its own. The blocks
are cut into eight parts; from the mean of one to the mean of the next there are seven changes, and
their own mean and spread are the drift and its error. Noise that comes and goes makes that error
larger than it need be, a single jump as large as the drift that it feigns, a steady fall small.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum

import numpy as np
from numpy.typing import NDArray

from specreg.compare.soak.block import Block, Watched
from specreg.stats.intervals import Change

PARTS = 8
LEAD_IN_FRAC = 0.1
"""Of a soak's time; buffers fill and caches warm then, and nothing is judged."""
LOOKS = (0.2, 0.4, 0.6, 0.8)
"""The fractions of a soak's time at which it is looked at before its end."""
LEVEL = 0.01
"""In how many soaks of a steady server an alarm is raised, at most."""

_S_PER_H = 3600.0


class Look(Enum):
    """A look at a soak, and its share of the level; all of them together use it up."""

    EARLY = LEVEL / 2 / len(LOOKS)
    LAST = LEVEL / 2


class State(StrEnum):
    """What is to be thought of a figure."""

    STEADY = "STEADY"
    """The interval excludes a loss beyond the tolerance."""
    DRIFTS = "DRIFTS"
    """The whole interval is a loss, and the estimate is beyond the tolerance."""
    UNTOLD = "UNTOLD"
    """Neither, or there are too few blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """How one figure moved.

    Attributes:
        watched: which.
        first, last: its means over the first and the last part; None with too few blocks.
        change: in an hour, relative to the first part's; better is positive. None with too few.
        low_frac, high_frac: the interval of that change.
        tolerance_frac: the loss in an hour that is still fine.
        judged_s: how long the blocks lasted from which it comes.
        blocks: so many were judged.
    """

    watched: Watched
    tolerance_frac: float
    blocks: int
    judged_s: float = 0.0
    first: float | None = None
    last: float | None = None
    change: Change | None = None
    low_frac: float = -math.inf
    high_frac: float = math.inf

    @property
    def state(self) -> State:
        """In a word."""
        if self.change is None:
            return State.UNTOLD
        if self.high_frac < 0 and self.change_frac < -self.tolerance_frac:
            return State.DRIFTS
        return State.STEADY if self.low_frac >= -self.tolerance_frac else State.UNTOLD

    @property
    def change_frac(self) -> float:
        """In an hour, relative; better is positive; 0 where there is no telling."""
        return self.change.estimate_frac if self.change else 0.0

    @property
    def lost_after_h(self) -> float | None:
        """After how many hours at that slope the tolerance of one is used up; None for no loss."""
        return -self.tolerance_frac / self.change_frac if self.change_frac < 0 else None

    @property
    def needed_min(self) -> float | None:
        """How long a soak tells it, at least, in minutes; None where no length would help.

        An interval of blocks that are as many, but longer, shrinks with the time to the power 3/2:
        its ends lie further apart, and each mean is of more.
        """
        if self.change is None:
            return None
        room = self.tolerance_frac + self.change_frac
        if room <= 0:
            return None
        reach = self.change_frac - self.low_frac
        longer = math.pow(max(reach / room, 1.0), 2 / 3)
        return self.judged_s / (1 - LEAD_IN_FRAC) / 60 * longer


def drift_of(
    watched: Watched,
    blocks: Iterable[Block],
    *,
    lead_in_s: float,
    level: float,
    tolerance_frac: float,
) -> Drift:
    """How a figure moved over the blocks after the lead-in.

    Args:
        watched: which figure.
        blocks: so far, in order.
        lead_in_s: blocks whose middle lies before it aren't judged.
        level: how often the interval misses the truth on either side, 0..0.5.
        tolerance_frac: the loss in an hour that is still fine.
    """
    told = [
        (block, value)
        for block in blocks
        if block.at_s >= lead_in_s and (value := watched.value_of(block)) is not None
    ]
    judged_s = sum(block.lasted_s for block, _ in told)
    unknown = Drift(
        watched=watched, tolerance_frac=tolerance_frac, blocks=len(told), judged_s=judged_s
    )
    if len(told) < PARTS:
        return unknown
    values = _part_means([value for _, value in told])
    hours = _part_means([block.at_s / _S_PER_H for block, _ in told])
    beyond = values[0] - watched.origin
    if beyond <= 0:
        return unknown
    change = _change(values, hours, watched.sign / beyond)
    low, high = change.bounds(level)
    return Drift(
        watched=watched,
        tolerance_frac=tolerance_frac,
        blocks=len(told),
        judged_s=judged_s,
        first=float(values[0]),
        last=float(values[-1]),
        change=change,
        low_frac=low,
        high_frac=high,
    )


def _part_means(values: Sequence[float]) -> NDArray[np.float64]:
    """The means of eight parts, as even as can be."""
    return np.array([part.mean() for part in np.array_split(np.asarray(values), PARTS)])


def _change(
    values: NDArray[np.float64],
    hours: NDArray[np.float64],
    scale: float,
) -> Change:
    """The mean change from part to part, and its standard error, in an hour."""
    moves = np.diff(values) * scale
    span_h = float(hours[-1] - hours[0])
    error = float(moves.std(ddof=1)) * math.sqrt(len(moves))
    return Change(
        estimate_frac=float(moves.sum()) / span_h,
        error_frac=error / span_h,
        freedom=len(moves) - 1,
    )
