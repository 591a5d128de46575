"""Find out what a Python interpreter has, by running it."""

import contextlib
import functools
from collections.abc import Mapping
from pathlib import Path

import msgspec

from specreg.core.files import UNREADABLE
from specreg.core.probes import ask_program

LIST_PACKAGES = """
import importlib.metadata, json, re, sys
packages = {}
for found in importlib.metadata.distributions():
    name = re.sub(r"[-_.]+", "-", found.metadata["Name"] or "").lower()
    if name:
        packages.setdefault(name, name + "==" + found.version)
print(json.dumps({"python": sys.executable, "packages": sorted(packages.values())}))
"""
"""Code that prints `Contents`. It needs the standard library alone."""
PYTHON_CHOICE = "--specreg-engine-python, or a side of a gate"
"""Where a user can name the interpreter that an engine runs with."""


class Contents(msgspec.Struct, frozen=True):
    """What an interpreter says about itself.

    Attributes:
        python: its path, which in a container is one in the container.
        packages: the packages that it imports, such as `numpy==2.4.6`.
    """

    python: str
    packages: tuple[str, ...]


def read_contents(output: str) -> Contents | None:
    """Return what `LIST_PACKAGES` has printed, perhaps between other lines; None if it hasn't."""
    for line in output.splitlines():
        with contextlib.suppress(*UNREADABLE):
            return msgspec.json.decode(line, type=Contents)
    return None


def is_script(python: str) -> bool:
    """Return whether an interpreter is a script, which may start one in an image of a container."""
    try:
        with Path(python).open("rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return False


def packages_of(python: str, variables: Mapping[str, str]) -> tuple[str, ...]:
    """Return the packages that an interpreter lists itself; empty if it can't be run."""
    with contextlib.suppress(OSError):
        contents = read_contents(ask_program((python, "-c", LIST_PACKAGES), variables).stdout)
        if contents is not None:
            return contents.packages
    return ()


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
        python: the interpreter.
        module: the name of the module.
        variables: all environment variables of the interpreter.
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
