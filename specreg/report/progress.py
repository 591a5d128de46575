"""What goes on, on standard error: a line as a phase begins and one as it ends."""

import contextlib
import io
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TextIO

from specreg.core.redaction import hide
from specreg.core.timeline import Phase, Step, process_began_ns

_NS_PER_S = 10**9
_TOLD_NS = _NS_PER_S
"""A phase that is over sooner has no lines."""
_AGAIN_NS = 60 * _NS_PER_S
"""Of one that lasts, a line so often."""
_TICK_S = 0.5


class Progress:
    """Says on the real standard error, past pytest's capturing, what goes on.

    Must be made before capturing starts: it keeps a copy of the descriptor. Any thread may use it.
    """

    def __init__(
        self, file: TextIO | None = None, *, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        """Begins with nothing to say, on standard error or a file; the clock is in nanoseconds."""
        self._clock, self._began_ns = clock, process_began_ns() if file is None else 0
        if file is None and sys.__stderr__:
            file = os.fdopen(os.dup(sys.__stderr__.fileno()), "w")
        self._file = file or io.StringIO()
        self._steps: tuple[Step, ...] = ()
        self._told: dict[Step, int] = {}
        self._text, self._midline = "", False
        self._lock, self._over = threading.RLock(), threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, steps: Sequence[Step]) -> None:
        """Says which phases go on from here, the innermost last."""
        with self._lock:
            now = self._clock()
            for step in [step for step in self._told if step not in steps]:
                del self._told[step]
                self._print(f"{step.phase} {step.of} took {render_time(now - step.began_ns)}")
            self._steps, self._text = tuple(steps), ""
            if self._thread is None and not self._over.is_set():
                self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
                self._thread.start()

    def show(self, text: str) -> None:
        """Says what the innermost phase is at, once it has lasted."""
        self._text = text

    def tell(self, text: str) -> None:
        """Prints a line at once."""
        with self._lock:
            self._write(f"{hide(text)}\n")

    def leave_line(self) -> None:
        """Has the next line begin on one of its own: pytest has written on this one."""
        self._midline = True

    def close(self) -> None:
        """Says nothing more."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        with contextlib.suppress(OSError):
            self._file.close()

    def tick(self) -> None:
        """Says what is due by now; a thread asks for it again and again."""
        with self._lock:
            now = self._clock()
            for step in self._steps:
                lasted_ns = now - step.began_ns
                if step not in self._told and lasted_ns >= _TOLD_NS and step.phase != Phase.JUDGING:
                    self._told[step] = now
                    self._print(f"{step.phase} {step.of}", at_ns=step.began_ns)
            if self._steps and now - self._told.get(self._steps[-1], now) >= _AGAIN_NS:
                step = self._steps[-1]
                self._told[step] = now
                what = self._text or f"{step.phase} {step.of}"
                self._print(f"{what}, {render_time(now - step.began_ns)}")

    def _run(self) -> None:
        while not self._over.wait(_TICK_S):
            self.tick()

    def _print(self, text: str, at_ns: int | None = None) -> None:
        """A line with the time since the process began."""
        since_ns = (self._clock() if at_ns is None else at_ns) - self._began_ns
        self._write(f"specreg {render_time(since_ns)} {hide(text)}\n")

    def _write(self, text: str) -> None:
        before, self._midline = "\n" if self._midline else "", False
        with contextlib.suppress(OSError, ValueError):  # it was closed
            self._file.write(before + text)
            self._file.flush()


def render_time(nanoseconds: int) -> str:
    """`0:42`, `12:03`, `1:02:03`."""
    minutes, seconds = divmod(nanoseconds // _NS_PER_S, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
