"""Read how people start a server in a container: `docker run …`, a Compose service, or a Pod.

Nothing is executed, and no variable of this machine is read.
"""

import importlib
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from specreg.core.commands import install_command
from specreg.core.errors import MatrixError
from specreg.core.files import MIB, UNREADABLE, cause_of, read_regular
from specreg.core.redaction import hide_secrets_of, says_secret
from specreg.engines.serve_command import ServeCommand, begins_with, join_lines, words_of

_RUNS = (
    *(("docker", "run"), ("docker", "container", "run"), ("nvidia-docker", "run")),
    *(("podman", "run"), ("podman", "container", "run")),
)
_SWITCHES = frozenset(
    {
        *("detach", "init", "interactive", "no-healthcheck", "oom-kill-disable", "privileged"),
        *("publish-all", "quiet", "read-only", "replace", "rm", "sig-proxy", "tty"),
    }
)
"""The flags of `docker run` and `podman run` that take no value. All others take one."""
_LETTERS = {
    "e": "env",
    "v": "volume",
    "p": "publish",
    "u": "user",
    "w": "workdir",
    "h": "hostname",
    "m": "memory",
    "l": "label",
    "c": "cpu-shares",
    "d": "detach",
    "i": "interactive",
    "t": "tty",
    "P": "publish-all",
    "q": "quiet",
    "a": "attach",
}
_SHELLS = {"sh", "bash", "dash"}
_OF_MACHINE = {
    **dict.fromkeys(
        ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
        "specreg chooses the GPUs",
    ),
    **dict.fromkeys(
        ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE"),
        "specreg gives the server the hub's cache of this machine",
    ),
}
"""The variables that are about the machine and not about the server, each with the reason."""
_OTHERS_VALUE = re.compile(
    r"(?<!\$)\$\{(\w+)(?::?-([^{}$]*)|[^{}]*)\}|(?<![$\w])\$\w+|(?<!\$)\$\(|`"
)
"""A variable or a command of a shell, or of Compose. The second group is a variable's default."""
_POD_VALUE = re.compile(r"\$\(([\w.-]+)\)")
_MOST_BYTES = MIB // 4
"""Such a file has a few KiB. PyYAML takes some seconds for as much as this."""
_NO_MEANING = "without meaning here, or set by specreg"


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A container with a server.

    Attributes:
        image: The image.
        words: The program and its arguments; without a program the image starts its own.
        variables: The environment variables.
        folders: The folder of this machine that is mounted at each path in the container.
        notes: Lines about what was left out, and why.
    """

    image: str
    words: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    folders: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def command(self, commands: Mapping[str, ServeCommand]) -> list[str]:
        """Return the words of the command line that runs in the container.

        Args:
            commands: How the servers of each engine are started, by the engine's name.

        Raises:
            MatrixError: A shell runs there, with more than one command.
        """
        words = list(self.words)
        if len(words) > 2 and words[0].rpartition("/")[2] in _SHELLS and words[1].endswith("c"):  # noqa: PLR2004 - a shell, its flag, and what it runs
            words = words_of(words[2])
            return words[1:] if words[:1] == ["exec"] else words
        starts = [program for command in commands.values() for program in command.programs]
        if any(begins_with(words, program) for program in starts):
            return words
        name = self.image.partition("@")[0].rpartition("/")[2].partition(":")[0]
        for command in commands.values():
            if name in command.images:
                return [*command.programs[0], *words]
        return words

    def on_this_machine(self, model: str) -> str:
        """Return the folder or hub id of a model that the server in the container loads.

        Raises:
            MatrixError: The model is a folder of the container, and not of this machine.
        """
        if not model.startswith("/"):
            return model
        for inside, folder in self.folders.items():
            rest = model.removeprefix(inside.rstrip("/"))
            if rest != model and rest[:1] in {"", "/"}:
                return folder.rstrip("/") + rest
        mounted = ", ".join(self.folders) or "none"
        raise MatrixError(
            f"command: model '{model}' is a folder in the container, and no folder of this machine"
            f" is mounted there (mounted: {mounted}); mount one, or name a hub id"
        )


@dataclass(slots=True)
class _Reading:
    """What has been read of a container so far; see `Container`."""

    folder: Path
    variables: dict[str, str] = field(default_factory=dict)
    folders: dict[str, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def set_variable(self, name: str, value: str | None) -> None:
        """Add a variable; one without a value has it from elsewhere."""
        if value is not None:
            hide_secrets_of({name: value})
        if says_secret(name):
            self.notes.append(
                f"{name} is left out, because it holds a secret: export it where specreg runs, if"
                " fetching the models needs it"
            )
        elif name in _OF_MACHINE:
            self.notes.append(f"{name} is left out: {_OF_MACHINE[name]}")
        elif value is None or _OTHERS_VALUE.search(value):
            self.notes.append(f"{name} is left out: its value isn't written here")
        else:
            self.variables[name] = value

    def mount(self, source: str, target: str) -> None:
        """Add a folder of this machine that is mounted; a volume with a name is none."""
        if source.startswith("~"):
            source = str(Path(source).expanduser())
        if source.startswith((".", "/")) and not _OTHERS_VALUE.search(source):
            self.folders[target] = str(self.folder / source)

    def container(self, image: str, words: Sequence[str]) -> Container:
        """Return what has been read.

        Raises:
            MatrixError: A word or a variable can't be passed to any program.
        """
        hide_secrets_of({}, words)
        for text in (image, *words, *self.variables, *self.variables.values()):
            # YAML may write a NUL, or half of a pair of surrogates, which TOML can't.
            if "\0" in text or text.encode(errors="ignore").decode() != text:
                raise MatrixError(
                    "command: a word or a variable has a character that no argument can have;"
                    " remove it"
                )
        notes = list(self.notes)
        if self.left_out:
            names = ", ".join(dict.fromkeys(self.left_out))
            notes.append(f"left out, because {_NO_MEANING}: {names}")
        return Container(
            image=image,
            words=tuple(words),
            variables=self.variables,
            folders=self.folders,
            notes=tuple(notes),
        )


def is_docker_run(text: str) -> bool:
    """Return whether a command line starts a container."""
    return _length_of_run(text.split()) > 0


def _length_of_run(words: Sequence[str]) -> int:
    """Return how many words come before the flags of `docker run`; 0 if it is another command."""
    sudo = 1 if words[:1] == ["sudo"] else 0
    for run in _RUNS:
        if begins_with(words[sudo:], run):
            return sudo + len(run)
    return 0


def read_docker_run(text: str, folder: Path) -> Container:
    """Read a command line such as `docker run --gpus all vllm/vllm-openai --model …`.

    Args:
        text: The command line; lines may end with a backslash.
        folder: The folder that relative paths start from.

    Raises:
        MatrixError: It can't be read, or names no image.
    """
    try:
        words = shlex.split(join_lines(text))
    except ValueError as error:
        raise MatrixError(f"command: {error}; write it as in a shell") from error
    words = words[_length_of_run(words) :]
    reading = _Reading(folder)
    program: list[str] = []
    while words and words[0].startswith("-"):
        flag, value = _take_flag(words)
        if flag == "env":
            name, equals, text_of_value = value.partition("=")
            reading.set_variable(name, text_of_value if equals else None)
        elif flag in {"volume", "mount"}:
            _mount_flag(reading, flag, value)
        elif flag == "entrypoint":
            program = [value]
        elif flag == "env-file":
            raise MatrixError(
                f"command: --env-file {value}: isn't read; write its variables as engine_env"
            )
        else:
            reading.left_out.append(f"--{flag}")
    if not words:
        raise MatrixError("command: names no image; write the whole `docker run` line")
    # From here on a variable of a shell would be part of what is measured.
    image, *arguments = words_of(shlex.join(words))
    for word in (image, *arguments):
        _check_written(word)
    return reading.container(image, (*program, *arguments))


def _take_flag(words: list[str]) -> tuple[str, str]:
    """Remove a flag of `docker run` from the beginning, and return its long name and its value."""
    word = words.pop(0)
    if word.startswith("--"):
        name, equals, value = word.removeprefix("--").partition("=")
        if not equals and name not in _SWITCHES and words:
            value = words.pop(0)
        return name, value
    # Letters may be joined, as in `-it`, and the last one may have its value: `-p8000:8000`.
    letter, rest = word[1:2], word[2:]
    name = _LETTERS.get(letter, letter)
    if name in _SWITCHES:
        if rest:
            words.insert(0, f"-{rest}")
        return name, ""
    if not rest and words:
        return name, words.pop(0)
    return name, rest.removeprefix("=")


def _mount_flag(reading: _Reading, flag: str, value: str) -> None:
    """Add the folder that `--volume` or `--mount` mounts."""
    reading.left_out.append(f"--{flag}")
    if flag == "volume":
        source, _, rest = value.partition(":")
        target = rest.partition(":")[0]
    else:
        parts = dict(part.partition("=")[::2] for part in value.split(","))
        source = parts.get("source", parts.get("src", ""))
        target = parts.get("target", parts.get("destination", parts.get("dst", "")))
    if target:
        reading.mount(source, target)


def _check_written(text: str) -> None:
    """Check that a text needs no variable that a shell or Compose would replace.

    Raises:
        MatrixError: It does.
    """
    unknown = _OTHERS_VALUE.search(text)
    if unknown:
        raise MatrixError(
            f"command: '{unknown[0]}' is replaced elsewhere, and its value isn't written here;"
            " write the value, for Compose with `docker compose config --format json > FILE`"
        )


class ServerFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file that starts a server, and which of its containers that is.

    Attributes:
        file: The path, relative to the folder of the tier.
        service: The service of a Compose file.
        container: The container of a Pod, or of what makes Pods, such as a Deployment.
    """

    file: str
    service: str = ""
    container: str = ""

    def __str__(self) -> str:
        if self.service:
            return f"'{self.file}', service '{self.service}'"
        return f"'{self.file}', container '{self.container}'"


class _Volume(msgspec.Struct):
    """A volume of a Compose service in its long form."""

    target: str
    source: str = ""
    type: str = ""


_Scalar = str | int | float | bool
_Words = str | list[_Scalar] | None


class _Service(msgspec.Struct):
    """What is read of a Compose service."""

    image: str = ""
    entrypoint: _Words = None
    command: _Words = None
    environment: dict[str, _Scalar | None] | list[str] = {}
    volumes: list[str | _Volume] = []


class _Variable(msgspec.Struct):
    """A variable of a Kubernetes container."""

    name: str
    value: str | None = None


class _VolumeMount(msgspec.Struct, rename="camel"):
    """A mounted volume of a Kubernetes container."""

    name: str
    mount_path: str
    sub_path: str = ""


class _HostPath(msgspec.Struct):
    path: str


class _PodVolume(msgspec.Struct, rename="camel"):
    name: str
    host_path: _HostPath | None = None


class _PodContainer(msgspec.Struct, rename="camel"):
    """What is read of a Kubernetes container."""

    name: str
    image: str = ""
    command: list[str] = []
    args: list[str] = []
    env: list[_Variable] = []
    volume_mounts: list[_VolumeMount] = []


def server_file_of(table: object) -> ServerFile:
    """Return what a table of TOML says of a file that starts a server.

    Raises:
        MatrixError: It isn't such a table, or names neither a service nor a container, or both.
    """
    try:
        server_file = msgspec.convert(table, ServerFile)
    except msgspec.ValidationError as error:
        raise MatrixError(
            f"command: {error}, needed a command line, or a file with its service or container;"
            ' write "vllm serve MODEL" or { file = "compose.yaml", service = "NAME" }'
        ) from error
    if bool(server_file.service) == bool(server_file.container):
        raise MatrixError(
            f"command: file '{server_file.file}': name its service (Compose) or its container"
            " (Kubernetes)"
        )
    return server_file


def read_server_file(server_file: ServerFile, folder: Path) -> Container:
    """Read the container of a file of Compose or Kubernetes.

    Args:
        server_file: The file and its container.
        folder: The folder of the tier.

    Raises:
        MatrixError: The file can't be read, has no such container, or something in it isn't known.
    """
    path = folder / server_file.file
    documents = _load_documents(path)
    if server_file.service:
        return _read_service(documents, server_file.service, path.parent)
    return _read_pod(documents, server_file.container, path.parent)


def _load_documents(path: Path) -> Sequence[Any]:
    """Return the documents of a file of YAML or JSON.

    Raises:
        MatrixError: It can't be read.
    """
    unreadable: tuple[type[Exception], ...] = (OSError, *UNREADABLE, ValueError)
    try:
        content = read_regular(path, _MOST_BYTES).decode()
        if content.lstrip().startswith("{"):
            return [msgspec.json.decode(content)]
        # The decoder of msgspec takes PyYAML's parser in C, which crashes on a deep nesting.
        yaml: Any = importlib.import_module("yaml")
        unreadable = (*unreadable, yaml.YAMLError)
        return list(yaml.safe_load_all(content))
    except ImportError as error:
        raise MatrixError(
            f"reading YAML needs PyYAML; {install_command('yaml')}, or name a file of"
            " JSON, as `docker compose config --format json` and `kubectl get -o json` write it"
        ) from error
    except unreadable as error:
        raise MatrixError(
            f"can't be read, {cause_of(error)}; correct it, or name another file"
        ) from error


def _convert(value: object, kind: Any) -> Any:  # noqa: ANN401 - of any type
    """Return a part of a document as a value of a type.

    Raises:
        MatrixError: It has another form.
    """
    try:
        return msgspec.convert(value, kind, strict=False)
    except (msgspec.ValidationError, RecursionError) as error:
        raise MatrixError(f"{error}; correct it") from error


def _read_service(documents: Sequence[Any], name: str, folder: Path) -> Container:
    """Read a service of Compose; errors as in `read_server_file`."""
    table = _find_service(documents, name)
    service = _convert(table, _Service)
    reading = _Reading(folder)
    read_keys = {"image", "entrypoint", "command", "environment"}
    reading.left_out += [key for key in table if key not in read_keys]
    for variable, value in _variables_of(service):
        reading.set_variable(variable, value)
    for source, target in _volumes_of(service):
        reading.mount(source, target)
    words = [*_words_in(service.entrypoint), *_words_in(service.command)]
    image = _named(_with_defaults(service.image))
    for word in (image, *words):
        _check_written(word)
    # Compose writes a dollar twice where no variable begins.
    return reading.container(image, [word.replace("$$", "$") for word in words])


def _find_service(documents: Sequence[Any], name: str) -> dict[str, Any]:
    """Return a service of Compose.

    Raises:
        MatrixError: It isn't there, or a part of it is in another file.
    """
    services: dict[str, Any] = {}
    for document in documents:
        if isinstance(document, dict) and isinstance(document.get("services"), dict):
            services |= document["services"]
    table = services.get(name)
    if not isinstance(table, dict):
        raise MatrixError(f"isn't in the file, which has {_listed(services)}; name one")
    for key in table.keys() & {"extends", "env_file"}:
        raise MatrixError(
            f"{key} isn't followed; name what `docker compose config --format json > FILE` writes"
        )
    return table


def _variables_of(service: _Service) -> Iterator[tuple[str, str | None]]:
    """Yield the variables of a service of Compose, None for a value that isn't there."""
    if isinstance(service.environment, list):
        for text in service.environment:
            name, equals, value = text.partition("=")
            yield name, _with_defaults(value) if equals else None
        return
    for name, scalar in service.environment.items():
        yield name, None if scalar is None else _with_defaults(_text_of(scalar))


def _volumes_of(service: _Service) -> Iterator[tuple[str, str]]:
    """Yield what is mounted in a service of Compose, and where."""
    for volume in service.volumes:
        if isinstance(volume, str):
            source, _, rest = _with_defaults(volume).partition(":")
            yield source, rest.partition(":")[0]
        elif volume.type in {"", "bind"}:
            yield _with_defaults(volume.source), volume.target


def _words_in(words: _Words) -> Sequence[str]:
    """Return the words of an entrypoint or a command of Compose.

    Raises:
        MatrixError: They can't be told apart.
    """
    if not isinstance(words, str):
        return [_with_defaults(_text_of(word)) for word in words or []]
    try:
        return shlex.split(_with_defaults(words))
    except ValueError as error:
        raise MatrixError(f"{error} in its command; correct it") from error


def _text_of(value: _Scalar) -> str:
    """Return a scalar of YAML as Compose passes it on."""
    return value if isinstance(value, str) else json.dumps(value)


def _with_defaults(text: str) -> str:
    """Return a text of Compose with the defaults of its variables: `${PORT:-8000}` is 8000."""
    return _OTHERS_VALUE.sub(lambda match: match[0] if match[2] is None else match[2], text)


def _read_pod(documents: Sequence[Any], name: str, folder: Path) -> Container:
    """Read a container of Kubernetes; errors as in `read_server_file`."""
    pod, table = _find_container(documents, name)
    container = _convert(table, _PodContainer)
    volumes = _convert(pod.get("volumes") or [], list[_PodVolume])
    reading = _Reading(folder)
    read_keys = {"name", "image", "command", "args", "env", "containers", "initContainers"}
    reading.left_out += [key for key in (*table, *pod) if key not in read_keys]
    values: dict[str, str] = {}
    for variable in container.env:
        value = variable.value
        if value is not None:
            value = values[variable.name] = _with_values(value, values)
        reading.set_variable(variable.name, value)
    for source, target in _mounts_of(container, volumes):
        reading.mount(source, target)
    words = [_with_values(word, values) for word in (*container.command, *container.args)]
    for unknown in filter(None, map(_POD_VALUE.search, words)):
        raise MatrixError(
            f"'{unknown[0]}' has no value in the file; write it there, or name another container"
        )
    return reading.container(_named(container.image), words)


def _mounts_of(
    container: _PodContainer, volumes: Sequence[_PodVolume]
) -> Iterator[tuple[str, str]]:
    """Yield each folder of the node that is mounted in a container, and where."""
    host_paths = {volume.name: volume.host_path.path for volume in volumes if volume.host_path}
    for mount in container.volume_mounts:
        if mount.name in host_paths:
            yield str(Path(host_paths[mount.name]) / mount.sub_path), mount.mount_path


def _find_container(documents: Sequence[Any], name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the only container of this name, after the part of a Pod that it is in.

    Raises:
        MatrixError: There is none, or more than one.
    """
    visited: set[int] = set()
    names: list[str] = []
    found: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for document in documents:
        for pod in _pods_in(document, visited):
            tables = [table for table in pod["containers"] if isinstance(table, dict)]
            names += [str(table.get("name")) for table in tables]
            found += [(pod, table) for table in tables if table.get("name") == name]
    if len(found) != 1:
        problem = f"is there {len(found)} times" if found else "isn't in the file"
        raise MatrixError(f"{problem}, which has {_listed(names)}; name one")
    return found[0]


def _with_values(text: str, values: Mapping[str, str]) -> str:
    """Return a text of Kubernetes with the values of the variables in it, as far as known."""
    return _POD_VALUE.sub(lambda match: values.get(match[1], match[0]), text)


def _pods_in(value: object, visited: set[int]) -> Iterator[dict[str, Any]]:
    """Yield each part of a document that has containers, such as a Deployment's template.

    Args:
        value: The document, or a part of it.
        visited: The parts so far: an alias of YAML stands for the same part again.
    """
    if not isinstance(value, dict | list) or id(value) in visited:
        return
    visited.add(id(value))
    if isinstance(value, dict) and isinstance(value.get("containers"), list):
        yield value
        return
    for part in value.values() if isinstance(value, dict) else value:
        yield from _pods_in(part, visited)


def _named(image: str) -> str:
    """Return the image of a container.

    Raises:
        MatrixError: It has none.
    """
    if not image:
        raise MatrixError("has no image; name a container that has one")
    return image


def _listed(names: Sequence[str] | Mapping[str, object]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "none"
