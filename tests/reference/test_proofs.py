"""What a broken verifier does to a text and to its steps is seen by both proofs.

The suite is run as a user would, on the reference engine with a fault planted in its verifier.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from specreg.report.json import RunVerdict, load_verdict
from tests.unit import builders

PLANTED = Path(__file__).parent / "planted"


def prove(folder: Path, fault: str) -> RunVerdict:
    """What the suite says of the draft model's case, with a fault in the engine."""
    path = os.pathsep.join((str(PLANTED), os.environ.get("PYTHONPATH", "")))
    done = subprocess.run(
        (
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *("tests/perf/test_lossless.py", "tests/perf/test_oracle.py", "-k", "draft_model"),
            *("--specreg-tier=reference", "--specreg-oracle", f"--specreg-runs={folder}"),
        ),
        check=False,
        cwd=builders.ROOT,
        env=os.environ | {"PYTHONPATH": path, "PLANTED_FAULT": fault},
        capture_output=True,
        text=True,
    )
    (run,) = folder.iterdir()
    found = load_verdict(run / "verdict.json")
    assert found is not None, done.stdout
    assert found.exit_status == done.returncode
    return found


def outcomes(verdict: RunVerdict) -> dict[str, str]:
    return {one.metric: one.outcome for one in verdict.verdicts}


def test_a_sound_engine_passes_both(tmp_path: Path) -> None:
    verdict = prove(tmp_path, "")

    assert outcomes(verdict) == {"lossless_frac": "PASS", "oracle_length_tokens": "PASS"}
    assert verdict.exit_status == 0


@pytest.mark.parametrize("fault", ["one_too_many", "no_correction", "wrong_rollback"])
def test_a_broken_verifier_passes_neither(tmp_path: Path, fault: str) -> None:
    verdict = prove(tmp_path, fault)

    assert outcomes(verdict) == {"lossless_frac": "WRONG", "oracle_length_tokens": "WRONG"}
    assert verdict.exit_status == 1
