"""A running server: where it answers, whether it generates tokens, and why it failed."""

import contextlib
import os
import shlex
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

import msgspec

from specreg.core.address import Address
from specreg.core.errors import (
    AnswerError,
    AttachError,
    InvalidMeasurementError,
    ServerAnswerError,
    ServerDiedError,
    ServerRefusedError,
    ServerStartError,
)
from specreg.core.http import HttpResponse, ask
from specreg.core.processes import (
    SupervisedProcess,
    log_end,
    log_start,
    process_ids,
    resident_bytes,
    settle_log,
)
from specreg.core.readable import readable_block
from specreg.core.server_words import quote_answer
from specreg.datasets.hub import cached_commit
from specreg.engines.engine import Engine, Identity
from specreg.engines.launch_facts import NOTHING_KNOWN, LaunchFacts
from specreg.engines.methods import is_older
from specreg.engines.server_spec import ServerSpec
from specreg.engines.wire_format import (
    DONE_EVENT,
    Ask,
    Endpoint,
    EventSplitter,
    Form,
    Message,
    NeutralValues,
    ParseEvent,
)
from specreg.servers.start_failures import why_not_started

READY_POLL_S = 0.2
"""How long to wait between two requests to a server that isn't ready."""
_PROBE_TIMEOUT_S = 60.0
"""How long one attempt at a first answer may take. Further attempts follow until the deadline."""
_PROBE_TOKENS = 2
"""The prefill generates the first token. The second one needs the first step that drafts: SGLang
0.5.16 compiled for 103 s in that step on an H100, and some servers have no counters before it."""
_IDENTITY_TIMEOUT_S = 1.0
_VERSION_TIMEOUT_S = 5.0
_HEALTH_TIMEOUT_S = 10.0
"""How long a health check may take. SGLang answers it by generating a token, and looks only once a
second whether the token has come."""
_SIGNALLED = 128
"""What shells and containers' clients add to the number of the signal that ended a program."""
_BROKEN_ANSWER_S = 1.0
"""How long to wait for a server to say that it is broken. A busy one may answer later."""
_DYING_S = 1.0
"""How long a process may take to end after its connections have closed."""
_ENDING_S = 10.0
"""How long a server may take to end after its engine has ended. vLLM takes several seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedServer:
    """What is known of a server before it has answered.

    Attributes:
        spec: the settings that it was started with, or that it must have if others started it.
        address: where it answers.
        model: the name that its model is served under. It is unique if specreg started the server.
        target: the folder or hub id of its target.
        draft: the folder or hub id of its draft; None without a draft model.
        packages: the packages of its environment, as `uv pip freeze` lists them; empty if they
            aren't known.
        facts: what else decides its speed, such as the attention backend that the engine chose.
        refused: the neutral values of sampling that it refuses, so that they aren't sent.
    """

    spec: ServerSpec
    engine: Engine
    address: Address
    model: str
    target: str
    draft: str | None
    packages: tuple[str, ...] = ()
    facts: LaunchFacts = NOTHING_KNOWN
    refused: NeutralValues = ()

    @property
    def endpoint(self) -> Endpoint:
        """What a request to the server needs."""
        return Endpoint(
            address=self.address, model=self.model, engine=self.engine.name, refused=self.refused
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StartingServer(ExpectedServer):
    """A server that specreg has started, and that hasn't generated a token yet.

    Attributes:
        process: its first process.
        deadline_s: when it must have generated a token, on the clock of `time.monotonic`.
    """

    process: SupervisedProcess
    deadline_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Server(ExpectedServer):
    """A running server that has generated a token.

    Attributes:
        engine_version: the version that it reports; "unknown" if it reports none.
    """

    engine_version: str

    @property
    def counters_pages(self) -> tuple[str, ...]:
        """The paths or URLs of its counters, one for each replica.

        There are none if it has no counters, or if they are wrong in its version.
        """
        wire_format = self.engine.wire_format
        first_version = wire_format.counters_since
        is_wrong = first_version and is_older(self.engine_version, first_version)
        if wire_format.counters_path is None or is_wrong:
            return ()
        return self.address.counters_urls or (wire_format.counters_path,)

    def pids(self) -> frozenset[int]:
        """Return the ids of the server's processes; empty if specreg didn't start it."""
        return frozenset()

    def memory_bytes(self) -> int | None:
        """Return how much memory the server's processes hold; None if that isn't known."""
        return None

    def check_alive(self) -> None:
        """Check that the server answers.

        Raises:
            ServerDiedError: it doesn't answer any more.
        """
        try:
            ask(self.address, "GET", self.engine.health_path, within_s=_HEALTH_TIMEOUT_S)
        except AnswerError as error:
            raise ServerDiedError(
                f"server at {self.address.url}: answers no more, {error}; look at its log"
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedServer(Server):
    """A server that specreg started.

    Attributes:
        process: its first process. Stopping it stops all processes of the server.
    """

    process: SupervisedProcess

    @property
    def log_path(self) -> Path:
        """The file that its output goes to."""
        return self.process.log_path

    def pids(self) -> frozenset[int]:
        """Return the ids of its processes."""
        return process_ids(self.process)

    def memory_bytes(self) -> int | None:
        """Return how much memory its processes hold; None if they have ended."""
        return resident_bytes(self.process) or None

    def check_alive(self) -> None:
        """Check that the server runs and is healthy.

        Raises:
            ServerDiedError: it has ended, answers that it is broken, or can't be reached any more.
                A late answer isn't an error. The message has the last lines of its log.
        """
        # If only the engine has ended, the server answers that it is broken before it ends too.
        problem = _wait_for_end(self.process, _DYING_S)
        if not problem:
            answer = self._broken_answer()
            if answer:
                problem = _wait_for_end(self.process, _ENDING_S) or f"answers {answer}"

        if problem:
            raise ServerDiedError(
                f"server '{self.spec.id}': {problem} while it was measured;"
                f" see why in the last lines of {self.log_path}:\n{self.process.last_lines()}"
            )

    def _broken_answer(self) -> str:
        """Return what is wrong with the server's answer to a health check.

        Returns:
            The words that follow "answers" in a message; empty if the server is healthy, or so busy
            that it doesn't answer in time.
        """
        path = self.engine.health_path
        try:
            answer = ask(self.address, "GET", path, within_s=_BROKEN_ANSWER_S)
        except AnswerError as error:
            return "" if error.late else f"no more, {error}"

        if answer.status < HTTPStatus.INTERNAL_SERVER_ERROR:
            return ""
        return f"{answer.status} at {self.address.url}{path}"


def _wait_for_end(process: SupervisedProcess, within_s: float = 0.0) -> str:
    """Wait for the end of a server, and return how it ended.

    Args:
        process: its first process.
        within_s: how long to wait, in seconds.

    Returns:
        A text with its exit status; empty if it still runs after that time.
    """
    with contextlib.suppress(subprocess.TimeoutExpired):
        return f"ended with status {process.popen.wait(within_s)}"
    return ""


def ready_server(server: StartingServer) -> StartedServer | None:
    """Return a server once it has generated a token, and None before.

    A health check isn't enough, because a server that reports itself healthy may hang (vllm#39863).

    Raises:
        ServerStartError: the server ended, refused the request, or generated no token by its
            deadline, or another server answers at its port.
    """
    _check_port(server)

    try:
        probe = send_probe(server, timeout_s=server.deadline_s - time.monotonic())
    except ServerRefusedError as error:
        problem = str(error)
        # An engine that refuses a request says which model it serves.
        if not _names_model(server):
            problem = "its port is already in use by another service"
        raise start_error(server.spec.id, server.process, problem) from error

    end = _wait_for_end(server.process)
    if end:
        # The start has failed even if a token came, because then another server at the same port
        # generated the token.
        raise start_error(server.spec.id, server.process, end)

    if not probe:
        if time.monotonic() <= server.deadline_s:
            return None
        problem = "generated no token in time"
        if probe.server_message:
            problem += f", its last message: {probe.server_message}"
        raise start_error(server.spec.id, server.process, problem)

    # The log has to be complete on disk, because facts about the launch are read from it.
    settle_log(server.process)
    version = "unknown"
    with contextlib.suppress(AnswerError):
        path = server.engine.version_path
        answer = ask(server.address, "GET", path, within_s=_VERSION_TIMEOUT_S)
        version = server.engine.parse_version(answer.content)

    return StartedServer(
        spec=server.spec,
        engine=server.engine,
        address=server.address,
        model=server.model,
        target=server.target,
        draft=server.draft,
        packages=server.packages,
        facts=facts_of(server, log_start(server.process.log_path)),
        engine_version=version,
        process=server.process,
    )


def facts_of(server: ExpectedServer, log: str) -> LaunchFacts:
    """Return the facts about a server that is ready.

    Args:
        server: the server, with the facts that were known before it was ready.
        log: the beginning of its log; empty if others started it.

    Returns:
        The facts that were known before, and those that its log, its answers and the hub's cache
        add.
    """

    def fetch(method: str, path: str) -> bytes:
        return ask(server.address, method, path, within_s=_VERSION_TIMEOUT_S).good()

    reported = NOTHING_KNOWN

    # A server that doesn't report its facts is measured all the same; they stay unknown.
    with contextlib.suppress(AnswerError, InvalidMeasurementError):
        reported = server.engine.launch_facts(log, fetch)

    # What the engine reports replaces what was known before: it may not use what is installed.
    reported_facts = {
        name: value for name, value in msgspec.structs.asdict(reported).items() if value
    }
    variables = {**os.environ, **dict(server.spec.engine_env)}
    return msgspec.structs.replace(
        server.facts,
        **reported_facts,
        refused_sampling=", ".join(name for name, _ in server.refused),
        target_revision=_revision_of(server.target, server.spec.target_revision, variables),
        draft_revision=_revision_of(server.draft, server.spec.draft_revision, variables),
    )


def _revision_of(model: str | None, revision: str, variables: Mapping[str, str]) -> str:
    """Return the commit of a model in the hub's cache; empty for a folder or an uncached model."""
    if not model or Path(model).is_dir():
        return ""
    return cached_commit(model, revision, variables)


def _check_port(server: StartingServer) -> None:
    """Check that no other server answers at the port.

    Another server is noticed only if the engine serves its model under a name that specreg chose.

    Raises:
        ServerStartError: another server answers.
    """
    try:
        identity = identify(server.engine, server.address, within_s=_IDENTITY_TIMEOUT_S)
    except (AnswerError, AttachError):
        # The server isn't up yet.
        return
    if server.engine.serves_names and identity.model not in {"", server.model}:
        raise start_error(
            server.spec.id,
            server.process,
            f"its port is already in use by a server of '{identity.model}'",
        )


def _names_model(server: StartingServer) -> bool:
    """Return whether what answers at a server's port reports a model."""
    try:
        identity = identify(server.engine, server.address, within_s=_IDENTITY_TIMEOUT_S)
    except (AnswerError, AttachError):
        return False
    return bool(identity.model)


def identify(engine: Engine, address: Address, *, within_s: float) -> Identity:
    """Return what the server at an address reports about itself.

    Args:
        engine: the engine that the server should run.
        address: where the server answers.
        within_s: how long each answer may take, in seconds.

    Raises:
        AnswerError: the server doesn't answer, or not as this engine would.
        AttachError: the server can't be measured.
    """

    def fetch(method: str, path: str) -> bytes:
        # The page of the counters may have an address of its own.
        if address.counters_urls and path == engine.wire_format.counters_path:
            path = address.counters_urls[0]
        return ask(address, method, path, within_s=within_s).good()

    return engine.identify(fetch)


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The result of a first request; true if the server generated a token.

    Attributes:
        generated: True if the server generated a token.
        has_uncounted_text: True if text came, but not one token that could be counted.
        server_message: the server's own words if it generated none; empty if it sent no words.
    """

    generated: bool
    has_uncounted_text: bool = False
    server_message: str = ""

    def __bool__(self) -> bool:
        return self.generated


def send_probe(
    server: ExpectedServer, *, timeout_s: float, form: Form = Form.COMPLETIONS
) -> ProbeResult:
    """Request two tokens from a server, and return whether it generated any.

    Args:
        form: how the prompt reaches the model. Each model takes a text, and not each takes a chat.
        timeout_s: how long the health check and the answer may each take, in seconds. Less than 0.2
            counts as 0.2, and more than 60 as 60. The health check gets at most 10.

    Raises:
        ServerRefusedError: the server answers that it refuses the request.
    """
    request = Ask(
        model=server.model,
        form=form,
        messages=(Message("user", "Hello"),),
        output_cap_tokens=_PROBE_TOKENS,
        temperature=0.0,
    )
    address = server.address
    wire_format = server.engine.wire_format
    path = wire_format.path(request)
    body = msgspec.json.encode(server.endpoint.without_refused(wire_format.body(request)))
    within_s = min(_PROBE_TIMEOUT_S, max(READY_POLL_S, timeout_s))
    health_within_s = min(_HEALTH_TIMEOUT_S, within_s)

    # Ask for the server's health first, because an engine that isn't ready may queue the request.
    try:
        health = ask(address, "GET", server.engine.health_path, within_s=health_within_s)
        if health.status != HTTPStatus.OK:
            return ProbeResult(generated=False, server_message=_quote_status(health))
        answer = ask(address, "POST", path, within_s=within_s, body=body)
    except AnswerError:
        return ProbeResult(generated=False)

    # A refusal is final. Any other error may go away, so its message is only noted.
    if _is_refusal(answer.status):
        raise ServerRefusedError(f"refused to generate, {quote_answer(answer.content)}")
    if answer.status != HTTPStatus.OK:
        return ProbeResult(generated=False, server_message=_quote_status(answer))
    try:
        return _read_probe(answer.content, wire_format.new_parser(request))
    except ServerAnswerError as error:
        if error.status is not None and _is_refusal(error.status):
            raise ServerRefusedError(f"refused to generate, {error}") from error
        return ProbeResult(generated=False, server_message=str(error))
    except InvalidMeasurementError as error:
        return ProbeResult(generated=False, server_message=str(error))


def _read_probe(content: bytes, parse_event: ParseEvent) -> ProbeResult:
    """Return what a stream holds.

    Raises:
        ServerAnswerError: an event reports an error.
        InvalidMeasurementError: an event can't be parsed, or the stream ends within one.
    """
    splitter = EventSplitter()
    events = [parse_event(event) for event in splitter.feed(content) if event != DONE_EVENT]
    has_token = any(event.tokens for event in events)
    splitter.check_rest(is_finished=has_token)
    has_text = any(event.text or event.thought for event in events)
    return ProbeResult(generated=has_token, has_uncounted_text=has_text and not has_token)


def _is_refusal(status: int) -> bool:
    """Return whether a status refuses a request, so that the server would refuse it again."""
    return HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR


def _quote_status(answer: HttpResponse) -> str:
    """Return an answer's status and text; empty if it has no text."""
    words = quote_answer(answer.content)
    if not words:
        return ""
    return f"HTTP {answer.status} from {answer.path}: {words}"


def start_error(server_id: str, process: SupervisedProcess, problem: str) -> ServerStartError:
    """Return the error of a failed start, with the cause that the server's log shows."""
    tail = process.last_lines()
    log = readable_block(log_end(process.log_path))
    status = process.popen.poll()
    if process.outside is not None and status is not None and status > _SIGNALLED:
        # The client of a container says so that a signal ended the container's program.
        status = _SIGNALLED - status
    failure = why_not_started(problem, log, status=status)
    advice = failure.advice
    if not failure.is_known:
        command = shlex.join(process.popen.args)
        advice = f"{advice}, or run the server's command by hand:\n{command}"
    says = f"{problem}: {failure.says}"
    return failure.error(f"server '{server_id}'", says, advice, process.log_path, tail)
