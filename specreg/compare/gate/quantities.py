"""What the gate compares, a row each, and the cause that a change of it points to."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from specreg.measurement.metrics import Direction


class Cause(StrEnum):
    """What a loss comes from; that of output has one of the others."""

    ACCEPTANCE = "acceptance"
    STEP = "the cost of a step"
    PREFILL = "prefill"
    OUTPUT = "output"
    START_UP = "start-up"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """One quantity that is compared between two sides.

    Attributes:
        name: ends in its unit.
        direction: which way is better.
        cause: what a loss of it is a loss of.
        tolerance_frac: the loss that is still fine. Both sides are measured in the same hour, so
            it may be finer than that of a baseline.
        of_server: whether it is of a server, whatever is asked; such a loss is told and decides
            nothing.
    """

    name: str
    direction: Direction
    cause: Cause
    tolerance_frac: float
    of_server: bool = False


ACCEPTANCE = "acceptance_length_tokens"
OUTPUT = "throughput_tokens_per_s"

_ROWS = (
    # Of AL - 1, the drafts that a step accepts.
    Quantity(name=ACCEPTANCE, direction=Direction.UP, cause=Cause.ACCEPTANCE, tolerance_frac=0.02),
    Quantity(name="step_p50_ms", direction=Direction.DOWN, cause=Cause.STEP, tolerance_frac=0.03),
    Quantity(
        name="ttft_p50_ms", direction=Direction.DOWN, cause=Cause.PREFILL, tolerance_frac=0.05
    ),
    Quantity(name=OUTPUT, direction=Direction.UP, cause=Cause.OUTPUT, tolerance_frac=0.03),
    Quantity(
        name="ready_s",
        direction=Direction.DOWN,
        cause=Cause.START_UP,
        tolerance_frac=0.2,
        of_server=True,
    ),
    Quantity(
        name="memory_bytes",
        direction=Direction.DOWN,
        cause=Cause.MEMORY,
        tolerance_frac=0.1,
        of_server=True,
    ),
)

QUANTITIES: Mapping[str, Quantity] = MappingProxyType({row.name: row for row in _ROWS})
