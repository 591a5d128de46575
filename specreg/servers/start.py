"""Start a server, and end every process of it; nothing is left of it afterwards."""

import contextlib
import dataclasses
import itertools
import os
import socket
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from specreg.core.errors import ServerStartError
from specreg.core.files import cache_dir, replace_file
from specreg.core.processes import SupervisedProcess, settle_log, start_process, stop_process
from specreg.core.redaction import hide
from specreg.engines.engine import Engine, LaunchOptions, LaunchSettings, Requirement, taken
from specreg.engines.registry import engine_named
from specreg.matrix.case import ServerSpec
from specreg.matrix.models import served_models, widen_models
from specreg.servers.gpu_lease import lease_gpus
from specreg.servers.memory import gpu_memory
from specreg.servers.provision import Provision
from specreg.servers.server import POLL_S, PORT_IN_USE, StartedServer, is_ready, scrape_version
from specreg.telemetry.identity import find_gpus

_PORTS = 3
_NONCE_DIGITS = 8
_SOCKET_FOLDER_BYTES = 64
"""How long its folder may be: a Unix socket's path may have 107, vLLM's names take 37 and more."""


def free_port() -> int:
    """A port of this machine alone that was free a moment ago; closed before it is bound."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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

        SpecregError where its environment, its GPUs or its models can't be had, or it not started.
        """
        spec, provision = self.spec, self.provision
        self._python, self._has = provision.environment(spec)
        gpus = spec.parallel.gpus if provision.on_gpu else 0
        variables = {**os.environ, **dict(spec.engine_env)}
        with (
            lease_gpus(gpus, variables, waits=provision.waits, tell=provision.tell),
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
        server = self._server
        try:
            if not is_ready(server, self._deadline_s):
                return None
        except ServerStartError as error:
            if self._attempts == _PORTS or not error.failure.endswith(PORT_IN_USE):
                raise
            self._processes.close()
            self._begin()
            return None
        settle_log(server.process)
        return dataclasses.replace(server, engine_version=scrape_version(server))

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
            log_path = self.log_path.with_stem(f"{self.log_path.stem}-{next(further)}")
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
