"""What Triton Inference Server speaks with the vLLM backend: `generate_stream` and `generate`.

Read in the backend's documentation (docs/additional_outputs.md, r24.12 and newer) and seen on a
real tritonserver 2.51, with a backend of the same interface that forwards to a real vLLM: each
response says how many tokens it holds. There are no counts of steps, so acceptance comes from the
chunks; one at a time a chunk is a step, several at a time chunks merge now and then. `generate`
has one response for all, in the same words: of an answer it tells no more than how long it took.
"""

from typing import ClassVar
from urllib.parse import quote

import msgspec

from specreg.acceptance.record import Source
from specreg.acceptance.trace import Body, StreamEvent
from specreg.core.errors import UnsupportedError
from specreg.core.http import Count, Name
from specreg.engines.protocols._protocol import (
    Ask,
    Form,
    Protocol,
    StreamDecoder,
    decode_event,
)

_TEXT_ALONE = (
    "protocol 'triton': takes a text, neither a chat nor token ids; set"
    ' form = "completions" in the matrix, with a dataset of texts'
)
_NOT_YET = {None, "", "None", "null"}
"""What the backend says for a reason that there isn't yet."""


class _Event(msgspec.Struct, frozen=True):
    text_output: str = ""
    num_output_tokens: Count = 0
    finish_reason: Name | None = None
    error: object = None


_decoder = msgspec.json.Decoder(_Event)


class _Decoder(StreamDecoder):
    """Adds up the tokens, which is all that the backend counts."""

    __slots__ = ("_tokens",)

    def __init__(self) -> None:
        self._tokens = 0

    def parse_event(self, event: bytes) -> StreamEvent:
        """A response."""
        parsed = decode_event(_decoder, event)
        self._tokens += parsed.num_output_tokens
        return StreamEvent(
            tokens=parsed.num_output_tokens,
            text=parsed.text_output,
            finish_reason=None if parsed.finish_reason in _NOT_YET else parsed.finish_reason,
            usage_tokens=self._tokens,
        )


class TritonProtocol(Protocol):
    """Triton with the vLLM backend."""

    name: ClassVar = "triton"
    request_source: ClassVar[Source | None] = None
    counters_source: ClassVar[Source | None] = None
    counters_path: ClassVar[str | None] = None
    takes_token_ids: ClassVar[bool] = False
    answers_whole: ClassVar[bool] = True

    def check(self, form: Form, version: str, *, ours: bool) -> None:
        """Of all versions.

        Raises:
            UnsupportedError: a chat: the backend takes a text alone.
        """
        del version, ours
        if form is Form.CHAT:
            raise UnsupportedError(_TEXT_ALONE)

    def path(self, ask: Ask) -> str:
        """The model's own endpoint; a model that isn't decoupled has no stream."""
        return f"/v2/models/{quote(ask.model, safe='')}/generate{'_stream' if ask.stream else ''}"

    def body(self, ask: Ask) -> Body:
        """The text as it is, and the outputs that count tokens.

        Raises:
            UnsupportedError: a chat, or token ids.
        """
        if ask.form is Form.CHAT or ask.token_ids:
            raise UnsupportedError(_TEXT_ALONE)
        return {
            "text_input": ask.text,
            "stream": ask.stream,
            "exclude_input_in_output": True,
            "return_finish_reason": True,
            "return_num_output_tokens": True,
            "parameters": {
                "max_tokens": ask.output_cap_tokens,
                "temperature": ask.temperature,
                "ignore_eos": ask.ignore_eos,
            },
        }

    def new_decoder(self, ask: Ask) -> StreamDecoder:
        """One for each answer."""
        del ask
        return _Decoder()


PROTOCOL = TritonProtocol()
