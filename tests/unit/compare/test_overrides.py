import pytest

from specreg.compare.pairs import overridden, parse_override
from specreg.core.errors import MatrixError, UnknownNameError, UnsupportedError
from specreg.engines.methods import Tree
from specreg.matrix.case import Case
from tests.unit import builders


def with_overrides(*texts: str, case: Case = builders.CASE) -> Case:
    return overridden(case, [parse_override(text) for text in texts], {"eagle3": "some/head"})


def test_a_setting_takes_the_place_of_the_cases_own() -> None:
    spec = with_overrides("draft_tokens=5", "max_sequences=16", "dtype=bfloat16").server
    assert (spec.draft_tokens, spec.max_sequences, spec.dtype) == (5, 16, "bfloat16")


def test_arguments_and_variables_are_added_to_the_cases_own() -> None:
    case = builders.on_server(engine_args=("--seed", "7"), engine_env=(("OMP", "1"), ("X", "old")))
    spec = with_overrides("engine_args=--foo 'a b'", "engine_env.X=new=er", case=case).server
    assert spec.engine_args == ("--seed", "7", "--foo", "a b")
    assert spec.engine_env == (("OMP", "1"), ("X", "new=er"))


def test_another_method_takes_the_draft_that_the_models_have_for_it() -> None:
    assert with_overrides("method=eagle3").server.draft == "some/head"
    assert with_overrides("method=eagle3", "draft=other/head").server.draft == "other/head"
    assert with_overrides("method=ngram").server.draft is None
    with pytest.raises(UnknownNameError, match="unknown draft of 'toy' for method 'eagle'"):
        with_overrides("method=eagle")
    with pytest.raises(UnknownNameError, match="unknown method 'nogram'; did you mean 'ngram'"):
        with_overrides("method=nogram")


def test_a_tree_goes_with_its_method_and_fits_its_depth() -> None:
    tree = Tree(branches=2, drafted_tokens=6)
    case = builders.on_server(engine="sglang", method="eagle3_tree", tree=tree)
    chain = with_overrides("method=eagle3", case=case)
    assert (chain.server.tree, chain.server.drafted_tokens) == (None, 3)
    with pytest.raises(MatrixError, match=r"override of .*: method 'eagle3_tree' with no tree"):
        with_overrides("method=eagle3_tree", "draft=some/head", case=chain)
    with pytest.raises(MatrixError, match=r"override of .* with draft_tokens = 7 and tree"):
        with_overrides("draft_tokens=7", case=case)


def test_a_case_without_speculation_drafts_nothing() -> None:
    assert with_overrides("method=none").server == builders.PLAIN_SPEC
    assert with_overrides("draft_tokens=5", case=builders.PLAIN_CASE) == builders.PLAIN_CASE


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("draft_tokens", "give KEY=VALUE"),
        ("engine_args=--a 'b", "No closing quotation; give another value, quoted"),
        ("draft_tokens=many", "Expected `int`, got `str`"),
        ("draft_tokens=0", "Expected `int` >= 1"),
        ("engine_env=1", "give KEY=VALUE, or engine_env.NAME"),
        ("dtype.x=1", "give KEY=VALUE, or engine_env.NAME"),
    ],
)
def test_an_override_that_cannot_be_read_is_named(text: str, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        parse_override(text)


@pytest.mark.parametrize("key", ["parallel", "speculation", "tree"])
def test_a_setting_with_several_values_is_none_that_a_side_may_have(key: str) -> None:
    """KEY=VALUE gives one value, so no value of such a setting could be right."""
    with pytest.raises(UnknownNameError, match=f"unknown setting '{key}'"):
        parse_override(f"{key}=1")


def test_an_unknown_setting_is_named_with_those_that_there_are() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'draft_tokens'"):
        parse_override("draft_token=5")
