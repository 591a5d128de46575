"""Mutations: something sound in, the same with something wrong out; the same by the same random.

They know what they change: a value of JSON, an event of a stream, a line of a page, and bytes too.
"""

import copy
import json
import random
from collections.abc import Callable, Iterator, MutableMapping, MutableSequence
from typing import Any

Mutation = Callable[[random.Random, bytes], bytes]

_DEEP = "@deep@"
_LONG = "@long@"
_WIDE = "@wide@"
_BEYOND = "@beyond@"
_LITERALS = {
    _DEEP: "[" * 100_000 + "]" * 100_000,
    _LONG: "9" * 5_000,
    _WIDE: "9" * 400,
    _BEYOND: "1e999",
}
"""What no value of Python would be written as."""
_ODD: tuple[object, ...] = (
    *(None, True, False, -1, 0, 1, 1.5, -0.0, 2**31, 2**53 + 1, 2**63, 2**64, -(2**63), 10**30),
    *(1e308, float("nan"), float("inf"), _DEEP, _LONG, _WIDE, _BEYOND),
    *("", "0", " ", "NaN", "\x00", "\ud800", "\u202e", "é" * 3_000, "x" * 20_000, "../../etc"),
    *("%s", "<script>alert(1)</script>", "http://[", "a\nb", "\x1b[31m", "²"),
    *("a\n::stop-commands::b", "a\n##[error]b"),
    *([], {}, [[]], [0] * 3_000, {"": {}}, [None], [-1], ["x"], {"x": 1}, [1e308], [2**62, 2**62]),
)
_BYTES = (
    *(b"\xff", b"\x00", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\r\n", b"\n\n", b"{", b"}", b'"'),
    *(b"\\", b"data:", b"<<<<<<< ours\n", b"9" * 400, b"e999", b"\x80" * 50, b"," * 50),
    b"[" * 5_000,
)
_VALUES = (
    *("NaN", "+Inf", "-Inf", "-1", "0.5", "1e300", "1e999", "9" * 400, "", "x", "1 2 3 4", "0x10"),
)
_LABELS = ('position="²"', 'position="999999999999"', 'position="-1"', 'position=""', "position=0")
_HEADERS = (
    *('[models."a/../b"]', '[models."[0-9]*"]', '[models."\\u0000"]', "[models.tiny-launch2]"),
    *(
        f"[models.{'x' * 300}]",
        '[models.""]',
        '[models."$(touch x)"]',
        "[models.tiny]",
        "[[cases]]",
    ),
)
_TOML = (
    *("-1", "0", "1e999", "nan", "inf", "true", '""', "[]", "{}", "[[]]", '"\\u0000"'),
    *("9" * 5_000, "[" * 2_000 + "]" * 2_000, '["x"]', "{ a = 1 }", '"' + "x" * 5_000),
    *("0xffffffff", '"none"', '"../.."', "[1, 1]", "[99999999999999999999]", "''' \n '''"),
    *("1979-05-27", "{ tensor = 0 }"),
)


def bytes_of(rng: random.Random, content: bytes) -> bytes:
    """Bytes that are flipped, lost, repeated, put in, or cut off."""
    changed = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        start = rng.randrange(len(changed) + 1)
        end = min(len(changed), start + rng.choice((1, 1, 2, 8, 60, 500)))
        how = rng.randrange(5)
        if how == 0 and start < len(changed):
            changed[start] ^= 1 << rng.randrange(8)
        elif how == 1:
            del changed[start:end]
        elif how == 2:
            changed[start:start] = changed[start:end] * rng.choice((1, 2, 50))
        elif how == 3:
            changed[start:start] = rng.choice(_BYTES)
        elif how == 4 and rng.random() < 0.3:
            del changed[start:]
    return bytes(changed)


def json_of(rng: random.Random, content: bytes) -> bytes:
    """Values of a document that are lost, doubled, called otherwise, or of another kind."""
    document = [copy.deepcopy(json.loads(content))]
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        places = list(_places(document))
        if places:
            # A list repeated so often that holds such a list would have millions of values.
            most = 2_000 if len(places) < 1_000 else 2
            _change(rng, *rng.choice(places), most)
    text = json.dumps(document[0] if document else None)
    for name, literal in _LITERALS.items():
        text = text.replace(f'"{name}"', literal)
    changed = text.encode()
    return bytes_of(rng, changed) if rng.random() < 0.1 else changed


def stream_of(rng: random.Random, content: bytes) -> bytes:
    """Events that are lost, come twice or in another order, are wrong in themselves, or no end."""
    events = content.split(b"\n\n")
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(events))
        position = rng.randrange(len(events))
        how = rng.randrange(8)
        if how == 0 and len(events) > 1:
            del events[at]
        elif how == 1:
            events[at:at] = [events[position]] * rng.choice((1, 1, 30))
        elif how == 2:
            events[at], events[position] = events[position], events[at]
        elif how == 3:
            events[at] = b'data: {"error": {"message": "no", "code": 500}}'
        else:
            events[at] = _event(rng, events[at])
    stream = rng.choice((b"\n\n", b"\n\n", b"\n\n", b"\r\n\r\n", b"\n", b"")).join(events)
    return bytes_of(rng, stream) if rng.random() < 0.2 else stream


def page_of(rng: random.Random, content: bytes) -> bytes:
    """Counters that are lost, doubled, renamed, have other labels, or count what can't be."""
    lines = content.decode().splitlines()
    spoken = [at for at, line in enumerate(lines) if "spec" in line or "request" in line]
    for _ in range(rng.choice((1, 1, 3, 10))):
        at = rng.choice(spoken)
        line = lines[at]
        lines[at] = rng.choice(
            (
                "",
                f"{line}\n{line}",
                line.replace("spec", "other"),
                line.replace("_total", ""),
                f"{line.rpartition(' ')[0]} {rng.choice(_VALUES)}",
                f"{line.rpartition(' ')[0]} {rng.choice(_VALUES)}",
                line.replace('position="', f'{rng.choice(_LABELS)},position="'),
                line.replace("{", "{" + rng.choice(_LABELS) + ","),
                line.replace("}", rng.choice(("", "}}", ",}", '"}'))),
                line.replace('"', "", 1),
            )
        )
    page = "\n".join(lines).encode() + b"\n"
    return bytes_of(rng, page) if rng.random() < 0.2 else page


def rows_of(rng: random.Random, content: bytes) -> bytes:
    """Rows of which some are wrong in themselves, lost or doubled."""
    rows = content.splitlines()
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(rows))
        how = rng.randrange(6)
        if how == 0:
            rows[at:at] = [rng.choice(rows)]
        elif how == 1:
            rows[at] = rng.choice((b"", b"null", b"[]", b"{}", b"0", b'"x"', b"[" * 100_000))
        else:
            rows[at] = _json_or_bytes(rng, rows[at])
    if rng.random() < 0.15:
        return b"[" + b",".join(rows) + b"]"
    file_content = b"\n".join(rows)
    return bytes_of(rng, file_content) if rng.random() < 0.2 else file_content


def toml_of(rng: random.Random, content: bytes) -> bytes:
    """Keys that are lost, doubled, called otherwise, or have another value; tables out of order."""
    lines = content.decode().splitlines()
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(lines))
        key, equals, _ = lines[at].partition("=")
        if lines[at].startswith("["):
            lines[at] = rng.choice((*_HEADERS, lines[at]))
            continue
        lines[at] = rng.choice(
            (
                "",
                f"{lines[at]}\n{lines[at]}",
                rng.choice(lines),
                f"x{lines[at]}",
                *[f"{key}={rng.choice(_TOML)}" if equals else lines[at]] * 6,
            )
        )
    toml = "\n".join(lines).encode() + b"\n"
    return bytes_of(rng, toml) if rng.random() < 0.2 else toml


def cut(rng: random.Random, content: bytes) -> Iterator[bytes]:
    """The pieces in which a network might bring it."""
    at = 0
    while at < len(content):
        size = rng.choice((1, 7, 100, 5_000, 2**16))
        yield content[at : at + size]
        at += size


_Holder = MutableMapping[Any, Any] | MutableSequence[Any]


def _places(node: object) -> Iterator[tuple[_Holder, Any]]:
    """Where a document's values are: what holds each, and its key or index there."""
    if isinstance(node, dict | list):
        for key in range(len(node)) if isinstance(node, list) else tuple(node):
            yield node, key
            yield from _places(node[key])


def _change(rng: random.Random, holder: _Holder, key: Any, most: int) -> None:  # noqa: ANN401
    how = rng.randrange(6)
    if how == 0:
        del holder[key]
    elif how == 1 and isinstance(holder, dict):
        holder[rng.choice(("", "x", f"{key} ", str(key).upper()))] = holder.pop(key)
    elif how == 2 and isinstance(holder[key], list):
        holder[key] = holder[key] * rng.choice((2, most))
    else:
        holder[key] = copy.deepcopy(rng.choice(_ODD))


def _event(rng: random.Random, event: bytes) -> bytes:
    head, colon, data = event.partition(b":")
    return head + colon + _json_or_bytes(rng, data)


def _json_or_bytes(rng: random.Random, text: bytes) -> bytes:
    try:
        return json_of(rng, text)
    except (ValueError, RecursionError):  # the last of what was made too deep before
        return bytes_of(rng, text)
