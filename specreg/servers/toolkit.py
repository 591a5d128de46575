"""Use the CUDA toolkit that an engine's packages bring, on a machine that only has a driver.

vLLM and SGLang compile kernels while they start and serve. Their packages bring nvcc in
`nvidia/cu13`, but tvm-ffi and FlashInfer link with `-L$CUDA_HOME/lib64 -lcudart -lcuda`, and the
packages have neither that folder nor libraries of those names. So CUDA_HOME is set to a folder of
links that has both.
"""

import contextlib
import functools
import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from specreg.core.files import cache_dir, temporary_folder_beside
from specreg.core.natural_order import natural_key
from specreg.core.probes import ask_program
from specreg.engines.launch_facts import NONE

_NVCC = "bin/nvcc"
_DEFAULT_HOME = Path("/usr/local/cuda")
_DRIVER_FOLDERS = (
    Path("/usr/lib/x86_64-linux-gnu"),
    Path("/usr/lib/aarch64-linux-gnu"),
    Path("/usr/lib64"),
    Path("/usr/local/nvidia/lib64"),
    Path("/usr/lib/wsl/lib"),
)
"""The folders in which distributions and containers have the libraries of NVIDIA's driver."""
_RELEASE = re.compile(r"release (?P<release>[\d.]+)")
_CUDART_VERSION = re.compile(r"^#define\s+CUDART_VERSION\s+(?P<number>\d+)", re.MULTILINE)
_NUMBERED = re.compile(r"(?P<linked>lib.+\.so)\.[\d.]+")


def toolkit_variables(
    python: Path, variables: Mapping[str, str], default_home: Path = _DEFAULT_HOME
) -> Mapping[str, str]:
    """Return the variables that a server needs to find the toolkit of its environment.

    Args:
        python: the interpreter of the environment.
        variables: the environment variables of the server.
        default_home: the machine's toolkit.

    Returns:
        CUDA_HOME; empty if the server doesn't compile with the toolkit of its environment.

    Raises:
        OSError: the links can't be written.
    """
    compiler = server_compiler(python, variables, default_home)
    if compiler is None or compiler != _packaged_compiler(python):
        return {}
    searched = variables.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    driver_folders = [*map(Path, filter(None, searched)), *_DRIVER_FOLDERS]
    return {"CUDA_HOME": str(_linked(_home_of(compiler), driver_folders))}


def server_compiler(
    python: Path, variables: Mapping[str, str], default_home: Path = _DEFAULT_HOME
) -> Path | None:
    """Return the nvcc that a server compiles with.

    The toolkit that a variable names comes first. Then comes the one of the environment, whose
    release is the one of torch, and last the machine's.

    Args:
        python: the interpreter of the environment.
        variables: the environment variables of the server.
        default_home: the machine's toolkit.

    Returns:
        The path of nvcc; None if there is none, or if the folder that a variable names has none.
    """
    machine_compiler = _compiler(variables, default_home)
    packaged_compiler = _packaged_compiler(python)
    if named_home(variables) or packaged_compiler is None:
        return machine_compiler

    # pip installs vLLM and SGLang with the newest nvcc beside older headers, which it refuses.
    if machine_compiler is not None and differs_from_headers(packaged_compiler):
        return machine_compiler
    return packaged_compiler


def toolkit_release(variables: Mapping[str, str], default_home: Path = _DEFAULT_HOME) -> str:
    """Return the release of the CUDA compiler that a server finds, such as 13.0.

    Args:
        variables: the environment variables of the server.
        default_home: the machine's toolkit, which is used if neither a variable nor PATH leads to
            another one.

    Returns:
        The release; `"none"` if there is no compiler, empty if the compiler doesn't report it.
    """
    compiler = _compiler(variables, default_home)
    return NONE if compiler is None else release_of(compiler)


def differs_from_headers(compiler: Path) -> bool:
    """Return whether an nvcc is known to be of another release than the headers beside it."""
    releases = {release_of(compiler), headers_release(compiler)}
    return "" not in releases and len(releases) > 1


def headers_release(compiler: Path) -> str:
    """Return the release of the headers that belong to an nvcc; empty if it isn't known."""
    try:
        text = (_home_of(compiler) / "include/cuda_runtime_api.h").read_text(errors="replace")
    except OSError:
        return ""

    defined = _CUDART_VERSION.search(text)
    if defined is None:
        return ""

    # 13.0 is written as 13000, and 12.9 as 12090.
    major, rest = divmod(int(defined["number"]), 1000)
    return f"{major}.{rest // 10}"


@functools.cache
def release_of(compiler: Path) -> str:
    """Return the release that an nvcc reports; empty if it can't be run."""
    try:
        done = ask_program((str(compiler), "--version"))
    except OSError:
        return ""
    release = _RELEASE.search(done.stdout)
    return release["release"] if release is not None else ""


def named_home(variables: Mapping[str, str]) -> str:
    """Return the folder of a toolkit that a variable names; empty if none does."""
    return variables.get("CUDA_HOME") or variables.get("CUDA_PATH") or ""


def _compiler(variables: Mapping[str, str], default_home: Path) -> Path | None:
    """Return the nvcc that builds would use: of CUDA_HOME or CUDA_PATH, on PATH, or the machine's.

    Returns:
        The path of nvcc; None if there is none, or if the folder that a variable names has none.
    """
    home = named_home(variables)
    if home:
        named = Path(home) / _NVCC
        # `Path.exists` raises an error for a name that is too long.
        return named if os.path.exists(named) else None  # noqa: PTH110

    on_path = shutil.which("nvcc", path=variables.get("PATH", ""))
    if on_path is not None:
        return Path(on_path)
    compiler = default_home / _NVCC
    return compiler if compiler.exists() else None


def _packaged_compiler(python: Path) -> Path | None:
    """Return the newest nvcc in an interpreter's environment; None if there is none."""
    compilers = python.parents[1].glob(f"lib/python3*/site-packages/nvidia/cu*/{_NVCC}")
    # CUDA 9 is older than CUDA 13.
    return max(compilers, key=lambda compiler: natural_key(_home_of(compiler).name), default=None)


def _home_of(compiler: Path) -> Path:
    """Return the folder of the toolkit that an nvcc belongs to."""
    return compiler.parents[1]


def _linked(toolkit: Path, driver_folders: Sequence[Path]) -> Path:
    """Make a folder of links to a toolkit and to the driver, and return its path.

    The path is the same each time, because compiled kernels depend on it and would otherwise be
    compiled again.
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
    """Yield the name of each link to a library of a toolkit or of the driver, and the library.

    A library such as `libcudart.so.13` is also linked as `libcudart.so`, the name that linkers use.
    Of several versions that is the newest, which comes last.
    """
    found_libraries = (toolkit / "lib").glob("lib*")
    libraries = sorted(found_libraries, key=lambda library: natural_key(library.name))

    # The driver's library is linked from the first folder that has it.
    for folder in driver_folders:
        driver_library = folder / "libcuda.so.1"
        if driver_library.exists():
            libraries.append(driver_library)
            break

    for library in libraries:
        yield library.name, library
        numbered = _NUMBERED.fullmatch(library.name)
        if numbered is not None:
            yield numbered["linked"], library


def _link(path: Path, target: Path) -> None:
    """Make or replace a link in one step, so that no other process finds it missing."""
    with contextlib.suppress(OSError):
        if path.readlink() == target:
            return
    with temporary_folder_beside(path) as folder:
        part = folder / path.name
        part.symlink_to(target)
        part.replace(path)
