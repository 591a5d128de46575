"""Keep account of where the time of a run goes, by server pair and by phase."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import msgspec

from specreg.core.sessions import started_ticks

_NS_PER_S = 10**9


class Phase(StrEnum):
    """What a run does for a server pair."""

    INSTALLING = "installing"
    FETCHING = "fetching weights"
    STARTING = "starting"
    WARMING_UP = "warming up"
    MEASURING = "measuring"
    CHECKING = "checking"
    JUDGING = "judging"
    CONFIRMING = "confirming"
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A phase in progress, of some server pairs and of one thing, such as a case.

    Attributes:
        phase: the phase.
        pairs: the pairs that it goes on for, which share its time equally.
        of: what it is about.
        began_ns: since when it goes on.
    """

    phase: Phase
    pairs: tuple[str, ...]
    of: str
    began_ns: int


class PairTime(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time of one server pair went; `pair` is the launch of the case's server."""

    pair: str
    phases_s: dict[str, float]

    @property
    def total_s(self) -> float:
        """All phases together."""
        return sum(self.phases_s.values())


class RunTime(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time of a run went: `wall_s`, since the process began, is `idle_s` and its pairs'.

    Of a run in shards all are sums over their processes.

    Attributes:
        pairs: in the order of the run.
        idle_s: for no pair: imports, collection, waiting, reports.
    """

    pairs: tuple[PairTime, ...]
    idle_s: float
    wall_s: float


def process_began_ns() -> int:
    """Return when this process began, on the monotonic clock. The kernel knows it to 10 ms."""
    started_s = started_ticks(os.getpid()) / os.sysconf("SC_CLK_TCK")
    age_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - round(started_s * _NS_PER_S)
    return time.monotonic_ns() - age_ns


@dataclass(slots=True, kw_only=True)
class Timeline:
    """The phases of a run; each moment belongs to the innermost phase that goes on.

    Attributes:
        clock: monotonic, in nanoseconds.
        began_ns: when the run began, on that clock.
        listener: is called with the current steps, the innermost last, each time they change.
    """

    clock: Callable[[], int] = time.monotonic_ns
    began_ns: int = field(default_factory=process_began_ns)
    listener: Callable[[Sequence[Step]], None] = lambda _: None
    _steps: list[Step] = field(default_factory=list)
    _spent_ns: dict[str, dict[Phase, float]] = field(default_factory=dict)
    _booked_ns: int = 0

    @contextlib.contextmanager
    def during(self, phase: Phase, *pairs: str, of: str = "") -> Iterator[None]:
        """Spend the context's time on a phase; one inside of it has its own.

        Args:
            phase: the phase.
            pairs: the pairs that share its time; without any, those of the phase around it, or the
                last one that had a phase.
            of: what it is about; empty for the first pair.
        """
        if not pairs and self._steps:
            pairs = self._steps[-1].pairs
        elif not pairs:
            pairs = (next(reversed(self._spent_ns), ""),)
        now_ns = self._book()
        step = Step(phase=phase, pairs=pairs, of=of or pairs[0], began_ns=now_ns)
        depth = len(self._steps)
        # The block begins here, because Ctrl-C may come before the context has begun.
        try:
            for pair in pairs:
                self._spent_ns.setdefault(pair, {})
            self._steps.append(step)
            self.listener(tuple(self._steps))
            yield
        finally:
            self._book()
            del self._steps[depth:]
            self.listener(tuple(self._steps))

    def turn_to(self, phase: Phase) -> None:
        """End the innermost phase and begin another of the same pair in its place."""
        now_ns = self._book()
        self._steps[-1] = replace(self._steps[-1], phase=phase, began_ns=now_ns)
        self.listener(tuple(self._steps))

    def so_far(self) -> RunTime:
        """Return where the time went until now."""
        wall_ns = self._book() - self.began_ns
        pairs = tuple(
            PairTime(
                pair=pair,
                phases_s={phase: spent[phase] / _NS_PER_S for phase in Phase if phase in spent},
            )
            for pair, spent in self._spent_ns.items()
            if spent
        )
        wall_s = wall_ns / _NS_PER_S
        return RunTime(
            pairs=pairs,
            idle_s=wall_s - sum(pair_time.total_s for pair_time in pairs),
            wall_s=wall_s,
        )

    def _book(self) -> int:
        """Add the time since the last change to the innermost phase; return the moment."""
        now_ns = self.clock()
        if self._steps:
            step = self._steps[-1]
            share_ns = (now_ns - self._booked_ns) / len(step.pairs)
            for pair in step.pairs:
                spent = self._spent_ns[pair]
                spent[step.phase] = spent.get(step.phase, 0) + share_ns
        self._booked_ns = now_ns
        return now_ns
