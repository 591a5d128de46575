"""Measures what a pool adds to each errand: a thousand of them on 64 scripted nodes.

`python -m tests.bench.many` prints its figures as JSON. The workers do nothing at all, so that what
is left is the line, the places, and a thread for each.
"""

import sys
import tempfile
import time
import tracemalloc
from pathlib import Path

import msgspec

from tests.unit.many.test_many_nodes import Scripted, nodes, pool_of
from tests.unit.many.test_many_pool import errand

ERRANDS, NODES = 1_000, 64
MOST_MS = 50.0


class Scheduled(msgspec.Struct):
    """What it took: milliseconds for each errand, and the most memory beyond what was there."""

    errands: int
    nodes: int
    each_ms: float
    grown_mb: float


def main() -> None:
    """Prints it; the exit status is 1 where an errand takes more than 50 ms."""
    crew = Scripted(nodes=nodes(*(f"node-{number}" for number in range(NODES))))
    errands = [
        errand(f"server-{n}", f"word {n}", gpus=(1, 2, 4)[n % 3], weight=n) for n in range(ERRANDS)
    ]
    with tempfile.TemporaryDirectory() as folder:
        pool = pool_of(crew, Path(folder))
        started = time.perf_counter()
        pool.send(errands)
        pool.wait()
        each_ms = 1000 * (time.perf_counter() - started) / ERRANDS
        tracemalloc.start()
        again = pool_of(crew, Path(folder))
        again.send(errands)
        again.wait()
        _, grown_bytes = tracemalloc.get_traced_memory()
    found = Scheduled(errands=ERRANDS, nodes=NODES, each_ms=each_ms, grown_mb=grown_bytes / 10**6)
    sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")
    raise SystemExit(each_ms > MOST_MS)


if __name__ == "__main__":
    main()
