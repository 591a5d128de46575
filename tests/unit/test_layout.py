"""The rules of the house that can be read off the source: fixtures, one place to write."""

import ast
import re

from tests.unit import builders

LIBRARY = builders.ROOT / "specreg"
FIXTURES = sorted((builders.ROOT / "fixtures").glob("*.py"))
WRITERS = r"core|engines/pytorch/oracle|matrix/\w+|servers/(launch|provision)"


def test_a_fixture_acquires_yields_and_releases() -> None:
    nodes = [node for path in FIXTURES for node in ast.parse(path.read_text()).body]
    rest = ast.Import | ast.ImportFrom | ast.Expr
    for function in (node for node in nodes if not isinstance(node, rest)):
        assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef), ast.unparse(function)
        assert "fixture" in ast.unparse(function.decorator_list[0])
        inside = [one for statement in function.body for one in ast.walk(statement)]
        assert sum(isinstance(one, ast.stmt) for one in inside) <= 9
        assert not any(isinstance(one, ast.For | ast.While | ast.comprehension) for one in inside)
        assert sum(isinstance(one, ast.Yield) for one in inside) <= 2


def test_files_are_written_in_one_place() -> None:
    """Beside core/files.py they are written into a folder of their own, which is whole or gone."""
    writes = re.compile(r"\.write_(text|bytes)\(")
    found = [
        path.relative_to(LIBRARY)
        for path in LIBRARY.rglob("*.py")
        if writes.search(path.read_text())
    ]
    assert [str(path) for path in found if not re.match(WRITERS, str(path))] == []
