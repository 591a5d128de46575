"""Hunting ticks: looks at an energy counter in; when it moved, and when to look next, out.

A GPU's counter moves every 10 to 100 ms; read in between it is that old. Looking each millisecond
would see its ticks and cost a core; looking just before one is due sees them too.
"""

import math
from dataclasses import dataclass, field

from specreg.power.samples import Tick

SHARP_NS = 5 * 10**6
"""A tick that may have come longer ago than this is no edge of anything."""

_STEP_NS = 2 * 10**6
_LEAST_MARGIN_NS = 4 * 10**6
_EVERY_NS = 90 * 10**6
_BURST_NS = 300 * 10**6
_REST_NS = 700 * 10**6
_CALM = 0.9
_KNOWN, _REMEMBERED = 8, 64
_OTHER_FRAC = 0.25
_MOST_MISSED = 5


@dataclass(slots=True, kw_only=True)
class Hunt:
    """The hunt on one counter.

    Attributes:
        device: the place of the device it is of.
        due_ns: when to look next.
        period_ns: how often it ticks, None while nobody knows.
    """

    device: int
    due_ns: int
    period_ns: float | None = None
    _margin_ns: float = _LEAST_MARGIN_NS
    _looked_ns: int | None = None
    _seen_mj: int = 0
    _tick_ns: int = 0
    _missed_ticks: int = 0
    _counted_ticks: int = 0
    _skipped: bool = False
    _burst_ns: int = field(init=False)

    def __post_init__(self) -> None:
        self._burst_ns = self.due_ns

    def look(self, at_ns: int, energy_mj: int) -> Tick | None:
        """Takes what a look saw; the tick, if it moved since the look before, 5 ms ago at most.

        Args:
            at_ns: when the counter had been read.
            energy_mj: what it said.
        """
        before_ns, moved = self._looked_ns, energy_mj != self._seen_mj
        self._looked_ns, self._seen_mj = at_ns, energy_mj
        if before_ns is None or not moved:
            self._look_on(at_ns)
            return None
        after_ns = at_ns - before_ns
        if after_ns > SHARP_NS:  # it moved while nobody looked
            if self._skipped or self.period_ns is None:
                self._look_on(at_ns)
            else:
                self._miss(at_ns)
            return None
        self._learn(at_ns)
        self._wait(at_ns)
        return Tick(
            device=self.device,
            at_ns=at_ns,
            after_ns=after_ns,
            energy_mj=energy_mj,
            period_ns=round(self.period_ns or 0),
        )

    def _look_on(self, at_ns: int) -> None:
        """Looks again at once, for a while; one that doesn't move is left alone for a while."""
        self.due_ns = at_ns + _STEP_NS
        if at_ns - self._burst_ns > _BURST_NS:
            self._forget()
            self._skipped = True
            self.due_ns = self._burst_ns = at_ns + _REST_NS

    def _miss(self, at_ns: int) -> None:
        """It came before it was expected, or the look came late: looks earlier the next time."""
        self._missed_ticks += 1
        if self.period_ns is None or self._missed_ticks > _MOST_MISSED:
            self._forget()
        else:
            self._margin_ns = min(2 * self._margin_ns, self.period_ns / 2)
        self._wait(at_ns)

    def _forget(self) -> None:
        self.period_ns, self._missed_ticks = None, 0

    def _learn(self, at_ns: int) -> None:
        """Learns the period from a tick that was seen as it came: the mean of the last ones."""
        gap_ns = at_ns - self._tick_ns
        if self.period_ns is None:
            first = not self._tick_ns or gap_ns > _BURST_NS
            self.period_ns, self._counted_ticks = None if first else gap_ns, 1
        else:
            ticks = max(1, round(gap_ns / self.period_ns))
            off_ns = gap_ns / ticks - self.period_ns
            self._counted_ticks = min(self._counted_ticks + ticks, _REMEMBERED)
            self.period_ns += off_ns * min(1.0, ticks / self._counted_ticks)
            if abs(off_ns) > _OTHER_FRAC * self.period_ns:
                self._forget()
        self._tick_ns, self._missed_ticks = at_ns, 0
        self._margin_ns = max(_LEAST_MARGIN_NS, _CALM * self._margin_ns)

    def _wait(self, at_ns: int) -> None:
        """Until shortly before a tick that is due; not at all while the period isn't known."""
        if self.period_ns is None:
            self.due_ns = self._burst_ns = at_ns + _STEP_NS
            return
        passed = (at_ns + self._margin_ns - self._tick_ns) / self.period_ns
        # Skipping ticks before the period is known well would count too many or too few of them.
        wanted = round(_EVERY_NS / self.period_ns) if self._counted_ticks >= _KNOWN else 1
        ticks = max(math.ceil(passed), wanted)
        self._skipped = ticks * self.period_ns > at_ns - self._tick_ns + 1.5 * self.period_ns
        next_ns = round(self._tick_ns + ticks * self.period_ns - self._margin_ns)
        self.due_ns = self._burst_ns = max(at_ns + _STEP_NS, next_ns)
