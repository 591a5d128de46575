"""Change the texts in a value before it is encoded: never keys, enumerations, numbers or names.

A file of ours that was searched for secrets after it was encoded could lose a field's name, a
digit or the name of a case, and nobody could read it again.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any, TypeVar, cast

import msgspec

from specreg.core.readable import is_plain, readable_block
from specreg.core.redaction import hide, known_secrets

_ContentT = TypeVar("_ContentT")
_WITH_FIELDS = (
    msgspec.inspect.StructType,
    msgspec.inspect.DataclassType,
    msgspec.inspect.NamedTupleType,
    msgspec.inspect.TypedDictType,
)
_HALF = re.compile("[\ud800-\udfff]")

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
        "dtype",
        "engine",
        "environment",
        "history_reply",
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
        "shown",
        "subject",
        "target",
        "tier",
        "tier_cases",
        "tolerances",
        # Versions of our own, and moments.
        "began_at",
        "commit",
        "ended_at",
        "python_version",
        "recorded_on",
        "specreg_version",
        # What a machine is called, by which baselines are found.
        "bus_id",
        "cpu",
        "gpus",
        "host",
        "id",
        "instruction_set",
        "name",
        "sensor",
        "throttled",
        # What a server says of an answer's end, one of a few words.
        "finish_reason",
    }
)
"""Fields that hold names, by which files and what is in them are found and compared.

A field that holds a checksum is one too.
"""


def hide_values(content: _ContentT) -> _ContentT:
    """Return a value without secrets in its texts, for a file that programs read."""
    secrets = known_secrets()
    return with_texts(content, lambda text: _encodable(hide(text, secrets)))


def readable_values(content: _ContentT) -> _ContentT:
    """Return a value whose texts are fit to be shown, for a document that people read too."""
    secrets = known_secrets()
    return with_texts(content, lambda text: readable_block(text, secrets=secrets))


def check_plain_names(document: object) -> None:
    """Check that the names in a document of another machine can be shown as they are.

    Names stay as they are where other texts are made readable, because files and what is in them
    are found by names.

    Args:
        document: The document as JSON decodes it, without types.

    Raises:
        msgspec.ValidationError: A key, or the value of a field that holds names, is no plain text.
    """
    if isinstance(document, dict):
        for key, value in document.items():
            _check_plain(key, "a key")
            if _is_for_names(key):
                _check_plain(value, f"`{key}`")
            check_plain_names(value)
    elif isinstance(document, list):
        for value in document:
            check_plain_names(value)


def _check_plain(value: object, subject: str) -> None:
    """Check a name, or each name in a list; a value of another kind isn't looked at."""
    if isinstance(value, list):
        for part in value:
            _check_plain(part, subject)
    elif isinstance(value, str) and not is_plain(value):
        raise msgspec.ValidationError(f"{subject} is {value!a}, which is no plain text")


def words_in(*kinds: Any) -> frozenset[str]:  # noqa: ANN401 - whatever msgspec can encode
    """Return all words that an encoded value of these types has, whatever it holds.

    They are the names of fields, and the values of enumerations and literals.
    """
    words = set[str]()
    for kind in kinds:
        for info in _types_in(msgspec.inspect.type_info(kind)):
            words.update(_words_of(info))
    return frozenset(words)


def with_texts(content: _ContentT, change: Callable[[str], str]) -> _ContentT:
    """Return a value with each text in it changed; one in which nothing changes is itself."""
    return cast("_ContentT", _changed(content, change))


def _changed(content: Any, change: Callable[[str], str]) -> Any:  # noqa: ANN401 - any value
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
    changed = {
        key: value if _is_for_names(key) and _is_name(value) else _changed(value, change)
        for key, value in content.items()
    }
    is_same = all(changed[key] is value for key, value in content.items())
    return content if is_same else changed


def _is_for_names(field: object) -> bool:
    return field in NAMING_FIELDS or str(field).endswith("_sha256")


def _is_name(value: object) -> bool:
    """Return whether a value is a name or only names: `run` may be a run's name or a whole run."""
    if isinstance(value, list | tuple):
        return all(map(_is_name, value))
    return isinstance(value, str)


def _changed_collection(content: Any, change: Callable[[str], str]) -> Any:  # noqa: ANN401
    changed = [_changed(value, change) for value in content]
    if all(new is old for new, old in zip(changed, content, strict=True)):
        return content
    if hasattr(content, "_fields"):  # a named tuple
        return type(content)(*changed)
    return type(content)(changed)


def _changed_fields(content: Any, change: Callable[[str], str]) -> Any:  # noqa: ANN401
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
    """Return a text without halves of characters, which UTF-8 doesn't have."""
    return _HALF.sub("\ufffd", text)


@functools.cache
def _fields_with_text(kind: type) -> tuple[str, ...]:
    """Return the fields that may hold a text which is no name.

    A journal has thousands of times for each request, which needn't be looked at one by one.
    """
    info = msgspec.inspect.type_info(kind)
    fields = info.fields if isinstance(info, _WITH_FIELDS) else ()
    return tuple(field.name for field in fields if _may_hold_text(field.name, field.type))


def _may_hold_text(name: str, info: msgspec.inspect.Type) -> bool:
    """Return whether a field may hold a text; one for names only if it has fields of its own."""
    parts = list(_types_in(info))
    has_fields = any(isinstance(part, _WITH_FIELDS) for part in parts)
    if _is_for_names(name) and not has_fields:
        return False
    texts = msgspec.inspect.StrType, msgspec.inspect.AnyType
    return any(isinstance(part, texts) for part in parts)


def _types_in(info: msgspec.inspect.Type) -> Iterator[msgspec.inspect.Type]:
    """Yield a type and all types that it is made of, each once."""
    waiting = [info]
    seen = list[msgspec.inspect.Type]()
    while waiting:
        part = waiting.pop()
        if any(part is ancestor for ancestor in seen):
            continue
        seen.append(part)
        yield part
        waiting.extend(_parts_of(part))


def _parts_of(info: msgspec.inspect.Type) -> Iterator[msgspec.inspect.Type]:
    if isinstance(info, _WITH_FIELDS):
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


def _words_of(info: msgspec.inspect.Type) -> Iterator[str]:
    if isinstance(info, _WITH_FIELDS):
        yield from (field.encode_name for field in info.fields)
    if isinstance(info, msgspec.inspect.StructType) and isinstance(info.tag, str):
        yield info.tag
    if isinstance(info, msgspec.inspect.EnumType):
        yield from (str(member.value) for member in info.cls)
    if isinstance(info, msgspec.inspect.LiteralType):
        yield from map(str, info.values)
