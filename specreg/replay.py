"""Replaying: prompts and a server in, the traces of its requests out."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import httpx
from httpx_aiohttp import HttpxAiohttpClient

from specreg.datasets import Prompt
from specreg.engines import Ask
from specreg.errors import InvalidMeasurementError
from specreg.matrix import Case
from specreg.server import Server
from specreg.sse import DONE, EventSplitter
from specreg.trace import Chunk, RequestTrace, StreamEvent

_SILENCE_S = 60.0
"""How long a stream may be silent before its request counts as failed."""

Clock = Callable[[], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Some prompts replayed without a pause.

    Attributes:
        traces: in the order of the prompts.
        started_ns: the first send.
        ended_ns: the last chunk with a token; `started_ns` if there was none.
    """

    traces: tuple[RequestTrace, ...]
    started_ns: int
    ended_ns: int


def new_client(server: Server, *, concurrency: int) -> httpx.AsyncClient:
    """A client for one server, over the aiohttp transport: it costs a third of httpx's own."""
    # Servers drop an idle connection after 5 s; reusing it at that moment would fail a request.
    limits = httpx.Limits(max_connections=concurrency + 1, keepalive_expiry=2.0)
    timeout = httpx.Timeout(_SILENCE_S)
    return HttpxAiohttpClient(
        base_url=server.base_url, limits=limits, timeout=timeout, trust_env=False
    )


async def replay_round(
    case: Case,
    server: Server,
    prompts: Sequence[Prompt],
    *,
    client: httpx.AsyncClient,
    clock: Clock,
) -> Round:
    """Replays prompts in a closed loop: `case.concurrency` requests are in flight, in order.

    A request that fails is a trace with an error; nothing is retried.

    Args:
        case: concurrency, output cap and sampling.
        server: whom to ask.
        prompts: one at least; their first turn is sent.
        client: for that server.
        clock: monotonic, in nanoseconds.
    """
    waiting = iter(enumerate(prompts))
    traces: dict[int, RequestTrace] = {}

    async def keep_asking(waiting: Iterator[tuple[int, Prompt]]) -> None:
        for index, prompt in waiting:
            traces[index] = await _replay_request(case, server, prompt, client=client, clock=clock)

    await asyncio.gather(*(keep_asking(waiting) for _ in range(case.concurrency)))
    in_order = tuple(traces[index] for index in range(len(prompts)))
    started_ns = min(trace.sent_ns for trace in in_order)
    arrivals = (trace.chunks[-1].at_ns for trace in in_order if trace.chunks)
    return Round(traces=in_order, started_ns=started_ns, ended_ns=max(arrivals, default=started_ns))


@dataclass(slots=True)
class _Gathered:
    """What has come of one stream so far."""

    chunks: list[Chunk] = field(default_factory=list)
    last: StreamEvent = field(default_factory=StreamEvent)
    finish_reason: str | None = None

    def take(self, event: StreamEvent, at_ns: int) -> None:
        if event.tokens:
            self.chunks.append(Chunk(at_ns=at_ns, tokens=event.tokens, text=event.text))
        self.finish_reason = event.finish_reason or self.finish_reason
        self.last = event


async def _replay_request(
    case: Case, server: Server, prompt: Prompt, *, client: httpx.AsyncClient, clock: Clock
) -> RequestTrace:
    ask = Ask(
        model=server.model,
        text=prompt.turns[0],
        output_cap_tokens=case.output_cap_tokens,
        temperature=case.temperature,
    )
    body = server.engine.chat_body(ask)
    gathered = _Gathered()
    error = None
    sent_ns = clock()
    try:
        await _stream(server, body, gathered, client=client, clock=clock)
    except httpx.HTTPError as failure:
        error = f"{type(failure).__name__}: {failure}" if str(failure) else type(failure).__name__
    except InvalidMeasurementError as failure:
        error = str(failure)
    return RequestTrace(
        prompt_id=prompt.id,
        category=prompt.category,
        planned_ns=sent_ns,
        sent_ns=sent_ns,
        chunks=tuple(gathered.chunks),
        usage_tokens=gathered.last.usage_tokens,
        finish_reason=gathered.finish_reason,
        acceptance=gathered.last.acceptance,
        error=error,
    )


async def _stream(
    server: Server,
    body: object,
    gathered: _Gathered,
    *,
    client: httpx.AsyncClient,
    clock: Clock,
) -> None:
    path = server.engine.chat_path
    splitter = EventSplitter()
    async with client.stream("POST", path, json=body) as response:
        if response.status_code != httpx.codes.OK:
            content = (await response.aread())[:300].decode(errors="replace")
            message = f"HTTP {response.status_code} from {path}: {content}"
            raise InvalidMeasurementError("HTTP_ERROR", message)
        async for piece in response.aiter_raw():
            at_ns = clock()
            for event in splitter.feed(piece):
                if event != DONE:
                    gathered.take(server.engine.parse_event(event), at_ns)
