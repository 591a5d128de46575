"""Answers: bytes as they arrive in, the data of whole events out."""

from collections.abc import Iterator

from specreg.errors import InvalidMeasurementError

DONE = b"[DONE]"
_PREFIX = b"data:"
_LONGEST_BYTES = 16 * 2**20


class EventSplitter:
    """Cuts a byte stream into events, however the network cut it into pieces.

    Only what LLM servers send is understood: one `data:` line per event. Other fields and
    comments are skipped.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """The data of the events that `piece` completes, `[DONE]` included.

        Raises:
            InvalidMeasurementError: `EVENT_UNREADABLE`, a line has no end within 16 MiB.
        """
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > _LONGEST_BYTES:
            message = f"a line of {len(self._rest)} bytes has no end; is this a stream of events?"
            raise InvalidMeasurementError("EVENT_UNREADABLE", message)
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

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Nothing yet: only its end says that it is whole."""
        self._pieces.append(piece)
        yield from ()

    def close(self) -> Iterator[bytes]:
        """All that came."""
        yield b"".join(self._pieces)


def splitter_for(*, stream: bool) -> EventSplitter | WholeAnswer:
    """What makes events of an answer's bytes."""
    return EventSplitter() if stream else WholeAnswer()
