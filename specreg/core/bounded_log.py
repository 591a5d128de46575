"""Keep the beginning and the end of what processes print, without secrets.

This module needs the standard library alone, because the supervisor has nothing else.
"""

import re
from collections.abc import Callable
from pathlib import Path

KEPT_BYTES = 8 * 2**20
"""How much of a log's beginning is kept, and how much of its end at least."""
LONG_LINE_BYTES = 2**20
"""A line that is longer and hasn't ended is left out, because a cut could divide a secret."""
_LINE_END = re.compile(rb"[\r\n]")
_LEFT_OUT = b"\n[specreg: %d bytes are left out here]\n"
_LINE_LEFT_OUT = b"[specreg: %d bytes of a long line are left out here]"


class BoundedLog:
    """A file that keeps the beginning of what it is given, and up to twice as much of the end.

    Output that is dropped in a flood is neither searched for secrets nor written, because that
    would take time. Secrets are hidden in whole lines.

    Attributes:
        has_unwritten_output: True if something came since the last `write`.
    """

    def __init__(
        self, path: Path, hide: Callable[[bytes], bytes], *, kept_bytes: int = KEPT_BYTES
    ) -> None:
        """Open the file, which must exist.

        Args:
            path: the path of the file.
            hide: returns output without its secrets.
            kept_bytes: how much of the beginning is kept, and how much of the end at least.
        """
        self._file = path.open("r+b", buffering=0)
        self._hide = hide
        self._kept_bytes = kept_bytes
        self._head_bytes = path.stat().st_size
        self._left_out_bytes = 0
        self._waiting = bytearray()
        self._long_line_bytes = 0
        self._tail = bytearray()
        self.has_unwritten_output = False

    def take(self, output: bytes) -> None:
        """Take output, which is written by a later `write`.

        If too much waits, it is written at once as long as the beginning isn't full. After that the
        earlier part of what waits is dropped.
        """
        self.has_unwritten_output = True
        self._waiting += self._without_long_line(output)

        unfinished_bytes = len(self._waiting) - _end_of_lines(self._waiting)
        if unfinished_bytes > LONG_LINE_BYTES:
            self._long_line_bytes = unfinished_bytes
            del self._waiting[-unfinished_bytes:]

        most_bytes = 2 * self._kept_bytes
        if len(self._waiting) > most_bytes and self._head_bytes < self._kept_bytes:
            self.write()
        if len(self._waiting) > most_bytes:
            self._drop_waiting()

    def write(self, *, unfinished: bool = False) -> None:
        """Write what was taken. What a full disk refuses is written once there is room.

        Args:
            unfinished: True to write an unfinished last line as well. The whole line replaces it
                later, because a secret may be recognised only once it is whole.
        """
        self.has_unwritten_output = False
        self._tail += self._hide(self._take_lines())
        room = max(0, self._kept_bytes - self._head_bytes)

        # Drop the middle, once the end has twice the size that is kept. So this is done rarely.
        if len(self._tail) > room + 2 * self._kept_bytes:
            end = len(self._tail) - self._kept_bytes
            self._left_out_bytes += end - room
            del self._tail[room:end]

        try:
            # The beginning is written once.
            beginning = self._tail[:room]
            self._append(beginning)
            self._head_bytes += len(beginning)
            del self._tail[:room]
            # Everything after the beginning is written anew each time.
            cut = _LEFT_OUT % self._left_out_bytes if self._left_out_bytes else b""
            last_line = self._unfinished_line() if unfinished else b""
            self._append(cut + self._tail + last_line)
        except OSError:
            # The tail still has what wasn't written.
            return

    def close(self) -> None:
        """Write everything that was taken, and close the file."""
        self.write()
        self._tail += self._unfinished_line()
        self._waiting.clear()
        self.write()
        self._file.close()

    def _without_long_line(self, output: bytes) -> bytes:
        """Replace the rest of a line that is too long by a remark, once the line has ended."""
        if not self._long_line_bytes:
            return output
        line_end = _LINE_END.search(output)
        if line_end is None:
            self._long_line_bytes += len(output)
            return b""
        remark = _LINE_LEFT_OUT % (self._long_line_bytes + line_end.start())
        self._long_line_bytes = 0
        return remark + output[line_end.start() :]

    def _unfinished_line(self) -> bytes:
        """Return the line that hasn't ended yet, or what is said in place of a long one."""
        if self._long_line_bytes:
            return _LINE_LEFT_OUT % self._long_line_bytes
        return self._hide(bytes(self._waiting))

    def _take_lines(self) -> bytes:
        """Remove the whole lines from the output that waits, and return them."""
        end = _end_of_lines(self._waiting)
        lines = bytes(self._waiting[:end])
        del self._waiting[:end]
        return lines

    def _drop_waiting(self) -> None:
        """Drop all of a flood but its end. The end that the file has had so far is dropped too."""
        latest = len(self._waiting) - self._kept_bytes
        end = _end_of_lines(self._waiting[:latest])
        self._left_out_bytes += len(self._tail) + end
        self._tail.clear()
        del self._waiting[:end]

    def _append(self, content: bytes | bytearray) -> None:
        """Replace everything that follows the beginning of the file."""
        self._file.truncate(self._head_bytes)
        self._file.seek(self._head_bytes)
        unwritten = memoryview(bytes(content))
        # An unbuffered file may take only a part of the content at once.
        while unwritten:
            unwritten = unwritten[self._file.write(unwritten) :]


def _end_of_lines(output: bytearray) -> int:
    """Return where the last whole line of output ends; 0 if there is none."""
    end = 1 + output.rfind(b"\n")
    return max(end, 1 + output.rfind(b"\r", end))
