"""N-gram lookup."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specreg.engines.pytorch.speculation import LONGEST_TOKENS, SHORTEST_TOKENS, propose
from specreg.engines.registry import engine_named


def slow_propose(context: list[int], draft_tokens: int) -> tuple[int, ...]:
    """The rule as one says it: the longest run first, then the first place."""
    for tokens in range(LONGEST_TOKENS, SHORTEST_TOKENS - 1, -1):
        for end in range(tokens, len(context)):
            if context[end - tokens : end] == context[len(context) - tokens :]:
                return tuple(context[end : end + draft_tokens])
    return ()


@pytest.mark.parametrize(
    ("context", "drafted"),
    [
        pytest.param([1, 2, 3, 4, 1, 2], (3, 4, 1), id="what followed"),
        pytest.param([1, 2, 8, 1, 2, 9, 1, 2], (8, 1, 2), id="the first place"),
        pytest.param([2, 3, 7, 1, 2, 3, 8, 1, 2, 3], (8, 1, 2), id="longest first"),
        pytest.param([5, 5, 5], (5,), id="a place that overlaps the end"),
        pytest.param([1, 2, 3, 1], (), id="one token is too short"),
        pytest.param([], (), id="no text"),
        pytest.param([0xD800, 0x10FFFF, 3, 0xD800, 0x10FFFF], (3, 0xD800, 0x10FFFF), id="odd ids"),
    ],
)
def test_drafts_what_followed_the_last_tokens_before(
    context: list[int], drafted: tuple[int, ...]
) -> None:
    assert propose(context, 3) == drafted


def test_the_rule_is_what_vllm_is_told() -> None:
    settings = engine_named("vllm").methods["ngram"].settings

    assert settings["prompt_lookup_max"] == LONGEST_TOKENS
    assert settings["prompt_lookup_min"] == SHORTEST_TOKENS


@given(context=st.lists(st.integers(0, 3), max_size=40), draft_tokens=st.integers(1, 5))
def test_is_the_rule_as_one_says_it(context: list[int], draft_tokens: int) -> None:
    assert propose(context, draft_tokens) == slow_propose(context, draft_tokens)
