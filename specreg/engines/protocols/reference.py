"""What the reference engine speaks: as vLLM, with counters of its own name."""

from typing import ClassVar

from specreg.acceptance.record import Counters, Source
from specreg.engines.protocols.vllm import VllmProtocol
from specreg.engines.vllm_counters import parse_vllm_counters


class ReferenceProtocol(VllmProtocol):
    """Each answer carries its own counts."""

    name: ClassVar = "reference"
    request_source: ClassVar[Source | None] = Source.REFERENCE
    counters_source: ClassVar[Source | None] = None

    def parse_counters(self, page: str) -> Counters:
        """The counters `reference:spec_decode_num_…`."""
        counts = parse_vllm_counters(page, prefix="reference:")
        return Counters(steps=counts.steps, counts=counts)


PROTOCOL = ReferenceProtocol()
