"""Names are the field's words, no metaphors or participles; those of numbers end in their unit."""

import ast
import dataclasses
import importlib
import inspect
import re
import typing
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import msgspec

from tests.unit import builders

METAPHOR = re.compile(
    r"crews?|dockets?|luggage|errands?|outposts?|hunts?|talks?|hearings?|sittings?|foresights?"
    r"|lanes?|desks?|consult(s|ing)?"
)
PARTICIPLE = re.compile(r"begun|told|said|asked|lived")
UNITS = (
    *("_ns", "_ns2", "_h2", "_ms", "_s", "_tokens", "_bytes", "_w", "_mw", "_mj", "_mhz", "_c"),
    *("_frac", "_requests", "_nats", "_gib", "_gb", "_kib", "_min", "_uj", "_j", "_ratio"),
    "minutes",
)
UNITLESS = re.compile(
    r"burstiness|freedom|p_worse|temperature|top_p|waiting"  # numbers of their own kind
    r"|changes|parts|slowed|tolerances|turns"  # shares
    r"|(tpot_)?ratio(_by_category)?"  # times something
    r"|expected|first|judged|last|launches|origin|scale|values?|a|b"  # in the unit of a metric
    r"|at|bad|baseline|expected|interval|mark|reference|share"  # places of a picture
    r"|diamonds|dots|high|least_range|low|step|x_high|x_low"  # and values on its axes
    r"|max|mean|min|stdev|p\d\d"  # in the unit of what is summarised
    r"|_?usual|_?levels?|_deviations|noise|launch_values|_day"  # logarithms and their variances
)


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
            riddle = is_riddle(node.name, METAPHOR) or is_riddle(node.name, PARTICIPLE)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            riddle = not node.name.startswith("_") and is_riddle(node.name, METAPHOR)
        else:
            continue
        if riddle:
            yield f"{path}: {node.name}"


def test_names_are_the_words_of_the_field() -> None:
    folders = ("specreg", "tests", "fixtures", "docs", ".ci")
    paths = [path for name in folders for path in (builders.ROOT / name).rglob("*.py")]
    names = [
        riddle
        for path in [*paths, *builders.ROOT.glob("*.py")]
        for riddle in riddles(path.relative_to(builders.ROOT), path.read_text())
    ]
    assert names == []


def is_float(annotation: object) -> bool:
    """Whether a field holds numbers with fractions: alone, in a row or by name."""
    inside = typing.get_args(annotation)
    if typing.get_origin(annotation) is Callable or int in inside:
        return False
    return annotation is float or any(map(is_float, inside))


def fields() -> Iterator[tuple[str, object]]:
    """Each field of the library and its type; what engines say has names of theirs."""
    for path in sorted((builders.ROOT / "specreg").rglob("*.py")):
        name = ".".join(path.relative_to(builders.ROOT).with_suffix("").parts)
        if name.startswith("specreg.engines.") or name.endswith("__main__"):
            continue
        module = importlib.import_module(name.removesuffix(".__init__"))
        for kind in vars(module).values():
            is_own = inspect.isclass(kind) and kind.__module__ == module.__name__
            if is_own and (dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct)):
                yield from typing.get_type_hints(kind, localns={"httpx": httpx}).items()


def test_a_fraction_says_its_unit() -> None:
    silent = {name for name, kind in fields() if is_float(kind) and not name.endswith(UNITS)}
    assert [name for name in silent if "_per_" not in name and not UNITLESS.fullmatch(name)] == []


def test_a_whole_number_of_time_says_its_unit() -> None:
    """Any other without one counts its noun, or is an ordinal."""
    times = ("time", "timeout", "duration", "latency", "delay", "interval", "age")
    assert [name for name, kind in fields() if kind is int and name.endswith(times)] == []
