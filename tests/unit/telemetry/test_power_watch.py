"""The sampler as a process: what is left of it, and what it says where it ends too early."""

import re
import shutil
import time
from pathlib import Path

import pytest

from specreg.telemetry.sampler import load_traces, watch
from tests.doubles.nvml.device import ScriptedGpu, environment, write_script
from tests.unit import builders

GPU = ScriptedGpu()
DEVICE = builders.device(GPU.name, id=GPU.uuid)


@pytest.fixture(autouse=True)
def _driver(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = write_script(tmp_path / "script", [GPU])
    for name, value in environment(library, script).items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    return tmp_path / "power" / "case.jsonl"


def test_samples_are_on_disk_as_they_come(samples: Path) -> None:
    with watch([DEVICE], samples) as watching:
        time.sleep(1.0)
        (trace,), problem = watching.traces(until_ns=time.monotonic_ns())
    assert (trace.device, problem) == (DEVICE, "")
    assert len(trace.samples) >= 5
    assert watching.child.popen.returncode is not None
    (loaded,) = load_traces(samples, [DEVICE])
    samples.write_bytes(samples.read_bytes()[:-20])
    assert load_traces(samples, [DEVICE])[0].samples == loaded.samples[:-1]  # its last line is torn


def test_a_killed_sampler_is_said_and_its_samples_stay(samples: Path) -> None:
    with watch([DEVICE], samples) as watching:
        time.sleep(0.5)
        watching.child.popen.kill()
        (trace,), problem = watching.traces(until_ns=time.monotonic_ns())
    assert "ended with status -9 (its log is empty)" in problem
    assert trace.samples


def test_a_sampler_that_cannot_start_says_why(samples: Path) -> None:
    with watch([builders.device(id="GPU-none")], samples) as watching:
        (trace,), problem = watching.traces(until_ns=time.monotonic_ns())
    assert re.search(r"ended with status 1 \(.*Not Found", problem)
    assert not trace.samples


@pytest.mark.parametrize("lacks_folder", [False, True], ids=["log", "folder"])
def test_a_log_that_is_gone_hides_no_other_error(samples: Path, *, lacks_folder: bool) -> None:
    def fail() -> None:
        with watch([DEVICE], samples) as watching:
            watching.child.log_path.unlink()
            if lacks_folder:
                shutil.rmtree(samples.parent)
            raise KeyError("the first")

    with pytest.raises(KeyError, match="the first"):
        fail()


def test_a_log_that_is_gone_costs_no_power(samples: Path) -> None:
    with watch([DEVICE], samples) as watching:
        watching.child.log_path.unlink()
        (trace,), problem = watching.traces(until_ns=time.monotonic_ns())
    assert problem == ""
    assert trace.samples
