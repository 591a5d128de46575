"""Make text that others wrote fit to be shown: on a terminal, in a CI log, on a page, in a file.

Servers' answers, logs, models' texts, other machines' files and file names may hold anything.
Secrets are hidden, and what a terminal, a CI system or a reader would take for something else is
replaced:

- control characters, characters that turn the direction of writing, separators of lines and
  whatever else isn't printable become `�`, or a space if they count as space;
- sequences that style a text on a terminal are removed;
- `::` that begins a word, `##[` and `##vso[` are taken apart: at the beginning of a line GitHub and
  Azure take them for commands, and any program may break a line before a word.

What is left is legal in XML too.
"""

import re
from collections.abc import Iterable
from typing import Annotated

import msgspec

from specreg.core.redaction import hide

_REPLACEMENT = "\ufffd"
_OWN_STYLE = re.compile(r"\x1b\[(?:0|1|2|3[1-7])?(?:;(?:0|1|2|3[1-7]))*m")
"""The styles in which our own tables are printed: bold, dim and colours of the foreground."""
_STYLING = re.compile(
    # The control sequences of ECMA-48, its control strings, such as the title of a window, and
    # escapes of two or three characters: `tput sgr0` writes one. A sequence may begin with a single
    # control character of 8 bits, which is a surrogate if it wasn't encoded as UTF-8.
    r"(?:\x1b\[|[\x9b\udc9b])[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f\udc90\udc98\udc9d-\udc9f])"
    r"[^\x07\x1b\x90\x98\x9c-\x9f\udc90\udc98\udc9c-\udc9f]*(?:\x07|\x1b\\|[\x9c\udc9c])"
    r"|\x1b(?:[ -/]+[0-~]|[0-OQ-WYZ`-~])"
)
"""The sequences that style a text on a terminal."""
_PLAIN_PATTERN = (
    # No command of a CI system.
    r"^(?!.*(?:(?<!\S)::|##\w*\[))"
    # No control characters, no spaces but the usual one, and nothing that is invisible, turns the
    # direction of writing, is half a surrogate pair, or has no character.
    r"[^\x00-\x1f\x7f-\xa0\xad\u0600-\u0605\u061c\u06dd\u070f\u1680\u180e\u2000-\u200f"
    r"\u2028-\u202f\u205f-\u206f\u3000\ud800-\uf8ff\ufeff\ufff0-\ufffb\ufffe\uffff]*$(?!\n)"
)
"""A text of one line that can be shown as it is. `$` alone would accept a newline at the end."""
Label = Annotated[str, msgspec.Meta(pattern=_PLAIN_PATTERN)]
"""A name in a document that may come from another machine. Names are shown as they are."""
_UNUSUAL = re.compile(r"[^\t\n\x20-\x7e]")
_CI_COMMAND = re.compile(r"(?<!\S):{2,}")
_AZURE_COMMAND = re.compile(r"##(?=\w*\[)")
LINE_CHARACTERS = 4_000
"""The length at which a line of a message is cut in the middle. Some messages quote a whole log,
and the advice at their end must stay."""


def readable_block(
    text: str,
    *,
    styled: bool = False,
    line_characters: int | None = None,
    secrets: Iterable[str] | None = None,
) -> str:
    """Return a text of several lines as it may be shown.

    Args:
        text: what is shown.
        styled: whether our own styles stay, for a terminal.
        line_characters: how many characters of a longer line are kept, half of them from its end;
            None for all. It has no effect on a styled text.
        secrets: as in `hide`.
    """
    if styled:
        # The text between two of our own styles is treated like any other text.
        own_styles = _OWN_STYLE.findall(text)
        parts = [readable_block(part, secrets=secrets) for part in _OWN_STYLE.split(text)]
        return "".join(part + style for part, style in zip(parts, [*own_styles, ""], strict=True))

    text = text.replace("\r\n", "\n")

    # A style begins with an escape character, or with a control character that isn't ASCII.
    if "\x1b" in text or not text.isascii():
        text = _STYLING.sub("", text)
    text = hide(text, secrets)
    text = _UNUSUAL.sub(_printable, text)
    text = without_ci_commands(text)
    if line_characters is not None:
        text = "\n".join(_without_middle(line, line_characters) for line in text.split("\n"))
    return text


def without_ci_commands(text: str) -> str:
    """Return a text in which a CI system finds no command.

    A program that breaks long words into lines needs this for its output too: a line may begin in
    the middle of what was a word.
    """
    text = _CI_COMMAND.sub(_spaced, text)
    return _AZURE_COMMAND.sub("# #", text)


def is_plain(text: str) -> bool:
    """Return whether a text is one line that can be shown as it is."""
    return re.search(_PLAIN_PATTERN, text) is not None


def readable_line(text: str, most_characters: int | None = None) -> str:
    """Return a text as one line, whose end is left out beyond so many characters."""
    line = " ".join(readable_block(text).split())
    if most_characters is not None and len(line) > most_characters:
        line = f"{line[: most_characters - 1]}…"
    return line


def _printable(match: re.Match[str]) -> str:
    character = match[0]
    if character.isprintable():
        return character
    return " " if character.isspace() else _REPLACEMENT


def _spaced(match: re.Match[str]) -> str:
    return " ".join(match[0])


def _without_middle(line: str, most_characters: int) -> str:
    if len(line) <= most_characters:
        return line
    half = most_characters // 2
    return f"{line[:half]}…{line[-half:]}"
