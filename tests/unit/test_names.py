"""The names of numbers end in their unit."""

import dataclasses
import importlib
import inspect
import re
import typing
from collections.abc import Callable, Iterator

import httpx
import msgspec

from tests.unit import builders

UNITS = (
    *("_ns", "_ns2", "_h2", "_ms", "_s", "_tokens", "_bytes", "_w", "_mw", "_mj", "_mhz", "_c"),
    *("_frac", "_percent", "_requests", "_nats", "_gib", "_gb", "_kib", "_min", "_uj", "_j"),
    *("_ratio", "minutes"),
)
UNITLESS = re.compile(
    r"burstiness|(between_)?freedom|p_worse|temperature|top_p|waiting"  # numbers of their own kind
    r"|refused"  # parameters of sampling, each with a unit of its own
    r"|counters|further"  # an engine's counters, whose names have their units
    r"|changes|parts|slowed|tolerances|turns"  # shares
    r"|(tpot_)?ratio(_by_category)?"  # times something
    r"|expected|first|judged|last|launches|origin|scale|values?|a|b"  # in the unit of a metric
    r"|at|bad|baseline|expected|interval|mark|reference|share|start"  # places of a picture
    r"|contains|diamonds|dots|high|least_range|low|step|x_high|x_low"  # and values on its axes
    r"|max|mean|min|stdev|p\d\d"  # in the unit of what is summarised
    r"|_?usual|_?levels?|_?deviations|noise|unshared_variance"  # logarithms and their variances
    r"|launch_values|control_values"
    r"|logs|control_logs|own|shared|size|tolerated|lowest|highest|wanders"
)


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
