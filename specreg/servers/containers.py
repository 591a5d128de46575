"""Run programs in containers: with docker, podman or apptainer, from an image that is there.

docker and podman understand the same commands. A container of docker's belongs to a daemon, so it
doesn't end with the program that started it; it is stopped by its name. A container of podman's and
apptainer's is made of descendants of that program.
"""

import contextlib
import functools
import json
import os
import re
import secrets
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psutil

from specreg.core.errors import EnvironmentSetupError, UnsupportedError
from specreg.core.files import UNREADABLE, cache_folder, file_sha256
from specreg.core.probes import ask_program
from specreg.core.processes import Outside, start_process, stop_process
from specreg.core.readable import readable_line

RUNTIMES = ("docker", "podman", "apptainer")
"""The programs that are looked for, in this order."""
RUNTIME_VARIABLE = "SPECREG_CONTAINER_RUNTIME"
"""The variable that names the program of `--specreg-container-runtime`."""
ARGUMENTS_VARIABLE = "SPECREG_CONTAINER_ARGS"
"""The variable with further flags for `docker run`, such as limits or mounts of this machine."""
_OWNER = "specreg.owner"
"""The label that names the process of specreg that started a container."""
_GRACE_S = 5
_ASK_S = 30.0
_LOOK_S = 300.0
"""How long a look into an image may take. Its first start unpacks layers with some runtimes."""
_SHOW_EVERY_S = 10.0
_ERROR_LINES = 5
_CHOICE = f"name one with --specreg-container-runtime or {RUNTIME_VARIABLE}"
_OF_CLIENT = re.compile(r"PATH|HOME|USER|LOGNAME|TMPDIR|(?:XDG|DOCKER|CONTAINERS?|LD)_\w+")
"""The variables that the runtime's own program reads. A container gets its own values of them by
the command line, and all others through the variables of that program, so that no secret shows."""
_LOOK = """
import importlib.metadata, json, re, sys
names = [(d.metadata["Name"], d.version) for d in importlib.metadata.distributions()]
lines = {re.sub(r"[-_.]+", "-", name).lower() + "==" + version for name, version in names if name}
print(json.dumps({"python": sys.executable, "packages": sorted(lines)}))
"""
"""Prints what an image has. It needs the standard library alone."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem that a runtime reports.

    Attributes:
        pattern: A regular expression for its words.
        says: What is wrong.
        advice: What to do.
        is_refusal: True if a registry refuses an image, so that it would refuse it again.
    """

    pattern: str
    says: str
    advice: str
    is_refusal: bool = False


_PROBLEMS = (
    # docker 28.2.2, as a user outside the group `docker`.
    Problem(
        r"permission denied while trying to connect|dial unix \S+: connect: permission denied",
        "this user may not use the socket of its daemon",
        "add the user to the group docker and log in anew, or use podman",
    ),
    # docker 28.2.2 without a daemon.
    Problem(
        r"Cannot connect to the Docker daemon|Is the docker daemon running",
        "its daemon doesn't run",
        "start it (systemctl start docker), or use podman",
    ),
    # docker about a private or a missing repository, podman and registries about a private one.
    Problem(
        r"pull access denied|requested access to the resource is denied|unauthorized"
        r"|authentication required|no basic auth credentials|\b403 Forbidden",
        "no right to pull it, or no such repository",
        "check its name, or log in to its registry with the runtime's command login",
        is_refusal=True,
    ),
    Problem(
        r"manifest unknown|manifest for \S+ not found|no such manifest|name unknown|: not found",
        "no such image or tag",
        "check its name and its tag",
        is_refusal=True,
    ),
    Problem(
        r"no space left on device|disk quota exceeded",
        "the disk of the runtime is full",
        "remove images that nobody needs (docker system prune), or move the runtime's folder",
    ),
    # podman 4.3.1.
    Problem(
        r"short-name .* did not resolve|unqualified-search registries",
        "the name doesn't say which registry has it",
        "write it with its registry, such as docker.io/vllm/vllm-openai:v0.33.0",
    ),
    Problem(
        r"no such host|connection refused|i/o timeout|TLS handshake|name resolution"
        r"|network is unreachable|dial tcp",
        "its registry can't be reached",
        "check the network, or load the image from a file (docker load, podman load)",
    ),
)
"""The known problems; the first whose words are in the output is named."""


class Contents(msgspec.Struct, frozen=True):
    """What an image has.

    Attributes:
        python: The path of its Python in the container.
        packages: The packages that this Python imports, such as `numpy==2.4.6`.
    """

    python: str
    packages: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image that is on this machine.

    Attributes:
        name: Its name, as the user wrote it.
        digest: The digest by which its registry has it, or its id if it comes from no registry.
    """

    name: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """What a container is given.

    Attributes:
        variables: All of its environment variables, beside those of the image.
        folder: The working folder, which is mounted for reading; None for that of the image.
        read_only: The paths that are mounted for reading, at the same places.
        writable: The folders that are mounted for writing, at the same places.
        gpu_ids: The UUIDs of its GPUs.
    """

    variables: Mapping[str, str]
    folder: Path | None = None
    read_only: Sequence[Path] = ()
    writable: Sequence[Path] = ()
    gpu_ids: Sequence[str] = ()

    @property
    def mounted_for_reading(self) -> tuple[Path, ...]:
        """All paths that are mounted for reading, each once."""
        folders = (self.folder,) if self.folder is not None else ()
        return tuple(dict.fromkeys((*folders, *self.read_only)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """A command that starts a server.

    Attributes:
        command: The command.
        variables: The environment variables of that command.
        outside: What it starts outside of its descendants; None if it starts nothing there.
    """

    command: tuple[str, ...]
    variables: Mapping[str, str]
    outside: Outside | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """docker, or podman, which understands docker's commands.

    Attributes:
        program: The program with its own flags, such as `("podman", "--storage-driver=vfs")`.
        arguments: Further flags for each container.
    """

    program: tuple[str, ...]
    arguments: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the program."""
        return Path(self.program[0]).name

    @property
    def is_podman(self) -> bool:
        """True for podman."""
        return self.name.startswith("podman")

    def check(self) -> str:
        """Check that it works for this user, and return its version.

        Raises:
            UnsupportedError: It can't be run, or its daemon doesn't answer.
        """
        if self.is_podman:
            # This reads podman's configuration and its storage.
            arguments = ("info", "--format", "{{.Version.Version}}")
        else:
            arguments = ("version", "--format", "{{.Server.Version}}")
        return self._answer(*arguments).strip()

    def find(self, name: str) -> Image | None:
        """Return the image of a name; None if it isn't on this machine."""
        done = self._ask("image", "inspect", name)
        try:
            (details,) = json.loads(done.stdout)
            digests = details.get("RepoDigests") or [details["Id"]]
            digest = digests[0].rpartition("@")[2].removeprefix("sha256:")
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
        return Image(name=name, digest=f"sha256:{digest}")

    def check_pullable(self, name: str) -> None:
        """Check that a registry would give an image, as far as it answers.

        Raises:
            UnsupportedError: It has no such image, or not for this user.
        """
        done = self._ask("manifest", "inspect", name)
        problem = _problem_in(done.stderr)
        if done.returncode and problem is not None and problem.is_refusal:
            raise UnsupportedError(f"image '{name}': {problem.says}; {problem.advice}")

    def pull(self, name: str, show: Callable[[str], None]) -> None:
        """Pull an image, which takes minutes.

        Args:
            name: The image.
            show: Prints a line about progress.

        Raises:
            EnvironmentSetupError: It can't be pulled.
        """
        _pull((*self.program, "pull", name), name, show)

    def wrap(self, image: Image, command: Sequence[str], inside: Inside) -> Invocation:
        """Return the command that runs a command in a container.

        Args:
            image: The image.
            command: The command, whose program is in the image.
            inside: What the container is given.
        """
        # The name can't be guessed, and is known before the container has an id.
        name = f"specreg-{secrets.token_hex(6)}"
        flags = [
            *("--rm", "--name", name, "--label", f"{_OWNER}={_own_mark()}"),
            *("--pull", "never", "--network", "host", "--ipc", "host"),
            *("--entrypoint", command[0]),
        ]
        if inside.folder is not None:
            flags += ["--workdir", str(inside.folder)]
        for folder in inside.writable[:1]:
            flags += ["--cidfile", str(folder / "container-id")]
        flags += self._user_flags()
        flags += self._gpu_flags(inside.gpu_ids)
        for path in inside.mounted_for_reading:
            flags += ["--mount", f"type=bind,source={path},target={path},readonly"]
        for path in inside.writable:
            flags += ["--mount", f"type=bind,source={path},target={path}"]
        passed = {}
        for variable, value in inside.variables.items():
            if _OF_CLIENT.fullmatch(variable):
                flags += ["--env", f"{variable}={value}"]
            else:
                flags += ["--env", variable]
                passed[variable] = value
        return Invocation(
            command=(*self.program, "run", *flags, *self.arguments, image.name, *command[1:]),
            variables={**os.environ, **passed},
            outside=Outside(
                stop=(*self.program, "stop", "-t", str(_GRACE_S), name),
                remove=self._remove(name),
                find=functools.partial(self._first_process, name),
            ),
        )

    def remove_left_over(self) -> None:
        """Remove the containers of runs on this machine that were killed with their supervisors."""
        listed = self._ask("ps", "--all", "--quiet", "--filter", f"label={_OWNER}")
        ids = listed.stdout.split()
        if not ids:
            return
        label = f'{{{{.Id}}}} {{{{index .Config.Labels "{_OWNER}"}}}}'
        described = self._ask("inspect", "--type", "container", "--format", label, *ids)
        for line in described.stdout.splitlines():
            container_id, _, owner = line.partition(" ")
            if _has_ended(owner):
                ask_program(self._remove(container_id), within_s=_ASK_S)

    def _remove(self, container: str) -> tuple[str, ...]:
        """Return the command that kills a container and removes it."""
        # podman waits for 10 s before it kills, and docker doesn't wait.
        at_once = ("--time", "0") if self.is_podman else ()
        return (*self.program, "rm", "--force", *at_once, container)

    def _user_flags(self) -> tuple[str, ...]:
        """Return the flags that run a container as this user."""
        if self.is_podman:
            # podman gives a container the proxies of the shell, and SELinux no mounted folder.
            own = ("--http-proxy=false", "--security-opt", "label=disable")
            # Without root it maps this user to root, unless it is told to keep the user.
            return (*own, "--userns", "keep-id") if os.getuid() else own
        return ("--user", f"{os.getuid()}:{os.getgid()}")

    def _gpu_flags(self, gpu_ids: Sequence[str]) -> tuple[str, ...]:
        """Return the flags that give a container its GPUs."""
        if not gpu_ids:
            return ()
        if self.is_podman:
            # The names of CDI, the Container Device Interface.
            return tuple(
                word for gpu_id in gpu_ids for word in ("--device", f"nvidia.com/gpu={gpu_id}")
            )
        # The value is CSV, so a list needs quotes.
        return ("--gpus", f'"device={",".join(gpu_ids)}"')

    def _first_process(self, name: str) -> int | None:
        """Return the process id of a container's program on this machine; None if it has none."""
        done = self._ask("inspect", "--type", "container", "--format", "{{.State.Pid}}", name)
        with contextlib.suppress(ValueError):
            return int(done.stdout) or None
        return None

    def _ask(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Return the answer of the program, whatever its status is.

        Raises:
            UnsupportedError: It can't be run.
        """
        try:
            return ask_program((*self.program, *arguments), within_s=_ASK_S)
        except OSError as error:
            problem = f"can't be run, {error.strerror}"
            raise UnsupportedError(f"container runtime '{self}': {problem}; {_CHOICE}") from error

    def _answer(self, *arguments: str) -> str:
        """Return the answer of the program.

        Raises:
            UnsupportedError: It can't be run, or fails.
        """
        done = self._ask(*arguments)
        if done.returncode:
            problem = _problem_in(done.stderr + done.stdout)
            if problem is None:
                says = readable_line(_last_lines(done.stderr))
                problem = Problem("", f"fails: {says}", f"repair it, or {_CHOICE}")
            raise UnsupportedError(f"container runtime '{self}': {problem.says}; {problem.advice}")
        return done.stdout

    def __str__(self) -> str:
        return shlex.join(self.program)


class Apptainer(Runtime):
    """apptainer, whose containers are ordinary descendants and whose images are files.

    An image of a registry is kept as a file in specreg's cache.
    """

    def check(self) -> str:
        """Return its version; errors as in `Runtime`."""
        return self._answer("--version").strip()

    def find(self, name: str) -> Image | None:
        """Return the image of a name; None if it isn't on this machine."""
        path = self._path(name)
        return Image(name=name, digest=f"sha256:{file_sha256(path)}") if path.is_file() else None

    def check_pullable(self, name: str) -> None:
        """Do nothing, because apptainer asks a registry only by pulling."""

    def pull(self, name: str, show: Callable[[str], None]) -> None:
        """Pull an image into specreg's cache; errors as in `Runtime`."""
        path = self._path(name)
        if name.endswith(".sif"):
            message = f"image '{name}': there is no such file; check its path"
            raise EnvironmentSetupError(message)
        part = path.with_suffix(".part")
        part.unlink(missing_ok=True)
        address = name if "://" in name else f"docker://{name}"
        _pull((*self.program, "pull", "--force", str(part), address), name, show)
        part.rename(path)

    def wrap(self, image: Image, command: Sequence[str], inside: Inside) -> Invocation:
        """Return the command that runs a command in a container, as `Runtime.wrap` does."""
        flags = ["--cleanenv", "--no-home"]
        if inside.folder is not None:
            flags += ["--pwd", str(inside.folder)]
        variables = dict(inside.variables)
        if inside.gpu_ids:
            flags.append("--nv")
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(inside.gpu_ids)
        for path in inside.mounted_for_reading:
            flags += ["--bind", f"{path}:{path}:ro"]
        for path in inside.writable:
            flags += ["--bind", f"{path}:{path}"]
        passed = {f"APPTAINERENV_{name}": value for name, value in variables.items()}
        file = str(self._path(image.name))
        return Invocation(
            command=(*self.program, "exec", *flags, *self.arguments, file, *command),
            variables={**os.environ, **passed},
            outside=None,
        )

    def remove_left_over(self) -> None:
        """Do nothing: a container ends with the program that started it."""

    def _path(self, name: str) -> Path:
        """Return the file of an image."""
        if name.endswith(".sif"):
            return Path(name)
        return cache_folder("images") / f"{re.sub(r'[^A-Za-z0-9.]+', '-', name)}.sif"


def find_runtime(chosen: str = "") -> Runtime:
    """Return the runtime that the user has chosen, or the first one that works.

    Args:
        chosen: The program, which may have flags of its own; empty for that of the variable.

    Raises:
        UnsupportedError: There is none, or it doesn't work.
    """
    wanted = chosen or os.environ.get(RUNTIME_VARIABLE, "")
    return _find_runtime(
        wanted, os.environ.get(ARGUMENTS_VARIABLE, ""), os.environ.get("PATH", os.defpath)
    )


@functools.cache
def _find_runtime(wanted: str, written_arguments: str, path: str) -> Runtime:
    """Return the runtime that is wanted, or the first one on a path of folders that works."""
    arguments = tuple(shlex.split(written_arguments))
    if wanted:
        runtime = _runtime_of(tuple(shlex.split(wanted)), arguments)
        runtime.check()
        return runtime
    errors = []
    for program in RUNTIMES:
        if shutil.which(program, path=path) is None:
            continue
        runtime = _runtime_of((program,), arguments)
        try:
            runtime.check()
        except UnsupportedError as error:
            errors.append(error)
            continue
        return runtime
    if errors:
        raise errors[0]
    names = ", ".join(RUNTIMES)
    raise UnsupportedError(
        f"container runtime: none of {names} is on PATH; install one, or {_CHOICE}"
    )


def _runtime_of(program: tuple[str, ...], arguments: tuple[str, ...]) -> Runtime:
    name = Path(program[0]).name
    kind = Apptainer if name.startswith(("apptainer", "singularity")) else Runtime
    return kind(program=program, arguments=arguments)


@functools.cache
def image_on(runtime: Runtime, name: str, show: Callable[[str], None]) -> Image:
    """Return an image, which is pulled if it isn't on this machine.

    Args:
        runtime: The runtime.
        name: The image.
        show: Prints a line about progress.

    Raises:
        EnvironmentSetupError: It can't be pulled.
    """
    runtime.remove_left_over()
    image = runtime.find(name)
    if image is None:
        runtime.pull(name, show)
        image = runtime.find(name)
    if image is None:
        message = f"image '{name}': was pulled, and isn't there; see what {runtime} reports"
        raise EnvironmentSetupError(message)
    return image


@functools.cache
def contents_of(runtime: Runtime, image: Image) -> Contents:
    """Return what an image has, by running its Python.

    Raises:
        EnvironmentSetupError: Its Python can't be run.
    """
    looking = runtime.wrap(image, ("python3", "-c", _LOOK), Inside(variables={}))
    try:
        done = ask_program(looking.command, looking.variables, within_s=_LOOK_S)
        # Some images print a banner first.
        return msgspec.json.decode(done.stdout.strip().splitlines()[-1], type=Contents)
    except OSError as error:
        says = error.strerror
    except (IndexError, *UNREADABLE):
        says = readable_line(_last_lines(done.stderr))
    raise EnvironmentSetupError(
        f"image '{image.name}': its python3 can't be run, {says}; use an image of the engine, or"
        f" see what this prints: {shlex.join(looking.command[: -len(('-c', _LOOK))])}"
    )


def home_of(image: Image) -> Path:
    """Return the home folder of an image's containers, in which compiled code stays."""
    return cache_folder("images") / image.digest.removeprefix("sha256:")[:16]


def _pull(command: Sequence[str], name: str, show: Callable[[str], None]) -> None:
    """Pull an image, and show the last line of the runtime's output now and then.

    Raises:
        EnvironmentSetupError: It can't be pulled.
    """
    show(f"pulling {name} (once)")
    log_path = cache_folder("images") / f"pull-{os.getpid()}.log"
    # A supervised process ends even if specreg is killed.
    process = start_process(command, environment=os.environ, log_path=log_path, cwd=Path.cwd())
    try:
        status = None
        while status is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = process.popen.wait(_SHOW_EVERY_S)
                break
            line = readable_line(process.last_lines().strip().rpartition("\n")[2])
            show(f"pulling {name}: {line}")
    finally:
        stop_process(process)
        output = process.last_lines()
        log_path.unlink(missing_ok=True)
    if not status:
        return
    problem = _problem_in(output)
    if problem is None:
        problem = Problem("", "can't be pulled", f"see what '{shlex.join(command)}' prints")
    raise EnvironmentSetupError(
        f"image '{name}': {problem.says}; {problem.advice}\n{_last_lines(output)}"
    )


def _problem_in(output: str) -> Problem | None:
    """Return the first known problem that a runtime reports; None if it reports none of them."""
    for problem in _PROBLEMS:
        if re.search(problem.pattern, output):
            return problem
    return None


def _last_lines(output: str) -> str:
    return "\n".join(output.strip().splitlines()[-_ERROR_LINES:])


def _own_mark() -> str:
    """Return a text that names this process among all processes of all machines and times."""
    return "/".join((*_machine(), str(os.getpid()), str(_started_at(os.getpid()))))


def _has_ended(mark: str) -> bool:
    """Return whether a process that `_own_mark` names is known to have ended."""
    boot, namespace, pid, started_at = (*mark.split("/"), *[""] * 4)[:4]
    # In another container the same number may be another process, which lives.
    if (boot, namespace) != _machine() or not pid.isdigit():
        return False
    return str(_started_at(int(pid))) != started_at


def _machine() -> tuple[str, str]:
    """Return what names this boot of this machine, and the numbering of its processes."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return boot, str(os.stat("/proc/self/ns/pid").st_ino)  # noqa: PTH116 - it is a magic link


def _started_at(process_id: int) -> float | None:
    """Return when a process was started; None if it has ended."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(process_id)
        if process.status() != psutil.STATUS_ZOMBIE:
            return process.create_time()
    return None
