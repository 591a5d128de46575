"""Start the servers of a run when they are first asked for, and end every process of them."""

import contextlib
import itertools
import os
import re
import socket
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from specreg.core.errors import PortInUseError, ServerDiedError, ServerStartError, SpecregError
from specreg.core.files import cache_dir, replace_file
from specreg.core.processes import SupervisedProcess, start_process, stop_process
from specreg.core.redaction import hide
from specreg.core.timeline import Phase, Timeline
from specreg.engines.engine import Engine, LaunchOptions, LaunchSettings, Requirement, taken
from specreg.engines.registry import engine_named
from specreg.matrix.case import Case, Load, ServerSpec
from specreg.matrix.models import served_models, widen_models
from specreg.servers.attach import attach_server
from specreg.servers.gpu_lease import GpuClaim, lease_gpus
from specreg.servers.memory import fit_together, gpu_memory
from specreg.servers.provision import Provision
from specreg.servers.server import POLL_S, Server, StartedServer, ready_server
from specreg.servers.toolkit import toolkit_variables
from specreg.telemetry.identity import find_gpus

_PORTS = 3
_NONCE_DIGITS = 8
_SOCKET_FOLDER_BYTES = 64
"""How long its folder may be: a Unix socket's path may have 107, vLLM's names take 37 and more."""

Poll = Callable[[], Server | None]
"""Gives a server once it has generated a token, and None before; raises why it never will."""


def free_port() -> int:
    """A port of this machine alone that was free a moment ago; closed before it is bound."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def numbered(path: Path, number: int) -> Path:
    """A path beside another one, of the same thing: `server~2.log` beside `server.log`.

    No name has a tilde, so it isn't the log of another server, `tiny-2` beside `tiny` for instance.
    """
    return path.with_name(f"{path.stem}~{number}{path.suffix}")


@dataclass(slots=True, kw_only=True)
class ServerStart:
    """The start of a server; where another program takes its port meanwhile, on another port.

    Attributes:
        ready_within_s: how long it may take to the first token.
        log_path: where its output goes; what stands there stays, and it goes beside it.
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
        """Start it, and wait for its first token. Errors as of `begin` and `poll`."""
        with self.begin():
            yield self.ready()

    def ready(self) -> StartedServer:
        """Wait for the first token of what was begun. Errors as of `poll`."""
        while (server := self.poll()) is None:
            time.sleep(POLL_S)
        return server

    @contextlib.contextmanager
    def begin(self) -> Iterator[Self]:
        """Start its processes, and don't wait; every one of them is gone after the context.

        Raises:
            SpecregError: its environment, its GPUs or its models can't be had, or it can't be
                started; at the end, it can't be killed or its GPUs' memory isn't given back.
        """
        spec, provision = self.spec, self.provision
        self._python, self._has = provision.environment(spec)
        gpus = provision.devices(spec) if provision.on_gpu else ()
        with (
            lease_gpus(gpus, waits=provision.waits, tell=provision.tell),
            tempfile.TemporaryDirectory(prefix="specreg-", ignore_cleanup_errors=True) as folder,
            self._processes,
        ):
            widen_models(self.root, spec, show=provision.show)
            self._temporary = Path(folder)
            provision.show(f"starting {spec.id}")
            self._begin()
            yield self

    def poll(self) -> StartedServer | None:
        """The server once it has generated a token, None before; or a ServerStartError."""
        try:
            return ready_server(self._server, self._deadline_s)
        except PortInUseError:
            if self._attempts == _PORTS:
                raise
        self._processes.close()
        self._begin()
        return None

    def _begin(self) -> None:
        self._attempts += 1
        spec, on_gpu, port = self.spec, self.provision.on_gpu, self.choose_port()
        engine = engine_named(spec.engine)
        target, draft = served_models(self.root, spec)
        options = LaunchOptions(
            **taken(LaunchSettings, spec),
            target=target,
            # A unique name: a request that reaches another server fails there.
            served_name=f"{spec.id}-{uuid.uuid4().hex[:_NONCE_DIGITS]}",
            port=port,
            speculation=engine.spelling_of(spec.method).render(draft, spec.draft_tokens, spec.tree),
            offline=all(Path(model).is_dir() for model in (target, draft) if model),
            on_gpu=on_gpu,
            folder=self._temporary / f"files-{port}",
            version=self._has.version,
            memory=gpu_memory(spec, find_gpus().memory_gib) if on_gpu else None,
        )
        log_path, further = self.log_path, itertools.count(2)
        while log_path.exists():  # an earlier attempt's log is kept
            log_path = numbered(self.log_path, next(further))
        self._deadline_s = time.monotonic() + self.ready_within_s
        self._server = StartedServer(
            spec=spec,
            engine=engine,
            base_url=f"http://127.0.0.1:{port}",
            model=options.served_name,
            target=target,
            draft=draft,
            engine_version="",
            process=self._start(engine, options, log_path),
        )

    def _start(self, engine: Engine, options: LaunchOptions, log_path: Path) -> SupervisedProcess:
        # As if its environment were active: SGLang calls ninja.
        path = os.pathsep.join((str(Path(self._python).parent), os.environ.get("PATH", "")))
        needed, own = engine.environment(options), dict(self.spec.engine_env)
        modules = [one["PYTHONPATH"] for one in (needed, own) if "PYTHONPATH" in one]
        # A killed server leaves sockets in its temporary folder, so it has one that is removed.
        # What PyTorch compiles would lie there too; that stays, for the next start.
        compiled = os.environ.get("TORCHINDUCTOR_CACHE_DIR", str(cache_dir() / "torchinductor"))
        folders = {"TMPDIR": str(self._temporary), "TORCHINDUCTOR_CACHE_DIR": compiled}
        variables = {
            **os.environ,
            **(folders if len(os.fsencode(self._temporary)) <= _SOCKET_FOLDER_BYTES else {}),
            **({"PATH": path} if self._python else {}),
            **needed,
            **own,
            **({"PYTHONPATH": os.pathsep.join(modules)} if modules else {}),
        }
        try:
            if engine.compiles and self.provision.on_gpu:
                variables |= toolkit_variables(Path(self._python), variables)
            log_path.parent.mkdir(parents=True, exist_ok=True)
            for name, text in engine.files(options).items():
                written = options.folder / name
                written.parent.mkdir(parents=True, exist_ok=True)
                written.write_text(text)
                # Beside its log, without secrets, for people.
                replace_file(log_path.with_suffix("") / name, hide(text).encode())
            process = start_process(
                engine.command(Path(self._python), options),
                environment=variables,
                log_path=log_path,
                cwd=self.root,
                temporary=[self._temporary],
            )
        except OSError as error:
            what = f"can't be started, {error.strerror}: '{error.filename}'"
            advice = "make room there, mend its rights, or delete the engine's folder in the cache"
            raise ServerStartError(
                f"SERVER_NOT_STARTED: server '{self.spec.id}'", what, advice, log_path, ""
            ) from error
        self._processes.callback(stop_process, process)
        return process


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The start of a server, by number from 1; `only_for` one case's id, empty for all."""

    spec: ServerSpec
    number: int
    only_for: str = ""

    @property
    def id(self) -> str:
        """`vllm-eagle3-tiny`, or the case that it is for; from the second on with `-launch2`."""
        return (self.only_for or self.spec.id) + self.suffix

    def case_id(self, case: Case) -> str:
        """The id of a case on this launch, from the second on with `-launch2`."""
        return case.id + self.suffix

    @property
    def suffix(self) -> str:
        """The suffix of names from the second launch on."""
        return f"-launch{self.number}" if self.number > 1 else ""


@dataclass(slots=True, kw_only=True, eq=False)
class Starting:
    """A server that starts when it is first asked for; one that failed to isn't tried again.

    Attributes:
        start: starts it and doesn't wait; it ends with the context.
        warm_for: the datasets and loads it was measured under, which need no warm-up again.
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
        """The running server; started and waited for where it doesn't run. Errors as of `poll`."""
        while (server := self.poll()) is None:
            time.sleep(POLL_S)
        return server

    def poll(self) -> Server | None:
        """The server once it is ready, None before; SpecregError, now and later, if it failed."""
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
        """Whether it is ready."""
        return self._server is not None

    @property
    def is_up(self) -> bool:
        """Whether it was started and not stopped."""
        return self._poll is not None

    def stop_if_dead(self) -> None:
        """Stop what is left of it if it went away, so that the next one starts afresh."""
        try:
            if self._server is not None:
                self._server.check_alive()
        except ServerDiedError:
            self.stop()

    def stop(self) -> None:
        """Stop it, if it runs or starts; MemoryHeldError if its GPU hasn't got its memory back."""
        self._server = self._poll = None
        self.warm_for.clear()
        self._running.close()


def launches_of(case: Case, number: int) -> tuple[Launch, Launch]:
    """The launches of a case's control and of its server, of a number from 1."""
    only_for = case.id if case.needs_fresh_server else ""
    server = Launch(spec=case.server, number=number, only_for=only_for)
    return Launch(spec=case.control, number=number) if case.control else server, server


@dataclass(slots=True, kw_only=True, eq=False)
class Servers:
    """The servers of a run.

    Attributes:
        claim: of the GPUs, where other processes of the run measure beside this one; None where
            all are its own.
    """

    root: Path
    provision: Provision
    ready_within_s: float
    logs: Path
    claim: GpuClaim | None = None
    timeline: Timeline = field(default_factory=Timeline)
    _startings: dict[Launch, Starting] = field(default_factory=dict)

    @contextlib.contextmanager
    def start(self, launch: Launch, beside: Starting | None = None) -> Iterator[Starting]:
        """The server of a launch while the context lasts; `beside` where that is the same."""
        if beside is not None and beside.launch == launch:
            yield beside
            return
        starting = self._starting(launch)
        try:
            yield starting
        finally:
            self._stop(starting)
            del self._startings[launch]

    def _starting(self, launch: Launch) -> Starting:
        """Return the one of a launch, which is kept until its context ends."""
        new = Starting(launch=launch, start=lambda: self._server(launch))
        return self._startings.setdefault(launch, new)

    def start_all(self, startings: Sequence[Starting], ahead: Launch | None = None) -> None:
        """Start servers, at once where memory allows, and return when all are ready.

        Without a GPU one more starts with them, `ahead` of being asked for.

        Raises:
            SpecregError: one of the others didn't start; all others go on, until they are asked for
                or their contexts end.
        """
        idle = [one for one in startings if not one.running]
        up = [one for one in self._startings.values() if one.is_up]
        if idle and self.claim is not None and not up:
            gpus = max(one.launch.spec.parallel.gpus for one in idle)
            self.claim.take(gpus if self.provision.on_gpu else 0, self.provision.tell)
        gpus_gib: tuple[float | None, ...] = ()
        if self.provision.on_gpu:
            gpus_gib = find_gpus().memory_gib or (None,)
        # Before the others: their time would pass while its environment is installed.
        waiting = [*([self._starting(ahead)] if ahead and not self.provision.on_gpu else []), *idle]
        starts = self.provision.url is None and len(waiting) > 1
        if starts and fit_together([one.launch.spec for one in waiting], gpus_gib):
            for one in idle:  # all that takes the machine is done before the first of them starts
                self._install(one.launch.spec)
                widen_models(self.root, one.launch.spec, show=self.provision.show)

            def waits(one: Starting) -> bool:
                try:
                    return one.poll() is None
                except SpecregError:
                    if one in idle:
                        raise
                    return False

            while waiting := [one for one in waiting if waits(one)]:
                time.sleep(POLL_S)
        for one in idle:
            _ = one.server

    def _install(self, spec: ServerSpec) -> None:
        """Make the environment of a server's engine where it isn't there yet."""
        with self.timeline.during(Phase.INSTALLING, of=spec.engine):
            self.provision.environment(spec)

    def stop(self) -> None:
        """Stop all servers, the last first; one that can't be stopped keeps no other up."""
        with contextlib.ExitStack() as stack:
            for starting in self._startings.values():
                stack.callback(self._stop, starting)

    def _stop(self, starting: Starting) -> None:
        stopping = self.timeline.during(Phase.STOPPING, of=starting.launch.id)
        with stopping if starting.running else contextlib.nullcontext():
            starting.stop()
        if self.claim is not None and not any(one.is_up for one in self._startings.values()):
            self.claim.give_back()

    @contextlib.contextmanager
    def _server(self, launch: Launch) -> Iterator[Poll]:
        spec, provision = launch.spec, self.provision
        if provision.url is not None:
            attached = attach_server(
                spec, provision.url, root=self.root, ready_within_s=self.ready_within_s
            )
            yield lambda: attached
            return
        self._install(spec)
        start = ServerStart(
            spec=spec,
            provision=provision,
            root=self.root,
            ready_within_s=self.ready_within_s,
            log_path=self.logs / f"{launch.id}.log",
        )
        with start.begin():
            yield start.poll


def log_paths(logs: Path, launch: Launch) -> Sequence[Path]:
    """Return the logs of a launch in a folder, also those of further attempts and processes."""
    name = re.compile(rf"{re.escape(launch.id)}(~\d+)?(~shard\d+)?\.log")
    if not logs.is_dir():
        return []
    paths = [path for path in logs.iterdir() if name.fullmatch(path.name) and path.is_file()]
    return sorted(paths, key=lambda path: path.stem)
