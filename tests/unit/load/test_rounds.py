"""What a replay sees of a server is that server's truth; a fault is one trace."""

import asyncio
import dataclasses
import itertools
import statistics
import time
from collections.abc import AsyncIterator

import httpx
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from specreg.acceptance.trace import RequestTrace
from specreg.core.address import Address
from specreg.core.errors import HungError, SpecregError
from specreg.datasets.prompts import Prompt
from specreg.load.chat_client import FinishedRequest, new_client
from specreg.load.rounds import Round, RoundSlice, due_after_ns, replay_round
from specreg.matrix.case import Arrivals, Case, Load
from specreg.measurement.metrics import tpot_ms, ttft_ms
from tests.unit import builders
from tests.unit.builders.wires import (
    ENDPOINT,
    MS,
    ONE_AT_A_TIME,
    PIECES,
    USAGE,
    Mute,
    S,
    Wire,
    event,
    replay_wire,
)


def only_trace(wire: Wire) -> RequestTrace:
    (trace,) = replay_wire(wire, prompts=builders.PROMPTS[:1]).traces
    return trace


def test_a_missing_server_is_an_error_of_each_request() -> None:
    class Nobody(Wire):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            message = f"nobody at {request.url.host}"
            raise httpx.ConnectError(message)

    done = replay_wire(Nobody(()), builders.CASE)
    assert {trace.error for trace in done.traces} == {"ConnectError: nobody at scripted"}
    assert done.started_ns == done.ended_ns == MS


def test_a_refusal_is_quoted_up_to_the_length_that_is_read() -> None:
    trace = only_trace(Wire([b"no " * 60, b"never " * 10**6, b"END"], status=503))
    assert (trace.error or "").startswith("HTTP_ERROR: HTTP 503 from /v1/chat/completions: no no")
    assert len(trace.error or "") < 400


@pytest.mark.parametrize(
    ("pieces", "words", "tokens"),
    [
        ([b'data: {"choices": [{"delta": {"content": "\xff"}}]}\n'], "EVENT_UNREADABLE", 1),
        ([b'data: {"error": {"message": "EngineDeadError"}}\n\n'], "SERVER_ERROR", 1),
        ([event(", ".join(["1"] * 600))] * 2, "ANSWER_ENDLESS: 1201 tokens in", 601),
        # Without ids nothing else would end it before its time.
        ([event("", text="x" * 2**19)] * 4, "ANSWER_ENDLESS: 1572865 characters in an answer", 1),
    ],
    ids=["no-text", "error-event", "too-many-tokens", "too-much-text"],
)
def test_an_impossible_event_is_an_error_of_its_request(
    pieces: list[bytes], words: str, tokens: int
) -> None:
    trace = only_trace(Wire([event("1"), *pieces]))
    assert (trace.error or "").startswith(words)
    assert len(trace.error or "") < 1_000
    assert trace.tokens == tokens


def test_an_answer_that_is_not_http_is_an_error_of_its_request() -> None:
    """Over a real connection: the transport has errors of its own."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(2**16)
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n" * 10_000)
        writer.close()

    async def run() -> Round:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        endpoint = dataclasses.replace(ENDPOINT, address=Address(f"http://127.0.0.1:{port}"))
        prompts = builders.PROMPTS[:1]
        clock = time.monotonic_ns
        async with new_client(endpoint, connections=1) as client:
            built = await replay_round(ONE_AT_A_TIME, endpoint, prompts, client=client, clock=clock)
        server.close()
        return built.as_round()

    (trace,) = asyncio.run(run()).traces
    assert (trace.error or "").startswith("ClientResponseError: 400")
    assert len(trace.error or "") < 400


def test_a_stream_that_falls_silent_beside_another_has_failed() -> None:
    class OneSilent(Wire):
        numbers = itertools.count()

        async def _stream(self) -> AsyncIterator[bytes]:
            yield PIECES[0]
            if next(self.numbers) == 0:
                await asyncio.Event().wait()
            self.clock.now_ns += 61 * S
            yield PIECES[0]
            await asyncio.sleep(2.2)  # longer than the watch looks away
            for piece in PIECES[1:]:
                yield piece

    case = builders.with_concurrency(2)
    silent, sound = replay_wire(OneSilent(()), case, builders.PROMPTS[:2]).traces
    assert silent.error == "nothing came for 60 s"
    assert sound.error is None


@pytest.mark.parametrize("before", [0, 2], ids=["from-the-first", "later"])
def test_a_server_whose_streams_all_fall_silent_hangs(before: int) -> None:
    """What is on its way is given up: to wait for each request in turn would take an hour."""

    wire = Mute(61.0, answered=before)
    recorded = list[FinishedRequest]()
    with pytest.raises(HungError, match=r"HUNG: no token came for 60 s"):
        replay_wire(wire, ONE_AT_A_TIME, builders.PROMPTS[:4], record=recorded.append)
    assert len(wire.asked) == before + 1
    assert len(recorded) == before


def test_a_server_also_hangs_if_its_requests_time_out_earlier() -> None:
    """A request whose time is up is no sign of life, and the next one no new beginning."""
    case = builders.with_request(ONE_AT_A_TIME, request_timeout_s=0.4)
    wire = Mute(21.0)
    recorded = list[FinishedRequest]()
    with pytest.raises(HungError, match=r"HUNG: no token came for 60 s"):
        replay_wire(wire, case, builders.PROMPTS * 2, record=recorded.append)
    assert 3 <= len(wire.asked) < 12
    assert all(request.late for request in recorded)


def test_a_server_that_refuses_does_not_hang() -> None:
    class Refusing(Wire):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            await asyncio.sleep(0.4)
            self.clock.now_ns += 31 * S
            return await super().handle_async_request(request)

    done = replay_wire(Refusing([], status=429))
    assert {(trace.error or "")[:20] for trace in done.traces} == {"HTTP_ERROR: HTTP 429"}


def test_a_server_without_requests_does_not_hang() -> None:
    """A minute and more passes between two requests, and the watch looks after it."""

    class Slower(Wire):
        async def _stream(self) -> AsyncIterator[bytes]:
            if len(self.asked) > 1:
                await asyncio.sleep(2.2)  # longer than the watch looks away
            for piece in PIECES:
                yield piece

    wire = Slower(())

    def wait(_: FinishedRequest) -> None:
        wire.clock.now_ns += 100 * S

    done = replay_wire(wire, open_load(1.0), builders.PROMPTS[:2], record=wait)
    assert [trace.error for trace in done.traces] == [None, None]


@pytest.mark.parametrize("requests", [1, 2, 5, 9])
def test_no_more_requests_are_in_flight_than_the_case_says(requests: int) -> None:
    wire = Wire(PIECES)
    done = replay_wire(wire, builders.with_concurrency(requests))
    assert wire.most_in_flight == min(requests, len(builders.PROMPTS))
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
            endpoint = dataclasses.replace(ENDPOINT, address=Address(str(listening.make_url(""))))
            async with new_client(endpoint, connections=1) as client:
                for pause_s in (0.0, 0.0, 2.1):
                    await asyncio.sleep(pause_s)
                    await client.get("/")

    asyncio.run(run())
    first, at_once, later = ports
    assert first == at_once != later


def test_prompts_are_sent_in_their_order_with_the_cases_settings() -> None:
    wire = Wire(PIECES)
    case = builders.with_request(
        ONE_AT_A_TIME, ignore_eos=True, chat_template_args=(("enable_thinking", False),)
    )
    replay_wire(wire, case)
    for body, prompt in zip(wire.bodies, builders.PROMPTS, strict=True):
        assert body["messages"] == [{"role": "user", "content": prompt.turns[0]}]
        assert (body["max_tokens"], body["temperature"]) == (20, 0.0)
        assert body["ignore_eos"] is True
        assert body["chat_template_kwargs"] == {"enable_thinking": False}
    assert {request.headers["Accept-Encoding"] for request in wire.asked} == {"identity"}


def test_a_turn_has_the_same_seed_in_each_round_if_the_case_has_one() -> None:
    wires = [Wire(PIECES) for _ in range(3)]
    paired = builders.with_request(ONE_AT_A_TIME, temperature=0.7, paired_seeds=True)
    for wire, case in zip(wires, (paired, paired, ONE_AT_A_TIME), strict=True):
        replay_wire(wire, case, [CONVERSATION, *builders.PROMPTS])
    seeds = [[body.get("seed") for body in wire.bodies] for wire in wires]
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == 3 + len(builders.PROMPTS)
    assert all(isinstance(seed, int) and 0 <= seed < 2**31 for seed in seeds[0])
    assert set(seeds[2]) == {None}


def test_an_answer_ends_at_the_texts_of_its_dataset() -> None:
    wire = Wire(PIECES)
    replay_wire(wire, builders.with_request(ONE_AT_A_TIME, dataset="gsm8k-5shot"))
    assert [body["stop"][0] for body in wire.bodies] == ["Question:"] * len(builders.PROMPTS)
    wire = Wire(PIECES)
    replay_wire(wire, ONE_AT_A_TIME)
    assert not any("stop" in body for body in wire.bodies)


CONVERSATION = Prompt(id="talk", category="chat", turns=("One?", "Two?", "Three?"))


@pytest.mark.parametrize(
    ("history_reply", "reply"), [("as_is", "Hm.</think>\n\nYes"), ("without_thinking", "Yes")]
)
def test_each_turn_has_the_models_own_replies_before_it_as_the_case_says(
    history_reply: str, reply: str
) -> None:
    case = builders.with_request(ONE_AT_A_TIME, history_reply=history_reply)
    wire = Wire([event("1", text="Hm.</think>"), event("2", '"stop"', text="\\n\\nYes"), USAGE])
    done = replay_wire(wire, case, [CONVERSATION])
    assert [trace.turn for trace in done.traces] == [1, 2, 3]
    replied = ("assistant", reply)
    expected = [("user", "One?"), replied, ("user", "Two?"), replied, ("user", "Three?")]
    for turn, body in enumerate(wire.bodies):
        messages = [(message["role"], message["content"]) for message in body["messages"]]
        assert messages == expected[: 1 + 2 * turn]


def test_a_turn_that_failed_ends_its_conversation() -> None:
    done = replay_wire(Wire([], status=500), prompts=[CONVERSATION, builders.PROMPTS[0]])
    assert [(trace.prompt_id, trace.turn) for trace in done.traces] == [("talk", 1), ("chat-0", 1)]


def test_times_are_exact() -> None:
    trace = only_trace(Wire(PIECES))
    assert (trace.planned_ns, trace.sent_ns) == (MS, MS)
    assert (trace.first_ns, trace.last_ns) == (2 * MS, 4 * MS)
    assert (trace.first_chunk_tokens, trace.chunk_sizes) == (1, (0, 0, 0, 2))
    assert (trace.usage_tokens, trace.prompt_tokens) == (7, 9)
    assert ttft_ms(trace) == 1.0
    assert tpot_ms(trace) == 2 / 6
    cut = only_trace(Wire((PIECES[0], PIECES[1][:30], PIECES[1][30:], PIECES[2], USAGE)))
    assert (cut.first_ns, cut.last_ns) == (2 * MS, 5 * MS)
    done = replay_wire(Wire(PIECES), prompts=builders.PROMPTS[:2])
    assert (done.started_ns, done.ended_ns) == (1 * MS, 8 * MS)


def test_events_of_one_piece_have_one_time() -> None:
    wire = Wire([PIECES[0], PIECES[1] + PIECES[2], USAGE])
    done = replay_wire(wire, prompts=builders.PROMPTS[:1])
    assert done.traces[0].chunk_sizes == (0, 0, 0, 2)
    # Chunks that were read at once aren't a step apart.
    assert (done.gaps.size, done.gaps.min_ns, done.gaps.max_ns) == (1, MS, MS)


def open_load(rate: float, **settings: float) -> Case:
    load = Load(arrivals=Arrivals.CONSTANT, requests_per_s=rate, **settings)  # type: ignore[arg-type]
    return dataclasses.replace(builders.CASE, load=load)


class Slow(Wire):
    async def _stream(self) -> AsyncIterator[bytes]:
        await asyncio.sleep(0.2)
        for piece in PIECES:
            yield piece
        self.in_flight -= 1


def test_an_open_load_sends_when_due_however_slow_the_server_is() -> None:
    wire = Slow(())
    done = replay_wire(wire, open_load(100.0), clock=time.monotonic_ns)
    planned = [trace.planned_ns for trace in done.traces]
    assert {later - earlier for earlier, later in itertools.pairwise(planned)} == {10 * MS}
    assert all(trace.sent_ns >= trace.planned_ns for trace in done.traces)
    assert wire.most_in_flight == len(builders.PROMPTS)


def test_a_round_with_a_duration_sends_its_prompts_again_until_it_is_over() -> None:
    case = open_load(1000.0, duration_s=0.013)
    done = replay_wire(Wire(PIECES), case, clock=time.monotonic_ns)
    ids = [trace.prompt_id for trace in done.traces]
    wanted = itertools.islice(itertools.cycle(p.id for p in builders.PROMPTS), 13)
    assert ids == list(wanted)


def test_a_closed_loop_with_a_duration_ends_after_it() -> None:
    """Each request takes four milliseconds of the wire's clock: 3 s are 750 of them."""
    load = Load(concurrency=1, duration_s=3.0)
    done = replay_wire(Wire(PIECES), dataclasses.replace(builders.CASE, load=load))
    assert len(done.traces) == 750


def test_a_closed_loop_starts_its_requests_one_after_another() -> None:
    load = Load(concurrency=3, ramp_up_s=0.03)
    case = dataclasses.replace(builders.CASE, load=load)
    part = RoundSlice(started_ns=time.monotonic_ns())
    done = replay_wire(Slow(()), case, builders.PROMPTS[:3], part, clock=time.monotonic_ns)
    for slot, trace in enumerate(done.traces):
        assert trace.sent_ns >= part.started_ns + (10 * slot - 1) * MS


def test_slices_are_parts_of_one_round() -> None:
    wires = [Wire(PIECES), Wire(PIECES)]
    rounds = [
        replay_wire(wire, builders.CASE, round_slice=RoundSlice(number=number, of=2, started_ns=MS))
        for number, wire in enumerate(wires)
    ]
    ids = [[trace.prompt_id for trace in part.traces] for part in rounds]
    assert ids == [["chat-0", "chat-2", "chat-4"], ["chat-1", "chat-3", "chat-5"]]
    assert [wire.most_in_flight for wire in wires] == [1, 1]


def test_requests_are_recorded_as_they_end_and_not_with_the_round() -> None:
    """A run that is killed must have on disk what it has measured."""
    wire = Wire((event("1", '"length"'),))
    requests = list[int]()

    def record(_: FinishedRequest) -> None:
        requests.append(len(wire.asked))

    case = builders.with_concurrency(16)
    prompts = builders.PROMPTS * 40
    replay_wire(wire, case, prompts, record=record, clock=time.monotonic_ns)
    assert len(requests) == 240
    # Those in flight, and as many that have just ended.
    assert max(sent - done for done, sent in enumerate(requests, 1)) <= 3 * 16


def test_a_disk_that_refuses_ends_the_round_at_once() -> None:
    wire = Wire((event("1", '"length"'),))

    def refuse(_: FinishedRequest) -> None:
        raise SpecregError("no room")

    with pytest.raises(SpecregError, match="no room"):
        replay_wire(wire, prompts=builders.PROMPTS * 40, record=refuse, clock=time.monotonic_ns)
    assert len(wire.asked) < 10, "of 240"


def test_a_lag_of_the_event_loop_is_measured() -> None:
    class Blocking(Wire):
        async def _stream(self) -> AsyncIterator[bytes]:
            for piece in PIECES:
                await asyncio.sleep(0.03)
                time.sleep(0.06)  # noqa: ASYNC251 - what a client must not do
                yield piece

    done = replay_wire(Blocking(()), ONE_AT_A_TIME, builders.PROMPTS[:1], clock=time.monotonic_ns)
    assert done.lags.max_ns > 30 * MS


def gaps_s(load: Load, count: int = 20_000) -> list[float]:
    due = list(itertools.islice(due_after_ns(load), count + 1))
    assert due[0] == 0
    return [(later - earlier) / S for earlier, later in itertools.pairwise(due)]


@pytest.mark.parametrize(
    ("arrivals", "burstiness", "variation"),
    [
        (Arrivals.CONSTANT, 1.0, 0.0),
        (Arrivals.POISSON, 1.0, 1.0),
        (Arrivals.GAMMA, 1.0, 1.0),
        (Arrivals.GAMMA, 0.25, 2.0),
        (Arrivals.GAMMA, 4.0, 0.5),
    ],
)
def test_arrivals_have_the_rate_and_the_variation_that_they_should(
    arrivals: Arrivals, burstiness: float, variation: float
) -> None:
    gaps = gaps_s(Load(arrivals=arrivals, requests_per_s=5.0, burstiness=burstiness))
    mean = statistics.fmean(gaps)
    assert mean == pytest.approx(0.2, rel=0.05)
    assert statistics.stdev(gaps) / mean == pytest.approx(variation, rel=0.05, abs=1e-6)


def test_random_arrivals_repeat_with_their_seed() -> None:
    load = Load(arrivals=Arrivals.POISSON, requests_per_s=5.0)
    assert gaps_s(load, 100) == gaps_s(load, 100)
    poisson = Load(arrivals=Arrivals.POISSON, requests_per_s=5.0, seed=1)
    assert gaps_s(load, 100) != gaps_s(poisson, 100)


def test_a_rate_rises_linearly_over_the_ramp_and_holds_then() -> None:
    """At 100/s with a ramp of 4 s: by time t, 100 t²/8 requests are due; by 4 s, 200 of them."""
    load = Load(arrivals=Arrivals.CONSTANT, requests_per_s=100.0, ramp_up_s=4.0)
    due_s = [due / S for due in itertools.islice(due_after_ns(load), 401)]
    for request in (2, 50, 128, 200):
        assert 100 * due_s[request] ** 2 / 8 == pytest.approx(request)
    assert due_s[200] == pytest.approx(4.0)
    assert due_s[400] == pytest.approx(6.0)
