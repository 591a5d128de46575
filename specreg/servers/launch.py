"""Start the servers of a run when they are first needed, and end all of their processes."""

import contextlib
import itertools
import os
import re
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
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
from specreg.core.files import cache_dir, cause_and_path_of, remedy_of, replace_file
from specreg.core.probes import SAFE_PATH
from specreg.core.processes import SupervisedProcess, new_temporary, start_process, stop_process
from specreg.core.redaction import hide
from specreg.core.timeline import Phase, Timeline
from specreg.engines.engine import Engine, Requirement, Site
from specreg.engines.launch_facts import NONE, LaunchFacts, inherited_variables
from specreg.engines.registry import engine_named
from specreg.engines.server_spec import ServerSpec
from specreg.matrix.case import Case, Load
from specreg.matrix.models import config_of, served_models, widen_models
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
"""How many ports a server is started on before its start fails: another program may take one."""
_NONCE_DIGITS = 8
_SOCKET_FOLDER_BYTES = 64
"""The longest path of a temporary folder. Servers make Unix sockets in it, whose paths Linux limits
to 107 bytes, and the names of vLLM's sockets take 37 bytes or more."""

Poll = Callable[[], Server | None]
"""Returns the server once it has generated a token, and None before. Raises a SpecregError if it
will never generate one."""


def weights_log(server_log: Path) -> Path:
    """Return the path of the log of fetching a server's models, given the path of its own log."""
    return server_log.with_name(f"{server_log.stem}~weights{server_log.suffix}")


def free_port() -> int:
    """Return a local port that was free a moment ago; another program may still take it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def numbered(path: Path, number: int) -> Path:
    """Return the path of a further log of the same server, such as `server~2.log`.

    No id has a tilde. With a dash, the second log of server `tiny` would be the first of `tiny-2`.
    """
    return path.with_name(f"{path.stem}~{number}{path.suffix}")


@dataclass(slots=True, kw_only=True)
class ServerStart:
    """The start of a server, repeated on another port if another program takes its port.

    Attributes:
        spec: The server to start.
        provision: Gives the engine's environment and the GPUs.
        root: The root of the repository, which relative model paths start from.
        ready_within_s: How long the server may take to generate its first token, in seconds.
        log_path: The file that gets its output. If it exists, the output goes to a numbered file.
        choose_port: Returns a free port.
        _python: The interpreter of the engine's environment; empty if the engine is a program.
        _installed: The engine that is installed, with its version.
        _temporary: The temporary folder of the server of the last attempt.
        _processes: Stops the server's processes.
        _attempts: How many times the server was started.
        _deadline_s: When the server must have generated a token, on the clock of `time.monotonic`.
        _server: The server of the last attempt, which may not be ready.
    """

    spec: ServerSpec
    provision: Provision
    root: Path
    ready_within_s: float
    log_path: Path
    choose_port: Callable[[], int] = free_port
    _python: str = field(init=False)
    _installed: Requirement = field(init=False)
    _temporary: Path = field(init=False)
    _processes: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _attempts: int = 0
    _deadline_s: float = field(init=False)
    _server: StartedServer = field(init=False)

    @contextlib.contextmanager
    def running(self) -> Iterator[StartedServer]:
        """Start the server and yield it once it has generated a token.

        Raises:
            SpecregError: As in `begin` and `poll`.
        """
        with self.begin():
            yield self.ready()

    def ready(self) -> StartedServer:
        """Wait until a server that was begun has generated a token.

        Raises:
            ServerStartError: As in `poll`.
            UnkillableError: As in `poll`.
        """
        while (server := self.poll()) is None:
            time.sleep(POLL_S)
        return server

    @contextlib.contextmanager
    def begin(self) -> Iterator[Self]:
        """Start the server without waiting for it. All of its processes end with the context.

        Raises:
            SpecregError: On entry, its environment, its GPUs or its models aren't available, or its
                command can't be run. On exit, it can't be killed, or its GPUs' memory isn't free.
        """
        spec = self.spec
        provision = self.provision
        self._python, self._installed = provision.environment(spec)
        # The models are fetched before a GPU is locked, and the time that this takes doesn't count
        # towards `ready_within_s`.
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
        """Return the server once it has generated a token, and None before.

        Raises:
            ServerStartError: The server ended, refused the request or took too long, or other
                programs took its port on each attempt, or its command can't be run on a further
                attempt.
            UnkillableError: The server of an attempt whose port was taken can't be killed.
        """
        try:
            return ready_server(self._server, self._deadline_s)
        except PortInUseError:
            if self._attempts == _PORTS:
                raise
        # Another program took the port, so the server is started again on another one.
        self._processes.close()
        self._begin()
        return None

    def _begin(self) -> None:
        """Start the server once, on a new port and with a new log."""
        self._attempts += 1
        self._temporary = new_temporary()
        # Choose the port, and find the models.
        spec = self.spec
        port = self.choose_port()
        engine = engine_named(spec.engine)
        target, draft = served_models(self.root, spec)
        site = start_site(
            spec,
            (target, draft),
            port=port,
            folder=self._temporary / f"files-{port}",
            on_gpu=self.provision.on_gpu,
            version=self._installed.version,
            # The name is unique, so that a request that reaches another server fails there.
            served_name=f"{spec.id}-{uuid.uuid4().hex[:_NONCE_DIGITS]}",
        )
        # Find a new name for the log, so that the logs of earlier attempts stay.
        log_path = self.log_path
        numbers = itertools.count(2)
        while log_path.exists():
            log_path = numbered(self.log_path, next(numbers))
        # Start the process and note what is known of the server.
        with self._mapped_errors(log_path):
            variables = self._variables(site)
            process = self._start(engine, site, variables, log_path)
        packages: tuple[str, ...] = ()
        if self._python:
            packages = installed_packages(self._python, variables.get("PYTHONPATH", ""))
        self._deadline_s = time.monotonic() + self.ready_within_s
        self._server = StartedServer(
            spec=spec,
            engine=engine,
            base_url=f"http://127.0.0.1:{port}",
            model=site.served_name,
            target=target,
            draft=draft,
            engine_version="",
            packages=packages,
            facts=self._facts(variables, packages, engine.environment(spec, site)),
            process=process,
        )

    def _start(
        self, engine: Engine, site: Site, variables: Mapping[str, str], log_path: Path
    ) -> SupervisedProcess:
        """Start the process of the server, and have `_processes` stop it.

        Raises:
            OSError: A file can't be written, or the command can't be run.
        """
        log_path.parent.mkdir(parents=True, exist_ok=True)
        files = engine.files(self.spec, site)
        for name, text in files.items():
            # The temporary folder is removed, so a copy without secrets is kept next to the log.
            replace_file(log_path.with_suffix("") / name, hide(text).encode())
        process = start_process(
            engine.command(Path(self._python), self.spec, site),
            environment=variables,
            log_path=log_path,
            cwd=self.root,
            temporary=self._temporary,
            files={site.folder / name: text for name, text in files.items()},
        )
        self._processes.callback(stop_process, process)
        return process

    def _facts(
        self, variables: Mapping[str, str], packages: Sequence[str], own: Mapping[str, str]
    ) -> LaunchFacts:
        """Return the facts about a launch that are known before its server is ready.

        Args:
            variables: All variables of the server.
            packages: The packages of its environment; empty if they aren't known.
            own: The variables that the engine's file sets.
        """
        inherited = inherited_variables(os.environ, {*own, *dict(self.spec.engine_env)})
        if not self.provision.on_gpu:
            return LaunchFacts(variables=inherited)
        flashinfer = ""
        if packages:
            flashinfer = version_in(packages, "flashinfer-python") or NONE
        return LaunchFacts(
            flashinfer=flashinfer, cuda_toolkit=toolkit_release(variables), variables=inherited
        )

    @contextlib.contextmanager
    def _mapped_errors(self, log_path: Path) -> Iterator[None]:
        """Raise an OSError of a start as a ServerStartError."""
        try:
            yield
        except OSError as error:
            problem = f"can't be started, {cause_and_path_of(error)}"
            advice = remedy_of(
                error,
                of_file="make room there, repair its rights, or delete the engine's environment in"
                " specreg's cache",
            )
            raise ServerStartError(
                f"SERVER_NOT_STARTED: server '{self.spec.id}'", problem, advice, log_path, ""
            ) from error

    def _variables(self, site: Site) -> dict[str, str]:
        """Return the environment variables of the server.

        Raises:
            OSError: The links to a CUDA toolkit can't be written.
        """
        variables = dict(os.environ)
        # A killed server leaves sockets in its temporary folder, so the server gets a folder that
        # is removed. PyTorch's compiled code would be in it too, but the next start needs that
        # code again. So the code gets a folder that stays.
        if len(os.fsencode(self._temporary)) <= _SOCKET_FOLDER_BYTES:
            compiled_folder = str(cache_dir() / "torchinductor")
            variables.setdefault("TORCHINDUCTOR_CACHE_DIR", compiled_folder)
            variables["TMPDIR"] = str(self._temporary)
        return server_variables(self.spec, self._python, site, variables)


def server_variables(
    spec: ServerSpec, python: str, site: Site, inherited: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment variables of a server.

    The engine's variables replace the inherited ones, and the case's variables replace both.

    Args:
        spec: The server.
        python: The interpreter of the engine's environment; empty if the engine is a program.
        site: What only its start knows.
        inherited: The variables of the process that starts it.

    Raises:
        OSError: The links to a CUDA toolkit can't be written.
    """
    engine = engine_named(spec.engine)
    variables = {SAFE_PATH: "1", **inherited}
    if python:
        # SGLang calls ninja, which is among the environment's programs. It finds ninja only if
        # their folder is on PATH.
        folders = (str(Path(python).parent), inherited.get("PATH", ""))
        variables["PATH"] = os.pathsep.join(folders)
    engine_variables = engine.environment(spec, site)
    case_variables = dict(spec.engine_env)
    # Both the engine and the case may add folders of modules. These are joined, because the server
    # needs all of them.
    module_folders = [
        source["PYTHONPATH"]
        for source in (engine_variables, case_variables)
        if "PYTHONPATH" in source
    ]
    variables |= engine_variables
    variables |= case_variables
    if module_folders:
        variables["PYTHONPATH"] = os.pathsep.join(module_folders)
    if engine.compiles and site.on_gpu:
        variables |= toolkit_variables(Path(python), variables)
    return variables


def start_site(  # noqa: PLR0913 - these are what differs between two starts
    spec: ServerSpec,
    models: tuple[str, str | None],
    *,
    port: int,
    folder: Path,
    on_gpu: bool,
    version: str,
    served_name: str,
) -> Site:
    """Return what only one start of a server knows.

    Args:
        spec: The server.
        models: The folders or hub ids of its target and draft, as the engine gets them.
        port: The port that it listens on.
        folder: An empty folder for the files that the engine reads.
        on_gpu: True if it runs on a GPU.
        version: The version of the engine; empty if it isn't known.
        served_name: The name under which the target is served.
    """
    target, draft = models
    memory = None
    if on_gpu:
        memory = gpu_memory(spec, find_gpus().memory_gib)
    variables = {**os.environ, **dict(spec.engine_env)}
    return Site(
        port=port,
        folder=folder,
        on_gpu=on_gpu,
        version=version,
        served_name=served_name,
        target=target,
        draft=draft,
        target_config=config_of(target, spec.target_revision, variables),
        offline=all(Path(model).is_dir() for model in models if model),
        memory=memory,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One of several starts of the same server.

    Attributes:
        spec: The server.
        number: The number of the launch, from 1.
        only_for: The id of the only case that may use the server; empty if cases share it.
    """

    spec: ServerSpec
    number: int
    only_for: str = ""

    @property
    def id(self) -> str:
        """The id of the server, or of its only case; the second launch adds `-launch2`."""
        name = self.only_for or self.spec.id
        return name + self.suffix

    def case_id(self, case: Case) -> str:
        """Return the id of a case on this launch; the second launch adds `-launch2`."""
        return case.id + self.suffix

    @property
    def suffix(self) -> str:
        """The end of names that belong to this launch; empty for the first launch."""
        return f"-launch{self.number}" if self.number > 1 else ""


@dataclass(slots=True, kw_only=True, eq=False)
class LazyServer:
    """A server that starts when it is first needed.

    If it fails to start, each later use raises the same error, and it isn't started again until
    `forget_failure` is called.

    Attributes:
        launch: The launch of the server.
        start: Starts the server without waiting for it. The server ends with the context.
        warm_for: The datasets and loads that the server has been measured with. They need no
            further warm-up.
        _running: Ends the server when it is closed.
        _poll: Returns the server once it is ready; None if the server isn't started.
        _server: The server; None until it is ready.
        _error: Why the server failed to start; None if it hasn't failed.
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
        """The ready server, which is started and waited for if need be.

        Raises:
            SpecregError: As in `poll`.
        """
        while (server := self.poll()) is None:
            time.sleep(POLL_S)
        return server

    def poll(self) -> Server | None:
        """Start the server if need be; return it once it is ready, and None before.

        Raises:
            SpecregError: The server failed to start, now or earlier.
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
    def is_ready(self) -> bool:
        """True if the server is ready."""
        return self._server is not None

    @property
    def is_up(self) -> bool:
        """True if the server was started and not stopped."""
        return self._poll is not None

    def forget_failure(self) -> None:
        """Allow the server to be started again after it failed to start."""
        self._error = None

    def stop_if_dead(self) -> None:
        """Stop what is left of a server that has died, so that it is started again when needed.

        Raises:
            UnkillableError: As in `stop`.
            MemoryHeldError: As in `stop`.
            SensorError: As in `stop`.
        """
        try:
            if self._server is not None:
                self._server.check_alive()
        except ServerDiedError:
            self.stop()

    def stop(self) -> None:
        """Stop the server, whether it is ready or still starting.

        Raises:
            UnkillableError: A process of the server can't be killed.
            MemoryHeldError: The memory of its GPU isn't free afterwards.
            SensorError: Its GPU is gone.
        """
        self._server = None
        self._poll = None
        self.warm_for.clear()
        self._running.close()


def launch_pair(case: Case, number: int) -> tuple[Launch, Launch]:
    """Return the launches of a case's control and of its server.

    Args:
        case: The case.
        number: The number of both launches, from 1.

    Returns:
        The launch of the control and the launch of the server. Both are the server's if the case
        has no control.
    """
    only_for = case.id if case.needs_fresh_server else ""
    server = Launch(spec=case.server, number=number, only_for=only_for)
    if case.control is None:
        return server, server
    control = Launch(spec=case.control, number=number)
    return control, server


@dataclass(slots=True, kw_only=True, eq=False)
class Servers:
    """The servers of a run: starts them, and stops them.

    Attributes:
        root: The root of the repository, which relative model paths start from.
        provision: Gives the environments of engines and the GPUs.
        ready_within_s: How long a server may take to generate its first token, in seconds.
        logs: The folder of the logs.
        claim: The GPUs that this process shares with other processes of the run; None if no other
            process of the run measures at the same time.
        timeline: Records how long installing, fetching and stopping take.
        _lazy_servers: The servers whose contexts haven't ended.
    """

    root: Path
    provision: Provision
    ready_within_s: float
    logs: Path
    claim: GpuClaim | None = None
    timeline: Timeline = field(default_factory=Timeline)
    _lazy_servers: dict[Launch, LazyServer] = field(default_factory=dict)

    @contextlib.contextmanager
    def start(self, launch: Launch, control: LazyServer | None = None) -> Iterator[LazyServer]:
        """Yield the server of a launch, which starts when first needed and ends with the context.

        Args:
            launch: The launch.
            control: The control of the case; None if it has none. If the launch is the control's
                own, the control is yielded, and doesn't end with this context.
        """
        if control is not None and control.launch == launch:
            yield control
            return
        lazy_server = self.lazy_server(launch)
        try:
            yield lazy_server
        finally:
            self._stop(lazy_server)
            del self._lazy_servers[launch]

    def lazy_server(self, launch: Launch) -> LazyServer:
        """Return the server of a launch; each call returns the same one until its context ends."""
        lazy_server = LazyServer(launch=launch, start=lambda: self._server(launch))
        return self._lazy_servers.setdefault(launch, lazy_server)

    def start_all(
        self, lazy_servers: Sequence[LazyServer], dispensable: Sequence[LazyServer] = ()
    ) -> None:
        """Start servers and return when all are ready; they start together if memory allows.

        Args:
            lazy_servers: The servers.
            dispensable: Further servers that start too. If one of them fails, its error isn't
                raised here, but when that server is used.

        Raises:
            SpecregError: One of `lazy_servers` didn't start, or this process can't get the GPUs.
                The servers that were started already keep running until their contexts end.
            MemoryHeldError: Any of the servers failed, and the memory of its GPU isn't free.
        """
        to_start = [lazy_server for lazy_server in lazy_servers if not lazy_server.is_ready]
        if to_start:
            self._claim_gpus(to_start)
        further = [lazy_server for lazy_server in dispensable if not lazy_server.is_ready]
        together = list(to_start)
        if not self.provision.on_gpu:
            # The dispensable servers come first, because their environments may have to be
            # installed. If the others had started before, the time that they have for their start
            # would pass meanwhile. On a GPU the dispensable servers start last, because the memory
            # that a server takes there is only an estimate.
            together = [*further, *to_start]
        if self._fit_together(together):
            # Installing keeps the machine busy, so everything that the needed servers lack is
            # installed before the first start.
            for lazy_server in to_start:
                self._prepare(lazy_server.launch)
                widen_models(self.root, lazy_server.launch.spec, show=self.provision.show)
            waiting = [
                lazy_server for lazy_server in together if _keep_starting(lazy_server, to_start)
            ]
            while waiting:
                time.sleep(POLL_S)
                waiting = [
                    lazy_server for lazy_server in waiting if _keep_starting(lazy_server, to_start)
                ]
        # Servers that didn't start together are started here, one after the other.
        for lazy_server in to_start:
            _ = lazy_server.server
        while further:
            further = [
                lazy_server for lazy_server in further if _keep_starting(lazy_server, to_start)
            ]
            time.sleep(POLL_S)

    def fit_beside(self, specs: Sequence[ServerSpec]) -> bool:
        """Return whether the memory is enough for some servers next to those that run.

        Args:
            specs: The servers; one that runs already needs no further memory.
        """
        up_specs = [
            lazy_server.launch.spec
            for lazy_server in self._lazy_servers.values()
            if lazy_server.is_up
        ]
        missing_specs = [spec for spec in specs if spec not in up_specs]
        if self.provision.on_gpu:
            return self.provision.fit([*up_specs, *missing_specs])
        # Without a GPU only the free memory is divided, which the running servers have left.
        return self.provision.fit(missing_specs)

    def _claim_gpus(self, lazy_servers: Sequence[LazyServer]) -> None:
        """Wait for the GPUs that servers need, if this process shares them and no server is up.

        Raises:
            SensorError: As in `GpuClaim.take`.
            SpecregError: As in `GpuClaim.take`.
        """
        if self.claim is None or self._is_any_up():
            return
        gpus = 0
        if self.provision.on_gpu:
            gpus = max(lazy_server.launch.spec.parallel.gpus for lazy_server in lazy_servers)
        self.claim.take(gpus, self.provision.tell)

    def _fit_together(self, lazy_servers: Sequence[LazyServer]) -> bool:
        """Return whether there are several servers to start, and memory for all of them."""
        specs = [lazy_server.launch.spec for lazy_server in lazy_servers]
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
        """Stop all servers, in the reverse of the order in which `lazy_server` made them.

        Raises:
            SpecregError: A server couldn't be stopped; the others are stopped all the same.
        """
        # The stack calls every callback, and raises an error only after the last one.
        with contextlib.ExitStack() as stack:
            for lazy_server in self._lazy_servers.values():
                stack.callback(self._stop, lazy_server)

    def stop_others(self, kept: AbstractSet[Launch]) -> None:
        """Stop all servers but those of some launches.

        Raises:
            SpecregError: A server couldn't be stopped; the others are stopped all the same.
        """
        with contextlib.ExitStack() as stack:
            for launch, lazy_server in self._lazy_servers.items():
                if launch not in kept:
                    stack.callback(self._stop, lazy_server)

    def _stop(self, lazy_server: LazyServer) -> None:
        """Stop a server, and after the last one release the GPUs to other processes."""
        if lazy_server.is_ready:
            with self.timeline.during(Phase.STOPPING, of=lazy_server.launch.id):
                lazy_server.stop()
        else:
            lazy_server.stop()
        if self.claim is not None and not self._is_any_up():
            self.claim.give_back()

    def _is_any_up(self) -> bool:
        return any(lazy_server.is_up for lazy_server in self._lazy_servers.values())

    @contextlib.contextmanager
    def _server(self, launch: Launch) -> Iterator[Poll]:
        """Start the server of a launch, or attach to it, and yield the function that polls it."""
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


def _keep_starting(lazy_server: LazyServer, needed: Sequence[LazyServer]) -> bool:
    """Start a server if need be, and return whether it is still starting.

    Args:
        lazy_server: The server.
        needed: The servers that must start.

    Returns:
        False if the server is ready, or if it has failed and isn't needed.

    Raises:
        SpecregError: A server that is needed failed to start.
        MemoryHeldError: The memory of a server that failed isn't free.
    """
    try:
        return lazy_server.poll() is None
    except MemoryHeldError:
        # No server can start on that GPU any more, so it doesn't matter which one was needed.
        raise
    except SpecregError:
        if lazy_server in needed:
            raise
        return False


def log_paths(logs: Path, launch: Launch) -> Sequence[Path]:
    """Return the logs of a launch, also those of further attempts and of other shards.

    Args:
        logs: The folder of the logs, which need not exist.
        launch: The launch.
    """
    pattern = re.compile(rf"{re.escape(launch.id)}(~\d+)?(~shard\d+)?\.log")
    if not logs.is_dir():
        return []
    paths = [path for path in logs.iterdir() if pattern.fullmatch(path.name) and path.is_file()]
    return sorted(paths, key=lambda path: path.stem)
