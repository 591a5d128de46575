"""What SGLang speaks: OpenAI's chat, and its own `/generate` for what isn't a chat."""

from typing import ClassVar

import msgspec

from specreg.acceptance.page import counts_of
from specreg.acceptance.record import Counters, Source
from specreg.errors import InvalidMeasurementError, UnsupportedError
from specreg.methods import is_older
from specreg.protocols._openai import (
    USAGE_IN_EACH_CHUNK,
    SpecTokensDetails,
    UsageDecoder,
    openai_body,
)
from specreg.protocols._protocol import (
    Ask,
    Form,
    Protocol,
    StreamDecoder,
    decode_event,
)
from specreg.trace import Body, StreamEvent

_CALLS = "sglang:spec_verify_calls_total"
_FIRST_WHOSE_CHAT_TELLS = "0.5.19"


class _FinishReason(msgspec.Struct, frozen=True):
    type: str


class _MetaInfo(SpecTokensDetails, frozen=True):
    """What `/generate` says of an answer."""

    completion_tokens: int = 0
    finish_reason: _FinishReason | None = None


class _Event(msgspec.Struct, frozen=True):
    text: str = ""
    meta_info: _MetaInfo = _MetaInfo()
    error: object = None


_decoder = msgspec.json.Decoder(_Event)


class _GenerateDecoder(StreamDecoder):
    """Each event of `/generate` repeats all text and counts all tokens so far."""

    __slots__ = ("_characters", "_tokens")

    def __init__(self) -> None:
        self._characters = 0
        self._tokens = 0

    def parse_event(self, event: bytes) -> StreamEvent:
        """What is new in an event; the last one has the record of the answer."""
        parsed = decode_event(_decoder, event)
        said, meta = parsed.text[self._characters :], parsed.meta_info
        tokens = meta.completion_tokens - self._tokens
        self._characters, self._tokens = len(parsed.text), meta.completion_tokens
        return StreamEvent(
            tokens=tokens,
            text=said,
            finish_reason=meta.finish_reason.type if meta.finish_reason else None,
            usage_tokens=meta.completion_tokens,
            acceptance=meta.counts,
        )


class SglangProtocol(Protocol):
    """SGLang: `/generate` counts steps by these names from 0.5.13 on, a chat from 0.5.19 on."""

    name: ClassVar = "sglang"
    request_source: ClassVar[Source | None] = Source.SGLANG_REQUEST
    counters_source: ClassVar[Source | None] = None
    counters_path: ClassVar[str | None] = "/metrics"

    def check(self, form: Form, version: str) -> None:
        """By the form of the prompt.

        Raises:
            UnsupportedError: this version's answers don't tell their acceptance.
        """
        if form is Form.CHAT and is_older(version, _FIRST_WHOSE_CHAT_TELLS):
            message = (
                f"acceptance of SGLang {version}: its answers to a chat don't tell it; take"
                f" {_FIRST_WHOSE_CHAT_TELLS} or newer with --specreg-engine-version, or set"
                ' form = "completions" in the matrix'
            )
            raise UnsupportedError(message)

    def path(self, ask: Ask) -> str:
        """By the form of the prompt."""
        return "/v1/chat/completions" if ask.form is Form.CHAT else "/generate"

    def body(self, ask: Ask) -> Body:
        """Usage in each chunk, and the record of the answer; `/generate` gives both unasked."""
        if ask.form is Form.CHAT:
            return {**openai_body(ask, USAGE_IN_EACH_CHUNK), "return_spec_tokens_details": True}
        return {
            **({"input_ids": ask.token_ids} if ask.token_ids else {"text": ask.text}),
            "sampling_params": {
                "max_new_tokens": ask.output_cap_tokens,
                "temperature": ask.temperature,
                "ignore_eos": ask.ignore_eos,
            },
            "stream": True,
        }

    def new_decoder(self, ask: Ask) -> StreamDecoder:
        """One for each answer, by its endpoint."""
        return UsageDecoder() if ask.form is Form.CHAT else _GenerateDecoder()

    def parse_counters(self, page: str) -> Counters:
        """The verify calls, which are all that SGLang counts of its steps.

        Raises:
            InvalidMeasurementError: `METRICS_MISSING`, `METRICS_UNREADABLE`.
        """
        calls = [count for _, _, count in counts_of(page, _CALLS)]
        if not calls:
            message = f"looked for {_CALLS}; is the server started with --enable-metrics?"
            raise InvalidMeasurementError("METRICS_MISSING", message)
        return Counters(steps=sum(calls))


PROTOCOL = SglangProtocol()
