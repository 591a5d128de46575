"""What the client saw of one request: chunks with their times, and what the server said of it."""

from collections.abc import Mapping
from dataclasses import dataclass

from specreg.acceptance.record import StepCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One event of a stream that carried tokens.

    A chunk is not a token: with speculation it is what one step emitted, as a rule.

    Attributes:
        at_ns: when it arrived, by the client's monotonic clock.
        tokens: how many tokens it carried, by the server's token ids; 1 or more.
        text: their text; may be empty, when they end inside a character.
    """

    at_ns: int
    tokens: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTrace:
    """One request from its planned start to its last chunk.

    Attributes:
        prompt_id, category: of the prompt replayed.
        planned_ns: when it was due; sent_ns: just before it was written.
        chunks: in order of arrival.
        usage_tokens: completion tokens by the server's own count, None if it didn't say.
        finish_reason: "stop" or "length", None if the stream ended without one.
        acceptance: the server's own counts for this request, None if it gave none.
        error: what went wrong, None for a request that finished.
    """

    prompt_id: str
    category: str
    planned_ns: int
    sent_ns: int
    chunks: tuple[Chunk, ...]
    usage_tokens: int | None
    finish_reason: str | None
    acceptance: StepCounts | None
    error: str | None

    @property
    def text(self) -> str:
        """All that was generated."""
        return "".join(chunk.text for chunk in self.chunks)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEvent:
    """One decoded event of a stream; most have one of the parts only.

    Attributes:
        tokens, text: what was generated; 0 and empty for an event without tokens.
        finish_reason: on the last event with tokens.
        usage_tokens: completion tokens of the whole request, on the final event.
        acceptance: the request's own counts, on the final event of a server that gives them.
    """

    tokens: int = 0
    text: str = ""
    finish_reason: str | None = None
    usage_tokens: int | None = None
    acceptance: StepCounts | None = None


Body = Mapping[str, object]
"""A request body, ready for JSON."""
