"""Measures the client itself: `nox -s bench`, about five minutes.

Each client runs in a process of its own against a paced server in another, one after the other,
again and again, so that a busy minute of the machine hits all of them.
"""

import contextlib
import socket
import statistics
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from rich.console import Console

from tests.bench.clients import CLIENTS, Ran

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TTFT_MS = 50.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """So many streams of so many chunks a second each, for `seconds`; they begin over `ramp_s`."""

    streams: int
    chunks_per_s: int
    seconds: int = 3
    ramp_s: float = 0.0
    repeats: int = 3

    @property
    def chunks(self) -> int:
        """Chunks of a stream."""
        return self.chunks_per_s * self.seconds


LOADS = (
    Load(streams=64, chunks_per_s=100),
    Load(streams=256, chunks_per_s=25, ramp_s=2.0),
    Load(streams=1024, chunks_per_s=10, seconds=8, ramp_s=6.0, repeats=1),
)


class Figures(msgspec.Struct):
    """What one run of one client says; errors against the server's own times."""

    cpu_us_per_chunk: float
    ttft_error_p50_ms: float
    ttft_error_p99_ms: float
    last_error_p99_ms: float
    throughput_error_frac: float


@contextlib.contextmanager
def paced(chunks_per_s: float, chunks: int, ttft_ms: float = TTFT_MS) -> Iterator[int]:
    """A server for as long as the context lasts; its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    arguments = (str(port), str(chunks_per_s), str(chunks), str(ttft_ms))
    process = subprocess.Popen(
        (sys.executable, str(HERE / "server.py"), *arguments), stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield port
    finally:
        process.kill()
        process.communicate()


def run_client(name: str, port: int, streams: int, ramp_s: float, requests: int) -> Ran:
    """One client's run, in a process of its own."""
    arguments = (name, *map(str, (port, streams, ramp_s, requests)))
    done = subprocess.run(
        (sys.executable, "-m", "tests.bench.clients", *arguments),
        check=True,
        capture_output=True,
        cwd=ROOT,
    )
    return msgspec.json.decode(done.stdout, type=Ran)


def scrape_truth(port: int) -> dict[int, tuple[int, int]]:
    """When the server wrote the first and the last chunk of each request."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/truth") as answer:
        return msgspec.json.decode(answer.read(), type=dict[int, tuple[int, int]])


def figures_of(ran: Ran, truth: dict[int, tuple[int, int]]) -> Figures:
    """A run held against the truth."""
    first_ms = sorted((one.first_ns - truth[one.number][0]) / 1e6 for one in ran.seen)
    last_ms = sorted((one.last_ns - truth[one.number][1]) / 1e6 for one in ran.seen)
    sent_ns = min(one.sent_ns for one in ran.seen)
    ours_ns = max(one.last_ns for one in ran.seen) - sent_ns
    theirs_ns = max(truth[one.number][1] for one in ran.seen) - sent_ns
    return Figures(
        cpu_us_per_chunk=ran.cpu_s * 1e6 / sum(one.chunks for one in ran.seen),
        ttft_error_p50_ms=float(np.quantile(first_ms, 0.5)),
        ttft_error_p99_ms=float(np.quantile(first_ms, 0.99)),
        last_error_p99_ms=float(np.quantile(last_ms, 0.99)),
        throughput_error_frac=abs(theirs_ns / ours_ns - 1),
    )


def compare(load: Load) -> dict[str, Figures]:
    """The clients under one load: the median of each figure over the repeats."""
    found: dict[str, list[Figures]] = {name: [] for name in CLIENTS}
    for _ in range(load.repeats):
        for name, figures in found.items():
            with paced(load.chunks_per_s, load.chunks) as port:
                ran = run_client(name, port, load.streams, load.ramp_s, load.streams)
                complete = {one.chunks for one in ran.seen} == {load.chunks}
                assert complete, f"{name}: chunks were lost"
                figures.append(figures_of(ran, scrape_truth(port)))
    return {name: _median(figures) for name, figures in found.items()}


def _median(several: Sequence[Figures]) -> Figures:
    fields = Figures.__struct_fields__
    return Figures(**{f: statistics.median(getattr(one, f) for one in several) for f in fields})


def memory_per_request_bytes(chunks: int) -> float:
    """How much more memory 4,000 requests take than 1,000, by request."""
    grown = []
    for requests in (1_000, 4_000):
        with paced(1e5, chunks, ttft_ms=0.0) as port:
            grown.append(run_client("specreg", port, 32, 0.0, requests).grown_bytes)
    return (grown[1] - grown[0]) / 3_000


def main() -> None:
    """Prints the figures of each client under each load, as rows of a table in Markdown."""
    console = Console(soft_wrap=True, highlight=False)
    console.print("| load | client |", " | ".join(Figures.__struct_fields__), "|")
    for load in LOADS:
        for name, figures in compare(load).items():
            said = " | ".join(f"{value:.3g}" for value in msgspec.structs.astuple(figures))
            console.print(f"| {load.streams} x {load.chunks_per_s} | {name} | {said} |")
    for chunks in (10, 100):
        grown_bytes = memory_per_request_bytes(chunks)
        console.print(f"memory per request of {chunks} chunks: {grown_bytes:.0f} bytes")


if __name__ == "__main__":
    main()
