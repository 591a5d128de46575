"""Find out whether the tools that an engine on a GPU needs for compiling are installed.

In vLLM and SGLang, Triton compiles the code that launches its kernels with a C compiler and
Python's headers. FlashInfer and SGLang compile kernels with nvcc, ninja and a C++ compiler. A
server that lacks a tool fails minutes after its start, so `specreg doctor` looks for the tools
beforehand.
"""

import functools
import os
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specreg.servers.interpreters import last_line_of
from specreg.servers.toolkit import (
    differs_from_headers,
    headers_release,
    named_home,
    release_of,
    server_compiler,
)

_HAS_HEADERS = """
import os, sysconfig
print(os.path.isfile(os.path.join(sysconfig.get_paths()["include"], "Python.h")))
"""


@dataclass(frozen=True, slots=True)
class MissingTool:
    """A tool that an engine needs and that isn't installed.

    Attributes:
        name: the name of the tool.
        advice: what to do about it.
    """

    name: str
    advice: str


def missing_tools(
    python: str, variables: Mapping[str, str], *, compiles_kernels: bool, is_installed: bool
) -> Iterator[MissingTool]:
    """Yield the tools that an engine needs for compiling, and that aren't installed.

    Args:
        python: the interpreter of the engine's environment, or the one that will make it.
        variables: the environment variables of the server.
        compiles_kernels: True if the engine compiles kernels with nvcc and ninja.
        is_installed: True if the environment is there. If it isn't, the engine's packages will
            bring ninja, and nvcc unless a variable names a toolkit.
    """
    path = os.pathsep.join((str(Path(python).parent), variables.get("PATH", "")))

    # Triton needs a C compiler and Python's headers.
    if not _has_program(variables.get("CC", ""), ("gcc", "cc", "clang"), path):
        yield MissingTool("a C compiler", "install gcc, or name a compiler in CC")
    if not _has_headers(python):
        yield MissingTool(
            f"Python.h of '{python}'",
            "install Python's headers (python3-dev), or use an interpreter that has them",
        )

    # An engine that compiles kernels itself needs more.
    if not compiles_kernels:
        return
    if not _has_program(variables.get("CXX", ""), ("g++", "c++", "clang++"), path):
        yield MissingTool("a C++ compiler", "install g++, or name a compiler in CXX")
    if is_installed or named_home(variables):
        yield from _problems_of(server_compiler(Path(python), variables))
    if is_installed and shutil.which("ninja", path=path) is None:
        yield MissingTool(
            "ninja", "install ninja, or delete the engine's environment in specreg's cache"
        )


def _problems_of(compiler: Path | None) -> Iterator[MissingTool]:
    """Yield what is wrong with the nvcc that a server compiles with; None stands for no nvcc."""
    own_toolkit = "unset CUDA_HOME and CUDA_PATH, so that the one in the engine's packages is used"
    if compiler is None:
        yield MissingTool(
            "CUDA's compiler, nvcc",
            f"install the CUDA toolkit and set CUDA_HOME to its folder; or {own_toolkit}",
        )
    elif not release_of(compiler):
        yield MissingTool("an nvcc that runs", f"'{compiler}' doesn't; repair it, or {own_toolkit}")
    elif differs_from_headers(compiler):
        headers = headers_release(compiler)
        yield MissingTool(
            f"an nvcc {headers} for its headers: '{compiler}' is of CUDA {release_of(compiler)}",
            f"install cuda-toolkit[nvcc,crt,nvvm,cccl]=={headers}.* in that environment, or set"
            f" CUDA_HOME to the folder of a CUDA toolkit {headers}",
        )


def _has_program(named: str, usual: Sequence[str], path: str) -> bool:
    """Return whether one of the programs is on PATH.

    Args:
        named: the command that a variable such as CC holds; empty if the variable isn't set.
        usual: the names to look for if the variable isn't set.
        path: the folders to search, like PATH.
    """
    try:
        names = shlex.split(named)[:1] or usual
    except ValueError:  # a quotation mark that isn't closed
        return False
    return any(shutil.which(name, path=path) is not None for name in names)


@functools.cache
def _has_headers(python: str) -> bool:
    """Return whether an interpreter finds its headers, which may be in the image of a container."""
    return last_line_of(python, _HAS_HEADERS) == "True"
