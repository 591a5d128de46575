"""What SGLang speaks: OpenAI's chat, and its own `/generate` for what isn't a chat."""

import contextlib
import math
import statistics
from collections.abc import Iterable, Mapping
from typing import ClassVar

import msgspec

from specreg.acceptance.page import counts_of, samples_of
from specreg.acceptance.record import Counters, Gauges, Source, StepCounts
from specreg.acceptance.trace import Body, StreamEvent
from specreg.core.errors import InvalidMeasurementError, UnsupportedError
from specreg.core.files import UNREADABLE
from specreg.core.http import Count, Name
from specreg.engines.methods import is_older
from specreg.engines.protocols._openai import (
    USAGE_IN_EACH_CHUNK,
    SpecTokensDetails,
    UsageDecoder,
    openai_body,
)
from specreg.engines.protocols._protocol import (
    Ask,
    Form,
    Protocol,
    StreamDecoder,
    decode_event,
)

_CALLS = "sglang:spec_verify_calls_total"
_LENGTH, _RATE = "sglang:spec_accept_length", "sglang:spec_accept_rate"
_FIRST_WHOSE_CHAT_TELLS = "0.5.19"
_FIRST_THAT_COUNTS = "0.5.13"
_FIRST_THAT_TELLS = "0.5.9"
_FIRST_THAT_EXPORTS = "0.5.11"  # 0.5.9 does too, and two requests may write at the same time


class _FinishReason(msgspec.Struct, frozen=True):
    type: Name


class _MetaInfo(SpecTokensDetails, frozen=True):
    """What `/generate` says of an answer."""

    completion_tokens: Count = 0
    finish_reason: _FinishReason | None = None


class _Exported(SpecTokensDetails, frozen=True, kw_only=True):
    """A line of the file: what `/generate` says of an answer. What was asked isn't read."""

    id: Name


_exported_decoder = msgspec.json.Decoder(_Exported)


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
    """SGLang: `/generate` tells its steps from 0.5.9 on, a chat from 0.5.19 on.

    What a chat doesn't tell stands in a file from 0.5.11 on.
    """

    name: ClassVar = "sglang"
    request_source: ClassVar[Source | None] = Source.SGLANG_REQUEST
    counters_source: ClassVar[Source | None] = None
    counters_path: ClassVar[str | None] = "/metrics"
    counters_flag: ClassVar = "--enable-metrics"

    def check(self, form: Form, version: str, *, ours: bool) -> None:
        """By the version, and the form of the prompt.

        Raises:
            UnsupportedError: this version doesn't tell its acceptance.
        """
        if is_older(version, _FIRST_THAT_TELLS):
            message = (
                f"acceptance of SGLang {version}: its answers don't count their steps; take"
                f" {_FIRST_THAT_TELLS} or newer"
            )
            raise UnsupportedError(message)
        first = _FIRST_THAT_EXPORTS if ours else _FIRST_WHOSE_CHAT_TELLS
        if form is Form.CHAT and is_older(version, first):
            message = (
                f"acceptance of SGLang {version}: its answers to a chat don't tell it; take"
                f' {first} or newer, or set form = "completions" in the matrix'
            )
            raise UnsupportedError(message)

    def exports(self, version: str) -> bool:
        """Where a chat's answer doesn't tell."""
        return is_older(version, _FIRST_WHOSE_CHAT_TELLS)

    def parse_export(self, lines: Iterable[bytes]) -> Mapping[str, StepCounts]:
        """What `--export-metrics-to-file` wrote; a line that can't be read tells nothing.

        Raises:
            InvalidMeasurementError: `COUNTS_DISAGREE`.
        """
        found = {}
        for line in lines:
            with contextlib.suppress(*UNREADABLE):
                exported = _exported_decoder.decode(line)
                if exported.counts is not None:
                    found[exported.id] = exported.counts
        return found

    def counters_path_of(self, version: str) -> str | None:
        """None before 0.5.13: requests of others don't show then."""
        return None if is_older(version, _FIRST_THAT_COUNTS) else self.counters_path

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
        """The verify calls, which are all that SGLang counts of its steps; and its gauges.

        Raises:
            InvalidMeasurementError: `METRICS_MISSING`, `METRICS_UNREADABLE`.
        """
        calls = [count for _, _, count in counts_of(page, _CALLS)]
        if not calls:
            message = f"looked for {_CALLS}; is the server started with {self.counters_flag}?"
            raise InvalidMeasurementError("METRICS_MISSING", message)
        return Counters(
            steps=sum(calls), gauges=_gauges(_series(page, _LENGTH), _series(page, _RATE))
        )


_Series = Mapping[frozenset[tuple[str, str]], float]
"""The values of a name, by their labels: each scheduler has its own."""


def _series(page: str, name: str) -> _Series:
    """What a page says by a name."""
    found = (sample for sample in samples_of(page) if sample.name == name)
    return {frozenset(sample.labels.items()): sample.value for sample in found}


def _gauges(lengths: _Series, rates: _Series) -> Gauges | None:
    """Their means over the schedulers that have set them, which they first do after some steps."""
    set_by = [labels for labels, value in lengths.items() if 0 < value < math.inf]
    if not set_by:
        return None
    said = [rates[labels] for labels in set_by if math.isfinite(rates.get(labels, math.nan))]
    return Gauges(
        acceptance_length_tokens=statistics.fmean(lengths[labels] for labels in set_by),
        acceptance_rate_frac=statistics.fmean(said) if said else None,
    )


PROTOCOL = SglangProtocol()
