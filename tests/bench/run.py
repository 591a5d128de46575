"""Measures the client itself beside one that a reasonable person writes: `nox -s bench`.

Each client runs in a process of its own against a paced server in another, one after the other,
again and again, so that a busy minute of the machine hits all of them. That takes about five
minutes. `python -m tests.bench.run NAME PORT STREAMS RAMP_S REQUESTS` is such a process: it sends
REQUESTS from STREAMS slots that begin over RAMP_S, and prints JSON: for each request when it was
sent and its first and last chunk came, and what it cost.
"""

import asyncio
import contextlib
import dataclasses
import json
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import msgspec
import numpy as np
import psutil
import uvloop
from rich.console import Console

from specreg.core.address import Address
from specreg.datasets.prompts import Prompt
from specreg.engines.wire_format import Endpoint
from specreg.load.rounds import open_clients
from specreg.matrix.case import Load
from specreg.matrix.tier import load_tier

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TTFT_MS = 50.0


class Seen(msgspec.Struct):
    """A request as a client saw it; all times in nanoseconds."""

    number: int
    sent_ns: int
    first_ns: int
    last_ns: int
    chunks: int


class Ran(msgspec.Struct):
    """What a client's run was: cpu_s of its process, from the first send to the last answer."""

    seen: list[Seen]
    cpu_s: float
    grown_bytes: int


Client = Callable[[str, int, float, Sequence[int]], Awaitable[list[Seen]]]
"""A server's URL, how many requests are in flight, over how many seconds these begin one after
another, and the numbers to ask in."""


def _body(number: int) -> dict[str, object]:
    messages = [{"role": "user", "content": f"number {number} "}]
    return {"model": "toy", "messages": messages, "stream": True, "max_tokens": 1000}


async def ask_plain_aiohttp(
    base_url: str, streams: int, ramp_s: float, numbers: Sequence[int]
) -> list[Seen]:
    """Aiohttp, line by line, with the standard library's JSON."""
    seen: list[Seen] = []
    unasked = iter(numbers)

    async def keep_asking(client: aiohttp.ClientSession, slot: int) -> None:
        await asyncio.sleep(ramp_s * slot / streams)
        for number in unasked:
            timing = Seen(number, time.monotonic_ns(), 0, 0, 0)
            url = f"{base_url}/v1/chat/completions"
            async with client.post(url, json=_body(number)) as response:
                async for line in response.content:
                    event = line.decode().strip().removeprefix("data: ")
                    choices = json.loads(event)["choices"] if event.startswith("{") else ()
                    if choices and choices[0]["delta"].get("content"):
                        timing.last_ns = time.monotonic_ns()
                        timing.first_ns = timing.first_ns or timing.last_ns
                        timing.chunks += 1
            seen.append(timing)

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as client:
        await asyncio.gather(*(keep_asking(client, slot) for slot in range(streams)))
    return seen


async def ask_specreg(
    base_url: str, streams: int, ramp_s: float, numbers: Sequence[int]
) -> list[Seen]:
    """What the suite measures with."""
    tier = load_tier(ROOT / "fixtures/matrix", "cpu")
    case = dataclasses.replace(tier.cases[0], load=Load(concurrency=streams, ramp_up_s=ramp_s))
    endpoint = Endpoint(address=Address(base_url), model="toy", engine="vllm")
    prompts = [
        Prompt(id=str(number), category="bench", turns=(f"number {number} ",)) for number in numbers
    ]
    async with open_clients(case, endpoint, clock=time.monotonic_ns) as clients:
        done = await clients.replay(prompts)
    return [
        Seen(
            int(trace.prompt_id),
            trace.sent_ns,
            trace.first_ns or 0,
            trace.last_ns or 0,
            1 + sum(trace.chunk_sizes),
        )
        for trace in done.traces
    ]


CLIENTS: dict[str, tuple[Client, bool]] = {
    "specreg": (ask_specreg, True),
    "plain aiohttp": (ask_plain_aiohttp, False),
}
"""By name: the client, and whether it runs on uvloop."""


def be_client(name: str, port: str, streams: str, ramp_s: str, requests: str) -> None:
    """Runs one client in this process."""
    client, on_uvloop = CLIENTS[name]
    base_url = f"http://127.0.0.1:{port}"
    run = uvloop.run if on_uvloop else asyncio.run

    async def measure() -> Ran:
        process = psutil.Process()
        await client(base_url, 1, 0.0, [-1])  # what is imported and made on first use
        before_bytes = process.memory_info().rss
        before_s = time.process_time()
        seen = await client(base_url, int(streams), float(ramp_s), range(int(requests)))
        spent_s = time.process_time() - before_s
        return Ran(seen, spent_s, process.memory_info().rss - before_bytes)

    sys.stdout.buffer.write(msgspec.json.encode(run(measure())))


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """So many streams of so many chunks a second each, for `seconds`; they begin over `ramp_s`."""

    number: int
    chunks_per_s: int
    seconds: int = 3
    ramp_s: float = 0.0
    repeats: int = 3

    @property
    def chunks(self) -> int:
        """Chunks of a stream."""
        return self.chunks_per_s * self.seconds


LOADS = (
    Streams(number=64, chunks_per_s=100),
    Streams(number=256, chunks_per_s=25, ramp_s=2.0),
    Streams(number=1024, chunks_per_s=10, seconds=8, ramp_s=6.0, repeats=1),
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
        (sys.executable, "-m", "tests.bench.run", *arguments),
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
    first_ms = sorted((seen.first_ns - truth[seen.number][0]) / 1e6 for seen in ran.seen)
    last_ms = sorted((seen.last_ns - truth[seen.number][1]) / 1e6 for seen in ran.seen)
    sent_ns = min(seen.sent_ns for seen in ran.seen)
    ours_ns = max(last_seen_ns.last_ns for last_seen_ns in ran.seen) - sent_ns
    theirs_ns = max(truth[last_sent_ns.number][1] for last_sent_ns in ran.seen) - sent_ns
    return Figures(
        cpu_us_per_chunk=ran.cpu_s * 1e6 / sum(seen.chunks for seen in ran.seen),
        ttft_error_p50_ms=float(np.quantile(first_ms, 0.5)),
        ttft_error_p99_ms=float(np.quantile(first_ms, 0.99)),
        last_error_p99_ms=float(np.quantile(last_ms, 0.99)),
        throughput_error_frac=abs(theirs_ns / ours_ns - 1),
    )


def compare(load: Streams) -> dict[str, Figures]:
    """The clients under one load: the median of each figure over the repeats."""
    figures_by_client: dict[str, list[Figures]] = {name: [] for name in CLIENTS}
    for _ in range(load.repeats):
        for name, figures in figures_by_client.items():
            with paced(load.chunks_per_s, load.chunks) as port:
                ran = run_client(name, port, load.number, load.ramp_s, load.number)
                complete = {seen.chunks for seen in ran.seen} == {load.chunks}
                assert complete, f"{name}: chunks were lost"
                figures.append(figures_of(ran, scrape_truth(port)))
    return {name: _median(figures) for name, figures in figures_by_client.items()}


def _median(several: Sequence[Figures]) -> Figures:
    fields = Figures.__struct_fields__
    return Figures(
        **{f: statistics.median(getattr(figures, f) for figures in several) for f in fields}
    )


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
            cells = " | ".join(f"{value:.3g}" for value in msgspec.structs.astuple(figures))
            console.print(f"| {load.number} x {load.chunks_per_s} | {name} | {cells} |")
    for chunks in (10, 100):
        grown_bytes = memory_per_request_bytes(chunks)
        console.print(f"memory per request of {chunks} chunks: {grown_bytes:.0f} bytes")


if __name__ == "__main__":
    if sys.argv[1:]:
        be_client(*sys.argv[1:])
    else:
        main()
