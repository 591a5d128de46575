"""A server that streams by a schedule, as cheaply as Python can, and knows when it wrote what.

`python server.py PORT RATE CHUNKS TTFT_MS`: vLLM's chat stream, RATE chunks a second for each of
as many streams as are asked for, CHUNKS of 3 tokens each. `GET /truth` has the nanoseconds of the
monotonic clock right before each stream's first and last chunk was written, by the number that the
client put into its prompt.
"""

import asyncio
import gc
import json
import re
import sys
import time
from typing import cast

import uvloop

TOKENS = 3
_NUMBER = re.compile(rb"number (\d+)")
_PHASES = 61
"""The streams begin at so many different moments of a gap, so that they don't write all at once."""


def _chunked(event: str) -> bytes:
    data = f"data: {event}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(data), data)


def _event(choices: str, fields: str = "") -> str:
    head = (
        '"id":"chatcmpl-9693ed33006c57b8","object":"chat.completion.chunk","created":1795216258,'
        '"model":"tiny-target"'
    )
    return f'{{{head},"choices":[{choices}]{fields}}}'


def _choice(ids: str, finish_reason: str) -> str:
    delta = '"delta":{"content":" some words"}'
    return (
        f'{{"index":0,{delta},"logprobs":null,"finish_reason":{finish_reason},"token_ids":[{ids}]}}'
    )


_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_FIRST = _chunked(_event(_choice("309", "null")))
_NEXT = _chunked(_event(_choice("309,310,437", "null")))
_LAST = _chunked(_event(_choice("309,310,437", '"length"')))


def _ending(tokens: int) -> bytes:
    usage = f',"usage":{{"prompt_tokens":20,"completion_tokens":{tokens}}}'
    return _chunked(_event("", usage)) + _chunked("[DONE]") + b"0\r\n\r\n"


class Paced(asyncio.Protocol):
    """One connection, one request at a time; the loop's timers write."""

    def __init__(self, rate: float, chunks: int, ttft_s: float) -> None:
        self.gap_s = 1 / rate
        self.chunks = chunks
        self.ttft_s = ttft_s
        self.received = b""
        self.ending = _ending(1 + TOKENS * (chunks - 1))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keeps the transport."""
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Answers once the whole request is there."""
        self.received += data
        head, end, body = self.received.partition(b"\r\n\r\n")
        if not end:
            return
        if head.startswith(b"GET /truth"):
            answer = json.dumps(TRUTH).encode()
            self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(answer))
            self.transport.write(answer)
            self.received = b""
            return
        length = re.search(rb"(?i)content-length: *(\d+)", head)
        if length and len(body) < int(length[1]):
            return
        match = _NUMBER.search(body)
        number = int(match[1]) if match else -1
        self.received = b""
        self.transport.write(_HEAD)
        self.task = asyncio.ensure_future(self.stream(number))

    async def stream(self, number: int) -> None:
        """Writes each chunk when it is due."""
        due_s = time.monotonic() + self.ttft_s + (number % _PHASES) / _PHASES * self.gap_s
        for chunk in range(self.chunks):
            await asyncio.sleep(due_s - time.monotonic())
            if self.transport.is_closing():
                return
            now_ns = time.monotonic_ns()
            if chunk == 0:
                TRUTH[number] = (now_ns, now_ns)
                self.transport.write(_FIRST)
            elif chunk < self.chunks - 1:
                self.transport.write(_NEXT)
            else:
                TRUTH[number] = (TRUTH[number][0], now_ns)
                self.transport.write(_LAST)
            due_s += self.gap_s
        self.transport.write(self.ending)


TRUTH: dict[int, tuple[int, int]] = {}


async def _serve(port: int, rate: float, chunks: int, ttft_ms: float) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Paced(rate, chunks, ttft_ms / 1e3), "127.0.0.1", port, backlog=4096
    )
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    port, rate, chunks, ttft_ms = sys.argv[1:]
    gc.disable()  # its truth must not stop for a collection
    uvloop.run(_serve(int(port), float(rate), int(chunks), float(ttft_ms)))
