"""Wait until a started server generates, or say why it never will."""

import time
from http import HTTPStatus

import msgspec

from specreg.core.errors import (
    AnswerError,
    AttachError,
    InvalidMeasurementError,
    ServerRefusedError,
)
from specreg.core.http import ask
from specreg.engines.protocols import Ask, Form, Message, Protocol, Role
from specreg.engines.sse import DONE, splitter_for
from specreg.servers.server import Server, StartedServer
from specreg.servers.start_failures import start_error

POLL_S = 0.2
"""How long to wait between two looks at a server that isn't ready."""
_PROBE_TIMEOUT_S = 60.0
_IDENTITY_TIMEOUT_S, _VERSION_TIMEOUT_S = 1.0, 5.0
_HEALTH_TIMEOUT_S = 10.0
"""SGLang generates a token for it, and looks whether that came after a second, or another."""
_ANSWER_BYTES = 300


def is_ready(server: StartedServer, deadline: float) -> bool:
    """Whether it generates a token: a healthy server may still hang (vllm#39863).

    Raises:
        ServerStartError: it ended, refused, or generated none by the deadline.
    """
    _check_identity(server)
    try:
        ready = generates(server, timeout_s=deadline - time.monotonic())
    except ServerRefusedError as error:
        raise start_error(server, str(error)) from error
    if how := server.ended():  # then another server generated it
        raise start_error(server, how)
    if not ready and time.monotonic() > deadline:
        raise start_error(server, "generated no token in time")
    return ready


def _check_identity(server: StartedServer) -> None:
    """Silent where nobody answers at its port but itself, as far as its engine says its name."""

    def fetch(method: str, path: str) -> bytes:
        return ask(server.base_url, method, path, within_s=_IDENTITY_TIMEOUT_S).good()

    try:
        found = server.engine.identify(fetch).model
    except (AnswerError, AttachError):
        return
    if server.engine.serves_names and found not in {"", server.model}:
        raise start_error(server, f"its port is already in use by a server of '{found}'")


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
    within_s = min(_PROBE_TIMEOUT_S, max(POLL_S, timeout_s))
    try:
        health = ask(
            url, "GET", server.engine.health_path, within_s=min(_HEALTH_TIMEOUT_S, within_s)
        )
        if health.status != HTTPStatus.OK:
            return False
        answer = ask(url, "POST", path, within_s=within_s, body=body)
    except AnswerError:
        return False
    if HTTPStatus.BAD_REQUEST <= answer.status < HTTPStatus.INTERNAL_SERVER_ERROR:
        said = answer.content[:_ANSWER_BYTES].decode(errors="replace")
        raise ServerRefusedError(f"refused to generate, {said}")
    return answer.status == HTTPStatus.OK and _holds_tokens(protocol, probe, answer.content)


def _holds_tokens(protocol: Protocol, probe: Ask, content: bytes) -> bool:
    """Whether an answer can be read, and something was generated in it."""
    splitter, decoder = splitter_for(stream=probe.stream), protocol.new_decoder(probe)
    try:
        events = [*splitter.feed(content), *splitter.close()]
        said = [decoder.parse_event(event) for event in events if event != DONE]
    except InvalidMeasurementError:
        return False
    return any(event.tokens for event in said)


def scrape_version(server: Server) -> str:
    """The version of the engine by its own word; `unknown` where it says none."""
    path = server.engine.version_path
    try:
        answer = ask(server.base_url, "GET", path, within_s=_VERSION_TIMEOUT_S)
    except AnswerError:
        return "unknown"
    return server.engine.parse_version(answer.content)
