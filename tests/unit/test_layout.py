"""The rules of the house that can be read off the source: fixtures, one place to write."""

import ast
import re

from tests.unit import builders

LIBRARY = builders.ROOT / "specreg"
FIXTURES = sorted((builders.ROOT / "fixtures").glob("*.py"))
WRITERS = r"core|engines/pytorch/oracle|matrix/\w+|servers/(launch|provision)"


def test_a_fixture_acquires_yields_and_releases() -> None:
    nodes = [node for path in FIXTURES for node in ast.parse(path.read_text()).body]
    allowed = ast.Import | ast.ImportFrom | ast.Expr
    for function in (node for node in nodes if not isinstance(node, allowed)):
        assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef), ast.unparse(function)
        assert "fixture" in ast.unparse(function.decorator_list[0])
        inside = [node for statement in function.body for node in ast.walk(statement)]
        assert sum(isinstance(node, ast.stmt) for node in inside) <= 9
        assert not any(isinstance(node, ast.For | ast.While | ast.comprehension) for node in inside)
        assert sum(isinstance(node, ast.Yield) for node in inside) <= 2


def test_files_are_written_in_one_place() -> None:
    """Beside core/files.py they are written into a folder of their own, which is whole or gone."""
    writes = re.compile(r"\.write_(text|bytes)\(")
    writers = [
        path.relative_to(LIBRARY)
        for path in LIBRARY.rglob("*.py")
        if writes.search(path.read_text())
    ]
    assert [str(path) for path in writers if not re.match(WRITERS, str(path))] == []
