"""The rules of the house that can be read off the source: units, fixtures, one place to write."""

import ast
import dataclasses
import importlib
import inspect
import re
import typing
from collections.abc import Callable, Iterator

import httpx
import msgspec

from tests.unit import builders

LIBRARY = builders.ROOT / "specreg"
FIXTURES = sorted((builders.ROOT / "fixtures").glob("*.py"))
MODULES = [path for path in sorted(LIBRARY.rglob("*.py")) if path.stem != "__main__"]
UNITS = (
    *("_ns", "_ns2", "_ms", "_s", "_tokens", "_bytes", "_w", "_mw", "_mj", "_mhz", "_c", "_frac"),
    *("_requests", "_nats", "_gib", "_gb", "_kib", "_min", "_uj", "_j", "_ratio", "minutes"),
)
UNITLESS = re.compile(
    r"burstiness|freedom|p_worse|temperature|waiting"  # numbers of their own kind
    r"|changes|slowed|tolerances|turns|(tpot_)?ratio(_by_category)?"  # shares, or times something
    r"|expected|first|judged|last|launches|origin|scale|values?|a|b"  # in the unit of a metric
    r"|max|mean|min|stdev|p\d\d"  # in the unit of what is summarised
)
WRITERS = r"core|engines/pytorch/oracle|many/desk|matrix/\w+|servers/(environments|start)"


def is_float(annotation: object) -> bool:
    """Whether a field holds numbers with fractions: alone, in a row or by name."""
    inside = typing.get_args(annotation)
    if typing.get_origin(annotation) is Callable or int in inside:
        return False
    return annotation is float or any(map(is_float, inside))


def fields() -> Iterator[tuple[str, object]]:
    """Each field of the library and its type; what engines say has names of theirs."""
    for path in MODULES:
        if path.is_relative_to(LIBRARY / "engines"):
            continue
        name = ".".join(path.relative_to(LIBRARY.parent).with_suffix("").parts)
        module = importlib.import_module(name.removesuffix(".__init__"))
        for kind in vars(module).values():
            ours = inspect.isclass(kind) and kind.__module__ == module.__name__
            if ours and (dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct)):
                yield from typing.get_type_hints(kind, localns={"httpx": httpx}).items()


def test_a_fraction_says_its_unit() -> None:
    silent = {name for name, said in fields() if is_float(said) and not name.endswith(UNITS)}
    assert [name for name in silent if "_per_" not in name and not UNITLESS.fullmatch(name)] == []


def test_a_whole_number_of_time_says_its_unit() -> None:
    """Any other without one counts its noun, or is an ordinal."""
    times = ("time", "timeout", "duration", "latency", "delay", "interval", "age")
    assert [name for name, said in fields() if said is int and name.endswith(times)] == []


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
    found = [path.relative_to(LIBRARY) for path in MODULES if writes.search(path.read_text())]
    assert [str(path) for path in found if not re.match(WRITERS, str(path))] == []
