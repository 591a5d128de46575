"""The rows of the methods, in the words of the engines."""

import pytest

from specreg.core.errors import UnknownNameError
from specreg.engines.methods import (
    BRANCHES,
    DRAFT,
    DRAFT_TOKENS,
    METHODS,
    VERIFIED_TOKENS,
    Method,
    Tree,
    is_older,
)
from specreg.engines.registry import ENGINES

ROWS = [
    pytest.param(name, engine, id=f"{name}-{engine}")
    for name, method in METHODS.items()
    for engine in method.spelling
]
TREE = Tree(branches=2, drafted_tokens=6)


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


@pytest.mark.parametrize("method", METHODS.values(), ids=lambda method: method.name)
def test_a_method_learns_on_engines_that_have_it(method: Method) -> None:
    assert method.learns_on <= method.spelling.keys()


@pytest.mark.parametrize("method", METHODS.values(), ids=lambda method: method.name)
def test_a_method_came_to_engines_that_have_it_after_their_oldest_version(method: Method) -> None:
    for name, version in method.since.items():
        assert ENGINES[name].spelling in method.spelling
        assert is_older(ENGINES[name].oldest, version)


@pytest.mark.parametrize("method", METHODS.values(), ids=lambda method: method.name)
def test_a_method_went_from_engines_that_had_it(method: Method) -> None:
    for name, version in method.until.items():
        assert ENGINES[name].spelling in method.spelling
        assert is_older(method.since.get(name, ENGINES[name].oldest), version)


def test_looking_ahead_may_find_nothing_and_drafts_several_ngrams() -> None:
    assert not METHODS["lookahead"].drafts_every_step


def test_no_speculation_has_no_settings() -> None:
    assert METHODS["none"].settings("vllm", None, 0) == {}


def test_an_engine_that_lacks_the_method_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="unknown engine for method 'eagle3' 'tgi'; known: "):
        METHODS["eagle3"].settings("tgi", "/models/head", 3)


@pytest.mark.parametrize(("name", "engine"), ROWS)
def test_a_row_leaves_no_place_open(name: str, engine: str) -> None:
    tree = TREE if METHODS[name].drafts_trees else None
    rendered = METHODS[name].settings(engine, "/models/head", 3, tree)
    places = {DRAFT, DRAFT_TOKENS, VERIFIED_TOKENS, BRANCHES}
    assert not places & set(map(str, rendered.values()))


def test_a_tree_is_as_deep_as_asked_and_counts_its_root() -> None:
    assert METHODS["eagle3_tree"].settings("sglang", "/models/head", 3, TREE) == {
        "speculative-algorithm": "EAGLE3",
        "speculative-draft-model-path": "/models/head",
        "speculative-num-steps": 3,
        "speculative-eagle-topk": 2,
        "speculative-num-draft-tokens": 7,
    }
    assert {name for name, method in METHODS.items() if method.drafts_trees} == {
        "draft_model_tree",
        "eagle_tree",
        "eagle3_tree",
    }


@pytest.mark.parametrize(("name", "engine"), ROWS)
def test_a_row_needs_a_draft_just_when_it_names_one(name: str, engine: str) -> None:
    names_one = DRAFT in METHODS[name].spelling[engine].values()
    assert METHODS[name].needs_draft == names_one


@pytest.mark.parametrize(("name", "engine"), ROWS)
def test_a_row_says_how_many_tokens_to_draft_unless_it_is_none(name: str, engine: str) -> None:
    says_it = {DRAFT_TOKENS, VERIFIED_TOKENS} & set(METHODS[name].spelling[engine].values())
    assert bool(says_it) == (name != "none")
