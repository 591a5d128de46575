"""Hunting ticks: looks at an energy counter in; when it moved, and when to look next, out.

A GPU's counter moves every 10 to 100 ms; read in between it is that old. Looking each millisecond
would see its ticks and cost a core; looking just before one is due sees them too.
"""

from dataclasses import dataclass, field

from specreg.power.samples import Tick

SHARP_NS = 5 * 10**6
"""A tick that came longer ago than this is no edge of anything."""

_STEP_NS = 10**6
_LEAST_MARGIN_NS = 2 * 10**6
_EVERY_NS = 90 * 10**6
_BURST_NS = 300 * 10**6
_REST_NS = 700 * 10**6
_QUICK_NS = 20 * 10**6
_CALM = 0.9
_LEARNING = 0.125
_OTHER_FRAC = 0.25


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
    _tick_ns: int | None = None
    _burst_ns: int = field(init=False)

    def __post_init__(self) -> None:
        self._burst_ns = self.due_ns

    def look(self, at_ns: int, energy_mj: int) -> Tick | None:
        """Takes what a look saw; the tick, if the counter moved since the look before.

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
        if after_ns <= SHARP_NS:
            self._learn(at_ns)
            self._wait(at_ns)
        elif self.period_ns is None or self.period_ns < _QUICK_NS:
            self._look_on(at_ns)
        else:  # it came before it was expected
            self._margin_ns = min(2 * self._margin_ns, self.period_ns / 2)
            self._tick_ns = None
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
            self.period_ns, self._tick_ns = None, None
            self.due_ns = self._burst_ns = at_ns + _REST_NS

    def _learn(self, at_ns: int) -> None:
        """Learns the period from a tick that was seen as it came."""
        if self._tick_ns is not None:
            gap_ns = at_ns - self._tick_ns
            if self.period_ns is None:
                self.period_ns = gap_ns
            each_ns = gap_ns / max(1, round(gap_ns / self.period_ns))
            if abs(each_ns - self.period_ns) > _OTHER_FRAC * self.period_ns:
                self.period_ns = None
            else:
                self.period_ns += _LEARNING * (each_ns - self.period_ns)
        self._tick_ns = at_ns
        self._margin_ns = max(_LEAST_MARGIN_NS, _CALM * self._margin_ns)

    def _wait(self, at_ns: int) -> None:
        """Until shortly before a tick that is due; the next one while the period isn't known."""
        if self.period_ns is None:
            self.due_ns = self._burst_ns = at_ns + _STEP_NS
            return
        ticks = max(1, round(_EVERY_NS / self.period_ns))
        wait_ns = max(_STEP_NS, round(ticks * self.period_ns - self._margin_ns))
        self.due_ns = self._burst_ns = at_ns + wait_ns
