"""Faults planted in real vLLM turn the right cases red, each for its own reason.

These start real servers, one after another: `nox -s faults` runs them.
"""

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from specreg.report.files import load_verdict
from tests.unit.builders.tiers import tiny_tier

pytestmark = pytest.mark.vllm

ROOT = Path(__file__).parents[2]
TINY = "fixtures/models/tiny"
DRAFT = ROOT / TINY / "draft"


def acceptance_matrix(draft: Path) -> str:
    """Return the cases of the tier `cpu` with a draft, so that its committed baselines hold.

    They have no control, which saves a server.
    """
    return tiny_tier(
        "ngram",
        "draft_model",
        drafts={"draft_model": str(draft)},
        padding_layers=12,
        prompts=20,
        output_cap_tokens=64,
        dtype="float32",
        engine_env={"OMP_NUM_THREADS": "1"},
    )


HEADS_MATRIX = (ROOT / "fixtures/matrix/cpu_methods.toml").read_text().replace('"none", ', "")

# Without padding a step takes about 5 ms, so that 5 ms more can't be lost in a machine's noise.
# Four loads on one server tell how launches spread as well as four servers would.
SPEED_MATRIX = tiny_tier(
    "none",
    "draft_model",
    drafts={"draft_model": "fixtures/models/tiny/draft"},
    concurrency=(1, 2, 3, 4),
    prompts=20,
    output_cap_tokens=64,
    dtype="float32",
    engine_env={"OMP_NUM_THREADS": "1"},
    shown=(
        "throughput_tokens_per_s",
        "ttft_p50_ms",
        "tpot_p50_ms",
        "energy_j_per_token",
        "power_w",
    ),
    tolerances={"speedup_ratio": 0.1},
)


# A launch of few short answers takes less than a minute, and a gate makes eight of them.
THROUGHPUT_MATRIX = tiny_tier(
    "none",
    "draft_model",
    drafts={"draft_model": "fixtures/models/tiny/draft"},
    prompts=10,
    output_cap_tokens=32,
    least_s=4,
    dtype="float32",
    engine_env={"OMP_NUM_THREADS": "1"},
    tolerances={"throughput_tokens_per_s": 0.3},
)
RECORDED = "0.31.0"
UPGRADED = "0.32.0"


def run(
    folder: Path, matrix: str, *arguments: str, fault: str = "", since: str = ""
) -> subprocess.CompletedProcess[str]:
    """The suite on a matrix of its own, with a fault planted in the engine, from a version on."""
    (folder / "cpu.toml").write_text(matrix)
    planted = {"PLANTED_FAULT": fault, "PYTHONPATH": str(Path(__file__).parent / "planted")}
    if since:
        planted["PLANTED_SINCE"] = since
    if fault == "sleep_always":
        planted["PLANTED_SLEEP_S"] = "0.01"
    return subprocess.run(
        (
            *(sys.executable, "-m", "pytest", "tests/perf", "-q", "-p", "no:cacheprovider"),
            *("--specreg-tier=cpu", f"--specreg-matrix={folder}"),
            *(f"--specreg-runs={folder / 'runs'}", *arguments),
        ),
        check=False,
        cwd=ROOT,
        env=os.environ | planted,
        capture_output=True,
        text=True,
    )


def shuffled(name: str, folder: Path) -> Path:
    """A draft with the bytes of its weights in another order, pair by pair (bfloat16)."""
    copy = folder / name
    shutil.copytree(ROOT / TINY / name, copy)
    content = (copy / "model.safetensors").read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    weights = [content[i : i + 2] for i in range(start, len(content), 2)]
    random.Random(0).shuffle(weights)  # noqa: S311 - no cryptography
    (copy / "model.safetensors").write_bytes(content[:start] + b"".join(weights))
    return copy


def outcomes(done: subprocess.CompletedProcess[str], folder: Path) -> dict[str, set[str]]:
    runs = sorted((folder / "runs").iterdir())
    verdict = load_verdict(runs[-1] / "verdict.json") if runs else None
    assert verdict is not None, done.stdout
    by_case: dict[str, set[str]] = {}
    for metric_verdict in verdict.verdicts:
        by_case.setdefault(metric_verdict.case_id, set()).add(metric_verdict.outcome)
    return by_case


def test_the_sound_drafts_are_green(tmp_path: Path) -> None:
    done = run(tmp_path, acceptance_matrix(DRAFT), "-k", "acceptance")
    assert done.returncode == 0, done.stdout
    assert "10 passed" in done.stdout


def test_a_draft_with_shuffled_weights_turns_its_acceptance_red_and_no_other(
    tmp_path: Path,
) -> None:
    matrix = acceptance_matrix(shuffled("draft", tmp_path))
    done = run(tmp_path, matrix, "-k", "acceptance")
    assert done.returncode == 1, done.stdout
    assert outcomes(done, tmp_path)["vllm-draft_model-tiny-toy-c1"] == {"REGRESSED"}
    assert outcomes(done, tmp_path)["vllm-ngram-tiny-toy-c1"] == {"PASS"}


@pytest.mark.parametrize(
    ("method", "fault"),
    [("eagle", ""), ("medusa", ""), ("dflash", ""), ("mtp", "shuffled_mtp"), ("suffix", "forgets")],
)
def test_a_shuffled_head_or_a_lost_cache_turns_its_acceptance_red(
    tmp_path: Path, method: str, fault: str
) -> None:
    """In a file of its own or, as a target with other weights has no baseline, in the engine."""
    matrix = HEADS_MATRIX
    if not fault:
        matrix = matrix.replace(f'"{TINY}/{method}"', f'"{shuffled(method, tmp_path)}"')
    done = run(tmp_path, matrix, "-k", f"acceptance and vllm-{method}-", fault=fault)
    assert done.returncode == 1, done.stdout
    # EAGLE has two cases, because one of them drafts fewer tokens under load.
    assert set().union(*outcomes(done, tmp_path).values()) == {"REGRESSED"}, done.stdout


def test_one_draft_token_fewer_turns_the_case_red(tmp_path: Path) -> None:
    matrix = acceptance_matrix(DRAFT)
    done = run(tmp_path, matrix, "-k", "acceptance and draft_model", fault="fewer_drafts")
    assert done.returncode == 10, done.stdout
    assert outcomes(done, tmp_path) == {"vllm-draft_model-tiny-toy-c1": {"INVALID"}}
    assert "the server drafts up to 2 tokens per step, up to 2 of them accepted" in done.stdout
    assert "the case asks for 3, up to 3" in done.stdout


def test_a_sleep_of_5_ms_per_step_turns_the_speedup_red_night_after_night(tmp_path: Path) -> None:
    baselines_option = f"--specreg-baselines={tmp_path / 'baselines'}"
    update = ("--update-baselines", "--reason=test", "--specreg-launches=2")
    recorded = run(tmp_path, SPEED_MATRIX, baselines_option, *update, "-k", "draft_model")
    assert recorded.returncode == 0, recorded.stdout
    chosen = ("-k", "draft_model and c1- and (speedup or acceptance)")
    sound = run(tmp_path, SPEED_MATRIX, baselines_option, *chosen)
    assert sound.returncode == 0, sound.stdout
    for _ in range(2):
        slowed = run(tmp_path, SPEED_MATRIX, baselines_option, *chosen, fault="sleep")
        assert slowed.returncode == 1, slowed.stdout
        assert "REGRESSED: speedup " in slowed.stdout
        assert "by the cost of a step" in slowed.stdout
        assert "REGRESSED: acceptance" not in slowed.stdout


@pytest.mark.parametrize(
    ("since", "status", "code", "words"),
    [
        (UPGRADED, 1, "REGRESSED", "ENGINE_SLOWER: it is the engine, not the machine"),
        (
            "",
            10,
            "INVALID",
            "MACHINE_MOVED: the engine lost no more than 30 %, so it is the machine",
        ),
    ],
    ids=["the engine", "the machine"],
)
def test_after_an_upgrade_the_recorded_version_tells_the_engine_from_the_machine(
    tmp_path: Path, since: str, status: int, code: str, words: str
) -> None:
    """A step takes 10 ms more, with or without speculation, in one version or in both of them."""
    baselines_option = f"--specreg-baselines={tmp_path / 'baselines'}"
    chosen = ("-k", "draft_model and throughput_tokens_per_s")
    version_option = f"--specreg-engine-version={RECORDED}"
    update = ("--update-baselines", "--reason=test", "--specreg-launches=3")
    recorded = run(tmp_path, THROUGHPUT_MATRIX, baselines_option, version_option, *update)
    assert recorded.returncode == 0, recorded.stdout
    version_option = f"--specreg-engine-version={UPGRADED}"
    slowed = run(
        *(tmp_path, THROUGHPUT_MATRIX, baselines_option, version_option, *chosen),
        fault="sleep_always",
        since=since,
    )
    assert slowed.returncode == status, slowed.stdout
    assert f"{code}: throughput " in slowed.stdout
    assert words in slowed.stdout, slowed.stdout
    assert f"vllm {RECORDED} -> {UPGRADED} on vllm-draft_model-tiny-toy-c1" in slowed.stdout
