"""What TensorRT-LLM's `trtllm-serve` speaks: OpenAI's endpoints, without acceptance.

Read in its source (tensorrt_llm/serve/postprocess_handlers.py), never seen running here: with
`continuous_usage_stats` each chunk has the usage so far. An answer has no counts of its steps, so
acceptance comes from the chunks.
"""

from typing import ClassVar

from specreg.acceptance.record import Source
from specreg.protocols._openai import USAGE_IN_EACH_CHUNK, UsageDecoder, openai_body, openai_path
from specreg.protocols._protocol import Ask, Protocol, StreamDecoder
from specreg.trace import Body


class TensorrtLlmProtocol(Protocol):
    """`trtllm-serve`."""

    name: ClassVar = "tensorrt_llm"
    request_source: ClassVar[Source | None] = None
    counters_source: ClassVar[Source | None] = None
    counters_path: ClassVar[str | None] = None

    def path(self, ask: Ask) -> str:
        """By the form of the prompt."""
        return openai_path(ask)

    def body(self, ask: Ask) -> Body:
        """Usage in each chunk, so that its tokens are counted and not guessed."""
        return openai_body(ask, USAGE_IN_EACH_CHUNK)

    def new_decoder(self, ask: Ask) -> StreamDecoder:
        """One for each answer."""
        del ask
        return UsageDecoder()


PROTOCOL = TensorrtLlmProtocol()
