"""Record how the time of a run is spent, by server pair and by phase.

A server pair is a server and its control. It is named after the launch of the server.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

import msgspec

from specreg.core.readable import Label

_NS_PER_S = 10**9


class Phase(StrEnum):
    """A kind of work that a run does for a server pair."""

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
class RunningPhase:
    """A phase in progress.

    Attributes:
        pairs: the server pairs that it is for, which share its time equally.
        subject: what it is about, such as a case or an engine.
        began_ns: when it began.
    """

    phase: Phase
    pairs: tuple[str, ...]
    subject: str
    began_ns: int


class PairTime(msgspec.Struct, frozen=True, kw_only=True):
    """How the time of one server pair was spent.

    Attributes:
        pair: the id of the launch of the case's server.
        phases_s: the time of each phase, in seconds.
    """

    pair: Label
    phases_s: dict[Label, float]

    @property
    def total_s(self) -> float:
        """The time of all phases together, in seconds."""
        return sum(self.phases_s.values())


class RunTime(msgspec.Struct, frozen=True, kw_only=True):
    """How the time of a run was spent. For a run in shards, the times of its processes are added.

    Attributes:
        pairs: the times of the server pairs, in the order of the run.
        idle_s: the time that was spent for no pair: imports, collection, waiting and reports.
        wall_s: the time since the process began: `idle_s` and the times of all pairs.
    """

    pairs: tuple[PairTime, ...]
    idle_s: float
    wall_s: float


def process_began_ns() -> int:
    """Return when this process began, on the monotonic clock and with a resolution of 10 ms."""
    # Field 22 of proc_pid_stat(5). The name of the program, which may have spaces, is field 2.
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    started_ns = round(started_s * _NS_PER_S)
    # The start of a process is counted from the boot, with the time that the machine slept. The
    # monotonic clock leaves that time out.
    age_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - started_ns
    return time.monotonic_ns() - age_ns


@dataclass(slots=True, kw_only=True)
class Timeline:
    """Records the phases of a run. Phases may be nested, and time counts for the innermost phase.

    Attributes:
        clock: returns the monotonic time in nanoseconds.
        began_ns: when the run began, on that clock.
        listener: called with the running phases, the innermost last, each time they change.
        _running: the running phases, the innermost last.
        _spent_ns: the time so far, by server pair and phase.
        _booked_ns: the moment up to which time has been counted.
    """

    clock: Callable[[], int] = time.monotonic_ns
    began_ns: int = field(default_factory=process_began_ns)
    listener: Callable[[Sequence[RunningPhase]], None] = lambda _: None
    _running: list[RunningPhase] = field(default_factory=list)
    _spent_ns: dict[str, dict[Phase, float]] = field(default_factory=dict)
    _booked_ns: int = 0

    @contextlib.contextmanager
    def during(self, phase: Phase, *pairs: str, of: str = "") -> Iterator[None]:
        """Count the time of the context for a phase, except for that of phases nested in it.

        Args:
            pairs: the server pairs that share its time. If none are given, these are the pairs of
                the enclosing phase; outside any phase, it is the pair that was added last.
            of: the subject of the phase. By default, this is the first of the pairs.
        """
        sharing_pairs = pairs or self._default_pairs()
        now_ns = self._book()
        subject = of or sharing_pairs[0]
        running_phase = RunningPhase(
            phase=phase, pairs=sharing_pairs, subject=subject, began_ns=now_ns
        )
        depth = len(self._running)

        # The `try` begins before the phase is added, because Ctrl-C may come at any moment.
        try:
            for pair in sharing_pairs:
                self._spent_ns.setdefault(pair, {})
            self._running.append(running_phase)
            self.listener(tuple(self._running))
            yield
        finally:
            self._book()
            del self._running[depth:]
            self.listener(tuple(self._running))

    def _default_pairs(self) -> tuple[str, ...]:
        """Return the pairs of the enclosing phase, or else the pair that was added last.

        Before the first pair, this is a pair without a name.
        """
        if self._running:
            return self._running[-1].pairs
        if not self._spent_ns:
            return ("",)
        return (next(reversed(self._spent_ns)),)

    def turn_to(self, phase: Phase) -> None:
        """End the innermost phase, and begin another one for the same pairs."""
        now_ns = self._book()
        self._running[-1] = replace(self._running[-1], phase=phase, began_ns=now_ns)
        self.listener(tuple(self._running))

    def so_far(self) -> RunTime:
        """Return how the time was spent until now."""
        wall_ns = self._book() - self.began_ns
        pair_times = []
        for pair, spent_ns in self._spent_ns.items():
            if spent_ns:
                phases_s: dict[str, float] = {
                    phase: spent_ns[phase] / _NS_PER_S for phase in Phase if phase in spent_ns
                }
                pair_times.append(PairTime(pair=pair, phases_s=phases_s))

        wall_s = wall_ns / _NS_PER_S
        busy_s = sum(pair_time.total_s for pair_time in pair_times)
        return RunTime(pairs=tuple(pair_times), idle_s=wall_s - busy_s, wall_s=wall_s)

    def _book(self) -> int:
        """Add the time since the last change to the innermost phase, and return the time now."""
        now_ns = self.clock()
        if self._running:
            innermost = self._running[-1]
            share_ns = (now_ns - self._booked_ns) / len(innermost.pairs)
            for pair in innermost.pairs:
                spent = self._spent_ns[pair]
                spent[innermost.phase] = spent.get(innermost.phase, 0) + share_ns

        self._booked_ns = now_ns
        return now_ns
