"""Find the secrets of a run, and hide them in text.

A secret is the value of an environment variable or an option whose name says so (`HF_TOKEN`,
`--api-key`), a password in a URL, a parameter of a URL with such a name, or what follows
`Authorization:` or `Bearer`. A value that is shorter than 8 characters, or that is a word of
specreg's own, can't be hidden wherever it occurs: every text would have holes. `unhidden` names it.

This module needs the standard library alone: the supervisor, which writes the logs, has nothing
else.
"""

import base64
import functools
import html
import json
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple
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
"""Parts of names that end like a secret's and are words of their own."""
_ORDINARY_NAMES = frozenset({"HF_HUB_DISABLE_IMPLICIT_TOKEN", "OLDPWD", "PWD"})
_ABOUT_A_SECRET = frozenset(
    {
        "DIR",
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
"""Last parts of names that hold something about a secret and not the secret: HF_TOKEN_PATH."""
STYLING = re.compile(
    # The control sequences of ECMA-48, its control strings, such as the title of a window, and
    # escapes of two or three characters: `tput sgr0` writes one.
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x90\x98\x9c-\x9f]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b(?:[ -/]+[0-~]|[0-OQ-WYZ`-~])"
)
"""What styles a text on a terminal, and may stand in the middle of a secret."""
_SAFE_IN_URLS = ("", "/", "!'()*", "/?:@!$'()*,", "!$&'()*+,;=:@/?")
"""The characters that programs leave as they are in a URL: Python, JavaScript, aiohttp, httpx."""
_RUNNING_TEST = "PYTEST_CURRENT_TEST"
"""A variable of pytest that changes with each test; what looks like an assignment in it is none."""
_NUMBER = re.compile(r"[\d.,:+-]*")
_SETTING = re.compile(r"[\d.,:+-]*|true|false|none|null", re.IGNORECASE)
"""A parameter of a URL with such a value is no secret: `?max_tokens=64`."""
_SCHEME = re.compile(r"(?:bearer|basic|digest|token)\b\s*", re.IGNORECASE)
_ASSIGNED = re.compile(
    r"(?<![^\s\"'{\[(,;&?=])-{0,2}([A-Za-z_][\w.-]{0,127})[\"']?\s{0,8}[:=]\s{0,8}"
    # The value isn't consumed, so that another assignment in it is seen too.
    r"(?=\"((?:[^\"\\]|\\.)*)\"|'((?:[^'\\]|\\.)*)'|([^\s\"',;&{}\[\]()]+))"
)
"""`name=value`, `--name=value` and `"name": "value"`."""
# Every repetition is bounded: what others write is searched with these, megabytes of it.
_PASSWORD = re.compile(
    r"(://[^\s/:@'\"]{0,256}:)(?:[^\s/'\"]{1,512}|(?!\d+/)[^\s'\"]{1,128}?)(?=@)"
    r"|(://)[^\s/:@'\"]{16,512}(?=@)"
)
"""A password in a URL, after a group that stays: behind a user's name, or a long token alone."""
_PARAMETER = re.compile(r"([?&;#]([\w.-]{1,128})=)([^\s&#;\"'<>]+)")
_HEADER = re.compile(
    # JSON in a string of JSON has backslashes before its quotes.
    r"((?<![A-Za-z])(?:authorization|x-api-key)[\\\"']{0,4}\s{0,8}[:=]\s{0,8}[\\\"']{0,4}"
    r"(?:(?:bearer|basic|digest|token)\s{1,8})?)([^\s\"',;\\]+)",
    re.IGNORECASE,
)
_BEARER = re.compile(
    r"((?<![A-Za-z])bearer\s{1,8})((?=[^\s\"']{0,512}\d)[\w.~+/=-]{8,}|[\w.~+/=-]{16,})",
    re.IGNORECASE,
)


class NamedValue(NamedTuple):
    """A value whose name, of a variable or an option, says that it is secret."""

    name: str
    value: str


_LEARNT: set[NamedValue] = set()
_WORDS: list[str] = [""]
"""All words that were declared, a line each, in one text that is searched at once."""


def hide_secrets_of(environment: Mapping[str, str], arguments: Sequence[str] = ()) -> None:
    """Hide the secrets in variables and arguments from now on.

    The secrets in the variables of this process are always hidden, without being named here.
    """
    _LEARNT.update(_named_values(environment, arguments))


def declare_words(words: Iterable[str]) -> None:
    """Never hide these words, nor parts of them: names of fields, metrics, cases and the like."""
    known = set(_WORDS[0].split("\n"))
    _WORDS[0] = "\n".join(sorted(known.union(words)))


def known_secrets() -> tuple[str, ...]:
    """Return all that is to be hidden wherever it occurs, in each of its forms, longest first."""
    # With a variable that changes in each test, the forms would be sought anew each time.
    variables = tuple(item for item in os.environ.items() if item[0] != _RUNNING_TEST)
    return _known(variables, frozenset(_LEARNT), _WORDS[0])


def unhidden() -> tuple[str, ...]:
    """Return each variable and option whose secret value can't be hidden, with the reason."""
    named = _named_values(os.environ, ()) | _LEARNT
    reasons = {
        f"{value.name} ({reason})" for value in named if (reason := _why_unhidden(value.value))
    }
    return tuple(sorted(reasons))


def hide(text: str, secrets: Iterable[str] | None = None) -> str:
    """Return a text without secrets.

    A text marks a secret of its own by writing a password or a parameter into a URL, or by
    `Authorization:` or `Bearer` before it. Those are hidden too.

    Args:
        text: the text.
        secrets: what is hidden wherever it occurs; None for all that is known.
    """
    if secrets is None:
        secrets = known_secrets()
    text = _hide_unstyled(text, secrets)
    if "\x1b" in text:
        lines = text.split("\n")
        text = "\n".join(_hide_styled(line, secrets) for line in lines)
    return text


def hide_bytes(content: bytes, hide: Callable[[str], str] = hide) -> bytes:
    """Return any bytes without secrets, as `hide` does with a text."""
    return hide(content.decode(errors="surrogateescape")).encode(errors="surrogateescape")


def _hide_unstyled(text: str, secrets: Iterable[str]) -> str:
    """Return a text without the secrets in which no style stands."""
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


def _hide_styled(line: str, secrets: Iterable[str]) -> str:
    """Return a line without its secrets; it loses its styles if one splits a secret."""
    hidden = _hide_unstyled(line, secrets)
    without_styles = _hide_unstyled(STYLING.sub("", line), secrets)
    return hidden if STYLING.sub("", hidden) == without_styles else without_styles


def _without_parameter(match: re.Match[str]) -> str:
    before, name, value = match.groups()
    is_secret = says_secret(name) and not _SETTING.fullmatch(value)
    return f"{before}{HIDDEN}" if is_secret else match[0]


def _without_value(match: re.Match[str]) -> str:
    return match[0] if _SETTING.fullmatch(match[2]) else f"{match[1]}{HIDDEN}"


@functools.lru_cache(maxsize=4096)
def says_secret(name: str) -> bool:
    """Return whether the name of a variable or an option says that its value is secret."""
    # `authToken` has the same parts as `auth_token`.
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    parts = [part for part in re.split(r"[^A-Z0-9]+", words.upper()) if part]
    if not parts or parts[-1] in _ABOUT_A_SECRET or "_".join(parts) in _ORDINARY_NAMES:
        return False
    return any(_SAYS_SECRET.fullmatch(part) for part in parts if part not in _ORDINARY_PARTS)


def _named_values(
    environment: Mapping[str, str], arguments: Sequence[str] = ()
) -> frozenset[NamedValue]:
    """Return all values that a name or a URL marks as secret, short ones as well."""
    assigned = {
        NamedValue(name, value) for name, value in environment.items() if _is_secret(name, value)
    }
    flag = ""
    for argument in arguments:
        if argument.startswith("--"):
            flag = "" if "=" in argument else argument
        elif flag and _is_secret(flag, argument):
            assigned.add(NamedValue(flag, argument))
    for name, value in environment.items():
        if name.upper().endswith("_PROXY") and "://" not in value:
            assigned.update(_marked_in(f"http://{value}"))
    values = (value for name, value in environment.items() if name != _RUNNING_TEST)
    for text in (*values, *arguments):
        assigned.update(_marked_in(text))
        assigned.update(_assigned_in(text))
        # A command line, as in PYTEST_ADDOPTS or in `command` of a tier.
        words = _words_of(text)
        if len(words) > 1 and "--" in text:
            assigned.update(_named_values({}, words))
    return frozenset(assigned)


def _words_of(text: str) -> Sequence[str]:
    """Return the words of a command line; of a text that is none, what spaces separate."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _marked_in(text: str) -> Iterator[NamedValue]:
    """Yield the passwords and parameters in a text's URLs, and its bearer tokens."""
    if "://" in text:
        for match in _PASSWORD.finditer(text):
            password = match[0].removeprefix(match[1] or match[2])
            if len(password) >= _LEAST_CHARACTERS:  # a short one is hidden in its URL alone
                yield NamedValue("the password of a URL", password)
                yield NamedValue("the password of a URL", unquote(password))
    for _, name, value in _PARAMETER.findall(text):
        if _is_secret(name, value) and not _SETTING.fullmatch(value):
            yield NamedValue(name, value)
            yield NamedValue(name, unquote(value))
    for match in _BEARER.finditer(text):
        yield NamedValue("a bearer token", match[2])


def _assigned_in(text: str) -> Iterator[NamedValue]:
    """Yield the secrets that stand in a text behind a name: `token=…`, `"token": "…"`."""
    for match in _ASSIGNED.finditer(text):
        name, (double_quoted, single_quoted, bare) = match[1], match.groups()[1:]
        value = double_quoted or single_quoted or bare or ""
        value = _SCHEME.sub("", unquote(value), count=1)
        for secret in dict.fromkeys((value, _decoded(value))):
            if _is_secret(name, secret):
                yield NamedValue(name, secret)


def _decoded(text: str) -> str:
    """Return what a string of JSON stands for; the text itself where it is none."""
    try:
        return str(json.loads(f'"{text}"'))
    except ValueError:
        return text


def _is_secret(name: str, value: str) -> bool:
    """Return whether a value is secret by its name, whatever its length."""
    is_count = "TOKENS" in name.upper() and _NUMBER.fullmatch(value)
    is_special_token = value.startswith("<") and value.endswith(">")  # eos_token=<|end|>
    return (
        value not in {"", HIDDEN}
        and says_secret(name)
        and not is_count
        and not is_special_token
        and "://" not in value  # the password in it, if there is one, is
        and not ("/" in value and os.access(value, os.F_OK))
    )


def _why_unhidden(value: str) -> str:
    """Say why a secret isn't hidden where it occurs; empty of one that is."""
    if len(value) < _LEAST_CHARACTERS:
        return f"shorter than {_LEAST_CHARACTERS} characters"
    if "\n" not in value and value in _WORDS[0]:
        return "a word that specreg itself writes"
    return ""


@functools.lru_cache(maxsize=2)
def _known(
    variables: tuple[tuple[str, str], ...], learnt: frozenset[NamedValue], words: str
) -> tuple[str, ...]:
    """Return all forms of all secrets; `words` are part of what decides, and so of the key."""
    del words
    named = _named_values(dict(variables)) | learnt
    forms = set[str]()
    for value in {secret.value for secret in named}:
        for text in {value, *_parts_of(value)}:
            if not _why_unhidden(text):
                forms.update(_forms_of(text))
    return tuple(sorted(forms, key=len, reverse=True))


def _parts_of(value: str) -> Iterator[str]:
    """Yield what a log may have alone: the lines of a key, the keys of a list, a cookie's value."""
    for line in value.splitlines():
        yield line.strip()
    for part in re.split(r"[\s,;]+", value):
        yield part
        yield part.partition("=")[2]


def _forms_of(secret: str) -> Iterator[str]:
    """Yield a secret in each way in which programs write it."""
    for written in {secret, shlex.quote(secret).strip("'"), *_quoted(secret)}:
        yield written
        yield from _quoted(written)  # JSON in a log of JSON, or in the repr of a command
    for encode in (quote, quote_plus):
        for safe in _SAFE_IN_URLS:
            encoded = encode(secret, safe=safe, errors="surrogateescape")
            yield encoded
            yield re.sub(r"%[0-9A-F]{2}", lambda match: match[0].lower(), encoded)
    content = secret.encode(errors="surrogateescape")
    yield content.hex()
    yield content.hex().upper()
    for alphabet in (base64.b64encode, base64.urlsafe_b64encode):
        yield alphabet(content).decode()
        yield from _inside_base64(content, alphabet)


def _quoted(text: str) -> Iterator[str]:
    """Yield a text as it stands between quotes in HTML, Python and JSON."""
    yield html.escape(text)
    yield html.escape(text, quote=False)
    yield repr(text)[1:-1]
    yield ascii(text)[1:-1]
    yield repr(text.encode(errors="surrogateescape"))[2:-1]
    for is_ascii in (True, False):
        quoted = json.dumps(text, ensure_ascii=is_ascii)[1:-1]
        yield quoted
        yield quoted.replace("/", r"\/")
        yield re.sub("[<>&]", _go_escape, quoted)


def _go_escape(match: re.Match[str]) -> str:
    """Return a character as Go writes it in JSON, so that it is no HTML."""
    return f"\\u{ord(match[0]):04x}"


def _inside_base64(content: bytes, alphabet: Callable[[bytes], bytes]) -> Iterator[str]:
    """Yield what every base64 of a text with the content in it has: `user:password`, for one.

    Three bytes are four characters, so there is one form for each remainder of what precedes it.
    The characters that it shares with its neighbours are left out.
    """
    for before_bytes in range(3):
        encoded = alphabet(bytes(before_bytes) + content).decode()
        first = -(-8 * before_bytes // 6)
        end = 8 * (before_bytes + len(content)) // 6
        yield encoded[first:end]
