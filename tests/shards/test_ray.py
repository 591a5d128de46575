"""The shards of a run on a real Ray cluster of two nodes on this machine; `nox -s shards`."""

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.doubles.vllm.script import Script
from tests.faults.running import MARK, marked, wait_until
from tests.plugin.conftest import Suite, decided, run_here, start_here
from tests.plugin.test_shards import CASES, CHOSEN, TIER

cluster_utils = pytest.importorskip("ray.cluster_utils")


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    """A suite of three servers, without baselines."""
    made = Suite(tmp_path)
    made.write_tier(TIER)
    return made


@contextlib.contextmanager
def cluster_of(
    nodes: int, *, variables: Sequence[Mapping[str, str]] = (), **resources: float
) -> Iterator[Any]:
    """A cluster of so many nodes on this machine, each of which takes such shards.

    Tasks have the variables of their nodes, which are this process's unless each has its own.
    """
    own: dict[str, Any] = {"num_cpus": 1, **resources}
    each = [{**own, **({"env_vars": one} if one else {})} for one in variables or [{}] * nodes]
    cluster = cluster_utils.Cluster(
        initialize_head=True, head_node_args={**each[0], "include_dashboard": False}
    )
    try:
        for one in each[1:]:
            cluster.add_node(**one)
        yield cluster
    finally:
        cluster.shutdown()


@pytest.fixture
def cluster(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Two nodes on which the scripted engine is found."""
    monkeypatch.setenv(MARK, str(suite.folder))
    for name, value in suite.environment().items():
        monkeypatch.setenv(name, value)
    with cluster_of(2) as made:
        yield made


def command_of(address: str, into: Path, *arguments: str) -> tuple[str, ...]:
    """`specreg ray` of two shards."""
    return (
        *(sys.executable, "-m", "specreg", "ray", f"--address={address}", "--shards=2"),
        *(f"--into={into}", *arguments),
    )


def own_options(suite: Suite) -> list[str]:
    """The options of a suite but for where its runs go, which a node chooses."""
    options = (one for one in suite.command() if one.startswith("--specreg-"))
    return [one for one in options if not one.startswith("--specreg-runs")]


@pytest.mark.parametrize("carried", [(), ("--shared",)], ids=["carried", "shared"])
def test_all_shards_come_home_and_are_merged(
    suite: Suite,
    cluster: Any,  # noqa: ANN401 - Ray's
    carried: tuple[str, ...],
) -> None:
    into = suite.folder / "merged"
    command = command_of(cluster.address, into, *carried, "--", *CHOSEN[2:], *own_options(suite))
    done = run_here(*command, env=suite.environment())
    assert done.returncode == 11, done.stdout + done.stderr
    verdict = decided(into)
    assert {one.case_id for one in verdict.verdicts} == CASES
    assert {str(one.outcome) for one in verdict.verdicts} == {"NO_BASELINE", "PASS"}


def test_an_address_that_nothing_answers_is_named(suite: Suite) -> None:
    done = suite.specreg("ray", "--address=127.0.0.1:9", "--", *own_options(suite))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "specreg ray --address 127.0.0.1:9: no cluster answers" in done.stderr
    assert "Traceback" not in done.stderr


def shards_of(folder: Path) -> set[int]:
    """The processes that run a shard."""
    return {one.pid for one in marked(folder) if {"tests/perf", "pytest"} <= set(arguments_of(one))}


def arguments_of(process: psutil.Process) -> list[str]:
    """Its command line; none of one that has ended meanwhile."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.cmdline()
    return []


def test_a_shard_whose_node_dies_is_run_on_another(suite: Suite, cluster: Any) -> None:  # noqa: ANN401 - Ray's
    suite.script = Script(step_ms=10.0)
    into = suite.folder / "merged"
    (*_, node) = cluster.list_all_nodes()
    command = command_of(cluster.address, into, "--", *CHOSEN[2:], *own_options(suite))
    run = start_here(command, suite.environment())
    wait_until(lambda: len(shards_of(suite.folder)) == 2 and has_begun(suite), 120)
    before = shards_of(suite.folder)
    cluster.remove_node(node, allow_graceful=False)
    wait_until(lambda: len(before & shards_of(suite.folder)) <= 1, 60)
    output, _ = run.communicate(timeout=300)
    assert run.returncode == 11, output
    verdict = decided(into)
    assert {str(one.outcome) for one in verdict.verdicts} == {"NO_BASELINE", "PASS"}, output
    assert {one.case_id for one in verdict.verdicts} == CASES
    assert not shards_of(suite.folder)


def has_begun(suite: Suite) -> bool:
    """Whether a server of each shard runs."""
    return sum("--port" in arguments_of(one) for one in marked(suite.folder)) >= 2


@pytest.mark.vllm
def test_real_vllm_runs_in_the_shards(tmp_path: Path) -> None:
    into = tmp_path / "merged"
    chosen = "(ngram or eagle3) and c1 and acceptance"
    with cluster_of(2) as cluster:
        command = command_of(cluster.address, into, "--", "--specreg-tier=cpu", "-k", chosen)
        done = run_here(*command, timeout_s=900.0)
    assert (into / "verdict.json").exists(), done.stdout + done.stderr
    verdict = decided(into)
    cases = {f"vllm-{method}-tiny-toy-c1" for method in ("eagle3", "ngram")}
    assert {one.case_id for one in verdict.verdicts} == cases
    assert {str(one.outcome) for one in verdict.verdicts} <= {"PASS", "NO_BASELINE"}
