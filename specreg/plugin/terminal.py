"""Find out whether the terminal can show colours, and progress on a line that is overwritten."""

import os
from collections.abc import Callable

import pytest

from specreg.plugin.xdist import is_worker
from specreg.report.screen import LOG, Screen, bounded

_CI_VARIABLES = ("CI", "BUILD_NUMBER")
"""The variables that CI services set. A job may run in a terminal there, but nobody watches it."""


def cursor_column(config: pytest.Config) -> Callable[[], int] | None:
    """Return a function that gives the column in which pytest's output ends.

    Returns:
        The function, which counts columns from 0; None if progress can't be shown in place,
        because there is no terminal or nobody watches it.
    """
    is_ci = any(os.environ.get(name) for name in _CI_VARIABLES)
    is_dumb = os.environ.get("TERM") == "dumb"
    is_terminal = os.isatty(1) and os.isatty(2)
    if is_ci or is_dumb or is_worker(config) or not is_terminal:
        return None

    def column() -> int:
        if not config.pluginmanager.hasplugin("terminalreporter"):
            return 0
        return config.get_terminal_writer().width_of_current_line

    return column


def screen_of(config: pytest.Config) -> Screen:
    """Return where pytest writes."""
    writer = config.get_terminal_writer()
    columns = LOG.columns
    if os.isatty(1):
        columns = bounded(writer.fullwidth)
    return Screen(
        columns=columns,
        color=bool(writer.hasmarkup) and "NO_COLOR" not in os.environ,
        verbose=config.get_verbosity() > 0,
    )
