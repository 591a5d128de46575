"""A server that streams by the clock: requests that name their own schedule in, truth out.

A prompt says which request it is and how its answer comes (`Plan`); `GET /truth` hands over when
each chunk of each request was due and was written. What is streamed is what vLLM 0.32.0 streams,
built beforehand, so that a chunk costs the server little more than its `write`.
"""

import asyncio
import gc
import heapq
import itertools
import os
import re
import sys
import threading
import time
from dataclasses import dataclass, field
from functools import cache

import msgspec

HEAD = '"id":"chatcmpl-b0575a25c05c3b62","object":"chat.completion.chunk","created":1795232558'
MODEL = "bench-target"
SIZES = (1, 4, 2, 3)
"""Tokens of the chunks, over and over: with three drafts per step all that can come."""

_NS_PER_S = 10**9
_NAP_NS = 10**6
"""How long the pacer sleeps at most, since an earlier chunk may come up meanwhile."""
_PLAN = re.compile(rb"request (\d+): first after (\d+) ns, (\d+) chunks, (\d+) ns apart")
_LENGTH = re.compile(rb"(?i)content-length: *(\d+)")
_OPENING = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How one answer comes.

    Attributes:
        request: its number, unique in a run.
        ttft_ns: from the request's arrival to the first chunk with tokens.
        chunks: with tokens; 1 or more.
        gap_ns: between two of them; 0 for all at once.
    """

    request: int
    ttft_ns: int
    chunks: int
    gap_ns: int

    @property
    def prompt(self) -> str:
        """The text that asks for it."""
        return (
            f"request {self.request}: first after {self.ttft_ns} ns,"
            f" {self.chunks} chunks, {self.gap_ns} ns apart"
        )

    @property
    def tokens(self) -> int:
        """Of the whole answer."""
        return sum(itertools.islice(itertools.cycle(SIZES), self.chunks))


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """When one answer was written: entry i is of the i-th chunk with tokens."""

    due_ns: list[int]
    at_ns: list[int]


class Truth(msgspec.Struct, frozen=True, kw_only=True):
    """What the server did since it was last asked.

    Attributes:
        requests: by their number.
        cpu_ns: processor time that it took; wall_ns: of so much time.
        broken_requests: the client went away, or read so slowly that a buffer ran over.
    """

    requests: dict[int, Written]
    cpu_ns: int
    wall_ns: int
    broken_requests: int


@dataclass(slots=True)
class _Stream:
    """An answer that is being written."""

    fd: int
    pieces: tuple[bytes, ...]
    gap_ns: int
    due_ns: list[int] = field(default_factory=list)
    at_ns: list[int] = field(default_factory=list)
    broken: bool = False

    def write_next(self, due_ns: int) -> bool:
        """Writes one piece; whether there are more."""
        piece = self.pieces[len(self.at_ns)]
        self.due_ns.append(due_ns)
        self.at_ns.append(time.monotonic_ns())
        if self.broken or os.write(self.fd, piece) != len(piece):
            self.broken = True
            return False
        return len(self.at_ns) < len(self.pieces)


class Pacer:
    """Writes the pieces of all streams when they are due, in a thread of its own.

    An event loop would do so in whole milliseconds, several streams at a time.
    """

    def __init__(self) -> None:
        self._due: list[tuple[int, int, _Stream]] = []
        self._count = itertools.count()
        threading.Thread(target=self._write, daemon=True).start()

    def add(self, stream: _Stream, due_ns: int) -> None:
        """Takes a stream whose first piece is due then."""
        heapq.heappush(self._due, (due_ns, next(self._count), stream))

    def _write(self) -> None:
        due = self._due
        while True:
            left_ns = due[0][0] - time.monotonic_ns() if due else _NAP_NS
            if left_ns > 0:
                time.sleep(min(left_ns, _NAP_NS) / _NS_PER_S)
                continue
            due_ns, count, stream = heapq.heappop(due)
            try:
                more = stream.write_next(due_ns)
            except OSError:
                stream.broken, more = True, False
            if more:
                heapq.heappush(due, (due_ns + stream.gap_ns, count, stream))


@dataclass(slots=True)
class Served:
    """What the server remembers between two visits to `/truth`."""

    streams: dict[int, _Stream] = field(default_factory=dict)
    cpu_ns: int = 0
    since_ns: int = 0

    def hand_over(self) -> bytes:
        """The truth as JSON; forgotten from now on."""
        cpu_ns, now_ns = time.process_time_ns(), time.monotonic_ns()
        truth = Truth(
            requests={
                number: Written(due_ns=one.due_ns, at_ns=one.at_ns)
                for number, one in self.streams.items()
            },
            cpu_ns=cpu_ns - self.cpu_ns,
            wall_ns=now_ns - self.since_ns,
            broken_requests=sum(one.broken for one in self.streams.values()),
        )
        self.streams, self.cpu_ns, self.since_ns = {}, cpu_ns, now_ns
        return msgspec.json.encode(truth)


class Connection(asyncio.Protocol):
    """One client, request after request."""

    def __init__(self, pacer: Pacer, served: Served) -> None:
        self._pacer = pacer
        self._served = served
        self._heard = b""
        self._streams: list[_Stream] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        for stream in self._streams:
            stream.broken = stream.broken or len(stream.at_ns) < len(stream.pieces)

    def data_received(self, data: bytes) -> None:
        self._heard += data
        head, end, body = self._heard.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if not end or (length and len(body) < int(length[1])):
            return
        self._heard = b""
        if head.startswith(b"GET /truth"):
            page = self._served.hand_over()
            self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(page))
            self._transport.write(page)
        elif (plan := _PLAN.search(body)) is not None:
            number, ttft_ns, chunks, gap_ns = map(int, plan.groups())
            self._answer(Plan(request=number, ttft_ns=ttft_ns, chunks=chunks, gap_ns=gap_ns))
        else:
            self._transport.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")

    def _answer(self, plan: Plan) -> None:
        now_ns = time.monotonic_ns()
        self._transport.write(_OPENING)
        pieces = _pieces(plan.chunks)
        if plan.gap_ns == 0:
            self._transport.write(b"".join(pieces))
            return
        fd = self._transport.get_extra_info("socket").fileno()
        stream = _Stream(fd=fd, pieces=pieces, gap_ns=plan.gap_ns)
        self._streams = [stream]
        self._served.streams[plan.request] = stream
        self._pacer.add(stream, now_ns + plan.ttft_ns)


@cache
def _pieces(chunks: int) -> tuple[bytes, ...]:
    """What is written: a piece per chunk with tokens, the first and the last with what goes along.

    vLLM, too, opens the stream with the first token, and ends it with the last.
    """
    sizes = list(itertools.islice(itertools.cycle(SIZES), chunks))
    events = [[_content(place, size, last=place == chunks - 1)] for place, size in enumerate(sizes)]
    events[0].insert(0, _event('"choices":[{"index":0,"delta":{"role":"assistant","content":""},'
                               '"logprobs":null,"finish_reason":null}],"prompt_token_ids":[1,552],'
                               '"prompt_text":null'))  # fmt: skip
    events[-1] += [_event(_usage(sizes)), b"data: [DONE]\n\n"]
    framed = [b"".join(map(_framed, part)) for part in events]
    return (*framed[:-1], framed[-1] + b"0\r\n\r\n")


def _content(place: int, size: int, *, last: bool) -> bytes:
    text = " speculative"[: 3 * size] + f" {place % 10}"
    ids = ",".join(str(310 + place % 50 + more) for more in range(size))
    reason = '"length","stop_reason":null' if last else "null"
    return _event(
        f'"choices":[{{"index":0,"delta":{{"content":"{text}"}},"logprobs":null,'
        f'"finish_reason":{reason},"token_ids":[{ids}]}}]'
    )


def _usage(sizes: list[int]) -> str:
    tokens, steps = sum(sizes), sizes[1:]
    histogram = [steps.count(size) for size in (1, 2, 3, 4)]
    accepted = sum(steps) - len(steps)
    return (
        f'"choices":[],"usage":{{"prompt_tokens":20,"total_tokens":{20 + tokens},'
        f'"completion_tokens":{tokens}}},"system_fingerprint":"vllm-0.32.0-7766335f",'
        f'"metrics":{{"time_to_first_token_ms":50.0,"speculative_decoding":{{'
        f'"acceptance_histogram":{histogram},"num_spec_steps":{len(steps)},'
        f'"num_accepted_draft_tokens":{accepted},"num_draft_tokens":{3 * len(steps)},'
        f'"num_spec_tokens":3}}}}'
    )


def _event(rest: str) -> bytes:
    return f'data: {{{HEAD},"model":"{MODEL}",{rest}}}\n\n'.encode()


def _framed(event: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(event), event)


async def _serve() -> None:
    loop, pacer, served = asyncio.get_running_loop(), Pacer(), Served()
    server = await loop.create_server(
        lambda: Connection(pacer, served), "127.0.0.1", 0, backlog=2048
    )
    gc.collect()
    gc.freeze()
    gc.disable()
    sys.setswitchinterval(0.0002)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    # It ends with its input, so it can't outlive the benchmark.
    await loop.run_in_executor(None, sys.stdin.buffer.read)
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(_serve())
