"""Real vLLM on a node of a real Ray cluster, without a GPU: the verdicts of a plain run.

It takes two runs of the tier `cpu`, of some minutes each. `SPECREG_PLAIN_REPORT=…/report.json` is
taken for the plain one: a run that was made before on this machine.
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from specreg.correctness.checks import CHECKS
from specreg.measurement.metrics import METRICS, Family
from specreg.report.document import RunVerdict, load_report
from specreg.verdicts.judge import Outcome
from tests.cluster.test_ray import cluster_of, says
from tests.doubles.vllm.script import Script
from tests.faults.running import ROOT, Hurt
from tests.many.test_one_node import figures

pytestmark = pytest.mark.vllm

Figures = dict[tuple[str, str], tuple[str, float | None]]

PLAIN_REPORT = "SPECREG_PLAIN_REPORT"
UNJUDGED = {Outcome.NOT_COMPARABLE.value, Outcome.NO_BASELINE.value}


@dataclass(kw_only=True)
class OfTheTier(Hurt):
    """A run of the repository's own tier, which nobody hurts."""

    script: Script | None = None
    patience_s: float = 1800.0

    def command(self, *arguments: str) -> tuple[str, ...]:
        """See `Hurt`."""
        return (
            *(sys.executable, "-m", "pytest", "tests/perf", "-q", "-p", "no:cacheprovider"),
            *("--specreg-tier=cpu", f"--specreg-runs={self.runs}"),
            *arguments,
        )


def of_the_tier(folder: Path) -> OfTheTier:
    """A run in a folder; it finds specreg as a node of the cluster does."""
    folder.mkdir()
    variables = {"PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"}
    return OfTheTier(folder=folder, variables=variables)


@pytest.fixture
def plain(tmp_path: Path) -> RunVerdict:
    """What a run without a cluster says: the one that was given, or one that is made now."""
    if given := os.environ.get(PLAIN_REPORT):
        return load_report(Path(given)).run
    run = of_the_tier(tmp_path / "plain")
    done = run.run()
    assert run.runs.exists(), done.stdout
    return run.verdict()


def exact(found: Figures) -> Figures:
    """What no machine moves: acceptance, whose greedy answers repeat, and what is proved."""
    return {
        (case_id, name): told
        for (case_id, name), told in found.items()
        if name in CHECKS or METRICS[name].family is Family.ACCEPTANCE
    }


def is_judged(found: Figures) -> dict[tuple[str, str], bool]:
    """Of the rest whether there was something to judge it by; a busy machine moves its verdict."""
    return {
        key: outcome not in UNJUDGED
        for key, (outcome, _) in found.items()
        if key not in exact(found)
    }


def test_the_verdicts_of_real_vllm_on_a_node_are_those_of_a_plain_run(
    tmp_path: Path, plain: RunVerdict
) -> None:
    raylets = of_the_tier(tmp_path / "raylets")
    run = of_the_tier(tmp_path / "run")
    with cluster_of(raylets, num_cpus=2, num_gpus=0) as cluster:
        done = run.run(f"--specreg-ray={cluster.address}")
        assert run.runs.exists(), done.stdout
        assert [one for one in raylets.processes() if says(one, "vllm.entrypoints")] == []
    here, there = figures(plain), figures(run.verdict())
    print(f"plain: {here}\non Ray: {there}")  # noqa: T201 - pytest -rP shows it
    assert list(there) == list(here), done.stdout
    assert exact(there) == exact(here), done.stdout
    assert is_judged(there) == is_judged(here), done.stdout
    told = {METRICS[name].family for _, name in exact(here) if name in METRICS}
    assert told == {Family.ACCEPTANCE}, "the runs have measured something"
    assert "--specreg-ray: servers ran for" in done.stdout
    assert run.left() == []
