"""Replaying: prompts and whom to ask in, the traces of the requests out.

One process and one event loop; `specreg.crew` spreads a load over several.
"""

import asyncio
import gc
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

import httpx
import msgspec
from httpx_aiohttp import HttpxAiohttpClient

from specreg.acceptance.record import StepCounts
from specreg.arrivals import Arrivals, due_after_ns
from specreg.datasets import Prompt
from specreg.errors import InvalidMeasurementError
from specreg.matrix import Case
from specreg.protocols import PROTOCOLS, Ask, Endpoint, Message, Role, StreamDecoder
from specreg.spread import Histogram
from specreg.sse import DONE, EventSplitter
from specreg.trace import Chunk, RequestTrace, StreamEvent, chunk_sizes

_SILENCE_S = 60.0
"""How long a stream may be silent before its request counts as failed."""
_WATCH_S = 1.0
_ERROR_BYTES = 300
_BEAT_NS = 20 * 10**6
_FINISHING_NS = 10**6
_NS_PER_S = 10**9
_HEADERS = {"Content-Type": "application/json", "Accept-Encoding": "identity"}

Clock = Callable[[], int]


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """A request that has ended, with all that was seen of it.

    Attributes:
        place: of its conversation in the round, from 0.
        trace: what the figures are made from.
        chunks: each chunk with a token; text: all that was generated.
    """

    place: int
    trace: RequestTrace
    chunks: tuple[Chunk, ...]
    text: str


Record = Callable[[Finished], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Some prompts replayed without a pause.

    Attributes:
        traces: in the order of the prompts, a conversation's turns one after another.
        started_ns: the first send.
        ended_ns: the last chunk with a token; `started_ns` if there was none.
        gaps: between the chunks of a request: with speculation the time of a verify step.
        lags: how late the client's own event loop was, at a beat every 20 ms.
    """

    traces: tuple[RequestTrace, ...]
    started_ns: int
    ended_ns: int
    gaps: Histogram = field(default_factory=Histogram)
    lags: Histogram = field(default_factory=Histogram)


@dataclass(slots=True)
class Tally:
    """What has come of a round so far; grows with its requests, not with their tokens."""

    traces: dict[tuple[int, int], RequestTrace] = field(default_factory=dict)
    gaps: Histogram = field(default_factory=Histogram)
    lags: Histogram = field(default_factory=Histogram)

    def take(self, finished: Finished) -> None:
        """Takes one more request."""
        self.traces[finished.place, finished.trace.turn] = finished.trace
        times_ns = [chunk.at_ns for chunk in finished.chunks]
        self.gaps.add_all(list(map(operator.sub, times_ns[1:], times_ns)))

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


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a round that one process replays: every `of`-th conversation, from `number`.

    Attributes:
        number: 0 ≤ number < of.
        started_ns: when the round begins, the same for all.
    """

    number: int = 0
    of: int = 1
    started_ns: int


def new_client(endpoint: Endpoint, *, connections: int | None) -> httpx.AsyncClient:
    """A client for one endpoint, over the aiohttp transport: it costs a third of httpx's own.

    Args:
        endpoint: whom to ask.
        connections: the most at once, None for any number.
    """
    # Servers drop an idle connection after 5 s; reusing it at that moment would fail a request.
    limits = httpx.Limits(
        max_connections=connections and connections + 1,
        max_keepalive_connections=None,
        keepalive_expiry=2.0,
    )
    # A read timeout would set a timer for every chunk, a tenth of what the chunk costs.
    timeout = httpx.Timeout(_SILENCE_S, read=None, pool=None)
    return HttpxAiohttpClient(
        base_url=endpoint.base_url,
        limits=limits,
        timeout=timeout,
        trust_env=False,
        # Without TLS the certificates would be loaded for nothing, which takes a while.
        verify=endpoint.base_url.startswith("https:"),
    )


async def replay_round(
    case: Case,
    endpoint: Endpoint,
    prompts: Sequence[Prompt],
    *,
    client: httpx.AsyncClient,
    clock: Clock,
    record: Record | None = None,
    share: Share | None = None,
) -> Round:
    """Replays prompts as the case's load says; each conversation's turns one after another.

    A request that fails is a trace with an error, and ends its conversation; nothing is retried.

    Args:
        case: load, form of the prompts, output cap and sampling.
        endpoint: whom to ask.
        prompts: one at least; with a duration they come again and again.
        client: for that endpoint.
        clock: monotonic, in nanoseconds.
        record: is told of each request as it ends.
        share: which part of the round is ours; None for all of it, from now on.
    """
    share = share or Share(started_ns=clock())
    tally = Tally()
    ended: asyncio.Queue[Finished] = asyncio.Queue()

    def finish(finished: Finished) -> None:
        tally.take(finished)
        if record is not None:
            record(finished)

    async def keep_finishing() -> None:
        # A millisecond's worth at a time, then the sockets: streams that end together must not keep
        # the others waiting.
        while True:
            finish(await ended.get())
            until_ns = clock() + _FINISHING_NS
            while not ended.empty() and clock() < until_ns:
                finish(ended.get_nowait())
            await asyncio.sleep(0)

    talk = _Talk(case=case, endpoint=endpoint, client=client, clock=clock, end=ended.put_nowait)
    due = _due(case, prompts, share, clock)
    finishing, *besides = [
        asyncio.create_task(work)
        for work in (keep_finishing(), talk.watch(), _feel_the_lag(tally.lags, clock))
    ]
    # A full collection of what is there already would take a tenth of a second.
    gc.freeze()
    try:
        if case.load.arrivals is Arrivals.CLOSED:
            await _replay_closed(talk, due, share)
        else:
            await _replay_open(talk, due)
    finally:
        gc.unfreeze()
        for task in besides:
            task.cancel()
        if finishing.done():  # only by an error, as of a disk that is full
            finishing.result()
        finishing.cancel()
        while not ended.empty():
            finish(ended.get_nowait())
    return tally.as_round()


class _Due(msgspec.Struct, frozen=True):
    """A conversation to begin: its place in the round, and when; None for as soon as may be."""

    place: int
    prompt: Prompt
    planned_ns: int | None


def _due(case: Case, prompts: Sequence[Prompt], share: Share, clock: Clock) -> Iterator[_Due]:
    """What to send, in order; ends when all prompts or the time are used up."""
    load = case.load
    end_ns = None if load.duration_s is None else round(load.duration_s * _NS_PER_S)
    again = prompts if end_ns is None else itertools.cycle(prompts)
    closed = load.arrivals is Arrivals.CLOSED
    after_ns: Iterable[int | None] = itertools.repeat(None) if closed else due_after_ns(load)
    for place, (prompt, due_ns) in enumerate(zip(again, after_ns, strict=False)):
        passed_ns = clock() - share.started_ns if due_ns is None else due_ns
        if end_ns is not None and passed_ns >= end_ns:
            return
        if place % share.of == share.number:
            planned_ns = None if due_ns is None else share.started_ns + due_ns
            yield _Due(place, prompt, planned_ns)


async def _replay_closed(talk: "_Talk", due: Iterator[_Due], share: Share) -> None:
    """As many conversations at once as the load says: the next begins when one has ended."""
    load, clock = talk.case.load, talk.clock

    async def keep_asking(slot: int) -> None:
        ramp_ns = round(load.ramp_up_s * _NS_PER_S * slot / load.concurrency)
        await _sleep_until(share.started_ns + ramp_ns, clock)
        for one in due:
            await talk.replay(one.place, one.prompt, clock())

    slots = range(share.number, load.concurrency, share.of)
    await asyncio.gather(*(keep_asking(slot) for slot in slots))


async def _replay_open(talk: "_Talk", due: Iterator[_Due]) -> None:
    """Each conversation begins when it is due, whatever became of those before it."""
    async with asyncio.TaskGroup() as group:
        for one in due:
            planned_ns = one.planned_ns or 0
            await _sleep_until(planned_ns, talk.clock)
            group.create_task(talk.replay(one.place, one.prompt, planned_ns))


async def _sleep_until(moment_ns: int, clock: Clock) -> None:
    left_ns = moment_ns - clock()
    if left_ns > 0:
        await asyncio.sleep(left_ns / _NS_PER_S)


async def _feel_the_lag(lags: Histogram, clock: Clock) -> None:
    """Notes how late each beat comes: what the loop's other work delays it by."""
    while True:
        due_ns = clock() + _BEAT_NS
        await _sleep_until(due_ns, clock)
        lags.add(max(clock() - due_ns, 0))


@dataclass(slots=True, eq=False)
class _Gathered:
    """What has come of one stream so far; heard_ns: when anything last did."""

    heard_ns: int
    error: str | None = None
    chunks: list[Chunk] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    finish_reason: str | None = None
    usage_tokens: int | None = None
    acceptance: StepCounts | None = None

    def take(self, event: StreamEvent, at_ns: int) -> None:
        """Takes one more event; a count that comes again replaces the earlier one."""
        if event.tokens:
            self.chunks.append(Chunk(at_ns=at_ns, tokens=event.tokens))
        if event.text:
            self.texts.append(event.text)
        if event.finish_reason is not None:
            self.finish_reason = event.finish_reason
        if event.usage_tokens is not None:
            self.usage_tokens = event.usage_tokens
        if event.acceptance is not None:
            self.acceptance = event.acceptance


@dataclass(frozen=True, slots=True, kw_only=True)
class _Talk:
    """One endpoint asked as one case says."""

    case: Case
    endpoint: Endpoint
    client: httpx.AsyncClient
    clock: Clock
    end: Record
    running: dict[_Gathered, asyncio.Timeout] = field(default_factory=dict)

    async def watch(self) -> None:
        """Ends the streams that have been silent for too long."""
        while True:
            await asyncio.sleep(_WATCH_S)
            now_ns = self.clock()
            for gathered, timeout in self.running.items():
                if now_ns - gathered.heard_ns > _SILENCE_S * _NS_PER_S and not timeout.expired():
                    gathered.error = f"nothing came for {_SILENCE_S:g} s"
                    timeout.reschedule(asyncio.get_running_loop().time())

    async def replay(self, place: int, prompt: Prompt, planned_ns: int) -> None:
        """One conversation, each turn with the model's own replies before it."""
        said: tuple[Message, ...] = ()
        for turn, text in enumerate(prompt.turns[: self.case.turns] or ("",), 1):
            said = (*said, Message(Role.USER, text))
            finished = await self._ask(place, prompt, turn, said, planned_ns)
            self.end(finished)
            if finished.trace.error is not None:
                return
            said = (*said, Message(Role.ASSISTANT, finished.text))
            planned_ns = self.clock()

    async def _ask(
        self, place: int, prompt: Prompt, turn: int, said: tuple[Message, ...], planned_ns: int
    ) -> Finished:
        case = self.case
        ask = Ask(
            model=self.endpoint.model,
            form=case.form,
            messages=() if prompt.token_ids else said,
            token_ids=prompt.token_ids,
            output_cap_tokens=case.output_cap_tokens,
            temperature=case.temperature,
            ignore_eos=case.ignore_eos,
            chat_template_args=case.chat_template_args,
        )
        protocol = PROTOCOLS[self.endpoint.protocol]
        path, body = protocol.path(ask), msgspec.json.encode(protocol.body(ask))
        sent_ns = self.clock()
        gathered = _Gathered(heard_ns=sent_ns)
        try:
            async with asyncio.timeout(case.request_timeout_s) as timeout:
                self.running[gathered] = timeout
                await self._stream(path, body, gathered, protocol.new_decoder(ask))
        except httpx.HTTPError as failure:
            gathered.error = ": ".join(filter(None, (type(failure).__name__, str(failure))))
        except TimeoutError:
            late = f"no end within request_timeout_s = {case.request_timeout_s:g}"
            gathered.error = gathered.error or late
        except InvalidMeasurementError as failure:
            gathered.error = str(failure)
        finally:
            del self.running[gathered]
        chunks = gathered.chunks
        trace = RequestTrace(
            prompt_id=prompt.id,
            category=prompt.category,
            turn=turn,
            planned_ns=planned_ns,
            sent_ns=sent_ns,
            first_ns=chunks[0].at_ns if chunks else None,
            last_ns=chunks[-1].at_ns if chunks else None,
            first_chunk_tokens=chunks[0].tokens if chunks else 0,
            chunk_sizes=chunk_sizes(chunks[1:]),
            usage_tokens=gathered.usage_tokens,
            finish_reason=gathered.finish_reason,
            acceptance=gathered.acceptance,
            error=gathered.error,
        )
        return Finished(
            place=place, trace=trace, chunks=tuple(chunks), text="".join(gathered.texts)
        )

    async def _stream(
        self, path: str, body: bytes, gathered: _Gathered, decoder: StreamDecoder
    ) -> None:
        splitter, clock = EventSplitter(), self.clock
        async with self.client.stream("POST", path, content=body, headers=_HEADERS) as response:
            if response.status_code != httpx.codes.OK:
                text = await _beginning(response)
                raise InvalidMeasurementError(
                    "HTTP_ERROR", f"HTTP {response.status_code} from {path}: {text}"
                )
            # `aiter_raw` would count the bytes too, at two microseconds a chunk.
            async for piece in cast("httpx.AsyncByteStream", response.stream):
                gathered.heard_ns = at_ns = clock()
                for event in splitter.feed(piece):
                    if event != DONE:
                        gathered.take(decoder.parse_event(event), at_ns)


async def _beginning(response: httpx.Response) -> str:
    """The first bytes of an answer, however long it is."""
    content = b""
    async for piece in response.aiter_raw():
        content += piece
        if len(content) > _ERROR_BYTES:
            break
    return content[:_ERROR_BYTES].decode(errors="replace")
