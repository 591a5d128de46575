"""Find the secrets of a run, and hide them in text.

A secret is the value of an environment variable or an option whose name says so (`HF_TOKEN`,
`--api-key`), a password in a URL, a parameter of a URL with such a name, or what follows
`Authorization:`, `X-Api-Key:` or `Bearer`. It is hidden as it is, as JSON and URLs write it, and as
Basic authorization encodes it with its user. A value that is shorter than 8 characters isn't
hidden wherever it occurs, because every text would have holes.

This module needs only the standard library, because the supervisor, which writes the logs, has
nothing else.
"""

import base64
import contextlib
import functools
import json
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from urllib.parse import quote, quote_plus, unquote

HIDDEN = "HIDDEN"
"""What replaces a secret."""

_LEAST_CHARACTERS = 8
_SAYS_SECRET = re.compile(
    # Long words anywhere in a part of a name; TOKENIZERS_PARALLELISM and SECRETARY aren't meant.
    r"[A-Z0-9]*(?:TOKEN(?!IZ)|SECRET(?!AR)|PASSWORD|PASSWD|PASSPHRASE|PASSCODE|CREDENTIAL)[A-Z0-9]*"
    # Short words at the end of a part: APIKEY and SSHPASS, but neither KEYBOARD nor AUTHOR.
    r"|[A-Z0-9]*(?:KEY|PASS|AUTH)S?\d*"
    r"|(?:PATS?|PWD|CREDS?|AUTHORIZATION|BEARER|JWT|COOKIES?|SIG|SIGNATURE|SALT|OTP)\d*"
)
_ORDINARY_PARTS = frozenset({"ASKPASS", "BYPASS", "COMPASS", "HOTKEY", "MONKEY", "TURKEY"})
"""Parts of names that end like the name of a secret, but are ordinary words."""
_ORDINARY_NAMES = frozenset({"HF_HUB_DISABLE_IMPLICIT_TOKEN", "OLDPWD", "PWD"})
"""Names of variables that look like the name of a secret, but hold none."""
_ABOUT_A_SECRET = frozenset(
    {
        "DIR",
        "ENV",
        "FILE",
        "FOLDER",
        "FORMAT",
        "HOST",
        "LAYOUT",
        "LENGTH",
        "MAP",
        "METHOD",
        "MODE",
        "NAME",
        "PATH",
        "PORT",
        "SOCK",
        "TYPE",
        "URI",
        "URL",
        "VERSION",
    }
)
"""Last parts of the names of variables that hold something about a secret: HF_TOKEN_PATH."""
_SAFE_IN_URLS = ("", "/", "!'()*", "/?:@!$'()*,", "!$&'()*+,;=:@/?")
"""The characters that programs leave as they are in a URL: Python, JavaScript, aiohttp, httpx."""
_RUNNING_TEST = "PYTEST_CURRENT_TEST"
"""A variable of pytest that changes with each test.

It isn't searched for secrets, because the name of a test may look like an assignment.
"""
_NUMBER = re.compile(r"[\d.,:+-]*")
_SETTING = re.compile(r"[\d.,:+-]*|true|false|none|null", re.IGNORECASE)
"""A parameter of a URL, or a header, with such a value is no secret: `?max_tokens=64`."""
_SCHEME = re.compile(r"(?:bearer|basic|digest|token)\b\s*", re.IGNORECASE)
_ASSIGNED = re.compile(
    r"(?<![^\s\"'{\[(,;&?=])-{0,2}([A-Za-z_][\w.-]{0,127})[\"']?\s{0,8}[:=]\s{0,8}"
    # The value isn't consumed, so that another assignment in it is seen too.
    r"(?=\"((?:[^\"\\]|\\.)*)\"|'((?:[^'\\]|\\.)*)'|([^\s\"',;&{}\[\]()]+))"
)
"""`name=value`, `--name=value` and `"name": "value"`."""
# These expressions search megabytes of text from other programs, and must not backtrack over all of
# it. So their repetitions are bounded, except those of digits and those at an expression's end.
_PASSWORD = re.compile(
    r"(://[^\s/:@'\"]{0,256}:)(?:[^\s/'\"]{1,512}|(?!\d+/)[^\s'\"]{1,128}?)(?=@)"
    r"|(://)[^\s/:@'\"]{16,512}(?=@)"
)
"""A password in a URL after a user's name, or a long token in place of both.

What the groups match stays in the text.
"""
_PARAMETER = re.compile(r"([?&;#]([\w.-]{1,128})=)([^\s&#;\"'<>]+)")
_ONE_PARAMETER = r"[\w-]{1,64}=(?:\"[^\"\n]{0,1024}\"|[^\s\"',;\\]{1,1024})"
_PARAMETERS = rf"{_ONE_PARAMETER}(?:,\s{{0,8}}{_ONE_PARAMETER}){{0,32}}"
_HEADER = re.compile(
    # JSON in a string of JSON has backslashes before its quotes.
    r"((?<![A-Za-z])(?:authorization|x-api-key)[\\\"']{0,4}\s{0,8}[:=]\s{0,8}[\\\"']{0,4}"
    r"(?:(?:bearer|basic|digest|token)\s{1,8})?)"
    # A signature comes among parameters: `Digest username="u", response="…"`.
    rf"((?:[\w-]{{1,32}}\s{{1,8}})?{_PARAMETERS}|[^\s\"',;\\]+)",
    re.IGNORECASE,
)
_BEARER = re.compile(
    r"((?<![A-Za-z])bearer\s{1,8})((?=[^\s\"']{0,512}\d)[\w.~+/=-]{8,}|[\w.~+/=-]{16,})",
    re.IGNORECASE,
)


_LEARNT: set[str] = set()
"""The secrets of other programs."""


def hide_secrets_of(environment: Mapping[str, str], arguments: Sequence[str] = ()) -> None:
    """Hide the secrets in variables and arguments from now on.

    The secrets in the variables of this process are always hidden, without a call.
    """
    _LEARNT.update(_secrets_in(environment, arguments))


def known_secrets() -> tuple[str, ...]:
    """Return all texts that are hidden wherever they occur, the longest first.

    They are the known secrets, in each form in which programs write them.
    """
    # With a variable that changes in each test, the forms would be sought anew each time.
    variables = tuple(item for item in os.environ.items() if item[0] != _RUNNING_TEST)
    return _known(variables, frozenset(_LEARNT))


def hide(text: str, secrets: Iterable[str] | None = None) -> str:
    """Return a text without secrets.

    A text may itself mark a secret: as a password or a parameter in a URL, or by `Authorization:`,
    `X-Api-Key:` or `Bearer` before it. Such secrets are hidden too.

    Args:
        secrets: the texts that are hidden wherever they occur; None for all known secrets.
    """
    if secrets is None:
        secrets = known_secrets()
    for secret in secrets:
        text = text.replace(secret, HIDDEN)

    # Looking for a word first is a hundred times faster than the expression.
    if "://" in text:
        text = _PASSWORD.sub(lambda match: f"{match[1] or match[2]}{HIDDEN}", text)
    if "=" in text:
        text = _PARAMETER.sub(_without_parameter, text)
    if any(word in text for word in ("uthorization", "UTHORIZATION", "-key", "-Key", "-KEY")):
        text = _HEADER.sub(_without_value, text)
    if "earer" in text or "EARER" in text:
        text = _BEARER.sub(_without_value, text)
    return text


def hide_bytes(content: bytes, hide: Callable[[str], str] = hide) -> bytes:
    """Return bytes without secrets, as `hide` returns a text. Bytes that aren't UTF-8 are kept."""
    return hide(content.decode(errors="surrogateescape")).encode(errors="surrogateescape")


def _without_parameter(match: re.Match[str]) -> str:
    """Return a parameter of a URL, with its value hidden if its name says that it is secret."""
    before, name, value = match.groups()
    if says_secret(name) and not _SETTING.fullmatch(value):
        return f"{before}{HIDDEN}"
    return match[0]


def _without_value(match: re.Match[str]) -> str:
    """Return a match with its second group hidden, unless that is a mere setting."""
    before, value = match.groups()
    if _SETTING.fullmatch(value):
        return match[0]
    return f"{before}{HIDDEN}"


@functools.lru_cache(maxsize=4096)
def says_secret(name: str) -> bool:
    """Return whether the name of a variable or an option says that its value is secret."""
    # `authToken` has the same parts as `auth_token`.
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    parts = [part for part in re.split(r"[^A-Z0-9]+", words.upper()) if part]
    if not parts or parts[-1] in _ABOUT_A_SECRET or "_".join(parts) in _ORDINARY_NAMES:
        return False
    return any(_SAYS_SECRET.fullmatch(part) for part in parts if part not in _ORDINARY_PARTS)


def _secrets_in(environment: Mapping[str, str], arguments: Sequence[str] = ()) -> set[str]:
    """Return all values that a name or a URL marks as secret, including short ones."""
    # Variables whose names say so.
    secrets = {value for name, value in environment.items() if is_secret(name, value)}

    # Arguments after a flag whose name says so: `--api-key VALUE`.
    flag = ""
    for argument in arguments:
        if argument.startswith("-"):
            flag = "" if "=" in argument else argument
        elif flag and is_secret(flag, argument):
            secrets.add(argument)

    # The address of a proxy may have a password without being a whole URL.
    for name, value in environment.items():
        if name.upper().endswith("_PROXY") and "://" not in value:
            secrets.update(_marked_in(f"http://{value}"))

    # Secrets that are marked inside a value or an argument, such as the password in a URL.
    values = (value for name, value in environment.items() if name != _RUNNING_TEST)
    for text in (*values, *arguments):
        secrets.update(_marked_in(text))
        secrets.update(_assigned_in(text))
        with contextlib.suppress(ValueError, RecursionError):
            secrets.update(_named_in(json.loads(text)))
        # A value may be a command line, as in PYTEST_ADDOPTS or in `command` of a tier.
        words = _words_of(text)
        if len(words) > 1 and "-" in text:
            secrets.update(_secrets_in({}, words))

    return secrets


def _words_of(text: str) -> Sequence[str]:
    """Return the words of a command line. Text that isn't one is divided at its spaces."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _marked_in(text: str) -> Iterator[str]:
    """Yield the passwords and parameters in a text's URLs, and its bearer tokens."""
    if "://" in text:
        for match in _PASSWORD.finditer(text):
            before = match[1] or match[2]
            password = match[0].removeprefix(before)
            # A shorter password is hidden in its URL only.
            if len(password) >= _LEAST_CHARACTERS:
                yield password
                yield unquote(password)
            user = before.removeprefix("://")
            yield _basic(unquote(user + password))

    for _, name, value in _PARAMETER.findall(text):
        if is_secret(name, value) and not _SETTING.fullmatch(value):
            yield value
            yield unquote(value)

    for expression in (_HEADER, _BEARER):
        for match in expression.finditer(text):
            value = _SCHEME.sub("", unquote(match[2]), count=1)
            if not _SETTING.fullmatch(value):
                yield value


def _basic(credentials: str) -> str:
    """Return `user:password` as Basic authorization encodes it."""
    return base64.b64encode(credentials.encode(errors="surrogateescape")).decode()


def _assigned_in(text: str) -> Iterator[str]:
    """Yield the secrets that a text assigns to a name: `token=…`, `"token": "…"`."""
    for match in _ASSIGNED.finditer(text):
        name, double_quoted, single_quoted, bare = match.groups()
        value = double_quoted or single_quoted or bare or ""
        # In `Authorization: Bearer TOKEN` the word before the token isn't secret.
        value = _SCHEME.sub("", unquote(value), count=1)
        # The value may be written as in JSON, with escapes that the secret itself lacks.
        for secret in (value, _decoded(value)):
            if is_secret(name, secret):
                yield secret


def _named_in(value: object, name: str = "") -> Iterator[str]:
    """Yield the secrets in a value of JSON, which has a name: `{"api_keys": ["…", "…"]}`."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _named_in(part, key)
    elif isinstance(value, list):
        for part in value:
            yield from _named_in(part, name)
    elif isinstance(value, str) and is_secret(name, value):
        yield value


def _decoded(text: str) -> str:
    """Return the text that a string of JSON stands for, or the text itself if it isn't one."""
    try:
        decoded = str(json.loads(f'"{text}"'))
        # JSON may escape one half of a surrogate pair, which no program can print.
        decoded.encode(errors="surrogateescape")
    except ValueError:
        return text
    return decoded


def is_secret(name: str, value: str) -> bool:
    """Return whether a value is secret by its name. Its length doesn't matter."""
    if value in {"", HIDDEN} or not says_secret(name):
        return False

    # `max_tokens=64`
    is_count = "TOKENS" in name.upper() and _NUMBER.fullmatch(value) is not None

    # `eos_token=<|end|>`
    is_special_token = value.startswith("<") and value.endswith(">")

    # A file with a secret may have any name, as in `SSH_KEY=/root/.ssh/id`.
    is_path = "/" in value and "\0" not in value and os.access(value, os.F_OK)
    return not (is_count or is_special_token or is_path)


@functools.lru_cache(maxsize=2)
def _known(variables: tuple[tuple[str, str], ...], learnt: frozenset[str]) -> tuple[str, ...]:
    """Return all forms of all secrets.

    Args:
        variables: the variables of this process.
        learnt: the secrets of other programs.
    """
    forms = set[str]()
    for secret in _secrets_in(dict(variables)) | learnt:
        for text in (secret, *_parts_of(secret)):
            if len(text) >= _LEAST_CHARACTERS:
                forms.update(_forms_of(text))
    return tuple(sorted(forms, key=len, reverse=True))


def _parts_of(value: str) -> Iterator[str]:
    """Yield the parts of a secret that may stand alone in a log.

    They are the lines of a private key, the keys of a list, and the value of a cookie.
    """
    for line in value.splitlines():
        yield line.strip()
    for part in re.split(r"[\s,;]+", value):
        yield part
        yield part.partition("=")[2]


def _forms_of(secret: str) -> Iterator[str]:
    """Yield a secret as it is, and as JSON and URLs write it."""
    yield secret
    if ":" in secret:
        yield _basic(secret)
    for is_ascii in (True, False):
        written = json.dumps(secret, ensure_ascii=is_ascii)[1:-1]
        yield written
        # Some programs escape the slash too.
        yield written.replace("/", "\\/")

    for safe in _SAFE_IN_URLS:
        yield quote(secret, safe=safe, errors="surrogateescape")
        yield quote_plus(secret, safe=safe, errors="surrogateescape")
