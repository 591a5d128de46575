"""Start the servers of a run when they are first needed, and end all of their processes."""

import contextlib
import itertools
import os
import re
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from specreg.core.errors import (
    MemoryHeldError,
    PortInUseError,
    ServerDiedError,
    ServerStartError,
    SpecregError,
)
from specreg.core.files import cache_dir, replace_file
from specreg.core.probes import SAFE_PATH
from specreg.core.processes import SupervisedProcess, new_temporary, start_process, stop_process
from specreg.core.redaction import hide
from specreg.core.timeline import Phase, Timeline
from specreg.engines.engine import (
    Engine,
    LaunchOptions,
    LaunchSettings,
    Requirement,
    values_of_fields,
)
from specreg.engines.launch_facts import NONE, NOTHING_KNOWN, LaunchFacts
from specreg.engines.registry import engine_named
from specreg.matrix.case import Case, Load, ServerSpec
from specreg.matrix.models import served_models, widen_models
from specreg.servers.attach import attach_server
from specreg.servers.gpu_lease import GpuClaim, lease_gpus
from specreg.servers.installer import installed_packages, version_in
from specreg.servers.memory import gpu_memory
from specreg.servers.provision import Provision
from specreg.servers.server import POLL_S, Server, StartedServer, ready_server
from specreg.servers.toolkit import toolkit_release, toolkit_variables
from specreg.telemetry.identity import find_gpus
from specreg.telemetry.sensor import Device

_PORTS = 3
_NONCE_DIGITS = 8
_SOCKET_FOLDER_BYTES = 64
"""How long the path of a temporary folder may be. It holds Unix sockets, whose paths have at most
107 bytes, of which vLLM's names take 37 and more."""

Poll = Callable[[], Server | None]
"""Returns a server once it has generated a token, and None before; raises why it never will."""


def weights_log(server_log: Path) -> Path:
    """Return the path of what huggingface_hub prints while it fetches a server's models."""
    return server_log.with_name(f"{server_log.stem}~weights{server_log.suffix}")


def free_port() -> int:
    """Return a local port that was free a moment ago; another program may still take it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def numbered(path: Path, number: int) -> Path:
    """Return the path of a further log of the same server, such as `server~2.log`.

    No server's id has a tilde, so the path can't be the log of another server, as `tiny-2` could.
    """
    return path.with_name(f"{path.stem}~{number}{path.suffix}")


@dataclass(slots=True, kw_only=True)
class ServerStart:
    """The start of a server, on another port if another program takes its port meanwhile.

    Attributes:
        spec: what is started.
        provision: gives the engine's environment and the GPUs.
        root: the root of the repository, which relative model paths start from.
        ready_within_s: how long it may take to generate its first token, in seconds.
        log_path: the file of its output; if it exists, the output goes to a numbered one instead.
        choose_port: returns a free port.
        _python: the Python of the engine's environment; empty for the one on the PATH.
        _has: the version of the engine that the environment has.
        _temporary: the temporary folder of the last attempt's server.
        _processes: stops the server's processes.
        _attempts: how often it was started.
        _deadline_s: when it must have generated a token, as `time.monotonic` counts.
        _server: the server of the last attempt, which may not be ready.
    """

    spec: ServerSpec
    provision: Provision
    root: Path
    ready_within_s: float
    log_path: Path
    choose_port: Callable[[], int] = free_port
    _python: str = field(init=False)
    _has: Requirement = field(init=False)
    _temporary: Path = field(init=False)
    _processes: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _attempts: int = 0
    _deadline_s: float = field(init=False)
    _server: StartedServer = field(init=False)

    @contextlib.contextmanager
    def running(self) -> Iterator[StartedServer]:
        """Start the server, and wait for its first token; errors as in `begin` and `poll`."""
        with self.begin():
            yield self.ready()

    def ready(self) -> StartedServer:
        """Wait for the first token of a server that was begun; errors as in `poll`."""
        while (server := self.poll()) is None:
            time.sleep(POLL_S)
        return server

    @contextlib.contextmanager
    def begin(self) -> Iterator[Self]:
        """Start the server and don't wait; all of its processes have ended after the context.

        Raises:
            SpecregError: Its environment, its GPUs or its models aren't available, or it can't be
                started. At the end: it can't be killed, or its GPUs' memory isn't given back.
        """
        spec = self.spec
        provision = self.provision
        self._python, self._has = provision.environment(spec)
        # Neither the GPUs nor the clock of the start wait for the network.
        provision.fetch_models(spec, weights_log(self.log_path))
        gpus: Sequence[Device] = ()
        if provision.on_gpu:
            gpus = provision.devices(spec)
        with lease_gpus(gpus, waits=provision.waits, tell=provision.tell), self._processes:
            widen_models(self.root, spec, show=provision.show)
            provision.show(f"starting {spec.id}")
            self._begin()
            yield self

    def poll(self) -> StartedServer | None:
        """Return the server once it has generated a token, None before.

        Raises:
            ServerStartError: It won't generate one.
        """
        try:
            return ready_server(self._server, self._deadline_s)
        except PortInUseError:
            if self._attempts == _PORTS:
                raise
        self._processes.close()
        self._begin()
        return None

    def _begin(self) -> None:
        """Start the server once, on a port of its own and with a log of its own."""
        self._attempts += 1
        self._temporary = new_temporary()
        spec = self.spec
        on_gpu = self.provision.on_gpu
        port = self.choose_port()
        engine = engine_named(spec.engine)
        target, draft = served_models(self.root, spec)
        site = LaunchSite(
            port=port,
            folder=self._temporary / f"files-{port}",
            on_gpu=on_gpu,
            version=self._has.version,
        )
        options = launch_options(spec, (target, draft), site)
        # The logs of earlier attempts are kept.
        log_path = self.log_path
        numbers = itertools.count(2)
        while log_path.exists():
            log_path = numbered(self.log_path, next(numbers))
        with self._mapped_errors(log_path):
            variables = self._variables(engine, options)
            process = self._start(engine, options, variables, log_path)
        packages = installed_packages(self._python) if self._python else ()
        self._deadline_s = time.monotonic() + self.ready_within_s
        self._server = StartedServer(
            spec=spec,
            engine=engine,
            base_url=f"http://127.0.0.1:{port}",
            model=options.served_name,
            target=target,
            draft=draft,
            engine_version="",
            packages=packages,
            facts=self._facts(variables, packages),
            process=process,
        )

    def _start(
        self, engine: Engine, options: LaunchOptions, variables: Mapping[str, str], log_path: Path
    ) -> SupervisedProcess:
        """Start the process of the server; it is stopped with the others.

        Raises:
            OSError: A file can't be written, or the command can't be run.
        """
        log_path.parent.mkdir(parents=True, exist_ok=True)
        files = engine.files(options)
        for name, text in files.items():
            # People find a copy without secrets next to the log.
            replace_file(log_path.with_suffix("") / name, hide(text).encode())
        process = start_process(
            engine.command(Path(self._python), options),
            environment=variables,
            log_path=log_path,
            cwd=self.root,
            temporary=self._temporary,
            files={options.folder / name: text for name, text in files.items()},
        )
        self._processes.callback(stop_process, process)
        return process

    def _facts(self, variables: Mapping[str, str], packages: Sequence[str]) -> LaunchFacts:
        """Return what is known of a launch on a GPU before its server is ready."""
        if not self.provision.on_gpu:
            return NOTHING_KNOWN
        flashinfer = ""
        if packages:
            flashinfer = version_in(packages, "flashinfer-python") or NONE
        return LaunchFacts(flashinfer=flashinfer, cuda_toolkit=toolkit_release(variables))

    @contextlib.contextmanager
    def _mapped_errors(self, log_path: Path) -> Iterator[None]:
        """Raise an error of the system at a start as a ServerStartError."""
        try:
            yield
        except OSError as error:
            problem = f"can't be started, {error.strerror}: '{error.filename}'"
            advice = "make room there, mend its rights, or delete the engine's folder in the cache"
            raise ServerStartError(
                f"SERVER_NOT_STARTED: server '{self.spec.id}'", problem, advice, log_path, ""
            ) from error

    def _variables(self, engine: Engine, options: LaunchOptions) -> dict[str, str]:
        """Return the environment variables of the server; those of the case come last.

        Raises:
            OSError: The folder of a CUDA toolkit can't be written.
        """
        variables = {SAFE_PATH: "1", **os.environ}
        # A killed server leaves sockets in its temporary folder, so it has one that is removed.
        # What PyTorch compiles would be there too, and stays elsewhere for the next start.
        if len(os.fsencode(self._temporary)) <= _SOCKET_FOLDER_BYTES:
            compiled = str(cache_dir() / "torchinductor")
            variables.setdefault("TORCHINDUCTOR_CACHE_DIR", compiled)
            variables["TMPDIR"] = str(self._temporary)
        if self._python:
            # As if its environment were active, because SGLang calls ninja.
            folders = (str(Path(self._python).parent), os.environ.get("PATH", ""))
            variables["PATH"] = os.pathsep.join(folders)
        engine_variables = engine.environment(options)
        case_variables = dict(self.spec.engine_env)
        # The folders of modules of both are joined, where a later value would replace the other.
        module_folders = [
            source["PYTHONPATH"]
            for source in (engine_variables, case_variables)
            if "PYTHONPATH" in source
        ]
        variables |= engine_variables
        variables |= case_variables
        if module_folders:
            variables["PYTHONPATH"] = os.pathsep.join(module_folders)
        if engine.compiles and self.provision.on_gpu:
            variables |= toolkit_variables(Path(self._python), variables)
        return variables


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSite:
    """Where a server is started.

    Attributes:
        port: the port that it listens on.
        folder: an empty folder for the files of the engine.
        on_gpu: True if it runs on a GPU.
        version: the version of the engine there; empty if it isn't known.
    """

    port: int
    folder: Path
    on_gpu: bool
    version: str = ""


def launch_options(
    spec: ServerSpec, models: tuple[str, str | None], site: LaunchSite
) -> LaunchOptions:
    """Return what the command line of a server is made from.

    Args:
        spec: The server.
        models: The folders or hub ids of its target and draft, as the engine gets them.
        site: Where it is started.
    """
    target, draft = models
    memory = None
    if site.on_gpu:
        memory = gpu_memory(spec, find_gpus().memory_gib)
    return LaunchOptions(
        **values_of_fields(LaunchSettings, spec)
        | {"speculation": spec.rendered_speculation(draft)},
        target=target,
        target_revision=spec.target_revision,
        draft_revision=spec.draft_revision,
        # The name is unique, so that a request that reaches another server fails there.
        served_name=f"{spec.id}-{uuid.uuid4().hex[:_NONCE_DIGITS]}",
        port=site.port,
        offline=all(Path(model).is_dir() for model in models if model),
        on_gpu=site.on_gpu,
        folder=site.folder,
        version=site.version,
        memory=memory,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One of several starts of the same server.

    Attributes:
        spec: what is started.
        number: counts the launches, from 1.
        only_for: the id of the only case that may use the server; empty if cases share it.
    """

    spec: ServerSpec
    number: int
    only_for: str = ""

    @property
    def id(self) -> str:
        """The id of the server, or of its only case; from the second launch on with `-launch2`."""
        name = self.only_for or self.spec.id
        return name + self.suffix

    def case_id(self, case: Case) -> str:
        """Return the id of a case on this launch; from the second launch on with `-launch2`."""
        return case.id + self.suffix

    @property
    def suffix(self) -> str:
        """The suffix of names from the second launch on."""
        return f"-launch{self.number}" if self.number > 1 else ""


@dataclass(slots=True, kw_only=True, eq=False)
class Starting:
    """A server that starts when it is first needed; if it fails to, it isn't started again.

    Attributes:
        launch: what is started.
        start: starts the server and doesn't wait; the server ends with the context.
        warm_for: the datasets and loads that it was measured under, which need no warm-up again.
        _running: ends the server.
        _poll: returns the server once it is ready; None while nothing is started.
        _server: the server if it is ready.
        _error: why it failed to start, if it did.
    """

    launch: Launch
    start: Callable[[], contextlib.AbstractContextManager[Poll]]
    warm_for: set[tuple[str, Load]] = field(default_factory=set)
    _running: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _poll: Poll | None = None
    _server: Server | None = None
    _error: SpecregError | None = None

    @property
    def server(self) -> Server:
        """The ready server, which is started and waited for if need be; errors as in `poll`."""
        while (server := self.poll()) is None:
            time.sleep(POLL_S)
        return server

    def poll(self) -> Server | None:
        """Start the server if need be, and return it once it is ready, None before.

        Raises:
            SpecregError: It failed to start, now or earlier.
        """
        if self._error is not None:
            raise self._error
        try:
            if self._poll is None:
                self._poll = self._running.enter_context(self.start())
            elif self._server is None:
                self._server = self._poll()
        except SpecregError as error:
            self._error = error
            self.stop()
            raise
        return self._server

    @property
    def running(self) -> bool:
        """True if the server is ready."""
        return self._server is not None

    @property
    def is_up(self) -> bool:
        """True if the server was started and not stopped."""
        return self._poll is not None

    def forget_failure(self) -> None:
        """Have the server start once more although it failed to."""
        self._error = None

    def stop_if_dead(self) -> None:
        """Stop what is left of a server that has died, so that the next attempt starts afresh."""
        try:
            if self._server is not None:
                self._server.check_alive()
        except ServerDiedError:
            self.stop()

    def stop(self) -> None:
        """Stop the server if it runs or starts.

        Raises:
            MemoryHeldError: The memory of its GPU isn't given back.
        """
        self._server = None
        self._poll = None
        self.warm_for.clear()
        self._running.close()


def launch_pair(case: Case, number: int) -> tuple[Launch, Launch]:
    """Return the launches of a case's control and of its server.

    Args:
        case: the case.
        number: the number of both launches, from 1.

    Returns:
        The launch of the control, which is the server's own if the case has none, and the launch of
        the server.
    """
    only_for = case.id if case.needs_fresh_server else ""
    server = Launch(spec=case.server, number=number, only_for=only_for)
    if case.control is None:
        return server, server
    control = Launch(spec=case.control, number=number)
    return control, server


@dataclass(slots=True, kw_only=True, eq=False)
class Servers:
    """The servers of a run.

    Attributes:
        root: the root of the repository, which relative model paths start from.
        provision: gives the environments of engines and the GPUs.
        ready_within_s: how long a server may take to generate its first token, in seconds.
        logs: the folder of the logs.
        claim: the GPUs of this process if other processes of the run measure at the same time;
            None if all GPUs are its own.
        timeline: gets the times of installing and stopping.
        _startings: the servers whose contexts haven't ended.
    """

    root: Path
    provision: Provision
    ready_within_s: float
    logs: Path
    claim: GpuClaim | None = None
    timeline: Timeline = field(default_factory=Timeline)
    _startings: dict[Launch, Starting] = field(default_factory=dict)

    @contextlib.contextmanager
    def start(self, launch: Launch, control: Starting | None = None) -> Iterator[Starting]:
        """Yield the server of a launch, which ends with the context.

        Args:
            launch: what is started.
            control: the control of the server, yielded itself if it is of the same launch.
        """
        if control is not None and control.launch == launch:
            yield control
            return
        starting = self.starting(launch)
        try:
            yield starting
        finally:
            self._stop(starting)
            del self._startings[launch]

    def starting(self, launch: Launch) -> Starting:
        """Return the server of a launch, which is kept until its context ends."""
        starting = Starting(launch=launch, start=lambda: self._server(launch))
        return self._startings.setdefault(launch, starting)

    def start_all(
        self, startings: Sequence[Starting], dispensable: Sequence[Starting] = ()
    ) -> None:
        """Start servers, at the same time if memory allows, and return when all are ready.

        Args:
            startings: the servers.
            dispensable: servers that start with them, on a GPU after them, and may fail to. Who
                needs one of them gets its error.

        Raises:
            SpecregError: One of `startings` didn't start. The others go on until they are needed
                or their contexts end.
        """
        to_start = [starting for starting in startings if not starting.running]
        if to_start:
            self._claim_gpus(to_start)
        further = [starting for starting in dispensable if not starting.running]
        waiting = list(to_start)
        if not self.provision.on_gpu:
            # First, because the others' time would pass while their environments are installed. On
            # a GPU they start last, because how much a server takes of it is an estimate.
            waiting = [*further, *to_start]
        if self._fit_together(waiting):
            # All that keeps the machine busy is done before the first of them starts.
            for starting in to_start:
                self._prepare(starting.launch)
                widen_models(self.root, starting.launch.spec, show=self.provision.show)
            waiting = [starting for starting in waiting if _is_waiting(starting, to_start)]
            while waiting:
                time.sleep(POLL_S)
                waiting = [starting for starting in waiting if _is_waiting(starting, to_start)]
        for starting in to_start:
            _ = starting.server
        while further:
            further = [starting for starting in further if _is_waiting(starting, to_start)]
            time.sleep(POLL_S)

    def fit_beside(self, specs: Sequence[ServerSpec]) -> bool:
        """Return whether servers may take their memory beside all servers that are up.

        Those of them that are up have theirs already.
        """
        up_specs = [starting.launch.spec for starting in self._startings.values() if starting.is_up]
        missing_specs = [spec for spec in specs if spec not in up_specs]
        if self.provision.on_gpu:
            return self.provision.fit([*up_specs, *missing_specs])
        return self.provision.fit(missing_specs)

    def _claim_gpus(self, startings: Sequence[Starting]) -> None:
        """Wait for the GPUs of servers if this process shares them and holds none."""
        if self.claim is None or self._is_any_up():
            return
        gpus = 0
        if self.provision.on_gpu:
            gpus = max(starting.launch.spec.parallel.gpus for starting in startings)
        self.claim.take(gpus, self.provision.tell)

    def _fit_together(self, startings: Sequence[Starting]) -> bool:
        """Return whether there are several servers to start, and their memory fits together."""
        specs = [starting.launch.spec for starting in startings]
        return len(specs) > 1 and self.provision.fit(specs)

    def _prepare(self, launch: Launch) -> None:
        """Install the environment of a server's engine and fetch its models, if they are missing.

        Raises:
            SpecregError: The environment can't be made, or a model can't be fetched.
        """
        spec = launch.spec
        with self.timeline.during(Phase.INSTALLING, of=spec.engine):
            self.provision.environment(spec)
        with self.timeline.during(Phase.FETCHING, of=launch.id):
            self.provision.fetch_models(spec, weights_log(self._log_path(launch)))

    def _log_path(self, launch: Launch) -> Path:
        return self.logs / f"{launch.id}.log"

    def stop(self) -> None:
        """Stop all servers, the last one first, also if one of them can't be stopped."""
        with contextlib.ExitStack() as stack:
            for starting in self._startings.values():
                stack.callback(self._stop, starting)

    def _stop(self, starting: Starting) -> None:
        """Stop a server, and give the GPUs back after the last one."""
        if starting.running:
            with self.timeline.during(Phase.STOPPING, of=starting.launch.id):
                starting.stop()
        else:
            starting.stop()
        if self.claim is not None and not self._is_any_up():
            self.claim.give_back()

    def _is_any_up(self) -> bool:
        return any(starting.is_up for starting in self._startings.values())

    @contextlib.contextmanager
    def _server(self, launch: Launch) -> Iterator[Poll]:
        """Start or attach to the server of a launch, and yield what returns it once it is ready."""
        spec = launch.spec
        provision = self.provision
        if provision.url is not None:
            attached = attach_server(
                spec, provision.url, root=self.root, ready_within_s=self.ready_within_s
            )
            yield lambda: attached
            return
        self._prepare(launch)
        start = ServerStart(
            spec=spec,
            provision=provision,
            root=self.root,
            ready_within_s=self.ready_within_s,
            log_path=self._log_path(launch),
        )
        with start.begin():
            yield start.poll


def _is_waiting(starting: Starting, needed: Sequence[Starting]) -> bool:
    """Return whether a server isn't ready yet; one that isn't needed may fail.

    Raises:
        SpecregError: A server that is needed failed to start.
        MemoryHeldError: The memory of a server that failed isn't given back.
    """
    try:
        return starting.poll() is None
    except MemoryHeldError:
        raise
    except SpecregError:
        if starting in needed:
            raise
        return False


def log_paths(logs: Path, launch: Launch) -> Sequence[Path]:
    """Return the logs of a launch in a folder, with those of further attempts and processes."""
    pattern = re.compile(rf"{re.escape(launch.id)}(~\d+)?(~shard\d+)?\.log")
    if not logs.is_dir():
        return []
    paths = [path for path in logs.iterdir() if pattern.fullmatch(path.name) and path.is_file()]
    return sorted(paths, key=lambda path: path.stem)
