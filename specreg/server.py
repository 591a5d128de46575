"""Servers: a spec in, a server that has generated a token out; nothing is left of it afterwards."""

import contextlib
import dataclasses
import itertools
import os
import re
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec

from specreg.acceptance.record import StepCounts
from specreg.answers import ask
from specreg.engines import Engine, engine_named
from specreg.engines._engine import LaunchOptions
from specreg.environments import EngineEnvironment
from specreg.errors import (
    AnswerError,
    AttachError,
    InvalidMeasurementError,
    ServerDiedError,
    ServerRefusedError,
    ServerStartError,
)
from specreg.files import replace_file
from specreg.logs import log_end, log_tail
from specreg.matrix import ServerSpec
from specreg.methods import METHODS, is_older
from specreg.model_code import check_model_code
from specreg.models import resolve_model
from specreg.paths import cache_dir
from specreg.processes import (
    MarkedProcess,
    note_shared,
    process_ids,
    settle_log,
    start_marked,
    stop_marked,
)
from specreg.protocols import Ask, Endpoint, Form, Message, Protocol, Role
from specreg.redaction import hide
from specreg.spanning import HERE_ALONE, Nodes, RunningPart, Surroundings, running_parts
from specreg.spanning import free_port as free_port_of
from specreg.sse import DONE, splitter_for

_POLL_S = 0.2
_PORTS = 3
_PORT_IN_USE = "port in use"
_NONCE_DIGITS = 8
_SOCKET_FOLDER_BYTES = 64
"""Of 107 that the path of a Unix socket may have; vLLM's names take 37 and more."""
_IDENTITY_TIMEOUT_S, _VERSION_TIMEOUT_S = 1.0, 5.0
_HEALTH_TIMEOUT_S = 1.0
_DYING_S, _ENDING_S = 1.0, 10.0
_ANSWER_BYTES = 300
_PROBE_TIMEOUT_S = 60.0

# Kind of failure, how to know it, what to do. The first that matches wins.
_FAILURES = (
    (
        "out of memory",
        r"out of memory|annot allocate|OutOfMemoryError|No available memory",
        "free memory, or lower gpu_memory_frac or max_model_len_tokens in the matrix",
    ),
    (
        "a model brings code of its own",
        r"the argument `trust_remote_code=True`|requires you to execute the",  # in transformers
        "name another model, or read that code and set trust_remote_code = true in the matrix",
    ),
    (
        "unknown or refused argument",
        r"unrecognized arg|invalid choice|error: arg|(?<!HF)ValidationError|unexpected keyword arg",
        "look at engine_args and the method's settings; another version may spell them otherwise",
    ),
    (
        _PORT_IN_USE,
        r"already in use|Errno 98",
        "run again: another program took its port each time",
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
            ask(self.base_url, "GET", self.engine.health_path, within_s=_ENDING_S)
        except AnswerError as error:
            message = f"server at {self.base_url}: answers no more, {error}; look at its log"
            raise ServerDiedError(message) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedServer(Server):
    """One of our own.

    Attributes:
        process: what runs; log_path: what it says.
        private: the folder of what it writes of prompts.
        parts: what runs beside that process, on this node and others.
    """

    process: MarkedProcess
    log_path: Path
    private: Path
    parts: tuple[RunningPart, ...] = ()

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
        """Its processes on this node."""
        running = (self.process, *(part.process for part in self.parts))
        return frozenset[int]().union(*map(process_ids, running))

    def check_alive(self) -> None:
        """Silent while the server runs.

        Raises:
            ServerDiedError: it ended; the message has the end of its log.
        """
        # Its connections close a moment before it can be waited for.
        status, answer = self._status(_DYING_S), self._broken_answer()
        if status is None and answer:  # vLLM takes seconds to end once its engine has
            self._status(_ENDING_S)
        how = self.ended() or (f"answers {answer}" if answer else "")
        if not how:
            return
        message = (
            f"server '{self.spec.id}': {how} while it was measured;"
            f" last lines of {self.log_path}:\n{self.log_tail()}"
        )
        raise ServerDiedError(message)

    def ended(self) -> str:
        """How it ended, by the part that did and took it along if one did; empty while it runs."""
        ended = next(filter(None, (part.ended() for part in self.parts)), "")
        status = self.process.popen.poll()
        return ended or ("" if status is None else f"ended with status {status}")

    def log_tail(self) -> str:
        """The last lines of all that it has said so far, and each of its parts: one of them knows.

        vLLM ends when a part of it that goes on couldn't do its share.
        """
        settle_log(self.process)
        return "\n".join((log_tail(self.log_path), *(part.log_tail() for part in self.parts)))

    def log_ends(self) -> Iterator[str]:
        """More of the same, to look for a cause in, one by one."""
        for path in (self.log_path, *(part.log_path for part in self.parts)):
            yield log_end(path)

    def _status(self, within_s: float) -> int | None:
        """With which it ends, None where it doesn't in time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.popen.wait(timeout=within_s)
        return None

    def _broken_answer(self) -> str:
        """What it says of its health; empty where it is well, or hangs and says nothing."""
        path = self.engine.health_path
        try:
            answer = ask(self.base_url, "GET", path, within_s=_DYING_S)
        except AnswerError as error:
            return "" if error.late else f"no more, {error}"
        failed = httpx.codes.is_server_error(answer.status)
        return f"{answer.status} at {self.base_url}{path}" if failed else ""


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
    target = resolve_model(root, spec.target, padding_layers=spec.padding_layers)
    draft = resolve_model(root, spec.draft) if spec.draft is not None else None
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
                if not error.failure.endswith(_PORT_IN_USE):
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
            _wait_until_ready(starting, started + self.ready_within_s)
            running = dataclasses.replace(starting, engine_version=_scrape_version(starting))
            _check_age(running)
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


def _wait_until_ready(server: StartedServer, deadline: float) -> None:
    """Returns once one token was generated: a healthy server may still hang (vllm#39863)."""
    while True:
        _check_identity(server)
        try:
            ready = generates(server, timeout_s=deadline - time.monotonic())
        except ServerRefusedError as error:
            raise _start_error(server, str(error)) from error
        if how := server.ended():  # then whoever generated was another server
            raise _start_error(server, how)
        if ready:
            return
        if time.monotonic() > deadline:
            raise _start_error(server, "generated no token in time")
        time.sleep(_POLL_S)


def _check_identity(server: StartedServer) -> None:
    """Silent where nobody answers at its port but itself, as far as its engine says its name."""

    def fetch(method: str, path: str) -> bytes:
        return ask(server.base_url, method, path, within_s=_IDENTITY_TIMEOUT_S).good()

    try:
        found = server.engine.identify(fetch).model
    except (AnswerError, AttachError):
        return
    if server.engine.serves_names and found not in {"", server.model}:
        raise _start_error(server, f"its port is already in use by a server of '{found}'")


def _check_age(server: StartedServer) -> None:
    """Silent where a server isn't too old; of a program on PATH nobody knew before."""
    if is_older(server.engine_version, server.engine.oldest):
        raise ServerStartError(
            f"server '{server.spec.id}'",
            f"says that it is {server.engine_version}",
            f"take {server.engine.oldest} or newer",
            server.log_path,
            server.log_tail(),
        )


def generates(server: Server, *, timeout_s: float, output_cap_tokens: int = 1) -> bool:
    """Whether a server is up and generates so many tokens, or as many as it wants to.

    Its answer is read to the end, which some count a request at, and must be whole in time.

    Raises:
        ServerRefusedError: it answers that it won't.
    """
    probe = Ask(
        model=server.model,
        form=Form.COMPLETIONS,
        messages=(Message(Role.USER, "Hello"),),
        output_cap_tokens=output_cap_tokens,
        temperature=0.0,
        # Every model answers so; one that isn't decoupled has no stream.
        stream=not server.engine.protocol.answers_whole,
    )
    url, protocol = server.base_url, server.engine.protocol
    path, body = protocol.path(probe), msgspec.json.encode(protocol.body(probe))
    within_s = min(_PROBE_TIMEOUT_S, max(_POLL_S, timeout_s))
    try:
        health = ask(url, "GET", server.engine.health_path, within_s=_HEALTH_TIMEOUT_S)
        if health.status != httpx.codes.OK:
            return False
        answer = ask(url, "POST", path, within_s=within_s, body=body)
    except AnswerError:
        return False
    if httpx.codes.is_client_error(answer.status):
        said = answer.content[:_ANSWER_BYTES].decode(errors="replace")
        raise ServerRefusedError(f"refused to generate, {said}")
    return answer.status == httpx.codes.OK and _holds_tokens(protocol, probe, answer.content)


def _holds_tokens(protocol: Protocol, probe: Ask, content: bytes) -> bool:
    """Whether an answer can be read, and something was generated in it."""
    splitter, decoder = splitter_for(stream=probe.stream), protocol.new_decoder(probe)
    try:
        events = [*splitter.feed(content), *splitter.close()]
        said = [decoder.parse_event(event) for event in events if event != DONE]
    except InvalidMeasurementError:
        return False
    return any(event.tokens for event in said)


def _scrape_version(server: Server) -> str:
    path = server.engine.version_path
    try:
        answer = ask(server.base_url, "GET", path, within_s=_VERSION_TIMEOUT_S)
    except AnswerError:
        return "unknown"
    return server.engine.parse_version(answer.content)


def _start_error(server: StartedServer, what: str) -> ServerStartError:
    tail = server.log_tail()
    # The cause may stand far above the traceback of whoever noticed.
    texts = (f"{what}\n{tail}", *server.log_ends())
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
    """A port of this machine alone that was free a moment ago."""
    return free_port_of("127.0.0.1")
