"""What goes on, on standard error: on a terminal one line in place, elsewhere a line a phase."""

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
_TOLD_NS = _NS_PER_S
"""A phase that is over sooner has no line."""
_AGAIN_NS = 60 * _NS_PER_S
"""Of one that lasts, a line so often."""
_TICK_S = 0.5
_WIDTH, _MARGIN = 80, 3
"""Of a terminal that doesn't tell it; what is left free, so that an echoed `^C` wraps nothing."""
_CLEAR = "\r\x1b[K"


@dataclass(slots=True, kw_only=True)
class RunProgress:
    """How far a run is, and what its case at hand comes to so far; any thread may read it.

    Attributes:
        expected_s: by case, on each launch, how long it takes about, in the order of the run;
            empty where that isn't known, as where the run is shared with other processes.
        ends_ns: when the run ends, about, on the clock; 0 where that isn't known.
        clock: monotonic, in nanoseconds.
    """

    expected_s: Mapping[str, float] = field(default_factory=dict)
    ends_ns: int = 0
    clock: Callable[[], int] = time.monotonic_ns
    _begun: set[str] = field(default_factory=set)
    _in_flight: int = 0
    _tokens: int = 0
    _asked_ns: int = 0  # by all requests together
    _counts: StepCounts = NO_STEPS

    def expect(self, expected_s: Mapping[str, float]) -> None:
        """Take over how long each case is expected to take."""
        self.expected_s = expected_s

    def begin(self, name: str) -> bool:
        """Note that a case begins on a launch; whether it is for the first time."""
        if name in self._begun:
            return False
        left_s = sum(s for one, s in self.expected_s.items() if one not in self._begun)
        self.ends_ns = self.clock() + round(left_s * _NS_PER_S)
        self._begun.add(name)
        return True

    def count(self, in_flight: int, record: RecordRound) -> RecordRound:
        """Have what takes a measurement's requests count those of its first arm, from none on.

        `in_flight` is how many requests are at the same time, 0 for a load by rate.
        """
        self._in_flight, self._counts = in_flight, NO_STEPS
        self._tokens = self._asked_ns = 0

        def record_round(arm: int, number: int) -> Record:
            take = record(arm, number)

            def take_and_count(finished: FinishedRequest) -> None:
                take(finished)
                trace = finished.trace
                self._tokens += trace.tokens
                self._asked_ns += (trace.last_ns or trace.sent_ns) - trace.sent_ns
                self._counts += trace.acceptance or NO_STEPS

            return take if arm else take_and_count

        return record_round

    @property
    def place(self) -> str:
        """`case 3 of 12`; empty before the first one, and where it isn't known."""
        number = len(self._begun & self.expected_s.keys())
        return f"case {number} of {len(self.expected_s)}" if number else ""

    def figures_in(self, phase: Phase) -> str:
        """Tokens per second and acceptance length of the requests that have ended, while measuring.

        The load is taken for full, so tokens/s = in flight · Σ tokens / Σ time of a request.
        """
        if phase is not Phase.MEASURING or not self._asked_ns:
            return ""
        rate = (self._in_flight or 1) * self._tokens * _NS_PER_S / self._asked_ns
        text = f"{rate:.0f} tokens/s{'' if self._in_flight else ' a request'}"
        length = self._counts.acceptance_length
        return f"{text}, AL {length:.2f}" if length else text


class Progress:
    """Says on the real standard error, past pytest's capturing, what goes on.

    Must be made before capturing starts: it keeps a copy of the descriptor. Any thread may use it.
    How far `run` is the run tells.
    """

    def __init__(
        self,
        file: TextIO | None = None,
        *,
        clock: Callable[[], int] = time.monotonic_ns,
        column: Callable[[], int] | None = None,
    ) -> None:
        """Begins with nothing to say, on standard error or a file; the clock is in nanoseconds.

        `column` says in which column of the terminal pytest's output ends, from 0; None for lines.
        """
        self._clock, self._began_ns = clock, process_began_ns() if file is None else 0
        if file is None and sys.__stderr__:
            file = os.fdopen(os.dup(sys.__stderr__.fileno()), "w")
        self._file = file or io.StringIO()
        self._in_place, self._column = column is not None, column or (lambda: 1)
        self.run = RunProgress(clock=clock)
        self._steps: tuple[Step, ...] = ()
        self._told: dict[Step, int] = {}
        self._text, self._midline = "", False
        self._back: str | None = None  # what goes back from the line in place, where there is one
        self._lock, self._over = threading.RLock(), threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, steps: Sequence[Step]) -> None:
        """Says which phases go on from here, the innermost last; pytest writes where none does."""
        with self._lock:
            self._steps, self._text = tuple(steps), ""
            self._told = {step: ns for step, ns in self._told.items() if step in steps}
            if not steps:
                self._erase()
            if self._thread is None and not self._over.is_set():
                self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
                self._thread.start()

    def show(self, text: str) -> None:
        """Says what the innermost phase is at."""
        self._text = text

    def tell(self, text: str) -> None:
        """Prints a line at once."""
        with self._lock:
            self._write(f"{readable_block(text)}\n")

    def leave_line(self) -> None:
        """Has the next line begin on one of its own: pytest has written on this one."""
        self._midline = True

    def close(self) -> None:
        """Says nothing more, and leaves no line that was in place."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        self._erase()
        with contextlib.suppress(OSError):
            self._file.close()

    def tick(self) -> None:
        """Says what is due by now; a thread asks for it again and again."""
        with self._lock:
            now = self._clock()
            for step in () if self._in_place else self._steps:
                if step not in self._told and now - step.began_ns >= _TOLD_NS:
                    self._told[step] = now
                    self._write(f"specreg {self._line(step, step.began_ns)}\n")
            if not self._steps:
                return
            step = self._steps[-1]
            line = self._line(step, now, self.run.figures_in(step.phase), self._text)
            if self._in_place:
                self._draw(line)
            elif now - self._told.get(step, now) >= _AGAIN_NS:
                self._told[step] = now
                self._write(f"specreg {line}\n")

    def _run(self) -> None:
        while not self._over.wait(_TICK_S):
            self.tick()

    def _line(self, step: Step, at_ns: int, *details: str) -> str:
        """A moment since the process began, and what the run is at then, on one line."""
        ends_ns, place = self.run.ends_ns, self.run.place
        ends = f" of about {render_time(ends_ns - self._began_ns)}" if ends_ns > at_ns else ""
        moment = render_time(at_ns - self._began_ns) + (f"{ends}, {place}:" if place else "")
        parts = (f"{moment} {step.phase} {step.of}", *details)
        return readable_line(", ".join(filter(None, parts)))

    def _draw(self, text: str) -> None:
        """Puts a text on the line in place, below pytest's own."""
        width = _WIDTH
        with contextlib.suppress(OSError):
            width = os.get_terminal_size(self._file.fileno()).columns or _WIDTH
        before = ""
        if self._back is None:
            column = self._column() if self._midline else 0
            before, self._back = ("\n", f"\x1b[A\x1b[{column % width + 1}G") if column else ("", "")
        self._put(f"{before}{_CLEAR}{text[: width - _MARGIN]}")

    def _erase(self) -> None:
        """Takes the line in place away, and goes back to where pytest's output ends."""
        if self._back is not None:
            self._put(f"{_CLEAR}{self._back}")
            self._back = None

    def _write(self, text: str) -> None:
        self._erase()
        before, self._midline = "\n" if self._midline and self._column() else "", False
        self._put(before + text)

    def _put(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # it was closed
            self._file.write(text)
            self._file.flush()


def render_time(nanoseconds: int) -> str:
    """`0:42`, `12:03`, `1:02:03`."""
    minutes, seconds = divmod(nanoseconds // _NS_PER_S, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
