"""The source of the library as syntax trees."""

import ast
from collections.abc import Iterator

from tests.unit import builders

LIBRARY = builders.ROOT / "specreg"


def trees(naming: str = "") -> Iterator[tuple[str, ast.Module]]:
    """The modules whose source has a text in it, by their paths."""
    for path in sorted(LIBRARY.rglob("*.py")):
        source = path.read_text()
        if naming in source:
            yield str(path.relative_to(LIBRARY)), ast.parse(source)


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
