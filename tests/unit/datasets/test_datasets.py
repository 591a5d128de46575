"""Prompts: loaded from disk or drawn, spread over their categories, and what of a reply is kept."""

import collections
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specreg.core.errors import DatasetError, UnknownNameError
from specreg.datasets.prepare import load_prompts
from specreg.datasets.prompts import REPLIES, Prompt, interleaved
from specreg.datasets.table import SETS, dataset_named
from tests.unit import builders


def load(name: str, data_dir: Path | None = None) -> tuple[Prompt, ...]:
    """The prompts of a set, for a target of 768 token ids."""
    prompt_set = dataset_named(name)
    return load_prompts(prompt_set, root=builders.ROOT, vocabulary=lambda: 768, data_dir=data_dir)


@pytest.mark.parametrize("name", [name for name, prompt_set in SETS.items() if prompt_set.licence])
def test_an_unprepared_set_names_the_command_that_prepares_it(name: str, tmp_path: Path) -> None:
    remedy = f"run specreg prepare {name}"
    if not dataset_named(name).repo:
        remedy = f"get .* and {remedy} --from FILE"
    words = f"^dataset '{name}': not prepared on this machine; {remedy}$"
    with pytest.raises(DatasetError, match=words):
        load(name, tmp_path)


def test_a_random_prompt_has_the_length_asked_for_and_stays_as_it_is() -> None:
    prompts = load("random-7")
    assert {len(prompt.token_ids) for prompt in prompts} == {7}
    assert {prompt.category for prompt in prompts} == {"random"}
    assert len(prompts) == len({prompt.token_ids for prompt in prompts}) == 1024
    assert all(0 <= token < 768 for prompt in prompts for token in prompt.token_ids)
    assert prompts[5].token_ids == (444, 676, 502, 576, 657, 83, 368)


def test_toy_conversations_are_of_three_turns_of_the_toy_prompts() -> None:
    single = load("toy")
    talks = load("toy-turns")
    known = {(prompt.category, prompt.turns[0]) for prompt in single}
    turns = [(talk.category, turn) for talk in talks for turn in talk.turns]
    assert {len(talk.turns) for talk in talks} == {3}
    assert len(set(turns)) == len(turns) == 120
    assert known >= {*turns}


def test_a_length_is_a_number_of_a_set_that_takes_one_and_that_a_model_reads() -> None:
    for name in ("random", "random-0", "random-", "random-1k", "toy-128"):
        with pytest.raises(UnknownNameError, match="random-1024"):
            dataset_named(name)
    with pytest.raises(DatasetError, match=r"^dataset 'random-99999999': .*at most 6 digits"):
        dataset_named("random-99999999")


@settings(deadline=None)
@given(categories=st.lists(st.sampled_from("abc")), first=st.integers(0, 20))
def test_any_first_prompts_are_spread_evenly(categories: list[str], first: int) -> None:
    prompts = [
        Prompt(id=str(n), category=category, turns=("x",)) for n, category in enumerate(categories)
    ]
    spread = interleaved(prompts)
    assert sorted(spread, key=lambda prompt: int(prompt.id)) == prompts
    had = collections.Counter(prompt.category for prompt in spread[:first])
    there = collections.Counter(categories)
    most = max(had.values(), default=0)
    assert all(count >= min(most - 1, there[category]) for category, count in had.items())
    assert all(had[category] >= min(most - 1, there[category]) for category in there)
    assert interleaved(spread) == spread


@pytest.mark.parametrize(
    ("name", "reply", "kept_reply"),
    [
        ("as_is", " <think>\nHm.</think>\n\nYes. ", " <think>\nHm.</think>\n\nYes. "),
        ("stripped", "\n Yes.\n\tNo. \n", "Yes.\n\tNo."),
        ("without_thinking", "<think>\nHm.</think>\n\nYes. ", "Yes. "),
        ("without_thinking", "Hm.</think>Yes.", "Yes."),  # the template began it
        ("without_thinking", "a</think>b</think>c", "c"),
        ("without_thinking", " Yes.\n", " Yes.\n"),
        ("without_thinking", "Hm.</think>", ""),
        ("without_thinking", "\n<think>\nHm, ", ""),
    ],
)
def test_what_enters_the_history(name: str, reply: str, kept_reply: str) -> None:
    assert REPLIES[name](reply) == kept_reply
