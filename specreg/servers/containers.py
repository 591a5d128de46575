"""Run programs in containers: with docker, podman or apptainer, from an image that is there.

docker and podman understand the same commands. A container of docker's belongs to a daemon, so it
doesn't end with the program that started it; it is stopped by its name. A container of podman's and
apptainer's is made of descendants of that program.
"""

import contextlib
import functools
import hashlib
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

from specreg.core.errors import UnsupportedError
from specreg.core.files import cache_folder, file_sha256
from specreg.core.probes import ask_program
from specreg.core.processes import Outside
from specreg.core.readable import readable_line
from specreg.servers.container_owner import has_ended, own_mark
from specreg.servers.container_problems import Problem, problem_in

RUNTIMES = ("docker", "podman", "apptainer")
"""The programs that are looked for, in this order."""
RUNTIME_VARIABLE = "SPECREG_CONTAINER_RUNTIME"
"""The variable that names the program of `--specreg-container-runtime`."""
ARGUMENTS_VARIABLE = "SPECREG_CONTAINER_ARGS"
"""The variable with further flags for `docker run`, such as limits or mounts of this machine."""
ALL_GPUS = ("all",)
"""What stands for all GPUs of a machine instead of their UUIDs."""
_OWNER = "specreg.owner"
"""The label that names the process of specreg that started a container."""
_GRACE_S = 5
_ASK_S = 30.0
_OPTION = "--specreg-container-runtime"
_CHOICE = f"name one with {_OPTION} or {RUNTIME_VARIABLE}"
_OF_CLIENT = re.compile(r"PATH|HOME|USER|LOGNAME|TMPDIR|(?:XDG|DOCKER|CONTAINERS?|LD)_\w+")
"""The variables that the runtime's own program reads. A container gets its own values of them by
the command line, and all others through the variables of that program, so that no secret shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image that is on this machine.

    Attributes:
        name: its name, as the user wrote it.
        digest: the digest by which its registry has it, or its id if it comes from no registry.
        source: what it is run by: its id, because its name may be given to another image meanwhile,
            or its file.
    """

    name: str
    digest: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """What a container is given.

    Attributes:
        variables: all of its environment variables, beside those of the image.
        folder: the working folder, which is mounted for reading; None for that of the image.
        read_only: the paths that are mounted for reading, at the same places.
        writable: the folders that are mounted for writing, at the same places.
        gpu_ids: the UUIDs of its GPUs, or `ALL_GPUS`.
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

    @property
    def mounted_for_writing(self) -> tuple[Path, ...]:
        """All folders that are mounted for writing, each once."""
        return tuple(dict.fromkeys(self.writable))


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """A command that starts a program.

    Attributes:
        variables: the environment variables of that command.
        outside: what it starts outside of its descendants; None if it starts nothing there.
    """

    command: tuple[str, ...]
    variables: Mapping[str, str]
    outside: Outside | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """docker, or podman, which understands docker's commands.

    Attributes:
        program: the program with its own flags, such as `("podman", "--storage-driver=vfs")`.
        arguments: further flags for each container.
        is_podman: True for podman, which may be called `docker`.
    """

    program: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    is_podman: bool = False

    @property
    def name(self) -> str:
        """The name of the program."""
        return Path(self.program[0]).name

    def check(self) -> str:
        """Check that it works for this user, and return its version.

        Raises:
            UnsupportedError: it can't be run, or its daemon doesn't answer, or isn't docker's.
        """
        if self.is_podman:
            # This reads podman's configuration and its storage.
            return self._answer("info", "--format", "{{.Version.Version}}").strip()
        parts = "{{range .Server.Components}}{{.Name}},{{end}}"
        answer = self._answer("version", "--format", f"{{{{.Server.Version}}}} {parts}")
        version, _, components = answer.strip().partition(" ")

        # Its service answers docker's client, and starts containers without the GPUs of `--gpus`.
        if "podman" in components.lower():
            raise UnsupportedError(
                f"container runtime '{self}': it asks podman's service, which gives no GPUs so;"
                f" name podman itself with {_OPTION}"
            )

        return version

    def storage(self) -> Path:
        """Return the folder of its images.

        Raises:
            UnsupportedError: as in `check`.
        """
        field = "{{.Store.GraphRoot}}" if self.is_podman else "{{.DockerRootDir}}"
        return Path(self._answer("info", "--format", field).strip())

    def find(self, name: str) -> Image | None:
        """Return the image that has a name now; None if it isn't on this machine.

        Raises:
            UnsupportedError: the runtime can't be run.
        """
        done = self._ask("image", "inspect", name)
        try:
            (details,) = json.loads(done.stdout)
            image_id = f"sha256:{details['Id'].removeprefix('sha256:')}"
            digest = _digest_of(name, details.get("RepoDigests") or ()) or image_id
        except (ValueError, KeyError, TypeError, AttributeError):
            return None

        return Image(name=name, digest=digest, source=image_id)

    def check_pullable(self, name: str) -> None:
        """Check that a registry would give an image, as far as it answers.

        Raises:
            UnsupportedError: it has no such image, or not for this user.
        """
        try:
            done = self._ask("manifest", "inspect", name)
        except UnsupportedError:
            # It doesn't answer in time. Pulling shows whether it does later.
            return

        problem = problem_in(done.stderr)
        if done.returncode and problem is not None and problem.is_refusal:
            raise UnsupportedError(f"image '{name}': {problem.says}; {problem.advice}")

    def pull(self, name: str, run: Callable[[Sequence[str]], None]) -> None:
        """Pull an image.

        Args:
            name: the image.
            run: runs the command that pulls it.
        """
        run((*self.program, "pull", name))

    def wrap(
        self, image: Image, command: Sequence[str], inside: Inside, container: str = ""
    ) -> Invocation:
        """Return the command that runs a command in a container.

        Args:
            command: the command, whose program is in the image.
            inside: what the container is given.
            container: the name of the container, by which it is stopped, and by whose label a later
                run finds it. Empty for the command of somebody who types it.

        Raises:
            UnsupportedError: a folder can't be mounted, because of its name.
        """
        flags = ["--rm", "--pull", "never", "--network", "host", "--ipc", "host"]
        flags += ["--entrypoint", command[0]]
        if container:
            flags += ["--name", container, "--label", f"{_OWNER}={own_mark()}"]
        if container and inside.writable:
            flags += ["--cidfile", str(inside.writable[0] / "container-id")]
        if inside.folder is not None:
            flags += ["--workdir", str(inside.folder)]
        flags += self._user_flags()
        flags += self._gpu_flags(inside.gpu_ids)

        # The value of `--mount` is CSV.
        _check_mountable(inside, ',"')
        for path in inside.mounted_for_reading:
            flags += ["--mount", f"type=bind,source={path},target={path},readonly"]
        for path in inside.mounted_for_writing:
            flags += ["--mount", f"type=bind,source={path},target={path}"]

        passed = {}
        for variable, value in inside.variables.items():
            if _OF_CLIENT.fullmatch(variable):
                flags += ["--env", f"{variable}={value}"]
            else:
                flags += ["--env", variable]
                passed[variable] = value

        return Invocation(
            command=(*self.program, "run", *flags, *self.arguments, image.source, *command[1:]),
            variables={**os.environ, **passed},
            outside=self._outside(container) if container else None,
        )

    def _outside(self, container: str) -> Outside:
        """Return the processes of a container, and how they are ended."""
        return Outside(
            stop=(*self.program, "stop", "-t", str(_GRACE_S), container),
            remove=self._remove(container),
            find=functools.partial(self._first_process, container),
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
            if has_ended(owner):
                with contextlib.suppress(OSError):
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

    def _first_process(self, container: str) -> int | None:
        """Return the process id of a container's program on this machine; None if it has none."""
        answer = self._ask(
            *("inspect", "--type", "container", "--format", "{{.State.Pid}}", container)
        )
        with contextlib.suppress(ValueError):
            return int(answer.stdout) or None
        return None

    def _ask(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Return the answer of the program, whatever its status is.

        Raises:
            UnsupportedError: it can't be run.
        """
        try:
            return ask_program((*self.program, *arguments), within_s=_ASK_S)
        except OSError as error:
            problem = f"can't be run, {error.strerror}"
            raise UnsupportedError(f"container runtime '{self}': {problem}; {_CHOICE}") from error

    def _answer(self, *arguments: str) -> str:
        """Return the answer of the program.

        Raises:
            UnsupportedError: it can't be run, or fails.
        """
        done = self._ask(*arguments)
        if done.returncode:
            problem = problem_in(done.stderr + done.stdout)
            if problem is None:
                says = readable_line(done.stderr.strip().rpartition("\n")[2])
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

    def storage(self) -> Path:
        """Return the folder of the images that it pulls."""
        return cache_folder("images")

    def find(self, name: str) -> Image | None:
        """Return the image of a name; None if it isn't on this machine."""
        path = self._path(name)
        if not path.is_file():
            return None
        return Image(name=name, digest=f"sha256:{file_sha256(path)}", source=str(path))

    def check_pullable(self, name: str) -> None:
        """Check that an image that is a file is there; apptainer asks a registry only by pulling.

        Raises:
            UnsupportedError: there is no such file.
        """
        if name.endswith(".sif"):
            raise UnsupportedError(f"image '{name}': there is no such file; check its path")

    def pull(self, name: str, run: Callable[[Sequence[str]], None]) -> None:
        """Pull an image into specreg's cache, as `Runtime.pull` does."""
        path = self._path(name)
        part = path.with_suffix(".part")
        address = name if "://" in name else f"docker://{name}"
        run((*self.program, "pull", "--force", str(part), address))
        part.rename(path)

    def wrap(
        self, image: Image, command: Sequence[str], inside: Inside, container: str = ""
    ) -> Invocation:
        """Return the command that runs a command in a container, as `Runtime.wrap` does."""
        del container  # it has no names
        flags = ["--cleanenv", "--no-home"]
        variables = dict(inside.variables)
        if inside.folder is not None:
            flags += ["--pwd", str(inside.folder)]
        if inside.gpu_ids:
            flags.append("--nv")
        if inside.gpu_ids and inside.gpu_ids != ALL_GPUS:
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(inside.gpu_ids)
        _check_mountable(inside, ",:")
        for path in inside.mounted_for_reading:
            flags += ["--bind", f"{path}:{path}:ro"]
        for path in inside.mounted_for_writing:
            flags += ["--bind", f"{path}:{path}"]
        passed = {f"APPTAINERENV_{name}": value for name, value in variables.items()}
        return Invocation(
            command=(*self.program, "exec", *flags, *self.arguments, image.source, *command),
            variables={**os.environ, **passed},
        )

    def remove_left_over(self) -> None:
        """Do nothing: a container ends with the program that started it."""

    def _path(self, name: str) -> Path:
        """Return the file of an image."""
        if name.endswith(".sif"):
            return Path(name)
        # The part for the reader may be equal for two names.
        readable = re.sub(r"[^A-Za-z0-9.]+", "-", name)
        unique = hashlib.sha256(name.encode()).hexdigest()[:12]
        return cache_folder("images") / f"{readable}-{unique}.sif"


def _digest_of(name: str, repositories: Sequence[str]) -> str:
    """Return the digest that the repository of an image has; empty if none of them is its own.

    Args:
        name: the image, as the user wrote it.
        repositories: `REPOSITORY@DIGEST` of all repositories from which the image came.
    """
    tagged, _, named_digest = name.partition("@")
    if named_digest:
        return named_digest
    folder, slash, last = tagged.rpartition("/")
    repository = f"{folder}{slash}{last.partition(':')[0]}"
    digests: dict[str, list[str]] = {}
    for text in repositories:
        found, _, digest = text.partition("@")
        digests.setdefault(found, []).append(digest)

    # podman writes a name with the registry that it stands for.
    for prefix in ("", "docker.io/", "docker.io/library/", "localhost/"):
        if prefix + repository in digests:
            # It lists an image's own digest and that of its list of platforms, in any order.
            return min(digests[prefix + repository])

    return ""


def _check_mountable(inside: Inside, separators: str) -> None:
    """Check that no folder has a character in its name that separates the parts of a mount.

    Raises:
        UnsupportedError: one has.
    """
    for path in (*inside.mounted_for_reading, *inside.mounted_for_writing):
        for separator in separators:
            if separator in str(path):
                raise UnsupportedError(
                    f"folder '{path}': has a {separator} in its name, and can't be mounted into a"
                    " container; rename it, or move it"
                )


def new_container_name() -> str:
    """Return a name for a container. It can't be guessed, and is known before its start."""
    return f"specreg-{secrets.token_hex(6)}"


def find_runtime(chosen: str = "") -> Runtime:
    """Return the runtime that the user has chosen, or the first one that works.

    Args:
        chosen: the program, which may have flags of its own; empty for that of the variable.

    Raises:
        UnsupportedError: there is none, or it doesn't work.
    """
    wanted = None
    if chosen:
        wanted = _words_of_setting(_OPTION, chosen)
    elif os.environ.get(RUNTIME_VARIABLE):
        wanted = _words_of_setting(RUNTIME_VARIABLE, os.environ[RUNTIME_VARIABLE])

    if wanted is not None and not (wanted and wanted[0]):
        name = _OPTION if chosen else RUNTIME_VARIABLE
        raise UnsupportedError(f"{name}: names no program; name one, such as podman")
    arguments = _words_of_setting(ARGUMENTS_VARIABLE, os.environ.get(ARGUMENTS_VARIABLE, ""))
    return _find_runtime(wanted, arguments, os.environ.get("PATH", os.defpath))


def _words_of_setting(name: str, text: str) -> tuple[str, ...]:
    """Return the words of an option or a variable.

    Raises:
        UnsupportedError: it isn't written as for a shell.
    """
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UnsupportedError(f"{name}: {error}; write it as in a shell") from error


@functools.cache
def _find_runtime(wanted: tuple[str, ...] | None, arguments: tuple[str, ...], path: str) -> Runtime:
    """Return the runtime that is wanted, or the first one on a path of folders that works."""
    if wanted:
        runtime = _runtime_of(wanted, arguments)
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
    """Return a runtime, as it names itself: podman is often installed as `docker`, too."""
    says = ""

    # If it can't be run, its check says so.
    with contextlib.suppress(OSError):
        says = ask_program((*program, "--version"), within_s=_ASK_S).stdout
    if says.startswith(("apptainer", "singularity")):
        return Apptainer(program=program, arguments=arguments)

    # docker says "Docker version …", and podman that is called docker says "docker version …".
    is_podman = says.startswith(("podman", "docker version"))
    return Runtime(program=program, arguments=arguments, is_podman=is_podman)
