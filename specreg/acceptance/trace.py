"""Record what the client saw of a request: when its chunks came and how many tokens they held."""

import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

import msgspec

from specreg.acceptance.record import StepCounts
from specreg.core.errors import InvalidMeasurementError

ANSWER_DIGEST_VERSION = 2
"""The version of how `RequestTrace.answer_sha256` is computed. Version 1 left thoughts out, so
checksums of different versions can't be compared."""


class Chunk(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One event of a stream that carried tokens: with speculation, the tokens of one step.

    Attributes:
        at_ns: when it came, by the client's monotonic clock.
        tokens: how many tokens it carried, 1 or more, according to the server's token ids or usage.
    """

    at_ns: int
    tokens: int


class Reply(StrEnum):
    """What an answer consists of, apart from its thought."""

    TEXT = "text"
    UNFINISHED_THOUGHT = "unfinished_thought"
    """The answer is a thought alone. If the server doesn't separate thoughts, this is seen only
    where the text lacks the mark that ends a thought."""
    NOTHING = "nothing"
    """The answer has neither a thought nor a text, or its text consists of blanks."""


class RequestTrace(msgspec.Struct, frozen=True, kw_only=True):
    """One request from its planned start to its last chunk. Its size is bounded for long answers.

    Attributes:
        prompt_id: the id of the prompt that was replayed.
        category: the category of the prompt.
        turn: which turn of the conversation it is, from 1.
        planned_ns: when the request was due.
        sent_ns: the moment just before the request was written.
        first_ns: when the first chunk with a token came; None without any.
        last_ns: when the last chunk with a token came; None without any.
        first_chunk_tokens: the number of tokens of the first chunk: the prefill's one, or more if
            chunks were merged.
        chunk_sizes: entry j counts the later chunks that carried j tokens.
        usage_tokens: the number of tokens of the answer, as the server counts them; None if the
            server doesn't report it.
        finish_reason: "stop" or "length"; None if the stream ended without one.
        acceptance: the server's own counts for this request; None if it doesn't report them.
        error: what went wrong; None for a request that finished.
        answer_sha256: the first 16 digits of a checksum of everything that was generated: its token
            ids if the server reports them, and each text with the channel in which it came. Empty
            if the stream doesn't show everything that was generated.
        ids_sha256: the same checksum of the token ids alone; empty if not all of them are known.
        prompt_tokens: the number of tokens of the whole conversation before the answer, as the
            server counts them; None if the server doesn't report it.
        thought_chunk_sizes: like `chunk_sizes`, for the later chunks that carried only a thought,
            whether the server separated it or the text marks its end.
        reply: what the answer consists of; None in a ledger that doesn't record it.
        loops: true if the second half of the answer repeats itself.
        empty_replies: how many of the earlier replies that this request sent along were empty.
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
    ids_sha256: str = ""
    prompt_tokens: int | None = None
    thought_chunk_sizes: tuple[int, ...] = ()
    reply: Reply | None = None
    loops: bool = False
    empty_replies: int = 0

    @property
    def later_tokens(self) -> int:
        """The number of tokens after the first chunk."""
        return sum(tokens * chunks for tokens, chunks in enumerate(self.chunk_sizes))

    @property
    def tokens(self) -> int:
        """The number of all tokens delivered, N."""
        return self.first_chunk_tokens + self.later_tokens

    @property
    def later_chunks(self) -> int:
        """The number of chunks after the first: as many as steps, unless some were merged."""
        return sum(self.chunk_sizes)

    def hidden_steps(self, draft_tokens: int) -> int:
        """Return the most steps that can be hidden in merged chunks.

        A chunk with more tokens than a step can emit, k + 1, holds several steps, each with at
        least one token.

        Args:
            draft_tokens: the most drafts that a step can accept, k.
        """
        # The prefill emits one token of the first chunk. Each further token may come from a step.
        hidden_steps = max(self.first_chunk_tokens - 1, 0)
        for tokens, chunks in enumerate(self.chunk_sizes):
            if tokens > draft_tokens + 1:
                hidden_steps += (tokens - 1) * chunks
        return hidden_steps

    def counts_of_chunks(self, *, draft_tokens: int, drafts_every_step: bool) -> StepCounts:
        """Estimate the counts from the chunks, for servers that count nothing.

        Each chunk after the first is taken for one step, which emitted its accepted drafts and one
        token. Only the tokens that reached the client are seen (`View.EMITTED`), and not the drafts
        that were cut off at the end. Chunks that merged unnoticed make fewer, longer steps.

        Args:
            draft_tokens: the most drafts that a step can accept, k.
            drafts_every_step: whether the method drafts k tokens in every step; if not, D is
                unknown.

        Raises:
            InvalidMeasurementError: `CHUNKS_MERGED` if a chunk holds more tokens than a step can
                emit, or if the first chunk holds more than one.
        """
        largest_tokens = max(len(self.chunk_sizes) - 1, 0)
        if self.first_chunk_tokens > 1 or largest_tokens > draft_tokens + 1:
            raise InvalidMeasurementError(
                "CHUNKS_MERGED",
                prompt=self.prompt_id,
                first_tokens=self.first_chunk_tokens,
                later_tokens=largest_tokens,
                step_tokens=draft_tokens + 1,
            )

        # A step emits one token more than it accepts, so the sizes from 1 on are the histogram.
        steps_by_accepted = self.chunk_sizes[1:]
        padding = (0,) * (draft_tokens + 1 - len(steps_by_accepted))
        histogram = (*steps_by_accepted, *padding)
        proposed = draft_tokens * sum(histogram) if drafts_every_step else None
        return StepCounts.from_histogram(histogram, proposed)


def have_split_steps(traces: Sequence[RequestTrace], counts: StepCounts, draft_tokens: int) -> bool:
    """Return whether the tokens of a step came in several chunks, according to the counts.

    An accepted draft comes in the chunk of another token of its step. So if each step came in a
    chunk of its own, there would be as many chunks as tokens, less the accepted drafts. At the end
    of each answer, up to k accepted drafts may be cut off.

    Args:
        counts: the counts of all of their steps.
        draft_tokens: the most drafts that a step can accept, k.
    """
    chunks = sum(trace.later_chunks for trace in traces)
    later_tokens = sum(max(trace.tokens - 1, 0) for trace in traces)
    delivered_drafts = counts.accepted - draft_tokens * len(traces)
    return chunks > later_tokens - max(delivered_drafts, 0)


def chunk_sizes(chunks: Iterable[Chunk]) -> tuple[int, ...]:
    """Count the chunks that carried 0, 1, 2, … tokens; empty without chunks."""
    chunks_by_tokens = Counter(map(operator.attrgetter("tokens"), chunks))
    # Without chunks, the range below is empty.
    most_tokens = max(chunks_by_tokens, default=-1)
    return tuple(chunks_by_tokens[tokens] for tokens in range(most_tokens + 1))


class StreamEvent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One decoded event of a stream; most have only one of the fields.

    Attributes:
        tokens: the number of tokens that it adds.
        text: the text that it adds to the answer, which a later turn sends as history.
        thought: the text that it adds to the thought, if the server separates thoughts.
        extra_json: everything else that it adds, such as tool calls, as JSON.
        token_ids: the ids of its tokens; empty if the server doesn't report them.
        finish_reason: why the answer ended, on the last event with tokens or after it.
        usage_tokens: the number of tokens of the answer, on the final event.
        acceptance: the request's own counts, on one of the last events of a server that reports
            them.
        prompt_tokens: the number of tokens before the answer, on the final event.
    """

    tokens: int = 0
    text: str = ""
    thought: str = ""
    extra_json: str = ""
    token_ids: Sequence[int] = ()
    finish_reason: str | None = None
    usage_tokens: int | None = None
    acceptance: StepCounts | None = None
    prompt_tokens: int | None = None


Body = Mapping[str, object]
"""A request body, ready for JSON."""
