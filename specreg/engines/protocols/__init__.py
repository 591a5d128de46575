"""What servers speak, one module each: how to ask one, and how to read its stream and counters.

A module here defines `PROTOCOL`. An engine names the one it speaks.
"""

from collections.abc import Mapping
from types import MappingProxyType

from specreg.acceptance.record import Counters
from specreg.engines.protocols import reference, sglang, tensorrt_llm, triton, vllm
from specreg.engines.protocols._protocol import (
    Ask,
    Endpoint,
    Form,
    Message,
    Protocol,
    Role,
    StreamDecoder,
)

__all__ = [
    "PROTOCOLS",
    "Ask",
    "Counters",
    "Endpoint",
    "Form",
    "Message",
    "Protocol",
    "Role",
    "StreamDecoder",
]

_ALL: tuple[Protocol, ...] = (
    reference.PROTOCOL,
    sglang.PROTOCOL,
    tensorrt_llm.PROTOCOL,
    triton.PROTOCOL,
    vllm.PROTOCOL,
)
PROTOCOLS: Mapping[str, Protocol] = MappingProxyType({one.name: one for one in _ALL})
