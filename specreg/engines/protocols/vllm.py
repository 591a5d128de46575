"""What vLLM speaks: OpenAI's endpoints, with token ids, acceptance per request and counters."""

from typing import ClassVar

import msgspec

from specreg.acceptance.record import Counters, Source, StepCounts
from specreg.acceptance.trace import Body, StreamEvent
from specreg.core.http import Count, Histogram
from specreg.engines.protocols._openai import (
    NO_CHOICE,
    USAGE,
    Choice,
    Usage,
    openai_body,
    openai_path,
)
from specreg.engines.protocols._protocol import Ask, Protocol, StreamDecoder, decode_event
from specreg.engines.vllm_counters import parse_vllm_counters, parse_vllm_requests


class _Speculation(msgspec.Struct, frozen=True):
    acceptance_histogram: Histogram
    num_draft_tokens: Count


class _Metrics(msgspec.Struct, frozen=True):
    speculative_decoding: _Speculation | None = None


class _Event(msgspec.Struct, frozen=True):
    choices: tuple[Choice, ...] = ()
    usage: Usage | None = None
    metrics: _Metrics | None = None
    error: object = None


_decoder = msgspec.json.Decoder(_Event)


class _Decoder(StreamDecoder):
    __slots__ = ()

    def parse_event(self, event: bytes) -> StreamEvent:
        """A chunk; the final one has no choices and carries usage and acceptance."""
        parsed = decode_event(_decoder, event)
        choice = parsed.choices[0] if parsed.choices else NO_CHOICE
        return StreamEvent(
            tokens=len(choice.token_ids or ()),
            text=choice.content,
            finish_reason=choice.finish_reason,
            usage_tokens=parsed.usage.completion_tokens if parsed.usage else None,
            acceptance=_counts(parsed.metrics.speculative_decoding) if parsed.metrics else None,
        )


class VllmProtocol(Protocol):
    """vLLM; acceptance per request from 0.29 on, before it by counters alone."""

    name: ClassVar = "vllm"
    request_source: ClassVar[Source | None] = Source.VLLM_REQUEST
    counters_source: ClassVar[Source | None] = Source.VLLM_COUNTERS
    counters_path: ClassVar[str | None] = "/metrics"

    def path(self, ask: Ask) -> str:
        """By the form of the prompt."""
        return openai_path(ask)

    def body(self, ask: Ask) -> Body:
        """Token ids, so that a chunk's tokens are counted and not guessed; usage at the end."""
        return {**openai_body(ask, USAGE), "return_token_ids": True}

    def new_decoder(self, ask: Ask) -> StreamDecoder:
        """One for all: an event stands for itself."""
        del ask
        return _DECODER

    def parse_counters(self, page: str) -> Counters:
        """The counters `vllm:spec_decode_num_…`, and those of requests."""
        counts = parse_vllm_counters(page)
        ended, running = parse_vllm_requests(page)
        return Counters(steps=counts.steps, counts=counts, requests=ended, running_requests=running)


def _counts(speculation: _Speculation | None) -> StepCounts | None:
    if speculation is None:
        return None
    return StepCounts.from_histogram(speculation.acceptance_histogram, speculation.num_draft_tokens)


_DECODER = _Decoder()
PROTOCOL = VllmProtocol()
