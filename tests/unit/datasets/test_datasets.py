"""The prompts: read from disk, or refused with file and row."""

from pathlib import Path

import pytest

from specreg.core.errors import DatasetError, UnknownNameError
from specreg.datasets import SETS, Prompt, Wanted, dataset_named
from specreg.datasets._dataset import prompts_sha256
from tests.unit import builders

WANTED = Wanted(root=builders.ROOT, vocabulary=lambda: 768)


def test_the_checksum_depends_on_texts_and_order() -> None:
    one, other, *_ = builders.PROMPTS
    again = Prompt(id=one.id, category=one.category, turns=one.turns)
    assert prompts_sha256([one, other]) == prompts_sha256((again, other))
    assert prompts_sha256([one, other]) != prompts_sha256([other, one])
    assert prompts_sha256([one]) != prompts_sha256([one, other])
    assert len(prompts_sha256([])) == 64


@pytest.mark.parametrize("name", [name for name, one in SETS.items() if one.source])
def test_a_set_that_nobody_prepared_says_how_to(name: str, tmp_path: Path) -> None:
    wanted = Wanted(root=builders.ROOT, vocabulary=lambda: 768, data_dir=tmp_path)
    words = f"dataset '{name}': not prepared on this machine; run specreg prepare {name}"
    with pytest.raises(DatasetError, match=words):
        dataset_named(name).load_prompts(wanted)


def test_a_random_prompt_has_the_length_asked_for_and_stays_as_it_is() -> None:
    prompts = dataset_named("random-7").load_prompts(WANTED)
    assert {len(prompt.token_ids) for prompt in prompts} == {7}
    assert {prompt.category for prompt in prompts} == {"random"}
    assert len(prompts) == len({prompt.token_ids for prompt in prompts}) == 1024
    assert all(0 <= token < 768 for prompt in prompts for token in prompt.token_ids)
    assert prompts[5].token_ids == (444, 676, 502, 576, 657, 83, 368)


def test_long_random_prompts_are_fewer() -> None:
    wanted = Wanted(root=builders.ROOT, vocabulary=lambda: 768)
    assert len(dataset_named("random-1000000").load_prompts(wanted)) == 4


@pytest.mark.parametrize("name", ["random", "random-0", "random-", "random-1k", "toy-128"])
def test_a_length_is_a_number_of_a_set_that_takes_one(name: str) -> None:
    with pytest.raises(UnknownNameError, match="random-1024"):
        dataset_named(name)


def test_the_toy_prompts_interleave_their_five_categories() -> None:
    prompts = dataset_named("toy").load_prompts(WANTED)
    assert len(prompts) == 160
    assert len({prompt.category for prompt in prompts[:5]}) == 5


def test_an_unknown_dataset_is_answered_with_those_there_are() -> None:
    with pytest.raises(UnknownNameError, match="unknown dataset 'toys'; did you mean 'toy'"):
        dataset_named("toys")
