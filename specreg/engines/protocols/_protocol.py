"""What a protocol is: everything that specreg must know to ask a server and to read its answer."""

import typing
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, TypeVar

import msgspec

from specreg.acceptance.record import Counters, Source, StepCounts
from specreg.acceptance.trace import Body, StreamEvent
from specreg.core.errors import InvalidMeasurementError
from specreg.core.files import UNREADABLE


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
    """Reads the events of one answer; some protocols repeat what they said before."""

    __slots__ = ()

    @abstractmethod
    def parse_event(self, event: bytes) -> StreamEvent:
        """The data of one event; msgspec decodes it, once.

        Raises:
            InvalidMeasurementError: `EVENT_UNREADABLE` or `SERVER_ERROR`.
        """


class Protocol(ABC):
    """One way to speak to a server. Subclasses hold no state.

    Attributes:
        name: what it is called.
        request_source: where each answer's own acceptance comes from, None if answers have none.
        counters_source: the same of the server's counters, None if it has none.
        counters_path: where the counters are; None if there are none.
        counters_flag: what the server must be started with to have them.
        takes_token_ids: whether a prompt may be ids.
        answers_whole: whether it can be asked for an answer without a stream.
    """

    name: ClassVar[str]
    request_source: ClassVar[Source | None]
    counters_source: ClassVar[Source | None]
    counters_path: ClassVar[str | None]
    counters_flag: ClassVar[str] = "its counters"
    takes_token_ids: ClassVar[bool] = True
    answers_whole: ClassVar[bool] = False

    def check(self, form: Form, version: str, *, ours: bool) -> None:
        """Silent where prompts of that form can be asked, and their acceptance is told.

        Args:
            form: of the prompts.
            version: of the engine, "" where nobody knows.
            ours: whether we start the server, and so may read what it exports.

        Raises:
            UnsupportedError: they can't, or it isn't by this version.
        """
        del form, version, ours

    def exports(self, version: str) -> bool:
        """Whether a version tells in a file what its answers don't; "" is any version."""
        del version
        return False

    def parse_export(self, lines: Iterable[bytes]) -> Mapping[str, StepCounts]:
        """What that file's lines tell of requests, by their ids; of most protocols nothing."""
        del lines
        return {}

    def counters_path_of(self, version: str) -> str | None:
        """Where a version of the engine has them, "" is any; None if none, or none to rely on."""
        del version
        return self.counters_path

    @abstractmethod
    def path(self, ask: Ask) -> str:
        """Where to POST it."""

    @abstractmethod
    def body(self, ask: Ask) -> Body:
        """The body of a request that gives token counts, usage and acceptance."""

    @abstractmethod
    def new_decoder(self, ask: Ask) -> StreamDecoder:
        """What reads the answer to it."""

    def parse_counters(self, page: str) -> Counters:
        """The speculation counters of a page of metrics.

        Raises:
            InvalidMeasurementError: they aren't there, or can't be read; always where
                `counters_path` is None.
        """
        message = f"protocol '{self.name}' has no counters, and none in {len(page)} characters"
        raise InvalidMeasurementError("METRICS_MISSING", message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Whom to ask: all that a client needs of a server.

    Attributes:
        base_url: `http://127.0.0.1:PORT`.
        model: the name that the model is served under.
        protocol: a name of `PROTOCOLS`, so that an endpoint can be sent to another process.
    """

    base_url: str
    model: str
    protocol: str


class _Event(typing.Protocol):
    @property
    def error(self) -> object: ...


EventT = TypeVar("EventT", bound=_Event)


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
