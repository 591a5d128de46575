"""A server whose events hold what is new alone is asked and read as one whose events repeat."""

import asyncio
import itertools
import time
from contextlib import AbstractAsyncContextManager

import msgspec
import pytest

from specreg.acceptance.checks import check_requests
from specreg.core.address import Address
from specreg.datasets.prompts import Prompt
from specreg.engines.wire_format import Endpoint, Form
from specreg.load.chat_client import FinishedRequest
from specreg.load.rounds import open_clients
from specreg.matrix.case import Case
from tests.doubles.protocols.sglang import ScriptedIncrementalSglang, ScriptedSglang
from tests.doubles.vllm.http import HttpServer, Request
from tests.doubles.vllm.launch import Launch
from tests.doubles.vllm.script import Script, steps_of
from tests.unit import builders

CASE = builders.with_request(builders.with_concurrency(1), form=Form.COMPLETIONS, turns=3)
TURNS = ("Tell me one thing.", " And another.", " Now the last one.")
CHAT = Prompt(id="a-chat", category="chat", turns=TURNS)


def asked(listening: AbstractAsyncContextManager[str], case: Case = CASE) -> list[FinishedRequest]:
    """The requests of one conversation with a server in this process."""

    async def run() -> list[FinishedRequest]:
        finished: list[FinishedRequest] = []
        async with listening as base_url:
            endpoint = Endpoint(address=Address(base_url), model="toy", engine="sglang")
            async with open_clients(case, endpoint, clock=time.monotonic_ns) as clients:
                await clients.replay([CHAT], finished.append)
        return finished

    return asyncio.run(run())


@pytest.mark.parametrize("server", [ScriptedSglang, ScriptedIncrementalSglang])
def test_a_later_turn_is_sent_with_the_whole_reply_before_it(server: type[ScriptedSglang]) -> None:
    """The scripted server's answers depend on each character that was said before."""
    script = Script(prefill_ms=0.0, step_ms=0.0)
    launch = Launch(model="folder", name="toy", draft_tokens=3, counts=True)
    finished = asked(server(launch, script).listening())
    check_requests([request.trace for request in finished])
    text_before = ""
    for turn, request in zip(TURNS, finished, strict=True):
        text_before += turn
        truth = steps_of(text_before, script, num_speculative_tokens=3, max_tokens=20)
        assert (request.text, request.trace.tokens) == (truth.text, truth.completion_tokens)
        assert request.trace.acceptance is not None
        assert request.trace.acceptance.accepted == truth.accepted_tokens
        text_before += request.text


def test_a_chat_whose_events_repeat_is_no_measurement() -> None:
    """A delta holds what is new, by its name: a reply of all of them would be nobody's."""
    words = tuple(itertools.accumulate(("One", " two", " three", " four", " five")))

    async def answer(request: Request) -> None:
        await request.start_stream("text/event-stream")
        for tokens, text in enumerate(words, 1):
            reason = "stop" if text == words[-1] else None
            choice = {"delta": {"content": text}, "finish_reason": reason}
            event = {"choices": [choice], "usage": {"completion_tokens": tokens}}
            await request.write(b"data: %b\n\n" % msgspec.json.encode(event))

    server = HttpServer({("POST", "/v1/chat/completions"): answer})
    (finished,) = asked(server.listening(), builders.with_request(CASE, form=Form.CHAT))
    assert (finished.trace.error or "").startswith("TEXT_REPEATED: each event of the stream")
