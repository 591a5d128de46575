"""Look up engines by their names."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from specreg.core.errors import check_name
from specreg.engines.engine import Engine
from specreg.engines.methods import METHODS
from specreg.engines.reference import ReferenceEngine
from specreg.engines.sglang import Sglang
from specreg.engines.tensorrt_llm import TensorrtLlm
from specreg.engines.triton import Triton
from specreg.engines.vllm import Vllm

_ALL = (ReferenceEngine(), Sglang(), TensorrtLlm(), Triton(), Vllm())
ENGINES: Mapping[str, Engine] = MappingProxyType({engine.name: engine for engine in _ALL})


def engine_named(name: str) -> Engine:
    """Return the engine with a name.

    Raises:
        UnknownNameError: there is no such engine. The message lists the engines.
    """
    check_name("engine", name, ENGINES)
    return ENGINES[name]


def methods_by_engine() -> Iterator[tuple[str, ...]]:
    """Yield the head of a table, and then for each method how each engine was seen to run it."""
    yield ("method", *ENGINES)
    for name in METHODS:
        yield (name, *(_evidence(engine, name) for engine in ENGINES.values()))


def _evidence(engine: Engine, method: str) -> str:
    """Return how an engine was seen to run a method.

    The result is "spelt" if it was never run, and a dash if the engine doesn't have the method.
    """
    if method not in engine.methods:
        return "–"
    # The settings of a method that was never run come from the engine's source or documentation.
    return engine.seen.get(method, "spelt")
