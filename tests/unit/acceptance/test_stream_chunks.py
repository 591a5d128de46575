"""Acceptance from chunks: a chunk after the first is what one step emitted, as a rule."""

import pytest

from specreg.acceptance.stream_chunks import counts_of_chunks
from specreg.acceptance.trace import RequestTrace
from specreg.core.errors import InvalidMeasurementError
from tests.unit import builders


def streamed(*tokens: int) -> RequestTrace:
    """A request whose chunks carried so many tokens."""
    return builders.trace(*(builders.chunk(at, size) for at, size in enumerate(tokens, 1)))


def test_a_step_emits_what_it_accepted_and_one_more() -> None:
    counts = counts_of_chunks(streamed(1, 4, 1, 3), draft_tokens=3, drafts_every_step=True)
    assert counts == builders.counts(1, 0, 1, 1)


def test_drafts_are_unknown_where_a_step_may_go_without() -> None:
    counts = counts_of_chunks(streamed(1, 4, 1), draft_tokens=3, drafts_every_step=False)
    assert (counts.steps, counts.accepted, counts.proposed) == (2, 3, None)


def test_an_answer_of_one_token_had_no_step() -> None:
    counts = counts_of_chunks(streamed(1), draft_tokens=3, drafts_every_step=True)
    assert (counts.steps, counts.accepted, counts.proposed) == (0, 0, 0)


@pytest.mark.parametrize("tokens", [(1, 5), (2, 4), (1, 4, 1, 8)])
def test_chunks_that_hold_more_than_a_step_emits_are_refused(tokens: tuple[int, ...]) -> None:
    with pytest.raises(InvalidMeasurementError, match="a step emits 4 at most") as error:
        counts_of_chunks(streamed(*tokens), draft_tokens=3, drafts_every_step=True)
    assert error.value.reason == "CHUNKS_MERGED"
