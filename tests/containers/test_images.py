"""Images as sources of engines: a tier, and a gate of two images."""

import subprocess
import sys
from pathlib import Path

import pytest

from specreg.report.files import load_report
from tests.containers.runtimes import IMAGES, RealRuntime
from tests.doubles.vllm.script import Script
from tests.unit import builders
from tests.unit.builders.gate_command import Gate

SIDES = (f"image:{IMAGES[0]}", f"image:{IMAGES[1]}")


@pytest.mark.parametrize("is_slower", [True, False], ids=["slower", "same"])
def test_a_gate_of_two_images_of_the_scripted_server(
    runtime: RealRuntime, tmp_path: Path, *, is_slower: bool
) -> None:
    gate = Gate(tmp_path, SIDES)
    arguments = ["--case", "vllm-eagle3-tiny-toy-c1", "--launches", "8"]
    for side in ("--a", "--b"):
        arguments += [side, f"engine_env.PYTHONPATH={builders.ROOT / 'tests/doubles'}"]
    started = gate.start(*arguments, b=Script(step_ms=12.0) if is_slower else Script())
    stdout, stderr = started.communicate()
    if is_slower:
        assert started.returncode == 1, stdout + stderr
        assert "the cost of a step" in stdout.partition("\n")[0]
    else:
        # On a busy machine the answer may be "undecided", and never "don't".
        assert started.returncode in {0, 10}, stdout + stderr
    assert f"image {IMAGES[0]} -> {IMAGES[1]}, digest of the image sha256:" in stdout
    assert runtime.containers() == []


@pytest.mark.vllm
def test_the_tier_cpu_runs_in_containers(runtime_with_vllm: RealRuntime, tmp_path: Path) -> None:
    command = (
        *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/perf"),
        *("--specreg-tier=cpu", "--specreg-inconclusive=warn-speed"),
        *(f"--specreg-image={IMAGES[0]}", "--specreg-history=none"),
        f"--specreg-runs={tmp_path}",
    )
    done = subprocess.run(command, cwd=builders.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    (report,) = tmp_path.glob("*/report.json")
    assert IMAGES[0] in report.read_text()
    assert runtime_with_vllm.containers() == []


@pytest.mark.vllm
@pytest.mark.parametrize("is_slower", [True, False], ids=["slower", "same"])
def test_a_gate_of_two_images_of_vllm(
    runtime_with_vllm: RealRuntime, tmp_path: Path, *, is_slower: bool
) -> None:
    planted = builders.ROOT / "tests/faults/planted"
    # A busy machine needs eight launches to show a step that takes several times as long.
    changes = ["--launches", "2"]
    if is_slower:
        changes = [
            *("--launches", "8"),
            *("--b", f"engine_env.PYTHONPATH={planted}", "--b", "engine_env.PLANTED_FAULT=sleep"),
            *("--b", "engine_env.PLANTED_SLEEP_S=0.05"),
        ]
    command = (
        *(sys.executable, "-m", "specreg", "gate", *SIDES),
        *("--tier", "cpu", "--case", "vllm-draft_model-tiny-toy-c4", "--minutes", "45"),
        *(*changes, "--out", str(tmp_path / "gate")),
    )
    done = subprocess.run(command, cwd=builders.ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode == 1) == is_slower, done.stdout
    assert done.returncode in {0, 1, 10}, done.stderr
    assert load_report(tmp_path / "gate/report.json").run.exit_status == done.returncode
    assert runtime_with_vllm.containers() == []
