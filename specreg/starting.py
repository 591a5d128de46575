"""Starting: a spec in, a server that has generated a token out; it leaves nothing behind."""

import contextlib
import dataclasses
import itertools
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from specreg.engines import engine_named
from specreg.engines._engine import LaunchOptions
from specreg.environments import EngineEnvironment
from specreg.errors import ServerStartError
from specreg.files import replace_file
from specreg.matrix import ServerSpec
from specreg.methods import METHODS
from specreg.model_code import check_model_code
from specreg.paths import cache_dir
from specreg.processes import MarkedProcess, note_shared, start_marked, stop_marked
from specreg.readiness import check_age, scrape_version, wait_until_ready
from specreg.redaction import hide
from specreg.server import StartedServer
from specreg.spanning import HERE_ALONE, Nodes, RunningPart, Surroundings, running_parts
from specreg.spanning import free_port as free_port_of
from specreg.start_failures import PORT_IN_USE
from specreg.widening import served_models, widen_models

_PORTS = 3
_NONCE_DIGITS = 8
_SOCKET_FOLDER_BYTES = 64
"""Of 107 that the path of a Unix socket may have; vLLM's names take 37 and more."""


@contextlib.contextmanager
def start_server(  # noqa: PLR0913 - by name, the most of them facts of the run
    spec: ServerSpec,
    environment: EngineEnvironment,
    *,
    root: Path,
    log_path: Path | None = None,
    on_gpu: bool,
    ready_within_s: float,
    show: Callable[[str], None],
    choose_port: Callable[[], int] | None = None,
    nodes: Nodes = HERE_ALONE,
) -> Iterator[StartedServer]:
    """A server for as long as the context lasts; every process of it is gone afterwards.

    One whose port another program takes meanwhile is started again, on another port.

    Args:
        spec: what to start.
        environment: the engine's environment.
        root: the repository's root, for relative model folders.
        log_path: where the server's output goes; what stands there stays, and it goes beside
            it. None for a place that goes when the server does.
        on_gpu: whether the engine runs on a GPU.
        ready_within_s: how long it may take to the first token.
        show: is told what goes on.
        choose_port: the port to listen on; None for one that is free.
        nodes: of a server that spans several.

    Raises:
        ModelError: a model folder is missing, or brings code that the case doesn't trust.
        ServerStartError: the server ended, or generated nothing in time.
    """
    check_model_code(root, spec)
    target, draft = served_models(root, spec)
    widen_models(root, spec, show=show)
    start = _Start(
        spec=spec,
        environment=environment,
        root=root,
        log_path=log_path,
        on_gpu=on_gpu,
        ready_within_s=ready_within_s,
        target=target,
        draft=draft,
        nodes=nodes,
    )
    with (
        tempfile.TemporaryDirectory(prefix="specreg-", ignore_cleanup_errors=True) as folder,
        contextlib.ExitStack() as stack,
    ):
        show(f"starting {spec.id}")
        yield start.run(Path(folder), choose_port or free_port, stack)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """What a server is started from; see `start_server`."""

    spec: ServerSpec
    environment: EngineEnvironment
    root: Path
    log_path: Path | None
    on_gpu: bool
    ready_within_s: float
    target: str
    draft: str | None
    nodes: Nodes

    def run(
        self, temporary: Path, choose_port: Callable[[], int], stack: contextlib.ExitStack
    ) -> StartedServer:
        """A server that has generated a token, on the first port that is its own.

        It is gone once the stack is closed; at once where it didn't start.
        """
        for _ in range(_PORTS - 1):
            try:
                return self._run(temporary, choose_port(), stack)
            except ServerStartError as error:
                if not error.failure.endswith(PORT_IN_USE):
                    raise
        return self._run(temporary, choose_port(), stack)

    def _run(self, temporary: Path, port: int, stack: contextlib.ExitStack) -> StartedServer:
        """The same on a port."""
        log_path = _unused(self.log_path or temporary / "server.log")
        private = temporary / "private"
        private.mkdir(exist_ok=True, mode=0o700)
        options = self._options(private, port, temporary / f"files-{port}")
        started = time.monotonic()
        with contextlib.ExitStack() as attempt:
            parts, process = self._start(options, log_path, temporary, attempt)
            for part in parts:
                part.takes_along(process)
            starting = StartedServer(
                spec=self.spec,
                engine=engine_named(self.spec.engine),
                base_url=f"http://127.0.0.1:{options.port}",
                model=options.served_name,
                target=self.target,
                draft=self.draft,
                engine_version="",
                process=process,
                log_path=log_path,
                private=private,
                parts=parts,
            )
            wait_until_ready(starting, started + self.ready_within_s)
            running = dataclasses.replace(starting, engine_version=scrape_version(starting))
            check_age(running)
            note_shared(process)
            stack.enter_context(attempt.pop_all())
        return running

    def _options(self, private: Path, port: int, folder: Path) -> LaunchOptions:
        spec, version = self.spec, self.environment.version
        engine = engine_named(spec.engine)
        return LaunchOptions(
            target=self.target,
            # Nobody else's is called so: a request that reaches another server fails there.
            served_name=f"{spec.id}-{uuid.uuid4().hex[:_NONCE_DIGITS]}",
            port=port,
            speculation=METHODS[spec.method].settings(
                engine.spelling, self.draft, spec.draft_tokens, spec.tree, version=version
            ),
            dtype=spec.dtype,
            max_model_len_tokens=spec.max_model_len_tokens,
            max_sequences=spec.max_sequences,
            gpu_memory_frac=spec.gpu_memory_frac,
            parallel=spec.parallel,
            engine_args=spec.engine_args,
            offline=all(Path(model).is_dir() for model in (self.target, self.draft) if model),
            on_gpu=self.on_gpu,
            folder=folder,
            private=private,
            version=version,
            trust_remote_code=spec.trust_remote_code,
            meeting=self.nodes.meeting() if spec.parallel.nodes > 1 else None,
        )

    def _start(
        self,
        options: LaunchOptions,
        log_path: Path,
        temporary: Path,
        attempt: contextlib.ExitStack,
    ) -> tuple[tuple[RunningPart, ...], MarkedProcess]:
        """Its parts, if it has any, and the process that answers; they end with the stack."""
        engine, python = engine_named(self.spec.engine), self.environment.python
        command = engine.command(Path(python), options)
        folder = str(Path(python).parent) if python else ""
        path = os.pathsep.join((folder, os.environ.get("PATH", "")))
        # As if its environment were active: SGLang calls ninja.
        own = {**_own_temporary(temporary), **({"PATH": path} if python else {})}
        case = dict(self.spec.engine_env)
        variables = {**os.environ, **own, **engine.environment(options), **case}
        # Parts are told on their command lines where they meet.
        theirs = {**engine.environment(dataclasses.replace(options, meeting=None)), **case}
        around = Surroundings(
            nodes=self.nodes,
            meeting=options.meeting,
            here={**os.environ, **own, **theirs},
            there=theirs,
            path=folder,
            folder=self.root,
            log_path=log_path,
        )
        subject = f"server '{self.spec.id}'"
        try:
            log_path.parent.mkdir(parents=True, exist_ok=True)
            _write_files(options.folder, log_path.with_suffix(""), engine.files(options))
        except OSError as error:
            what = f"its files can't be written, {error.strerror}: '{error.filename}'"
            advice = "make room or mend its rights"
            raise ServerStartError(subject, what, advice, log_path, "") from error
        try:
            parts = engine.parts(Path(python), options)
            running = attempt.enter_context(running_parts(parts, around))
            process = start_marked(
                command,
                environment=variables,
                log_path=log_path,
                cwd=self.root,
                temporary=[temporary],
            )
        except OSError as error:
            what = f"can't be run, {error.strerror}: '{error.filename}'"
            advice = "check the interpreter, or delete the engine's folder in the cache"
            raise ServerStartError(subject, what, advice, log_path, "") from error
        attempt.callback(stop_marked, process)
        return running, process


def _own_temporary(folder: Path) -> Mapping[str, str]:
    """A server that is killed leaves sockets in its folder for temporary files: one that goes.

    What PyTorch compiles would lie there too; that stays, for the next start.
    """
    if len(os.fsencode(folder)) > _SOCKET_FOLDER_BYTES:
        return {}
    compiled = os.environ.get("TORCHINDUCTOR_CACHE_DIR", str(cache_dir() / "torchinductor"))
    return {"TMPDIR": str(folder), "TORCHINDUCTOR_CACHE_DIR": compiled}


def _unused(path: Path) -> Path:
    """The path, or one beside it that nobody has written: what an earlier attempt said is kept."""
    others = (path.with_stem(f"{path.stem}-{number}") for number in itertools.count(2))
    return next(one for one in itertools.chain([path], others) if not one.exists())


def _write_files(folder: Path, shown: Path, files: Mapping[str, str]) -> None:
    """What an engine reads when it starts, secrets and all, and beside its log what people may."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        replace_file(shown / name, hide(text).encode())


def free_port() -> int:
    """A port of this machine alone that was free a moment ago."""
    return free_port_of("127.0.0.1")
