"""What is read of a container with a server, whoever starts it.

Nothing is executed, and no variable of this machine is read.
"""

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from specreg.core.errors import MatrixError
from specreg.core.redaction import hide_secrets_of, says_secret
from specreg.engines.serve_command import ServeCommand, begins_with, check_one_command, words_of

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
    **dict.fromkeys(("HOME", "TMPDIR"), "specreg gives the server a folder that it may write"),
}
"""The variables that are about the machine and not about the server, each with the reason."""
_NAME_OF_VARIABLE = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
_NO_MEANING = "without meaning here, or set by specreg"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """What is mounted at a path in a container.

    Attributes:
        folder: the folder of this machine; empty if it is none, or isn't known.
        is_no_folder: what it is instead, such as a volume with a name.
    """

    folder: str = ""
    is_no_folder: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A container with a server.

    Attributes:
        entrypoint: the words that replace the program of the image; None if it starts its own.
        arguments: the words after the program.
        variables: the environment variables.
        mounts: what is mounted at each path in the container.
        folder: the working folder in the container; empty for that of the image.
        notes: lines about what was left out, and why.
    """

    image: str
    entrypoint: tuple[str, ...] | None
    arguments: tuple[str, ...]
    variables: Mapping[str, str]
    mounts: Mapping[str, Mount]
    folder: str
    notes: tuple[str, ...]

    def command(self, commands: Mapping[str, ServeCommand]) -> list[str]:
        """Return the words of the command line that runs in the container.

        Args:
            commands: how the servers of each engine are started, by the engine's name.

        Raises:
            MatrixError: a shell runs there, with more than one command.
        """
        words = [*(self.entrypoint or ()), *self.arguments]
        if words and words[0].rpartition("/")[2] in _SHELLS:
            script = _script_of(words)
            if script is not None:
                check_one_command(script, is_script=True)
                words = words_of(script)
            return words[1:] if words[:1] == ["exec"] else words

        starts = [program for command in commands.values() for program in command.programs]
        if self.entrypoint is not None or any(begins_with(words, program) for program in starts):
            return words
        name = self.image.partition("@")[0].rpartition("/")[2].partition(":")[0]
        for command in commands.values():
            if name in command.images:
                return [*command.programs[0], *words]
        return words

    def on_this_machine(self, model: str) -> str:
        """Return the folder or hub id of a model that the server in the container loads.

        Raises:
            MatrixError: the model is a folder of the container, and not of this machine.
        """
        if not model.startswith(("/", ".")):
            return model
        if model.startswith(".") and not self.folder:
            raise MatrixError(
                f"command: model '{model}' starts from the working folder of the image, which isn't"
                " written here; write its whole path"
            )

        folder = self._mounted(posixpath.join(self.folder, model), f"model '{model}'")
        if folder is not None:
            return folder
        mounted = ", ".join(self.mounts) or "none"
        raise MatrixError(
            f"command: model '{model}' is a folder in the container, and no folder of this machine"
            f" is mounted there (mounted: {mounted}); mount one, or name a hub id"
        )

    def argument_on_this_machine(self, argument: str) -> str:
        """Return an argument of the server with the path on this machine, if it has one.

        Raises:
            MatrixError: what is mounted at its path is no folder of this machine.
        """
        flag, equals, path = argument.rpartition("=")
        if not path.startswith("/"):
            return argument
        folder = self._mounted(path, f"'{argument}'")
        return argument if folder is None else f"{flag}{equals}{folder}"

    def _mounted(self, path: str, subject: str) -> str | None:
        """Return the path on this machine of a path in the container; None if nothing is mounted.

        Args:
            subject: what has it, for the message.

        Raises:
            MatrixError: what is mounted there is no folder of this machine.
        """
        path = posixpath.normpath(path)
        targets = [
            target for target in self.mounts if f"{path}/".startswith(target.rstrip("/") + "/")
        ]
        if not targets:
            return None

        # A mount hides what the folders around it have at its place.
        target = max(targets, key=len)
        mount = self.mounts[target]
        if mount.is_no_folder:
            raise MatrixError(
                f"command: {subject} is a path in the container, in {mount.is_no_folder}, and no"
                " folder of this machine is known to be mounted there; mount one, or name a hub id"
            )

        return mount.folder.rstrip("/") + path.removeprefix(target.rstrip("/"))


def _script_of(words: Sequence[str]) -> str | None:
    """Return what a shell is to run; None if it isn't written on its command line."""
    has_script = False
    rest = list(words[1:])
    while rest and rest[0].startswith(("-", "+")):
        flag = rest.pop(0)
        letters = "" if flag.startswith("--") else flag
        has_script = has_script or "c" in letters
        # `-o pipefail`
        if letters.endswith("o") and rest:
            rest.pop(0)

    return rest[0] if has_script and rest else None


@dataclass(slots=True)
class Reading:
    """What has been read of a container so far; see `Container`.

    Attributes:
        place: the folder of this machine that relative paths start from.
        left_out: the names of what has no meaning here.
        without: why a variable is left out, by its name.
    """

    place: Path
    variables: dict[str, str] = field(default_factory=dict)
    mounts: dict[str, Mount] = field(default_factory=dict)
    folder: str = ""
    left_out: list[str] = field(default_factory=list)
    without: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def set_variable(self, name: str, value: str | None, *, holds_secret: bool = False) -> None:
        """Add a variable, or replace it; one without a value has it from elsewhere.

        Raises:
            MatrixError: no variable can have the name.
        """
        if not _NAME_OF_VARIABLE.fullmatch(name):
            raise MatrixError(f"'{name}': is no name of a variable; write NAME=VALUE")
        if value is not None:
            hide_secrets_of({name: value})
        if says_secret(name) or holds_secret:
            reason = (
                ", because it holds a secret: export it where specreg runs, if fetching the models"
                " needs it"
            )
        elif name in _OF_MACHINE:
            reason = f": {_OF_MACHINE[name]}"
        elif value is None:
            reason = ": its value isn't written here"
        else:
            self.variables[name] = value
            self.without.pop(name, None)
            return

        self.variables.pop(name, None)
        self.without[name] = f"{name} is left out{reason}"

    def mount(self, source: str, target: str, *, unknown: str = "") -> None:
        """Add what `docker run` or Compose mounts.

        Args:
            source: a folder of this machine, or the name of a volume; empty if it has none.
            target: where.
            unknown: the part of the source that is replaced elsewhere; empty for none.
        """
        if unknown:
            mount = Mount(is_no_folder=f"'{source}', where '{unknown}' is replaced elsewhere")
        elif not source:
            mount = Mount(is_no_folder="a volume without a name")
        elif source.startswith(("~", ".", "/")):
            mount = self._folder(source)
        else:
            mount = Mount(is_no_folder=f"the volume '{source}'")
        self.add(target, mount)

    def add(self, target: str, mount: Mount) -> None:
        """Add what is mounted at a path in the container."""
        self.mounts[posixpath.normpath(target)] = mount

    def _folder(self, source: str) -> Mount:
        """Return a folder of this machine."""
        try:
            return Mount(folder=str(self.place / Path(source).expanduser()))
        except RuntimeError:  # no such user
            return Mount(is_no_folder=f"'{source}', a home that this machine doesn't have")

    def container(
        self, image: str, entrypoint: Sequence[str] | None, arguments: Sequence[str]
    ) -> Container:
        """Return what has been read.

        Raises:
            MatrixError: a word or a variable can't be passed to any program.
        """
        words = (*(entrypoint or ()), *arguments)
        hide_secrets_of({}, words)

        for text in (image, *words, *self.variables, *self.variables.values()):
            # YAML may write a NUL, or half of a pair of surrogates, which TOML can't.
            if "\0" in text or text.encode(errors="ignore").decode() != text:
                raise MatrixError(
                    "command: a word or a variable has a character that no argument can have;"
                    " remove it"
                )

        notes = [*self.without.values(), *self.notes]
        if self.left_out:
            names = ", ".join(dict.fromkeys(self.left_out))
            notes.append(f"left out, because {_NO_MEANING}: {names}")
        return Container(
            image=image,
            entrypoint=None if entrypoint is None else tuple(entrypoint),
            arguments=tuple(arguments),
            variables=self.variables,
            mounts=self.mounts,
            folder=self.folder,
            notes=tuple(notes),
        )


def convert_part(value: object, kind: Any) -> Any:  # noqa: ANN401 - of any type
    """Return a part of a document as a value of a type. A key without a value isn't there.

    Raises:
        MatrixError: it has another form.
    """
    if isinstance(value, dict):
        value = {key: part for key, part in value.items() if part is not None}
    try:
        return msgspec.convert(value, kind, strict=False)
    except (msgspec.ValidationError, RecursionError) as error:
        raise MatrixError(f"{error}; correct it") from error


def image_of(image: str) -> str:
    """Return the image of a container.

    Raises:
        MatrixError: it has none.
    """
    if not image:
        raise MatrixError("has no image; name a container that has one")
    return image


def listed(names: Sequence[str] | Mapping[str, object]) -> str:
    """Return names for a message."""
    return ", ".join(f"'{name}'" for name in names) or "none"
