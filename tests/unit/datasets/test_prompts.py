"""Prompts: in an order that is spread over the categories."""

import collections

from hypothesis import given, settings
from hypothesis import strategies as st

from specreg.datasets.prompts import Prompt, interleaved


def prompts_of(categories: list[str]) -> list[Prompt]:
    """A prompt of each category named."""
    return [
        Prompt(id=str(number), category=category, turns=("x",))
        for number, category in enumerate(categories)
    ]


def test_categories_take_turns_for_as_long_as_they_have_any() -> None:
    prompts = interleaved(prompts_of(["b", "b", "b", "a", "c", "c"]))
    assert [prompt.category for prompt in prompts] == ["b", "a", "c", "b", "c", "b"]
    assert [prompt.id for prompt in prompts] == ["0", "3", "4", "1", "5", "2"]


@settings(deadline=None)
@given(categories=st.lists(st.sampled_from("abc")), first=st.integers(0, 20))
def test_any_first_prompts_are_spread_evenly(categories: list[str], first: int) -> None:
    prompts = prompts_of(categories)
    spread = interleaved(prompts)
    assert sorted(spread, key=lambda one: int(one.id)) == prompts
    had = collections.Counter(prompt.category for prompt in spread[:first])
    there = collections.Counter(categories)
    most = max(had.values(), default=0)
    assert all(count >= min(most - 1, there[one]) for one, count in had.items())
    assert all(had[one] >= min(most - 1, there[one]) for one in there)


@settings(deadline=None)
@given(categories=st.lists(st.sampled_from("abc")))
def test_the_order_is_stable_under_itself(categories: list[str]) -> None:
    once = interleaved(prompts_of(categories))
    assert interleaved(once) == once
