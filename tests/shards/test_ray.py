"""The shards of a run on a real Ray cluster of two nodes on this machine; `nox -s shards`.

`SPECREG_KILLS=50 nox -s shards -- -k killed` kills as many tasks.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from specreg.core.descendants import SUPERVISOR_PROGRAM
from specreg.core.shared_memory import shared_files
from tests.doubles.vllm.script import Fault, Script
from tests.faults.running import MARK, lives, marked, shared_left, wait_until
from tests.plugin.conftest import Suite, decided, run_here, start_here
from tests.unit.builders.sharded_runs import CASES, CHOSEN, TIER

cluster_utils = pytest.importorskip("ray.cluster_utils")

KILLS = int(os.environ.get("SPECREG_KILLS", "10"))
STARTS = 5
"""How often a start of Ray is tried."""
SHARD_WITHIN_S = 300.0
"""How long a command may take until its first shard runs, also on a busy machine."""
ENDED_WITHIN_S = 20.0
"""How long after a kill something of a shard may still run."""
DEAF = Script(step_ms=10.0, shares_memory=True, ignore_sigterm=True)
SERVERS = (
    DEAF,
    msgspec.structs.replace(DEAF, ignore_sigint=True),
    msgspec.structs.replace(DEAF, fault=Fault.SURVIVOR, survivor_s=600.0),
    msgspec.structs.replace(DEAF, fault=Fault.DAEMON, survivor_s=600.0),
)


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    """A suite of three servers, without baselines."""
    new_suite = Suite(tmp_path)
    new_suite.write_tier(TIER)
    return new_suite


def patiently(start: Callable[..., Any], **options: Any) -> Any:  # noqa: ANN401 - Ray's
    """Start something of Ray, again if need be: it gives a node 30 s, too few on a busy machine."""
    for _ in range(STARTS - 1):
        # Ray raises a plain Exception.
        with contextlib.suppress(Exception):
            return start(**options)
    return start(**options)


@contextlib.contextmanager
def cluster_of(
    nodes: int, *, variables: Sequence[Mapping[str, str]] = (), **resources: float
) -> Iterator[Any]:
    """A cluster of so many nodes on this machine, each of which takes such shards.

    Tasks have the variables of their nodes, which are this process's unless each has its own.
    """
    options: dict[str, Any] = {"num_cpus": 1, **resources}
    by_node = [
        {**options, **({"env_vars": extra} if extra else {})} for extra in variables or [{}] * nodes
    ]
    head = {**by_node[0], "include_dashboard": False}
    cluster = patiently(cluster_utils.Cluster, initialize_head=True, head_node_args=head)
    try:
        for node_options in by_node[1:]:
            patiently(cluster.add_node, **node_options)
        yield cluster
    finally:
        cluster.shutdown()


@pytest.fixture
def cluster(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Two nodes on which the scripted engine is found."""
    monkeypatch.setenv(MARK, str(suite.folder))
    for name, value in suite.environment().items():
        monkeypatch.setenv(name, value)
    with cluster_of(2) as address:
        yield address


def command_of(address: str, into: Path, *arguments: str) -> tuple[str, ...]:
    """`specreg ray` of two shards."""
    return (
        *(sys.executable, "-m", "specreg", "ray", f"--address={address}", "--shards=2"),
        *(f"--into={into}", *arguments),
    )


def own_options(suite: Suite) -> list[str]:
    """The options of a suite but for where its runs go, which a node chooses."""
    options = (option for option in suite.command() if option.startswith("--specreg-"))
    return [option for option in options if not option.startswith("--specreg-runs")]


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
    assert {metric_verdict.case_id for metric_verdict in verdict.verdicts} == CASES
    assert {str(metric_verdict.outcome) for metric_verdict in verdict.verdicts} == {
        "NO_BASELINE",
        "PASS",
    }


def test_an_address_that_nothing_answers_is_named(suite: Suite) -> None:
    done = suite.specreg("ray", "--address=127.0.0.1:9", "--", *own_options(suite))
    assert done.returncode == 10, done.stdout + done.stderr
    assert "specreg ray --address 127.0.0.1:9: no cluster answers" in done.stderr
    assert "Traceback" not in done.stderr


def shards_of(folder: Path) -> set[int]:
    """The processes that run a shard."""
    return {
        process.pid
        for process in marked(folder)
        if {"tests/perf", "pytest"} <= set(arguments_of(process))
    }


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
    assert {str(metric_verdict.outcome) for metric_verdict in verdict.verdicts} == {
        "NO_BASELINE",
        "PASS",
    }, output
    assert {metric_verdict.case_id for metric_verdict in verdict.verdicts} == CASES
    assert not shards_of(suite.folder)


def has_begun(suite: Suite) -> bool:
    """Whether a server of each shard runs."""
    return sum("--port" in arguments_of(process) for process in marked(suite.folder)) >= 2


def supervised(folder: Path) -> list[psutil.Process]:
    """The processes of a shard: pytest, its servers, and the supervisors of each."""
    processes = []
    for process in marked(folder):
        with contextlib.suppress(psutil.Error):
            family = [process, *process.parents()]
            if any(SUPERVISOR_PROGRAM in arguments_of(member) for member in family):
                processes.append(process)
    return processes


def running_shards(folder: Path) -> list[psutil.Process]:
    """The processes of pytest that run a shard in a task; not the one that lists them."""
    return [process for process in supervised(folder) if "pytest" in arguments_of(process)]


@dataclass(frozen=True, kw_only=True)
class Victim:
    """A suite whose shards are killed, and the cluster that runs them.

    Attributes:
        suite: the suite. Its script is on disk, where the next server reads it.
        address: the address of the cluster.
        temporary: the folder of the temporary files of the cluster's tasks.
    """

    suite: Suite
    address: str
    temporary: Path

    def environment(self) -> dict[str, str]:
        """The variables of the command and of the tasks."""
        mark = {MARK: str(self.suite.folder), "TMPDIR": str(self.temporary)}
        return self.suite.environment() | mark


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    """A cluster of one node for all kills, because a start of Ray takes longer than a kill."""
    suite = Suite(tmp_path_factory.mktemp("killed"))
    suite.write_tier(TIER)
    # With a short name, because paths of sockets are short.
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        victim = Victim(suite=suite, address="", temporary=Path(folder))
        variables = {**victim.environment(), "RAY_TMPDIR": tempfile.gettempdir()}
        with cluster_of(1, variables=[variables]) as cluster:
            yield replace(victim, address=cluster.address)


@pytest.mark.parametrize("seed", range(KILLS))
def test_a_task_that_is_killed_leaves_nothing(victim: Victim, seed: int) -> None:
    """By each signal, or with the command itself, at any moment, with each kind of server."""
    chance = random.Random(seed)  # noqa: S311 - a moment, no secret
    number = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, None)[seed % 4]
    is_stopped = chance.random() < 0.25
    moment_s = chance.uniform(0.0, 8.0)
    suite = victim.suite
    suite.script = SERVERS[(seed + seed // 4) % len(SERVERS)]
    shared_before = shared_files()
    arguments = ("--", *CHOSEN[2:], *own_options(suite))
    command = command_of(victim.address, suite.folder / f"merged-{seed}", *arguments)
    with start_here(command, victim.environment()) as driver:
        wait_for_shard(suite, driver)
        time.sleep(moment_s)
        servers = [process for process in marked(suite.folder) if "--port" in arguments_of(process)]
        if is_stopped and servers:
            servers[0].suspend()
        # One shard may have ended just now, and the next one not begun.
        wait_for_shard(suite, driver)
        before = supervised(suite.folder)
        _supervisor, task, *_ = running_shards(suite.folder)[0].parents()
        if number is not None:
            task.send_signal(number)
            wait_until_ended(before)
        driver.kill()
        driver.communicate(timeout=60)
    wait_until_ended(supervised(suite.folder))
    assert supervised(suite.folder) == []
    assert list(victim.temporary.glob("shard-*")) == []
    assert not shared_left(shared_before)


def wait_for_shard(suite: Suite, driver: subprocess.Popen[str]) -> None:
    """Wait until a shard runs; show what the command has printed if none does."""
    until_s = time.monotonic() + SHARD_WITHIN_S
    while not running_shards(suite.folder):
        if driver.poll() is not None or time.monotonic() > until_s:
            driver.kill()
            output, _ = driver.communicate()
            pytest.fail(f"no shard runs; status {driver.returncode}:\n{output}")
        time.sleep(0.05)


def wait_until_ended(processes: Sequence[psutil.Process]) -> None:
    """Wait until none of the processes lives; name those that live after 20 s."""
    until_s = time.monotonic() + ENDED_WITHIN_S
    while any(map(lives, processes)) and time.monotonic() < until_s:
        time.sleep(0.05)
    survivors = [process for process in processes if lives(process)]
    assert not survivors, [arguments_of(process) for process in survivors]


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
    assert {metric_verdict.case_id for metric_verdict in verdict.verdicts} == cases
    assert {str(metric_verdict.outcome) for metric_verdict in verdict.verdicts} <= {
        "PASS",
        "NO_BASELINE",
    }
