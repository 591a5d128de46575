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

from specreg.core.errors import DatasetError, ModelError, UnsupportedError
from specreg.datasets.prompts import Prompt
from specreg.engines.wire_format import Form
from specreg.matrix.case import Case
from specreg.matrix.prompts import check_contexts, check_drafts, check_form, count_tokens
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
    on_server = dataclasses.replace(builders.CASE, server=spec)
    return builders.with_request(on_server, **{"prompts": 2, **changes})


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


LONGER = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"


def with_head(root: Path, config: dict[str, Any], **settings: Any) -> Case:  # noqa: ANN401 - as above
    """A case of SGLang with a head of one's own."""
    shutil.copytree(TINY.parent / "eagle3", root / "fixtures/head", dirs_exist_ok=True)
    (root / "fixtures/head/config.json").write_text(json.dumps(config))
    spec = builders.on_server(engine="sglang", method="eagle3", draft="fixtures/head").server
    return dataclasses.replace(builders.CASE, server=dataclasses.replace(spec, **settings))


@pytest.mark.parametrize(
    ("config", "longest_tokens"),
    [
        ({"max_position_embeddings": 2048}, 2048),
        ({"max_position_embeddings": 9999, "model_max_length": 2048}, 2048),
        ({"text_config": {"max_position_embeddings": 2048}, "max_position_embeddings": 9}, 2048),
        ({"max_position_embeddings": 512, "rope_scaling": {"factor": 4.0}}, 2048),
        ({"max_position_embeddings": 512, "rope_parameters": {"factor": 4.0}}, 2048),
        (
            {
                "max_position_embeddings": 2048,
                "rope_scaling": {"factor": 8.0, "rope_type": "llama3"},
            },
            2048,
        ),
        (
            {
                "max_position_embeddings": 2048,
                "rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 512},
            },
            2048,
        ),
    ],
)
def test_sglang_is_not_started_with_a_context_that_the_draft_lacks(
    root: Path, config: dict[str, Any], longest_tokens: int
) -> None:
    check_drafts(root, [with_head(root, config, max_model_len_tokens=longest_tokens)])
    with pytest.raises(UnsupportedError) as error:
        check_drafts(root, [with_head(root, config, max_model_len_tokens=longest_tokens + 1)])
    assert str(error.value).startswith(
        f"max_model_len_tokens = {longest_tokens + 1}: the draft's context has only"
        f" {longest_tokens} tokens"
    )
    assert f'engine_env = {{ {LONGER} = "1" }}' in str(error.value)


def test_a_context_that_the_draft_lacks_can_be_allowed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"max_position_embeddings": 2048}
    too_long = with_head(root, config, max_model_len_tokens=4096)
    allowed = with_head(root, config, max_model_len_tokens=4096, engine_env=((LONGER, "1"),))
    check_drafts(root, [allowed])
    monkeypatch.setenv(LONGER, "true")
    check_drafts(root, [too_long])
    monkeypatch.setenv(LONGER, "0")
    with pytest.raises(UnsupportedError):
        check_drafts(root, [too_long])


def test_a_draft_is_not_checked_for_what_is_not_known_or_harmless(root: Path) -> None:
    unstated = with_head(root, {"architectures": ["Other"]}, max_model_len_tokens=4096)
    check_drafts(root, [unstated])
    missing = builders.on_server(engine="sglang", draft="fixtures/none")
    # vLLM drafts no further than the context of its draft.
    on_vllm = builders.on_server(engine="vllm", draft="fixtures/head", max_model_len_tokens=2**20)
    without = builders.on_server(engine="sglang", method="none", draft=None)
    check_drafts(root, [missing, on_vllm, without])


@pytest.mark.parametrize(
    ("engine", "form", "words"),
    [
        ("tensorrt_llm", Form.CHAT, 'set form = "completions"'),
        ("reference", Form.COMPLETIONS, "'reference' can't end at a text"),
        ("triton", Form.COMPLETIONS, "'triton' can't end at a text"),
    ],
)
def test_texts_to_continue_are_neither_a_chat_nor_for_an_engine_that_never_stops(
    engine: str, form: Form, words: str
) -> None:
    server = builders.on_server(engine=engine, method="none", draft=None).server
    continued = builders.with_request(
        dataclasses.replace(builders.CASE, server=server), dataset="gsm8k-5shot", form=form
    )
    prompts = [Prompt(id="one", category="math", turns=("Question: 1?\nAnswer:",))]
    with pytest.raises(DatasetError, match=words):
        check_form(continued, prompts)
    fitting = builders.with_request(
        dataclasses.replace(
            continued,
            server=builders.on_server(engine="tensorrt_llm", method="none", draft=None).server,
        ),
        form=Form.COMPLETIONS,
    )
    check_form(fitting, prompts)
