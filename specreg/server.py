"""Servers: a spec in, a server that has generated a token out; nothing is left of it afterwards."""

import contextlib
import dataclasses
import itertools
import os
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec

from specreg.acceptance.record import StepCounts
from specreg.engines import Engine, engine_named
from specreg.engines._engine import LaunchOptions
from specreg.environments import EngineEnvironment
from specreg.errors import (
    InvalidMeasurementError,
    ServerDiedError,
    ServerRefusedError,
    ServerStartError,
)
from specreg.matrix import ServerSpec
from specreg.methods import METHODS, is_older
from specreg.models import resolve_model
from specreg.processes import MarkedProcess, process_ids, start_marked, stop_marked
from specreg.protocols import Ask, Endpoint, Form, Message, Role
from specreg.sse import DONE, splitter_for

_POLL_S = 0.2
_DYING_S = 1.0
_ANSWER_BYTES = 300
_PROBE_TIMEOUT_S = 60.0
_LOG_LINES = 40
_LOG_BYTES = 64 * 1024
_JSON = {"Content-Type": "application/json"}

# Kind of failure, how to know it, what to do. The first that matches wins.
_FAILURES = (
    (
        "out of memory",
        r"out of memory|annot allocate|OutOfMemoryError|No available memory",
        "free memory, or lower gpu_memory_frac or max_model_len_tokens in the matrix",
    ),
    (
        "unknown or refused argument",
        r"unrecognized arg|invalid choice|error: arg|(?<!HF)ValidationError|unexpected keyword arg",
        "look at engine_args and the method's settings; another version may spell them otherwise",
    ),
    (
        "port in use",
        r"already in use|Errno 98",
        "run again: another program took the port meanwhile",
    ),
    (
        "its kernels are missing",
        r"No module named 'sgl_kernel'",
        "SGLang's are for GPUs; without one set engine_env as fixtures/matrix/sglang_cpu.toml",
    ),
    (
        "the stand-in for its kernels is of another version",
        r"ImportError: sgl_kernel: the stand-in",
        "leave --specreg-engine-version out, or take the one that the log names",
    ),
    (
        "broken engine environment",
        # SGLang says "Ignore import error" of the models that it does without.
        r"(?m)^(?!.*Ignore import).*(No module named|ModuleNotFound|ImportError|undefined symbol)",
        "delete its folder in the cache (README, 'Where things are'), or mend it if it is your own",
    ),
    (
        "model not found",
        r"not a valid model|does not appear to have|(Repository|Entry)NotFound|Gated|offline mode",
        "check the model's name or folder, and HF_TOKEN where it is gated",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running server that has generated a token.

    Attributes:
        spec: what was asked for; `engine`: how to speak to it.
        base_url: `http://127.0.0.1:PORT`.
        model: the name that the model is served under; ours alone if we started it.
        target, draft: what the spec's references stood for: folders or hub ids.
        engine_version: by its own word.
    """

    spec: ServerSpec
    engine: Engine
    base_url: str
    model: str
    target: str
    draft: str | None
    engine_version: str

    @property
    def endpoint(self) -> Endpoint:
        """Whom to ask."""
        return Endpoint(
            base_url=self.base_url, model=self.model, protocol=self.engine.protocol.name
        )

    @property
    def exports(self) -> bool:
        """Whether it tells in a file of ours what its answers don't."""
        return False

    def exported(self) -> Mapping[str, StepCounts]:
        """What it told there so far of requests, by their ids."""
        return {}

    def pids(self) -> frozenset[int]:
        """Its processes, as far as they are ours."""
        return frozenset()

    def check_alive(self) -> None:
        """Silent while the server answers.

        Raises:
            ServerDiedError: it doesn't any more.
        """
        try:
            httpx.get(self.base_url + self.engine.health_path, trust_env=False)
        except httpx.HTTPError as error:
            message = f"server at {self.base_url}: answers no more, {error}; look at its log"
            raise ServerDiedError(message) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedServer(Server):
    """One of our own.

    Attributes:
        process, log_path: what runs, and what it says.
        private: the folder of what it writes of prompts.
    """

    process: MarkedProcess
    log_path: Path
    private: Path

    @property
    def exports(self) -> bool:
        """By its version."""
        return self.engine.protocol.exports(self.engine_version)

    def exported(self) -> Mapping[str, StepCounts]:
        """From all that lies there.

        Raises:
            InvalidMeasurementError: `COUNTS_DISAGREE`.
        """
        texts = [path.read_bytes() for path in sorted(self.private.iterdir())]
        lines = (line for text in texts for line in text.splitlines())
        return self.engine.protocol.parse_export(lines)

    def pids(self) -> frozenset[int]:
        """Its processes."""
        return process_ids(self.process)

    def check_alive(self) -> None:
        """Silent while the server runs.

        Raises:
            ServerDiedError: it ended; the message has the end of its log.
        """
        # Its connections close a moment before it can be waited for.
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = self.process.popen.wait(timeout=_DYING_S)
            message = (
                f"server '{self.spec.id}': ended with status {status} while it was measured;"
                f" last lines of {self.log_path}:\n{log_tail(self.log_path)}"
            )
            raise ServerDiedError(message)


@contextlib.contextmanager
def start_server(
    spec: ServerSpec,
    environment: EngineEnvironment,
    *,
    root: Path,
    log_path: Path,
    on_gpu: bool,
    ready_within_s: float,
    show: Callable[[str], None],
) -> Iterator[StartedServer]:
    """A server for as long as the context lasts; every process of it is gone afterwards.

    Args:
        spec: what to start.
        environment: the engine's environment.
        root: the repository's root, for relative model folders.
        log_path: where the server's output goes.
        on_gpu: whether the engine runs on a GPU.
        ready_within_s: how long it may take to the first token.
        show: is told what goes on.

    Raises:
        ModelError: a model folder is missing.
        ServerStartError: the server ended, or generated nothing in time.
    """
    engine = engine_named(spec.engine)
    target = resolve_model(root, spec.target, padding_layers=spec.padding_layers)
    draft = resolve_model(root, spec.draft) if spec.draft is not None else None
    with tempfile.TemporaryDirectory(prefix="specreg-", ignore_cleanup_errors=True) as private:
        options = LaunchOptions(
            target=target,
            served_name=spec.id,
            port=free_port(),
            speculation=METHODS[spec.method].settings(
                engine.spelling,
                draft,
                spec.draft_tokens,
                spec.tree,
                version=environment.version,
            ),
            dtype=spec.dtype,
            max_model_len_tokens=spec.max_model_len_tokens,
            max_sequences=spec.max_sequences,
            gpu_memory_frac=spec.gpu_memory_frac,
            parallel=spec.parallel,
            engine_args=spec.engine_args,
            offline=all(Path(model).is_dir() for model in (target, draft) if model is not None),
            on_gpu=on_gpu,
            folder=log_path.with_suffix(""),
            private=Path(private),
            version=environment.version,
        )
        command = engine.command(Path(environment.python), options)
        path = os.pathsep.join((str(Path(environment.python).parent), os.environ.get("PATH", "")))
        # As if its environment were active: SGLang calls ninja.
        own = {"PATH": path} if environment.python else {}
        variables = {**os.environ, **own, **engine.environment(options), **dict(spec.engine_env)}
        log_path.parent.mkdir(parents=True, exist_ok=True)
        _write_files(options.folder, engine.files(options))
        started = time.monotonic()
        try:
            process = start_marked(command, environment=variables, log_path=log_path, cwd=root)
        except OSError as error:
            what = f"can't be run, {error.strerror}: '{command[0]}'"
            advice = "check the interpreter, or delete the engine's folder in the cache"
            raise ServerStartError(f"server '{spec.id}'", what, advice, log_path, "") from error
        try:
            starting = StartedServer(
                spec=spec,
                engine=engine,
                base_url=f"http://127.0.0.1:{options.port}",
                model=options.served_name,
                target=target,
                draft=draft,
                engine_version="",
                process=process,
                log_path=log_path,
                private=Path(private),
            )
            show(f"starting {spec.id}")
            _wait_until_ready(starting, started + ready_within_s)
            running = dataclasses.replace(starting, engine_version=_scrape_version(starting))
            _check_age(running)
            yield running
        finally:
            stop_marked(process)


def _write_files(folder: Path, files: Mapping[str, str]) -> None:
    """What an engine reads when it starts; an earlier attempt's is replaced."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def log_tail(path: Path, lines: int = _LOG_LINES) -> str:
    """The last lines of a log, however long it is and whatever bytes it holds."""
    with path.open("rb") as log:
        log.seek(max(0, path.stat().st_size - _LOG_BYTES))
        return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])


def _wait_until_ready(server: StartedServer, deadline: float) -> None:
    """Returns once one token was generated: a healthy server may still hang (vllm#39863)."""
    with httpx.Client(base_url=server.base_url, trust_env=False) as client:
        while True:
            try:
                ready = generates(server, client, timeout_s=deadline - time.monotonic())
            except ServerRefusedError as error:
                raise _start_error(server, str(error)) from error
            status = server.process.popen.poll()
            if status is not None:  # then whoever generated was another server
                raise _start_error(server, f"ended with status {status}")
            if ready:
                return
            if time.monotonic() > deadline:
                raise _start_error(server, "generated no token in time")
            time.sleep(_POLL_S)


def _check_age(server: StartedServer) -> None:
    """Silent where a server isn't too old; of a program on PATH nobody knew before."""
    if is_older(server.engine_version, server.engine.oldest):
        raise ServerStartError(
            f"server '{server.spec.id}'",
            f"says that it is {server.engine_version}",
            f"take {server.engine.oldest} or newer",
            server.log_path,
            log_tail(server.log_path),
        )


def generates(
    server: Server, client: httpx.Client, *, timeout_s: float, output_cap_tokens: int = 1
) -> bool:
    """Whether a server is up and generates so many tokens, or as many as it wants to.

    Its answer is read to the end: some count a request only then.

    Raises:
        ServerRefusedError: it answers that it won't.
    """
    ask = Ask(
        model=server.model,
        form=Form.COMPLETIONS,
        messages=(Message(Role.USER, "Hello"),),
        output_cap_tokens=output_cap_tokens,
        temperature=0.0,
        # Every model answers so; one that isn't decoupled has no stream.
        stream=not server.engine.protocol.answers_whole,
    )
    protocol = server.engine.protocol
    timeout = min(_PROBE_TIMEOUT_S, max(_POLL_S, timeout_s))
    try:
        if client.get(server.engine.health_path, timeout=1.0).status_code != httpx.codes.OK:
            return False
        path, body = protocol.path(ask), msgspec.json.encode(protocol.body(ask))
        with client.stream("POST", path, content=body, headers=_JSON, timeout=timeout) as response:
            if response.is_client_error:
                answer = response.read()[:_ANSWER_BYTES].decode(errors="replace")
                raise ServerRefusedError(f"refused to generate, {answer}")
            splitter, decoder = splitter_for(stream=ask.stream), protocol.new_decoder(ask)
            events = (event for piece in response.iter_raw() for event in splitter.feed(piece))
            if response.status_code != httpx.codes.OK:
                return False
            said = [event for event in itertools.chain(events, splitter.close()) if event != DONE]
            return any(decoder.parse_event(event).tokens for event in said)
    except (httpx.HTTPError, InvalidMeasurementError):
        return False


def _scrape_version(server: Server) -> str:
    try:
        response = httpx.get(server.base_url + server.engine.version_path, trust_env=False)
    except httpx.HTTPError:
        return "unknown"
    return server.engine.parse_version(response.content)


def _start_error(server: StartedServer, what: str) -> ServerStartError:
    tail = log_tail(server.log_path)
    # The cause may stand far above the traceback of whoever noticed.
    texts = (f"{what}\n{tail}", log_tail(server.log_path, lines=_LOG_BYTES))
    known = (
        (failure, advice)
        for text in texts
        for failure, pattern, advice in _FAILURES
        if re.search(pattern, text)
    )
    # SGLang kills itself so too when a part of it fails.
    killed = ("killed", "free memory if the log says nothing else")
    unknown = killed if "status -9" in what else ("unknown cause", "read the log")
    failure, advice = next(known, unknown)
    return ServerStartError(
        f"server '{server.spec.id}'", f"{what}: {failure}", advice, server.log_path, tail
    )


def free_port() -> int:
    """A port that was free a moment ago. Closed before the server binds it: a small risk."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
