"""Start a server, and end every process of it; nothing is left of it afterwards."""

import contextlib
import dataclasses
import itertools
import os
import socket
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from specreg.core.errors import ServerStartError
from specreg.core.files import cache_dir, replace_file
from specreg.core.processes import SupervisedProcess, note_shared, start_process, stop_process
from specreg.core.redaction import hide
from specreg.engines.engine import LaunchOptions
from specreg.engines.registry import engine_named
from specreg.engines.settings import LaunchSettings, taken
from specreg.matrix.case import ServerSpec
from specreg.matrix.widening import served_models, widen_models
from specreg.servers.environments import EngineEnvironment
from specreg.servers.memory import gpu_memory
from specreg.servers.readiness import POLL_S, PORT_IN_USE, is_ready, scrape_version
from specreg.servers.server import StartedServer
from specreg.telemetry.identity import find_gpus

_PORTS = 3
_NONCE_DIGITS = 8
_SOCKET_FOLDER_BYTES = 64
"""Of 107 that the path of a Unix socket may have; vLLM's names take 37 and more."""


def free_port() -> int:
    """A port of this machine alone that was free a moment ago; closed before it is bound."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def start_server(  # noqa: PLR0913 - by name, the most of them facts of the run
    spec: ServerSpec,
    environment: EngineEnvironment,
    *,
    root: Path,
    on_gpu: bool,
    ready_within_s: float,
    show: Callable[[str], None],
    log_path: Path | None = None,
    choose_port: Callable[[], int] | None = None,
) -> Iterator[StartedServer]:
    """Start a server, and wait until it has generated a token; all of it ends with the context.

    Args and errors: see `ServerStart`.
    """
    start = ServerStart(
        spec=spec,
        environment=environment,
        root=root,
        on_gpu=on_gpu,
        ready_within_s=ready_within_s,
        show=show,
        log_path=log_path,
        choose_port=choose_port or free_port,
    )
    with start.begin():
        while (server := start.poll()) is None:
            time.sleep(POLL_S)
        yield server


@dataclass(slots=True, kw_only=True)
class ServerStart:
    """The start of a server; where another program takes its port meanwhile, on another port.

    Attributes:
        root: the repository's root, for relative model folders.
        ready_within_s: how long it may take to the first token.
        show: is told what goes on.
        log_path: where its output goes; what stands there stays, and it goes beside it. None for
            a place that goes when the server does.
    """

    spec: ServerSpec
    environment: EngineEnvironment
    root: Path
    on_gpu: bool
    ready_within_s: float
    show: Callable[[str], None]
    log_path: Path | None = None
    choose_port: Callable[[], int] = free_port
    _temporary: Path = field(init=False)
    _processes: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _attempts: int = 0
    _deadline_s: float = field(init=False)
    _server: StartedServer = field(init=False)

    @contextlib.contextmanager
    def begin(self) -> Iterator[None]:
        """Start its processes, and don't wait; every one of them is gone after the context.

        Raises:
            ModelError: a model folder is missing.
            ServerStartError: it can't be started.
        """
        widen_models(self.root, self.spec, show=self.show)
        with (
            tempfile.TemporaryDirectory(prefix="specreg-", ignore_cleanup_errors=True) as folder,
            self._processes,
        ):
            self._temporary = Path(folder)
            self.show(f"starting {self.spec.id}")
            self._begin()
            yield

    def poll(self) -> StartedServer | None:
        """The server once it has generated a token, None before.

        Raises:
            ServerStartError: it ended, or generated nothing in time.
        """
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
        note_shared(server.process)
        return dataclasses.replace(server, engine_version=scrape_version(server))

    def _begin(self) -> None:
        self._attempts += 1
        target, draft = served_models(self.root, self.spec)
        options = self._options(target, draft)
        # What an earlier attempt said is kept: where its log lies the next is a number further.
        first = self.log_path or self._temporary / "server.log"
        others = (first.with_stem(f"{first.stem}-{number}") for number in itertools.count(2))
        log_path = next(one for one in itertools.chain([first], others) if not one.exists())
        self._deadline_s = time.monotonic() + self.ready_within_s
        self._server = StartedServer(
            spec=self.spec,
            engine=engine_named(self.spec.engine),
            base_url=f"http://127.0.0.1:{options.port}",
            model=options.served_name,
            target=target,
            draft=draft,
            engine_version="",
            process=self._start(options, log_path),
            log_path=log_path,
        )

    def _options(self, target: str, draft: str | None) -> LaunchOptions:
        spec, version, port = self.spec, self.environment.version, self.choose_port()
        spelling = engine_named(spec.engine).spelling_of(spec.method)
        gpus_gib = find_gpus().memory_gib if self.on_gpu else ()
        return LaunchOptions(
            **taken(LaunchSettings, spec),
            target=target,
            # No other is called so: a request that reaches another server fails there.
            served_name=f"{spec.id}-{uuid.uuid4().hex[:_NONCE_DIGITS]}",
            port=port,
            speculation=spelling.render(draft, spec.draft_tokens, spec.tree),
            offline=all(Path(model).is_dir() for model in (target, draft) if model),
            on_gpu=self.on_gpu,
            folder=self._temporary / f"files-{port}",
            version=version,
            memory=gpu_memory(self.root, spec, gpus_gib) if self.on_gpu else None,
        )

    def _start(self, options: LaunchOptions, log_path: Path) -> SupervisedProcess:
        engine, python = engine_named(self.spec.engine), self.environment.python
        # As if its environment were active: SGLang calls ninja.
        path = os.pathsep.join((str(Path(python).parent), os.environ.get("PATH", "")))
        variables = {
            **os.environ,
            **_own_temporary(self._temporary),
            **({"PATH": path} if python else {}),
            **engine.environment(options),
            **dict(self.spec.engine_env),
        }
        why, advice = "its files can't be written", "make room or mend its rights"
        try:
            log_path.parent.mkdir(parents=True, exist_ok=True)
            for name, text in engine.files(options).items():
                written = options.folder / name
                written.parent.mkdir(parents=True, exist_ok=True)
                written.write_text(text)
                # Beside its log, without secrets, for people.
                replace_file(log_path.with_suffix("") / name, hide(text).encode())
            why = "can't be run"
            advice = "check the interpreter, or delete the engine's folder in the cache"
            process = start_process(
                engine.command(Path(python), options),
                environment=variables,
                log_path=log_path,
                cwd=self.root,
                temporary=[self._temporary],
            )
        except OSError as error:
            what = f"{why}, {error.strerror}: '{error.filename}'"
            raise ServerStartError(
                f"server '{self.spec.id}'", what, advice, log_path, ""
            ) from error
        self._processes.callback(stop_process, process)
        return process


def _own_temporary(folder: Path) -> Mapping[str, str]:
    """A server that is killed leaves sockets in its folder for temporary files: one that goes.

    What PyTorch compiles would lie there too; that stays, for the next start.
    """
    if len(os.fsencode(folder)) > _SOCKET_FOLDER_BYTES:
        return {}
    compiled = os.environ.get("TORCHINDUCTOR_CACHE_DIR", str(cache_dir() / "torchinductor"))
    return {"TMPDIR": str(folder), "TORCHINDUCTOR_CACHE_DIR": compiled}
