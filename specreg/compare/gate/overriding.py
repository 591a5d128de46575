"""Overrides: `draft_tokens=5` of a side in, its cases otherwise as they were out."""

import dataclasses
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated

import msgspec

from specreg.core.errors import UnknownNameError, UnsupportedError
from specreg.engines.methods import METHODS
from specreg.matrix.case import Case, ServerSpec
from specreg.matrix.schema import MOST_DRAFT_TOKENS

_FORM = re.compile(r"(?P<key>[a-z_]+)(\.(?P<name>\w+))?=(?P<value>.*)", re.DOTALL)
_Positive = Annotated[int, msgspec.Meta(ge=1)]
_TYPES: Mapping[str, object] = MappingProxyType(
    {
        "method": str,
        "draft": str,
        "draft_tokens": Annotated[int, msgspec.Meta(ge=1, le=MOST_DRAFT_TOKENS)],
        "target": str,
        "padding_layers": Annotated[int, msgspec.Meta(ge=0)],
        "dtype": str,
        "max_model_len_tokens": _Positive,
        "max_sequences": _Positive,
        "gpu_memory_frac": Annotated[float, msgspec.Meta(gt=0, lt=1)],
        "engine_args": str,
        "engine_env": str,
        "trust_remote_code": bool,
    }
)
OF_SPECULATION = frozenset({"method", "draft", "draft_tokens"})
"""Say nothing of a server without a drafter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """One setting of a side's servers; `name` is of the variable where it is `engine_env`."""

    key: str
    value: object
    name: str = ""


def parse_override(text: str) -> Override:
    """An override as it was typed: `KEY=VALUE` or `engine_env.NAME=VALUE`.

    Raises:
        UnsupportedError: it isn't one, or its value is of another kind.
        UnknownNameError: no such setting.
    """
    found = _FORM.fullmatch(text)
    if found is None:
        message = f"override '{text}': give KEY=VALUE, or engine_env.NAME=VALUE"
        raise UnsupportedError(message)
    key, name, value = found["key"], found["name"] or "", found["value"]
    if key not in _TYPES:
        raise UnknownNameError("setting", key, _TYPES, f"override '{text}'")
    if (key == "engine_env") != bool(name):
        message = f"override '{text}': a name after the dot is of engine_env, and it needs one"
        raise UnsupportedError(message)
    if key == "engine_args":
        try:
            shlex.split(value)
        except ValueError as error:
            message = f"override '{text}': {error}; quote it as a shell wants it"
            raise UnsupportedError(message) from error
    try:
        return Override(
            key=key,
            name=name,
            value=msgspec.convert(value, _TYPES[key], strict=False),
        )
    except msgspec.ValidationError as error:
        raise UnsupportedError(f"override '{text}': {error}; give another value") from error


def overridden(case: Case, overrides: Sequence[Override], drafts: Mapping[str, str]) -> Case:
    """A case as a side runs it.

    Args:
        case: of the matrix.
        overrides: of the side, the last of a key counts.
        drafts: by method, the draft of the case's model pair.

    Raises:
        UnknownNameError: the engine doesn't have the method, or the pair no draft for it.
    """
    spec = case.server
    for one in overrides:
        if one.key in OF_SPECULATION and not case.speculates:
            continue
        spec = _RULES.get(one.key, _replaced)(spec, one)
    if spec.method != case.server.method:
        spec = _with_draft(spec, case, overrides, drafts)
    return dataclasses.replace(case, server=spec)


def _with_draft(
    spec: ServerSpec, case: Case, overrides: Sequence[Override], drafts: Mapping[str, str]
) -> ServerSpec:
    method = spec.method
    if method not in METHODS:
        raise UnknownNameError("method", method, METHODS, "override of method")
    METHODS[method].check_engine(spec.engine, f"override of '{case.id}'")
    if not METHODS[method].needs_draft:
        return dataclasses.replace(spec, draft=None, tree=None)
    if any(one.key == "draft" for one in overrides):
        return spec
    if method not in drafts:
        what = f"draft of '{spec.models}' for method"
        raise UnknownNameError(what, method, drafts, f"override of '{case.id}'")
    return dataclasses.replace(spec, draft=drafts[method])


def _replaced(spec: ServerSpec, one: Override) -> ServerSpec:
    return dataclasses.replace(spec, **{one.key: one.value})  # type: ignore[arg-type]


def _with_arguments(spec: ServerSpec, one: Override) -> ServerSpec:
    """Those of the case, and these after them."""
    more = tuple(shlex.split(str(one.value)))
    return dataclasses.replace(spec, engine_args=(*spec.engine_args, *more))


def _with_variable(spec: ServerSpec, one: Override) -> ServerSpec:
    variables = {**dict(spec.engine_env), one.name: str(one.value)}
    return dataclasses.replace(spec, engine_env=tuple(sorted(variables.items())))


_RULES: Mapping[str, Callable[[ServerSpec, Override], ServerSpec]] = MappingProxyType(
    {"engine_args": _with_arguments, "engine_env": _with_variable}
)
