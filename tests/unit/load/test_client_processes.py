"""Who asks decides over all processes, and after each round, whether a server hangs."""

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator

import httpx
import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from specreg.core.errors import HungError
from specreg.load.chat_client import FinishedRequest
from specreg.load.client_processes import Clients, open_clients
from specreg.load.rounds import Round
from specreg.matrix.case import Case
from tests.unit import builders
from tests.unit.load.test_rounds import ENDPOINT, ONE_AT_A_TIME, PIECES, USAGE, Mute, Wire, event

LITTLE = dataclasses.replace(ONE_AT_A_TIME, request_timeout_s=0.2)
"""A round of it is over long before a minute is."""


def replay(wire: Wire, case: Case, prompts: int) -> tuple[Round, list[FinishedRequest]]:
    """A round of a crew of one over a wire, and what was recorded."""
    recorded: list[FinishedRequest] = []

    async def run() -> Round:
        async with httpx.AsyncClient(transport=wire, base_url="http://scripted") as client:
            crew = Clients(
                case=case,
                endpoint=ENDPOINT,
                clock=wire.clock,
                client=client,
                workers=(),
                token_within_s=0.3,
            )
            return await crew.replay(builders.PROMPTS[:prompts], recorded.append)

    return asyncio.run(run()), recorded


@pytest.mark.parametrize("answered", [0, 1])
def test_a_server_that_hangs_at_the_end_of_a_round_is_known(answered: int) -> None:
    wire = Mute(1.0, answered=answered)
    with pytest.raises(HungError, match=r"HUNG: no token came for 0\.3 s"):
        replay(wire, LITTLE, answered + 1)
    assert [body["max_tokens"] for body in wire.bodies] == [20] * (answered + 1) + [1]


class MuteOnce(Wire):
    """Says nothing to its first request."""

    async def _stream(self) -> AsyncIterator[bytes]:
        if len(self.asked) == 1:
            await asyncio.Event().wait()
        for piece in PIECES:
            yield piece


@pytest.mark.parametrize("prompts", [1, 2])
def test_a_request_whose_time_is_up_is_no_server_that_hangs(prompts: int) -> None:
    wire = MuteOnce(())
    done, recorded = replay(wire, LITTLE, prompts)
    errors = [trace.error for trace in done.traces]
    assert errors == ["no end within request_timeout_s = 0.2", *[None] * (prompts - 1)]
    assert len(wire.asked) == prompts + 1
    assert len(recorded) == prompts, "the token more is nobody's"


def test_a_server_that_refuses_a_token_does_not_hang() -> None:
    class Refusing(MuteOnce):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            self.status = 429 if self.asked else 200
            return await super().handle_async_request(request)

    assert len(replay(Refusing(()), LITTLE, 1)[0].traces) == 1


def test_a_round_without_a_fault_asks_for_no_token_more() -> None:
    wire = Wire(PIECES)
    replay(wire, LITTLE, 2)
    assert len(wire.asked) == 2


class Ahead:
    """The system's clock, after the first look so much ahead of it."""

    def __init__(self, ahead_s: float) -> None:
        self.ahead_s = ahead_s
        self.looks = 0

    def __call__(self) -> int:
        self.looks += 1
        return time.monotonic_ns() + round(self.ahead_s * 10**9) * (self.looks > 1)


def replay_by_two(ahead_s: float, muted: set[str]) -> Round:
    """A round of two client processes; a server that says nothing to some prompts.

    The others have their tokens over four seconds; whoever asks for one has it at once.
    """

    async def answer(request: web.Request) -> web.StreamResponse:
        body = msgspec.json.decode(await request.read())
        if body["max_tokens"] > 1 and body["messages"][0]["content"] in muted:
            await asyncio.Event().wait()
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(80 if body["max_tokens"] > 1 else 0):
            await response.write(event("1"))
            await asyncio.sleep(0.05)
        await response.write(event("1", '"length"') + USAGE)
        return response

    async def run() -> Round:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", answer)
        async with TestServer(app) as listening:
            endpoint = dataclasses.replace(ENDPOINT, base_url=str(listening.make_url("")))
            case = dataclasses.replace(
                builders.with_concurrency(2), client_processes=2, request_timeout_s=5.0
            )
            async with open_clients(case, endpoint, clock=Ahead(ahead_s)) as crew:
                return await crew.replay(builders.PROMPTS[:2])

    return asyncio.run(run())


def test_a_server_that_hangs_for_all_processes_is_known() -> None:
    with pytest.raises(HungError, match=r"HUNG: no token came for 60 s"):
        replay_by_two(61.0, {prompt.turns[0] for prompt in builders.PROMPTS})


def test_a_server_that_is_silent_to_one_process_beside_another_does_not_hang() -> None:
    """Three seconds after the last token it would."""
    sound, silent = replay_by_two(57.0, {builders.PROMPTS[1].turns[0]}).traces
    assert sound.error is None
    assert silent.error == "no end within request_timeout_s = 5"
