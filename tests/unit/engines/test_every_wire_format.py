"""Any steps, played through the scripted server of any protocol, are read back exactly."""

import asyncio
import dataclasses
import hashlib
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specreg.acceptance.checks import check_requests
from specreg.acceptance.record import NO_STEPS, Counters, Source, StepCounts, View
from specreg.core.address import Address
from specreg.datasets.prompts import Prompt
from specreg.engines.registry import ENGINES
from specreg.engines.wire_format import Endpoint, Form
from specreg.load.rounds import Round, open_clients
from specreg.measurement.arm import read_acceptance
from tests.doubles.protocols.sglang import ScriptedSglang
from tests.doubles.protocols.tensorrt_llm import ScriptedTensorrtLlm
from tests.doubles.protocols.triton import ScriptedTriton
from tests.doubles.vllm.app import ScriptedServer
from tests.doubles.vllm.launch import Launch
from tests.doubles.vllm.script import Fault, Script, chat_prompt, steps_of
from tests.unit import builders

SERVERS = {
    "vllm": (ScriptedServer, Source.VLLM_REQUEST),
    "sglang": (ScriptedSglang, Source.SGLANG_REQUEST),
    "tensorrt_llm": (ScriptedTensorrtLlm, Source.TRTLLM_COUNTERS),
    "triton": (ScriptedTriton, Source.STREAM_CHUNKS),
}
WAYS = [
    (protocol, form)
    for protocol, form in itertools.product(SERVERS, Form)
    if (protocol, form) != ("triton", Form.CHAT)
]

WITH_IDS = {("vllm", Form.CHAT), ("vllm", Form.COMPLETIONS), ("sglang", Form.COMPLETIONS)}
"""The ways in which an answer's events hold token ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What one request is to do: tokens accepted by step, and how many of all are delivered."""

    accepted: tuple[int, ...]
    tokens: int

    def prompt(self, number: int) -> Prompt:
        """A prompt that makes the scripted server do it."""
        accepted = ",".join(map(str, self.accepted))
        text = f"Number {number}: accepted={accepted} tokens={self.tokens}"
        return Prompt(id=str(number), category="played", turns=(text,))

    def counts(self, draft_tokens: int, view: View) -> StepCounts:
        """The truth; in the emitted view without what was cut off the last step."""
        accepted = list(self.accepted)
        if accepted and view is View.EMITTED:
            accepted[-1] -= 1 + sum(a + 1 for a in self.accepted) - self.tokens
        histogram = [accepted.count(j) for j in range(draft_tokens + 1)]
        return StepCounts.from_histogram(histogram, proposed=draft_tokens * len(accepted))


@st.composite
def runs(draw: st.DrawFn) -> tuple[int, list[Played]]:
    """How many tokens are drafted, and some requests; one of them at least has accepted drafts.

    Up to eight steps each; the last one may be cut.
    """
    draft_tokens = draw(st.integers(1, 6))
    steps = st.lists(st.integers(0, draft_tokens), max_size=8)
    requests = [Played(accepted=(1,), tokens=3)]
    for accepted in draw(st.lists(steps, min_size=1, max_size=5)):
        cut = draw(st.integers(0, accepted[-1])) if accepted else 0
        tokens = 1 + sum(a + 1 for a in accepted) - cut
        requests.append(Played(accepted=tuple(accepted), tokens=tokens))
    return draft_tokens, requests


def play(
    protocol: str,
    form: Form,
    draft_tokens: int,
    requests: Sequence[Played],
    script: Script | None = None,
) -> tuple[Round, Counters | None, Counters | None]:
    """A round of the requests over real HTTP, and the counters around it."""
    launch = Launch(model="folder", name="toy", draft_tokens=draft_tokens, counts=True)
    server = SERVERS[protocol][0](launch, script or Script(prefill_ms=0.0, step_ms=0.0))
    wire_format = ENGINES[protocol].wire_format
    case = builders.with_request(builders.CASE, form=form)
    prompts = [request.prompt(number) for number, request in enumerate(requests)]

    async def run() -> tuple[Round, Counters | None, Counters | None]:
        async with server.listening() as base_url:
            endpoint = Endpoint(address=Address(base_url), model="toy", engine=protocol)
            before = None
            after = None
            async with open_clients(case, endpoint, clock=time.monotonic_ns) as clients:
                if wire_format.counters_path is not None:
                    page = await clients.scrape(wire_format.counters_path)
                    before = wire_format.parse_counters(page)
                replayed = await clients.replay(prompts)
                if wire_format.counters_path is not None:
                    page = await clients.scrape(wire_format.counters_path)
                    after = wire_format.parse_counters(page)
            return replayed, before, after

    return asyncio.run(run())


def test_each_protocol_but_that_of_the_reference_engine_has_a_scripted_server() -> None:
    """It speaks as vLLM does, and tests/reference plays known steps through the engine itself."""
    assert {*SERVERS, "reference"} == ENGINES.keys()


@pytest.mark.parametrize(("protocol", "form"), WAYS)
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(runs())
def test_the_steps_that_were_played_are_read_back_exactly(
    protocol: str, form: Form, run: tuple[int, list[Played]]
) -> None:
    draft_tokens, requests = run
    done, before, after = play(protocol, form, draft_tokens, requests)
    check_requests(done.traces)
    for number, (trace, request) in enumerate(zip(done.traces, requests, strict=True)):
        (prompt_text,) = request.prompt(number).turns
        prompt = (
            chat_prompt([{"role": "user", "content": prompt_text}])
            if form is Form.CHAT
            else prompt_text
        )
        steps = steps_of(prompt, num_speculative_tokens=draft_tokens)
        first, *later = (len(chunk.token_ids) for chunk in steps.chunks)
        sizes = itertools.chain(*([size] * n for size, n in enumerate(trace.chunk_sizes)))
        assert (trace.first_chunk_tokens, list(sizes)) == (first, sorted(later))
        shown = steps.text.encode()
        ids = msgspec.json.encode(steps.token_ids) if (protocol, form) in WITH_IDS else b""
        text = b"text %d %b" % (len(shown), shown) if shown else b""
        assert trace.answer_sha256 == hashlib.sha256(ids + text).hexdigest()[:16]
        assert trace.ids_sha256 == (hashlib.sha256(ids).hexdigest()[:16] if ids else "")
    spec = dataclasses.replace(builders.SPEC, draft_tokens=draft_tokens)
    record = read_acceptance(spec, ENGINES[protocol].wire_format, done.traces, before, after)
    assert record is not None
    assert record.source is SERVERS[protocol][1]
    # Of single requests counters tell nothing.
    by_prompt = zip(record.prompts, requests, strict=True) if record.prompts else ()
    assert bool(record.prompts) == (protocol != "tensorrt_llm")
    for prompt_steps, request in by_prompt:
        assert prompt_steps.completion_tokens == request.tokens
        truth = request.counts(draft_tokens, record.view)
        assert prompt_steps.counts == truth or not (prompt_steps.counts.steps or truth.steps)
    everything = [request.counts(draft_tokens, record.view) for request in requests]
    assert record.total == sum(everything, NO_STEPS)


@pytest.mark.parametrize(("protocol", "form"), WAYS)
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault.HTTP_500, "HTTP_ERROR: HTTP 500"),
        (Fault.WRONG_JSON, "EVENT_UNREADABLE"),
        (Fault.TRUNCATED_STREAM, "Error"),
    ],
)
def test_a_fault_is_an_error_of_its_request_in_every_protocol(
    protocol: str, form: Form, fault: Fault, words: str
) -> None:
    script = Script(prefill_ms=0.0, step_ms=0.0, fault=fault, fault_after_requests=1)
    requests = [Played(accepted=(1, 2, 0), tokens=7)] * 3
    errors = [trace.error for trace in play(protocol, form, 3, requests, script)[0].traces]
    assert sorted(error is None for error in errors) == [False, True, True]
    assert words in next(error for error in errors if error is not None)


def test_steps_are_read_from_the_chunks_of_a_tensorrt_llm_without_right_counters() -> None:
    requests = [Played(accepted=(3, 0, 2), tokens=9), Played(accepted=(1, 1), tokens=5)]
    done, _, _ = play("tensorrt_llm", Form.CHAT, 3, requests)
    spec = dataclasses.replace(builders.SPEC, draft_tokens=3)
    record = read_acceptance(
        spec, ENGINES["tensorrt_llm"].wire_format, done.traces, before=None, after=None
    )
    assert record is not None
    assert record.source is Source.STREAM_CHUNKS
    assert (record.total.steps, record.total.accepted) == (5, 7)
