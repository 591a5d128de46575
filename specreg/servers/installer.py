"""Run uv, set up as the user's environment and own files say, and not as the working folder does.

A `uv.toml`, or `[tool.uv]` of a `pyproject.toml`, in the folder in which a run is started may name
an index of packages. An engine's environment would then depend on where it was first needed.
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

_CONFIG_FILE = "UV_CONFIG_FILE"
_INDEXES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL")
_PIP_INDEX = "PIP_INDEX_URL"


def uv_command(*arguments: str) -> tuple[str, ...]:
    """Return the command that runs uv with these arguments."""
    return (uv.find_uv_bin(), "--no-config", "--no-progress", "--color=never", *arguments)


def uv_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for uv.

    `--no-config` has uv read no file but the one that is named: here the user's, else the
    machine's. An index that only pip's variable names is uv's too.
    """
    variables_of_uv = dict(variables)
    config_file = variables.get(_CONFIG_FILE) or _config_file(variables)
    if config_file:
        variables_of_uv[_CONFIG_FILE] = config_file
    elif _PIP_INDEX in variables and not any(name in variables for name in _INDEXES):
        variables_of_uv[_INDEXES[0]] = variables[_PIP_INDEX]
    return variables_of_uv


def _config_file(variables: Mapping[str, str]) -> str:
    """Find the configuration of uv that isn't of a project; empty where there is none."""
    user_folder = variables.get("XDG_CONFIG_HOME") or f"{variables.get('HOME', '')}/.config"
    machine_folders = variables.get("XDG_CONFIG_DIRS") or "/etc/xdg"
    for folder in (user_folder, *machine_folders.split(":"), "/etc"):
        path = Path(folder, "uv", "uv.toml")
        if path.is_file():
            return str(path)
    return ""


def run_uv(log_path: Path, *arguments: str) -> None:
    """Run uv, which may build for an hour; its descendants end with it, however we end.

    Raises:
        subprocess.CalledProcessError: It failed; `stderr` has its last lines.
    """
    command = uv_command(*arguments)
    variables = uv_variables(os.environ)
    process = start_process(command, environment=variables, log_path=log_path, cwd=Path.cwd())
    try:
        status = process.popen.wait()
    finally:
        stop_process(process)
    if status:
        raise subprocess.CalledProcessError(status, command, stderr=process.last_lines())


@functools.cache
def installed_packages(python: str) -> tuple[str, ...]:
    """Return what `uv pip freeze` says of an interpreter; nothing if that can't be run.

    A package of another place than an index has its URL, which may hold a password.
    """
    command = uv_command("pip", "freeze", "--python", python)
    try:
        done = ask_program(command, uv_variables(os.environ))
    except OSError:
        return ()
    lines = done.stdout.splitlines() if done.returncode == 0 else []
    return tuple(map(hide, lines))


def version_in(packages: Iterable[str], name: str) -> str:
    """Return the version of a package, by its normalised name, among those of an environment.

    Returns:
        The version, or where it came from if that is no index; empty if it isn't there.
    """
    return dict(map(_name_and_version, packages)).get(name, "")


def packages_sha256(packages: Sequence[str]) -> str:
    """Return the checksum of the packages of an environment; empty without any."""
    return hashlib.sha256("\n".join(packages).encode()).hexdigest() if packages else ""


def differing_packages(before: Iterable[str], after: Iterable[str]) -> tuple[str, ...]:
    """Say of each package that differs what both have: `numpy 2.4.5 and 2.4.6`."""
    versions_before = dict(map(_name_and_version, before))
    versions_after = dict(map(_name_and_version, after))
    names = sorted(versions_before.keys() | versions_after.keys())
    return tuple(
        f"{name} {versions_before.get(name, 'none')} and {versions_after.get(name, 'none')}"
        for name in names
        if versions_before.get(name) != versions_after.get(name)
    )


def _name_and_version(line: str) -> tuple[str, str]:
    """Take apart `numpy==2.4.6`, or what came from elsewhere: `vllm @ file:///tmp/vllm.whl`."""
    for separator in ("==", " @ "):
        name, separator_found, version = line.partition(separator)
        if separator_found:
            return name, version
    return line, "of a folder"
