"""The grammar of names that become parts of paths, of commands and of test ids.

The name of an environment, a model pair, a tier or a run has up to 64 characters. The id of a case
is composed of several names and has up to 128. Letters, digits, `_`, `.` and `-` of ASCII are all
that a name may have, so it means the same to a file system, to a shell and to pytest.
"""

import re
from typing import Annotated

import msgspec

from specreg.core.errors import SpecregError

MAX_NAME_CHARACTERS = 64
MAX_CASE_CHARACTERS = 128
"""The most characters of a case's id.

An id with the suffixes of a log and of a temporary file is the name of a file, and such a name must
not exceed 255 bytes.
"""
_SHOWN_CHARACTERS = 80
"""How much of a wrong name a message shows."""


def _characters(most: int) -> str:
    return rf"[A-Za-z0-9_.-]{{1,{most}}}"


def _pattern(most_characters: int) -> str:
    """Return the regular expression of a name, for `re.search` and for a JSON Schema.

    `$` alone would accept a newline at the end.
    """
    return rf"^(?!\.{{1,2}}$){_characters(most_characters)}$(?!\n)"


NAME_PATTERN = _pattern(MAX_NAME_CHARACTERS)
CASE_PATTERN = _pattern(MAX_CASE_CHARACTERS)
Name = Annotated[str, msgspec.Meta(pattern=NAME_PATTERN)]
"""The name of an environment, a model pair, a tier, a run, a metric or a check."""
CaseId = Annotated[str, msgspec.Meta(pattern=CASE_PATTERN)]
_CASE = _characters(MAX_CASE_CHARACTERS)
ReportedCase = Annotated[str, msgspec.Meta(pattern=rf"^(?!\.{{1,2}}$){_CASE}( > {_CASE})?$(?!\n)")]
"""The id of a case, or the ids of the two cases that a gate compares if they differ."""


def is_name(text: str, most_characters: int = MAX_NAME_CHARACTERS) -> bool:
    """Return whether a text keeps to the grammar of names."""
    return re.search(_pattern(most_characters), text) is not None


def check_spelling(kind: str, name: str, most_characters: int = MAX_NAME_CHARACTERS) -> None:
    """Check that a name keeps to the grammar.

    Raises:
        SpecregError: the name doesn't. The message says what a name may have.
    """
    if not is_name(name, most_characters):
        shown = name
        if len(name) > _SHOWN_CHARACTERS:
            shown = f"{name[:_SHOWN_CHARACTERS]}…"
        raise SpecregError(
            f"{kind} '{shown}': is no name, got {len(name)} characters, needed 1 to"
            f" {most_characters} of A-Z, a-z, 0-9, '_', '.' and '-', and not '.' or '..' alone;"
            " give it another name"
        )
