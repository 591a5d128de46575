"""Find out what a Python interpreter has, by running it."""

import functools
from collections.abc import Mapping

from specreg.core.probes import ask_program

PYTHON_CHOICE = "--specreg-engine-python, or a side of a gate"
"""Where a user can name the interpreter that an engine runs with."""


@functools.cache
def installed_version(python: str, package: str) -> str:
    """Return the version of a package that an interpreter has; empty if it lacks the package."""
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    return last_line_of(python, code)


def last_line_of(python: str, code: str) -> str:
    """Return the last line that an interpreter prints; empty if it can't be run or prints nothing.

    Only the last line counts, because a module that the interpreter imports at its start may print
    lines before it.
    """
    try:
        lines = ask_program((python, "-c", code)).stdout.splitlines()
    except OSError:
        return ""
    return lines[-1].strip() if lines else ""


def why_no_module(python: str, module: str, *, variables: Mapping[str, str]) -> str:
    """Return why an interpreter can't run a module; empty if it can.

    Args:
        python: The interpreter.
        module: The name of the module.
        variables: All environment variables of the interpreter.
    """
    # A folder of the module's name without an `__init__.py` has a spec too, but no origin.
    code = (
        f"import importlib.util as u, sys; found = u.find_spec({module!r});"
        " sys.exit(found is None or found.origin is None)"
    )
    try:
        done = ask_program((python, "-c", code), variables)
    except OSError as error:
        return f"can't be run, {error.strerror or error}"
    return f"has no module '{module}'" if done.returncode else ""
