"""The catalogue has each reason that the library gives, with its facts, and no other."""

import ast
import string
from collections.abc import Iterator

import pytest

from specreg.core.catalogue import CATALOGUE, INVALID
from specreg.core.errors import InvalidMeasurementError
from specreg.core.families import ALL
from specreg.core.reasons import Reason
from tests.unit.builders.library_source import texts, trees

MEASURES = {"acceptance", "load", "measurement"}


def reasons_in(tree: ast.AST) -> Iterator[tuple[str, set[str]]]:
    """The code and the names of the facts of each reason that a module makes."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        is_reason = ast.unparse(node.func) in {"Reason.of", "InvalidMeasurementError"}
        code = node.args[0]
        if is_reason and isinstance(code, ast.Constant):
            yield str(code.value), {keyword.arg or "" for keyword in node.keywords}


def facts_of(code: str) -> set[str]:
    entry = CATALOGUE[code]
    fields = string.Formatter().parse(f"{entry.sentence} {entry.remedy}")
    return {name for _, name, _, _ in fields if name}


GIVEN = [(module, *reason) for module, tree in trees() for reason in reasons_in(tree)]


@pytest.mark.parametrize(("module", "code", "facts"), GIVEN)
def test_a_reason_has_an_entry_and_all_its_facts(module: str, code: str, facts: set[str]) -> None:
    assert code in CATALOGUE, module
    assert facts == facts_of(code), module


def test_each_entry_is_given_somewhere() -> None:
    said = {
        word
        for module, tree in trees()
        if not str(module).endswith("catalogue.py")
        for text in texts(tree)
        for word in text.split(": ")[:1]
    }
    assert len(GIVEN) > 100
    assert [code for code in CATALOGUE if code not in said] == []


def test_a_code_that_is_asked_for_has_an_entry() -> None:
    asked = {
        ast.literal_eval(code)
        for _, tree in trees("has_code(")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".has_code")
        for code in node.args
    }
    assert "MACHINE_MOVED" in asked
    assert asked - set(CATALOGUE) == set()


def test_what_a_measurement_raises_spoils_whole_families() -> None:
    """A reason that spoils only the check that gives it would leave bad figures valid."""
    raised = {code for module, code, _ in GIVEN if MEASURES & set(str(module).split("/"))}
    assert raised & set(INVALID)
    assert [code for code in raised if code in INVALID and not INVALID[code].spoils] == []


def test_a_code_in_capitals_is_shown_and_another_is_not() -> None:
    hung = Reason.of("HUNG", silent_s=60.0)
    unused = Reason.of("position_unused", position=3)
    assert str(hung) == "HUNG: no token came for 60 s; look at the server's log"
    assert hung.headline == "HUNG: no token came for 60 s"
    assert str(unused).startswith("the baseline never accepted a draft at position 3")


def test_the_advice_stays_where_a_fact_is_a_whole_log() -> None:
    error = InvalidMeasurementError("HTTP_ERROR", answer="x" * 9000)
    assert len(str(error)) < 5000
    assert str(error).endswith("; look at the server's log")
    assert error.reason == Reason.of("HTTP_ERROR", answer="x" * 9000)


def test_an_unknown_cause_spoils_everything() -> None:
    assert CATALOGUE["REQUEST_FAILED"].spoils == ALL
