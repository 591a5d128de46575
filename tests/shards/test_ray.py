"""The shards of a run on a real Ray cluster of two nodes on this machine; `nox -s shards`."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from specreg.report.document import load_verdict
from tests.plugin.conftest import ROOT, Suite
from tests.plugin.test_shards import CHOSEN, TIER

cluster_utils = pytest.importorskip("ray.cluster_utils")


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    """A suite of three servers, without baselines."""
    made = Suite(tmp_path)
    made.write_tier(TIER)
    return made


@pytest.fixture
def address(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A cluster whose head takes one shard and whose other node takes another.

    Tasks have the variables of their nodes; these find the scripted engine.
    """
    for name, value in suite.environment().items():
        monkeypatch.setenv(name, value)
    cluster = cluster_utils.Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    cluster.add_node(num_cpus=1)
    yield cluster.address
    cluster.shutdown()


@pytest.mark.parametrize("carried", [(), ("--shared",)], ids=["carried", "shared"])
def test_all_shards_come_home_and_are_merged(
    suite: Suite, address: str, carried: tuple[str, ...]
) -> None:
    own = [one for one in suite.command() if one.startswith("--specreg-") and "-runs" not in one]
    into = suite.folder / "merged"
    done = subprocess.run(
        (
            *(sys.executable, "-m", "specreg", "ray", f"--address={address}", "--shards=2"),
            *(*carried, f"--into={into}", "--", *CHOSEN[2:], *own),
        ),
        check=False,
        cwd=ROOT,
        env=suite.environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 11, done.stdout + done.stderr
    verdict = load_verdict(into / "verdict.json")
    assert verdict is not None
    assert {one.case_id for one in verdict.verdicts} == {
        f"vllm-{method}-tiny-toy-c{load}" for method in ("eagle3", "ngram") for load in (1, 4)
    }
    assert {str(one.outcome) for one in verdict.verdicts} == {"NO_BASELINE", "PASS"}


def test_an_address_that_nothing_answers_is_named(suite: Suite) -> None:
    own = [one for one in suite.command() if one.startswith("--specreg-")]
    done = subprocess.run(
        (sys.executable, "-m", "specreg", "ray", "--address=127.0.0.1:9", "--", *own),
        check=False,
        cwd=ROOT,
        env=suite.environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "specreg ray --address 127.0.0.1:9: no cluster answers" in done.stderr
    assert "Traceback" not in done.stderr
