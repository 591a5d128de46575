"""Look up engines by their names."""

from collections.abc import Mapping
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
        UnknownNameError: There is no such engine. The message lists the engines.
    """
    check_name("engine", name, ENGINES)
    return ENGINES[name]


def render_methods() -> str:
    """Render which engine has which method, and whether it was seen running, as Markdown."""
    rows = [("method", *ENGINES), ("---",) * (len(ENGINES) + 1)]
    for name in METHODS:
        cells = [_evidence(engine, name) for engine in ENGINES.values()]
        rows.append((f"`{name}`", *cells))
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines)


def _evidence(engine: Engine, method: str) -> str:
    """Return how an engine was seen to run a method.

    The result is "spelt" if it was never run, and a dash if the engine doesn't have the method.
    """
    if method not in engine.methods:
        return "–"
    # The settings of a method that was never run come from the engine's source or documentation.
    return engine.seen.get(method, "spelt")
