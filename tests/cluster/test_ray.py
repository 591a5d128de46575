"""A real Ray cluster, its raylets all on this machine: plain verdicts, and what is lost comes back.

Its GPUs are scripted, and so are the servers; what Ray starts has the variables of the raylets.
"""

import contextlib
import dataclasses
import importlib.metadata
import os
import platform
import signal
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from specreg.many.ray_survey import why_not
from tests.doubles.vllm.script import record_script
from tests.faults.running import ROOT, Hurt, wait_until
from tests.many.test_one_node import (
    FAST,
    SLOW,
    cases,
    figures,
    gpus,
    hurt,
    is_part_of,
    lines_of,
    seen_gpus,
)
from tests.plugin.conftest import Suite

UUIDS = tuple(gpu.uuid for gpu in gpus(5))
FIRST, SECOND, OTHER_KIND = UUIDS[:2], UUIDS[2:4], UUIDS[4:]
STORE_BYTES = 80 * 2**20


@dataclass(kw_only=True)
class Raylets:
    """A cluster.

    Attributes:
        base: whose variables the raylets have.
        cluster: Ray's.
        nodes: by their GPUs, those that are always there.
    """

    base: Hurt
    cluster: Any
    nodes: dict[tuple[str, ...], Any] = field(default_factory=dict)

    @property
    def option(self) -> str:
        """What a run is started with."""
        return f"--specreg-ray={self.cluster.address}"

    def add(self, visible: tuple[str, ...], **variables: str) -> Any:  # noqa: ANN401 - Ray's own
        """A node with these GPUs."""
        with of_raylets(self.base, CUDA_VISIBLE_DEVICES=",".join(visible), **variables):
            return patiently(
                lambda: self.cluster.add_node(
                    num_cpus=2, num_gpus=len(visible), object_store_memory=STORE_BYTES
                )
            )

    def mend(self) -> None:
        """Starts the two nodes with GPUs of their own, as far as they don't run."""
        for visible, node in list(self.nodes.items()):
            if node.remaining_processes_alive():
                continue
            self.remove(node)
            del self.nodes[visible]
        for visible in {FIRST, SECOND} - self.nodes.keys():
            self.nodes[visible] = self.add(visible)

    def kill_raylet_of(self, process: psutil.Process) -> None:
        """Kills the raylet that a process belongs to; unless we bury it, Ray takes it to live."""
        ancestors = {one.pid for one in process.parents()}
        for node in self.nodes.values():
            raylet = node.all_processes["raylet"][0].process
            if raylet.pid in ancestors:
                raylet.kill()
                raylet.wait()

    def remove(self, node: Any) -> None:  # noqa: ANN401 - Ray's own
        """Kills what is left of a node."""
        with contextlib.suppress(Exception):  # some of it may be gone
            self.cluster.remove_node(node, allow_graceful=False)

    @contextlib.contextmanager
    def another(self, visible: tuple[str, ...], **variables: str) -> Iterator[Any]:
        """A node for a while."""
        node = self.add(visible, **variables)
        try:
            yield node
        finally:
            self.remove(node)

    def run(self, folder: Path, servers: int, script: Any = FAST) -> Hurt:  # noqa: ANN401 - a Script
        """A run on it; three cases on each of so many servers."""
        record_script(script, self.base.folder)
        run = hurt(folder, servers, 1, script)
        return dataclasses.replace(run, gpus=())  # those are the nodes'

    def servers(self) -> list[psutil.Process]:
        """Those that run on its nodes."""
        return [one for one in self.base.processes() if says(one, "vllm.entrypoints")]

    def workers(self) -> list[psutil.Process]:
        """The workers that run on its nodes."""
        return [one for one in self.base.processes() if says(one, "specreg.many.worker")]

    def measures(self, case_id: str) -> psutil.Process | None:
        """The worker that measures a case now."""
        for one in self.workers():
            with contextlib.suppress(psutil.Error):
                if any(is_part_of(Path(file.path), case_id) for file in one.open_files()):
                    return one
        return None


def says(process: psutil.Process, word: str) -> bool:
    """Whether a process has a word in its command."""
    with contextlib.suppress(psutil.Error):
        return word in " ".join(process.cmdline())
    return False


def patiently(start: Callable[[], Any]) -> Any:  # noqa: ANN401 - Ray's own
    """What is started; Ray gives a node half a minute, which is little on a busy machine."""
    for _ in range(3):
        with contextlib.suppress(Exception):
            return start()
    return start()


@contextlib.contextmanager
def of_raylets(base: Hurt, **variables: str) -> Iterator[None]:
    """Whatever is started now has a raylet's variables."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, value in (base.environment() | variables).items():
            patch.setenv(name, value)
        yield


@contextlib.contextmanager
def cluster_of(base: Hurt, **head: float) -> Iterator[Any]:
    """A cluster of one raylet, the head, which may give something away; nothing of it is left."""
    with of_raylets(base, CUDA_VISIBLE_DEVICES=""):
        from ray.cluster_utils import Cluster  # noqa: PLC0415 - it warns

        given = {"object_store_memory": STORE_BYTES, **head}
        cluster = patiently(lambda: Cluster(initialize_head=True, head_node_args=given))
    try:
        yield cluster
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            cluster.shutdown()
        for process in base.processes():
            if process.pid != os.getpid():
                with contextlib.suppress(psutil.Error):
                    process.kill()


@pytest.fixture(scope="module")
def raylets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Raylets]:
    """A head that gives nothing away, and two nodes with two GPUs each."""
    folder = tmp_path_factory.mktemp("raylets")
    *alike, other = gpus(5)
    base = Hurt(
        folder=folder,
        script=FAST,
        gpus=(*alike, dataclasses.replace(other, name="Scripted L4")),
        variables={
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "PYTHONPATH": os.pathsep.join((str(ROOT / "tests/doubles"), str(ROOT))),
            "RAY_USAGE_STATS_ENABLED": "0",
        },
    )
    with cluster_of(base, num_cpus=0, num_gpus=0) as cluster:
        one = Raylets(base=base, cluster=cluster)
        one.mend()
        yield one


def test_the_verdicts_are_those_of_a_plain_run(raylets: Raylets, tmp_path: Path) -> None:
    plain = hurt(tmp_path / "plain", 3, 1, FAST)
    said = plain.run()
    many = raylets.run(tmp_path / "many", 3)
    done = many.run(raylets.option)
    assert done.returncode == said.returncode, done.stdout
    assert figures(many.verdict()) == figures(plain.verdict())
    assert list(figures(many.verdict())) == list(figures(plain.verdict()))
    assert [many.attempts(case) for case in cases(3)] == [1] * 9
    assert many.logs() == plain.logs()
    assert "--specreg-ray: servers ran for" in done.stdout
    assert "the 4 GPU(s) stood idle for" in done.stdout
    assert lines_of(many) == many.left() == raylets.servers() == []


def test_each_server_has_the_gpu_that_ray_gave_it(raylets: Raylets, tmp_path: Path) -> None:
    run = raylets.run(tmp_path, 4, SLOW)
    seen: set[str] = set()
    most = 0
    with run.start(raylets.option) as pytest_run:
        hearing = threading.Thread(target=pytest_run.communicate)
        hearing.start()
        while hearing.is_alive():
            now = seen_gpus(raylets.base)
            assert len(set(now)) == len(now)
            seen.update(now)
            most = max(most, len(now))
            time.sleep(0.2)
    assert seen == {*FIRST, *SECOND}
    assert most == 4


def test_without_gpus_servers_run_one_at_a_time_and_as_they_do_alone(
    raylets: Raylets, tmp_path: Path
) -> None:
    suite = Suite(tmp_path)
    record_script(suite.script, raylets.base.folder)
    suite.record()
    plain = suite.run("tests/perf", "-q", "-k", "acceptance or lossless")
    alone = figures(suite.verdict())
    many = suite.run("tests/perf", "-q", "-k", "acceptance or lossless", raylets.option)
    assert figures(suite.verdict()) == alone, many.stdout
    assert {outcome for outcome, _ in alone.values()} == {"PASS"}, plain.stdout
    assert many.returncode == plain.returncode == 0, many.stdout + many.stderr
    assert raylets.servers() == []


def test_a_raylet_that_is_killed_loses_no_finished_case(raylets: Raylets, tmp_path: Path) -> None:
    run = raylets.run(tmp_path, 2, SLOW)
    first, second, third = cases(2)[:3]
    try:
        with run.start(raylets.option) as pytest_run:
            wait_until(lambda: raylets.measures(second) is not None)
            worker = raylets.measures(second)
            assert worker is not None
            raylets.kill_raylet_of(worker)
            output, _ = pytest_run.communicate(timeout=180)
    finally:
        raylets.mend()
    assert "begun again, its worker was lost with its node" in output
    assert {outcome for outcome, _ in figures(run.verdict()).values()} == {"NO_BASELINE"}, output
    assert set(cases(2)) == {case for case, _ in figures(run.verdict())}
    assert [run.attempts(case) for case in (first, second, third)] == [1, 1, 1]
    wait_until(lambda: raylets.servers() == [], 15.0)


def test_ctrl_c_ends_the_servers_and_what_was_measured_stays(
    raylets: Raylets, tmp_path: Path
) -> None:
    run = raylets.run(tmp_path, 2, SLOW)
    with run.start(raylets.option) as pytest_run:
        wait_until(lambda: raylets.measures(cases(2)[2]) is not None)
        pytest_run.send_signal(signal.SIGINT)
        output, _ = pytest_run.communicate(timeout=60)
        assert raylets.servers() == []
    assert "type the same again with --specreg-resume" in output
    measured = {case for case, _ in figures(run.verdict())}
    assert measured
    again = run.run(raylets.option, "--specreg-resume")
    assert {case for case, _ in figures(run.verdict())} == set(cases(2)), again.stdout
    assert all(run.attempts(case) == 1 for case in measured)


def test_a_run_that_is_killed_leaves_no_server(raylets: Raylets, tmp_path: Path) -> None:
    run = raylets.run(tmp_path, 2, SLOW)
    with run.start(raylets.option) as pytest_run:
        wait_until(lambda: len(raylets.servers()) == 2)
        pytest_run.kill()
        wait_until(lambda: raylets.servers() == raylets.workers() == [], 30.0)


def test_nodes_of_several_kinds_are_named(raylets: Raylets, tmp_path: Path) -> None:
    run = raylets.run(tmp_path, 1)
    with raylets.another(OTHER_KIND):
        done = run.run(raylets.option)
    assert done.returncode == 4
    assert "the nodes are of several kinds (" in done.stdout
    assert "Scripted L4" in done.stdout
    assert "Traceback" not in done.stdout
    assert run.logs() == []


def test_another_specreg_on_a_node_is_named(raylets: Raylets, tmp_path: Path) -> None:
    run = raylets.run(tmp_path, 1)
    planted = tmp_path / "planted"
    planted.mkdir()
    (planted / "sitecustomize.py").write_text("import specreg; specreg.__version__ = '99.0'\n")
    path = os.pathsep.join((str(planted), raylets.base.variables["PYTHONPATH"]))
    with raylets.another(FIRST, PYTHONPATH=path):
        done = run.run(raylets.option)
    assert done.returncode == 4
    assert "has specreg 99.0 (" in done.stdout
    assert "on each node" in done.stdout
    assert "Traceback" not in done.stdout
    assert run.logs() == []


def test_a_case_that_no_node_holds_is_skipped_with_its_reason(
    raylets: Raylets, tmp_path: Path
) -> None:
    run = raylets.run(tmp_path, 2)
    run.matrix += "\n[cases.parallel]\ntensor = 4\n"
    done = run.run(raylets.option, "-rs")
    assert "needs 4 GPU(s), the widest node has" in done.stdout
    assert run.logs() == []


def test_what_is_no_cluster_is_named_in_time(tmp_path: Path) -> None:
    run = hurt(tmp_path, 1, 1, FAST)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        done = run.run(f"--specreg-ray=127.0.0.1:{silent.getsockname()[1]}")
    assert done.returncode == 4, done.stdout
    assert "nothing answers within 10 s (" in done.stdout
    assert "Traceback" not in done.stdout


def test_another_ray_on_the_cluster_is_named_with_both_versions() -> None:
    from ray._private.utils import check_version_info  # noqa: PLC0415 - it warns

    cluster = {"ray_version": "2.0.0", "python_version": "3.9.1"}
    with pytest.raises(RuntimeError) as caught:
        check_version_info(cluster, "node 127.0.0.1")
    ours = f"Ray {importlib.metadata.version('ray')} on Python {platform.python_version()}"
    assert why_not(caught.value) == (
        f"the cluster runs Ray 2.0.0 on Python 3.9.1, this machine {ours}; install Ray 2.0.0 here,"
        " on Python 3.9.1"
    )
