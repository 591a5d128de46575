"""What a case needs of a machine's GPUs: from its models' sizes, in a sentence or as numbers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from specreg.engines.registry import Parallel

RESERVE_GIB = 4.0
"""Of each server on each GPU, beside weights and KV cache: the CUDA context, activations, captured
graphs, the draft's own cache. Estimated, not measured."""
_KIB_PER_GIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What the models of a server take.

    Attributes:
        target_gib: the target's weights.
        draft_gib: the draft's, 0 without one, None where nobody said.
        token_kib: a token in the KV cache.
    """

    target_gib: float
    draft_gib: float | None
    token_kib: float

    def share_gib(self, parallel: Parallel, tokens: int) -> float | None:
        """What one server takes on each of its GPUs; None where nobody said what its draft takes.

        Weights and cache are split over the GPUs of a copy; copies share what is in flight.

        Args:
            parallel: how the models are spread.
            tokens: in the KV caches of all copies.
        """
        weights_gib = self.weights_gib(parallel)
        if weights_gib is None:
            return None
        return weights_gib + self.cache_gib(parallel, tokens) + RESERVE_GIB

    def weights_gib(self, parallel: Parallel) -> float | None:
        """The weights alone on each GPU; None where the draft's size is unknown."""
        if self.draft_gib is None:
            return None
        draft_gib = self.draft_gib / (parallel.draft_tensor or parallel.tensor)
        return self.target_gib / (parallel.tensor * parallel.pipeline) + draft_gib

    def cache_gib(self, parallel: Parallel, tokens: int) -> float:
        """So many tokens in the KV caches of all copies, on each GPU."""
        split = parallel.tensor * parallel.pipeline * parallel.data
        return self.token_kib * tokens / split / _KIB_PER_GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a case needs.

    Attributes:
        gpus: how many.
        memory_gib: of each; None where the model pair doesn't say what it takes.
    """

    gpus: int
    memory_gib: float | None

    def __str__(self) -> str:
        each = "" if self.memory_gib is None else f" of {math.ceil(self.memory_gib)} GiB"
        return f"{self.gpus} GPU(s){each}"

    def unmet(self, gpus_gib: Sequence[float], where: str = "this machine") -> str:
        """What of it a machine lacks, empty when nothing.

        Args:
            gpus_gib: the memory of each of its GPUs. The engines take the first ones.
            where: what to call it.
        """
        taken = gpus_gib[: self.gpus]
        if len(taken) == self.gpus and min(taken) >= (self.memory_gib or 0.0):
            return ""
        there = ", ".join(f"{math.floor(each)} GiB" for each in gpus_gib) or "none"
        return f"needs {self}, {where} has {there}"
