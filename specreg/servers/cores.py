"""Processor cores for servers that take turns: each computes on the same ones, alone there.

Where a process runs is the scheduler's choice and stays so for a while; cores differ by what else
the machine does. On two cores of a shared machine rounds of two equal servers differed by 10 to
18 %, once by 4 % (standard deviations of 16 rounds each), and by 3 to 9 % with what computes on the
first core and all else on the second.
"""

import contextlib
import itertools
import os
from collections.abc import Collection, Iterator, Sequence

import psutil

from specreg.servers.server import StartedServer

_CORES_OF_THE_REST_FRAC = 1 / 8


@contextlib.contextmanager
def cores_apart(servers: Collection[StartedServer]) -> Iterator[None]:
    """Bind what computes to some cores, and us and all else that we started to the others.

    What computes is the process of each server that has worked most. Threads that are bound
    already, by an engine that knows better, stay where they are. A machine with one core is left
    alone.
    """
    whole = os.sched_getaffinity(0)
    computing, rest = split_cores(sorted(whole))
    bound: list[int] = []
    if computing:
        busiest = {max(server.pids(), key=_used_s) for server in servers if server.pids()}
        others = {one.pid for one in psutil.Process().children(recursive=True)}
        others.update([os.getpid()], *(server.pids() for server in servers))
        bound = [*_bind(busiest, whole, computing), *_bind(others - busiest, whole, rest)]
    try:
        yield
    finally:
        for thread in bound:
            with contextlib.suppress(OSError):  # it ended meanwhile
                os.sched_setaffinity(thread, whole)


def split_cores(cores: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    """The cores for what computes, and an eighth for the rest; none for either of a single one."""
    if len(cores) < 2:  # noqa: PLR2004 - two parts
        return (), ()
    of_the_rest = max(1, int(len(cores) * _CORES_OF_THE_REST_FRAC))
    return cores[:-of_the_rest], cores[-of_the_rest:]


def _used_s(pid: int) -> float:
    """Processor time of a process, so far; 0 of one that ended."""
    with contextlib.suppress(psutil.Error):
        times = psutil.Process(pid).cpu_times()
        return float(times.user + times.system)
    return 0.0


def _bind(pids: set[int], whole: set[int], cores: Sequence[int]) -> Iterator[int]:
    """Bind the threads of some processes that aren't bound; which it bound."""
    for thread in itertools.chain.from_iterable(map(_threads, pids)):
        with contextlib.suppress(OSError):  # it ended meanwhile
            if os.sched_getaffinity(thread) >= whole:
                os.sched_setaffinity(thread, cores)
                yield thread


def _threads(pid: int) -> list[int]:
    with contextlib.suppress(psutil.Error):
        return [one.id for one in psutil.Process(pid).threads()]
    return []
