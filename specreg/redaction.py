"""Redaction: what we write and say in, the same without secrets out.

Known secrets are the values of environment variables, options, pairs and JSON keys whose names say
so, and the passwords in URLs. Of what others say, an answer or a log, what has the form of one is
hidden too.

The standard library alone: the watchdog, who writes the logs, has nothing else.
"""

import contextlib
import functools
import html
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from urllib.parse import quote, unquote

HIDDEN = "HIDDEN"
"""What stands where a secret stood."""

_LEAST_CHARACTERS = 8
_WORDS = r"(?:token|key|secret|password|passwd|passphrase|credential|authorization|cookie)s?"
_SHORT = r"(?:^|_)(?:pass|pwd|pat)"
_VARIABLE = re.compile(rf"(?:{_WORDS}|{_SHORT})(?=_|\d*$)", re.IGNORECASE)
_PLACE = re.compile(r"(?:path|file|dir|folder|url|uri|name|type)$", re.IGNORECASE)
_OPTION = re.compile(rf"(?:-|^)[\w.-]*{_WORDS}$", re.IGNORECASE)
_WHOSE = (
    r"(?:access|account|admin|api|auth|client|encryption|hf|hub|license|master|private|refresh"
    r"|secret|service|session|signing|storage)"
)
_KEY = re.compile(
    rf"(?:{_WHOSE}_?keys?|(?:token|secret|password|passwd|passphrase|credential|authorization"
    rf"|cookie)s?|{_SHORT})\d*$",
    re.IGNORECASE,
)
"""Of settings: `speculative_token_tree`, with the word in its middle, is none, nor `sort_key`."""
_VOCABULARY = re.compile(
    r"(?:^|_)(?:audio|bos|cls|end|eos|image|mask|pad|sep|special|start|stop|unk)_tokens?$",
    re.IGNORECASE,
)
_ORDINARY = re.compile(r"[\d.,:+-]*|true|false|none|null", re.IGNORECASE)
"""Numbers are never hidden: a file of ours couldn't be read without them."""

_PAIR = re.compile(
    r"(?<![\w.-])([\w.-]+)(?:[\"']?\s*=|[\"']\s*:)\s*(?=[\"']?([^\s\"',;&\])}]{8,}))"
)
"""A name and, yet to be read, its value, which may be a pair: `a=1,b=2`, `--a=b=2`, `'a': 1`."""

_URL = r"(://[^\s/:@'\"]*:)[^\s/@'\"]+(?=@)"
_USER = r"(://)[^\s/:@'\"]{16,}(?=@)"
_VALUE = r"(?![\d.]+(?:\W|$))[^\s\"',;&\])}]{8,}"
_QUERY = rf"([?&][\w.-]*(?:{_WORDS}|signature)=){_VALUE}"
_NAMED = (
    r"((?:(?:hf|hub|api|access|auth|refresh|session|admin|secret|private)[_-]?(?:token|key)"
    r"|secret|password|passwd|passphrase)[\"']?\s*[:=]\s*\[?[\"']?)" + _VALUE
)
_HEADER = (
    r"(authorization[\"']?\s*[:=]\s*[\"']?(?:(?:bearer|basic|token)\s+)?|\bbearer\s+)" + _VALUE
)
_PREFIXED = r"()\b(?:hf_[A-Za-z0-9]{20,}|(?:sk|glpat)-[\w-]{20,}|(?:gh[pousr]|github_pat)_\w{20,})"
_FORMS = tuple(
    (re.compile(form, re.IGNORECASE), signs)
    for form, signs in (
        (_URL, ("://",)),
        (_USER, ("://",)),
        (_QUERY, ("=",)),
        (_HEADER, ("authorization", "bearer")),
        (_NAMED, ("key", "token", "secret", "passw", "passphr")),
        (
            _PREFIXED,
            ("hf_", "sk-", "glpat-", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
        ),
    )
)
"""What looks like a secret, after a group that stays; and words without which there is none, in
lower case, which are found a hundred times faster."""

_TOLD: set[str] = set()


def learn(environment: Mapping[str, str], arguments: Sequence[str] = ()) -> None:
    """Has the secrets in variables and arguments hidden from now on; our own variables' are."""
    _TOLD.update(secrets_in(environment, arguments))


def known_secrets() -> tuple[str, ...]:
    """All that is to be hidden wherever it occurs, in each way of writing it, the longest first."""
    return _known(tuple(os.environ.items()), frozenset(_TOLD))


def secrets_in(environment: Mapping[str, str], arguments: Sequence[str] = ()) -> frozenset[str]:
    """The values that are secret, 8 characters long or more.

    Args:
        environment: variables, as `HF_TOKEN`; a number or a path that exists is no secret.
        arguments: of a command line, as `--api-key X`, `--api-key=X` and `api_key=X`; the
            latter also among other pairs, and JSON, as `--loader {"api_key": "X"}`.
    """
    values = [value for name, value in environment.items() if _says_so(name)]
    named = [part for value in values for part in (value, *value.split(","))]  # of several keys
    for value in environment.values():  # others than settings have words that look like pairs
        named += (*_passwords(value), *_in_json(value))
    within = [secret for argument in arguments for secret in _within(argument)]
    return frozenset(filter(_is_secret, (*named, *_of_options(arguments), *within)))


def hide(text: str, secrets: Iterable[str] | None = None) -> str:
    """A text without the known secrets, and without what looks like one.

    Args:
        text: of whomever.
        secrets: to hide instead of the known ones.
    """
    text = hide_known(text, secrets)
    lower = text.lower()
    for form, signs in _FORMS:
        if any(sign in lower for sign in signs):
            text = form.sub(rf"\1{HIDDEN}", text)
    return text


def hide_known(text: str, secrets: Iterable[str] | None = None) -> str:
    """A text without the known secrets alone: for what is ours, where all others are values."""
    for secret in known_secrets() if secrets is None else secrets:
        text = text.replace(secret, HIDDEN)
    return text


def hide_bytes(content: bytes) -> bytes:
    """The same for a file of ours."""
    secrets = [secret.encode(errors="surrogateescape") for secret in known_secrets()]
    for secret in secrets:
        content = content.replace(secret, HIDDEN.encode())
    return content


def hide_said(content: bytes, secrets: Iterable[str]) -> bytes:
    """What `hide` does, of any bytes, with the secrets to hide."""
    text = content.decode(errors="surrogateescape")
    return hide(text, secrets).encode(errors="surrogateescape")


@functools.lru_cache(maxsize=2)
def _known(variables: tuple[tuple[str, str], ...], told: frozenset[str]) -> tuple[str, ...]:
    spellings = _spellings(secrets_in(dict(variables)) | told)
    return tuple(sorted(spellings, key=len, reverse=True))


def _says_so(name: str) -> bool:
    return bool(_VARIABLE.search(name)) and not _PLACE.search(name)


def _setting_says_so(name: str) -> bool:
    name = re.sub("[.-]", "_", name)
    return bool(_KEY.search(name)) and not (_PLACE.search(name) or _VOCABULARY.search(name))


def _of_options(arguments: Sequence[str]) -> Iterator[str]:
    """The values of options whose names say so; several may follow one."""
    takes = False
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if equals and _OPTION.search(name):
            takes = False
            yield value.strip("\"'")
        elif argument.startswith("--"):
            takes = bool(_OPTION.search(argument))
        elif takes:
            yield argument


def _within(text: str) -> Iterator[str]:
    """Those in a setting's URLs, headers, pairs and JSON, with or without a name before it."""
    yield from _passwords(text)
    yield from (found[2] for found in _PAIR.finditer(text) if _setting_says_so(found[1]))
    yield from _in_json(text)
    yield from _in_json(text.partition("=")[2])


def _in_json(text: str) -> Iterator[str]:
    if text.lstrip().startswith(("{", "[")):
        with contextlib.suppress(ValueError, RecursionError):  # it is none
            yield from _of_json(json.loads(text), named=False)


def _of_json(value: object, *, named: bool) -> Iterator[str]:
    """Those in a value, as they are meant and as they stand there; all, if its name says so."""
    if isinstance(value, str):
        spelled = {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
        yield from spelled if named else _within(value)
    elif isinstance(value, dict):
        for name, one in value.items():
            yield from _of_json(one, named=named or _setting_says_so(name))
    elif isinstance(value, list):
        yield from _of_options([one for one in value if isinstance(one, str)])
        for one in value:
            yield from _of_json(one, named=named)


def _passwords(text: str) -> Iterator[str]:
    """Those in the URLs and headers of a text, as they stand there and as they are meant."""
    for form, signs in _FORMS[:4]:
        if any(sign in text.lower() for sign in signs):
            for found in form.finditer(text):
                password = found[0][len(found[1]) :]
                yield from {password, unquote(password)}


def _is_secret(value: str) -> bool:
    return (
        len(value) >= _LEAST_CHARACTERS
        and "://" not in value  # the password in it, if there is one, is
        and not _ORDINARY.fullmatch(value)
        and not ("/" in value and os.access(value, os.F_OK))
    )


def _spellings(secrets: Iterable[str]) -> set[str]:
    """As they stand in a URL, a JSON string, a page or, if they have several lines, in a log."""
    found = set()
    for secret in secrets:
        lines = [line.strip() for line in secret.splitlines()]
        for one in (secret, *(line for line in lines if len(line) >= _LEAST_CHARACTERS)):
            found |= {one, quote(one, safe="", errors="surrogateescape"), html.escape(one)}
            found |= {json.dumps(one)[1:-1], json.dumps(one, ensure_ascii=False)[1:-1]}
            found.add(repr(one)[1:-1])
    return found
