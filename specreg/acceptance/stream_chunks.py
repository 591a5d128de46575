"""Acceptance from the chunks of a stream alone: the estimate for servers that count nothing."""

from specreg.acceptance.record import StepCounts
from specreg.acceptance.trace import RequestTrace
from specreg.core.errors import InvalidMeasurementError


def counts_of_chunks(
    trace: RequestTrace, *, draft_tokens: int, drafts_every_step: bool
) -> StepCounts:
    """The counts of a request if each chunk after the first is what one step emitted: a + 1 tokens.

    The emitted view: what was cut off at the end isn't seen. Chunks that merged unnoticed (two
    short ones into one that is not too long) make fewer, longer steps of them.

    Args:
        trace: of the request.
        draft_tokens: k, tokens drafted per step.
        drafts_every_step: whether the method does; if not, D is unknown.

    Raises:
        InvalidMeasurementError: `CHUNKS_MERGED`, a chunk holds more than a step can emit.
    """
    histogram = trace.chunk_sizes[1:]
    longest = len(histogram)
    if trace.first_chunk_tokens > 1 or longest > draft_tokens + 1:
        message = (
            f"prompt '{trace.prompt_id}': the first chunk holds {trace.first_chunk_tokens} tokens,"
            f" another {longest}, and a step emits {draft_tokens + 1} at most: the server merged"
            " chunks, so they say nothing of its steps; lower the load"
        )
        raise InvalidMeasurementError("CHUNKS_MERGED", message)
    return StepCounts.from_histogram(
        histogram + (0,) * (draft_tokens + 1 - longest),
        proposed=draft_tokens * sum(histogram) if drafts_every_step else None,
    )
