"""Replay prompts as a load says into a round of traces, from this process or from several.

Each process has one event loop; several are needed where one core isn't enough. A further process
is `python -m specreg.load.rounds`: it takes `_Order` messages and gives `_Reply` messages, see
`specreg.core.processes`.
"""

import asyncio
import contextlib
import dataclasses
import functools
import gc
import itertools
import math
import operator
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from specreg.acceptance.trace import RequestTrace
from specreg.core.errors import AnswerError, HungError, InvalidMeasurementError
from specreg.core.http import read
from specreg.core.processes import SupervisedProcess, child_process
from specreg.datasets.prompts import Prompt
from specreg.engines.wire_format import Endpoint
from specreg.load.chat_client import ChatClient, Clock, FinishedRequest, Record, new_client
from specreg.matrix.case import Arrivals, Case, Load
from specreg.stats.percentiles import TimeHistogram

if TYPE_CHECKING:
    import httpx

BEAT_NS = 20 * 10**6
_FINISHING_NS = 10**6
_HEAD_START_NS = 50 * 10**6
"""How long an order may take to reach all processes, so that they begin together."""
_SCRAPE_S = 30.0
_TOKEN_S = 60.0
_NS_PER_S = 10**9

_Planned = Iterator[tuple[int, Prompt]]
"""Conversations and their places in the round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Some prompts replayed without a pause.

    Attributes:
        traces: in the order of the prompts, a conversation's turns one after another.
        started_ns: the first send.
        ended_ns: the last chunk with a token; `started_ns` if there was none.
        gaps: between the chunks of a request: with speculation the time of a verify step. Chunks
            that were read at once aren't a step apart, so there is no gap of 0 ns.
        lags: how late the client's own event loop was, at a beat every 20 ms.
    """

    traces: tuple[RequestTrace, ...]
    started_ns: int
    ended_ns: int
    gaps: TimeHistogram = field(default_factory=TimeHistogram)
    lags: TimeHistogram = field(default_factory=TimeHistogram)


@dataclass(slots=True)
class RoundBuilder:
    """Collects a round's requests; `late` are those whose time was up.

    `record` is told of each request, None for a round that isn't recorded.
    """

    record: Record | None = None
    traces: dict[tuple[int, int], RequestTrace] = field(default_factory=dict)
    gaps: TimeHistogram = field(default_factory=TimeHistogram)
    lags: TimeHistogram = field(default_factory=TimeHistogram)
    late: int = 0

    def take(self, finished: FinishedRequest) -> None:
        """Take one more request."""
        self.traces[finished.place, finished.trace.turn] = finished.trace
        self.late += finished.late
        times_ns = [chunk.at_ns for chunk in finished.chunks]
        self.gaps.add_all(list(filter(None, map(operator.sub, times_ns[1:], times_ns))))
        if self.record is not None:
            self.record(finished)

    def as_round(self) -> Round:
        """The round of all requests taken; from 0 to 0 without any."""
        traces = tuple(self.traces[place] for place in sorted(self.traces))
        started_ns = min((trace.sent_ns for trace in traces), default=0)
        last = (trace.last_ns for trace in traces if trace.last_ns is not None)
        return Round(
            traces=traces,
            started_ns=started_ns,
            ended_ns=max(last, default=started_ns),
            gaps=self.gaps,
            lags=self.lags,
        )


class RoundSlice(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a round that one process replays: every `of`-th conversation, from `number`.

    `number` is 0 or more and below `of`; `started_ns` is when the round begins, the same for all.
    """

    number: int = 0
    of: int = 1
    started_ns: int


async def replay_round(
    case: Case,
    endpoint: Endpoint,
    prompts: Sequence[Prompt],
    *,
    client: "httpx.AsyncClient",
    clock: Clock,
    record: Record | None = None,
    part: RoundSlice | None = None,
) -> RoundBuilder:
    """Replay prompts as the case's load says; each conversation's turns one after another.

    A request that fails is a trace with an error, and ends its conversation; nothing is retried. At
    least one prompt is needed; with a duration they come again and again. `clock` is monotonic, in
    nanoseconds; `record` is told of each request as it ends; `part` is ours of the round, None for
    all of it, from now on.

    Raises:
        HungError: on no stream a token came for 60 s of requests.
    """
    part = part or RoundSlice(started_ns=clock())
    builder = RoundBuilder(record)
    ended: asyncio.Queue[FinishedRequest] = asyncio.Queue()

    async def keep_finishing() -> None:
        # Finish for a millisecond, then read the sockets: streams that end together must not keep
        # the others waiting.
        while True:
            builder.take(await ended.get())
            until_ns = clock() + _FINISHING_NS
            while not ended.empty() and clock() < until_ns:
                builder.take(ended.get_nowait())
            await asyncio.sleep(0)

    asked = ChatClient(case=case, endpoint=endpoint, http=client, clock=clock, end=ended.put_nowait)
    # With a duration the conversations come again; ours keep their places in the round.
    everything = enumerate(itertools.cycle(prompts) if case.load.duration_s else prompts)
    planned = itertools.islice(everything, part.number, None, part.of)
    replay = _replay_closed if case.load.arrivals is Arrivals.CLOSED else _replay_open
    asking = asyncio.create_task(replay(asked, planned, part))
    watching = asyncio.create_task(asked.watch())
    finishing = asyncio.create_task(keep_finishing())
    lagging = asyncio.create_task(_measure_lag(builder.lags, clock))
    # A full garbage collection of all older objects would take a tenth of a second.
    gc.freeze()
    try:
        # Watching and finishing end only by an error, such as a full disk.
        working = (asking, watching, finishing)
        done, _ = await asyncio.wait(working, return_when=asyncio.FIRST_COMPLETED)
        for task in (asking,) if asking in done else done:
            task.result()
    finally:
        gc.unfreeze()
        for task in (asking, watching, lagging):
            task.cancel()
        await asyncio.wait((asking,))
        if finishing.done():
            finishing.result()
        finishing.cancel()
        while not ended.empty():
            builder.take(ended.get_nowait())
    return builder


def due_after_ns(load: Load) -> Iterator[int]:
    """When each request of an open load is due, counted from the start of a round; endless.

    A rate that rises linearly over the ramp T sends, by time t < T, t²/2T as many requests as one
    second at the full rate does; so a request that is due at u without the ramp is due at sqrt(2uT)
    while u < T/2, and at u + T/2 later.
    """
    draw, rate, shape = random.Random(load.seed), load.requests_per_s, load.burstiness  # noqa: S311
    gap_s: Mapping[Arrivals, Callable[[], float]] = {
        Arrivals.CONSTANT: lambda: 1 / rate,
        Arrivals.POISSON: lambda: draw.expovariate(rate),
        Arrivals.GAMMA: lambda: draw.gammavariate(shape, 1 / (rate * shape)),
    }
    flat_s, half_s = 0.0, load.ramp_up_s / 2
    while True:
        ramped_s = flat_s + half_s if flat_s >= half_s else (4 * flat_s * half_s) ** 0.5
        yield round(ramped_s * _NS_PER_S)
        flat_s += gap_s[load.arrivals]()


async def _replay_closed(asked: ChatClient, planned: _Planned, part: RoundSlice) -> None:
    """Replay as many conversations at once as the load says: the next begins when one has ended."""
    load, clock = asked.case.load, asked.clock
    end_ns = part.started_ns + (load.duration_s or math.inf) * _NS_PER_S

    async def keep_asking(slot: int) -> None:
        ramp_ns = round(load.ramp_up_s * _NS_PER_S * slot / load.concurrency)
        await _sleep_until(part.started_ns + ramp_ns, clock)
        while clock() < end_ns and (one := next(planned, None)):
            await asked.replay(*one, clock())

    slots = range(part.number, load.concurrency, part.of)
    await asyncio.gather(*map(keep_asking, slots))


async def _replay_open(asked: ChatClient, planned: _Planned, part: RoundSlice) -> None:
    """Begin each conversation when it is due, whatever became of those before it."""
    load = asked.case.load
    due = itertools.islice(due_after_ns(load), part.number, None, part.of)
    async with asyncio.TaskGroup() as group:
        for one, due_ns in zip(planned, due, strict=False):
            if due_ns >= (load.duration_s or math.inf) * _NS_PER_S:
                return
            planned_ns = part.started_ns + due_ns
            await _sleep_until(planned_ns, asked.clock)
            group.create_task(asked.replay(*one, planned_ns))


async def _sleep_until(moment_ns: int, clock: Clock) -> None:
    left_ns = moment_ns - clock()
    if left_ns > 0:
        await asyncio.sleep(left_ns / _NS_PER_S)


async def _measure_lag(lags: TimeHistogram, clock: Clock) -> None:
    """Measure how late each beat comes: what the loop's other work delays it by."""
    while True:
        due_ns = clock() + BEAT_NS
        await _sleep_until(due_ns, clock)
        lags.add_all((max(clock() - due_ns, 0),))


class _Order(msgspec.Struct, frozen=True, kw_only=True):
    """What one process is to replay."""

    case: Case
    endpoint: Endpoint
    prompts: tuple[Prompt, ...]
    part: RoundSlice


class _Reply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request that ended or, at the end, the lags, or for how long no token came."""

    finished: FinishedRequest | None = None
    lags: TimeHistogram | None = None
    hung_s: float | None = None


class _Worker(NamedTuple):
    """A further process, and what it replies."""

    child: SupervisedProcess
    replies: asyncio.StreamReader

    async def replay(self, order: _Order, builder: RoundBuilder) -> None:
        """Replay a slice of the round that is built, else `CLIENT_DIED` or `HUNG`."""
        self.child.send(order)
        while line := await self.replies.readline():
            reply = msgspec.json.decode(line, type=_Reply)
            if reply.hung_s is not None:
                raise HungError(reply.hung_s)
            if reply.finished is not None:
                builder.take(reply.finished)
            if reply.lags is not None:
                builder.lags.merge(reply.lags)
                return
        status = self.child.popen.wait()
        message = f"a client process ended with status {status}:\n{self.child.last_lines()}"
        raise InvalidMeasurementError("CLIENT_DIED", message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """The processes that send one case's requests to an endpoint.

    `workers` are the further ones; none unless the case asks for two or more. A server that doesn't
    hang generates a token in `token_within_s`.
    """

    case: Case
    endpoint: Endpoint
    clock: Clock
    client: "httpx.AsyncClient"
    workers: tuple[_Worker, ...]
    token_within_s: float = _TOKEN_S

    async def replay(self, prompts: Sequence[Prompt], record: Record | None = None) -> Round:
        """One round, see `replay_round`, else `CLIENT_DIED` of a further process, or `HUNG`.

        Where a request's time was up, the server is asked for a token more: it may hang.
        """
        if self.workers:
            built = RoundBuilder(record)
            await self._replay_slices(tuple(prompts), built)
        else:
            built = await self._replay_here(self.case, prompts, record)
        if built.late:
            within_s, one = self.token_within_s, Load(concurrency=1)
            case = dataclasses.replace(
                self.case, load=one, turns=1, output_cap_tokens=1, request_timeout_s=within_s
            )
            if (await self._replay_here(case, prompts[:1])).late:
                raise HungError(within_s)
        return built.as_round()

    async def _replay_here(
        self, case: Case, prompts: Sequence[Prompt], record: Record | None = None
    ) -> RoundBuilder:
        return await replay_round(
            case, self.endpoint, prompts, client=self.client, clock=self.clock, record=record
        )

    async def replay_under(self, load: Load, prompts: Sequence[Prompt]) -> Round:
        """One round under another load, as for the warm-up; it isn't recorded."""
        case = dataclasses.replace(self.case, load=load)
        return await dataclasses.replace(self, case=case).replay(prompts)

    async def scrape(self, path: str) -> str:
        """The page of the server at a path, else `METRICS_MISSING`."""
        try:
            page = await read(self.client, "GET", path, within_s=_SCRAPE_S)
            page.good()
        except AnswerError as error:
            message = f"looked for counters, {error}; look at the server's log"
            raise InvalidMeasurementError("METRICS_MISSING", message) from error
        return page.text

    async def _replay_slices(self, prompts: tuple[Prompt, ...], builder: RoundBuilder) -> None:
        started_ns, of = self.clock() + _HEAD_START_NS, len(self.workers)
        parts = [RoundSlice(number=number, of=of, started_ns=started_ns) for number in range(of)]
        order = functools.partial(_Order, case=self.case, endpoint=self.endpoint, prompts=prompts)
        pairs = zip(self.workers, parts, strict=True)
        await asyncio.gather(*(worker.replay(order(part=part), builder) for worker, part in pairs))


@contextlib.asynccontextmanager
async def open_clients(case: Case, endpoint: Endpoint, *, clock: Clock) -> AsyncIterator[Clients]:
    """Clients for as long as the context lasts.

    `clock` is monotonic, in nanoseconds; with further processes the system's own.
    """
    count = case.client_processes if case.client_processes > 1 else 0
    client = new_client(endpoint, connections=case.load.concurrency)
    async with client, contextlib.AsyncExitStack() as stack:
        workers = tuple([await stack.enter_async_context(_worker()) for _ in range(count)])
        yield Clients(case=case, endpoint=endpoint, clock=clock, client=client, workers=workers)


@contextlib.asynccontextmanager
async def _worker() -> AsyncIterator[_Worker]:
    command = (sys.executable, "-P", "-m", "specreg.load.rounds")
    with tempfile.TemporaryDirectory(prefix="specreg-", ignore_cleanup_errors=True) as folder:
        log_path = Path(folder) / "log"
        with child_process(command, log_path=log_path, temporary=[Path(folder)]) as child:
            async with child.reader() as reader:
                yield _Worker(child, reader)


async def _work() -> None:
    """Replay the slices that are ordered on stdin, until it ends."""
    for line in iter(sys.stdin.buffer.readline, b""):
        order = msgspec.json.decode(line, type=_Order)
        async with new_client(order.endpoint, connections=order.case.load.concurrency) as client:
            try:
                done = await replay_round(
                    order.case,
                    order.endpoint,
                    order.prompts,
                    client=client,
                    clock=time.monotonic_ns,
                    record=lambda finished: _reply(_Reply(finished=finished)),
                    part=order.part,
                )
            except HungError as error:
                _reply(_Reply(hung_s=error.silent_s))
            else:
                _reply(_Reply(lags=done.lags))


def _reply(reply: _Reply) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(reply) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    import uvloop

    with contextlib.suppress(BrokenPipeError):  # the suite was killed, and takes no replies
        uvloop.run(_work())
