"""The rows of the methods, in the words of the engines."""

import pytest

from specreg.errors import UnknownNameError
from specreg.methods import DRAFT, DRAFT_TOKENS, METHODS, VERIFIED_TOKENS

ROWS = [
    pytest.param(name, engine, id=f"{name}-{engine}")
    for name, method in METHODS.items()
    for engine in method.spelling
]


def test_the_draft_and_its_length_take_their_places() -> None:
    assert METHODS["eagle3"].settings("vllm", "/models/head", 5) == {
        "method": "eagle3",
        "model": "/models/head",
        "num_speculative_tokens": 5,
    }


def test_looking_up_ngrams_names_no_draft() -> None:
    assert METHODS["ngram"].settings("vllm", None, 3) == {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "prompt_lookup_max": 4,
        "prompt_lookup_min": 2,
    }


def test_no_speculation_has_no_settings() -> None:
    assert METHODS["none"].settings("vllm", None, 0) == {}


def test_an_engine_that_lacks_the_method_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="unknown engine for method 'eagle3' 'tgi'; known: "):
        METHODS["eagle3"].settings("tgi", "/models/head", 3)


@pytest.mark.parametrize(("name", "engine"), ROWS)
def test_a_row_leaves_no_place_open(name: str, engine: str) -> None:
    rendered = METHODS[name].settings(engine, "/models/head", 3)
    assert not {DRAFT, DRAFT_TOKENS, VERIFIED_TOKENS} & set(map(str, rendered.values()))


@pytest.mark.parametrize(("name", "engine"), ROWS)
def test_a_row_needs_a_draft_just_when_it_names_one(name: str, engine: str) -> None:
    names_one = DRAFT in METHODS[name].spelling[engine].values()
    assert METHODS[name].needs_draft == names_one


@pytest.mark.parametrize(("name", "engine"), ROWS)
def test_a_row_says_how_many_tokens_to_draft_unless_it_is_none(name: str, engine: str) -> None:
    says_it = {DRAFT_TOKENS, VERIFIED_TOKENS} & set(METHODS[name].spelling[engine].values())
    assert bool(says_it) == (name != "none")
