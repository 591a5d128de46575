"""Cores: servers that take turns in; each computes on the same cores as the others, alone there.

Where a process of a server runs is the scheduler's choice and stays so for a while; cores differ by
what else the machine does, and who asks takes turns on them with who computes. On two cores of a
shared machine rounds of two equal servers differed by 10 to 18 %, once by 4 % (standard deviations
of 16 rounds each), and by 3 to 9 % with what computes on the first core and all else on the second.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from specreg.servers.server import StartedServer

_CORES_OF_THE_REST_FRAC = 1 / 8


class Cores:
    """Which process of each server computes is what it did with its processors while warming up.

    Attributes:
        servers: they take turns.
    """

    def __init__(self, servers: Sequence[StartedServer]) -> None:
        self.servers = servers
        self._before = [_used_s(server) for server in servers]

    @contextlib.contextmanager
    def kept_apart(self) -> Iterator[None]:
        """Binds what computes to some cores, and us and all else that we started to the others.

        Threads that are bound already, by an engine that knows better, stay where they are. A
        machine with one core is left alone.
        """
        whole = os.sched_getaffinity(0)
        computing, rest = split(sorted(whole))
        bound: list[int] = []
        if computing:
            busiest = {
                max(used, key=lambda pid: used[pid] - before.get(pid, 0.0))
                for before, used in zip(self._before, map(_used_s, self.servers), strict=True)
                if used
            }
            others = {one.pid for one in psutil.Process().children(recursive=True)}
            others.update([os.getpid()], *(server.pids() for server in self.servers))
            bound = [*_bind(busiest, whole, computing), *_bind(others - busiest, whole, rest)]
        try:
            yield
        finally:
            _set(bound, whole)


def split(cores: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    """The cores for what computes, and those for the rest: an eighth, one at least.

    Args:
        cores: those that we may use; of a single one neither gets any.
    """
    if len(cores) < 2:  # noqa: PLR2004 - two parts
        return (), ()
    of_the_rest = max(1, int(len(cores) * _CORES_OF_THE_REST_FRAC))
    return cores[:-of_the_rest], cores[-of_the_rest:]


def _used_s(server: StartedServer) -> Mapping[int, float]:
    """Processor time by process, so far."""
    used = {}
    for pid in server.pids():
        with contextlib.suppress(psutil.Error):
            times = psutil.Process(pid).cpu_times()
            used[pid] = times.user + times.system
    return used


def _bind(pids: set[int], whole: set[int], cores: Sequence[int]) -> Iterator[int]:
    """Binds the threads of some processes that nobody bound; which it bound."""
    for pid in pids:
        with contextlib.suppress(OSError):  # one that ended meanwhile
            threads = [int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()]
            yield from _set([one for one in threads if _is_free(one, whole)], cores)


def _is_free(thread: int, whole: set[int]) -> bool:
    with contextlib.suppress(OSError):
        return os.sched_getaffinity(thread) >= whole
    return False


def _set(threads: Sequence[int], cores: Sequence[int] | set[int]) -> Sequence[int]:
    """Which threads it could set."""
    done = []
    for thread in threads:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(thread, cores)
            done.append(thread)
    return done
