"""N-gram lookup."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specreg.engines.pytorch.speculation import LookupRule, Occurrence, propose
from specreg.engines.registry import engine_named

LAST = LookupRule(occurrence=Occurrence.LAST)


def slow_propose(context: list[int], rule: LookupRule, draft_tokens: int) -> tuple[int, ...]:
    """The rule as one says it: the longest run first, then the place."""
    for tokens in range(rule.longest_tokens, rule.shortest_tokens - 1, -1):
        places = [
            end
            for end in range(tokens, len(context))
            if context[end - tokens : end] == context[len(context) - tokens :]
        ]
        if places:
            end = places[0 if rule.occurrence is Occurrence.FIRST else -1]
            return tuple(context[end : end + draft_tokens])
    return ()


@pytest.mark.parametrize(
    ("context", "rule", "drafted"),
    [
        pytest.param([1, 2, 3, 4, 1, 2], LookupRule(), (3, 4, 1), id="what followed"),
        pytest.param([1, 2, 8, 1, 2, 9, 1, 2], LookupRule(), (8, 1, 2), id="the first place"),
        pytest.param([1, 2, 8, 1, 2, 9, 1, 2], LAST, (9, 1, 2), id="the last place"),
        pytest.param([2, 3, 7, 1, 2, 3, 8, 1, 2, 3], LookupRule(), (8, 1, 2), id="longest first"),
        pytest.param([5, 5, 5], LookupRule(), (5,), id="a place that overlaps the end"),
        pytest.param([1, 2, 3, 1], LookupRule(), (), id="one token is too short"),
        pytest.param([1, 9, 1], LookupRule(shortest_tokens=1), (9, 1), id="unless asked for"),
        pytest.param([], LookupRule(), (), id="no text"),
        pytest.param([7], LookupRule(shortest_tokens=1), (), id="one token alone"),
        pytest.param(
            [0xD800, 0x10FFFF, 3, 0xD800, 0x10FFFF],
            LookupRule(),
            (3, 0xD800, 0x10FFFF),
            id="odd ids",
        ),
    ],
)
def test_drafts_what_followed_the_last_tokens_before(
    context: list[int], rule: LookupRule, drafted: tuple[int, ...]
) -> None:
    assert propose(context, rule, 3) == drafted


def test_the_default_is_what_vllm_is_told() -> None:
    settings = engine_named("vllm").methods["ngram"].settings
    rule = LookupRule()

    assert settings["prompt_lookup_max"] == rule.longest_tokens
    assert settings["prompt_lookup_min"] == rule.shortest_tokens


@given(
    context=st.lists(st.integers(0, 3), max_size=40),
    shortest=st.integers(1, 3),
    more=st.integers(0, 3),
    occurrence=st.sampled_from(Occurrence),
    draft_tokens=st.integers(1, 5),
)
def test_is_the_rule_as_one_says_it(
    context: list[int], shortest: int, more: int, occurrence: Occurrence, draft_tokens: int
) -> None:
    rule = LookupRule(
        longest_tokens=shortest + more, shortest_tokens=shortest, occurrence=occurrence
    )

    assert propose(context, rule, draft_tokens) == slow_propose(context, rule, draft_tokens)
