"""What each block of a soak measured, and the figures that are watched in them."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import msgspec

from specreg.matrix.case import Case
from specreg.measurement.metrics import METRICS

MEMORY_TOLERANCE_FRAC = 0.05


class Block(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """The same prompts once more.

    Attributes:
        number: from 1.
        at_s: its middle, counted from the first block's start; lasted_s: how long it took.
        requests: that ended.
        acceptance_length_tokens: per step; None without speculation, or without a step.
        step_ms: the mean time between two chunks of a request, which chunks that are read at once
            leave as it is; None where no request had two, or the client was late, which
            `client_late` says.
        memory_bytes: what the server's processes hold of the machine's memory.
        gpu_memory_bytes: of its GPUs'; None without one, or where nobody says.
    """

    number: int
    at_s: float
    lasted_s: float
    requests: int
    acceptance_length_tokens: float | None = None
    step_ms: float | None = None
    memory_bytes: float | None = None
    gpu_memory_bytes: float | None = None
    client_late: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """A figure of each block that should stay as it is.

    Attributes:
        name: the block's field.
        title, unit, scale: how it is shown: the value times the scale, in the unit.
        sign: 1 where less is worse, -1 where more is.
        origin: where it begins to count; changes are relative to what is beyond.
        metric: whose tolerance is its own; empty for `MEMORY_TOLERANCE_FRAC`.
    """

    name: str
    title: str
    unit: str
    scale: float = 1.0
    sign: int = -1
    origin: float = 0.0
    metric: str = ""

    def value_of(self, block: Block) -> float | None:
        """Of a block; None where it has none."""
        found: float | None = getattr(block, self.name)
        return found

    def tolerance_frac(self, case: Case) -> float:
        """The loss in an hour that is still fine, relative."""
        if not self.metric:
            return MEMORY_TOLERANCE_FRAC
        return dict(case.tolerances).get(self.metric, METRICS[self.metric].tolerance_frac)


_ALL = (
    Watched(
        name="acceptance_length_tokens",
        title="acceptance length",
        unit="tokens",
        sign=1,
        origin=1.0,
        metric="acceptance_length_tokens",
    ),
    Watched(name="step_ms", title="step time", unit="ms", metric="tpot_p50_ms"),
    Watched(name="memory_bytes", title="memory", unit="MiB", scale=2**-20),
    Watched(name="gpu_memory_bytes", title="GPU memory", unit="MiB", scale=2**-20),
)
WATCHED: Mapping[str, Watched] = MappingProxyType({one.name: one for one in _ALL})


def watched_of(case: Case, *, on_gpu: bool) -> tuple[Watched, ...]:
    """What is watched of a case: of one without speculation no acceptance, of CPUs no GPU memory.

    Nor the step time of a case whose speed means nothing.
    """
    left_out = {
        "acceptance_length_tokens": not case.speculates,
        "step_ms": not case.speed,
        "gpu_memory_bytes": not on_gpu,
    }
    return tuple(one for one in _ALL if not left_out.get(one.name, False))
