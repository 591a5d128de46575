"""What OpenAI-like servers have in common: bodies, and streams whose chunks repeat the usage."""

from collections.abc import Mapping

import msgspec

from specreg.acceptance.record import StepCounts
from specreg.acceptance.trace import Body, StreamEvent
from specreg.core.errors import InvalidMeasurementError
from specreg.core.http import Count, Histogram, Name
from specreg.engines.protocols._protocol import Ask, Form, StreamDecoder, decode_event

USAGE: Mapping[str, object] = {"include_usage": True}
USAGE_IN_EACH_CHUNK: Mapping[str, object] = {"include_usage": True, "continuous_usage_stats": True}


class Delta(msgspec.Struct, frozen=True, gc=False):
    """What a chunk of a chat adds."""

    content: str | None = None


class Choice(msgspec.Struct, frozen=True):
    """What a chunk adds: `delta` in a chat, `text` in a completion."""

    delta: Delta | None = None
    text: str | None = None
    token_ids: list[int] | None = None
    finish_reason: Name | None = None

    @property
    def content(self) -> str:
        """The text added."""
        return (self.delta.content if self.delta else self.text) or ""


class Usage(msgspec.Struct, frozen=True, gc=False):
    """The server's count of what it has generated."""

    completion_tokens: Count


NO_CHOICE = Choice()


class SpecTokensDetails(msgspec.Struct, frozen=True):
    """SGLang's record of an answer: by the names of 0.5.13, of 0.5.11 (and up to 0.5.19), of 0.5.9.

    Its own acceptance length counts the prefill's token and is cut by the cap; the counts aren't.
    The histogram ends at the most drafts that a step accepted.
    """

    spec_correct_drafts_histogram: Histogram = ()
    spec_accept_histogram: Histogram = ()
    spec_num_correct_drafts: Count | None = None
    spec_accepted_drafts: Count | None = None
    spec_accept_token_num: Count | None = None
    spec_num_proposed_drafts: Count | None = None
    spec_proposed_drafts: Count | None = None
    spec_draft_token_num: Count | None = None

    @property
    def counts(self) -> StepCounts | None:
        """The steps, None where there were none, or none are told.

        Raises:
            InvalidMeasurementError: `COUNTS_DISAGREE`, what was accepted is another number than
                the histogram adds up to: then the names have another meaning.
        """
        histogram = self.spec_correct_drafts_histogram or self.spec_accept_histogram
        proposed = _first(
            self.spec_num_proposed_drafts, self.spec_proposed_drafts, self.spec_draft_token_num
        )
        accepted = _first(
            self.spec_num_correct_drafts, self.spec_accepted_drafts, self.spec_accept_token_num
        )
        if not sum(histogram):
            return None
        counts = StepCounts.from_histogram(histogram, proposed)
        if accepted != counts.accepted or proposed is None:
            message = (
                f"an answer tells the histogram {list(histogram)}, {accepted} drafts accepted and"
                f" {proposed} proposed; take a version of SGLang that specreg knows"
            )
            raise InvalidMeasurementError("COUNTS_DISAGREE", message)
        return counts


def _first(*told: int | None) -> int | None:
    """The first of several numbers that is told, None where none is."""
    return next((one for one in told if one is not None), None)


class _Extension(msgspec.Struct, frozen=True):
    spec_tokens_details: SpecTokensDetails | None = None


class _Event(msgspec.Struct, frozen=True):
    choices: tuple[Choice, ...] = ()
    usage: Usage | None = None
    sglext: _Extension | None = None
    id: Name = ""
    error: object = None


_decoder = msgspec.json.Decoder(_Event)


class UsageDecoder(StreamDecoder):
    """Counts a chunk's tokens by how far the usage has moved since the one before."""

    __slots__ = ("_tokens",)

    def __init__(self) -> None:
        self._tokens = 0

    def parse_event(self, event: bytes) -> StreamEvent:
        """A chunk; one of the last has SGLang's record of the answer."""
        parsed = decode_event(_decoder, event)
        before = self._tokens
        if parsed.usage is not None:
            self._tokens = parsed.usage.completion_tokens
        choice = parsed.choices[0] if parsed.choices else NO_CHOICE
        record = parsed.sglext.spec_tokens_details if parsed.sglext else None
        return StreamEvent(
            tokens=self._tokens - before,
            text=choice.content,
            finish_reason=choice.finish_reason,
            usage_tokens=parsed.usage.completion_tokens if parsed.usage else None,
            acceptance=record.counts if record else None,
            request_id=parsed.id,
        )


def openai_path(ask: Ask) -> str:
    """Where OpenAI-like servers are asked, by the form of the prompt."""
    return "/v1/chat/completions" if ask.form is Form.CHAT else "/v1/completions"


def openai_body(ask: Ask, stream_options: Mapping[str, object]) -> Body:
    """What all OpenAI-like servers understand."""
    template = dict(ask.chat_template_args)
    return {
        "model": ask.model,
        "max_tokens": ask.output_cap_tokens,
        "temperature": ask.temperature,
        "stream": True,
        "stream_options": stream_options,
        **({"messages": ask.messages} if ask.form is Form.CHAT else {"prompt": ask.prompt}),
        **({"ignore_eos": True} if ask.ignore_eos else {}),
        **({"chat_template_kwargs": template} if template else {}),
    }
