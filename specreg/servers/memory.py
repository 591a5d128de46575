"""Compute how much memory a server gets, and whether several servers fit at the same time.

By default an engine takes all free memory of a GPU for its KV cache. If two servers started at the
same time, each would count as free the memory that the other one needs. So each server gets a cache
of a fixed size, which is enough for all requests that it may have in flight.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from specreg.engines.engine import Memory
from specreg.engines.registry import engine_named
from specreg.engines.server_spec import ALONE, ServerSpec
from specreg.matrix.case import BESIDE_GIB

_GIB = 2**30
_SPARE_TOKENS = 128
"""The additional cache of each sequence, for its drafts and for a last block that is only partly
used; vLLM's blocks usually have 16 tokens."""
_ON_CPU_GIB = 3.0
"""The memory that a server without a GPU needs besides its weights. vLLM took 1.9 GiB, 1 GiB of it
for its cache."""
_MAX_GPU_FRAC = 0.97
"""The share of a GPU that all servers together may take. The driver keeps a part for itself, and
vLLM doesn't start if less memory is free than its share."""
_CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class _CgroupFiles:
    """The files of a container that hold its memory limit and use, by version of cgroups.

    Attributes:
        limit: the file of the limit.
        use: the file of the memory in use.
        details: the file that divides the memory in use by kind.
        droppable: the kind in `details` that the kernel drops when memory runs short.
    """

    limit: str
    use: str
    details: str
    droppable: str

    def free_bytes(self, folder: Path) -> int:
        """Return the memory that the container may still take.

        Raises:
            OSError: the folder doesn't have these files.
            ValueError: the container has no limit.
            KeyError: the details lack the droppable kind.
        """
        limit_bytes = int((folder / self.limit).read_text())
        used_bytes = int((folder / self.use).read_text())
        lines = (folder / self.details).read_text().splitlines()
        details = dict(line.split() for line in lines)
        # The system drops these pages of files when a process needs the memory.
        droppable_bytes = int(details[self.droppable])
        return limit_bytes - used_bytes + droppable_bytes


_CGROUP_VERSIONS = (
    _CgroupFiles("memory.max", "memory.current", "memory.stat", "inactive_file"),
    _CgroupFiles(
        "memory/memory.limit_in_bytes",
        "memory/memory.usage_in_bytes",
        "memory/memory.stat",
        "total_inactive_file",
    ),
)
"""The files of version 2, then those of version 1."""


def gpu_memory(spec: ServerSpec, gpus_gib: Sequence[float | None]) -> Memory | None:
    """Return the memory that a server gets of each of its GPUs.

    The share never exceeds the server's `gpu_memory_frac`. If that is too little for all requests
    in flight, the cache is smaller, but it holds at least one request.

    Args:
        gpus_gib: the memory of each GPU of the machine, of which the server takes the first ones;
            None if it isn't known.

    Returns:
        The memory; None to let the engine decide, because a size isn't known, the engine has no
        flag for the memory, the server's own arguments set it, or not even one request would fit.
    """
    # The smallest GPU decides, because an engine divides a model into equal parts.
    used_gpus_gib = gpus_gib[: spec.parallel.gpus]
    known_gib = [gib for gib in used_gpus_gib if gib is not None]
    if not known_gib or len(known_gib) < len(used_gpus_gib):
        return None
    gpu_gib = min(known_gib)

    # Leave the decision to the engine if a size isn't known, if it has no flag for the memory, or
    # if the server's own arguments set the memory.
    sizes = spec.sizes
    flags = engine_named(spec.engine).memory_flags
    if sizes is None or not flags:
        return None
    if any(argument.startswith(flags) for argument in spec.engine_args):
        return None
    weights_gib = sizes.weights_gib(spec.parallel)

    # `cache_gib` divides the tokens between the copies of the model, so it is given one token for
    # each copy.
    copies = spec.parallel.data
    token_gib = sizes.cache_gib(spec.parallel, tokens=copies)
    if spec.draft is not None:
        # A draft is assumed to need no more cache than its target.
        token_gib *= 2
    if weights_gib is None or not token_gib:
        return None

    # Size the cache for all sequences, or for as many tokens as fit.
    fixed_gib = weights_gib + BESIDE_GIB
    sequence_tokens = spec.max_model_len_tokens + _SPARE_TOKENS
    room_tokens = int((gpu_gib * spec.gpu_memory_frac - fixed_gib) / token_gib)
    if room_tokens < sequence_tokens:
        return None
    cache_tokens = min(spec.max_sequences * sequence_tokens, room_tokens)
    cache_gib = cache_tokens * token_gib
    return Memory(
        cache_tokens=cache_tokens,
        cache_bytes=int(cache_gib * _GIB),
        share_frac=(fixed_gib + cache_gib) / gpu_gib,
    )


def fit_together(
    specs: Sequence[ServerSpec], gpus_gib: Sequence[float | None], cgroups: Path = _CGROUPS
) -> bool:
    """Return whether the memory is enough for servers that run at the same time.

    Args:
        gpus_gib: the memory of each GPU, None if it isn't known; empty without a GPU.
        cgroups: the folder with the memory limit of this process's container.
    """
    if gpus_gib:
        return _fit_on_gpus(specs, gpus_gib)
    needed_gib = 0.0
    for spec in specs:
        if spec.sizes is None:
            return False
        weights_gib = spec.sizes.weights_gib(ALONE)
        if weights_gib is None:
            return False
        needed_gib += weights_gib + _ON_CPU_GIB

    return needed_gib <= free_gib(cgroups)


def _fit_on_gpus(specs: Sequence[ServerSpec], gpus_gib: Sequence[float | None]) -> bool:
    """Return whether each server has a fixed share of the GPUs, and all the shares fit."""
    total_frac = 0.0
    for spec in specs:
        memory = gpu_memory(spec, gpus_gib)
        if memory is None:
            return False
        total_frac += memory.share_frac
    return total_frac <= _MAX_GPU_FRAC


def free_gib(cgroups: Path = _CGROUPS) -> float:
    """Return the free memory in GiB: of the machine, or of the container if that has less."""
    free_bytes = psutil.virtual_memory().available
    for files in _CGROUP_VERSIONS:
        # The files may be absent, and the limit may be "max".
        with contextlib.suppress(OSError, ValueError, KeyError):
            free_bytes = min(free_bytes, files.free_bytes(cgroups))
    return free_bytes / _GIB
