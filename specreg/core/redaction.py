"""Hide secrets in what we write and print.

Secrets are the values of environment variables and options whose names end in token, key, secret
or password, and the passwords in URLs. Nothing is guessed.

The standard library alone: the supervisor, which writes the logs, has nothing else.
"""

import functools
import html
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from urllib.parse import quote, unquote

HIDDEN = "HIDDEN"
"""What replaces a secret."""

_LEAST_CHARACTERS = 8
_NAME = re.compile(r"[\w.-]*(?:token|key|secret|password)", re.IGNORECASE)
_ORDINARY = re.compile(r"[\d.,:+-]*|true|false|none|null", re.IGNORECASE)
"""Numbers are never hidden: a file of ours couldn't be read without them."""
_PASSWORD = re.compile(r"(://[^\s/:@'\"]*:)[^\s/@'\"]+(?=@)|(://)[^\s/:@'\"]{16,}(?=@)")
"""A password in a URL, after a group that stays: behind a user's name, or a long token alone."""

_TOLD: set[str] = set()


def learn(environment: Mapping[str, str], arguments: Sequence[str] = ()) -> None:
    """Hide the secrets in variables and arguments from now on; our own variables' already are."""
    _TOLD.update(secrets_in(environment, arguments))


def known_secrets() -> tuple[str, ...]:
    """All that is to be hidden wherever it occurs, in each way of writing it, the longest first."""
    return _known(tuple(os.environ.items()), frozenset(_TOLD))


@functools.lru_cache(maxsize=2)
def _known(variables: tuple[tuple[str, str], ...], told: frozenset[str]) -> tuple[str, ...]:
    found = set()
    for secret in secrets_in(dict(variables)) | told:
        lines = (line.strip() for line in secret.splitlines())  # a log has them one by one
        for one in (secret, *(line for line in lines if len(line) >= _LEAST_CHARACTERS)):
            found |= {one, quote(one, safe="", errors="surrogateescape"), html.escape(one)}
            found |= {json.dumps(one)[1:-1], json.dumps(one, ensure_ascii=False)[1:-1]}
            found.add(repr(one)[1:-1])
    return tuple(sorted(found, key=len, reverse=True))


def secrets_in(environment: Mapping[str, str], arguments: Sequence[str] = ()) -> frozenset[str]:
    """The values that are secret, 8 characters long or more; no numbers nor paths that exist.

    Of variables as `HF_TOKEN`, and of a command line's `--api-key X`, `--api-key=X` and
    `api_key=X`; several values may follow one name.
    """
    named = [value for name, value in environment.items() if _NAME.fullmatch(name)]
    takes = False
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if equals and _NAME.fullmatch(name):
            named.append(value.strip("\"'"))
            takes = False
        elif argument.startswith("--"):
            takes = bool(_NAME.fullmatch(argument))
        elif takes:
            named.append(argument)
    for text in (*environment.values(), *arguments):
        for found in _PASSWORD.finditer(text):
            password = found[0].removeprefix(found[1] or found[2])
            named += [password, unquote(password)]
    return frozenset(filter(_is_secret, named))


def _is_secret(value: str) -> bool:
    return (
        len(value) >= _LEAST_CHARACTERS
        and "://" not in value  # the password in it, if there is one, is
        and not _ORDINARY.fullmatch(value)
        and not ("/" in value and os.access(value, os.F_OK))
    )


def hide(text: str, secrets: Iterable[str] | None = None) -> str:
    """Return a text without secrets (None: the known ones) and without passwords in its URLs."""
    text = hide_known(text, secrets)
    if "://" not in text:  # a hundred times faster than the expression
        return text
    return _PASSWORD.sub(lambda found: f"{found[1] or found[2]}{HIDDEN}", text)


def hide_known(text: str, secrets: Iterable[str] | None = None) -> str:
    """Return a text without the known secrets, and else unchanged: for files of our own."""
    for secret in known_secrets() if secrets is None else secrets:
        text = text.replace(secret, HIDDEN)
    return text


def hide_bytes(content: bytes, hide: Callable[[str], str] = hide_known) -> bytes:
    """Do with any bytes what `hide` does with a text."""
    return hide(content.decode(errors="surrogateescape")).encode(errors="surrogateescape")
