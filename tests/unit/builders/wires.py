"""Answers of a server, byte by byte, by a clock of their own."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Sequence

import httpx
import msgspec

from specreg.core.address import Address
from specreg.datasets.prompts import Prompt
from specreg.engines.wire_format import Endpoint
from specreg.load.chat_client import Record
from specreg.load.rounds import Round, RoundSlice, replay_round
from specreg.matrix.case import Case
from tests.unit import builders
from tests.unit.builders.http_servers import Json

MS = 10**6
S = 10**9
ENDPOINT = Endpoint(address=Address("http://scripted"), model="toy", engine="vllm")
ONE_AT_A_TIME = builders.with_concurrency(1)


class Clock:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now_ns = MS

    def __call__(self) -> int:
        return self.now_ns


class Wire(httpx.AsyncBaseTransport):
    """Answers each request with the same pieces, a millisecond apart by its own clock."""

    def __init__(self, pieces: Sequence[bytes], status: int = 200) -> None:
        self.pieces = pieces
        self.status = status
        self.clock = Clock()
        self.in_flight = 0
        self.most_in_flight = 0
        self.asked: list[httpx.Request] = []

    @property
    def bodies(self) -> list[Json]:
        return [msgspec.json.decode(request.content) for request in self.asked]

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        self.asked.append(request)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        return httpx.Response(self.status, content=self._stream())

    async def _stream(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            await asyncio.sleep(0)
            self.clock.now_ns += MS
            yield piece
        self.in_flight -= 1


def replay_wire(
    wire: Wire,
    case: Case = ONE_AT_A_TIME,
    prompts: Sequence[Prompt] = builders.PROMPTS,
    round_slice: RoundSlice | None = None,
    record: Record | None = None,
    clock: Callable[[], int] | None = None,
    engine: str = "vllm",
) -> Round:
    """A round over a wire, by the wire's clock unless told otherwise."""
    clock = clock or wire.clock
    endpoint = dataclasses.replace(ENDPOINT, engine=engine)

    async def run() -> Round:
        async with httpx.AsyncClient(transport=wire, base_url="http://scripted") as client:
            built = await replay_round(
                case,
                endpoint,
                prompts,
                client=client,
                clock=clock,
                record=record,
                round_slice=round_slice,
            )
            return built.as_round()

    return asyncio.run(run())


def event(ids: str, finish_reason: str = "null", text: str = "x") -> bytes:
    delta = f'{{"delta": {{"content": "{text}"}}, "token_ids": [{ids}]'
    return f'data: {{"choices": [{delta}, "finish_reason": {finish_reason}}}]}}\n\n'.encode()


TOKENS = b'{"prompt_tokens": 9, "completion_tokens": 7}'
USAGE = b'data: {"choices": [], "usage": %b}\n\ndata: [DONE]\n\n' % TOKENS
PIECES = (event("1"), event("2, 3, 4"), event("5, 6, 7", '"length"'), USAGE)


class Mute(Wire):
    """Answers its first requests; to each of the others it says nothing for so long."""

    def __init__(self, each_s: float, *, answered: int = 0) -> None:
        super().__init__(PIECES)
        self.each_s = each_s
        self.answered = answered

    async def _stream(self) -> AsyncIterator[bytes]:
        if len(self.asked) <= self.answered:
            for piece in PIECES:
                yield piece
            return
        self.clock.now_ns += round(self.each_s * S)
        yield b": still there\n\n"
        await asyncio.Event().wait()
