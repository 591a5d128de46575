"""Show the progress of a run on standard error.

On a terminal it is one line below pytest's output that is updated in place. Elsewhere it is a line
for each phase.
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
from specreg.core.timeline import Phase, RunningPhase, process_began_ns
from specreg.load.chat_client import FinishedRequest, Record
from specreg.measurement.measure import RecordRound

_NS_PER_S = 10**9
_SHORTEST_SHOWN_NS = _NS_PER_S
"""A shorter phase has no line."""
_REPEATED_AFTER_NS = 60 * _NS_PER_S
"""A long phase has another line after each interval of this length."""
_TICK_S = 0.5
"""The interval between two updates."""
_USUAL_COLUMNS = 80
"""The assumed width of a terminal that doesn't report it."""
_FREE_COLUMNS = 3
"""The columns left free at the end of the line, so that an echoed `^C` doesn't wrap it."""
_CLEAR_LINE = "\r\x1b[K"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedTime:
    """The expected time of a case on a launch.

    Attributes:
        case_s: how long measuring the case takes, in seconds.
        start_s: how long the start of its server takes, in seconds; 0 if the server runs already.
        is_of_this_machine: whether the case was recorded on this machine. Otherwise the time is a
            guess, or comes from another machine.
    """

    case_s: float
    start_s: float = 0.0
    is_of_this_machine: bool = False


@dataclass(slots=True, kw_only=True)
class _Pace:
    """The expected and the actual time of all starts, or of all cases, that have ended."""

    expected_s: float = 0.0
    actual_s: float = 0.0

    def add(self, expected_s: float, actual_ns: int) -> None:
        """Add a start or a case that has ended, unless no time was expected for it."""
        if expected_s > 0:
            self.expected_s += expected_s
            self.actual_s += actual_ns / _NS_PER_S

    @property
    def ratio(self) -> float | None:
        """The actual time divided by the expected one; None before anything has ended."""
        if not self.expected_s:
            return None
        return self.actual_s / self.expected_s


@dataclass(slots=True, kw_only=True)
class RunProgress:
    """How far a run is, and the figures of its present case so far. Any thread may read it.

    The end of the run is estimated once a server has started, or once a case has ended if some of
    the remaining cases weren't recorded on this machine. The expected times are scaled by how long
    the finished starts and cases took.

    Attributes:
        expected: the expected time of each case on each launch, in the order of the run; empty if
            unknown, for example if the run is shared with other processes.
        ends_ns: the estimated end of the run, on the clock; 0 if unknown.
        clock: a monotonic clock, in nanoseconds.
    """

    expected: Mapping[str, ExpectedTime] = field(default_factory=dict)
    ends_ns: int = 0
    clock: Callable[[], int] = time.monotonic_ns
    _begun: set[str] = field(default_factory=set)
    _case: str = ""
    """The present case."""
    _case_began_ns: int = 0
    _measuring_began_ns: int = 0
    """When the servers of the present case were ready; 0 before."""
    _starts: _Pace = field(default_factory=_Pace)
    _cases: _Pace = field(default_factory=_Pace)
    _in_flight: int = 0
    _tokens: int = 0
    _requests_ns: int = 0
    """The sum of the durations of all requests."""
    _counts: StepCounts = NO_STEPS

    def expect(self, expected: Mapping[str, ExpectedTime]) -> None:
        """Set the expected time of each case."""
        self.expected = expected

    def begin(self, name: str) -> bool:
        """Record that a case begins on a launch, and return whether it hasn't begun before."""
        if name in self._begun:
            return False
        now_ns = self.clock()

        # `_measuring_began_ns` is set only for a case with an expected time.
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
        """Record that the servers of the present case are ready, on the first call for the case."""
        expected = self.expected.get(self._case)
        if expected is None or self._measuring_began_ns:
            return
        now_ns = self.clock()
        self._measuring_began_ns = now_ns
        self._starts.add(expected.start_s, now_ns - self._case_began_ns)
        self._expect_end(now_ns)

    def _expect_end(self, now_ns: int) -> None:
        """Estimate the end of the run from the expected times of the remaining cases."""
        if self._starts.ratio is None:
            return
        remaining_s = 0.0
        case_ratio = self._cases.ratio
        for name, expected in self.expected.items():
            is_present = name == self._case
            has_ended = name in self._begun and not is_present
            if has_ended:
                continue
            if case_ratio is None and not expected.is_of_this_machine:
                # Guesses of the time of a step were wrong by a factor of five. It is better to show
                # no end.
                return
            has_servers = is_present and self._measuring_began_ns > 0
            if not has_servers:
                remaining_s += expected.start_s * self._starts.ratio
            remaining_s += expected.case_s * (case_ratio or 1.0)

        self.ends_ns = now_ns + round(remaining_s * _NS_PER_S)

    def count(self, in_flight: int, record: RecordRound) -> RecordRound:
        """Reset the counts, and count the requests of the first arm of a measurement.

        Args:
            in_flight: how many requests are in flight; 0 for a request rate.
            record: returns the recorders of the measurement's rounds.

        Returns:
            A function like `record`, whose recorders also count the requests.
        """
        self._begin_measuring()
        self._in_flight = in_flight
        self._counts = NO_STEPS
        self._tokens = 0
        self._requests_ns = 0

        def record_round(arm_number: int, number: int | None) -> Record:
            take = record(arm_number, number)

            def take_and_count(finished: FinishedRequest) -> None:
                take(finished)
                self._add(finished)

            return take_and_count if arm_number == 0 else take

        return record_round

    def _add(self, finished: FinishedRequest) -> None:
        """Add the tokens, the duration and the accepted drafts of a request."""
        trace = finished.trace
        self._tokens += trace.tokens
        if trace.last_ns is not None:
            self._requests_ns += trace.last_ns - trace.sent_ns
        if trace.acceptance is not None:
            self._counts += trace.acceptance

    @property
    def case_position(self) -> str:
        """The number of the present case, `case 3 of 12`; empty if unknown."""
        number = len(self._begun & self.expected.keys())
        if not number:
            return ""
        return f"case {number} of {len(self.expected)}"

    def figures_in(self, phase: Phase) -> str:
        """Return the tokens/s and the acceptance length of the requests that have ended.

        The load is assumed to be full, so tokens/s = in flight · Σ tokens / Σ request durations. At
        a request rate, the speed is that of a single request: Σ tokens / Σ request durations.

        Returns:
            Empty unless the phase is that of measuring and a request has ended.
        """
        if phase is not Phase.MEASURING or not self._requests_ns:
            return ""
        per_request = self._tokens * _NS_PER_S / self._requests_ns
        if self._in_flight:
            figures = f"{self._in_flight * per_request:.0f} tokens/s"
        else:
            figures = f"{per_request:.0f} tokens/s per request"

        length = self._counts.acceptance_length
        if length:
            figures += f", {length:.2f} tokens a step"
        return figures


@dataclass(slots=True, kw_only=True)
class _Screen:
    """Writes lines between those of pytest.

    Attributes:
        file: a copy of standard error, or a file.
        column: returns the column of the terminal in which pytest's output ends, from 0.
        within_line: whether pytest may have written on the present line of the terminal.
        way_back: the control sequence from the updated line back to the end of pytest's output;
            None if there is no updated line.
    """

    file: TextIO
    column: Callable[[], int]
    within_line: bool = False
    way_back: str | None = None

    def write_line(self, line: str) -> None:
        """Write a permanent line, on a line of its own."""
        self.erase()
        before = "\n" if self.within_line and self.column() else ""
        self.within_line = False
        self._put(f"{before}{line}\n")

    def draw(self, line: str) -> None:
        """Show a line below pytest's output, in place of the last line that this method showed."""
        columns = self._columns()
        before = ""
        if self.way_back is None:
            column = self.column() if self.within_line else 0
            if column:
                # The line goes below pytest's dots. Erasing it moves the cursor back behind them.
                before = "\n"
                self.way_back = f"\x1b[A\x1b[{column % columns + 1}G"
            else:
                self.way_back = ""

        self._put(f"{before}{_CLEAR_LINE}{line[: columns - _FREE_COLUMNS]}")

    def erase(self) -> None:
        """Erase the updated line, and move the cursor back to the end of pytest's output."""
        if self.way_back is not None:
            self._put(f"{_CLEAR_LINE}{self.way_back}")
            self.way_back = None

    def _columns(self) -> int:
        with contextlib.suppress(OSError):
            return os.get_terminal_size(self.file.fileno()).columns or _USUAL_COLUMNS
        return _USUAL_COLUMNS

    def _put(self, text: str) -> None:
        # The file may be closed already.
        with contextlib.suppress(OSError, ValueError):
            self.file.write(text)
            self.file.flush()


class Progress:
    """Shows the progress of a run on the real standard error, despite pytest's capturing.

    It must be created before capturing starts, because it copies the file descriptor. Any thread
    may use it.

    Attributes:
        run: how far the run is. The run updates it.
    """

    def __init__(
        self,
        file: TextIO | None = None,
        *,
        clock: Callable[[], int] = time.monotonic_ns,
        column: Callable[[], int] | None = None,
    ) -> None:
        """Begin without a phase.

        Args:
            file: the file to write to; None for standard error.
            clock: a monotonic clock, in nanoseconds.
            column: returns the column of the terminal in which pytest's output ends, from 0; None
                without a terminal, for permanent lines.
        """
        self._clock = clock
        self._began_ns = 0
        if file is None:
            # The times count from the start of the process, so importing is part of them.
            self._began_ns = process_began_ns()
            file = _copy_of_standard_error()

        self._in_place = column is not None
        if column is None:
            # Without a terminal, the column isn't known. 1 stands for a line that has begun.
            self._screen = _Screen(file=file, column=lambda: 1)
        else:
            self._screen = _Screen(file=file, column=column)

        self.run = RunProgress(clock=clock)
        self._running: tuple[RunningPhase, ...] = ()
        self._shown_ns: dict[RunningPhase, int] = {}
        self._detail = ""
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, running_phases: Sequence[RunningPhase]) -> None:
        """Set the present phases, the innermost last; without any, erase the updated line."""
        with self._lock:
            self._running = tuple(running_phases)
            self._detail = ""
            self._shown_ns = {
                running: ns for running, ns in self._shown_ns.items() if running in running_phases
            }
            if not running_phases:
                # pytest is about to write, and would otherwise write behind the updated line.
                self._screen.erase()
            if self._thread is None and not self._over.is_set():
                self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
                self._thread.start()

    def show(self, detail: str) -> None:
        """Set the detail that is shown for the innermost phase."""
        self._detail = detail

    def tell(self, text: str) -> None:
        """Print a text at once."""
        with self._lock:
            self._screen.write_line(readable_block(text))

    def leave_line(self) -> None:
        """Let the next line begin on a new line, because pytest has written on the present one."""
        self._screen.within_line = True

    def close(self) -> None:
        """Stop writing, erase the updated line, and close the file."""
        # The thread must not draw again after the line was erased.
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        self._screen.erase()
        with contextlib.suppress(OSError):
            self._screen.file.close()

    def tick(self) -> None:
        """Write the lines that are due. A thread calls this repeatedly."""
        with self._lock:
            now_ns = self._clock()
            # On a terminal, draw the present phase.
            if self._in_place:
                if self._running:
                    self._screen.draw(self._innermost(now_ns))
                return
            # Otherwise write a line for each phase that has become long enough.
            for running in self._running:
                is_long_enough = now_ns - running.began_ns >= _SHORTEST_SHOWN_NS
                if running not in self._shown_ns and is_long_enough:
                    self._shown_ns[running] = now_ns
                    self._screen.write_line(f"specreg {self._line(running, running.began_ns)}")
            if not self._running:
                return
            # Write a further line for a phase that still goes on.
            running = self._running[-1]
            last_shown_ns = self._shown_ns.get(running, now_ns)
            if now_ns - last_shown_ns >= _REPEATED_AFTER_NS:
                self._shown_ns[running] = now_ns
                self._screen.write_line(f"specreg {self._innermost(now_ns)}")

    def _run(self) -> None:
        while not self._over.wait(_TICK_S):
            self.tick()

    def _innermost(self, now_ns: int) -> str:
        """Return the line of the innermost phase, with its figures and its detail."""
        running = self._running[-1]
        return self._line(running, now_ns, self.run.figures_in(running.phase), self._detail)

    def _line(self, running: RunningPhase, at_ns: int, *details: str) -> str:
        """Return the line of a phase: the time since the run began, the case, and the details."""
        moment = render_time(at_ns - self._began_ns)
        if self.run.case_position:
            if self.run.ends_ns > at_ns:
                moment += f" of about {render_time(self.run.ends_ns - self._began_ns)}"
            moment += f", {self.run.case_position}:"

        line = f"{moment} {running.phase} {running.subject}"
        further = [detail for detail in details if detail and detail not in line]
        return readable_line(", ".join((line, *further)))


def _copy_of_standard_error() -> TextIO:
    """Return a file on the real standard error, or a file in memory if it is closed."""
    if sys.__stderr__ is None:
        return io.StringIO()
    return os.fdopen(os.dup(sys.__stderr__.fileno()), "w")


def render_time(nanoseconds: int) -> str:
    """Return a time as `0:42`, `12:03` or `1:02:03`."""
    minutes, seconds = divmod(nanoseconds // _NS_PER_S, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{seconds:02}"
    return f"{minutes}:{seconds:02}"
