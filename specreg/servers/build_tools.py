"""What an engine on a GPU compiles with while it starts and serves.

Triton compiles the code that starts its kernels with a C compiler and Python's headers, in vLLM and
SGLang. SGLang also compiles kernels, with nvcc, ninja and a C++ compiler. What is missing shows
minutes after the start, so `specreg doctor` looks for it before.
"""

import functools
import os
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specreg.servers.interpreters import last_line_of
from specreg.servers.toolkit import has_toolkit

_HEADERS = "import sysconfig; print(sysconfig.get_paths()['include'])"


@dataclass(frozen=True, slots=True)
class MissingTool:
    """A tool that isn't found.

    Attributes:
        name: what it is.
        advice: what to do about it.
    """

    name: str
    advice: str


def missing_tools(
    python: str, variables: Mapping[str, str], *, compiles_kernels: bool, is_installed: bool
) -> Iterator[MissingTool]:
    """Yield what an engine needs to compile and doesn't find.

    Args:
        python: the interpreter of the engine's environment, or the one that it will be made of.
        variables: the environment variables of the server.
        compiles_kernels: whether the engine compiles kernels with nvcc and ninja.
        is_installed: whether the environment is there; one that is made later brings nvcc and ninja
            with it.
    """
    path = os.pathsep.join((str(Path(python).parent), variables.get("PATH", "")))
    if not _has_program(variables.get("CC", ""), ("gcc", "cc", "clang"), path):
        yield MissingTool("a C compiler", "install gcc, or name a compiler in CC")
    if not (_header_folder(python) / "Python.h").is_file():
        yield MissingTool(
            f"Python.h of '{python}'",
            "install Python's headers (python3-dev), or take an interpreter that has them",
        )
    if not compiles_kernels:
        return
    if not _has_program(variables.get("CXX", ""), ("g++", "c++", "clang++"), path):
        yield MissingTool("a C++ compiler", "install g++, or name a compiler in CXX")
    if not is_installed:
        return
    if not has_toolkit(Path(python), variables):
        yield MissingTool(
            "CUDA's compiler, nvcc",
            "install the CUDA toolkit and set CUDA_HOME, or have the engine's packages bring it",
        )
    if shutil.which("ninja", path=path) is None:
        yield MissingTool("ninja", "install ninja, or remove the engine's folder in the cache")


def _has_program(named: str, usual: Sequence[str], path: str) -> bool:
    """Return whether the program that a variable names is there, or else a usual one."""
    names = shlex.split(named)[:1] or usual
    return any(shutil.which(name, path=path) is not None for name in names)


@functools.cache
def _header_folder(python: str) -> Path:
    """Return where an interpreter has its headers; the current folder if it can't be run."""
    return Path(last_line_of(python, _HEADERS))
