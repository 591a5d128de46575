"""Whether a server hangs is decided after each round too, and by each process."""

import asyncio
import functools
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace

import httpx
import pytest

from specreg.core.errors import HungError
from specreg.load.chat_client import FinishedRequest
from specreg.load.rounds import Clients, Round, _Worker
from specreg.matrix.case import Case
from tests.unit import builders
from tests.unit.builders.wires import ENDPOINT, ONE_AT_A_TIME, PIECES, Mute, Wire

LITTLE = builders.with_request(ONE_AT_A_TIME, request_timeout_s=0.2)
"""A round of it is over long before a minute is."""


clients = functools.partial(Clients, endpoint=ENDPOINT, workers=())


def replay(wire: Wire, case: Case, prompts: int) -> tuple[Round, list[FinishedRequest]]:
    """Replay a round by one process over a wire; return it with what was recorded."""
    recorded: list[FinishedRequest] = []

    async def run() -> Round:
        async with httpx.AsyncClient(transport=wire, base_url="http://scripted") as client:
            load_clients = clients(case=case, client=client, clock=wire.clock, token_within_s=0.3)
            return await load_clients.replay(builders.PROMPTS[:prompts], recorded.append)

    return asyncio.run(run()), recorded


@pytest.mark.parametrize("answered", [0, 1])
def test_a_server_that_hangs_at_the_end_of_a_round_is_known(answered: int) -> None:
    wire = Mute(1.0, answered=answered)
    with pytest.raises(HungError, match=r"HUNG: no token came for 0\.3 s"):
        replay(wire, LITTLE, answered + 1)
    assert [body["max_tokens"] for body in wire.bodies] == [20] * (answered + 1) + [1]


class MuteOnce(Wire):
    async def _stream(self) -> AsyncIterator[bytes]:
        if len(self.asked) == 1:
            await asyncio.Event().wait()
        for piece in PIECES:
            yield piece


@pytest.mark.parametrize("prompts", [1, 2])
def test_a_request_that_times_out_does_not_mean_that_the_server_hangs(prompts: int) -> None:
    wire = MuteOnce(())
    done, recorded = replay(wire, LITTLE, prompts)
    errors = [trace.error for trace in done.traces]
    assert errors == ["no end within request_timeout_s = 0.2", *[None] * (prompts - 1)]
    assert len(wire.asked) == prompts + 1
    assert len(recorded) == prompts, "the token more isn't"


def test_a_server_that_refuses_a_token_does_not_hang() -> None:
    class Refusing(MuteOnce):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            self.status = 429 if self.asked else 200
            return await super().handle_async_request(request)

    assert len(replay(Refusing(()), LITTLE, 1)[0].traces) == 1


def test_a_round_without_a_fault_sends_no_further_request() -> None:
    wire = Wire(PIECES)
    replay(wire, LITTLE, 2)
    assert len(wire.asked) == 2


def test_a_client_process_that_reports_a_hanging_server_is_believed() -> None:
    async def run() -> None:
        replies = asyncio.StreamReader()
        replies.feed_data(b'{"hung_s": 60.0}\n')
        reports: list[object] = []
        worker = _Worker(SimpleNamespace(send=reports.append), replies)  # type: ignore[arg-type]
        async with httpx.AsyncClient() as client:
            several = clients(
                case=LITTLE, client=client, clock=time.monotonic_ns, workers=(worker,)
            )
            with pytest.raises(HungError, match=r"HUNG: no token came for 60 s"):
                await several.replay(builders.PROMPTS)
        assert len(reports) == 1

    asyncio.run(run())
