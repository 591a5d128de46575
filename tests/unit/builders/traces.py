"""Requests as the client saw them, and rounds of them."""

from specreg.acceptance.trace import Chunk, RequestTrace, chunk_sizes
from specreg.load.rounds import Round


def chunk(at_ns: int, tokens: int = 1) -> Chunk:
    return Chunk(at_ns=at_ns, tokens=tokens)


def trace(*chunks: Chunk, sent_ns: int = 0) -> RequestTrace:
    """A request that finished, with the usage that its chunks add up to."""
    return RequestTrace(
        prompt_id="chat-0",
        category="chat",
        turn=1,
        planned_ns=sent_ns,
        sent_ns=sent_ns,
        first_ns=chunks[0].at_ns if chunks else None,
        last_ns=chunks[-1].at_ns if chunks else None,
        first_chunk_tokens=chunks[0].tokens if chunks else 0,
        chunk_sizes=chunk_sizes(chunks[1:]),
        usage_tokens=sum(chunk.tokens for chunk in chunks),
        finish_reason="stop",
    )


def replayed(started_ns: int, ended_ns: int, tokens: int) -> Round:
    """A round in which one request delivered some tokens."""
    only = trace(chunk(ended_ns, tokens), sent_ns=started_ns)
    return Round(traces=(only,), started_ns=started_ns, ended_ns=ended_ns)
