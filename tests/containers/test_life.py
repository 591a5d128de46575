"""Servers in real containers: they live and end like any other, whoever is killed and when."""

import contextlib
import dataclasses
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from specreg.core.errors import ServerDiedError, ServerStartError
from specreg.servers.containers import ARGUMENTS_VARIABLE, find_runtime
from tests.containers.holder import PHASES
from tests.containers.runtimes import IMAGES, RealRuntime
from tests.doubles.vllm.script import Fault, Script, record_script
from tests.faults.running import MATRIX, Hurt
from tests.unit import builders
from tests.unit.builders.started_servers import PROVISION, left_of, start

IN_IMAGE = dataclasses.replace(PROVISION, python=None, image=IMAGES[0])


def wait_until(is_so: Callable[[], object], within_s: float = 30.0) -> None:
    """Returns once something is so; it is an error if it isn't in time."""
    until_s = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < until_s
        time.sleep(0.05)


def test_a_server_runs_in_a_container_and_is_gone_afterwards(
    runtime: RealRuntime, tmp_path: Path
) -> None:
    with start(tmp_path, Script(), provision=IN_IMAGE) as server:
        assert server.engine_version == "99.0+scripted"
        assert server.facts.image == IMAGES[0]
        assert server.facts.image_digest.startswith("sha256:")
        assert server.facts.variables == ()
        in_container = {process.pid for process in left_of(tmp_path)}
        assert in_container
        assert in_container <= server.pids()
    assert runtime.containers() == []
    assert left_of(tmp_path) == []


def test_a_start_that_fails_or_hangs_leaves_nothing(runtime: RealRuntime, tmp_path: Path) -> None:
    scripts = (Script(fault=Fault.EXIT_AT_START), Script(ready_after_s=60.0))
    for number, script in enumerate(scripts):
        folder = tmp_path / str(number)
        folder.mkdir()
        with (
            pytest.raises(ServerStartError),
            start(folder, script, provision=IN_IMAGE, root=builders.ROOT, ready_within_s=8.0),
        ):
            pass
    assert runtime.containers() == []
    assert left_of(tmp_path) == []


def test_a_server_that_hangs_is_named_and_its_container_ended(
    runtime: RealRuntime, tmp_path: Path
) -> None:
    variables = record_script(Script(step_ms=8.0), tmp_path)
    in_tier = ", ".join(f"{name} = {value!r}" for name, value in variables.items())
    matrix = MATRIX.replace('OMP_NUM_THREADS = "1"', in_tier)
    run = Hurt(folder=tmp_path, script=None, matrix=matrix)
    with run.start(f"--specreg-image={IMAGES[0]}", "-k", "toy-c1 and acceptance") as suite:
        wait_until(run.is_measuring(), 120)
        for process in left_of(tmp_path):
            process.suspend()
        output, _ = suite.communicate(timeout=240)
    explanations = [verdict.explanation for verdict in run.verdict().verdicts]
    assert explanations, output
    assert all(text.startswith("HUNG: no token came for 60 s") for text in explanations), output
    assert runtime.containers() == []
    assert left_of(tmp_path) == []


def test_a_daemon_that_is_killed_leaves_nothing(runtime: RealRuntime, tmp_path: Path) -> None:
    if runtime.daemon is None or runtime.start_daemon is None:
        pytest.skip("no daemon, or one that others need")
    with start(tmp_path, Script(), provision=IN_IMAGE) as server:
        server.pids()
        runtime.daemon.kill()
        runtime.daemon.wait()
        with pytest.raises(ServerDiedError):
            wait_until(server.check_alive)
    assert left_of(tmp_path) == []
    runtime.daemon = runtime.start_daemon()
    wait_until(lambda: runtime.containers() == [])


@contextlib.contextmanager
def silent_registry() -> Iterator[str]:
    """The address of a registry that accepts connections, and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def with_words(*words: str) -> list[psutil.Process]:
    """The processes whose command has all these words."""
    processes = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if {*words} <= {*process.cmdline()}:
                processes.append(process)
    return processes


class Holder:
    """A run in a phase; see `tests.containers.holder`."""

    def __init__(self, runtime: RealRuntime, folder: Path, phase: str, image: str) -> None:
        self.folder = folder
        self.image = image
        self.process = subprocess.Popen(
            (sys.executable, "-m", "tests.containers.holder", phase, str(folder), image),
            cwd=builders.ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.supervisor: int | None = None
        if phase == "pulling":
            wait_until(lambda: with_words("pull", image))
        elif phase == "looking":
            wait_until(runtime.containers)
        elif phase == "starting":
            wait_until(lambda: left_of(folder))
        else:
            self.supervisor = int(self.line())
        if phase == "measuring":
            assert self.line() == "measuring\n"
        if phase == "stopping":
            # It doesn't end when it is asked to.
            for process in left_of(folder):
                process.suspend()
            assert self.process.stdin is not None
            self.process.stdin.write("\n")
            self.process.stdin.flush()
            wait_until(lambda: with_words(runtime.program[0], "stop"))

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def kill_runtime(self) -> None:
        """Kill the runtime's own processes for this run."""
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if process.name() in {"docker", "podman", "conmon"}:
                    process.kill()

    def left(self) -> list[psutil.Process]:
        """What is left of its processes."""
        return [*left_of(self.folder), *with_words("pull", self.image)]


@pytest.fixture(params=PHASES)
def holder(
    request: pytest.FixtureRequest,
    runtime: RealRuntime,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Holder]:
    phase: str = request.param
    with silent_registry() as registry:
        image = f"{registry}/team/engine:1" if phase == "pulling" else IMAGES[0]
        if phase == "looking":
            # The image's Python hangs.
            (tmp_path / "python3").write_text("#!/bin/sh\nexec sleep 600\n")
            (tmp_path / "python3").chmod(0o755)
            arguments = os.environ[ARGUMENTS_VARIABLE]
            path = f"--env=PATH={tmp_path}:/usr/bin:/bin"
            monkeypatch.setenv(ARGUMENTS_VARIABLE, f"{arguments} {path}")
        holder = Holder(runtime, tmp_path, phase, image)
        yield holder
        holder.process.kill()
        holder.process.communicate()


def test_a_run_that_is_killed_in_any_phase_leaves_nothing(
    holder: Holder, runtime: RealRuntime
) -> None:
    holder.process.kill()
    wait_until(lambda: not runtime.containers() and not holder.left())


def test_a_runtime_that_is_killed_in_any_phase_ends_the_run_and_leaves_nothing(
    holder: Holder, runtime: RealRuntime
) -> None:
    holder.kill_runtime()
    holder.process.wait(60)
    wait_until(lambda: not runtime.containers() and not holder.left())


def test_what_a_killed_run_and_supervisor_leave_the_next_run_ends(
    runtime: RealRuntime, tmp_path: Path
) -> None:
    holder = Holder(runtime, tmp_path, "ready", IMAGES[0])
    assert holder.supervisor is not None
    os.kill(holder.supervisor, signal.SIGKILL)
    holder.process.kill()
    holder.process.communicate()
    find_runtime().remove_left_over()
    wait_until(lambda: not runtime.containers() and not holder.left())
