"""What a replay sees of the scripted server is that server's truth; a fault is one trace."""

import asyncio
import dataclasses
import itertools
from collections.abc import AsyncIterator, Sequence

import httpx
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from specreg.acceptance.record import NO_STEPS
from specreg.datasets import Prompt
from specreg.matrix import Case
from specreg.metrics import tpot_ms, ttft_ms
from specreg.replay import Round, new_client, replay_round
from specreg.trace import RequestTrace
from tests.scripted.vllm.app import ScriptedServer
from tests.scripted.vllm.launch import Launch, Level, Speculation
from tests.scripted.vllm.script import DEFAULTS, Fault, Script
from tests.unit import builders

MS = 10**6
LAUNCH = Launch(
    model="some/target",
    name=builders.SPEC.id,
    speculation=Speculation(num_speculative_tokens=3),
    level=Level.SUMMARY,
)


def replay(script: Script, case: Case = builders.CASE) -> Round:
    """A round against the scripted server, over a real connection."""

    async def run() -> Round:
        async with TestServer(ScriptedServer(LAUNCH, script).application()) as listening:
            server = builders.server(str(listening.make_url("")))
            client = new_client(server, concurrency=case.concurrency)
            try:
                return await replay_round(
                    case,
                    server,
                    builders.PROMPTS,
                    client=client,
                    clock=itertools.count(1).__next__,
                )
            finally:
                await client.aclose()

    return asyncio.run(run())


class Wire(httpx.AsyncBaseTransport):
    """Answers each request with the same pieces, and counts the requests in flight."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = pieces
        self.in_flight = 0
        self.most_in_flight = 0
        self.asked: list[bytes] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Begins a stream."""
        self.asked.append(await request.aread())
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        return httpx.Response(200, content=self._stream())

    async def _stream(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            await asyncio.sleep(0)
            yield piece
        self.in_flight -= 1


def replay_wire(wire: Wire, case: Case, prompts: Sequence[Prompt] = builders.PROMPTS) -> Round:
    """A round over a wire, by a clock that says 1 ms more each time it is asked."""

    async def run() -> Round:
        async with httpx.AsyncClient(transport=wire, base_url="http://scripted") as client:
            clock = itertools.count(MS, MS).__next__
            return await replay_round(case, builders.server(), prompts, client=client, clock=clock)

    return asyncio.run(run())


def event(ids: str, finish_reason: str = "null") -> bytes:
    """A chunk of the token ids given."""
    choice = (
        f'{{"delta": {{"content": "x"}}, "token_ids": [{ids}], "finish_reason": {finish_reason}}}'
    )
    return f'data: {{"choices": [{choice}]}}\n\n'.encode()


USAGE = b'data: {"choices": [], "usage": {"completion_tokens": 7}}\n\ndata: [DONE]\n\n'
PIECES = (event("1"), event("2, 3, 4"), event("5, 6, 7", '"length"'), USAGE)
ONE_AT_A_TIME = dataclasses.replace(builders.CASE, concurrency=1)


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(DEFAULTS, id="by-chance"),
        pytest.param(Script(accepted_cycle=(0, 1, 2, 3)), id="by-turns"),
        pytest.param(Script(accepted_cycle=(3,)), id="all"),
        pytest.param(Script(accepted_cycle=(0,)), id="none"),
        pytest.param(Script(fault=Fault.MERGED_CHUNKS), id="merged-chunks"),
    ],
)
def test_the_counts_of_each_request_are_the_truth(script: Script) -> None:
    traces = replay(script).traces
    assert [trace.prompt_id for trace in traces] == [prompt.id for prompt in builders.PROMPTS]
    for trace, prompt in zip(traces, builders.PROMPTS, strict=True):
        truth = builders.truth(prompt, script)
        counts = trace.acceptance
        assert counts is not None
        assert (trace.error, trace.finish_reason) == (None, truth.finish_reason)
        assert trace.usage_tokens == truth.completion_tokens
        assert trace.text == truth.text
        assert counts.steps == truth.verify_steps
        assert counts.accepted == truth.accepted_tokens
        assert counts.proposed == truth.drafted_tokens
        assert counts.histogram == truth.histogram
        assert counts.position_counts == truth.accepted_per_position
        assert counts.acceptance_length == truth.acceptance_length


def test_the_counts_of_all_requests_add_up_to_the_truth() -> None:
    total = sum((trace.acceptance or NO_STEPS for trace in replay(DEFAULTS).traces), NO_STEPS)
    truths = [builders.truth(prompt, DEFAULTS) for prompt in builders.PROMPTS]
    assert total == builders.counts_of(truths)


def test_chunks_hold_all_tokens_of_their_request() -> None:
    for trace in replay(Script(fault=Fault.MERGED_CHUNKS)).traces:
        assert sum(chunk.tokens for chunk in trace.chunks) == trace.usage_tokens
        assert max(chunk.tokens for chunk in trace.chunks) > 1


def faulty(fault: Fault) -> tuple[RequestTrace, list[RequestTrace]]:
    """The trace of the second request, which the fault hit, and the others."""
    script = Script(fault=fault, fault_after_requests=1)
    one, hit, *others = replay(script, ONE_AT_A_TIME).traces
    return hit, [one, *others]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault.HTTP_500, "HTTP_ERROR: HTTP 500 from /v1/chat/completions"),
        (Fault.HTTP_429, "HTTP_ERROR: HTTP 429 from /v1/chat/completions"),
        (Fault.TRUNCATED_STREAM, "Error"),
        (Fault.WRONG_JSON, "EVENT_UNREADABLE: "),
    ],
)
def test_a_request_that_fails_is_a_trace_with_an_error(fault: Fault, words: str) -> None:
    hit, others = faulty(fault)
    assert words in (hit.error or "")
    assert hit.usage_tokens is None
    assert [trace.error for trace in others] == [None] * 5
    assert all(trace.usage_tokens for trace in others)


@pytest.mark.parametrize("fault", [Fault.TRUNCATED_STREAM, Fault.WRONG_JSON])
def test_what_came_before_the_failure_is_kept(fault: Fault) -> None:
    hit, _ = faulty(fault)
    truth = builders.truth(builders.PROMPTS[1], DEFAULTS)
    assert hit.chunks
    assert truth.text.startswith(hit.text)
    assert len(hit.text) < len(truth.text)


def test_a_stream_without_usage_has_none() -> None:
    for trace in replay(Script(fault=Fault.NO_USAGE)).traces:
        assert (trace.error, trace.usage_tokens, trace.acceptance) == (None, None, None)
        assert trace.chunks


def test_a_server_that_is_not_there_is_an_error_of_each_request() -> None:
    class Nobody(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            message = f"nobody at {request.url.host}"
            raise httpx.ConnectError(message)

    async def run() -> Round:
        async with httpx.AsyncClient(transport=Nobody(), base_url="http://scripted") as client:
            return await replay_round(
                builders.CASE,
                builders.server(),
                builders.PROMPTS,
                client=client,
                clock=itertools.count().__next__,
            )

    done = asyncio.run(run())
    assert {trace.error for trace in done.traces} == {"ConnectError: nobody at scripted"}
    assert done.started_ns == done.ended_ns == 0


def test_an_event_that_is_no_text_is_an_error_of_its_request() -> None:
    wire = Wire([event("1"), b'data: {"choices": [{"delta": {"content": "\xff"}}]}\n\n'])
    (trace,) = replay_wire(wire, ONE_AT_A_TIME, builders.PROMPTS[:1]).traces
    assert (trace.error or "").startswith("EVENT_UNREADABLE")
    assert len(trace.chunks) == 1


def test_an_error_event_is_an_error_of_its_request() -> None:
    wire = Wire([event("1"), b'data: {"error": {"message": "EngineDeadError"}}\n\n'])
    (trace,) = replay_wire(wire, ONE_AT_A_TIME, builders.PROMPTS[:1]).traces
    assert (trace.error or "").startswith("SERVER_ERROR")


@pytest.mark.parametrize("concurrency", [1, 2, 5, 9])
def test_no_more_requests_are_in_flight_than_asked_for(concurrency: int) -> None:
    wire = Wire(PIECES)
    done = replay_wire(wire, dataclasses.replace(builders.CASE, concurrency=concurrency))
    assert wire.most_in_flight == min(concurrency, len(builders.PROMPTS))
    assert len(done.traces) == len(wire.asked) == len(builders.PROMPTS)


def test_a_connection_is_used_again_but_not_when_it_was_idle_for_two_seconds() -> None:
    """A server drops it after five, perhaps at the very moment of the next request."""
    ports: list[int] = []

    async def answer(request: web.Request) -> web.Response:
        ports.append(request.get_extra_info("peername")[1])
        return web.Response()

    async def run() -> None:
        app = web.Application()
        app.router.add_get("/", answer)
        async with TestServer(app) as listening:
            server = builders.server(str(listening.make_url("")))
            async with new_client(server, concurrency=1) as client:
                for pause_s in (0.0, 0.0, 2.1):
                    await asyncio.sleep(pause_s)
                    await client.get("/")

    asyncio.run(run())
    first, at_once, later = ports
    assert first == at_once != later


def test_prompts_are_asked_in_their_order() -> None:
    wire = Wire(PIECES)
    replay_wire(wire, ONE_AT_A_TIME)
    for body, prompt in zip(wire.asked, builders.PROMPTS, strict=True):
        assert prompt.turns[0].encode() in body
        assert b'"max_tokens":20' in body.replace(b" ", b"")


def test_times_are_exact_by_a_counting_clock() -> None:
    (trace,) = replay_wire(Wire(PIECES), ONE_AT_A_TIME, builders.PROMPTS[:1]).traces
    assert (trace.planned_ns, trace.sent_ns) == (MS, MS)
    assert [(chunk.at_ns, chunk.tokens) for chunk in trace.chunks] == [
        *((2 * MS, 1), (3 * MS, 3), (4 * MS, 3))
    ]
    assert ttft_ms(trace) == 1.0
    assert tpot_ms(trace) == 2 / 6


def test_events_of_one_piece_have_one_time() -> None:
    wire = Wire([PIECES[0], PIECES[1] + PIECES[2], USAGE])
    (trace,) = replay_wire(wire, ONE_AT_A_TIME, builders.PROMPTS[:1]).traces
    assert [chunk.at_ns for chunk in trace.chunks] == [2 * MS, 3 * MS, 3 * MS]


def test_an_event_cut_in_two_has_the_time_of_its_end() -> None:
    cut = (PIECES[0], PIECES[1][:30], PIECES[1][30:], PIECES[2], USAGE)
    (trace,) = replay_wire(Wire(cut), ONE_AT_A_TIME, builders.PROMPTS[:1]).traces
    assert [chunk.at_ns for chunk in trace.chunks] == [2 * MS, 4 * MS, 5 * MS]


def test_a_round_lasts_from_its_first_send_to_its_last_token() -> None:
    """One request: sent, three chunks, usage; the next is sent right after."""
    done = replay_wire(Wire(PIECES), ONE_AT_A_TIME, builders.PROMPTS[:2])
    assert (done.started_ns, done.ended_ns) == (1 * MS, 9 * MS)
