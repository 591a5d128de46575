"""Hide secrets in the texts of a value before the value is encoded.

Keys, enumerations, numbers and names aren't changed. If a document were searched for secrets after
it was encoded, a field's name, a digit or a case's name that happens to equal a secret would be
lost, and nobody could read the document again.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any, TypeVar, cast

import msgspec

from specreg.core.readable import readable_block
from specreg.core.redaction import hide, known_secrets

_ContentT = TypeVar("_ContentT")
_TYPES_WITH_FIELDS = (
    msgspec.inspect.StructType,
    msgspec.inspect.DataclassType,
    msgspec.inspect.NamedTupleType,
    msgspec.inspect.TypedDictType,
)
_SURROGATE = re.compile("[\ud800-\udfff]")

NAMING_FIELDS = frozenset(
    {
        # Names that the repository or specreg itself gives.
        "against",
        "asked",
        "case",
        "case_id",
        "cases",
        "category",
        "check",
        "code",
        "dataset",
        "digest",
        "draft",
        "engine",
        "environment",
        "kind",
        "look",
        "method",
        "metric",
        "models",
        "outcome",
        "outcomes",
        "pair",
        "parts",
        "prompt_id",
        "run",
        "shards",
        "target",
        "tier",
        "tier_cases",
        "tolerances",
        # Names of a machine and its devices, which lead to its baselines.
        "cpu",
        "gpus",
        "host",
        "id",
        "instruction_set",
        "name",
    }
)
"""The fields that hold names. Files and their entries are found and compared by these names.

Fields that hold a checksum, whose name ends with `_sha256`, hold names too.
"""


def hide_values(content: _ContentT) -> _ContentT:
    """Return a value without secrets in its texts, for a file that only programs read."""
    secrets = known_secrets()
    return with_texts(content, lambda text: _encodable(hide(text, secrets)))


def readable_values(content: _ContentT) -> _ContentT:
    """Return a value whose texts people can read: without secrets and control characters."""
    secrets = known_secrets()
    return with_texts(content, lambda text: readable_block(text, secrets=secrets))


def with_texts(content: _ContentT, change: Callable[[str], str]) -> _ContentT:
    """Return a value with each text in it changed, except for names and keys.

    Args:
        content: the value.
        change: returns the new text.

    Returns:
        A new value; the same object if no text changed.
    """
    return cast("_ContentT", _changed(content, change))


def _changed(content: Any, change: Callable[[str], str]) -> Any:  # noqa: ANN401 - any value
    """Return a value of any type with its texts changed."""
    # Enumerations come first, because a member of a StrEnum is a str too.
    if isinstance(content, Enum) or content is None or isinstance(content, int | float):
        return content
    if isinstance(content, str):
        return change(content)
    if isinstance(content, Mapping):
        return _changed_mapping(content, change)
    if isinstance(content, list | tuple | set | frozenset):
        return _changed_collection(content, change)
    if isinstance(content, msgspec.Struct) or dataclasses.is_dataclass(content):
        return _changed_fields(content, change)
    return content


def _changed_mapping(content: Mapping[Any, Any], change: Callable[[str], str]) -> Any:  # noqa: ANN401
    """Return a mapping with the texts in its values changed, except for names."""
    changed = {}
    for key, value in content.items():
        is_name = _is_for_names(key) and _is_name(value)
        changed[key] = value if is_name else _changed(value, change)
    is_same = all(changed[key] is value for key, value in content.items())
    return content if is_same else changed


def _is_for_names(field: object) -> bool:
    """Return whether a field holds names."""
    return field in NAMING_FIELDS or str(field).endswith("_sha256")


def _is_name(value: object) -> bool:
    """Return whether a value is a name or a list of names.

    A field may hold a name in one document and more in another: `run` is the name of a run, or a
    whole run.
    """
    if isinstance(value, list | tuple):
        return all(_is_name(part) for part in value)
    return isinstance(value, str)


def _changed_collection(content: Any, change: Callable[[str], str]) -> Any:  # noqa: ANN401
    """Return a list, tuple or set with the texts in it changed."""
    changed = [_changed(value, change) for value in content]
    if all(new is old for new, old in zip(changed, content, strict=True)):
        return content
    # The constructor of a named tuple takes its values one by one.
    if hasattr(content, "_fields"):
        return type(content)(*changed)
    return type(content)(changed)


def _changed_fields(content: Any, change: Callable[[str], str]) -> Any:  # noqa: ANN401
    """Return a struct or dataclass with the texts in its fields changed."""
    changed = {}
    kind: type = type(content)
    for name in _fields_with_text(kind):
        value = getattr(content, name)
        new = _changed(value, change)
        if new is not value:
            changed[name] = new

    if not changed:
        return content
    if isinstance(content, msgspec.Struct):
        return msgspec.structs.replace(content, **changed)
    return dataclasses.replace(content, **changed)


def _encodable(text: str) -> str:
    """Return a text with a replacement for each surrogate, which can't be encoded as UTF-8."""
    return _SURROGATE.sub("\ufffd", text)


@functools.cache
def _fields_with_text(kind: type) -> tuple[str, ...]:
    """Return the names of a type's fields that may hold a text that isn't a name.

    The other fields are skipped to save time: a request in a ledger has thousands of timestamps.
    """
    info = msgspec.inspect.type_info(kind)
    if not isinstance(info, _TYPES_WITH_FIELDS):
        return ()
    return tuple(field.name for field in info.fields if _may_hold_text(field.name, field.type))


def _may_hold_text(name: str, info: msgspec.inspect.Type) -> bool:
    """Return whether a field may hold a text that isn't a name.

    Args:
        name: the name of the field.
        info: the type of the field.
    """
    parts = list(_types_in(info))
    has_fields = any(isinstance(part, _TYPES_WITH_FIELDS) for part in parts)
    # A field for names may hold a value with fields instead, and some of these are texts.
    if _is_for_names(name) and not has_fields:
        return False
    text_types = (msgspec.inspect.StrType, msgspec.inspect.AnyType)
    return any(isinstance(part, text_types) for part in parts)


def _types_in(info: msgspec.inspect.Type) -> Iterator[msgspec.inspect.Type]:
    """Yield a type and all types that it consists of, each once."""
    waiting = [info]

    # A type may contain itself, so types are compared by identity and not by value. The objects are
    # kept, because the id of an object that is gone may be that of a new one.
    seen = dict[int, msgspec.inspect.Type]()
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen[id(part)] = part
        yield part
        waiting.extend(_parts_of(part))


def _parts_of(info: msgspec.inspect.Type) -> Iterator[msgspec.inspect.Type]:
    """Yield the types that a type directly consists of."""
    if isinstance(info, _TYPES_WITH_FIELDS):
        yield from (field.type for field in info.fields)
    elif isinstance(info, msgspec.inspect.UnionType):
        yield from info.types
    elif isinstance(info, msgspec.inspect.DictType):
        yield info.key_type
        yield info.value_type
    elif isinstance(info, msgspec.inspect.TupleType):
        yield from info.item_types
    elif isinstance(info, msgspec.inspect.CollectionType):
        yield info.item_type
    elif isinstance(info, msgspec.inspect.Metadata):
        yield info.type
