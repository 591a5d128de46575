"""Where a text is shown: how wide it may be, and whether it has colours."""

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass

_LOG_COLUMNS = 110
"""The width of a log, which nobody can widen."""
_LEAST_COLUMNS = 80
_MOST_COLUMNS = 200
"""A wider table would be hard to follow from its first column to its last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """A terminal, or a file such as the log of a CI job.

    Attributes:
        columns: how many characters a line of a table may have.
        color: whether texts have escape sequences for colours.
        verbose: whether to show what usually is only counted, such as figures that hold.
    """

    columns: int = _LOG_COLUMNS
    color: bool = False
    verbose: bool = False


LOG = Screen()


def screen_here(environment: Mapping[str, str] = os.environ) -> Screen:
    """Return the terminal on standard output, or a log if there is none."""
    if not sys.stdout.isatty():
        return LOG
    columns, _ = shutil.get_terminal_size()
    return Screen(columns=bounded(columns), color="NO_COLOR" not in environment)


def bounded(columns: int) -> int:
    """Return the width of tables on a terminal with so many columns."""
    return min(max(columns, _LEAST_COLUMNS), _MOST_COLUMNS)
