"""Tell how much memory a server is given, and whether several fit at the same time.

For its KV cache an engine takes what it finds free on a GPU, unless it is told: of two that start
at once each would count the other's memory. So each is told a cache for all it may have in flight.
"""

import contextlib
from collections.abc import Sequence
from pathlib import Path

import psutil

from specreg.engines.engine import ALONE, Memory
from specreg.engines.registry import engine_named
from specreg.matrix.case import BESIDE_GIB, ServerSpec

_GIB = 2**30
_BLOCK_TOKENS = 128
"""Room of each sequence for its last block and drafts; vLLM's blocks usually have 16."""
_ON_CPU_GIB = 3.0
"""What a server without a GPU takes beside its weights; vLLM took 1.9, 1 of them its cache."""
_MOST_OF_GPU_FRAC = 0.97
"""The most that all servers together take: the driver keeps part of a GPU, and vLLM doesn't start
where less is free than its share."""
_CGROUPS = Path("/sys/fs/cgroup")
_LIMITS = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    (
        *(f"memory/memory.{name}" for name in ("limit_in_bytes", "usage_in_bytes", "stat")),
        "total_inactive_file",
    ),
)
"""The files of version 2 and of version 1: limit, use, and what of it the kernel drops at need."""


def gpu_memory(spec: ServerSpec, gpus_gib: Sequence[float | None]) -> Memory | None:
    """What a server gets of each of its GPUs, the first of `gpus_gib`; None to let it decide.

    It decides where the memory of one isn't known.

    Never more than its `gpu_memory_frac`: the cache is smaller then, but holds one request.
    """
    known_gib = [gib for gib in gpus_gib[: spec.parallel.gpus] if gib is not None]
    if len(known_gib) < min(spec.parallel.gpus, len(gpus_gib)) or not known_gib:
        return None
    gpu_gib = min(known_gib)
    sizes, flags = spec.sizes, engine_named(spec.engine).memory_flags
    if sizes is None or not flags or any(one.startswith(flags) for one in spec.engine_args):
        return None
    weights_gib = sizes.weights_gib(spec.parallel)
    token_gib = sizes.cache_gib(spec.parallel, spec.parallel.data)
    if spec.draft is not None:  # which is taken to need no more than its target
        token_gib *= 2
    if weights_gib is None or not token_gib:
        return None
    beside_gib = weights_gib + BESIDE_GIB
    sequence_tokens = spec.max_model_len_tokens + _BLOCK_TOKENS
    room_tokens = int((gpu_gib * spec.gpu_memory_frac - beside_gib) / token_gib)
    if room_tokens < sequence_tokens:
        return None
    tokens = min(spec.max_sequences * sequence_tokens, room_tokens)
    return Memory(
        cache_tokens=tokens,
        cache_bytes=int(tokens * token_gib * _GIB),
        share_frac=(beside_gib + tokens * token_gib) / gpu_gib,
    )


def fit_together(
    specs: Sequence[ServerSpec], gpus_gib: Sequence[float | None], cgroups: Path = _CGROUPS
) -> bool:
    """Whether servers may take their memory at the same time; `gpus_gib` is empty without a GPU."""
    if gpus_gib:
        given = [gpu_memory(spec, gpus_gib) for spec in specs]
        shares = [memory.share_frac for memory in given if memory is not None]
        return len(shares) == len(given) and sum(shares) <= _MOST_OF_GPU_FRAC
    left_gib = free_gib(cgroups)
    for spec in specs:
        weights_gib = spec.sizes.weights_gib(ALONE) if spec.sizes is not None else None
        if weights_gib is None:
            return False
        left_gib -= weights_gib + _ON_CPU_GIB
    return left_gib >= 0


def free_gib(cgroups: Path = _CGROUPS) -> float:
    """The memory that may still be taken, of the machine or within a container's limit."""
    free_bytes = psutil.virtual_memory().available
    for limit, used, details, key in _LIMITS:
        with contextlib.suppress(OSError, ValueError, KeyError):  # absent, or "max"
            limit_bytes, used_bytes = (int((cgroups / name).read_text()) for name in (limit, used))
            stat = dict(line.split() for line in (cgroups / details).read_text().splitlines())
            free_bytes = min(free_bytes, limit_bytes - used_bytes + int(stat[key]))
    return free_bytes / _GIB
