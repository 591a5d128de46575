"""Faults planted in side B of real vLLM are found, and called what they are.

These start real servers: about twenty-five minutes, and up to three quarters of an hour more for
5 % of a step. `nox -s gate_tests` runs them.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from specreg.correctness.checks import LOSSLESS
from specreg.engines.drafter.scheduled import step_after
from specreg.report.document import ComparedReport
from specreg.report.files import load_report
from specreg.verdicts.verdict import Verdict
from tests.unit.builders.tiers import tiny_tier

ROOT = Path(__file__).parents[2]
VERSION = "vllm==0.32.0"
PLANTED = ROOT / "tests/faults/planted"

CASE = "vllm-draft_model-tiny-toy-c1"
PINNED = "vllm-scheduled-tiny-al2.5-toy-c1"
PADDED = "vllm-eagle3-tiny-toy-c4"
"""Of the tier `cpu`."""
CAP_TOKENS = 81
"""With 1, 2, 1, 2, … drafts accepted that is 32 steps, the last of which is cut off nowhere."""


def specreg(folder: Path, *arguments: str, speed: bool) -> tuple[int, str]:
    """The status of a command, and what it said."""
    # Without padding a step takes about 5 ms, so that 5 ms more can't be lost in a machine's noise.
    tier = tiny_tier(
        "draft_model",
        drafts={"draft_model": "fixtures/models/tiny/draft"},
        prompts=12,
        output_cap_tokens=CAP_TOKENS,
        ignore_eos=not speed,
        dtype="float32",
        engine_env={"OMP_NUM_THREADS": "1"},
        speed=speed,
    )
    (folder / "cpu.toml").write_text(tier)
    done = subprocess.run(
        (
            *(sys.executable, "-m", "specreg", *arguments[:1], "--root", str(ROOT)),
            *("--matrix", str(folder), "--tier", "cpu", "--out", str(folder / "out")),
            *arguments[1:],
        ),
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


def run(folder: Path, *arguments: str, speed: bool) -> ComparedReport:
    """Two sides of the same version, of which B is refused."""
    status, output = specreg(folder, "gate", VERSION, VERSION, *arguments, speed=speed)
    assert status == 1, output
    report = load_report(folder / "out" / "report.json")
    assert isinstance(report, ComparedReport)
    return report


def judged(report: ComparedReport, case_id: str, metric: str) -> Verdict:
    """One row of a report."""
    rows = report.run.verdicts
    return next(row for row in rows if (row.case_id, row.metric) == (case_id, metric))


def answers(report: ComparedReport) -> str:
    """What the gate answered, with the cause of each loss."""
    return "; ".join(headline.text for headline in report.answers)


def foreseen(schedule: Sequence[int]) -> float:
    """Accepted drafts per step of answers as long as the cap: AL - 1."""
    steps = step_after(CAP_TOKENS, schedule)
    return sum(schedule[step % len(schedule)] for step in range(steps)) / steps


def test_3_percent_of_the_accepted_drafts_are_found(tmp_path: Path) -> None:
    """One of 48 accepted drafts, so that an answer takes 33 steps and not 32; 2 % is tolerated.

    A draft that is lost beside one that the end of the answer cuts off would change no step.
    """
    pinned = (1, 2)
    planted = (1, 1, *(1, 2) * 16)
    report = run(
        tmp_path,
        *("--pin", "2.5", "--launches", "2"),
        *("--b", f"engine_env.SCHEDULED_ACCEPTED={','.join(map(str, planted))}"),
        speed=False,
    )
    lost = judged(report, PINNED, "acceptance_length_tokens")
    assert lost.outcome == "REGRESSED"
    a, b = (foreseen(schedule) for schedule in (pinned, planted))
    assert b / a - 1 == pytest.approx(-0.03, abs=0.002)
    assert lost.comparison.expected == pytest.approx(1 + a)
    assert lost.value == pytest.approx(1 + b)
    assert lost.comparison.change_frac == pytest.approx(b / a - 1)
    assert f"{PINNED} is worse because of acceptance" in answers(report)
    assert judged(report, CASE, "acceptance_length_tokens").outcome == "PASS"
    assert judged(report, CASE, LOSSLESS).outcome == "PASS"
    assert judged(report, PINNED, LOSSLESS).outcome == "NOT_COMPARABLE"


def test_5_ms_more_per_step_are_found(tmp_path: Path) -> None:
    """Prefill is a step too, so it may be named as well."""
    report = run(
        tmp_path,
        *("--launches", "6", "--b", "engine_env.PLANTED_FAULT=sleep"),
        *("--a", f"engine_env.PYTHONPATH={PLANTED}", "--b", f"engine_env.PYTHONPATH={PLANTED}"),
        speed=True,
    )
    assert judged(report, CASE, "throughput_tokens_per_s").outcome == "REGRESSED"
    assert judged(report, CASE, "acceptance_length_tokens").outcome == "PASS"
    assert f"{CASE} is worse because of the cost of a step" in answers(report)


def test_5_percent_of_a_step_are_found(tmp_path: Path) -> None:
    """The planted fault computes for such a share of each step, before the target does."""
    there = f"engine_env.PYTHONPATH={PLANTED}"
    report = run(
        tmp_path,
        *("--matrix", "fixtures/matrix", "--case", PADDED, "--seconds", "30"),
        *("--a", there, "--b", there, "--b", "engine_env.PLANTED_FAULT=sleep"),
        *("--b", "engine_env.PLANTED_LONGER_FRAC=0.05"),
        speed=True,
    )
    assert report.answers[0].subject == "DON'T"
    assert judged(report, PADDED, "throughput_tokens_per_s").outcome == "REGRESSED"
    step = judged(report, PADDED, "step_p50_ms").comparison
    assert step.change_frac is not None
    assert step.low_frac is not None
    assert step.high_frac is not None
    # A gate that stops early estimates a loss too large rather than too small, so that bound is
    # asked of the interval.
    assert step.change_frac < -0.03
    assert step.low_frac < -0.05
    assert step.high_frac > -0.07
    assert judged(report, PADDED, "acceptance_length_tokens").outcome == "PASS"
    assert f"{PADDED} is worse because of the cost of a step" in answers(report)


def test_the_release_in_which_a_draft_was_lost_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(PLANTED))
    monkeypatch.setenv("PLANTED_FAULT", "spoilt_draft")
    monkeypatch.setenv("PLANTED_SINCE", "0.31.0")
    status, output = specreg(
        tmp_path,
        *("bisect", CASE, "--good", "vllm==0.29.0", "--bad", VERSION, "--versions", "0.31.0"),
        *("--launches", "2"),
        speed=False,
    )
    assert status == 0, output
    assert "became worse in 0.31.0; 0.29.0 is good" in output
    assert f"{CASE} is worse because of acceptance" in output
