"""TensorRT-LLM's argument classes, as `fixtures/recordings/read_llm_args.py` has read them."""

import ast
import json
from collections.abc import Iterator, Mapping
from typing import Any

from tests.unit.builders.cases import ROOT

READ = json.loads((ROOT / "fixtures/recordings/tensorrt_llm/llm_args.json").read_text())
_CLASSES: Mapping[str, Mapping[str, str]] = READ["classes"]
_TYPES: Mapping[str, str] = READ["types"]
_LEAST = {"PositiveInt": 1, "NonNegativeInt": 0, "NonNegativeFloat": 0.0}
_PLAIN: Mapping[str, type | tuple[type, ...]] = {
    "str": str,
    "Path": str,
    "bool": bool,
    "int": int,
    "PositiveInt": int,
    "NonNegativeInt": int,
    "float": (int, float),
    "NonNegativeFloat": (int, float),
}


def unfit_options(options: Mapping[str, Any], kind: str = "TorchLlmArgs") -> Iterator[str]:
    """Yield each option that a class doesn't have, or whose value isn't of its type."""
    fields = _CLASSES[kind]
    for name, value in options.items():
        if name not in fields:
            yield f"{kind} has no {name}"
        elif not _fits(value, ast.parse(fields[name], mode="eval").body):
            yield f"{kind}.{name} is {fields[name]}, and not {value!r}"


def _fits(value: object, kind: ast.expr) -> bool:
    """Return whether a value is of a type."""
    match kind:
        case ast.Name(id=name):
            return _fits_name(value, name)
        case ast.Constant(value=None):
            return value is None
        case ast.BinOp(left=left, right=right):
            return _fits(value, left) or _fits(value, right)
        case ast.Subscript(value=ast.Name(id=name), slice=inner):
            return _fits_generic(value, name, _parts_of(inner))
    raise ValueError(ast.unparse(kind))


def _parts_of(inner: ast.expr) -> list[ast.expr]:
    return inner.elts if isinstance(inner, ast.Tuple) else [inner]


def _fits_name(value: object, name: str) -> bool:
    if name in _TYPES:
        return _fits(value, ast.parse(_TYPES[name], mode="eval").body)
    if name in _CLASSES:
        return isinstance(value, dict) and not list(unfit_options(value, name))
    if name not in _PLAIN:
        raise ValueError(name)
    # A bool is an int in Python, and none in YAML.
    if isinstance(value, bool) != (name == "bool"):
        return False
    if not isinstance(value, _PLAIN[name]):
        return False
    return name not in _LEAST or value >= _LEAST[name]  # type: ignore[operator]


def _fits_generic(value: object, name: str, parts: list[ast.expr]) -> bool:
    if name == "Literal":
        return value in [ast.literal_eval(part) for part in parts]
    if name == "Optional":
        return value is None or _fits(value, parts[0])
    if name == "Union":
        return any(_fits(value, part) for part in parts)
    if name == "Annotated":
        return _fits(value, parts[0])
    if name in {"List", "list", "Set", "set"}:
        return isinstance(value, list) and all(_fits(item, parts[0]) for item in value)
    raise ValueError(name)
