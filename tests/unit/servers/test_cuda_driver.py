"""An engine whose CUDA is newer than the driver is refused before anything is installed."""

from pathlib import Path

import pytest

from specreg.engines.registry import ENGINES
from specreg.servers.cuda_driver import (
    cuda_release_of,
    least_driver_of,
    locked_packages,
    why_driver_too_old,
)
from tests.doubles.nvml.device import ScriptedDriver, ScriptedGpu
from tests.plugin.preloaded import PreloadedPython
from tests.unit.builders.scripted_gpus import run_python, running

PROGRAM = """
from specreg.servers.provision import Provision
from tests.plugin.preloaded import PreloadedPython
from tests.unit import builders
try:
    Provision(on_gpu=True, show=print).check([builders.CASE])
except Exception as error:
    print(error)
else:
    print("fine")
"""


@pytest.mark.parametrize(
    ("packages", "release"),
    [
        (("nvidia-cuda-nvcc==13.5.37", "nvidia-cuda-runtime==13.0.96"), "13.0"),
        (("nvidia-cuda-runtime-cu12==12.8.90", "torch==2.9.0"), "12.8"),
        (("torch==2.13.0+cpu",), ""),
        (("nvidia-cuda-runtime @ file:///wheels/runtime.whl",), ""),
        ((), ""),
    ],
)
def test_the_release_is_that_of_the_runtime(packages: tuple[str, ...], release: str) -> None:
    assert cuda_release_of(packages) == release


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_locks_of_both_engines_bring_cuda_13(engine: str) -> None:
    packages = locked_packages(ENGINES[engine].requirement(on_gpu=True))
    assert cuda_release_of(packages) == "13.0"
    assert least_driver_of("13.0") == "580.65.06"


def test_without_a_lock_nothing_is_known() -> None:
    assert locked_packages(ENGINES["tensorrt_llm"].requirement(on_gpu=True)) == ()


@pytest.mark.parametrize(
    ("release", "driver", "is_refused"),
    [
        ("13.0", "570.172.08", True),
        ("13.2", "580.65.06", False),
        ("12.8", "535.104.05", False),
        ("12.8", "470.57.02", True),
        ("14.0", "470.57.02", False),  # not known yet
        ("13.0", "of tomorrow", False),
        ("13.0", "535.161.08-grid", True),
        ("13.0", "580.65.06 (open)", False),
        ("13.0", "", False),
        ("13.0", "580.unknown", False),
        ("13.0", "570", True),
        ("", "470.57.02", False),
    ],
)
def test_a_driver_runs_the_releases_of_its_majors(
    release: str, driver: str, *, is_refused: bool
) -> None:
    problem = why_driver_too_old(release, driver, {})
    assert bool(problem) == is_refused
    if problem:
        assert f"brings CUDA {release}, which needs driver {least_driver_of(release)}" in problem
        assert problem.endswith("name its Python (--specreg-engine-python, or a side of a gate)")


def test_the_library_of_forward_compatibility_lets_an_older_driver_do(tmp_path: Path) -> None:
    folder = tmp_path / "compat"
    folder.mkdir()
    variables = {"LD_LIBRARY_PATH": f"/nowhere:{folder}"}
    assert why_driver_too_old("13.0", "570.1", variables)
    (folder / "libcuda.so.1").touch()
    assert not why_driver_too_old("13.0", "570.1", variables)


@pytest.mark.parametrize(
    ("driver", "words"),
    [
        (
            "570.172.08",
            "engine 'vllm==0.33.0': brings CUDA 13.0, which needs driver 580.65.06 or newer, and",
        ),
        ("580.159.04", "fine"),
    ],
)
def test_a_run_is_refused_before_it_installs_anything(
    driver: str, words: str, tmp_path: Path, gpu_python: PreloadedPython
) -> None:
    """The driver is scripted; the packages are those of the lock."""
    scripted = ScriptedDriver([running(ScriptedGpu())], version=driver)
    output = run_python(gpu_python, tmp_path, scripted, PROGRAM, SPECREG_CACHE=str(tmp_path))
    assert output.startswith(words)
