"""A server that hangs is known in a round and after it; one that is slow or refuses is not it."""

import asyncio
import dataclasses
import itertools
from collections.abc import AsyncIterator

import httpx
import pytest

from specreg.core.errors import HungError
from specreg.load.chat_client import FinishedRequest
from specreg.load.rounds import Client, Round
from specreg.matrix.case import Case
from tests.unit import builders
from tests.unit.load.test_rounds import (
    ENDPOINT,
    ONE_AT_A_TIME,
    PIECES,
    S,
    Wire,
    open_load,
    replay_wire,
)


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


@pytest.mark.parametrize("before", [0, 2], ids=["from-the-first", "later"])
def test_a_server_on_whose_streams_no_token_comes_hangs(before: int) -> None:
    """What is on its way is given up: to wait for each request in turn would take an hour."""

    wire, recorded = Mute(61.0, answered=before), list[FinishedRequest]()
    with pytest.raises(HungError, match=r"HUNG: no token came for 60 s"):
        replay_wire(wire, ONE_AT_A_TIME, builders.PROMPTS[:4], record=recorded.append)
    assert len(wire.asked) == before + 1
    assert len(recorded) == before


@pytest.mark.parametrize("stream", [True, False], ids=["streams", "whole-answers"])
def test_a_server_hangs_too_where_its_requests_have_less_time(*, stream: bool) -> None:
    """A request whose time is up is no sign of life, and the next one no new beginning."""
    case = dataclasses.replace(ONE_AT_A_TIME, request_timeout_s=0.4, stream=stream)
    wire, recorded = Mute(21.0), list[FinishedRequest]()
    with pytest.raises(HungError, match=r"HUNG: no token came for 60 s"):
        replay_wire(wire, case, builders.PROMPTS * 2, record=recorded.append)
    assert 3 <= len(wire.asked) < 12
    assert all(one.late for one in recorded)


def test_whole_answers_may_take_as_long_as_a_request_may() -> None:
    case = dataclasses.replace(ONE_AT_A_TIME, request_timeout_s=300.0, stream=False)
    with pytest.raises(HungError, match=r"HUNG: no token came for 300 s"):
        replay_wire(Mute(301.0), case, builders.PROMPTS[:1])


def test_a_server_that_refuses_does_not_hang() -> None:
    class Refusing(Wire):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            await asyncio.sleep(0.4)
            self.clock.now_ns += 31 * S
            return await super().handle_async_request(request)

    done = replay_wire(Refusing([], status=429))
    assert {(trace.error or "")[:20] for trace in done.traces} == {"HTTP_ERROR: HTTP 429"}


def test_a_server_of_which_nothing_is_asked_does_not_hang() -> None:
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


LITTLE = dataclasses.replace(ONE_AT_A_TIME, request_timeout_s=0.2)
"""A round of it is over long before a minute is."""


def replay(wire: Wire, case: Case, prompts: int) -> tuple[Round, list[FinishedRequest]]:
    """A round over a wire, with what follows it, and what was recorded."""
    recorded: list[FinishedRequest] = []

    async def run() -> Round:
        async with httpx.AsyncClient(transport=wire, base_url="http://scripted") as client:
            asking = Client(
                case=case, endpoint=ENDPOINT, clock=wire.clock, http=client, token_within_s=0.3
            )
            return await asking.replay(builders.PROMPTS[:prompts], recorded.append)

    return asyncio.run(run()), recorded


@pytest.mark.parametrize("stream", [True, False], ids=["streams", "whole-answers"])
@pytest.mark.parametrize("answered", [0, 1])
def test_a_server_that_hangs_at_the_end_of_a_round_is_known(*, answered: int, stream: bool) -> None:
    wire = Mute(1.0, answered=answered)
    with pytest.raises(HungError, match=r"HUNG: no token came for 0\.3 s"):
        replay(wire, dataclasses.replace(LITTLE, stream=stream), answered + 1)
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
