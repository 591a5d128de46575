"""The rows of the methods, in the words of the engines."""

import pytest

from specreg.core.errors import UnknownNameError
from specreg.engines.methods import (
    BRANCHES,
    DRAFT,
    DRAFT_TOKENS,
    METHODS,
    VERIFIED_TOKENS,
    Tree,
    is_older,
)
from specreg.engines.registry import ENGINES

ROWS = [
    pytest.param(name, engine, id=f"{name}-{engine}")
    for engine, one in ENGINES.items()
    for name in one.methods
]
TREE = Tree(branches=2, drafted_tokens=6)


def test_the_draft_and_its_length_take_their_places() -> None:
    assert ENGINES["vllm"].methods["eagle3"].render("/models/head", 5) == {
        "method": "eagle3",
        "model": "/models/head",
        "num_speculative_tokens": 5,
    }


def test_looking_up_ngrams_names_no_draft() -> None:
    assert ENGINES["vllm"].methods["ngram"].render(None, 3) == {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "prompt_lookup_max": 4,
        "prompt_lookup_min": 2,
    }


def test_engines_have_methods_that_are_known() -> None:
    assert {name for engine in ENGINES.values() for name in engine.methods} == set(METHODS)


@pytest.mark.parametrize(("name", "engine"), ROWS)
def test_a_method_comes_after_an_engines_oldest_version_and_goes_after_it_came(
    name: str, engine: str
) -> None:
    spelling, oldest = ENGINES[engine].methods[name], ENGINES[engine].oldest
    assert not spelling.since or is_older(oldest, spelling.since)
    assert not spelling.until or is_older(spelling.since or oldest, spelling.until)


def test_looking_ahead_may_find_nothing_and_drafts_several_ngrams() -> None:
    assert not METHODS["lookahead"].drafts_every_step


def test_no_speculation_has_no_settings() -> None:
    assert ENGINES["vllm"].methods["none"].render(None, 0) == {}


def test_an_engine_that_lacks_the_method_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="unknown method of engine 'reference' 'eagle3'"):
        ENGINES["reference"].spelling_of("eagle3")


@pytest.mark.parametrize(("name", "engine"), ROWS)
def test_a_row_leaves_no_place_open(name: str, engine: str) -> None:
    tree = TREE if METHODS[name].drafts_trees else None
    rendered = ENGINES[engine].methods[name].render("/models/head", 3, tree)
    places = {DRAFT, DRAFT_TOKENS, VERIFIED_TOKENS, BRANCHES}
    assert not places & set(map(str, rendered.values()))


def test_a_tree_is_as_deep_as_asked_and_counts_its_root() -> None:
    assert ENGINES["sglang"].methods["eagle3_tree"].render("/models/head", 3, TREE) == {
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
    names_one = DRAFT in ENGINES[engine].methods[name].settings.values()
    assert METHODS[name].needs_draft == names_one


@pytest.mark.parametrize(("name", "engine"), ROWS)
def test_a_row_says_how_many_tokens_to_draft_unless_it_is_none(name: str, engine: str) -> None:
    says_it = {DRAFT_TOKENS, VERIFIED_TOKENS} & set(ENGINES[engine].methods[name].settings.values())
    assert bool(says_it) == (name != "none")
