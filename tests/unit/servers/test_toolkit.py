"""On a machine that has a driver alone, a server finds the toolkit that its packages bring."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from packaging.version import Version

from specreg.engines.registry import ENGINES
from specreg.servers.cuda_driver import locked_packages
from specreg.servers.installer import version_in
from specreg.servers.toolkit import (
    differs_from_headers,
    server_compiler,
    toolkit_release,
    toolkit_variables,
)

ABSENT = Path("/nowhere")


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The interpreter of an environment with the files that CUDA's wheels 13.5 put there."""
    monkeypatch.setenv("SPECREG_CACHE", str(tmp_path / "cache"))
    packages = tmp_path / "environment/lib/python3.12/site-packages/nvidia"
    for name in (
        *("cu13/bin/nvcc", "cu13/nvvm/bin/cicc", "cu13/include/cuda_runtime.h", "cu13/cccl/cub.h"),
        *("cu13/lib/libcudart.so.13", "cu13/lib/libcudart_static.a", "cu13/lib/libnvvm.so.4"),
        "cudnn/lib/libcudnn.so.9",
    ):
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).write_text(name)
        (packages / name).chmod(0o755)
    (tmp_path / "driver").mkdir()
    (tmp_path / "driver/libcuda.so.1").write_text("libcuda")
    return tmp_path / "environment/bin/python"


def packaged(python: Path) -> Path:
    """The folder of the toolkit in the environment's packages."""
    (home,) = python.parents[1].glob("lib/python3*/site-packages/nvidia/cu13")
    return home


def found(python: Path, **variables: str) -> Mapping[str, str]:
    """What a server gets on a machine without a toolkit, beside variables of its own."""
    driver = python.parents[2] / "driver"
    variables_of_process = {"PATH": "/nowhere", "LD_LIBRARY_PATH": f":{driver}", **variables}
    return toolkit_variables(python, variables_of_process, default_home=ABSENT)


def test_the_compiler_and_what_it_links_with_are_where_builds_look_for_them(python: Path) -> None:
    home = Path(found(python)["CUDA_HOME"])
    for path, content in (
        ("bin/nvcc", "cu13/bin/nvcc"),
        ("nvvm/bin/cicc", "cu13/nvvm/bin/cicc"),
        ("include/cuda_runtime.h", "cu13/include/cuda_runtime.h"),
        ("cccl/cub.h", "cu13/cccl/cub.h"),
        ("lib64/libcudart.so", "cu13/lib/libcudart.so.13"),
        ("lib64/libcudart.so.13", "cu13/lib/libcudart.so.13"),
        ("lib64/libcudart_static.a", "cu13/lib/libcudart_static.a"),
        ("lib64/libcuda.so", "libcuda"),
    ):
        assert (home / path).read_text() == content


def test_the_folder_stays_the_same_and_follows_the_environment(python: Path) -> None:
    """What was compiled names it: another folder would have everything compiled anew."""
    home = Path(found(python)["CUDA_HOME"])
    library = (home / "lib64/libcudart.so").readlink()
    library.rename(library.with_name("libcudart.so.14"))
    assert Path(found(python)["CUDA_HOME"]) == home
    assert (home / "lib64/libcudart.so").read_text() == "cu13/lib/libcudart.so.13"
    assert sorted(path.name for path in (home / "lib64").iterdir() if path.exists()) == [
        *("libcuda.so", "libcuda.so.1", "libcudart.so", "libcudart.so.14", "libcudart_static.a"),
        *("libnvvm.so", "libnvvm.so.4"),
    ]


@pytest.mark.parametrize("older", ["cu9", "cu12"])
def test_the_newest_toolkit_is_the_one_with_the_highest_number(python: Path, older: str) -> None:
    (packages,) = python.parents[1].glob("lib/python3*/site-packages/nvidia")
    compiler = packages / older / "bin/nvcc"
    compiler.parent.mkdir(parents=True)
    compiler.write_text(f"{older}/bin/nvcc")
    home = Path(found(python)["CUDA_HOME"])
    assert (home / "bin/nvcc").read_text() == "cu13/bin/nvcc"


@pytest.mark.parametrize("older", ["9", "12.9.79", "9.10"])
def test_a_linker_gets_the_library_with_the_highest_version(python: Path, older: str) -> None:
    (libraries,) = python.parents[1].glob("lib/python3*/site-packages/nvidia/cu13/lib")
    (libraries / f"libcudart.so.{older}").write_text("older")
    home = Path(found(python)["CUDA_HOME"])
    assert (home / "lib64/libcudart.so").read_text() == "cu13/lib/libcudart.so.13"


def test_a_toolkit_that_a_variable_names_is_left_alone(python: Path) -> None:
    assert not found(python, CUDA_HOME="/usr/local/cuda-12.8")
    assert not found(python, CUDA_PATH="/usr/local/cuda-12.8")


def test_the_environments_toolkit_is_preferred_to_the_machines(
    python: Path, tmp_path: Path
) -> None:
    """The machine's may be of CUDA 12, and torch is built for CUDA 13."""
    machines = nvcc(tmp_path / "machines", "release 12.8")
    variables = {"PATH": str(machines / "bin")}
    assert toolkit_variables(python, variables, default_home=machines)
    assert server_compiler(python, variables, machines) == packaged(python) / "bin/nvcc"


@pytest.mark.parametrize(("number", "is_preferred"), [("13000", True), ("12090", False)])
def test_a_compiler_that_refuses_its_headers_is_used_if_there_is_no_other(
    python: Path, tmp_path: Path, number: str, *, is_preferred: bool
) -> None:
    """pip installs vLLM with the newest nvcc beside the headers of torch's CUDA."""
    home = packaged(python)
    (home / "bin/nvcc").write_text("#!/bin/sh\necho release 13.0, V13.0.88\n")
    (home / "include/cuda_runtime_api.h").write_text(f"#define CUDART_VERSION  {number}\n")
    machines = nvcc(tmp_path / "machines", "release 12.9")
    assert differs_from_headers(home / "bin/nvcc") is not is_preferred
    assert found(python)
    assert bool(toolkit_variables(python, {}, default_home=machines)) is is_preferred


@pytest.mark.parametrize("name", ["sglang", "vllm"])
def test_a_lock_has_one_release_of_cuda(name: str) -> None:
    """nvcc 13.5 refuses the headers of 13.0."""
    packages = locked_packages(ENGINES[name].requirement(on_gpu=True))
    parts = ("cuda-nvcc", "cuda-crt", "nvvm", "cuda-cccl", "cuda-runtime")
    versions = [Version(version_in(packages, f"nvidia-{part}")) for part in parts]
    assert {(version.major, version.minor) for version in versions} == {(13, 0)}


def test_an_environment_without_a_toolkit_gets_none(tmp_path: Path) -> None:
    assert not found(tmp_path / "environment/bin/python")


def test_only_an_engine_that_compiles_gets_one() -> None:
    assert [name for name, engine in ENGINES.items() if engine.compiles] == ["sglang", "vllm"]


def nvcc(home: Path, words: str) -> Path:
    """A toolkit whose compiler says these words."""
    compiler = home / "bin/nvcc"
    compiler.parent.mkdir(parents=True)
    compiler.write_text(f"#!/bin/sh\necho '{words}'\n")
    compiler.chmod(0o755)
    return home


def test_the_release_is_that_of_the_compiler_that_a_build_finds(tmp_path: Path) -> None:
    words = "Cuda compilation tools, release 13.0, V13.0.88"
    home = nvcc(tmp_path / "named", words)
    on_path = nvcc(tmp_path / "on_path", words.replace("13.0", "12.8")) / "bin"
    installed = nvcc(tmp_path / "installed", words.replace("13.0", "12.4"))
    named = {"CUDA_HOME": str(home), "PATH": str(on_path)}
    assert toolkit_release(named, default_home=installed) == "13.0"
    assert toolkit_release({"PATH": str(on_path)}, default_home=installed) == "12.8"
    assert toolkit_release({"PATH": "/nowhere"}, default_home=installed) == "12.4"


def test_a_compiler_that_is_not_there_or_says_nothing_is_no_release(tmp_path: Path) -> None:
    silent = nvcc(tmp_path / "silent", "")
    assert toolkit_release({"PATH": "/nowhere"}, default_home=ABSENT) == "none"
    assert toolkit_release({"CUDA_HOME": "/nowhere"}, default_home=silent) == "none"
    assert toolkit_release({"CUDA_HOME": str(silent)}, default_home=ABSENT) == ""
