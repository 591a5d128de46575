"""Server-sent events: bytes as they arrive in, the data of whole events out."""

from collections.abc import Iterator

DONE = b"[DONE]"
_PREFIX = b"data:"


class EventSplitter:
    """Cuts a byte stream into events, however the network cut it into pieces.

    Only what LLM servers send is understood: one `data:` line per event. Other fields and
    comments are skipped.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """The data of the events that `piece` completes, `[DONE]` included."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(_PREFIX):
                yield line[len(_PREFIX) :].strip()
