"""Each tier of the repository collects, on a machine with a GPU or without."""

import sys

import pytest

from specreg.correctness.checks import CHECKS
from specreg.matrix.tier import load_tier, tier_names
from specreg.measurement.metrics import METRICS
from specreg.telemetry.identity import find_gpus
from tests.plugin.conftest import ROOT, run_here

FOLDER = ROOT / "fixtures/matrix"


@pytest.mark.parametrize("name", tier_names(FOLDER))
def test_a_tier_collects_a_test_of_each_case_and_metric(name: str) -> None:
    done = run_here(
        *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:hypothesispytest"),
        *("tests/perf", "--collect-only", "-q", f"--specreg-tier={name}"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    collected = {
        line.split("[")[1].rstrip("]") for line in done.stdout.splitlines() if "::" in line
    }
    wanted = {
        f"{case.id}-{metric.name}"
        for case in load_tier(FOLDER, name).chosen(find_gpus().memory_gib).cases
        for metric in METRICS.values()
        if metric.is_judged(case)
    }
    assert wanted <= collected
    proved = {one.rpartition("-")[2] for one in collected - wanted}
    assert proved <= CHECKS.keys()
