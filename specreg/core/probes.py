"""Ask a program that is on this machine about itself: its version, its packages, its folders."""

import os
import subprocess
from collections.abc import Mapping, Sequence

from specreg.core.files import refusal

SAFE_PATH = "PYTHONSAFEPATH"
"""With this variable, Python takes no module of the folder in which it is started.

A `csv.py` or a `vllm` there would take the place of what the environment has. Before Python 3.11
the variable has no effect.
"""
_WITHIN_S = 120.0
"""The first import of a large package from a slow disk takes most of a minute."""


def ask_program(
    command: Sequence[str],
    variables: Mapping[str, str] = os.environ,
    *,
    within_s: float = _WITHIN_S,
) -> subprocess.CompletedProcess[str]:
    """Run a program that answers and ends, and return its output.

    Bytes that aren't UTF-8 are replaced.

    Args:
        command: the program and its arguments.
        variables: all its environment variables. `SAFE_PATH` is added if they don't have it.
        within_s: how long it may take, in seconds.

    Raises:
        OSError: the program can't be run, or doesn't end in time; `strerror` says which.
    """
    try:
        return subprocess.run(  # noqa: S603 - no shell
            tuple(command),
            check=False,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            env={SAFE_PATH: "1", **variables},
            stdin=subprocess.DEVNULL,
            timeout=within_s,
        )
    except subprocess.TimeoutExpired as error:
        raise refusal(f"doesn't end within {within_s:g} s") from error
    except ValueError as error:  # a NUL character
        raise refusal(f"is no program, {error}") from error
