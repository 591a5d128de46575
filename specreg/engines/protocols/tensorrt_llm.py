"""What TensorRT-LLM's `trtllm-serve` speaks: OpenAI's endpoints, with counters by position.

Read in its source (tensorrt_llm/serve, tensorrt_llm/metrics), never seen running here. With
`continuous_usage_stats` each chunk has the usage so far. Of its steps it says:

- `/prometheus/metrics`, counters of all requests that have ended: exact, see
  `specreg.engines.trtllm_counters`. Before TensorRT-LLM#17082 they took the drafts of the next
  step for those of the step that was verified, so older versions are read from their chunks.
- `/metrics`, statistics of each iteration: of many requests at once, gone once read, and beyond
  a thousand gone unread. Not for us.
- `avg_decoded_tokens_per_iter` of a choice: all tokens delivered over all iterations, the
  prefill's included; it knows neither the drafts nor what was cut off. Not for us.
"""

from typing import ClassVar

from specreg.acceptance.record import Counters, Source
from specreg.acceptance.trace import Body
from specreg.engines.methods import is_older
from specreg.engines.protocols._openai import (
    USAGE_IN_EACH_CHUNK,
    UsageDecoder,
    openai_body,
    openai_path,
)
from specreg.engines.protocols._protocol import Ask, Protocol, StreamDecoder
from specreg.engines.trtllm_counters import PATH, parse_trtllm_counters

FIRST_THAT_COUNTS = "1.3.0rc29"
"""Of September 29, 2026: on the 17th TensorRT-LLM#19311 described a source that has #17082."""


class TensorrtLlmProtocol(Protocol):
    """`trtllm-serve`."""

    name: ClassVar = "tensorrt_llm"
    request_source: ClassVar[Source | None] = None
    counters_source: ClassVar[Source | None] = Source.TRTLLM_COUNTERS
    counters_path: ClassVar[str | None] = PATH
    counters_flag: ClassVar = "return_perf_metrics: true"

    def counters_path_of(self, version: str) -> str | None:
        """None of a version whose counters pair the wrong steps, or that has none."""
        return None if is_older(version, FIRST_THAT_COUNTS) else PATH

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

    def parse_counters(self, page: str) -> Counters:
        """The counters `trtllm_spec_decode_…` by position, of the requests that have ended."""
        return parse_trtllm_counters(page)


PROTOCOL = TensorrtLlmProtocol()
