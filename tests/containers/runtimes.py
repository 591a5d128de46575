"""The real runtimes of this machine, with two images that have this machine's programs.

An image holds one file. The machine's programs, this Python and an engine's environment are mounted
into its containers for reading, so no registry is needed.
"""

import os
import shlex
import shutil
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

PODMAN = ("podman", "--storage-driver=vfs", "--runtime=runc", "--cgroup-manager=cgroupfs")
IMAGES = ("localhost/specreg-test:1", "localhost/specreg-test:2")
LIMITS = ("--ulimit=nofile=1024:1024", "--ulimit=nproc=1000:1000")
"""Without these, runc is refused in a sandbox."""
_DAEMON = (
    *("dockerd", "--iptables=false", "--ip6tables=false", "--bridge=none"),
    "--storage-driver=vfs",
)


@dataclass(kw_only=True)
class RealRuntime:
    """docker or podman.

    Attributes:
        name: its name.
        program: the program, with its own flags.
        start_daemon: starts its daemon, and returns once it answers; None if it has no daemon that
            is of these tests.
        daemon: its daemon.
    """

    name: str
    program: tuple[str, ...]
    start_daemon: Callable[[], psutil.Popen] | None = None
    daemon: psutil.Popen | None = None

    def ask(self, *arguments: str) -> str:
        """What it answers."""
        done = subprocess.run(
            (*self.program, *arguments), check=True, capture_output=True, text=True
        )
        return done.stdout

    def containers(self) -> list[str]:
        """The containers of any run."""
        return self.ask("ps", "--all", "--quiet", "--filter", "label=specreg.owner").split()

    def make_images(self, folder: Path) -> None:
        """Make the images, which differ in a file that nothing reads."""
        for number, name in enumerate(IMAGES, start=1):
            (folder / "version").write_text(str(number))
            archive = folder / f"{number}.tar"
            with tarfile.open(archive, "w") as tar:
                tar.add(folder / "version", "version")
            self.ask("import", str(archive), name)


def runtimes_here() -> list[str]:
    """The runtimes whose containers this user can start; if there is none, podman for its error."""
    is_root = os.getuid() == 0
    names = []
    if shutil.which("podman") and shutil.which("runc") and is_root:
        names.append("podman")
    if shutil.which("docker") and (_answers(("docker",)) or (shutil.which("dockerd") and is_root)):
        names.append("docker")
    return names or ["podman"]


def _answers(program: tuple[str, ...]) -> bool:
    """Return whether a daemon answers."""
    return subprocess.run((*program, "version"), capture_output=True, check=False).returncode == 0


@contextmanager
def runtime_named(name: str, folder: Path) -> Iterator[RealRuntime]:
    """A runtime with the images; a daemon that is needed keeps its files in a folder."""
    if name == "podman":
        assert shutil.which("podman") is not None, "install podman and runc, or docker"
        runtime = RealRuntime(name=name, program=PODMAN)
    elif _answers(("docker",)):
        runtime = RealRuntime(name=name, program=("docker",))
    else:
        program = ("docker", f"--host=unix://{folder}/socket")

        def start_daemon() -> psutil.Popen:
            # A daemon that was killed leaves these, and doesn't start beside them.
            for file in ("pid", "run/containerd/containerd.pid"):
                (folder / file).unlink(missing_ok=True)
            places = (f"--data-root={folder}/data", f"--exec-root={folder}/run")
            with (folder / "log").open("ab") as log:
                daemon = psutil.Popen(
                    (*_DAEMON, *places, f"--pidfile={folder}/pid", *program[1:]),
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            until_s = time.monotonic() + 60
            while not _answers(program):
                assert daemon.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < until_s, (folder / "log").read_text()
                time.sleep(0.1)
            return daemon

        runtime = RealRuntime(
            name=name, program=program, start_daemon=start_daemon, daemon=start_daemon()
        )
    images = folder / "images"
    images.mkdir()
    runtime.make_images(images)
    yield runtime
    runtime.ask("rmi", "--force", *IMAGES)
    if runtime.daemon is not None:
        runtime.daemon.terminate()
        runtime.daemon.wait(30)


def arguments_with(*folders: Path, path: str) -> str:
    """The flags for containers that have this machine's programs and some folders."""
    machine = [Path(name) for name in ("/usr", "/lib", "/lib64", "/bin", "/etc")]
    existing = [folder for folder in (*machine, *folders) if folder.exists()]
    mounts = [f"--volume={folder}:{folder}:ro" for folder in dict.fromkeys(existing)]
    return shlex.join((*LIMITS, *mounts, f"--env=PATH={path}:/usr/bin:/bin"))
