"""Read the command line with which people start a server, such as `vllm serve …`.

The file of each engine has a table of what the engine's flags mean for a case. Splitting a command
line into flags, and finding its speculative method, is the same for all engines and done here.
"""

import dataclasses
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from specreg.core.commands import specreg_command
from specreg.core.errors import MatrixError
from specreg.core.files import UNREADABLE
from specreg.core.redaction import hide_secrets_of, is_secret
from specreg.engines.methods import (
    BRANCHES,
    DRAFT,
    DRAFT_TOKENS,
    VERIFIED_TOKENS,
    Setting,
    Spelling,
    Tree,
)

TARGET = "target"
SPECULATION = "speculation"
OWN_PORT = "specreg starts the server on this machine, on a port that is free"
NO_KEY = "specreg's client sends no key, and nobody else reaches the server"
NO_TLS = "specreg's client speaks plain HTTP, and only this machine reaches the server"
"""Why a measured server of any engine can't have certain flags, see `ServeCommand.refused`."""
_PYTHON = "python"
_PLACEHOLDERS = {DRAFT, DRAFT_TOKENS, VERIFIED_TOKENS, BRANCHES}
_CONTINUED_LINE = re.compile(r"\\[ \t]*\r?\n")
_TYPOGRAPHIC = re.compile("[\u2018\u2019\u201c\u201d]")
_FOR_A_SHELL = re.compile(
    r"\d*[<>]{1,2}(?![\w/])|\d?>&\d|&|\||;$|#|~|`|\$[\w{(]|[\w./]*\$\{|[A-Za-z_]\w*=\$"
)
"""The beginnings of words that only a shell understands: redirections, operators, comments, the
home folder, and variables and commands that a shell replaces."""
_QUOTED = re.compile(r"\\.|'[^']*'|\"(?:\\.|[^\"\\])*\"", re.DOTALL)
_NEXT_COMMAND = re.compile(r"(?<![<>])[;&|](?!>)")
"""What ends a command for a shell, wherever it is outside of quotes."""
_HIDING = frozenset({"config", "extra-llm-api-options"})
"""The flags that name a file with further settings."""
_NO = "no-"
"""The beginning of a flag that switches a setting off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeCommand:
    """How people start a server of an engine, and what its flags mean for a case.

    In the mappings, the names of flags have no leading dashes, and dashes instead of underscores.

    Attributes:
        programs: the possible beginnings of a command line. `python` stands for any program whose
            name begins so, such as `python3.12`.
        takes_target: True if the target may follow without a flag.
        keys: the key of `[[cases]]` by flag. `target` stands for the model, and `speculation` for
            a flag whose value is the whole speculative configuration as JSON.
        speculation_flags: the beginnings of flags that set one key of the speculative
            configuration. The key has the name of the flag.
        speculation_names: the key of the speculative configuration by flag, for flags whose name
            isn't the key.
        refused: the flags that a measured server can't have, each with the reason.
        preset: the flags that specreg itself sets for each server that takes them, each with its
            values.
        dropped: the flags that are left out, each with the reason.
        images: the names of images, without registry and tag, that start the first of `programs`.
    """

    programs: tuple[tuple[str, ...], ...]
    takes_target: bool = True
    keys: Mapping[str, str]
    speculation_flags: tuple[str, ...] = ()
    speculation_names: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str]
    preset: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    dropped: Mapping[str, str] = field(default_factory=dict)
    images: tuple[str, ...] = ()

    @property
    def for_clients(self) -> "ServeCommand":
        """The same for the server of other people's clients, whose flags nobody can take away.

        The flags that a measured server can't have, or has by itself, are left out of such a
        command. Those that hide further settings are refused all the same.
        """
        refused = {flag: self.refused[flag] for flag in self.refused if flag in _HIDING}
        preset = dict.fromkeys(self.preset, "specreg sets it itself")
        others = {**self.refused, **self.dropped, **preset}
        dropped = {flag: reason for flag, reason in others.items() if flag not in refused}
        return dataclasses.replace(self, refused=refused, preset={}, dropped=dropped)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadCommand:
    """The parts of a command line.

    Attributes:
        engine: the name of the engine.
        variables: the environment variables before the program.
        target: the folder or hub id of the model.
        values: the words after a flag, by the flag's key of `[[cases]]`; empty for a flag without a
            value.
        flags: the flag as it was written, by the same key.
        speculation: the speculative configuration by the engine's names.
        engine_args: the words of all other flags, in their order.
        notes: lines about the flags that were left out, and why.
        image: the image that the command runs in; empty for none.
    """

    engine: str
    variables: Mapping[str, str]
    target: str
    values: Mapping[str, tuple[str, ...]]
    flags: Mapping[str, str]
    speculation: Mapping[str, Setting]
    engine_args: tuple[str, ...]
    notes: tuple[str, ...]
    image: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSpeculation:
    """The method of a speculative configuration, with its settings.

    Attributes:
        method: the name of the method.
        draft: the folder or hub id of its draft; empty without one.
        draft_tokens: the largest number of drafts that a step can accept.
        tree: how the drafts branch; None if they don't.
        further: the settings that the method doesn't have, or has with another value.
    """

    method: str
    draft: str
    draft_tokens: int
    tree: Tree | None
    further: Mapping[str, Setting]


@dataclass(slots=True)
class _Reading:
    """The parts of a command line that have been read so far; see `ReadCommand`."""

    values: dict[str, tuple[str, ...]] = field(default_factory=dict)
    flags: dict[str, str] = field(default_factory=dict)
    speculation: dict[str, Setting] = field(default_factory=dict)
    engine_args: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_command(text: str, commands: Mapping[str, ServeCommand]) -> ReadCommand:
    """Read a command line.

    Args:
        text: the command line as for a shell; lines may end with a backslash.
        commands: how the servers of each engine are started, by the engine's name.

    Raises:
        MatrixError: the text can't be read, starts no server, or doesn't name exactly one model; or
            a measured server can't have one of the flags, the value of a flag can't be read, or two
            flags set the same.
    """
    words = words_of(text)
    variables = {}
    while words:
        name, equals, value = words[0].partition("=")
        if not equals or not name.isidentifier():
            break
        variables[name] = value
        words.pop(0)

    return read_words(words, variables, commands)


def read_words(
    words: Sequence[str], variables: Mapping[str, str], commands: Mapping[str, ServeCommand]
) -> ReadCommand:
    """Read a command line that is divided into words.

    Args:
        words: the program and its arguments.
        variables: the environment variables.
        commands: as in `read_command`.

    Raises:
        MatrixError: as in `read_command`.
    """
    engine, arguments = _split_program(words, commands)

    # Read the flags.
    command = commands[engine]
    reading = _Reading()
    if command.takes_target and arguments and not arguments[0].startswith("-"):
        reading.values[TARGET] = (arguments[0],)
        reading.flags[TARGET] = arguments.pop(0)
    for flag, values in _flags_of(arguments):
        _read_flag(reading, command, flag, values)

    # Check that there is one model.
    if TARGET not in reading.values:
        raise MatrixError(
            "command: names no model; write it as you start the server, model and all"
        )

    targets = reading.values.pop(TARGET)
    if len(targets) != 1 or not targets[0]:
        words_of_target = " ".join((reading.flags[TARGET], *targets))
        raise MatrixError(
            f"command: {words_of_target}: needed one model; write its folder or hub id"
        )

    (target,) = targets
    return ReadCommand(
        engine=engine,
        variables=variables,
        target=target,
        values=reading.values,
        flags=reading.flags,
        speculation=reading.speculation,
        engine_args=tuple(reading.engine_args),
        notes=tuple(reading.notes),
    )


def join_lines(text: str) -> str:
    """Return a command line whose lines end with a backslash as one line."""
    return _CONTINUED_LINE.sub(" ", text)


def check_one_command(text: str, *, is_script: bool = False) -> None:
    """Check that a shell would run only one command for a text.

    Args:
        is_script: True if a new line begins a new command. People break the line of a tier without
            a backslash, too.

    Raises:
        MatrixError: it would run another one.
    """
    bare = _QUOTED.sub("", join_lines(text).strip())
    mark = ""
    if is_script and "\n" in bare:
        mark = "a new line without \\ before it"
    elif found := _NEXT_COMMAND.search(bare):
        mark = f"'{found[0]}'"

    if mark:
        raise MatrixError(
            f"command: {mark} is for a shell, which would run another command after it, and only"
            " one is read; write only the command that starts the server"
        )


def words_of(text: str) -> list[str]:
    """Return the words of a command line.

    Raises:
        MatrixError: it isn't written as for a shell, or only a shell could run it.
    """
    typographic = _TYPOGRAPHIC.search(text)
    if typographic:
        raise MatrixError(
            f"command: {typographic[0]} is no quotation mark of a shell; write ' or \" instead"
        )

    check_one_command(text)

    try:
        # Blanks may follow the backslash at the end of a line, because they are easily pasted too.
        words = shlex.split(join_lines(text))
    except ValueError as error:
        raise MatrixError(f"command: {error}; write it as in a shell") from error

    for word in words:
        if _FOR_A_SHELL.match(word):
            raise MatrixError(
                f"command: '{word}' is for a shell, and none reads it here; write only the command"
                " that starts the server, with values in place of variables"
            )

    return words


def _split_program(
    words: Sequence[str], commands: Mapping[str, ServeCommand]
) -> tuple[str, list[str]]:
    """Return the engine that a command line starts, and the words after the program.

    Raises:
        MatrixError: it starts no server of a known engine.
    """
    starts: list[tuple[int, str]] = []
    known = []
    for engine, command in commands.items():
        for program in command.programs:
            known.append(f"'{' '.join(program)} …'")
            if begins_with(words, program):
                starts.append((len(program), engine))

    if not starts:
        begin = " ".join(words[:3])
        programs = ", ".join(known)
        raise MatrixError(f"command: '{begin} …' starts no server; needed one of {programs}")

    # If several programs fit, the longest was started: after `trtllm-serve` alone, the `serve` of
    # `trtllm-serve serve` would be taken for the target.
    length, engine = max(starts)
    return engine, list(words[length:])


def begins_with(words: Sequence[str], program: tuple[str, ...]) -> bool:
    """Return whether a command line begins with a program, which may be in any folder."""
    if len(words) < len(program):
        return False
    executable = words[0].rpartition("/")[2]
    is_python = program[0] == _PYTHON and executable.startswith(_PYTHON)
    if executable != program[0] and not is_python:
        return False
    return tuple(words[1 : len(program)]) == program[1:]


def _flags_of(words: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    """Return the flags of a command line, each with the words up to the next flag.

    Raises:
        MatrixError: the first word isn't a flag.
    """
    flags: list[tuple[str, tuple[str, ...]]] = []
    for word in words:
        # A negative number begins with a dash too, but is the value of a flag.
        if word.startswith("-") and not _is_number(word):
            flag, equals, value = word.partition("=")
            values: tuple[str, ...] = ()
            if equals:
                values = (value,)
            flags.append((flag, values))
        elif not flags:
            raise MatrixError(f"command: '{word}' belongs to no flag; put it behind one")
        else:
            flag, values = flags[-1]
            flags[-1] = (flag, (*values, word))

    return flags


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _read_flag(
    reading: _Reading, command: ServeCommand, flag: str, values: tuple[str, ...]
) -> None:
    """Add one flag of a command line to the reading.

    Raises:
        MatrixError: a measured server can't have the flag, its value can't be read, or another flag
            has set the same.
    """
    # Flags that a case doesn't have.
    name = flag.lstrip("-").replace("_", "-")
    contradicts_preset = command.preset.get(name, values) != values
    if name in command.refused or contradicts_preset:
        reason = command.refused.get(name, "specreg gives each server its own")
        raise MatrixError(f"command: {' '.join((flag, *values))}: {reason}; leave it out")
    if name in command.preset:
        return
    if name in command.dropped:
        reading.notes.append(f"{flag} is left out: {command.dropped[name]}")
        return

    # Flags of the speculative configuration, such as `--speculative-config.method=eagle3`.
    section, _, key = name.partition(".")
    if key and command.keys.get(section) == SPECULATION:
        settings = {key.replace("-", "_"): _setting_of(values)}
    elif name in command.speculation_names:
        settings = {command.speculation_names[name]: _setting_of(values)}
    elif name.startswith(command.speculation_flags):
        settings = {name: _setting_of(values)}
    elif command.keys.get(name) == SPECULATION:
        settings = _object_of(flag, values)
    else:
        _read_setting(reading, command, flag, values)
        return

    for setting in settings:
        if setting in reading.speculation:
            raise MatrixError(
                f"command: {flag} sets {setting} of the speculation again; leave out one"
            )

    reading.speculation |= settings


def _read_setting(
    reading: _Reading, command: ServeCommand, flag: str, values: tuple[str, ...]
) -> None:
    """Add a flag that isn't one of speculation to the reading.

    Raises:
        MatrixError: another flag has set the same key.
    """
    name = flag.lstrip("-").replace("_", "-")
    key_of_case = command.keys.get(name)
    switched_off = None
    if name.startswith(_NO):
        switched_off = command.keys.get(name.removeprefix(_NO))
    known_key = key_of_case or switched_off

    # The engine itself reads all flags that a case has no key for.
    if known_key is None:
        if _is_secret(name, values):
            hide_secrets_of({}, (flag, *values))
            reading.notes.append(
                f"{flag} is left out, because it holds a secret, which all users of a machine can"
                " read on a command line: export it as a variable (HF_TOKEN) where specreg runs"
            )
            return
        reading.engine_args += (flag, *values)
        return

    if known_key in reading.flags:
        raise MatrixError(
            f"command: {flag} sets again what {reading.flags[known_key]} sets; leave out one"
        )

    reading.flags[known_key] = flag

    # A flag that switches something off leaves the key at its default, which is off.
    if key_of_case is not None:
        reading.values[key_of_case] = values


def _is_secret(name: str, values: tuple[str, ...]) -> bool:
    """Return whether a flag holds a secret, such as `--hf-token`; numbers of tokens are none."""
    last_part = name.rpartition("-")[2]
    return any(is_secret(last_part, value) and not _is_number(value) for value in values)


def _setting_of(values: tuple[str, ...]) -> Setting:
    """Return the value of a flag: a number, a boolean or a text; True for one without a value."""
    if not values:
        return True
    text = " ".join(values)
    try:
        value = msgspec.json.decode(text)
    except UNREADABLE:
        return text

    # A list or an object stays a text as it was written. The engine parses it.
    if isinstance(value, int | float):
        return value
    return text


def _object_of(flag: str, values: tuple[str, ...]) -> dict[str, Setting]:
    """Return the object in a flag whose value is JSON.

    Raises:
        MatrixError: the value isn't an object of JSON, or holds a value that a case can't have.
    """
    text = " ".join(values)
    try:
        return msgspec.json.decode(text, type=dict[str, Setting])
    except UNREADABLE as error:
        raise MatrixError(
            f"command: {flag} is no object of JSON that a case can have ({error}), got '{text}';"
            ' write it in single quotes, as in \'{"method": "eagle3"}\''
        ) from error


def read_speculation(
    settings: Mapping[str, Setting], methods: Mapping[str, Spelling]
) -> ReadSpeculation:
    """Return the method of a speculative configuration, with its settings.

    Args:
        settings: the configuration by the engine's names, not empty.
        methods: the settings of the engine's methods.

    Raises:
        MatrixError: no method has such settings, the number of drafts isn't given or contradicts
            the number of verified tokens, or a number isn't an integer from 1 on.
    """
    # Find the method, and read the settings that it has.
    method = _method_of(settings, methods)
    spelling = methods[method]
    draft = ""
    for key in _keys_of(spelling, DRAFT):
        draft = str(settings[key])
    draft_tokens = None
    for key in _keys_of(spelling, DRAFT_TOKENS):
        draft_tokens = settings.get(key)

    # SGLang's number of verified tokens is one more than the number of drafts, because it includes
    # the token that the drafts continue.
    verified = None
    for key in _keys_of(spelling, VERIFIED_TOKENS):
        verified = settings.get(key)
    tree = None
    for key in _keys_of(spelling, BRANCHES):
        tree = Tree(branches=_count(settings[key]), drafted_tokens=_count(verified) - 1)

    # Without a tree, one of these two numbers is enough, and if both are given they must agree.
    if verified is not None and tree is None:
        drafts_by_verified = _count(verified) - 1
        if draft_tokens not in {None, drafts_by_verified}:
            raise MatrixError(
                f"command: the speculation drafts one branch of {draft_tokens} tokens and verifies"
                f" {verified}, needed {_count(draft_tokens) + 1}; mend one of the two"
            )
        draft_tokens = drafts_by_verified

    if draft_tokens is None:
        needed_keys = [*_keys_of(spelling, DRAFT_TOKENS), *_keys_of(spelling, VERIFIED_TOKENS)]
        raise MatrixError(
            f"command: the speculation doesn't say how many tokens it drafts; give {needed_keys[0]}"
        )

    return ReadSpeculation(
        method=method,
        draft=draft,
        draft_tokens=_count(draft_tokens),
        tree=tree,
        further=_further(settings, spelling),
    )


def _method_of(settings: Mapping[str, Setting], methods: Mapping[str, Spelling]) -> str:
    """Return the method whose settings a configuration has.

    Raises:
        MatrixError: no method has such settings, or the number of branches isn't an integer from 1
            on.
    """
    # If several methods fit, the one with the most equal settings is taken.
    agreements = {}
    for name, spelling in methods.items():
        if _fits(settings, spelling, methods):
            items_of_method = spelling.settings.items()
            agreements[name] = sum(settings.get(key) == value for key, value in items_of_method)

    if not agreements:
        shown = msgspec.json.encode(settings).decode()
        raise MatrixError(
            f"command: no method has the speculative settings {shown};"
            f" {specreg_command('engines')} lists the methods: name one, and its draft if it needs"
            " one"
        )

    return max(agreements, key=agreements.__getitem__)


def _fits(
    settings: Mapping[str, Setting], spelling: Spelling, methods: Mapping[str, Spelling]
) -> bool:
    """Return whether a configuration may belong to a method.

    It must have a draft and branches exactly if the method has them. Texts and switches must equal
    those of the method; numbers may differ.

    Raises:
        MatrixError: the number of branches isn't an integer from 1 on.
    """
    # `none` has no settings, so no configuration belongs to it.
    if not spelling.settings:
        return False

    # The methods of an engine show which of its keys name a draft and which set branches.
    draft_keys: set[str] = set()
    branch_keys: set[str] = set()
    for method in methods.values():
        draft_keys.update(_keys_of(method, DRAFT))
        branch_keys.update(_keys_of(method, BRANCHES))
    has_draft = not draft_keys.isdisjoint(settings)
    needs_draft = DRAFT in spelling.settings.values()
    if has_draft != needs_draft:
        return False
    return all(
        _value_fits(settings.get(key), value, shows_branching=key in branch_keys)
        for key, value in spelling.settings.items()
    )


def _keys_of(spelling: Spelling, placeholder: str) -> list[str]:
    """Return the keys of a method's settings that have a placeholder as their value."""
    return [key for key, value in spelling.settings.items() if value == placeholder]


def _value_fits(setting: Setting | None, value: Setting, *, shows_branching: bool) -> bool:
    """Return whether the value of a key in a configuration agrees with a method's value for it.

    Args:
        setting: the value in the configuration; None if the key isn't given.
        value: the value in the method's settings.
        shows_branching: True if another method has the branches of a tree in this key, so that the
            value shows whether the drafts branch.

    Raises:
        MatrixError: the number of branches isn't an integer from 1 on.
    """
    if value == BRANCHES:
        return setting is not None and _count(setting) > 1
    if value in _PLACEHOLDERS:
        return True
    if isinstance(value, str) or value is True:
        return setting == value
    return not shows_branching or setting in {None, value}


def _further(settings: Mapping[str, Setting], spelling: Spelling) -> dict[str, Setting]:
    """Return the settings that a method doesn't have, or has with another value."""
    further = {}
    for key, value in settings.items():
        method_value = spelling.settings.get(key)
        if method_value not in _PLACEHOLDERS and method_value != value:
            further[key] = value
    return further


def _count(value: Setting | None) -> int:
    """Return a value as a number of tokens or branches.

    Raises:
        MatrixError: it isn't an integer from 1 on.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        shown = "missing" if value is None else value
        message = f"command: a number of tokens or branches of the speculation is {shown}"
        raise MatrixError(f"{message}, needed an integer from 1 on; correct it")
    return value
