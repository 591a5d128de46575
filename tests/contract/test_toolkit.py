"""The toolkit that an engine's packages bring compiles FlashInfer's kernels; this needs no GPU.

`nox -s toolkit`, 1 GB of packages at a time. Only the compiler, the headers and FlashInfer's
sources are installed, in the versions that the whole environment would have.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from specreg.engines.engine import Requirement
from specreg.engines.registry import ENGINES
from specreg.servers.cuda_driver import locked_packages, pins_of
from specreg.servers.installer import run_uv, uv_command, uv_variables
from specreg.servers.toolkit import toolkit_variables

NEEDED = {
    *("nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-cccl"),
    *("nvidia-cuda-runtime", "nvidia-curand", "flashinfer-python"),
}
HEADERS = (
    "cooperative_groups.h",
    *("flashinfer/sampling.cuh", "flashinfer/attention/decode.cuh"),
    "flashinfer/attention/prefill.cuh",
)
LOCKED = [ENGINES[name].requirement(on_gpu=True) for name in ("vllm", "sglang")]
OLDEST = [
    replace(requirement, version=version)
    for requirement, version in zip(LOCKED, ("0.26.0", "0.5.21"), strict=True)
]


def packages_of(requirement: Requirement) -> Sequence[str]:
    """The packages that an engine is installed with, by its lock or without one."""
    if requirement.lock is not None:
        return locked_packages(requirement)
    compiled = subprocess.run(
        uv_command("pip", "compile", "-", "--quiet", "--python", sys.executable),
        check=True,
        input="\n".join((requirement.pin, *requirement.extras)),
        capture_output=True,
        text=True,
        env=uv_variables(os.environ),
    )
    return tuple(pins_of(compiled.stdout))


@pytest.fixture(scope="module", params=[*LOCKED, *OLDEST], ids=lambda requirement: requirement.pin)
def python(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """The interpreter of an environment with what FlashInfer is compiled with."""
    folder = tmp_path_factory.mktemp("environment")
    needed = [pin for pin in packages_of(request.param) if pin.partition("==")[0] in NEEDED]
    assert len(needed) == len(NEEDED)
    log_path = folder / "uv.log"
    run_uv(log_path, "venv", "--no-project", "--python", sys.executable, str(folder / "venv"))
    path = folder / "venv/bin/python"
    run_uv(log_path, "pip", "install", "--python", str(path), "--no-deps", *needed)
    yield path
    shutil.rmtree(folder)


@pytest.mark.parametrize("header", HEADERS)
def test_a_server_compiles_flashinfer_with_the_toolkit_of_its_packages(
    python: Path, header: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECREG_CACHE", str(tmp_path / "cache"))
    (packages,) = python.parents[1].glob("lib/python3*/site-packages")
    data = packages / "flashinfer/data"
    # As FlashInfer does it: its own copy of CCCL comes before the toolkit's.
    cccl = [f"-I{data / 'cccl' / part}" for part in ("cub", "libcudacxx/include", "thrust")]
    folders = [data / "include", data / "csrc", data / "cutlass/include"]
    source = tmp_path / "kernel.cu"
    source.write_text(f"#include <{header}>\n__global__ void kernel() {{}}\n")

    variables = {"PATH": os.defpath, **toolkit_variables(python, {}, default_home=tmp_path)}
    nvcc = Path(variables["CUDA_HOME"], "bin/nvcc")
    options = ("-std=c++17", "-arch=sm_90a", "--expt-relaxed-constexpr", "-w", *cccl)
    isystem = (f"-isystem={folder}" for folder in folders)
    link = ("--shared", "-Xcompiler=-fPIC", f"-L{variables['CUDA_HOME']}/lib64", "-lcudart")
    done = subprocess.run(
        (str(nvcc), *options, *isystem, *link, str(source), "-o", str(tmp_path / "kernel.so")),
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
        env=variables,
    )

    assert done.returncode == 0, done.stderr[-2000:]
