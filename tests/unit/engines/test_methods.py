"""The rows of the methods, in the words of the engines."""

import re
from pathlib import Path

import pytest

from specreg.core.errors import UnknownNameError
from specreg.engines.methods import BRANCHES, DRAFT, DRAFT_TOKENS, METHODS, VERIFIED_TOKENS, Tree
from specreg.engines.registry import ENGINES
from tests.unit import builders

ROWS = [
    pytest.param(name, engine, id=f"{name}-{engine}")
    for engine, method in ENGINES.items()
    for name in method.methods
]
TREE = Tree(branches=2, drafted_tokens=6)


def test_engines_have_methods_that_are_known() -> None:
    assert {name for engine in ENGINES.values() for name in engine.methods} == set(METHODS)


def test_what_was_seen_running_is_a_method_with_version_and_date() -> None:
    for engine in ENGINES.values():
        assert set(engine.seen) <= set(engine.methods)
        for words in engine.seen.values():
            assert re.fullmatch(r"(measured|started) [\w.]+, \d{4}-\d\d-\d\d", words)


def test_an_engine_that_lacks_the_method_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="unknown method of engine 'reference' 'eagle3'"):
        ENGINES["reference"].spelling_of("eagle3")


@pytest.mark.parametrize(("name", "engine"), ROWS)
def test_a_row_is_filled_in_and_reaches_the_command_line(name: str, engine: str) -> None:
    method = METHODS[name]
    spelling = ENGINES[engine].methods[name]
    tree = Tree(branches=2, drafted_tokens=776) if method.drafts_trees else None
    rendered = spelling.render("/models/draft", 776, tree)
    start = builders.start_of(
        engine=engine,
        method=name,
        draft="/models/draft",
        draft_tokens=776,
        tree=tree,
        engine_args=(),
    )
    files = ENGINES[engine].files(*start)
    words = " ".join((*ENGINES[engine].command(Path("python"), *start), *files.values()))
    assert not {DRAFT, DRAFT_TOKENS, VERIFIED_TOKENS, BRANCHES} & set(map(str, rendered.values()))
    assert ("/models/draft" in words) == method.needs_draft
    # As drafted, or with the token that they continue.
    assert ("776" in words or "777" in words) == (name != "none")


def test_a_tree_is_as_deep_as_asked_and_counts_its_root() -> None:
    assert ENGINES["sglang"].methods["eagle3_tree"].render("/models/head", 3, TREE) == {
        "speculative-algorithm": "EAGLE3",
        "speculative-draft-model-path": "/models/head",
        "speculative-num-steps": 3,
        "speculative-eagle-topk": 2,
        "speculative-num-draft-tokens": 7,
    }


@pytest.mark.parametrize(
    ("method", "version", "is_there"),
    [
        ("medusa", "0.32.0", True),
        ("medusa", "0.33.0", False),
        ("medusa", "", True),  # of a build it is known once it is installed
        ("xpress", "0.32.0", False),
        ("xpress", "0.33.0", True),
        ("xpress", "", True),
        ("eagle3", "0.33.0", True),
    ],
)
def test_a_spelling_knows_the_versions_that_have_the_method(
    method: str, version: str, *, is_there: bool
) -> None:
    assert ENGINES["vllm"].spelling_of(method).is_in(version) is is_there
