"""One line that says what goes on; nothing where no terminal is watching."""

import os
import sys
import threading

from rich.console import Console
from rich.status import Status

from specreg.redaction import hide


class Progress:
    """A line with a spinner on the real standard error, past pytest's capturing.

    Must be made before capturing starts: it keeps a copy of the descriptor. Any thread may use it.
    """

    def __init__(self) -> None:
        self._file = os.fdopen(os.dup(sys.__stderr__.fileno()), "w") if sys.__stderr__ else None
        self._console = Console(file=self._file) if self._file else None
        self._status: Status | None = None
        self._lock = threading.RLock()

    @property
    def watched(self) -> bool:
        """Whether somebody sits at a terminal."""
        return self._file is not None and self._file.isatty()

    def show(self, text: str) -> None:
        """Replaces the line; does nothing without a terminal."""
        if self._console is None or not self.watched:
            return
        with self._lock:
            if self._status is None:
                self._console.print()  # leaves pytest's own line alone
                self._status = self._console.status(hide(text))
                self._status.start()
            self._status.update(hide(text))

    def tell(self, text: str) -> None:
        """Prints a line that stays, with a terminal or without one."""
        with self._lock:
            self.clear()
            if self._file is not None:
                print(hide(text), file=self._file, flush=True)

    def clear(self) -> None:
        """Takes the line away; the next `show` brings it back."""
        with self._lock:
            if self._status is not None:
                self._status.stop()
                self._status = None

    def close(self) -> None:
        """Takes the line away for good."""
        self.clear()
        if self._file is not None:
            self._file.close()
