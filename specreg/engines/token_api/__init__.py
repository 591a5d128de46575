"""How servers are asked in token ids, one module each: texts to ids, ids to ids, ids to scores.

A module here defines `DIALECT`. A
protocol without one gives no ids, so that nothing can be said of its tokens.
"""

from collections.abc import Mapping
from types import MappingProxyType

from specreg.engines.token_api import reference, sglang, vllm
from specreg.engines.token_api._dialect import Call, Dialect, Transcript, Wanted

__all__ = ["DIALECTS", "Call", "Dialect", "Transcript", "Wanted"]

_ALL: tuple[Dialect, ...] = (reference.DIALECT, sglang.DIALECT, vllm.DIALECT)
DIALECTS: Mapping[str, Dialect] = MappingProxyType({one.name: one for one in _ALL})
