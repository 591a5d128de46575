"""The prompts: read from disk, or refused with file and row."""

from collections import Counter
from pathlib import Path

import pytest

from specreg.datasets import SETS, Prompt, Wanted, dataset_named
from specreg.datasets._dataset import load_prompt_lines, prompts_sha256
from specreg.errors import DatasetError, UnknownNameError
from tests.unit import builders

ROW = b'{"id": "a", "category": "chat", "turns": ["Hello.", "Again."]}'
WANTED = Wanted(root=builders.ROOT, vocabulary=lambda: 768)
OTHER = b'{"id": "b", "category": "math", "turns": ["2 + 2?"]}'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a prompt file lies."""
    return tmp_path / "prompts.jsonl"


def test_rows_are_read_in_their_order(path: Path) -> None:
    path.write_bytes(ROW + b"\n" + OTHER + b"\n")
    assert load_prompt_lines(path) == (
        Prompt(id="a", category="chat", turns=("Hello.", "Again.")),
        Prompt(id="b", category="math", turns=("2 + 2?",)),
    )


@pytest.mark.parametrize(
    ("row", "words"),
    [
        pytest.param(b"{", "a row needs id, category and turns", id="cut-off"),
        pytest.param(b"", "a row needs id, category and turns", id="blank"),
        pytest.param(b'{"id": "b", "turns": ["x"]}', "category", id="no-category"),
        pytest.param(b'{"id": "b", "category": "c", "turns": "x"}', "turns", id="turns-no-list"),
        pytest.param(b'{"id": "b", "category": "c", "turn": ["x"]}', "turn", id="unknown-field"),
        pytest.param(b'{"id": "b", "category": "c", "turns": []}', "empty turn", id="no-turn"),
        pytest.param(
            b'{"id": "b", "category": "c", "turns": [" "]}', "empty turn", id="blank-turn"
        ),
        pytest.param(b'{"id": "\xff", "category": "c", "turns": ["x"]}', "a row", id="not-utf8"),
    ],
)
def test_a_wrong_row_is_refused_with_its_place(path: Path, row: bytes, words: str) -> None:
    path.write_bytes(ROW + b"\n" + row + b"\n")
    with pytest.raises(DatasetError) as error:
        load_prompt_lines(path)
    assert str(error.value).startswith(f"{path}:2: ")
    assert words in str(error.value)


def test_two_rows_of_one_id_are_refused(path: Path) -> None:
    path.write_bytes(ROW + b"\n" + ROW + b"\n")
    with pytest.raises(DatasetError, match="two rows have the same id; give each its own"):
        load_prompt_lines(path)


def test_any_first_prompts_of_the_toy_set_are_spread_evenly_over_its_categories() -> None:
    categories = [prompt.category for prompt in dataset_named("toy").load_prompts(WANTED)]
    for first in range(len(set(categories)), len(categories) + 1):
        counted = Counter(categories[:first])
        assert counted.keys() == set(categories)
        assert max(counted.values()) - min(counted.values()) <= 1


def test_a_missing_file_is_named(path: Path) -> None:
    with pytest.raises(DatasetError, match=f"prompt file '{path}': No such file"):
        load_prompt_lines(path)


def test_the_checksum_depends_on_texts_and_order() -> None:
    one, other, *_ = builders.PROMPTS
    again = Prompt(id=one.id, category=one.category, turns=one.turns)
    assert prompts_sha256([one, other]) == prompts_sha256((again, other))
    assert prompts_sha256([one, other]) != prompts_sha256([other, one])
    assert prompts_sha256([one]) != prompts_sha256([one, other])
    assert len(prompts_sha256([])) == 64


@pytest.mark.parametrize("name", sorted(set(SETS) - {"toy"}))
def test_a_set_is_there_or_says_how_to_prepare_it(name: str, tmp_path: Path) -> None:
    wanted = Wanted(root=builders.ROOT, vocabulary=lambda: 768, data_dir=tmp_path)
    if name.startswith("random-"):
        assert dataset_named(name).load_prompts(wanted)
        return
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
