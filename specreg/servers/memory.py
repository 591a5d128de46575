"""Tell how much memory a server is given, and whether several fit at the same time.

For its KV cache an engine takes what it finds free on a GPU, unless it is told: of two that start
at once each would count the other's memory. So each is told a cache for all it may have in flight.
"""

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import psutil

from specreg.engines.engine import Memory
from specreg.engines.registry import engine_named
from specreg.engines.settings import ALONE
from specreg.matrix.case import ServerSpec, Sizes
from specreg.matrix.models import folder_sizes, is_hub_id, resolve_model
from specreg.matrix.widening import served_models

_GIB = 2**30
_BESIDE_GIB = 2.0
"""Of a server on each GPU beside weights and cache: context, activations, captured graphs."""
_BLOCK_TOKENS = 128
"""Of each sequence for its last block and its drafts; vLLM's blocks have 16 as a rule."""
_ON_CPU_GIB = 3.0
"""Of a server without a GPU beside its weights; of vLLM's 1.9 were seen, 1 of them its cache."""
_MOST_OF_GPU_FRAC = 0.97
"""Of all servers together: the driver keeps part of a GPU for itself, and vLLM doesn't start where
less is free than its share."""
_CGROUPS = Path("/sys/fs/cgroup")
_LIMITS = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    (
        *(f"memory/memory.{name}" for name in ("limit_in_bytes", "usage_in_bytes", "stat")),
        "total_inactive_file",
    ),
)
"""The files of version 2 and of version 1: limit, use, and what of it the kernel drops at need."""


def gpu_memory(root: Path, spec: ServerSpec, gpus_gib: Sequence[float]) -> Memory | None:
    """What a server is given of each of its GPUs; None where its engine must see for itself.

    Never more than its `gpu_memory_frac`: the cache is smaller then, but holds one request.

    It takes the first of the GPUs that it sees; their memory is `gpus_gib`.
    """
    gpu_gib = min(gpus_gib[: spec.parallel.gpus], default=0.0)
    sizes = _sizes(root, spec)
    if sizes is None or not engine_named(spec.engine).takes_cache(spec.engine_args):
        return None
    weights_gib = sizes.weights_gib(spec.parallel)
    token_gib = sizes.cache_gib(spec.parallel, spec.parallel.data)
    if weights_gib is None or not token_gib:
        return None
    beside_gib = weights_gib + _BESIDE_GIB
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
    root: Path,
    specs: Sequence[ServerSpec],
    gpus_gib: Sequence[float],
    cgroups: Path = _CGROUPS,
) -> bool:
    """Whether servers may start at the same time, each taking its memory while the others do.

    `gpus_gib` is empty where they run without a GPU.
    """
    if gpus_gib:
        given = [gpu_memory(root, spec, gpus_gib) for spec in specs]
        shares = [memory.share_frac for memory in given if memory is not None]
        return len(shares) == len(given) and sum(shares) <= _MOST_OF_GPU_FRAC
    left_gib = free_gib(cgroups)
    for spec in specs:
        sizes = _sizes(root, spec)
        weights_gib = sizes.weights_gib(ALONE) if sizes is not None else None
        if weights_gib is None:
            return False
        left_gib -= weights_gib + _ON_CPU_GIB
    return left_gib >= 0


def free_gib(cgroups: Path = _CGROUPS) -> float:
    """The memory that may still be taken: the machine's, or what a container's limit leaves of it.

    Limits stand in the folder `cgroups`.
    """
    free_bytes = psutil.virtual_memory().available
    for limit, used, details, key in _LIMITS:
        with contextlib.suppress(OSError, ValueError, KeyError):  # absent, or "max"
            limit_bytes, used_bytes = (int((cgroups / name).read_text()) for name in (limit, used))
            stat = dict(line.split() for line in (cgroups / details).read_text().splitlines())
            free_bytes = min(free_bytes, limit_bytes - used_bytes + int(stat[key]))
    return free_bytes / _GIB


def _sizes(root: Path, spec: ServerSpec) -> Sizes | None:
    """What a server's models take: by their folders; of the hub's and widened ones by the matrix.

    A draft of the hub is taken to need no more cache than its target.
    """
    sizes = spec.sizes
    if spec.widen is None and not is_hub_id(spec.target):
        target, _ = served_models(root, spec)
        weights_gib, token_kib = folder_sizes(Path(target), spec.dtype)
        sizes = Sizes(
            target_gib=weights_gib,
            draft_gib=sizes.draft_gib if sizes else None,
            token_kib=token_kib,
        )
    if sizes is None or spec.draft is None:
        return sizes and dataclasses.replace(sizes, draft_gib=0.0)
    if spec.widen is not None or is_hub_id(spec.draft):
        return dataclasses.replace(sizes, token_kib=2 * sizes.token_kib)
    draft_gib, draft_kib = folder_sizes(Path(resolve_model(root, spec.draft)), spec.dtype)
    return dataclasses.replace(
        sizes, draft_gib=draft_gib, token_kib=sizes.token_kib and sizes.token_kib + draft_kib
    )
