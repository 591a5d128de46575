"""What servers speak, one module each: how to ask one, and how to read its stream and counters.

A public module here defines `PROTOCOL`; the catalogue finds it. An engine names the one it speaks.
"""

import sys
from collections.abc import Mapping

from specreg.acceptance.record import Counters
from specreg.catalog import load_catalog
from specreg.protocols._protocol import (
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

PROTOCOLS: Mapping[str, Protocol] = load_catalog(sys.modules[__name__], "PROTOCOL", Protocol)  # type: ignore[type-abstract]
