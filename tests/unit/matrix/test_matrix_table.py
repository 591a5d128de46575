"""`specreg matrix`: what a tier runs, what that needs, and about how long it takes."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from specreg.baselines.estimate import Estimate
from specreg.baselines.record import record_baseline
from specreg.baselines.schema import baseline_path
from specreg.cli import app
from specreg.cli.cases import render_matrix
from specreg.core.errors import UnknownNameError
from specreg.matrix.tier import load_tier
from specreg.telemetry.identity import Gpus, current_environment
from tests.unit import builders

PAIRS = """
[models.eight]
target = "some/target"
drafts = { eagle3 = "some/head" }
target_gib = 16
drafts_gib = { eagle3 = 2 }
"""
TIER = """
needs_gpus = 1

[[cases]]
engine = "vllm"
methods = ["none", "eagle3"]
models = "eight"
dataset = "gsm8k"
concurrency = [4]
prompts = 8
output_cap_tokens = 64
gpu_memory_frac = 0.25
"""


def write(root: Path, text: str) -> Path:
    for path, content in (("models/pairs.toml", PAIRS), ("matrix/cpu.toml", text)):
        (root / "fixtures" / path).parent.mkdir(exist_ok=True, parents=True)
        (root / "fixtures" / path).write_text(content)
    return root


def printed(root: Path, *arguments: str) -> str:
    done = CliRunner().invoke(app, ["matrix", "--tier", "cpu", "--root", str(root), *arguments])
    assert done.exit_code == 0, done.output
    return done.output


def row(text: str, case_id: str) -> list[str]:
    return next(line.split() for line in text.splitlines() if line.startswith(f"{case_id} "))


def test_a_case_says_what_it_needs_and_about_how_long_it_takes(tmp_path: Path) -> None:
    """44 prompts, 64 steps of 16 GiB at 1560 GiB/s for 4 at once, 0.16 s: 7 s; power: 30 s."""
    text = printed(write(tmp_path, TIER))
    assert row(text, "vllm-none-eight-gsm8k-c4") == [
        *("vllm-none-eight-gsm8k-c4", "1", "72", "8"),
        *("0.6", "guess"),
    ]
    assert row(text, "vllm-eagle3-eight-gsm8k-c4")[1:4] == ["1", "80", "8"]
    assert "to prepare: specreg prepare gsm8k" in text
    assert "minutes of a GPU in all, 120 s for each server's start" in text
    assert "guess: a step reads all weights at 1560 GiB/s; no draft is accepted" in text
    assert "tiers: cpu" in text


def test_what_was_recorded_is_said_to_be(tmp_path: Path) -> None:
    text = TIER.replace("needs_gpus = 1", "needs_gpus = 0").replace("gsm8k", "toy")
    write(tmp_path, text)
    here = current_environment(needs_gpus=0)
    baseline = builders.baseline({"throughput_tokens_per_s": 1.0}, environment=here)
    record_baseline(
        baseline_path(tmp_path / "baselines", here.name, "vllm-none-eight-toy-c4"), baseline
    )
    said = printed(tmp_path)
    # 8 prompts and 28 to warm up, and 8 to prove, of 64 tokens at one per second.
    assert row(said, "vllm-none-eight-toy-c4")[1:] == ["–", "–", "8", "46.9", "recorded"]
    assert row(said, "vllm-eagle3-eight-toy-c4")[-3:] == ["guess", "and", "recorded"]
    assert "minutes in all" in said
    assert "prepare" not in said


@pytest.mark.parametrize(
    ("gpus", "words"),
    [
        (builders.gpus(), "2 of 2 cases don't fit this machine: no GPU (NVML: none)"),
        (builders.gpus("A", memory_gib=74), "1 of 2 cases don't fit this machine: 74 GiB"),
    ],
)
def test_what_does_not_fit_is_counted(tmp_path: Path, gpus: Gpus, words: str) -> None:
    tier = load_tier(write(tmp_path, TIER) / "fixtures/matrix", "cpu")
    estimates = {case.id: Estimate(1.0, "guess") for case in tier.cases}
    assert words in render_matrix(tier, estimates, gpus, width=110)


def test_a_tolerance_of_no_metric_is_refused_with_its_table(tmp_path: Path) -> None:
    write(tmp_path, TIER + "[cases.tolerances]\ntpot_p50 = 0.1\n")
    done = CliRunner().invoke(app, ["matrix", "--tier", "cpu", "--root", str(tmp_path)])
    assert isinstance(done.exception, UnknownNameError)
    place = f"matrix file '{tmp_path}/fixtures/matrix/cpu.toml', [[cases]] no. 1"
    words = f"{place}: unknown metric in tolerances 'tpot_p50'; did you mean 'tpot_p50_ms'?"
    assert str(done.exception).startswith(words)
