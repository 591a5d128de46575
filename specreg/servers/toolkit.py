"""The CUDA toolkit that an engine's packages bring, for a machine that has a driver alone.

SGLang compiles kernels while it starts and serves. Its packages bring nvcc, in `nvidia/cu13`, and
neither of the names that tvm-ffi and FlashInfer link with: `-L$CUDA_HOME/lib64 -lcudart -lcuda`. So
CUDA_HOME is set to a folder of links in which they exist.
"""

import contextlib
import functools
import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from specreg.core.files import cache_dir, passing_folder
from specreg.core.probes import ask_program
from specreg.engines.launch_facts import NONE

_NVCC = "bin/nvcc"
_INSTALLED = Path("/usr/local/cuda")
_DRIVER_FOLDERS = tuple(
    map(
        Path,
        (
            "/usr/lib/x86_64-linux-gnu",
            "/usr/lib/aarch64-linux-gnu",
            "/usr/lib64",
            "/usr/local/nvidia/lib64",
            "/usr/lib/wsl/lib",
        ),
    )
)
"""Where distributions and containers have the libraries of NVIDIA's driver."""
_RELEASE = re.compile(r"release (?P<release>[\d.]+)")
_NUMBERED = re.compile(r"(?P<linked>lib.+\.so)\.[\d.]+")


def toolkit_variables(
    python: Path, variables: Mapping[str, str], installed: Path = _INSTALLED
) -> Mapping[str, str]:
    """Return the variables by which a server finds the toolkit of its environment.

    Args:
        python: the interpreter of the environment.
        variables: the environment variables of the server.
        installed: where a toolkit is found without a variable.

    Returns:
        CUDA_HOME; nothing if the machine has a toolkit or the environment brings none.

    Raises:
        OSError: the links can't be written.
    """
    if variables.get("CUDA_HOME") or variables.get("CUDA_PATH"):
        return {}
    if _compiler(variables, installed) is not None:
        return {}
    toolkit = _toolkit_of(python)
    if toolkit is None:
        return {}
    searched = variables.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    driver_folders = [*map(Path, filter(None, searched)), *_DRIVER_FOLDERS]
    return {"CUDA_HOME": str(_linked(toolkit, driver_folders))}


def has_toolkit(python: Path, variables: Mapping[str, str], installed: Path = _INSTALLED) -> bool:
    """Return whether a server finds a CUDA toolkit, of the machine or of its environment.

    Args:
        python: the interpreter of the environment.
        variables: the environment variables of the server.
        installed: where a toolkit is found without a variable.
    """
    return _compiler(variables, installed) is not None or _toolkit_of(python) is not None


def toolkit_release(variables: Mapping[str, str], installed: Path = _INSTALLED) -> str:
    """Return the release of the CUDA compiler that a server finds, such as 13.0.

    Args:
        variables: the environment variables of the server.
        installed: where a toolkit is found without a variable.

    Returns:
        "none" without a compiler; empty if it doesn't say its release.
    """
    compiler = _compiler(variables, installed)
    return NONE if compiler is None else _release_of(compiler)


def _compiler(variables: Mapping[str, str], installed: Path) -> Path | None:
    """Return the nvcc that builds find: by CUDA_HOME, CUDA_PATH or PATH, or where it usually is."""
    homes = [variables[name] for name in ("CUDA_HOME", "CUDA_PATH") if variables.get(name)]
    if homes:
        compiler = Path(homes[0]) / _NVCC
        return compiler if compiler.exists() else None
    on_path = shutil.which("nvcc", path=variables.get("PATH", ""))
    if on_path is not None:
        return Path(on_path)
    compiler = installed / _NVCC
    return compiler if compiler.exists() else None


@functools.cache
def _release_of(compiler: Path) -> str:
    try:
        done = ask_program((str(compiler), "--version"))
    except OSError:
        return ""
    release = _RELEASE.search(done.stdout)
    return release["release"] if release is not None else ""


def _toolkit_of(python: Path) -> Path | None:
    """Return the folder of the newest toolkit in an interpreter's environment, None without any."""
    compilers = python.parents[1].glob(f"lib/python3*/site-packages/nvidia/cu*/{_NVCC}")
    return max((compiler.parents[1] for compiler in compilers), default=None)


def _linked(toolkit: Path, driver_folders: Sequence[Path]) -> Path:
    """Return a folder of links to a toolkit, the same one each time.

    What is compiled names this folder, and would be compiled anew if it were another.
    """
    digest = hashlib.sha256(os.fsencode(toolkit)).hexdigest()
    home = cache_dir() / "toolkits" / digest[:16]
    (home / "lib64").mkdir(parents=True, exist_ok=True)
    for entry in toolkit.iterdir():
        _link(home / entry.name, entry)
    for name, library in _libraries(toolkit, driver_folders):
        _link(home / "lib64" / name, library)
    return home


def _libraries(toolkit: Path, driver_folders: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """Yield the libraries of a toolkit and of the driver, by the names that linkers look for."""
    drivers = (folder / "libcuda.so.1" for folder in driver_folders)
    driver = next((library for library in drivers if library.exists()), None)
    libraries = sorted((toolkit / "lib").glob("lib*"))
    for library in (*libraries, *([driver] if driver is not None else [])):
        yield library.name, library
        if numbered := _NUMBERED.fullmatch(library.name):
            yield numbered["linked"], library


def _link(path: Path, target: Path) -> None:
    """Make a link that is there at any moment, also for other processes that make it."""
    with contextlib.suppress(OSError):
        if path.readlink() == target:
            return
    with passing_folder(path) as folder:
        part = folder / path.name
        part.symlink_to(target)
        part.replace(path)
