"""A server that runs: how to ask it, whether it generates and still lives, or why it never will."""

import contextlib
import dataclasses
import shlex
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import cast

import msgspec

from specreg.core.errors import (
    AnswerError,
    AttachError,
    InvalidMeasurementError,
    ModelNotFetchedError,
    ServerAnswerError,
    ServerDiedError,
    ServerRefusedError,
    ServerStartError,
)
from specreg.core.http import HttpResponse, ask
from specreg.core.processes import SupervisedProcess, log_end, process_ids, settle_log
from specreg.core.readable import readable_block
from specreg.core.server_words import quote_answer
from specreg.engines.engine import Engine, Identity
from specreg.engines.wire_format import (
    DONE,
    Ask,
    Endpoint,
    EventSplitter,
    Form,
    Message,
    ParseEvent,
)
from specreg.matrix.case import ServerSpec
from specreg.servers.start_failures import why_not_started

POLL_S = 0.2
"""How long to wait before asking a server again that isn't ready."""
_PROBE_TIMEOUT_S = 60.0
_PROBE_TOKENS = 2
"""One token is the prefill's. The other takes the first step that drafts, in which SGLang 0.5.16
compiled for 103 s on an H100, and before which some servers have no counters."""
_IDENTITY_TIMEOUT_S, _VERSION_TIMEOUT_S = 1.0, 5.0
_HEALTH_TIMEOUT_S = 10.0
"""SGLang generates a token for this, and looks once a second whether it came."""
_DYING_S, _ENDING_S = 1.0, 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running server that has generated a token.

    Attributes:
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
        """The URL to ask it at, for which model and in which engine's wire format."""
        return Endpoint(base_url=self.base_url, model=self.model, engine=self.engine.name)

    def pids(self) -> frozenset[int]:
        """Its processes, as far as they are ours."""
        return frozenset()

    def check_alive(self) -> None:
        """Check that the server answers; ServerDiedError if it doesn't any more."""
        try:
            ask(self.base_url, "GET", self.engine.health_path, within_s=_ENDING_S)
        except AnswerError as error:
            raise ServerDiedError(
                f"SERVER_DIED: server at {self.base_url}: answers no more, {error}; look at its log"
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedServer(Server):
    """A server that we started."""

    process: SupervisedProcess

    @property
    def log_path(self) -> Path:
        """What it says."""
        return self.process.log_path

    def pids(self) -> frozenset[int]:
        """Its processes."""
        return process_ids(self.process)

    def check_alive(self) -> None:
        """Check that the server runs; a ServerDiedError with the end of its log if it ended."""
        # Its connections close a moment before it can be waited for.
        how = self.ended(_DYING_S)
        if not how and (answer := self._broken_answer()):
            # vLLM takes seconds to end once its engine has.
            how = self.ended(_ENDING_S) or f"answers {answer}"
        if how:
            raise ServerDiedError(
                f"SERVER_DIED: server '{self.spec.id}': {how} while it was measured;"
                f" last lines of {self.log_path}:\n{self.process.last_lines()}"
            )

    def ended(self, within_s: float = 0.0) -> str:
        """How it ended; empty while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return f"ended with status {self.process.popen.wait(within_s)}"
        return ""

    def _broken_answer(self) -> str:
        """Return its error about its health; empty where it is well, or hangs and says nothing."""
        path = self.engine.health_path
        try:
            answer = ask(self.base_url, "GET", path, within_s=_DYING_S)
        except AnswerError as error:
            return "" if error.late else f"no more, {error}"
        failed = answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR
        return f"{answer.status} at {self.base_url}{path}" if failed else ""


def ready_server(server: StartedServer, deadline: float) -> StartedServer | None:
    """The server, with its version, once it generates a token: a healthy one may hang (vllm#39863).

    None before.

    Raises:
        ServerStartError: it ended, refused, or generated none by the deadline.
    """
    # Another server may answer at its port; it is seen as far as its engine says its name.
    with contextlib.suppress(AnswerError, AttachError):
        found = identify(server.engine, server.base_url, within_s=_IDENTITY_TIMEOUT_S).model
        if server.engine.serves_names and found not in {"", server.model}:
            raise start_error(server, f"its port is already in use by a server of '{found}'")
    try:
        ready = generates(server, timeout_s=deadline - time.monotonic())
    except ServerRefusedError as error:
        raise start_error(server, str(error)) from error
    if how := server.ended():  # then another server generated it
        raise start_error(server, how)
    if not ready:
        if time.monotonic() > deadline:
            said = f", it said last: {ready.said}" if ready.said else ""
            raise start_error(server, f"generated no token in time{said}")
        return None
    settle_log(server.process)
    path, version = server.engine.version_path, "unknown"
    with contextlib.suppress(AnswerError):
        answer = ask(server.base_url, "GET", path, within_s=_VERSION_TIMEOUT_S)
        version = server.engine.parse_version(answer.content)
    return dataclasses.replace(server, engine_version=version)


def identify(engine: Engine, url: str, *, within_s: float) -> Identity:
    """What the server at a URL says of itself; errors as of `Engine.identify`."""
    return engine.identify(lambda method, path: ask(url, method, path, within_s=within_s).good())


@dataclass(frozen=True, slots=True)
class Probe:
    """What came of a first request; true where the server generated a token.

    `said` are the server's own words where it didn't, empty where it said nothing.
    """

    generated: bool
    said: str = ""

    def __bool__(self) -> bool:
        return self.generated


def generates(server: Server, *, timeout_s: float) -> Probe:
    """Ask a server for two tokens: is it up, and does it take a step?

    All of its answer must come in time.

    Raises:
        ServerRefusedError: it answers that it won't.
    """
    probe = Ask(
        model=server.model,
        form=Form.COMPLETIONS,
        messages=(Message("user", "Hello"),),
        output_cap_tokens=_PROBE_TOKENS,
        temperature=0.0,
    )
    url, wire_format = server.base_url, server.engine.wire_format
    path, body = wire_format.path(probe), msgspec.json.encode(wire_format.body(probe))
    within_s = min(_PROBE_TIMEOUT_S, max(POLL_S, timeout_s))
    health_path = server.engine.health_path
    try:
        health = ask(url, "GET", health_path, within_s=min(_HEALTH_TIMEOUT_S, within_s))
        if health.status != HTTPStatus.OK:
            return Probe(generated=False, said=_said(health))
        answer = ask(url, "POST", path, within_s=within_s, body=body)
    except AnswerError:
        return Probe(generated=False)
    if _is_refusal(answer.status):
        raise ServerRefusedError(f"refused to generate, {quote_answer(answer.content)}")
    if answer.status != HTTPStatus.OK:
        return Probe(generated=False, said=_said(answer))
    try:
        return Probe(generated=_holds_a_token(answer.content, wire_format.new_parser(probe)))
    except ServerAnswerError as error:
        if error.status is not None and _is_refusal(error.status):
            raise ServerRefusedError(f"refused to generate, {error}") from error
        return Probe(generated=False, said=str(error))
    except InvalidMeasurementError as error:
        return Probe(generated=False, said=str(error))


def _holds_a_token(content: bytes, parse_event: ParseEvent) -> bool:
    """Whether a stream holds a token; raises as `ParseEvent` and `EventSplitter.check_rest`."""
    splitter = EventSplitter()
    tokens = [parse_event(event).tokens for event in splitter.feed(content) if event != DONE]
    splitter.check_rest(is_finished=any(tokens))
    return any(tokens)


def _is_refusal(status: int) -> bool:
    """Whether HTTP's status says that the server won't, which is no matter of its start."""
    return HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR


def _said(answer: HttpResponse) -> str:
    """Return an answer's status and its words; empty where it has no words."""
    words = quote_answer(answer.content)
    return f"HTTP {answer.status} from {answer.path}: {words}" if words else ""


def start_error(server: StartedServer, what: str) -> ServerStartError:
    """Return the error of a start that came to nothing, with the cause that its log shows."""
    tail = server.process.last_lines()
    failure = why_not_started(what, readable_block(log_end(server.log_path)))
    advice = failure.advice
    if not failure.is_known:
        command = shlex.join(map(str, cast("Sequence[str]", server.process.popen.args)))
        advice = f"{advice}, or run its command by hand:\n{command}"
    is_unfetched = failure.error is ModelNotFetchedError
    word = "MODEL_NOT_FETCHED" if is_unfetched else "SERVER_NOT_STARTED"
    subject = f"{word}: server '{server.spec.id}'"
    return failure.error(subject, f"{what}: {failure.says}", advice, server.log_path, tail)
