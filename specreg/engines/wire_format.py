"""The wire format of a server: requests, and the events of its answers."""

import typing
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, TypeVar

import msgspec

from specreg.acceptance.record import Counters, Source, StepCounts
from specreg.acceptance.trace import Body, StreamEvent
from specreg.core.errors import InvalidMeasurementError
from specreg.core.files import UNREADABLE
from specreg.core.http import MOST_BYTES, Count, Histogram, Name


class Role(StrEnum):
    """Who says something in a chat."""

    USER = "user"
    ASSISTANT = "assistant"


class Message(msgspec.Struct, frozen=True):
    """One turn of a chat, ready for JSON."""

    role: Role
    content: str


class Form(StrEnum):
    """How a prompt is put: through the model's chat template, or as it is."""

    CHAT = "chat"
    COMPLETIONS = "completions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What to ask of the model.

    Attributes:
        model: the name that it is served under.
        form: whether `messages` are a chat, or are joined to one text without a template.
        messages: what was said so far, the user's last; empty where `token_ids` are given.
        token_ids: the prompt as ids instead; never a chat.
        output_cap_tokens: the most tokens of the reply.
        temperature: 0 is greedy.
        ignore_eos: whether the reply goes on to the cap, whatever the model says.
        chat_template_args: arguments of the model's chat template, as pairs.
        stream: whether the reply comes as it is made, not at once.
    """

    model: str
    form: Form = Form.CHAT
    messages: tuple[Message, ...] = ()
    token_ids: tuple[int, ...] = ()
    output_cap_tokens: int
    temperature: float
    ignore_eos: bool = False
    chat_template_args: tuple[tuple[str, object], ...] = ()
    stream: bool = True

    @property
    def text(self) -> str:
        """All that was said, as one text."""
        return "".join(message.content for message in self.messages)

    @property
    def prompt(self) -> str | tuple[int, ...]:
        """What to complete: ids, or a text."""
        return self.token_ids or self.text


class StreamDecoder(ABC):
    """Reads the events of one answer; some servers repeat what they said before."""

    __slots__ = ()

    @abstractmethod
    def parse_event(self, event: bytes) -> StreamEvent:
        """The data of one event; msgspec decodes it, once.

        Raises:
            InvalidMeasurementError: `EVENT_UNREADABLE` or `SERVER_ERROR`.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Whom to ask: all that a client needs of a server.

    Attributes:
        base_url: `http://127.0.0.1:PORT`.
        model: the name that the model is served under.
        engine: a name of `ENGINES`, so that an endpoint can be sent to another process.
    """

    base_url: str
    model: str
    engine: str


class _ErrorEvent(typing.Protocol):
    @property
    def error(self) -> object: ...


EventT = TypeVar("EventT", bound=_ErrorEvent)


def decode_event(decoder: msgspec.json.Decoder[EventT], event: bytes) -> EventT:
    """An event that is readable and no error, in a server's own form.

    Raises:
        InvalidMeasurementError: `EVENT_UNREADABLE`; `SERVER_ERROR`, with what the server says.
    """
    try:
        decoded = decoder.decode(event)
    except UNREADABLE as error:
        text = event[:200].decode(errors="replace")
        raise InvalidMeasurementError("EVENT_UNREADABLE", f"{error}, in: {text}") from error
    if decoded.error is not None:
        message = f"the server says {decoded.error!r}"[:300]
        raise InvalidMeasurementError("SERVER_ERROR", message)
    return decoded


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
    """SGLang's record of an answer, by the names of 0.5.13 and newer.

    Its own acceptance length counts the prefill's token and is cut by the cap; the counts aren't.
    The histogram ends at the most drafts that a step accepted.
    """

    spec_correct_drafts_histogram: Histogram = ()
    spec_num_correct_drafts: Count | None = None
    spec_num_proposed_drafts: Count | None = None

    @property
    def counts(self) -> StepCounts | None:
        """The steps, None where there were none, or none are told.

        Raises:
            InvalidMeasurementError: `COUNTS_DISAGREE`, what was accepted is another number than
                the histogram adds up to: then the names have another meaning.
        """
        histogram, proposed = self.spec_correct_drafts_histogram, self.spec_num_proposed_drafts
        if not sum(histogram):
            return None
        counts = StepCounts.from_histogram(histogram, proposed)
        accepted = self.spec_num_correct_drafts
        if accepted != counts.accepted or proposed is None:
            message = (
                f"an answer tells the histogram {list(histogram)}, {accepted} drafts accepted and"
                f" {proposed} proposed; take a version of SGLang that specreg knows"
            )
            raise InvalidMeasurementError("COUNTS_DISAGREE", message)
        return counts


class _Extension(msgspec.Struct, frozen=True):
    spec_tokens_details: SpecTokensDetails | None = None

    @property
    def counts(self) -> StepCounts | None:
        return self.spec_tokens_details.counts if self.spec_tokens_details else None


class Speculation(msgspec.Struct, frozen=True):
    """vLLM's record of an answer."""

    acceptance_histogram: Histogram
    num_draft_tokens: Count


class RequestMetrics(msgspec.Struct, frozen=True):
    """What vLLM says of an answer beside it, from 0.29 on."""

    speculative_decoding: Speculation | None = None

    @property
    def counts(self) -> StepCounts | None:
        """The steps, None where they aren't told."""
        told = self.speculative_decoding
        if told is None:
            return None
        return StepCounts.from_histogram(told.acceptance_histogram, told.num_draft_tokens)


class _Event(msgspec.Struct, frozen=True):
    choices: tuple[Choice, ...] = ()
    usage: Usage | None = None
    metrics: RequestMetrics | None = None
    sglext: _Extension | None = None
    error: object = None


_decoder = msgspec.json.Decoder(_Event)


class OpenAiDecoder(StreamDecoder):
    """Reads chunks of OpenAI's form with what vLLM and SGLang add.

    A chunk's tokens are its ids, or, without `by_ids`, how far the usage has moved since the one
    before.
    """

    __slots__ = ("_by_ids", "_tokens")

    def __init__(self, *, by_ids: bool) -> None:
        self._by_ids, self._tokens = by_ids, 0

    def parse_event(self, event: bytes) -> StreamEvent:
        """A chunk; one of the last has no choices, and the usage and record of the answer."""
        parsed = decode_event(_decoder, event)
        choice = parsed.choices[0] if parsed.choices else NO_CHOICE
        record = parsed.metrics or parsed.sglext
        before, usage_tokens = self._tokens, None
        if parsed.usage is not None:
            self._tokens = usage_tokens = parsed.usage.completion_tokens
        return StreamEvent(
            tokens=len(choice.token_ids or ()) if self._by_ids else self._tokens - before,
            text=choice.content,
            finish_reason=choice.finish_reason,
            usage_tokens=usage_tokens,
            acceptance=record.counts if record else None,
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


class WireFormat:
    """How a server is asked, and its answers and counters are read: by default as OpenAI's.

    Subclasses hold no state.

    Attributes:
        request_source: where each answer's own acceptance comes from, None if answers have none.
        counters_source: the same of the server's counters, None if it has none.
        counters_path: where the counters are; None if there are none.
        counters_flag: what the server must be started with to have them.
        takes_text_alone: whether a prompt may be neither a chat nor token ids.
        answers_whole: whether it can be asked for an answer without a stream.
    """

    request_source: ClassVar[Source | None] = None
    counters_source: ClassVar[Source | None] = None
    counters_path: ClassVar[str | None] = None
    counters_flag: ClassVar[str] = "its counters"
    takes_text_alone: ClassVar[bool] = False
    answers_whole: ClassVar[bool] = False

    def path(self, ask: Ask) -> str:
        """Where to POST it."""
        return openai_path(ask)

    def body(self, ask: Ask) -> Body:
        """The body of a request that gives token counts, usage and acceptance."""
        return openai_body(ask, USAGE_IN_EACH_CHUNK)

    def new_decoder(self, ask: Ask) -> StreamDecoder:
        """What reads the answer to it."""
        del ask
        return OpenAiDecoder(by_ids=False)

    def parse_counters(self, page: str) -> Counters:
        """The speculation counters of a page of metrics.

        Raises:
            InvalidMeasurementError: they aren't there, or can't be read.
        """
        message = f"{type(self).__name__}: has no counters, and none in {len(page)} characters"
        raise InvalidMeasurementError("METRICS_MISSING", message)


DONE = b"[DONE]"
_PREFIX = b"data:"


class EventSplitter:
    """Cuts a byte stream into events: one `data:` line each; all else is skipped."""

    def __init__(self) -> None:
        self._begun: list[bytes] = []
        self._begun_bytes = 0

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """The data of the events that `piece` completes, `[DONE]` included."""
        begun = self._begun
        # To join the pieces of a long line again and again would take the square of its length.
        begun.append(piece)
        lines: list[bytes] = []
        if b"\n" in piece:
            *lines, rest = b"".join(begun).split(b"\n")
            self._begun = [rest]
            self._begun_bytes = len(rest)
        else:
            self._begun_bytes += len(piece)
        _check_length(self._begun_bytes)
        for line in lines:
            if line.startswith(_PREFIX):
                yield line[len(_PREFIX) :].strip()

    def close(self) -> Iterator[bytes]:
        """Nothing: what has no end is no event."""
        yield from ()


class WholeAnswer:
    """Takes an answer that isn't a stream for a single event."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._bytes = 0

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Nothing yet: only its end says that it is whole."""
        self._pieces.append(piece)
        self._bytes += len(piece)
        _check_length(self._bytes)
        yield from ()

    def close(self) -> Iterator[bytes]:
        """All that came."""
        yield b"".join(self._pieces)


def _check_length(length_bytes: int) -> None:
    """Silent where a line, or an answer that isn't a stream, is no longer than it may be."""
    if length_bytes > MOST_BYTES:
        message = f"after {MOST_BYTES} bytes there is no end of a line; is this a stream of events?"
        raise InvalidMeasurementError("EVENT_UNREADABLE", message)


def splitter_for(*, stream: bool) -> EventSplitter | WholeAnswer:
    """What makes events of an answer's bytes.

    `feed` raises `InvalidMeasurementError`, `EVENT_UNREADABLE`, where no end comes within 16 MiB.
    """
    return EventSplitter() if stream else WholeAnswer()
