"""What the client saw of one request: when its chunks came, how many tokens each carried."""

import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

import msgspec

from specreg.acceptance.record import StepCounts
from specreg.core.errors import InvalidMeasurementError

ANSWER_DIGEST = 2
"""Which definition of `RequestTrace.answer_sha256` this is; the first one left thoughts out."""


class Chunk(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One event of a stream that carried tokens: with speculation what one step emitted.

    It came `at_ns` of the client's monotonic clock; its `tokens`, 1 or more, are by the server's
    token ids or usage.
    """

    at_ns: int
    tokens: int


class Reply(StrEnum):
    """What an answer holds beside its thought."""

    TEXT = "text"
    UNFINISHED_THOUGHT = "unfinished_thought"
    """The answer never left the thought: there is a thought, and nothing after it."""
    NOTHING = "nothing"
    """There is neither a thought nor a text, or only blanks."""


class RequestTrace(msgspec.Struct, frozen=True, kw_only=True):
    """One request from its planned start to its last chunk; no larger for a longer answer.

    Attributes:
        prompt_id, category: of the prompt replayed; `turn`: of its turns, from 1.
        planned_ns: when it was due; sent_ns: just before it was written.
        first_ns, last_ns: when the first and the last chunk with a token came; None without any.
        first_chunk_tokens: tokens of the first chunk: the prefill's, and more where chunks merged.
        chunk_sizes: entry j counts the later chunks that carried j tokens.
        usage_tokens, prompt_tokens: of the answer and of all that was said before, by the server's
            own count; None if it didn't say.
        finish_reason: "stop" or "length", None if the stream ended without one.
        acceptance: the server's own counts for this request, None if it gave none.
        error: what went wrong, None for a request that finished.
        thought_chunk_sizes: the same as `chunk_sizes`, of the later chunks that carried a thought
            alone, where the server tells thoughts apart.
        answer_sha256: of all that was generated: its token ids where the server gives them, and
            each text with the channel that it came in. The first 16 digits; empty where what came
            doesn't show all that was generated.
        reply: what the answer holds; None in a journal that doesn't say.
        loops: whether the second half of the answer repeats itself.
        empty_replies: how many of the replies that this request sent along were empty.
    """

    prompt_id: str
    category: str
    turn: int
    planned_ns: int
    sent_ns: int
    first_ns: int | None = None
    last_ns: int | None = None
    first_chunk_tokens: int = 0
    chunk_sizes: tuple[int, ...] = ()
    usage_tokens: int | None = None
    finish_reason: str | None = None
    acceptance: StepCounts | None = None
    error: str | None = None
    answer_sha256: str = ""
    prompt_tokens: int | None = None
    thought_chunk_sizes: tuple[int, ...] = ()
    reply: Reply | None = None
    loops: bool = False
    empty_replies: int = 0

    @property
    def later_tokens(self) -> int:
        """Tokens after the first chunk."""
        return sum(tokens * chunks for tokens, chunks in enumerate(self.chunk_sizes))

    @property
    def tokens(self) -> int:
        """All tokens delivered, N."""
        return self.first_chunk_tokens + self.later_tokens

    @property
    def later_chunks(self) -> int:
        """Chunks after the first: as many as steps, unless some merged."""
        return sum(self.chunk_sizes)

    def hidden_steps(self, draft_tokens: int) -> int:
        """The most steps that chunks hide which hold more tokens than a step can emit, k + 1.

        A chunk of several steps holds at least one token of each.
        """
        merged = list(enumerate(self.chunk_sizes))[draft_tokens + 2 :]
        hidden = sum((tokens - 1) * chunks for tokens, chunks in merged)
        return hidden + max(self.first_chunk_tokens - 1, 0)

    def counts_of_chunks(self, *, draft_tokens: int, drafts_every_step: bool) -> StepCounts:
        """The counts if each chunk after the first is what one step emitted: a + 1 tokens.

        The estimate for servers that count nothing, in the emitted view: what was cut off at the
        end isn't seen. Chunks that merged unnoticed make fewer, longer steps. Where the method
        doesn't draft its `draft_tokens`, k, in every step, D is unknown.

        Raises:
            InvalidMeasurementError: `CHUNKS_MERGED` where a chunk holds more than a step can emit,
                or the first one more than a token.
        """
        longest = max(len(self.chunk_sizes) - 1, 0)
        if self.first_chunk_tokens > 1 or longest > draft_tokens + 1:
            message = (
                f"prompt '{self.prompt_id}': the first chunk holds {self.first_chunk_tokens}"
                f" tokens, another {longest}, and a step emits {draft_tokens + 1} at most: the"
                " server merged chunks, so they say nothing of its steps; lower the load"
            )
            raise InvalidMeasurementError("CHUNKS_MERGED", message)
        histogram = [*self.chunk_sizes[1:], *[0] * (draft_tokens + 1)][: draft_tokens + 1]
        proposed = draft_tokens * sum(histogram) if drafts_every_step else None
        return StepCounts.from_histogram(histogram, proposed)


def undrafted_steps_of(traces: Sequence[RequestTrace], counts: StepCounts) -> int:
    """How many steps of some requests drafted nothing, at least.

    Dynamic speculation turns drafting off for a step, which emits one token and counts nowhere.
    Such steps are the chunks beyond the counted steps, and the tokens that these can't have
    emitted; where chunks merged, fewer are seen.
    """
    chunks = sum(trace.later_chunks for trace in traces)
    later_tokens = sum(max(trace.tokens - 1, 0) for trace in traces)
    return max(chunks - counts.steps, later_tokens - counts.accepted - counts.steps, 0)


def chunk_sizes(chunks: Iterable[Chunk]) -> tuple[int, ...]:
    """How many of the chunks carried 0, 1, 2, … tokens; empty without chunks."""
    sizes = Counter(map(operator.attrgetter("tokens"), chunks))
    return tuple(sizes[tokens] for tokens in range(max(sizes, default=-1) + 1))


class StreamEvent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One decoded event of a stream; most have only one of the fields.

    Attributes:
        text: what it adds to the answer, which is what a later turn is asked with.
        thought: what it adds to the thought, where the server tells thoughts apart.
        other: all else that it adds, tool calls for instance, as JSON.
        token_ids: of its tokens; empty where the server gives none.
        finish_reason: on the last event with tokens, or after it.
        usage_tokens, prompt_tokens: of the whole request, on the final event.
        acceptance: the request's own counts, on one of the last events of a server that gives them.
    """

    tokens: int = 0
    text: str = ""
    thought: str = ""
    other: str = ""
    token_ids: Sequence[int] = ()
    finish_reason: str | None = None
    usage_tokens: int | None = None
    acceptance: StepCounts | None = None
    prompt_tokens: int | None = None


Body = Mapping[str, object]
"""A request body, ready for JSON."""
