"""Parse settings such as `draft_tokens=5` by which one side of a comparison differs."""

import dataclasses
import operator
import shlex
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated

import msgspec

from specreg.core.errors import UnsupportedError, check_name
from specreg.engines.engine import LaunchSettings
from specreg.engines.methods import METHODS
from specreg.engines.registry import engine_named
from specreg.matrix.case import Case, DraftTokens, ServerSpec
from specreg.matrix.tier import check_tree, within

_HINTS = typing.get_type_hints(LaunchSettings, include_extras=True)
_TYPES: Mapping[str, object] = MappingProxyType(
    {
        **{name: kind for name, kind in _HINTS.items() if name not in {"parallel", "tree"}},
        **dict.fromkeys(("method", "draft", "target", "engine_args", "engine_env"), str),
        "draft_tokens": DraftTokens,
        "padding_layers": Annotated[int, msgspec.Meta(ge=0)],
    }
)
_OF_SPECULATION = frozenset({"method", "draft", "draft_tokens"})
"""A server without a drafter has none of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """One setting of a side's servers; `name` is of the variable where it is `engine_env`."""

    key: str
    value: object
    name: str = ""


def parse_override(text: str) -> Override:
    """An override as it was typed: `KEY=VALUE` or `engine_env.NAME=VALUE`.

    Else an UnsupportedError; an UnknownNameError where there is no such setting.
    """
    key, equals, value = text.partition("=")
    key, _, name = key.partition(".")
    check_name("setting", key, _TYPES, f"override '{text}'")
    if not equals or (key == "engine_env") != bool(name):
        raise UnsupportedError(f"override '{text}': give KEY=VALUE, or engine_env.NAME=VALUE")
    try:
        if key == "engine_args":
            shlex.split(value)
        converted = msgspec.convert(value, _TYPES[key], strict=False)
    except (ValueError, msgspec.ValidationError) as error:
        message = f"override '{text}': {error}; give another value, quoted as a shell wants it"
        raise UnsupportedError(message) from error
    return Override(key=key, name=name, value=converted)


def overridden(case: Case, overrides: Sequence[Override], drafts: Mapping[str, str]) -> Case:
    """A case of the matrix as a side runs it; the last override of a key counts.

    `drafts` are by method those of the case's model pair. Raises UnknownNameError where the engine
    doesn't have the method, or the pair no draft for it; MatrixError where the method drafts trees
    and the case has none, or its tree can't be so deep.
    """
    spec = case.server
    for one in overrides:
        if case.speculates or one.key not in _OF_SPECULATION:
            spec = _with(spec, one)
    with within(f"override of '{case.id}'"):
        if spec.method != case.server.method:
            named = any(one.key == "draft" for one in overrides)
            spec = _with_draft(spec, drafts, named=named)
        if spec.method == "none":
            spec = spec.without_speculation
        else:
            check_tree(spec.tree, spec.method, spec.draft_tokens)
    of_models = operator.attrgetter("target", "draft", "padding_layers", "dtype")
    if of_models(spec) != of_models(case.server):  # what others take isn't known
        spec = dataclasses.replace(spec, sizes=None)
    return dataclasses.replace(case, server=spec)


def _with(spec: ServerSpec, one: Override) -> ServerSpec:
    """A server with a setting; arguments come after the case's own, variables beside them."""
    value = one.value
    if one.key == "engine_args":
        value = (*spec.engine_args, *shlex.split(str(value)))
    elif one.key == "engine_env":
        value = tuple(sorted({**dict(spec.engine_env), one.name: str(value)}.items()))
    return dataclasses.replace(spec, **{one.key: value})  # type: ignore[arg-type]


def _with_draft(spec: ServerSpec, drafts: Mapping[str, str], *, named: bool) -> ServerSpec:
    method = spec.method
    check_name("method", method, METHODS)
    engine_named(spec.engine).spelling_of(method)
    if not METHODS[method].drafts_trees:
        spec = dataclasses.replace(spec, tree=None)
    if not METHODS[method].needs_draft:
        return dataclasses.replace(spec, draft=None, parallel=spec.parallel.without_draft)
    if named:
        return spec
    check_name(f"draft of '{spec.models}' for method", method, drafts)
    return dataclasses.replace(spec, draft=drafts[method])
