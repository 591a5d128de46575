"""Order names and versions as people do, by their numbers: c2 before c16, and 9.2 before 9.10."""

import re

_NUMBER = re.compile(r"(\d+)")


def natural_key(text: str) -> list[str | int]:
    """Return a sort key of a text, which compares the numbers in it as numbers."""
    # Every second part is a number, so that no number is compared with a text.
    parts = _NUMBER.split(text)
    return [int(part) if part.isdecimal() else part for part in parts]
