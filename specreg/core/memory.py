"""Bound what a part of the program may allocate."""

import contextlib
import resource
from collections.abc import Iterator

import psutil


@contextlib.contextmanager
def memory_limit(most_bytes: int) -> Iterator[None]:
    """Let this process allocate so much memory more in the context, and no more.

    Beyond that an allocation fails, which Python raises as a MemoryError. Processes that are
    started in the context inherit the limit.
    """
    usual_limit, highest_limit = resource.getrlimit(resource.RLIMIT_AS)
    limit = psutil.Process().memory_info().vms + most_bytes
    if usual_limit != resource.RLIM_INFINITY:
        limit = min(limit, usual_limit)
    resource.setrlimit(resource.RLIMIT_AS, (limit, highest_limit))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (usual_limit, highest_limit))
