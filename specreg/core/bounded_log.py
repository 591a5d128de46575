"""Keep the beginning and the end of what processes print, without secrets.

This module needs the standard library alone, because the supervisor has nothing else.
"""

from collections.abc import Callable
from pathlib import Path

KEPT_BYTES = 8 * 2**20
"""How much of a log's beginning is kept, and how much of its end at least."""
SECRET_BYTES = 4096
"""The longest secret that stays whole when a long line is cut, if its value isn't known."""
LONG_LINE_BYTES = 2**20
"""The length from which an unfinished line is cut instead of waiting for its end."""
_LEFT_OUT = b"\n[specreg: %d bytes are left out here]\n"


class BoundedLog:
    """A file that keeps the beginning of what it is given, and up to twice as much of the end.

    Output that is dropped in a flood is neither searched for secrets nor written, because that
    would take time. Secrets are hidden in whole lines. A line that is too long to wait for its end
    is cut, but only where the cut doesn't divide a secret.

    Attributes:
        has_unwritten_output: True if something came since the last `write`.
    """

    def __init__(
        self,
        path: Path,
        hide: Callable[[bytes], bytes],
        *,
        kept_bytes: int = KEPT_BYTES,
        secret_bytes: int = SECRET_BYTES,
    ) -> None:
        """Open the file, which must exist.

        Args:
            path: The path of the file.
            hide: Returns output without its secrets.
            kept_bytes: How much of the beginning is kept, and how much of the end at least.
            secret_bytes: The longest secret that stays whole when a long line is cut, with the
                words that mark it as one.
        """
        self._file = path.open("r+b", buffering=0)
        self._hide = hide
        self._kept_bytes = kept_bytes
        self._secret_bytes = secret_bytes
        self._head_bytes = path.stat().st_size
        self._left_out_bytes = 0
        self._waiting = bytearray()
        self._tail = bytearray()
        self.has_unwritten_output = False

    def take(self, output: bytes) -> None:
        """Take output, which is written by a later `write`.

        If too much waits, it is written at once as long as the beginning isn't full. After that the
        earlier part of what waits is dropped.
        """
        self._waiting += output
        self.has_unwritten_output = True
        most_bytes = 2 * self._kept_bytes
        if len(self._waiting) > most_bytes and self._head_bytes < self._kept_bytes:
            self.write()
            # An unfinished line may be left, because it waits for its end.
            most_bytes += LONG_LINE_BYTES
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
            last_line = self._hide(bytes(self._waiting)) if unfinished else b""
            self._append(cut + self._tail + last_line)
        except OSError:
            # The tail still has what wasn't written.
            return

    def close(self) -> None:
        """Write everything that was taken, and close the file."""
        self._tail += self._hide(bytes(self._waiting))
        self._waiting.clear()
        self.write()
        self._file.close()

    def _take_lines(self) -> bytes:
        """Remove the whole lines from the output that waits, and return them."""
        end = 1 + max(self._waiting.rfind(b"\n"), self._waiting.rfind(b"\r"))
        if len(self._waiting) - end > LONG_LINE_BYTES:
            # The last line is too long to wait for its end, so it is cut.
            end = max(end, self._end_of_whole_secrets(len(self._waiting)))
        lines = bytes(self._waiting[:end])
        del self._waiting[:end]
        return lines

    def _drop_waiting(self) -> None:
        """Drop all of a flood but its end. The end that the file has had so far is dropped too."""
        latest = len(self._waiting) - self._kept_bytes
        end = 1 + self._waiting.rfind(b"\n", 0, latest)
        if not end:
            # If no cut is harmless, everything is dropped.
            end = self._end_of_whole_secrets(latest) or len(self._waiting)
        self._left_out_bytes += len(self._tail) + end
        self._tail.clear()
        del self._waiting[:end]

    def _end_of_whole_secrets(self, latest: int) -> int:
        """Find the last position at which the output that waits can be cut without harm.

        A cut is harmless if hiding the secrets of both parts gives the same text as hiding those of
        the whole. The text that is compared goes far enough to both sides of the position to
        contain the whole of each secret that the position could divide.

        Args:
            latest: The last position that may be returned.

        Returns:
            The position; 0 if there is none.
        """
        # A secret that begins before the last position has to end in the output that came.
        latest = min(latest, len(self._waiting) - self._secret_bytes)
        # As many positions are tried as a secret is long, with room for a secret before each.
        first = max(0, latest - 2 * self._secret_bytes)
        content = bytes(self._waiting[first : latest + self._secret_bytes])
        hidden = self._hide(content)
        for end in range(latest - first, 0, -1)[: self._secret_bytes]:
            if self._hide(content[:end]) + self._hide(content[end:]) == hidden:
                return first + end
        return 0

    def _append(self, content: bytes | bytearray) -> None:
        """Replace everything that follows the beginning of the file."""
        self._file.truncate(self._head_bytes)
        self._file.seek(self._head_bytes)
        unwritten = memoryview(bytes(content))
        # An unbuffered file may take only a part of the content at once.
        while unwritten:
            unwritten = unwritten[self._file.write(unwritten) :]
