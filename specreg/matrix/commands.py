"""Turn the command line with which somebody starts a server into a table of cases."""

import dataclasses
import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from specreg.core.errors import MatrixError
from specreg.engines.registry import ENGINES
from specreg.engines.serve_command import (
    ReadCommand,
    ReadSpeculation,
    ServeCommand,
    read_command,
    read_speculation,
    read_words,
)
from specreg.engines.server_spec import Parallel, ServerSpec
from specreg.matrix.containers import Container
from specreg.matrix.docker_run import is_docker_run, read_docker_run
from specreg.matrix.server_files import read_server_file, server_file_of
from specreg.matrix.tables import as_toml, located_errors

COMMAND = "command"
_PARALLEL = "parallel."
_EXPERTS = "parallel.expert"
_SHARE = "gpu_memory_frac"
_UNNAMED = re.compile(r"[^a-z0-9_.-]+")
"""Characters that the name of a model pair can't have."""
_JOINED = frozenset({"engine_args", "engine_env", "speculation"})
"""The keys, besides `parallel`, whose values in a table are added to those of the command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOfCommand:
    """A command line as keys of `[[cases]]`.

    Attributes:
        keys: the keys and their values.
        target: the folder or hub id of its model.
        drafts: the folder or hub id of its draft, by method.
        notes: lines about what was left out or changed, and why.
    """

    keys: Mapping[str, Any]
    target: str
    drafts: Mapping[str, str]
    notes: tuple[str, ...]

    @property
    def pair_name(self) -> str:
        """The name of its model pair, unless the table names another one."""
        name = self.target.rstrip("/").rpartition("/")[2].lower()
        return _UNNAMED.sub("-", name).strip("-.")


def understand_command(
    text: object, table: Mapping[str, object], folder: Path = Path()
) -> TableOfCommand:
    """Return the command by which somebody starts a server as keys of `[[cases]]`.

    Args:
        text: the command line, which may be that of a container, or a table that names a file with
            a container; see `ServerFile`.
        table: the other keys of the table, which may choose the methods.
        folder: the folder that relative paths start from.

    Raises:
        MatrixError: the command can't be read, a case can't have one of its settings, or the
            methods that the table names don't include the method of the command.
    """
    commands = {
        name: engine.serve_command for name, engine in ENGINES.items() if engine.serve_command
    }
    if isinstance(text, str):
        if is_docker_run(text):
            command = _command_in(read_docker_run(text, folder), commands)
        else:
            command = read_command(text, commands)
        return _table_of(command, table)

    server_file = server_file_of(text)
    with located_errors(str(server_file)):
        command = _command_in(read_server_file(server_file, folder), commands)
        return _table_of(command, table)


def _table_of(command: ReadCommand, table: Mapping[str, object]) -> TableOfCommand:
    """Return a command line as keys of `[[cases]]`; see `understand_command`."""
    # A control is added to the method of the command, because without one no speedup is known.
    keys: dict[str, Any] = {"engine": command.engine}
    if command.image:
        keys["image"] = command.image
    drafts: dict[str, str] = {}
    methods = ["none"]
    if command.speculation:
        speculation = _speculation_of(command)
        methods.append(speculation.method)
        keys |= _keys_of_speculation(speculation)
        if speculation.draft:
            drafts[speculation.method] = speculation.draft

    keys["methods"] = _methods_of(table, methods)
    keys |= _values_of(command)
    notes = list(command.notes)

    # The command is for a single server, but case and control have to fit side by side.
    share_frac = keys.get(_SHARE)
    has_control = "none" in keys["methods"] and len(keys["methods"]) > 1
    if share_frac is not None and has_control:
        keys[_SHARE] = share_frac / 2
        flag = command.flags[_SHARE]
        notes.append(f"{flag} {share_frac:g} is for case and control together: each has half")

    if command.engine_args:
        keys["engine_args"] = list(command.engine_args)
    if command.variables:
        keys["engine_env"] = dict(command.variables)
    return TableOfCommand(keys=keys, target=command.target, drafts=drafts, notes=tuple(notes))


def _command_in(container: Container, commands: Mapping[str, ServeCommand]) -> ReadCommand:
    """Return the command line that runs in a container, with the folders of this machine.

    Raises:
        MatrixError: as in `understand_command`.
    """
    words = container.command(commands)
    for_clients = {name: command.for_clients for name, command in commands.items()}
    command = read_words(words, container.variables, for_clients)
    notes = [*command.notes, *container.notes]
    engine_args = tuple(map(container.argument_on_this_machine, command.engine_args))
    paths = [
        word
        for word, argument in zip(command.engine_args, engine_args, strict=True)
        if word == argument and word.rpartition("=")[2].startswith("/")
    ]
    if paths:
        notes.append(f"engine_args names paths in the container: {', '.join(paths)}")
    speculation = dict(command.speculation)
    for key, setting in command.speculation.items():
        if isinstance(setting, str):
            speculation[key] = container.on_this_machine(setting)
    return dataclasses.replace(
        command,
        image=container.image,
        target=container.on_this_machine(command.target),
        engine_args=engine_args,
        speculation=speculation,
        notes=tuple(notes),
    )


def _keys_of_speculation(speculation: ReadSpeculation) -> dict[str, Any]:
    """Return a speculation as keys of `[[cases]]`, without its method and its draft."""
    keys: dict[str, Any] = {"draft_tokens": speculation.draft_tokens}
    if speculation.tree is not None:
        keys["tree"] = msgspec.to_builtins(speculation.tree)
    if speculation.further:
        keys["speculation"] = dict(speculation.further)
    return keys


def _methods_of(table: Mapping[str, object], methods: list[str]) -> list[str]:
    """Return the methods that a table names; those of its command if it names none.

    Args:
        table: the other keys of the table.
        methods: `none`, and the method of the command if it has one.

    Raises:
        MatrixError: the table doesn't name the method of the command.
    """
    named_methods = table.get("methods", methods)

    # What isn't a list is refused when the table is decoded.
    if not isinstance(named_methods, list):
        return methods
    method = methods[-1]
    if len(methods) > 1 and method not in named_methods:
        raise MatrixError(
            f"methods = {as_toml(named_methods)}, the command speculates with '{method}'; name it"
            " among them, or leave methods out"
        )

    return named_methods


def _speculation_of(command: ReadCommand) -> ReadSpeculation:
    """Return the speculation that a command line sets; errors as in `understand_command`."""
    engine = ENGINES[command.engine]
    settings = engine.canonical_speculation(command.speculation)
    speculation = read_speculation(settings, engine.methods)
    reserved_keys = engine.reserved_speculation_keys.keys() & speculation.further.keys()
    if reserved_keys:
        key = min(reserved_keys)
        message = f"command: its speculation has {key}, which a case sets by"
        raise MatrixError(f"{message} {engine.reserved_speculation_keys[key]}; set that instead")

    return speculation


def _values_of(command: ReadCommand) -> dict[str, Any]:
    """Return the values of a command line's flags, by key of `[[cases]]`.

    The values for keys of `parallel` are in a table of their own.

    Raises:
        MatrixError: a key can't have the value of its flag.
    """
    kinds = typing.get_type_hints(ServerSpec, include_extras=True)
    for name, kind in typing.get_type_hints(Parallel, include_extras=True).items():
        kinds[f"{_PARALLEL}{name}"] = kind
    keys: dict[str, Any] = {}
    parallel: dict[str, Any] = {}
    for key, words in command.values.items():
        flag = " ".join((command.flags[key], *words))
        value: object = " ".join(words)
        # A flag without a value switches something on.
        if not words:
            value = True
        elif key == _EXPERTS:
            value = _is_over_all(flag, words, command)
        try:
            value = msgspec.convert(value, kinds[key], strict=False)
        except msgspec.ValidationError as error:
            raise MatrixError(f"command: {flag}: {error}; correct it") from error
        if key.startswith(_PARALLEL):
            parallel[key.removeprefix(_PARALLEL)] = value
        else:
            keys[key] = value

    if parallel:
        keys["parallel"] = parallel
    return keys


def _is_over_all(flag: str, words: tuple[str, ...], command: ReadCommand) -> bool:
    """Return whether the experts are spread over all GPUs of `parallel.tensor`.

    Args:
        flag: the flag with its value, for the message.
        words: the value: over how many GPUs they are spread.
        command: the command line.

    Raises:
        MatrixError: they are spread over some of the GPUs, which no key of a case can express.
    """
    gpus = command.values.get(f"{_PARALLEL}tensor", ("1",))
    if words not in {("1",), gpus}:
        tensor = " ".join(gpus)
        possible = " or ".join(dict.fromkeys((tensor, "1")))
        raise MatrixError(
            f"command: {flag}: a case spreads experts over all GPUs of parallel.tensor or over"
            f" none; give {possible}"
        )

    return words != ("1",)


def merge_command(
    understood: TableOfCommand, table: Mapping[str, Any], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a table of cases with the keys of its command.

    Args:
        understood: the command as keys.
        table: the other keys of the table.
        defaults: the tier's defaults, which a command replaces.

    Raises:
        MatrixError: a key of the table contradicts the command.
    """
    merged = {**defaults, **understood.keys}
    for key, value in table.items():
        command_value = understood.keys.get(key)
        # `understand_command` has compared the methods with those of the command already.
        if command_value is None or key == "methods":
            merged[key] = value
        elif key in _JOINED or (key == "parallel" and isinstance(value, dict)):
            merged[key] = _joined(key, command_value, value)
        elif value != command_value:
            raise _contradiction(key, value, command_value)

    return merged


def _contradiction(key: str, value: object, command_value: object) -> MatrixError:
    """Return the error about a key to which a table and its command give different values."""
    problem = f"{key} = {as_toml(value)}, the command says {as_toml(command_value)}"
    return MatrixError(f"{problem}; leave out one of the two")


def _joined(key: str, command_value: Any, value: Any) -> Any:  # noqa: ANN401 - parts of a document
    """Return the value of a key with the parts of the command and those of the table.

    Args:
        command_value: its value in the command.
        value: its value in the table.

    Raises:
        MatrixError: both have the same flag, or the same name with different values.
    """
    if isinstance(command_value, list) and isinstance(value, list):
        flags = {word.partition("=")[0] for word in command_value if word.startswith("-")}
        for word in value:
            flag = str(word).partition("=")[0]
            if flag in flags:
                raise MatrixError(f"{key} has {flag}, which the command has too; leave out one")
        return [*command_value, *value]

    if not isinstance(command_value, dict) or not isinstance(value, dict):
        return value  # the wrong type is refused when the table is decoded
    for name in command_value.keys() & value.keys():
        if command_value[name] != value[name]:
            raise _contradiction(f"{key}.{name}", value[name], command_value[name])
    return {**command_value, **value}


def describe(understood: TableOfCommand, models: str) -> tuple[str, ...]:
    """Return a command as lines of a tier's file, one for each key."""
    pair = f"models = {as_toml(models)} # target = {as_toml(understood.target)}"
    for method, draft in understood.drafts.items():
        pair += f", drafts.{method} = {as_toml(draft)}"
    lines = [f"{key} = {as_toml(value)}" for key, value in understood.keys.items()]
    # The notes are comments of TOML, because people paste these lines into a tier.
    comments = [f"# {note}" for note in understood.notes]
    return (pair, *lines, *comments)
