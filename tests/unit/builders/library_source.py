"""The source of the library as syntax trees."""

import ast
from collections.abc import Iterator

from tests.unit import builders

LIBRARY = builders.ROOT / "specreg"


def trees() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(LIBRARY.rglob("*.py")):
        yield str(path.relative_to(LIBRARY)), ast.parse(path.read_text())


def texts(tree: ast.Module) -> Iterator[str]:
    """What stands in strings that aren't docstrings."""
    docstrings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and node not in docstrings
            and isinstance(node.value, str)
        ):
            yield node.value
