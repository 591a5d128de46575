"""What an engine compiles with on a GPU is looked for before anything starts."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from specreg.servers.build_tools import missing_tools


def program(folder: Path, name: str) -> Path:
    """A program of a name in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """An interpreter of an environment whose headers are in a folder of their own."""
    headers = tmp_path / "headers"
    headers.mkdir()
    (headers / "Python.h").touch()
    path = program(tmp_path / "environment/bin", "python")
    path.write_text(f"#!/bin/sh\n[ -f {headers}/Python.h ] && echo True\n")
    return path


def missing(
    python: Path, *, compiles_kernels: bool = True, is_installed: bool = True, **variables: str
) -> Sequence[str]:
    """The names of what is missing, on a machine with nothing but what the test puts there."""
    tools = missing_tools(
        str(python),
        {"CUDA_HOME": str(python.parents[2] / "cuda"), **variables},
        compiles_kernels=compiles_kernels,
        is_installed=is_installed,
    )
    return [tool.name for tool in tools]


def test_all_that_is_missing_is_named(python: Path) -> None:
    (python.parents[2] / "headers/Python.h").unlink()
    assert missing(python) == [
        *("a C compiler", f"Python.h of '{python}'", "a C++ compiler", "CUDA's compiler, nvcc"),
        "ninja",
    ]


def test_what_is_there_is_found_in_each_of_its_places(python: Path) -> None:
    folder = python.parents[2]
    for name in ("gcc", "g++"):
        program(folder / "system", name)
    program(python.parent, "ninja")
    program(folder / "cuda/bin", "nvcc").write_text("#!/bin/sh\necho release 13.0\n")
    assert missing(python, PATH=str(folder / "system")) == []


def test_a_toolkit_of_the_environments_packages_will_do_unless_a_variable_names_another(
    python: Path,
) -> None:
    program(python.parents[1] / "lib/python3.12/site-packages/nvidia/cu13/bin", "nvcc")
    assert "CUDA's compiler, nvcc" not in missing(python, CUDA_HOME="")
    (python.parents[2] / "file").touch()
    for home in ("/nowhere", str(python.parents[2] / "file"), "x" * 5_000):
        assert "CUDA's compiler, nvcc" in missing(python, CUDA_HOME=home)
        assert "CUDA's compiler, nvcc" in missing(python, CUDA_HOME="", CUDA_PATH=home)


@pytest.mark.parametrize("content", ["", "no program", "#!/bin/sh\nexit 3\n", "#!/nowhere\n"])
def test_a_compiler_of_cuda_that_does_not_run_is_not_taken_for_one(
    python: Path, content: str
) -> None:
    program(python.parents[2] / "cuda/bin", "nvcc").write_text(content)
    assert "an nvcc that runs" in missing(python)


def test_a_compiler_that_is_named_must_be_there(python: Path) -> None:
    folder = python.parents[2] / "system"
    program(folder, "gcc")
    compiler = program(folder, "own-compiler")
    path = str(folder)
    assert "a C compiler" in missing(python, PATH=path, CC="/nowhere/gcc -O2")
    assert "a C compiler" in missing(python, PATH=path, CC="gcc 'O2")
    assert "a C compiler" not in missing(python, PATH=path, CC=f"{compiler} -O2")


def test_an_engine_that_compiles_no_kernels_needs_no_toolkit(python: Path) -> None:
    program(python.parents[2] / "system", "gcc")
    path = str(python.parents[2] / "system")
    assert missing(python, compiles_kernels=False, PATH=path) == []


def test_an_environment_that_is_made_later_brings_its_toolkit(python: Path) -> None:
    brought = ["a C compiler", "a C++ compiler"]
    assert missing(python, is_installed=False, CUDA_HOME="") == brought
    # If a variable names a folder, builds look only there.
    assert missing(python, is_installed=False) == [*brought, "CUDA's compiler, nvcc"]


def test_a_compiler_of_another_release_than_its_headers_is_in_the_way(python: Path) -> None:
    folder = python.parents[2] / "cuda"
    program(folder / "bin", "nvcc").write_text("#!/bin/sh\necho release 13.5\n")
    header = folder / "include/cuda_runtime_api.h"
    header.parent.mkdir()
    header.write_text("#define CUDART_VERSION  13000\n")
    (problem,) = [name for name in missing(python) if "nvcc" in name]
    assert "13.0" in problem
    assert "13.5" in problem
    header.write_text("#define CUDART_VERSION  13050\n")
    assert not [name for name in missing(python) if "nvcc" in name]


def test_an_interpreter_that_cannot_be_run_has_no_headers() -> None:
    tools = missing_tools("/no/python", {}, compiles_kernels=False, is_installed=True)
    assert "Python.h of '/no/python'" in [tool.name for tool in tools]


def test_this_interpreter_is_asked_for_its_own_headers() -> None:
    """It prints a folder, whether or not that has the header."""
    variables = {"CC": "sh", "PATH": "/bin:/usr/bin"}
    tools = missing_tools(sys.executable, variables, compiles_kernels=False, is_installed=True)
    assert {tool.name for tool in tools} <= {f"Python.h of '{sys.executable}'"}
