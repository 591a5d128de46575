"""The engines by name."""

from collections.abc import Mapping
from types import MappingProxyType

from specreg.core.errors import UnknownNameError
from specreg.engines import reference, sglang, tensorrt_llm, triton, vllm
from specreg.engines.engine import Engine
from specreg.engines.settings import ALONE, Parallel

__all__ = ["ALONE", "ENGINES", "Engine", "Parallel", "engine_named"]

_ALL: tuple[Engine, ...] = tuple(
    module.ENGINE for module in (reference, sglang, tensorrt_llm, triton, vllm)
)
ENGINES: Mapping[str, Engine] = MappingProxyType({one.name: one for one in _ALL})


def engine_named(name: str, where: str = "") -> Engine:
    """The engine called `name`.

    Raises:
        UnknownNameError: there is none; the message lists what there is.
    """
    if name not in ENGINES:
        raise UnknownNameError("engine", name, ENGINES, where)
    return ENGINES[name]
