"""What a user may ask for, and what is refused before anything starts."""

import dataclasses
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specreg.core.errors import SpecregError
from specreg.report.progress import Progress
from specreg.suite.configure import open_context
from specreg.suite.context import RunContext
from specreg.suite.machine import render_count
from specreg.suite.options import Options
from specreg.telemetry.identity import Gpus
from tests.unit import builders
from tests.unit.builders.examined_machines import write_tier

ATTACH = "http://127.0.0.1:9"
NOT_ATTACHED: dict[str, dict[str, Any]] = {
    "--update-baselines": {"update_baselines": True},
    "--specreg-resume": {"resume": True},
    "--specreg-launches": {"launches": 1},
    "--specreg-engine-version": {"engine_version": "1"},
}


def opened(folder: Path, *, gpus: int = 0, method: str = "eagle3", **arguments: Any) -> RunContext:  # noqa: ANN401 - any option
    """Open a run of a tier of its own with such options."""
    write_tier(folder, gpus=gpus, methods=f'["none", "{method}"]')
    usual = Options(tier="here", matrix=str(folder / "fixtures/matrix"), runs=str(folder / "runs"))
    options = dataclasses.replace(usual, **arguments)
    return open_context(builders.ROOT, options, Progress(io.StringIO()))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tier": "heer"}, "unknown tier 'heer'; did you mean 'here'? known: here"),
        ({"method": "eagle33"}, "unknown method 'eagle33'; did you mean 'eagle3'?"),
        ({"engine": "sglang"}, "tier 'here': unknown engine 'sglang'; known: vllm"),
        ({"launches": 0}, "--specreg-launches: got 0, needed 1 to 100"),
        ({"launches": 10**7}, "--specreg-launches: got 10000000, needed 1 to 100"),
        ({"num_prompts": 0}, "--num-prompts: got 0, needed 1 to 1000000"),
        ({"ready_within_s": float("nan")}, "--specreg-ready-within-s: got nan, needed more than 0"),
        ({"ready_within_s": -1.0}, "--specreg-ready-within-s: got -1, needed more than 0"),
        ({"ready_within_s": float("inf")}, "--specreg-ready-within-s: got inf, needed more"),
        ({"record_minutes": float("nan")}, "--specreg-record-minutes: got nan, needed 0 to"),
        ({"record_minutes": -1.0}, "--specreg-record-minutes: got -1, needed 0 to 100000"),
        ({"matrix": "x" * 5_000}, "no such folder; run this in the repository"),
        ({"matrix": "a\0b"}, "no such folder; run this in the repository"),
        ({"gpu_memory_gib": 0.0}, "--specreg-gpu-memory: got 0, needed more than 0"),
        ({"gpu_memory_gib": float("nan")}, "--specreg-gpu-memory: got nan, needed more than 0"),
        (
            {"num_prompts": 6, "update_baselines": True},
            "--update-baselines with --num-prompts: a baseline has as many",
        ),
        ({"resume": True}, "--specreg-resume: there is no run in '"),
        ({"gpus": 64, "require_tier": True}, "tier 'here' needs 64 GPU(s), this machine has"),
        *(
            ({"attach": ATTACH, **other_flag}, f"--specreg-attach with {flag}: specreg doesn't")
            for flag, other_flag in NOT_ATTACHED.items()
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(SpecregError) as caught:
        opened(tmp_path, **options)
    assert words in str(caught.value)
    assert not (tmp_path / "runs").exists()


def dangling(path: Path) -> None:
    path.symlink_to(path.with_name("nowhere"))


def link_loop(path: Path) -> None:
    path.symlink_to(path)


@pytest.mark.parametrize("make", [Path.touch, dangling, link_loop], ids=["file", "link", "loop"])
@pytest.mark.parametrize("below", ["", "x"], ids=["itself", "below"])
def test_baselines_that_cannot_be_written_are_known_before_they_are_measured(
    tmp_path: Path, make: Callable[[Path], None], below: str
) -> None:
    make(tmp_path / "baselines")
    folder = tmp_path / "baselines" / below
    words = "baselines '.*': can't be (read|written), .* another folder with --specreg-baselines$"
    with pytest.raises(SpecregError, match=words):
        opened(tmp_path, baselines=str(folder), update_baselines=True)


def controls_of(context: RunContext) -> list[str]:
    """The controls of the cases that have one."""
    return [case.control.id for case in context.tier.cases if case.control is not None]


@pytest.mark.parametrize(
    ("version", "gpus", "control"),
    [
        ("0.31.0", 1, "vllm-none-pair-v1"),
        ("0.32.0", 1, "vllm-none-pair"),
        ("0.31.0", 0, "vllm-none-pair"),  # without a GPU all are run by V1
    ],
)
def test_case_and_control_have_the_same_model_runner_on_a_gpu(
    tmp_path: Path, version: str, gpus: int, control: str
) -> None:
    """vLLM 0.31 runs `ngram` by V1 and a server without speculation by V2, 0.32 both by V2."""
    context = opened(tmp_path, gpus=gpus, method="ngram", engine_version=version)
    assert controls_of(context) == [control]
    case_ids = [case.id for case in context.tier.cases]
    assert case_ids == ["vllm-none-pair-toy-c4", "vllm-ngram-pair-toy-c4"]


def test_a_machine_with_too_few_gpus_gives_no_reason_for_having_none() -> None:
    assert render_count(builders.gpus("NVIDIA H200")) == "1"
    none = Gpus(devices=(), why_none="NVML: no driver")
    assert render_count(none) == "0 (NVML: no driver)"
