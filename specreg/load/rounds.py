"""Replay prompts as a load says, from one process and one event loop, into a round of traces."""

import asyncio
import gc
import itertools
import math
import operator
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from specreg.acceptance.trace import RequestTrace
from specreg.datasets.prompts import Prompt
from specreg.engines.wire_format import Endpoint
from specreg.load.chat_client import ChatClient, Clock, FinishedRequest, Record
from specreg.matrix.case import Arrivals, Case, Load
from specreg.stats.percentiles import Histogram

if TYPE_CHECKING:
    import httpx

BEAT_NS = 20 * 10**6
_FINISHING_NS = 10**6
_NS_PER_S = 10**9


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
    gaps: Histogram = field(default_factory=Histogram)
    lags: Histogram = field(default_factory=Histogram)


@dataclass(slots=True)
class RoundBuilder:
    """Collects a round's requests; `late` are those whose time was up.

    `record` is told of each request, None for a round that isn't recorded.
    """

    record: Record | None = None
    traces: dict[tuple[int, int], RequestTrace] = field(default_factory=dict)
    gaps: Histogram = field(default_factory=Histogram)
    lags: Histogram = field(default_factory=Histogram)
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
    all of it, from now on. A HungError where on no stream a token came for 60 s of requests.
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
    replay = _replay_closed if case.load.arrivals is Arrivals.CLOSED else _replay_open
    asking = asyncio.create_task(replay(asked, prompts, part))
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


def _slice_of(
    load: Load, prompts: Sequence[Prompt], part: RoundSlice
) -> Iterator[tuple[int, Prompt]]:
    """Our conversations and their places in the round; with a duration they come again."""
    all_of_it = enumerate(prompts if load.duration_s is None else itertools.cycle(prompts))
    return itertools.islice(all_of_it, part.number, None, part.of)


async def _replay_closed(asked: ChatClient, prompts: Sequence[Prompt], part: RoundSlice) -> None:
    """Replay as many conversations at once as the load says: the next begins when one has ended."""
    load, clock = asked.case.load, asked.clock
    planned = _slice_of(load, prompts, part)
    end_ns = part.started_ns + (load.duration_s or math.inf) * _NS_PER_S

    async def keep_asking(slot: int) -> None:
        ramp_ns = round(load.ramp_up_s * _NS_PER_S * slot / load.concurrency)
        await _sleep_until(part.started_ns + ramp_ns, clock)
        while clock() < end_ns and (one := next(planned, None)):
            await asked.replay(*one, clock())

    slots = range(part.number, load.concurrency, part.of)
    await asyncio.gather(*map(keep_asking, slots))


async def _replay_open(asked: ChatClient, prompts: Sequence[Prompt], part: RoundSlice) -> None:
    """Begin each conversation when it is due, whatever became of those before it."""
    load = asked.case.load
    due = itertools.islice(due_after_ns(load), part.number, None, part.of)
    async with asyncio.TaskGroup() as group:
        for one, due_ns in zip(_slice_of(load, prompts, part), due, strict=False):
            if due_ns >= (load.duration_s or math.inf) * _NS_PER_S:
                return
            planned_ns = part.started_ns + due_ns
            await _sleep_until(planned_ns, asked.clock)
            group.create_task(asked.replay(*one, planned_ns))


async def _sleep_until(moment_ns: int, clock: Clock) -> None:
    left_ns = moment_ns - clock()
    if left_ns > 0:
        await asyncio.sleep(left_ns / _NS_PER_S)


async def _measure_lag(lags: Histogram, clock: Clock) -> None:
    """Measure how late each beat comes: what the loop's other work delays it by."""
    while True:
        due_ns = clock() + BEAT_NS
        await _sleep_until(due_ns, clock)
        lags.add_all((max(clock() - due_ns, 0),))
