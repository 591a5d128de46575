"""An error within an answer of HTTP 200 fails its request in the server's own words."""

from collections.abc import AsyncIterator

import httpx
import msgspec
import pytest

from specreg.engines.registry import ENGINES
from specreg.engines.wire_format import AnswerSettings
from tests.unit import builders
from tests.unit.builders.wires import PIECES, Wire, event, replay_wire

WORDS = "SERVER_ERROR: the server says 'the engine is dead'"
FLAT = b'{"object": "error", "message": "the engine is dead", "type": "X", "code": 500}'
NESTED = b'{"error": {"message": "the engine is dead", "code": 500}}'
MANY_FIELDS = b", ".join(b'"field%d": 1' % number for number in range(20))
PRETTY = b'{\n  "error": {\n    "message": "the engine is dead"\n  }\n}\n'


def error_of(*pieces: bytes, engine: str = "vllm") -> str:
    """What is said of a request that is answered with such pieces."""
    (trace,) = replay_wire(Wire(pieces), prompts=builders.PROMPTS[:1], engine=engine).traces
    return trace.error or ""


@pytest.mark.parametrize("begun", [(), PIECES[:1]], ids=["at-once", "midway"])
@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt_llm"])
@pytest.mark.parametrize(
    "piece",
    [
        b"event: error\ndata: " + FLAT + b"\n\n",
        b"event: error\r\ndata: " + FLAT + b"\r\n\r\n",
        b"data: " + FLAT + b"\nevent: error\n\n",
        b"event: error\ndata: the engine is dead\n\n",
        b'event: error\ndata: {"reason": "the engine is dead"}\n\n',
        b"event: error\ndata: " + FLAT,
        b"data: " + FLAT + b"\n\n",
        b"data: " + NESTED + b"\n\n",
        b"data: " + NESTED,
        b'data: {"detail": "the engine is dead"}\n\n',
        b'data: {"error": "the engine is dead", "choices": null}\n\n',
        b'data: {"error": "the engine is dead", "choices": [], %b}\n\n' % MANY_FIELDS,
        b'data: {"error":\ndata: {"message": "the engine is dead"}}\n\n',
        b"data: " + PRETTY.replace(b"\n", b"\ndata: ") + b"\n\n",
        NESTED,
        FLAT + b"\n",
        PRETTY,
        b'{"error": "the engine is dead"}',
        b': {"error": "the engine is dead"}\n\n',
        b'{"detail": [{"loc": ["body"], "msg": "the engine is dead"}]}',
    ],
)
def test_the_words_of_an_error_are_quoted(
    piece: bytes, begun: tuple[bytes, ...], engine: str
) -> None:
    if engine != "vllm" and begun:
        begun = (b'data: {"choices": [{"delta": {"content": "x"}}]}\n\n',)
    assert error_of(*begun, piece, engine=engine) == WORDS


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ((b"upstream connect error",), "EVENT_UNREADABLE: the answer is no stream of events: up"),
        ((b"<html>\n<b>502</b>",), "EVENT_UNREADABLE: the answer is no stream of events: <html>"),
        ((PIECES[0], b"Killed\n"), "EVENT_UNREADABLE: the answer is no stream of events: Killed"),
        ((b": error: out of memory\n\n",), "EVENT_UNREADABLE: .* comment: error: out of memory"),
        ((b": error: out of memory",), "EVENT_UNREADABLE: .* comment: error: out of memory"),
        (
            (PIECES[0], b": the engine\n: is dead\n\n", b"data: [DONE]\n\n"),
            "EVENT_UNREADABLE: the stream ended .* comment: the engine.* is dead",
        ),
        ((b'data: {"why": "dead"}\n\n',), 'EVENT_UNREADABLE: the stream ended .* {"why": "dead"}'),
        ((event("1", '"abort"'),), "SERVER_ERROR: the server says 'abort: {"),
        ((event("1", '"error"'),), "SERVER_ERROR: the server says 'error: {"),
        ((b"data: the engine is dead\n\n",), "EVENT_UNREADABLE: .*, in: the engine is dead"),
    ],
)
def test_other_last_words_are_quoted_too(pieces: tuple[bytes, ...], words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(error_of(*pieces))


@pytest.mark.parametrize(
    "stray", [b"", b"\n", b": ping\n", b"id: 7\nretry: 5\n", b"a stray line\n"]
)
def test_lines_outside_of_events_do_not_spoil_a_complete_answer(stray: bytes) -> None:
    assert error_of(*PIECES, stray) == ""


def test_a_comment_between_events_is_not_the_reason_why_a_stream_ended() -> None:
    assert error_of(b": ping\n\n", PIECES[0]) == ""


class ResetWire(Wire):
    """Breaks the connection off after its pieces."""

    async def _stream(self) -> AsyncIterator[bytes]:
        async for piece in super()._stream():
            yield piece
        raise httpx.RemoteProtocolError("peer closed connection")


def test_a_comment_does_not_hide_how_the_connection_ended() -> None:
    """As a rule a comment only keeps the connection alive."""
    wire = ResetWire((PIECES[0], b": ping\n\n"))
    (trace,) = replay_wire(wire, prompts=builders.PROMPTS[:1]).traces
    words = "RemoteProtocolError: peer closed connection, after the comment: ping"
    assert words in str(trace.error)


def test_an_aborted_answer_of_sglang_is_an_error() -> None:
    """It comes with HTTP 200 and a finish reason."""
    reason = {"type": "abort", "message": "the engine is dead", "status_code": 500}
    meta = {"completion_tokens": 0, "finish_reason": reason}
    body = msgspec.json.encode({"text": "", "output_ids": [], "meta_info": meta})
    api = ENGINES["sglang"].token_api
    assert api is not None
    with builders.invalid("SERVER_ERROR", "the engine is dead"):
        api.complete("toy", [1], AnswerSettings(output_cap_tokens=3)).parse(body)


def test_a_server_that_counts_tokens_only_at_the_end_has_no_times() -> None:
    """It ignores that usage is asked for with each chunk; all tokens would have come at the end."""
    texts = [b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'] * 3
    end = b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\n'
    usage = b'data: {"choices": [], "usage": {"completion_tokens": 3}}\n\n'
    for engine in ("sglang", "tensorrt_llm"):
        assert error_of(*texts, end, usage, engine=engine).startswith(
            "USAGE_LATE: text came before"
        )
