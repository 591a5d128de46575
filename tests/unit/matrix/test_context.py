"""Contexts: what doesn't fit is refused by prompt and turn, what can't be told is said."""

import dataclasses
import functools
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from specreg.core.errors import DatasetError, ModelError
from specreg.engines.wire_format import Form
from specreg.matrix.case import Case
from specreg.matrix.prompts import check_contexts, count_tokens
from tests.unit import builders

TINY = builders.ROOT / "fixtures/models/tiny/target"
SHORT = "Hello."


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with the tiny target and a toy set of one's own."""
    shutil.copytree(TINY, tmp_path / "fixtures/target")
    (tmp_path / "fixtures/prompts").mkdir()
    return tmp_path


def write(root: Path, *prompts: Sequence[str]) -> None:
    """Puts prompts of such turns into the toy set, as `chat-0` and so on."""
    rows = (
        json.dumps({"id": f"chat-{number}", "category": "chat", "turns": turns})
        for number, turns in enumerate(prompts)
    )
    (root / "fixtures/prompts/toy.jsonl").write_text("\n".join(rows))


def case(context_tokens: int = 60, **changes: Any) -> Case:  # noqa: ANN401 - fields of a case
    """A case of two prompts, with a cap of 20 tokens."""
    spec = dataclasses.replace(
        builders.SPEC, target="fixtures/target", max_model_len_tokens=context_tokens
    )
    return dataclasses.replace(builders.CASE, **{"server": spec, "prompts": 2, **changes})


def words(tokens: int) -> str:
    """A text of so many tokens, and of several times as many bytes."""
    text = "honey" * tokens
    per_word = count_tokens(str(TINY), text) / tokens
    assert per_word == int(per_word)
    assert tokens % per_word == 0
    return "honey" * (tokens // int(per_word))


def test_a_prompt_that_just_fits_is_silent_and_one_token_more_is_refused(root: Path) -> None:
    write(root, [SHORT], [words(40)])
    check_contexts(root, [case()])
    with pytest.raises(DatasetError) as error:
        check_contexts(root, [case(59)])
    assert str(error.value) == (
        f"dataset 'toy': prompt 'chat-1' needs 60 tokens with its replies, '{case().id}' has 59,"
        " and 1 of its prompts don't fit; raise max_model_len_tokens to 60, or lower"
        " output_cap_tokens or turns"
    )


def test_each_turn_and_each_reply_before_it_counts(root: Path) -> None:
    write(root, [SHORT], [words(10), words(10), words(10)])
    with pytest.raises(DatasetError, match="needs 90 tokens with its replies"):
        check_contexts(root, [case()])
    check_contexts(root, [case(turns=2)])


def test_prompts_that_the_case_never_sends_may_be_of_any_length(root: Path) -> None:
    write(root, *[[SHORT]] * 4, [words(80)])
    check_contexts(root, [case()])
    with pytest.raises(DatasetError, match="prompt 'chat-4' needs 100 tokens"):
        check_contexts(root, [case(prompts=3)])


def test_a_prompt_of_token_ids_is_as_long_as_they_are_many(root: Path) -> None:
    ids = functools.partial(case, dataset="random-128", form=Form.COMPLETIONS)
    check_contexts(root, [ids(148)])
    with pytest.raises(DatasetError, match="prompt 'random-0' needs 148 tokens"):
        check_contexts(root, [ids(147)])


def test_what_nothing_can_count_is_left_to_the_server(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(root, [SHORT], [words(80)])
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    check_contexts(root, [case()])


@pytest.mark.parametrize("content", [None, "{"])
def test_a_tokenizer_that_is_none_is_named(root: Path, content: str | None) -> None:
    path = root / "fixtures/target/tokenizer.json"
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        count_tokens(str(root / "fixtures/target"), "Hello.")


def test_a_model_that_is_not_there_hides_no_prompt_that_does_not_fit(root: Path) -> None:
    write(root, [SHORT], [words(80)])
    missing = dataclasses.replace(case().server, target="./nowhere")
    with pytest.raises(DatasetError, match="don't fit"):
        check_contexts(root, [dataclasses.replace(case(), server=missing), case()])
    check_contexts(root, [dataclasses.replace(case(), server=missing)])
