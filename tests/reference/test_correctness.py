"""What a broken verifier does to a text and to its steps is seen by both checks.

The suite is run as a user would, on the reference engine with a fault planted in its verifier.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from specreg.report.document import RunVerdict
from specreg.report.files import load_verdict
from tests.unit import builders

PLANTED = Path(__file__).parent / "planted"
GREEDY = (
    *("tests/perf/test_lossless.py", "tests/perf/test_oracle.py"),
    *("--specreg-tier=reference", "--specreg-oracle"),
)
DRAWN = ("tests/perf/test_lossless.py", "--specreg-tier=reference_drawn")


def prove(folder: Path, *arguments: str, fault: str = "") -> RunVerdict:
    """What the suite says of the tier's cases, with a fault in the engine or without."""
    path = os.pathsep.join((str(PLANTED), os.environ.get("PYTHONPATH", "")))
    done = subprocess.run(
        (
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *(*arguments, f"--specreg-runs={folder}"),
        ),
        check=False,
        cwd=builders.ROOT,
        env=os.environ | {"PYTHONPATH": path, "PLANTED_FAULT": fault},
        capture_output=True,
        text=True,
    )
    (run,) = folder.iterdir()
    verdict = load_verdict(run / "verdict.json")
    assert verdict is not None, done.stdout
    assert verdict.exit_status == done.returncode
    return verdict


def outcomes(verdict: RunVerdict) -> dict[tuple[str, str], str]:
    """By method and metric."""
    return {
        (metric_verdict.case_id.split("-")[1], metric_verdict.metric): metric_verdict.outcome
        for metric_verdict in verdict.verdicts
    }


def test_a_sound_engine_passes_both_and_takes_exactly_the_oracles_steps(tmp_path: Path) -> None:
    verdict = prove(tmp_path, *GREEDY)

    assert outcomes(verdict) == {
        (method, metric): "PASS"
        for method in ("ngram", "draft_model")
        for metric in ("lossless_frac", "oracle_length_tokens")
    } | {("ngram_adaptive", "lossless_frac"): "PASS"}
    assert verdict.exit_status == 0
    for metric_verdict in verdict.verdicts:
        # A reason would name each answer that is another, or whose S, A, D or positions are.
        assert metric_verdict.explanation == ""
        assert metric_verdict.value == (
            metric_verdict.comparison.expected
            if metric_verdict.metric == "oracle_length_tokens"
            else 1.0
        )


@pytest.mark.parametrize("fault", ["one_too_many", "no_correction", "wrong_rollback"])
def test_a_broken_verifier_passes_neither(tmp_path: Path, fault: str) -> None:
    verdict = prove(tmp_path, *GREEDY, "-k", "draft_model", fault=fault)

    assert outcomes(verdict) == {
        ("draft_model", "lossless_frac"): "WRONG",
        ("draft_model", "oracle_length_tokens"): "WRONG",
    }
    assert verdict.exit_status == 1


def test_a_sound_engine_draws_as_its_target_does(tmp_path: Path) -> None:
    verdict = prove(tmp_path, *DRAWN)

    assert outcomes(verdict) == {
        (method, "sampling_frac"): "PASS" for method in ("ngram", "ngram_adaptive", "draft_model")
    }


def test_one_that_draws_from_its_draft_after_a_rejection_is_wrong(tmp_path: Path) -> None:
    verdict = prove(tmp_path, *DRAWN, "-k", "draft_model", fault="drawn_again")

    assert outcomes(verdict) == {("draft_model", "sampling_frac"): "WRONG"}
    assert verdict.exit_status == 1
