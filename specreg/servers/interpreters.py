"""Find out what a Python interpreter has, by running it."""

import functools
import subprocess
from collections.abc import Mapping


@functools.cache
def installed_version(python: str, package: str) -> str:
    """Return the version of a package that an interpreter has; empty if it has none."""
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    try:
        done = subprocess.run((python, "-c", code), check=False, capture_output=True, text=True)  # noqa: S603
    except OSError:
        return ""
    return done.stdout.strip()


def why_no_module(python: str, module: str, *, variables: Mapping[str, str]) -> str:
    """Return why an interpreter can't run a module; empty if it can.

    A folder that only has the name of the module isn't one.

    Args:
        python: The interpreter.
        module: The name of the module.
        variables: All environment variables of the interpreter.
    """
    code = (
        f"import importlib.util as u, sys; found = u.find_spec({module!r});"
        " sys.exit(found is None or found.origin is None)"
    )
    try:
        done = subprocess.run((python, "-c", code), check=False, capture_output=True, env=variables)  # noqa: S603
    except OSError as error:
        return f"can't be run, {error.strerror}"
    return f"has no module '{module}'" if done.returncode else ""
