"""Keep the first and the last of what a server prints, without secrets.

The standard library alone: the supervisor writes them, so that no log ends with us.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path

KEPT_BYTES = 8 * 2**20
"""Of the beginning, and of the end."""
_LONG_LINE_BYTES = 2**20
_LEFT_OUT = b"\n[specreg: %d bytes are left out here]\n"
_TAIL_BYTES = 64 * 1024
_TAIL_LINES = 40
_LINE_CHARACTERS = 1000
_COLOR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_UNPRINTABLE = "\N{REPLACEMENT CHARACTER}"


class BoundedLog:
    """A file that keeps the first and, up to twice as much, the last bytes that it is given.

    What is dropped in a flood is neither searched for secrets nor written: that would take time.
    """

    def __init__(
        self, path: Path, hide: Callable[[bytes], bytes], *, kept_bytes: int = KEPT_BYTES
    ) -> None:
        """Open the file, which is there.

        Args:
            path: of the file.
            hide: takes the secrets out of whole lines.
            kept_bytes: of the beginning, and of the end.
        """
        self._file = path.open("r+b", buffering=0)
        self._hide, self._kept_bytes = hide, kept_bytes
        self._waiting = bytearray()
        self._dropped_bytes = self._left_out_bytes = self._unfinished_bytes = 0
        self.waits = False
        """Whether something came since the last `write`."""

    def take(self, said: bytes) -> None:
        """Take what was printed."""
        self._waiting += said
        self.waits = True
        if len(self._waiting) < 2 * self._kept_bytes:
            return
        if self._size_bytes() < self._kept_bytes:
            self.write()
        else:
            self._drop(len(self._waiting) - self._kept_bytes)

    def write(self, *, unfinished: bool = False) -> None:
        """Put on disk what came; a disk that refuses loses it.

        Args:
            unfinished: the last line too, which is written anew once it is whole: half a
                secret isn't known as one.
        """
        self.waits = False
        whole = self._hide(self._take_lines())
        try:
            self._file.truncate(self._size_bytes() - self._unfinished_bytes)
            self._unfinished_bytes = 0
            self._add(whole)
            if unfinished:
                rest = self._hide(bytes(self._waiting))
                self._append(rest)
                self._unfinished_bytes = len(rest)
        except OSError:
            self._dropped_bytes += len(whole)

    def close(self) -> None:
        """Put all that came on disk, and close the file."""
        self.write(unfinished=True)
        self._file.close()

    def _take_lines(self) -> bytes:
        end = 1 + max(self._waiting.rfind(b"\n"), self._waiting.rfind(b"\r"))
        if len(self._waiting) - end > _LONG_LINE_BYTES:  # nor is it a line
            end = len(self._waiting)
        lines = bytes(self._waiting[:end])
        del self._waiting[:end]
        return lines

    def _drop(self, most_bytes: int) -> None:
        """Leave out so much of what waits, but for the line that it would end in."""
        earliest = max(0, most_bytes - _LONG_LINE_BYTES)
        end = 1 + self._waiting.rfind(b"\n", earliest, most_bytes) or most_bytes
        self._dropped_bytes += end
        del self._waiting[:end]

    def _add(self, lines: bytes) -> None:
        if self._dropped_bytes:
            self._cut(0)
        self._append(lines)
        if self._size_bytes() > 3 * self._kept_bytes:
            self._cut(self._kept_bytes)

    def _cut(self, kept_bytes: int) -> None:
        """Leave out what lies between the beginning and the last bytes."""
        end = self._size_bytes()
        first = min(self._kept_bytes, end)
        last = max(first, end - kept_bytes)
        self._file.seek(last)
        kept = self._file.read(kept_bytes)
        said_before = len(_LEFT_OUT % self._left_out_bytes) if self._left_out_bytes else 0
        self._left_out_bytes += self._dropped_bytes + max(0, last - first - said_before)
        self._dropped_bytes = 0
        self._file.truncate(first)
        self._append(_LEFT_OUT % self._left_out_bytes + kept)

    def _append(self, content: bytes) -> None:
        left = memoryview(content)
        self._file.seek(0, os.SEEK_END)
        while left:
            left = left[self._file.write(left) :]

    def _size_bytes(self) -> int:
        return os.fstat(self._file.fileno()).st_size


def log_end(path: Path) -> str:
    """The last 64 KiB of a log, whatever bytes it holds."""
    with path.open("rb") as log:
        log.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        return log.read(_TAIL_BYTES).decode(errors="replace")


def log_tail(path: Path) -> str:
    """The last 40 lines of a log, of its last 64 KiB: printable, and none of them long."""
    lines = _COLOR.sub("", log_end(path)).splitlines()
    return "\n".join(_printable(line) for line in lines[-_TAIL_LINES:])


def _printable(line: str) -> str:
    shown = line if len(line) <= _LINE_CHARACTERS else f"{line[:_LINE_CHARACTERS]}…"
    return "".join(one if one.isprintable() or one == "\t" else _UNPRINTABLE for one in shown)
