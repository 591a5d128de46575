"""Keep the first and the last of what a server prints, without secrets.

The standard library alone: the supervisor writes them, so that no log ends with us.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path

KEPT_BYTES = 8 * 2**20
"""How much of the beginning is kept, and of the end."""
_LONG_LINE_BYTES = 2**20
_LEFT_OUT = b"\n[specreg: %d bytes are left out here]\n"
_TAIL_BYTES = 64 * 1024
_TAIL_LINES = 40
_LINE_CHARACTERS = 1000
_COLOR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class BoundedLog:
    """A file that keeps the first and, up to twice as much, the last bytes that it is given.

    What is dropped in a flood is neither searched for secrets nor written: that would take time.
    """

    def __init__(
        self, path: Path, hide: Callable[[bytes], bytes], *, kept_bytes: int = KEPT_BYTES
    ) -> None:
        """Open the file, which is there; `hide` takes the secrets out of whole lines."""
        self._file = path.open("r+b", buffering=0)
        self._hide, self._kept_bytes = hide, kept_bytes
        self._head_bytes, self._left_out_bytes = path.stat().st_size, 0
        self._waiting, self._tail = bytearray(), bytearray()
        self.waits = False
        """Whether something came since the last `write`."""

    def take(self, said: bytes) -> None:
        """Take what was printed."""
        self._waiting += said
        self.waits = True
        surplus = len(self._waiting) - 2 * self._kept_bytes
        if surplus > 0 and self._head_bytes < self._kept_bytes:
            self.write()
        elif surplus > 0:  # half a line may hold half a secret, which wouldn't be recognised
            most = len(self._waiting) - self._kept_bytes
            end = 1 + self._waiting.rfind(b"\n", 0, most) or most
            self._left_out_bytes += len(self._tail) + end
            self._tail.clear()
            del self._waiting[:end]

    def write(self, *, unfinished: bool = False) -> None:
        """Write what came to disk; what a full disk refuses is written once there is room.

        An unfinished last line too, if asked for, which is written anew once it is whole.
        """
        self.waits = False
        self._tail += self._hide(self._take_lines())
        room = max(0, self._kept_bytes - self._head_bytes)
        if len(self._tail) > room + 2 * self._kept_bytes:
            end = len(self._tail) - self._kept_bytes
            self._left_out_bytes += end - room
            del self._tail[room:end]
        try:
            self._append(self._tail[:room])
            self._head_bytes += len(self._tail[:room])
            del self._tail[:room]
            cut = _LEFT_OUT % self._left_out_bytes if self._left_out_bytes else b""
            rest = self._hide(bytes(self._waiting)) if unfinished else b""
            self._append(cut + self._tail + rest)
        except OSError:
            return

    def close(self) -> None:
        """Write all that came to disk, and close the file."""
        self.write(unfinished=True)
        self._file.close()

    def _take_lines(self) -> bytes:
        end = 1 + max(self._waiting.rfind(b"\n"), self._waiting.rfind(b"\r"))
        if len(self._waiting) - end > _LONG_LINE_BYTES:  # too long to wait for its end
            end = len(self._waiting)
        lines = bytes(self._waiting[:end])
        del self._waiting[:end]
        return lines

    def _append(self, content: bytes | bytearray) -> None:
        """Replace all that follows the file's beginning."""
        self._file.truncate(self._head_bytes)
        self._file.seek(self._head_bytes)
        left = memoryview(bytes(content))
        while left:
            left = left[self._file.write(left) :]


def log_end(path: Path) -> str:
    """The last 64 KiB of a log, whatever bytes it holds."""
    with path.open("rb") as log:
        log.seek(max(0, os.fstat(log.fileno()).st_size - _TAIL_BYTES))
        return log.read(_TAIL_BYTES).decode(errors="replace")


def log_tail(path: Path) -> str:
    """The last 40 lines of a log, of its last 64 KiB: printable, and none of them long."""
    lines = _COLOR.sub("", log_end(path)).splitlines()[-_TAIL_LINES:]
    return "\n".join(_printable(line) for line in lines)


def _printable(line: str) -> str:
    shown = line if len(line) <= _LINE_CHARACTERS else f"{line[:_LINE_CHARACTERS]}…"
    return "".join(one if one.isprintable() or one == "\t" else "\ufffd" for one in shown)
