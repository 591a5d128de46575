"""Servers in real containers of podman's, from an image of one static busybox.

The machine's programs, this Python and an engine's environment are mounted into it for reading, so
no registry is needed.
"""

import dataclasses
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from specreg.core.errors import ServerDiedError, ServerStartError
from specreg.engines.registry import engine_named
from specreg.servers.containers import ARGUMENTS_VARIABLE, RUNTIME_VARIABLE, find_runtime
from specreg.servers.provision import engine_environment
from tests.doubles.vllm.script import Fault, Script
from tests.unit import builders
from tests.unit.builders.started_servers import PROVISION, left_of, start

PODMAN = ("podman", "--storage-driver=vfs", "--runtime=runc", "--cgroup-manager=cgroupfs")
LIMITS = ("--ulimit=nofile=1024:1024", "--ulimit=nproc=1000:1000")
"""Without these, runc is refused in a sandbox."""
IMAGES = ("localhost/specreg-test:1", "localhost/specreg-test:2")
IN_IMAGE = dataclasses.replace(PROVISION, python=None, image=IMAGES[0])


def podman(*arguments: str) -> str:
    """What podman answers."""
    done = subprocess.run((*PODMAN, *arguments), check=True, capture_output=True, text=True)
    return done.stdout


def mounts(*folders: Path) -> tuple[str, ...]:
    machine = [Path(name) for name in ("/usr", "/lib", "/lib64", "/bin", "/etc")]
    existing = [folder for folder in (*machine, *folders) if folder.exists()]
    return tuple(f"--volume={folder}:{folder}:ro" for folder in dict.fromkeys(existing))


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Two images, which differ in a file that nothing reads."""
    busybox = shutil.which("busybox")
    assert busybox is not None, "install busybox-static"
    assert shutil.which("podman") is not None, "install podman and runc"
    folder = tmp_path_factory.mktemp("image")
    for number, name in enumerate(IMAGES, start=1):
        (folder / "version").write_text(str(number))
        archive = folder / f"{number}.tar"
        with tarfile.open(archive, "w") as tar:
            tar.add(busybox, "busybox")
            tar.add(folder / "version", "version")
        podman("import", str(archive), name)
    yield
    podman("rmi", "--force", *IMAGES)


@pytest.fixture
def runtime(images: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """podman, whose containers have this Python."""
    del images
    environment = Path(sys.prefix)
    base = Path(sys.base_prefix)
    arguments = (*LIMITS, *mounts(environment, base, builders.ROOT, tmp_path))
    path = f"--env=PATH={environment / 'bin'}:/usr/bin:/bin"
    monkeypatch.setenv(RUNTIME_VARIABLE, shlex.join(PODMAN))
    monkeypatch.setenv(ARGUMENTS_VARIABLE, shlex.join((*arguments, path)))


def left() -> list[str]:
    """The containers of any run."""
    return podman("ps", "--all", "--quiet", "--filter", "label=specreg.owner").split()


@pytest.mark.usefixtures("runtime")
def test_a_server_runs_in_a_container_and_is_gone_afterwards(tmp_path: Path) -> None:
    with start(tmp_path, Script(), provision=IN_IMAGE) as server:
        assert server.engine_version == "99.0+scripted"
        assert server.facts.image == IMAGES[0]
        assert server.facts.image_digest.startswith("sha256:")
        assert server.facts.variables == ()
        in_container = {process.pid for process in left_of(tmp_path)}
        assert in_container
        assert in_container <= server.pids()
    assert left() == []
    assert left_of(tmp_path) == []


@pytest.mark.usefixtures("runtime")
def test_a_start_that_fails_or_hangs_leaves_nothing(tmp_path: Path) -> None:
    scripts = (Script(fault=Fault.EXIT_AT_START), Script(ready_after_s=60.0))
    for number, script in enumerate(scripts):
        folder = tmp_path / str(number)
        folder.mkdir()
        with (
            pytest.raises(ServerStartError),
            start(folder, script, provision=IN_IMAGE, root=builders.ROOT, ready_within_s=8.0),
        ):
            pass
    assert left() == []
    assert left_of(tmp_path) == []


@pytest.mark.usefixtures("runtime")
def test_a_runtime_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    with start(tmp_path, Script(), provision=IN_IMAGE) as server:
        server.process.popen.kill()
        server.process.popen.wait()
        with pytest.raises(ServerDiedError):
            server.check_alive()
    assert left() == []
    assert left_of(tmp_path) == []


HOLDER = """
import sys, time
from pathlib import Path
from tests.containers.test_podman import IN_IMAGE
from tests.doubles.vllm.script import Script
from tests.unit.builders.started_servers import start
ready_after_s = float(sys.argv[2])
print("starting", flush=True)
with start(Path(sys.argv[1]), Script(ready_after_s=ready_after_s), provision=IN_IMAGE) as server:
    print(server.process.supervisor.pid, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("phase", ["looking", "starting", "ready", "ready-with-supervisor"])
@pytest.mark.usefixtures("runtime")
def test_a_run_that_is_killed_leaves_nothing(tmp_path: Path, phase: str) -> None:
    ready_after_s = 60.0 if phase == "starting" else 0.0
    command = (sys.executable, "-c", HOLDER, str(tmp_path), str(ready_after_s))
    with subprocess.Popen(command, cwd=builders.ROOT, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"starting\n"
        killed = [holder.pid]
        if phase.startswith("ready"):
            supervisor = int(holder.stdout.readline())
            if phase == "ready-with-supervisor":
                killed.insert(0, supervisor)
        elif phase == "starting":
            until_s = time.monotonic() + 30
            while not left_of(tmp_path) and time.monotonic() < until_s:
                time.sleep(0.1)
            assert left_of(tmp_path)
        for process_id in killed:
            os.kill(process_id, signal.SIGKILL)
    until_s = time.monotonic() + 20
    while left() and time.monotonic() < until_s:
        # What nobody is left to end, the next run removes.
        find_runtime().remove_left_over()
        time.sleep(0.2)
    assert left() == []
    assert left_of(tmp_path) == []


@pytest.fixture
def vllm_in_image(images: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The variables with which the images have vLLM's environment of `nox -s cpu_perf`."""
    del images, tmp_path
    environment = Path(
        engine_environment(engine_named("vllm").requirement(on_gpu=False), show=print)
    ).parents[1]
    base = Path(os.path.realpath(environment / "bin/python")).parents[1]
    arguments = (*LIMITS, *mounts(environment, base))
    path = f"--env=PATH={environment / 'bin'}:/usr/bin:/bin"
    variables = {
        RUNTIME_VARIABLE: shlex.join(PODMAN),
        ARGUMENTS_VARIABLE: shlex.join((*arguments, path)),
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return variables


@pytest.mark.vllm
@pytest.mark.usefixtures("vllm_in_image")
def test_a_case_of_the_tier_cpu_runs_in_a_container(tmp_path: Path) -> None:
    command = (
        *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/perf"),
        *("-k", "vllm-draft_model-tiny-toy and acceptance", "--specreg-tier=cpu"),
        *(f"--specreg-image={IMAGES[0]}", "--num-prompts=8", "--specreg-history=none"),
        f"--specreg-runs={tmp_path}",
    )
    done = subprocess.run(command, cwd=builders.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    (report,) = tmp_path.glob("*/report.json")
    assert IMAGES[0] in report.read_text()
    assert left() == []


@pytest.mark.vllm
@pytest.mark.usefixtures("vllm_in_image")
@pytest.mark.parametrize("is_slower", [True, False])
def test_a_gate_of_two_images_finds_a_slower_step(tmp_path: Path, *, is_slower: bool) -> None:
    planted = builders.ROOT / "tests/faults/planted"
    changes: list[str] = []
    if is_slower:
        changes = [
            *("--b", f"engine_env.PYTHONPATH={planted}", "--b", "engine_env.PLANTED_FAULT=sleep"),
            *("--b", "engine_env.PLANTED_SLEEP_S=0.02"),
        ]
    command = (
        *(sys.executable, "-m", "specreg", "gate", *(f"image:{name}" for name in IMAGES)),
        *("--tier", "cpu", "--case", "vllm-draft_model-tiny-toy-c4", "--minutes", "12"),
        *(*changes, "--out", str(tmp_path / "gate")),
    )
    done = subprocess.run(command, cwd=builders.ROOT, capture_output=True, text=True, check=False)
    # Without a fault the answer may be "undecided" on a busy machine, and never "don't".
    assert (done.returncode == 1) == is_slower, done.stdout
    assert done.returncode in {0, 1, 10}, done.stderr
    assert left() == []
