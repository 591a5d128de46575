"""What a run is doing, on standard error.

On a terminal that is one line in place, below pytest's own; elsewhere it is a line for each phase.
"""

import contextlib
import io
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TextIO

from specreg.acceptance.record import NO_STEPS, StepCounts
from specreg.core.readable import readable_block, readable_line
from specreg.core.timeline import Phase, Step, process_began_ns
from specreg.load.chat_client import FinishedRequest, Record
from specreg.measurement.measure import RecordRound

_NS_PER_S = 10**9
_MAX_RATIO = 4.0
"""So many times longer or shorter a case may be expected to take, by how long a start takes."""
_SHORTEST_TOLD_NS = _NS_PER_S
"""A phase that is over sooner has no line."""
_REPEATED_AFTER_NS = 60 * _NS_PER_S
"""A phase that lasts has another line after each such time."""
_TICK_S = 0.5
_USUAL_COLUMNS = 80
"""The width of a terminal that doesn't tell it."""
_FREE_COLUMNS = 3
"""What is left free at the end of the line, so that an echoed `^C` doesn't wrap it."""
_CLEAR_LINE = "\r\x1b[K"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedTime:
    """About how long a case takes on a launch.

    Attributes:
        case_s: Its measuring, in seconds.
        start_s: The start of its server; 0 where that runs already.
        is_of_this_machine: Whether the case was recorded on this machine; else it is a guess, or
            another machine's.
    """

    case_s: float
    start_s: float = 0.0
    is_of_this_machine: bool = False


@dataclass(slots=True, kw_only=True)
class _Pace:
    """How long something took that was expected to take so long."""

    expected_s: float = 0.0
    actual_s: float = 0.0

    def add(self, expected_s: float, actual_ns: int) -> None:
        """Count something that has ended; what wasn't expected at all says nothing."""
        if expected_s > 0:
            self.expected_s += expected_s
            self.actual_s += actual_ns / _NS_PER_S

    @property
    def ratio(self) -> float | None:
        """How much longer it takes than expected; None before anything has ended."""
        return self.actual_s / self.expected_s if self.expected_s else None


@dataclass(slots=True, kw_only=True)
class RunProgress:
    """How far a run is, and what its case at hand comes to so far; any thread may read it.

    When the run ends is said once a server has started: what was expected is scaled by how long
    this machine takes for a start, and from the second case on by how long it takes for a case.

    Attributes:
        expected: How long each case takes about on each launch, in the order of the run; empty
            where that isn't known, as where the run is shared with other processes.
        ends_ns: When the run ends, about, on the clock; 0 where that isn't known.
        clock: Monotonic, in nanoseconds.
    """

    expected: Mapping[str, ExpectedTime] = field(default_factory=dict)
    ends_ns: int = 0
    clock: Callable[[], int] = time.monotonic_ns
    _begun: set[str] = field(default_factory=set)
    _case: str = ""
    """The case at hand."""
    _case_began_ns: int = 0
    _measuring_began_ns: int = 0
    """When the case at hand had its servers; 0 before."""
    _starts: _Pace = field(default_factory=_Pace)
    _cases: _Pace = field(default_factory=_Pace)
    _in_flight: int = 0
    _tokens: int = 0
    _requests_ns: int = 0
    """The sum of the times that all requests took."""
    _counts: StepCounts = NO_STEPS

    def expect(self, expected: Mapping[str, ExpectedTime]) -> None:
        """Take over how long each case is expected to take."""
        self.expected = expected

    def begin(self, name: str) -> bool:
        """Note that a case begins on a launch, and return whether it is for the first time."""
        if name in self._begun:
            return False
        now_ns = self.clock()
        if self._measuring_began_ns:
            ended = self.expected[self._case]
            self._cases.add(ended.case_s, now_ns - self._measuring_began_ns)
        self._case = name
        self._case_began_ns = now_ns
        self._measuring_began_ns = 0
        self._begun.add(name)
        self._expect_end(now_ns)
        return True

    def _begin_measuring(self) -> None:
        """Note that the servers of the case at hand are ready; a second attempt says nothing."""
        at_hand = self.expected.get(self._case)
        if at_hand is None or self._measuring_began_ns:
            return
        now_ns = self.clock()
        self._measuring_began_ns = now_ns
        self._starts.add(at_hand.start_s, now_ns - self._case_began_ns)
        self._expect_end(now_ns)

    def _expect_end(self, now_ns: int) -> None:
        """Work out when the run ends, of what is left from now on."""
        if self._starts.ratio is None:
            return
        left_s = 0.0
        for name, expected in self.expected.items():
            is_at_hand = name == self._case
            if name in self._begun and not is_at_hand:
                continue
            if not (is_at_hand and self._measuring_began_ns):
                left_s += expected.start_s * self._starts.ratio
            left_s += expected.case_s * self._case_ratio(expected)
        self.ends_ns = now_ns + round(left_s * _NS_PER_S)

    def _case_ratio(self, expected: ExpectedTime) -> float:
        """Return how much longer a case takes than expected.

        Before a case has ended, one that was recorded elsewhere is as fast here as a start is.
        """
        if self._cases.ratio is not None:
            return self._cases.ratio
        if expected.is_of_this_machine or self._starts.ratio is None:
            return 1.0
        # A start may have had to read the models from a disk, which says little of a step, so that
        # it may scale an estimate only so far.
        return min(max(self._starts.ratio, 1 / _MAX_RATIO), _MAX_RATIO)

    def count(self, in_flight: int, record: RecordRound) -> RecordRound:
        """Count the requests of a measurement's first arm, from none on.

        Args:
            in_flight: How many requests are under way at the same time, 0 for a load by rate.
            record: Takes the measurement's requests.

        Returns:
            What takes the requests and counts them as well.
        """
        self._begin_measuring()
        self._in_flight = in_flight
        self._counts = NO_STEPS
        self._tokens = 0
        self._requests_ns = 0

        def record_round(arm: int, number: int) -> Record:
            take = record(arm, number)

            def take_and_count(finished: FinishedRequest) -> None:
                take(finished)
                self._add(finished)

            return take_and_count if arm == 0 else take

        return record_round

    def _add(self, finished: FinishedRequest) -> None:
        trace = finished.trace
        self._tokens += trace.tokens
        if trace.last_ns is not None:
            self._requests_ns += trace.last_ns - trace.sent_ns
        if trace.acceptance is not None:
            self._counts += trace.acceptance

    @property
    def place(self) -> str:
        """`case 3 of 12`; empty before the first one, and where it isn't known."""
        number = len(self._begun & self.expected.keys())
        return f"case {number} of {len(self.expected)}" if number else ""

    def figures_in(self, phase: Phase) -> str:
        """Return tokens per second and acceptance length of the requests that have ended.

        The load is taken for full, so tokens/s = in flight · Σ tokens / Σ time of a request. Empty
        in any phase but that of measuring.
        """
        if phase is not Phase.MEASURING or not self._requests_ns:
            return ""
        per_request = self._tokens * _NS_PER_S / self._requests_ns
        if self._in_flight:
            figures = f"{self._in_flight * per_request:.0f} tokens/s"
        else:
            figures = f"{per_request:.0f} tokens/s a request"
        length = self._counts.acceptance_length
        return f"{figures}, AL {length:.2f}" if length else figures


@dataclass(slots=True, kw_only=True)
class _Screen:
    """Where lines are written, between those of pytest.

    Attributes:
        file: A copy of standard error, or a file.
        column: Returns the column of the terminal in which pytest's output ends, from 0.
        within_line: Whether pytest may have written on the line on which the next one would go.
        way_back: What leads from the line in place to where pytest's output ends; None while there
            is no line in place.
    """

    file: TextIO
    column: Callable[[], int]
    within_line: bool = False
    way_back: str | None = None

    def write_line(self, line: str) -> None:
        """Write a line that stays, on a line of its own."""
        self.erase()
        before = "\n" if self.within_line and self.column() else ""
        self.within_line = False
        self._put(f"{before}{line}\n")

    def draw(self, line: str) -> None:
        """Show a line in place of the last one that was shown in place, below pytest's own."""
        columns = self._columns()
        before = ""
        if self.way_back is None:
            column = self.column() if self.within_line else 0
            if column:
                # pytest's dots stay where they are: the line goes below them, and erasing it leads
                # back to the column behind them.
                before = "\n"
                self.way_back = f"\x1b[A\x1b[{column % columns + 1}G"
            else:
                self.way_back = ""
        self._put(f"{before}{_CLEAR_LINE}{line[: columns - _FREE_COLUMNS]}")

    def erase(self) -> None:
        """Take the line in place away, and go back to where pytest's output ends."""
        if self.way_back is not None:
            self._put(f"{_CLEAR_LINE}{self.way_back}")
            self.way_back = None

    def _columns(self) -> int:
        with contextlib.suppress(OSError):
            return os.get_terminal_size(self.file.fileno()).columns or _USUAL_COLUMNS
        return _USUAL_COLUMNS

    def _put(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # it was closed
            self.file.write(text)
            self.file.flush()


class Progress:
    """Says on the real standard error, past pytest's capturing, what a run is doing.

    It must be made before capturing starts, because it keeps a copy of the descriptor. Any thread
    may use it.

    Attributes:
        run: How far the run is, which the run itself tells.
    """

    def __init__(
        self,
        file: TextIO | None = None,
        *,
        clock: Callable[[], int] = time.monotonic_ns,
        column: Callable[[], int] | None = None,
    ) -> None:
        """Begin with nothing to say.

        Args:
            file: Where it is said; None for standard error.
            clock: Monotonic, in nanoseconds.
            column: Returns the column of the terminal in which pytest's output ends, from 0; None
                where there is no terminal, for lines that stay.
        """
        self._clock = clock
        self._began_ns = process_began_ns() if file is None else 0
        self._in_place = column is not None
        self._screen = _Screen(
            file=_copy_of_standard_error() if file is None else file,
            column=column if column is not None else lambda: 1,
        )
        self.run = RunProgress(clock=clock)
        self._steps: tuple[Step, ...] = ()
        self._told_ns: dict[Step, int] = {}
        self._detail = ""
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, steps: Sequence[Step]) -> None:
        """Take over which phases go on from here, the innermost last.

        Where none does, pytest writes, so the line in place is taken away.
        """
        with self._lock:
            self._steps = tuple(steps)
            self._detail = ""
            self._told_ns = {step: ns for step, ns in self._told_ns.items() if step in steps}
            if not steps:
                # pytest is about to write, and would write behind our line.
                self._screen.erase()
            if self._thread is None and not self._over.is_set():
                self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
                self._thread.start()

    def show(self, detail: str) -> None:
        """Take over what the innermost phase is at."""
        self._detail = detail

    def tell(self, text: str) -> None:
        """Print a text at once."""
        with self._lock:
            self._screen.write_line(readable_block(text))

    def leave_line(self) -> None:
        """Have the next line begin on one of its own, because pytest has written on this one."""
        self._screen.within_line = True

    def close(self) -> None:
        """Say nothing more, and leave no line that was in place."""
        # The thread must not draw again after its line was taken away.
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        self._screen.erase()
        with contextlib.suppress(OSError):
            self._screen.file.close()

    def tick(self) -> None:
        """Say what is due by now; a thread asks for it again and again."""
        with self._lock:
            now_ns = self._clock()
            if self._in_place:
                if self._steps:
                    self._screen.draw(self._innermost(now_ns))
                return
            for step in self._steps:
                if step not in self._told_ns and now_ns - step.began_ns >= _SHORTEST_TOLD_NS:
                    self._told_ns[step] = now_ns
                    self._screen.write_line(f"specreg {self._line(step, step.began_ns)}")
            if not self._steps:
                return
            step = self._steps[-1]
            if now_ns - self._told_ns.get(step, now_ns) >= _REPEATED_AFTER_NS:
                self._told_ns[step] = now_ns
                self._screen.write_line(f"specreg {self._innermost(now_ns)}")

    def _run(self) -> None:
        while not self._over.wait(_TICK_S):
            self.tick()

    def _innermost(self, now_ns: int) -> str:
        """Return the line of the innermost phase, with its figures and what it is at."""
        step = self._steps[-1]
        return self._line(step, now_ns, self.run.figures_in(step.phase), self._detail)

    def _line(self, step: Step, at_ns: int, *details: str) -> str:
        """Return how long the process has run at a moment, how far the run is, and what goes on."""
        moment = render_time(at_ns - self._began_ns)
        if self.run.place:
            if self.run.ends_ns > at_ns:
                moment += f" of about {render_time(self.run.ends_ns - self._began_ns)}"
            moment += f", {self.run.place}:"
        line = f"{moment} {step.phase} {step.of}"
        further = [detail for detail in details if detail and detail not in line]
        return readable_line(", ".join((line, *further)))


def _copy_of_standard_error() -> TextIO:
    """Return a file on the real standard error; one that nobody reads if it is closed."""
    if sys.__stderr__ is None:
        return io.StringIO()
    return os.fdopen(os.dup(sys.__stderr__.fileno()), "w")


def render_time(nanoseconds: int) -> str:
    """Return a time as `0:42`, `12:03` or `1:02:03`."""
    minutes, seconds = divmod(nanoseconds // _NS_PER_S, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
