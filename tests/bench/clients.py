"""The clients that are compared: specreg's, and one that a reasonable person writes.

`python -m tests.bench.clients NAME PORT STREAMS RAMP_S REQUESTS` sends REQUESTS from STREAMS
slots that begin over RAMP_S, and prints JSON: for each request when it was sent and its first and
last chunk came, and what it cost.
"""

import asyncio
import dataclasses
import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import aiohttp
import msgspec
import psutil
import uvloop

from specreg.datasets.prompts import Prompt
from specreg.engines.wire_format import Endpoint
from specreg.load.client_processes import open_clients
from specreg.matrix.schema import Load
from specreg.matrix.tier import load_tier

ROOT = Path(__file__).parents[2]


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
    said = [{"role": "user", "content": f"number {number} "}]
    return {"model": "toy", "messages": said, "stream": True, "max_tokens": 1000}


async def ask_plain_aiohttp(
    base_url: str, streams: int, ramp_s: float, numbers: Sequence[int]
) -> list[Seen]:
    """Aiohttp, line by line, with the standard library's JSON."""
    seen: list[Seen] = []
    left = iter(numbers)

    async def keep_asking(client: aiohttp.ClientSession, slot: int) -> None:
        await asyncio.sleep(ramp_s * slot / streams)
        for number in left:
            one = Seen(number, time.monotonic_ns(), 0, 0, 0)
            url = f"{base_url}/v1/chat/completions"
            async with client.post(url, json=_body(number)) as response:
                async for line in response.content:
                    _take(one, line.decode().strip().removeprefix("data: "))
            seen.append(one)

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as client:
        await asyncio.gather(*(keep_asking(client, slot) for slot in range(streams)))
    return seen


def _take(one: Seen, line: str) -> None:
    if not line.startswith("{"):
        return
    choices = json.loads(line)["choices"]
    if choices and choices[0]["delta"].get("content"):
        one.last_ns = time.monotonic_ns()
        one.first_ns = one.first_ns or one.last_ns
        one.chunks += 1


async def ask_specreg(
    base_url: str, streams: int, ramp_s: float, numbers: Sequence[int]
) -> list[Seen]:
    """What the suite measures with."""
    tier = load_tier(ROOT / "fixtures/matrix", "cpu")
    case = dataclasses.replace(tier.cases[0], load=Load(concurrency=streams, ramp_up_s=ramp_s))
    endpoint = Endpoint(base_url=base_url, model="toy", engine="vllm")
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


def main(name: str, port: str, streams: str, ramp_s: str, requests: str) -> None:
    """Runs one client."""
    client, on_uvloop = CLIENTS[name]
    base_url = f"http://127.0.0.1:{port}"
    run = uvloop.run if on_uvloop else asyncio.run

    async def measure() -> Ran:
        process = psutil.Process()
        await client(base_url, 1, 0.0, [-1])  # what is imported and made on first use
        before_bytes, before_s = process.memory_info().rss, time.process_time()
        seen = await client(base_url, int(streams), float(ramp_s), range(int(requests)))
        spent_s = time.process_time() - before_s
        return Ran(seen, spent_s, process.memory_info().rss - before_bytes)

    sys.stdout.buffer.write(msgspec.json.encode(run(measure())))


if __name__ == "__main__":
    main(*sys.argv[1:])
