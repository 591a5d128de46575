"""Run uv with the user's configuration, and ignore the configuration of the working folder.

A `uv.toml`, or the `[tool.uv]` table of a `pyproject.toml`, may name an index of packages. If uv
read the one in the working folder, the content of an engine's environment would depend on the
folder from which the first run was started.
"""

import functools
import hashlib
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import uv

from specreg.core.probes import ask_program
from specreg.core.processes import start_process, stop_process
from specreg.core.redaction import hide
from specreg.servers.interpreters import is_script, packages_of

_CONFIG_FILE = "UV_CONFIG_FILE"
_INDEXES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL")
_PIP_INDEX = "PIP_INDEX_URL"


def uv_command(*arguments: str) -> tuple[str, ...]:
    """Return the command that runs uv with these arguments."""
    return (uv.find_uv_bin(), "--no-config", "--no-progress", "--color=never", *arguments)


def uv_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that uv runs with.

    With `--no-config`, uv reads only the file that UV_CONFIG_FILE names. That is the file that the
    user has named, else the user's own configuration, else the machine's.

    Args:
        variables: the environment variables of specreg itself.

    Returns:
        Those variables with UV_CONFIG_FILE set. If there is no file, and only pip's variable names
        an index, uv's variable is set to that index instead.
    """
    variables_of_uv = dict(variables)
    config_file = variables.get(_CONFIG_FILE) or _config_file(variables)
    if config_file:
        variables_of_uv[_CONFIG_FILE] = config_file
        return variables_of_uv
    uv_has_index = any(name in variables for name in _INDEXES)
    if _PIP_INDEX in variables and not uv_has_index:
        variables_of_uv[_INDEXES[0]] = variables[_PIP_INDEX]
    return variables_of_uv


def _config_file(variables: Mapping[str, str]) -> str:
    """Return the path of the user's or the machine's configuration of uv; empty without one."""
    # These are the folders in which uv itself looks, in its order.
    user_folder = variables.get("XDG_CONFIG_HOME") or f"{variables.get('HOME', '')}/.config"
    machine_folders = variables.get("XDG_CONFIG_DIRS") or "/etc/xdg"
    for folder in (user_folder, *machine_folders.split(":"), "/etc"):
        path = Path(folder, "uv", "uv.toml")
        if path.is_file():
            return str(path)
    return ""


def run_uv(log_path: Path, *arguments: str) -> None:
    """Run uv and wait for it, which may take an hour if it builds an engine from source.

    Args:
        log_path: the file that gets the output.
        arguments: the arguments of uv.

    Raises:
        subprocess.CalledProcessError: uv failed; `stderr` has the last lines of the output.
        OSError: uv can't be run, or the log can't be written.
    """
    command = uv_command(*arguments)
    variables = uv_variables(os.environ)

    # A supervised process ends with its compilers even if specreg is killed.
    process = start_process(command, environment=variables, log_path=log_path, cwd=Path.cwd())
    try:
        status = process.popen.wait()
    finally:
        stop_process(process)

    if status:
        raise subprocess.CalledProcessError(status, command, stderr=process.last_lines())


@functools.cache
def installed_packages(python: str, module_path: str = "") -> tuple[str, ...]:
    """Return the packages that an interpreter imports, as `uv pip freeze` lists them.

    Args:
        python: the path of the interpreter.
        module_path: its `PYTHONPATH`. A package in one of these folders hides the same package of
            the environment, and an earlier folder comes before a later one.

    Returns:
        A line for each package, such as `numpy==2.4.6`; empty if uv can't list them.
    """
    if is_script(python):
        # It may run in a container, and uv would list what this machine has in the same folder.
        return packages_of(python, {**os.environ, "PYTHONPATH": module_path})
    try:
        packages = _frozen("--python", python)
        for folder in reversed(module_path.split(os.pathsep)):
            if folder:
                packages = {**packages, **_frozen("--path", folder)}
    except (OSError, subprocess.CalledProcessError):
        return ()

    # A package that came from a URL is listed with its URL, which may hold a password.
    return tuple(hide(line) for line in packages.values())


def _frozen(*option: str) -> dict[str, str]:
    """Return the lines of `uv pip freeze` by the name of their package.

    Args:
        option: the option of uv that says which environment or folder it lists, and its value.

    Raises:
        OSError: uv can't be run.
        subprocess.CalledProcessError: uv failed.
    """
    done = ask_program(uv_command("pip", "freeze", *option), uv_variables(os.environ))
    done.check_returncode()
    return {_name_and_version(line)[0]: line for line in done.stdout.splitlines()}


def version_in(packages: Iterable[str], name: str) -> str:
    """Return the version of a package in an environment.

    Args:
        packages: the packages of the environment, as `installed_packages` returns them.
        name: the normalised name of the package, such as `flashinfer-python`.

    Returns:
        The version, or the URL if the package came from one instead of an index; empty if the
        environment doesn't have the package, or has it installed as editable.
    """
    return _versions_by_name(packages).get(name, "")


def packages_sha256(packages: Sequence[str]) -> str:
    """Return the checksum of an environment's packages; empty if there are no packages."""
    if not packages:
        return ""
    return hashlib.sha256("\n".join(packages).encode()).hexdigest()


def differing_packages(before: Iterable[str], after: Iterable[str]) -> tuple[str, ...]:
    """Return a text such as `numpy 2.4.5 -> 2.4.6` for each package that differs.

    The version of a package that an environment lacks is `none`.
    """
    versions_before = _versions_by_name(before)
    versions_after = _versions_by_name(after)
    names = sorted(versions_before.keys() | versions_after.keys())
    return tuple(
        f"{name} {versions_before.get(name, 'none')} -> {versions_after.get(name, 'none')}"
        for name in names
        if versions_before.get(name) != versions_after.get(name)
    )


def _versions_by_name(packages: Iterable[str]) -> dict[str, str]:
    """Return the version of each package of an environment."""
    return dict(_name_and_version(line) for line in packages)


def _name_and_version(line: str) -> tuple[str, str]:
    """Split a line of `uv pip freeze` into the name of a package and its version.

    The line is `numpy==2.4.6`, or `vllm @ file:///tmp/vllm.whl` if the package isn't from an index.
    For a package that is installed as editable it is `-e file:///src/vllm`, without its name. Then
    the whole line stands for the name.
    """
    for separator in ("==", " @ "):
        name, separator_found, version = line.partition(separator)
        if separator_found:
            return name, version
    return line, "from a folder"
