"""Names are the field's words: nothing is called by a metaphor, or a type by a participle."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit import builders

METAPHOR = re.compile(
    r"crews?|dockets?|luggage|errands?|outposts?|hunts?|talks?|hearings?|sittings?|foresights?"
    r"|lanes?|desks?|consult(s|ing)?"
)
PARTICIPLE = re.compile(r"begun|told|said|asked|lived")


def is_riddle(name: str, pattern: re.Pattern[str]) -> bool:
    """Whether a word of `snake_case` or `CamelCase` is in a pattern."""
    parts = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)
    return any(pattern.fullmatch(part.lower()) for part in parts)


def riddles(path: Path, source: str) -> Iterator[str]:
    """List the names of a module, its classes and public functions that are riddles."""
    if is_riddle(path.stem, METAPHOR):
        yield str(path)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            found = is_riddle(node.name, METAPHOR) or is_riddle(node.name, PARTICIPLE)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found = not node.name.startswith("_") and is_riddle(node.name, METAPHOR)
        else:
            continue
        if found:
            yield f"{path}: {node.name}"


def test_names_are_the_words_of_the_field() -> None:
    folders = ("specreg", "tests", "fixtures", "docs", ".ci")
    paths = [path for name in folders for path in (builders.ROOT / name).rglob("*.py")]
    found = [
        riddle
        for path in [*paths, *builders.ROOT.glob("*.py")]
        for riddle in riddles(path.relative_to(builders.ROOT), path.read_text())
    ]
    assert found == []


@pytest.mark.parametrize(
    ("path", "source", "found"),
    [
        ("docket.py", "", ["docket.py"]),
        ("a.py", "class Told: ...", ["a.py: Told"]),
        ("a.py", "class _CaseLanes: ...", ["a.py: _CaseLanes"]),
        ("a.py", "async def pack_luggage(): ...", ["a.py: pack_luggage"]),
        ("a.py", "def _lane(): said = planes(talkative)", []),
    ],
)
def test_a_riddle_is_found(path: str, source: str, found: list[str]) -> None:
    assert list(riddles(Path(path), source)) == found
