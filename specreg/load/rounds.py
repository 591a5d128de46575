"""Replay prompts under a load, from this process or from several, and return the round's traces.

Each process has one event loop; several processes are needed where one core isn't enough. A further
process is `python -m specreg.load.rounds`. It reads `_Order` messages and writes `_Reply` messages,
see `specreg.core.processes`.
"""

import asyncio
import contextlib
import dataclasses
import gc
import itertools
import math
import operator
import random
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from specreg.acceptance.trace import RequestTrace
from specreg.core.errors import AnswerError, HungError, InvalidMeasurementError
from specreg.core.http import read
from specreg.core.processes import SupervisedProcess, child_process, new_temporary
from specreg.datasets.prompts import Prompt
from specreg.engines.wire_format import Endpoint
from specreg.load.chat_client import ChatClient, Clock, FinishedRequest, Record, new_client
from specreg.matrix.case import Arrivals, Case, Load
from specreg.stats.percentiles import TimeHistogram

if TYPE_CHECKING:
    import httpx

BEAT_NS = 20 * 10**6
"""The time between two beats. At each beat, a client measures its lag."""
_FINISHING_NS = 10**6
"""How long requests that ended are handled before the sockets are read again."""
_HEAD_START_NS = 50 * 10**6
"""How long an order may take to reach all processes, so that they begin together."""
_SCRAPE_S = 30.0
_TOKEN_S = 60.0
"""A server that needs longer than this for one token hangs."""
_NS_PER_S = 10**9

_Conversations = Iterator[tuple[int, Prompt]]
"""The conversations of a round, each after its index in the round, from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Some prompts replayed without a pause.

    Attributes:
        traces: the requests in the order of the prompts, a conversation's turns one after another.
        started_ns: when the first request was sent.
        ended_ns: when the last chunk with a token came; `started_ns` if none came.
        gaps: the times between the chunks of a request; with speculation, the times of verify
            steps. Chunks that were read at once aren't a step apart, so there is no gap of 0 ns.
        lags: how late the client's own event loop was at each beat, every 20 ms.
        counters: how much each further counter of the engine rose, see
            `WireFormat.further_counters`; empty if they couldn't be read.
    """

    traces: tuple[RequestTrace, ...]
    started_ns: int
    ended_ns: int
    gaps: TimeHistogram = field(default_factory=TimeHistogram)
    lags: TimeHistogram = field(default_factory=TimeHistogram)
    counters: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class RoundBuilder:
    """Collects the requests of a round.

    Attributes:
        record: takes each request; None for a round that isn't recorded.
        traces: the requests, by the index of their conversation and their turn.
        gaps: the times between the chunks of a request.
        lags: how late the client's event loop was.
        timed_out_requests: how many requests didn't end in their time.
    """

    record: Record | None = None
    traces: dict[tuple[int, int], RequestTrace] = field(default_factory=dict)
    gaps: TimeHistogram = field(default_factory=TimeHistogram)
    lags: TimeHistogram = field(default_factory=TimeHistogram)
    timed_out_requests: int = 0

    def take(self, finished: FinishedRequest) -> None:
        """Take one more request."""
        self.traces[finished.conversation_index, finished.trace.turn] = finished.trace
        self.timed_out_requests += finished.late
        times_ns = [chunk.at_ns for chunk in finished.chunks]

        # A round has many thousand chunks, so `map` and `filter` do the looping, in C.
        gaps_ns = map(operator.sub, times_ns[1:], times_ns)
        self.gaps.add_all(list(filter(None, gaps_ns)))
        if self.record is not None:
            self.record(finished)

    def as_round(self) -> Round:
        """Return the round of all requests taken; without any, it begins and ends at 0."""
        traces = tuple(self.traces[position] for position in sorted(self.traces))
        started_ns = min((trace.sent_ns for trace in traces), default=0)
        ends_ns = (trace.last_ns for trace in traces if trace.last_ns is not None)
        return Round(
            traces=traces,
            started_ns=started_ns,
            ended_ns=max(ends_ns, default=started_ns),
            gaps=self.gaps,
            lags=self.lags,
        )


class RoundSlice(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a round that one process replays: every `of`-th conversation, from `number`.

    Attributes:
        number: the slice's number, from 0.
        of: how many slices the round has.
        started_ns: when the round begins; it is the same for all slices.
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
    round_slice: RoundSlice | None = None,
) -> RoundBuilder:
    """Replay prompts under the case's load, the turns of each conversation one after another.

    A request that fails is a trace with an error, and ends its conversation; nothing is retried.

    Args:
        case: the case, which has the load.
        endpoint: the server.
        prompts: one or more, each of them a conversation. Under a load with a duration they are
            replayed again and again.
        client: the HTTP client for the endpoint.
        clock: monotonic, in nanoseconds.
        record: takes each request as it ends.
        round_slice: the slice that is replayed; None for a whole round that begins now.

    Raises:
        HungError: during 60 s of requests, no stream delivered a token, and no request ended except
            by a timeout.
    """
    if round_slice is None:
        round_slice = RoundSlice(started_ns=clock())
    builder = RoundBuilder(record)
    ended: asyncio.Queue[FinishedRequest] = asyncio.Queue()
    chat_client = ChatClient(
        case=case, endpoint=endpoint, http=client, clock=clock, on_finished=ended.put_nowait
    )
    replay = _replay_open
    if case.load.arrivals is Arrivals.CLOSED:
        replay = _replay_closed
    conversations = _conversations(case.load, prompts, round_slice)
    replaying = asyncio.create_task(replay(chat_client, conversations, round_slice))
    watching = asyncio.create_task(chat_client.watch())
    finishing = asyncio.create_task(_keep_finishing(ended, builder, clock))
    lagging = asyncio.create_task(_measure_lag(builder.lags, clock))

    # Freezing exempts all older objects from garbage collection, which would take a tenth of a
    # second for them.
    gc.freeze()

    try:
        # Watching and finishing end only by an error, such as a full disk.
        tasks = (replaying, watching, finishing)
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if replaying in done:
            # If several tasks ended at once, an error of the replay itself is the one to raise.
            done = {replaying}
        for task in done:
            task.result()
    finally:
        gc.unfreeze()
        for task in (replaying, watching, lagging):
            task.cancel()
        # The requests that end while the replay is being cancelled are taken below.
        await asyncio.wait((replaying,))
        if finishing.done():
            finishing.result()
        finishing.cancel()
        while not ended.empty():
            builder.take(ended.get_nowait())

    return builder


def _conversations(
    load: Load, prompts: Sequence[Prompt], round_slice: RoundSlice
) -> _Conversations:
    """Return the conversations of a slice; with a duration, the prompts come in a cycle."""
    sequence: Iterable[Prompt] = prompts
    if load.duration_s:
        sequence = itertools.cycle(prompts)
    return itertools.islice(enumerate(sequence), round_slice.number, None, round_slice.of)


async def _keep_finishing(
    ended: "asyncio.Queue[FinishedRequest]", builder: RoundBuilder, clock: Clock
) -> None:
    """Take the requests that ended, for a millisecond at a time.

    The sockets are read in between, so that streams that end together don't keep others waiting.
    """
    while True:
        builder.take(await ended.get())
        until_ns = clock() + _FINISHING_NS
        while not ended.empty() and clock() < until_ns:
            builder.take(ended.get_nowait())
        await asyncio.sleep(0)


def due_after_ns(load: Load) -> Iterator[int]:
    """Yield, without end, when each request of an open load is due after the start of a round.

    The rate rises linearly over a ramp of T seconds. In its first t seconds, the ramp sends the
    number of requests that the full rate sends in t²/2T seconds. So a request that is due at u
    without the ramp is due at sqrt(2uT) if u < T/2, and at u + T/2 otherwise.
    """
    generator = random.Random(load.seed)  # noqa: S311
    rate = load.requests_per_s
    shape = load.burstiness
    gap_s: Mapping[Arrivals, Callable[[], float]] = {
        Arrivals.CONSTANT: lambda: 1 / rate,
        Arrivals.POISSON: lambda: generator.expovariate(rate),
        Arrivals.GAMMA: lambda: generator.gammavariate(shape, 1 / (rate * shape)),
    }
    unramped_s = 0.0
    half_ramp_s = load.ramp_up_s / 2
    while True:
        if unramped_s >= half_ramp_s:
            due_s = unramped_s + half_ramp_s
        else:
            due_s = (4 * unramped_s * half_ramp_s) ** 0.5
        yield round(due_s * _NS_PER_S)
        unramped_s += gap_s[load.arrivals]()


async def _replay_closed(
    chat_client: ChatClient, conversations: _Conversations, round_slice: RoundSlice
) -> None:
    """Keep as many conversations going as the load says; the next begins when one has ended."""
    load = chat_client.case.load
    clock = chat_client.clock
    end_ns = round_slice.started_ns + (load.duration_s or math.inf) * _NS_PER_S

    async def keep_replaying(slot: int) -> None:
        # The slots begin one after another, at equal distances over the ramp.
        delay_ns = round(load.ramp_up_s * _NS_PER_S * slot / load.concurrency)
        await _sleep_until(round_slice.started_ns + delay_ns, clock)
        while clock() < end_ns and (conversation := next(conversations, None)):
            index, prompt = conversation
            await chat_client.replay(index, prompt, clock())

    slots = range(round_slice.number, load.concurrency, round_slice.of)
    await asyncio.gather(*map(keep_replaying, slots))


async def _replay_open(
    chat_client: ChatClient, conversations: _Conversations, round_slice: RoundSlice
) -> None:
    """Begin each conversation when it is due, whether or not those before it have ended."""
    load = chat_client.case.load
    end_ns = (load.duration_s or math.inf) * _NS_PER_S
    due_times_ns = itertools.islice(due_after_ns(load), round_slice.number, None, round_slice.of)
    async with asyncio.TaskGroup() as group:
        for (index, prompt), due_ns in zip(conversations, due_times_ns, strict=False):
            if due_ns >= end_ns:
                return
            planned_ns = round_slice.started_ns + due_ns
            await _sleep_until(planned_ns, chat_client.clock)
            group.create_task(chat_client.replay(index, prompt, planned_ns))


async def _sleep_until(moment_ns: int, clock: Clock) -> None:
    left_ns = moment_ns - clock()
    if left_ns > 0:
        await asyncio.sleep(left_ns / _NS_PER_S)


async def _measure_lag(lags: TimeHistogram, clock: Clock) -> None:
    """Measure how late each beat comes: how long the loop's other work delays it."""
    while True:
        due_ns = clock() + BEAT_NS
        await _sleep_until(due_ns, clock)
        lags.add_all((max(clock() - due_ns, 0),))


class _Order(msgspec.Struct, frozen=True, kw_only=True):
    """The slice of a round that a further process has to replay."""

    case: Case
    endpoint: Endpoint
    prompts: tuple[Prompt, ...]
    round_slice: RoundSlice


class _Reply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a further process reports.

    Attributes:
        finished: a request that ended.
        lags: how late its event loop was at each beat. They are the last message of a slice.
        hung_s: how long no token came, in seconds. It is the last message if the server hangs.
    """

    finished: FinishedRequest | None = None
    lags: TimeHistogram | None = None
    hung_s: float | None = None


class _Worker(NamedTuple):
    """A further process, and the stream of its replies."""

    child: SupervisedProcess
    replies: asyncio.StreamReader

    async def replay(self, order: _Order, builder: RoundBuilder) -> None:
        """Let the process replay a slice of a round, and add its requests to the builder.

        Raises:
            HungError: no stream delivered a token for too long.
            InvalidMeasurementError: `CLIENT_DIED`, the process ended.
        """
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
        lines = self.child.last_lines()
        raise InvalidMeasurementError("CLIENT_DIED", status=status, lines=lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """The processes that send one case's requests to an endpoint.

    Attributes:
        endpoint: the server.
        clock: monotonic, in nanoseconds.
        client: the HTTP client of this process.
        workers: the further processes; none unless the case asks for two or more processes.
        token_within_s: the time, in seconds, in which a server that doesn't hang generates a token.
    """

    case: Case
    endpoint: Endpoint
    clock: Clock
    client: "httpx.AsyncClient"
    workers: tuple[_Worker, ...]
    token_within_s: float = _TOKEN_S

    async def replay(self, prompts: Sequence[Prompt], record: Record | None = None) -> Round:
        """Replay one round, see `replay_round`.

        If a request didn't end in its time, the server may hang. The server is then asked for one
        more token.

        Raises:
            HungError: the server generates no tokens.
            InvalidMeasurementError: `CLIENT_DIED`, a further process ended.
        """
        if self.workers:
            builder = RoundBuilder(record)
            await self._replay_slices(tuple(prompts), builder)
        else:
            builder = await self._replay_here(self.case, prompts, record)

        if builder.timed_out_requests:
            await self._check_hanging(prompts[:1])
        return builder.as_round()

    async def _check_hanging(self, prompts: Sequence[Prompt]) -> None:
        """Ask the server for a single token.

        Raises:
            HungError: the token didn't come in time.
        """
        request = dataclasses.replace(
            self.case.request, turns=1, output_cap_tokens=1, request_timeout_s=self.token_within_s
        )
        case = dataclasses.replace(self.case, request=request, load=Load(concurrency=1))
        builder = await self._replay_here(case, prompts)
        if builder.timed_out_requests:
            raise HungError(self.token_within_s)

    async def _replay_here(
        self, case: Case, prompts: Sequence[Prompt], record: Record | None = None
    ) -> RoundBuilder:
        return await replay_round(
            case, self.endpoint, prompts, client=self.client, clock=self.clock, record=record
        )

    async def replay_under(self, load: Load, prompts: Sequence[Prompt]) -> Round:
        """Replay one round under another load, such as the warm-up's; it isn't recorded."""
        case = dataclasses.replace(self.case, load=load)
        return await dataclasses.replace(self, case=case).replay(prompts)

    async def scrape(self, path: str) -> str:
        """Return the server's page at a path.

        Raises:
            InvalidMeasurementError: `METRICS_MISSING`, the page can't be read.
        """
        try:
            page = await read(self.client, "GET", path, within_s=_SCRAPE_S)
            page.good()
        except AnswerError as error:
            raise InvalidMeasurementError("METRICS_MISSING", error=error) from error
        return page.text

    async def _replay_slices(self, prompts: tuple[Prompt, ...], builder: RoundBuilder) -> None:
        """Replay one round in the further processes, a slice in each."""
        started_ns = self.clock() + _HEAD_START_NS
        replaying = []
        for number, worker in enumerate(self.workers):
            order = _Order(
                case=self.case,
                endpoint=self.endpoint,
                prompts=prompts,
                round_slice=RoundSlice(number=number, of=len(self.workers), started_ns=started_ns),
            )
            replaying.append(worker.replay(order, builder))
        await asyncio.gather(*replaying)


@contextlib.asynccontextmanager
async def open_clients(case: Case, endpoint: Endpoint, *, clock: Clock) -> AsyncIterator[Clients]:
    """Yield the clients of a case for as long as the context lasts.

    Args:
        case: the case, which says how many processes send its requests.
        endpoint: the server.
        clock: monotonic, in nanoseconds; further processes use the system's own.
    """
    further_processes = 0
    if case.request.client_processes > 1:
        # The further processes send all requests. This process only collects them.
        further_processes = case.request.client_processes
    client = new_client(endpoint, connections=case.load.concurrency)
    async with client, contextlib.AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(_open_worker()) for _ in range(further_processes)
        ]
        yield Clients(
            case=case, endpoint=endpoint, clock=clock, client=client, workers=tuple(workers)
        )


@contextlib.asynccontextmanager
async def _open_worker() -> AsyncIterator[_Worker]:
    """Yield a further process, which ends with the context."""
    command = (sys.executable, "-P", "-m", "specreg.load.rounds")
    temporary = new_temporary()
    with child_process(command, log_path=temporary / "log", temporary=temporary) as child:
        async with child.reader() as reader:
            yield _Worker(child, reader)


async def _work() -> None:
    """Replay the slices that are ordered on stdin, until stdin ends."""
    for line in iter(sys.stdin.buffer.readline, b""):
        order = msgspec.json.decode(line, type=_Order)
        async with new_client(order.endpoint, connections=order.case.load.concurrency) as client:
            try:
                builder = await replay_round(
                    order.case,
                    order.endpoint,
                    order.prompts,
                    client=client,
                    clock=time.monotonic_ns,
                    record=lambda finished: _reply(_Reply(finished=finished)),
                    round_slice=order.round_slice,
                )
            except HungError as error:
                _reply(_Reply(hung_s=error.silent_s))
            else:
                _reply(_Reply(lags=builder.lags))


def _reply(reply: _Reply) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(reply) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    import uvloop

    # If the suite was killed, nobody reads the replies.
    with contextlib.suppress(BrokenPipeError):
        uvloop.run(_work())
