"""Answers: bytes as they arrive in, the data of whole events out."""

from collections.abc import Iterator

from specreg.core.errors import InvalidMeasurementError
from specreg.core.http import MOST_BYTES

DONE = b"[DONE]"
_PREFIX = b"data:"


class EventSplitter:
    """Cuts a byte stream into events, however the network cut it into pieces.

    Only what LLM servers send is understood: one `data:` line per event. Other fields and
    comments are skipped.
    """

    def __init__(self) -> None:
        self._begun: list[bytes] = []
        self._begun_bytes = 0

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """The data of the events that `piece` completes, `[DONE]` included.

        Raises:
            InvalidMeasurementError: `EVENT_UNREADABLE`, a line has no end within 16 MiB.
        """
        begun = self._begun
        # To join the pieces of a long line again and again would take the square of its length.
        begun.append(piece)
        lines: list[bytes] = []
        if b"\n" in piece:
            *lines, rest = b"".join(begun).split(b"\n")
            self._begun = [rest]
            self._begun_bytes = len(rest)
        else:
            self._begun_bytes += len(piece)
        _check_length(self._begun_bytes)
        for line in lines:
            if line.startswith(_PREFIX):
                yield line[len(_PREFIX) :].strip()

    def close(self) -> Iterator[bytes]:
        """Nothing: what has no end is no event."""
        yield from ()


class WholeAnswer:
    """Takes an answer that isn't a stream for a single event."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._bytes = 0

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Nothing yet: only its end says that it is whole.

        Raises:
            InvalidMeasurementError: `EVENT_UNREADABLE`, it is longer than 16 MiB.
        """
        self._pieces.append(piece)
        self._bytes += len(piece)
        _check_length(self._bytes)
        yield from ()

    def close(self) -> Iterator[bytes]:
        """All that came."""
        yield b"".join(self._pieces)


def _check_length(length_bytes: int) -> None:
    """Silent where a line, or an answer that isn't a stream, is no longer than it may be."""
    if length_bytes > MOST_BYTES:
        message = f"after {MOST_BYTES} bytes there is no end of a line; is this a stream of events?"
        raise InvalidMeasurementError("EVENT_UNREADABLE", message)


def splitter_for(*, stream: bool) -> EventSplitter | WholeAnswer:
    """What makes events of an answer's bytes."""
    return EventSplitter() if stream else WholeAnswer()
