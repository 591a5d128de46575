"""Ask a server for each turn of a conversation, and time the chunks of its answer."""

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, NoReturn, cast

import msgspec

from specreg.acceptance.record import StepCounts
from specreg.acceptance.trace import Chunk, RequestTrace, StreamEvent, chunk_sizes
from specreg.core.certificates import trusted_certificates
from specreg.core.errors import HungError, InvalidMeasurementError
from specreg.core.http import HEADERS, shortly
from specreg.core.server_words import quote, quote_answer
from specreg.datasets.prompts import REPLIES, Prompt
from specreg.engines.registry import ENGINES
from specreg.engines.wire_format import DONE, Ask, Endpoint, EventSplitter, Message, ParseEvent
from specreg.load.answer import AnswerText
from specreg.matrix.case import Case

if TYPE_CHECKING:
    import httpx

_SILENCE_S = 60.0
"""How long a stream may be silent before its request counts as failed, and all before the server
counts as hung."""
_WATCH_S = 1.0
_ERROR_BYTES = 16 * 2**10
_SAYS_NOTHING = StreamEvent()
_MORE_TOKENS = 1024
"""How many tokens beyond the cap an answer may have: its last step may exceed it."""
_TOKEN_CHARACTERS = 1024
"""The most characters that a token stands for."""
_NS_PER_S = 10**9

Clock = Callable[[], int]


class FinishedRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request that has ended, with all that was seen of it; `late`: its time was up.

    `place` is that of its conversation in the round, from 0; `chunks` are those with a token;
    `thought` is what the server tells apart from the answer's `text`.
    """

    place: int
    trace: RequestTrace
    chunks: tuple[Chunk, ...]
    text: str
    thought: str = ""
    late: bool = False


Record = Callable[[FinishedRequest], None]


def new_client(endpoint: Endpoint, *, connections: int) -> "httpx.AsyncClient":
    """A client for one endpoint, over the aiohttp transport: it costs a third of httpx's own.

    It has so many `connections` at most, 0 for any number.
    """
    import httpx  # noqa: PLC0415 - takes long, and few commands ask a server
    from httpx_aiohttp import HttpxAiohttpClient  # noqa: PLC0415 - the same

    # Servers drop an idle connection after 5 s; reusing it at that moment would fail a request.
    limits = httpx.Limits(
        max_connections=connections + 1 if connections else None,
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
        verify=trusted_certificates(endpoint.base_url),
    )


@dataclass(slots=True, eq=False)
class _StreamState:
    """What has come of one stream so far, no more than was asked for; the last of it at `heard_ns`.

    A `late` one's time was up, so that its end is no sign of life. One that `is_counted_late` has
    shown text before any token was counted.
    """

    sent_ns: int
    heard_ns: int
    most_tokens: int
    tokens: int = 0
    characters: int = 0
    error: str | None = None
    late: bool = False
    is_counted_late: bool = False
    chunks: list[Chunk] = field(default_factory=list)
    thought_chunks: list[Chunk] = field(default_factory=list)
    answer: AnswerText = field(default_factory=AnswerText)
    finish_reason: str | None = None
    usage_tokens: int | None = None
    prompt_tokens: int | None = None
    acceptance: StepCounts | None = None

    def take(self, event: StreamEvent, at_ns: int) -> None:
        """Take one more event, else `ANSWER_ENDLESS`, `TOKENS_IMPOSSIBLE`; a later count stays."""
        self.characters += len(event.text)
        if event.thought or event.other:
            self.characters += len(event.thought) + len(event.other)
        if self.characters > self.most_tokens * _TOKEN_CHARACTERS:
            self._refuse("ANSWER_ENDLESS", f"{self.characters} characters")
        self.answer.take(event)
        if not event.tokens:
            self.is_counted_late |= self.tokens == 0 and bool(event.text or event.thought)
        else:
            self.tokens += event.tokens
            if event.tokens < 0 or self.tokens > self.most_tokens:
                self._refuse("TOKENS_IMPOSSIBLE", f"a chunk of {event.tokens} tokens")
            chunk = Chunk(at_ns=at_ns, tokens=event.tokens)
            if self.chunks and self.answer.in_thought:
                self.thought_chunks.append(chunk)
            self.chunks.append(chunk)
        if event.finish_reason is not None:
            self.finish_reason = event.finish_reason
        if event.usage_tokens is not None:
            self.usage_tokens = event.usage_tokens
        if event.prompt_tokens is not None:
            self.prompt_tokens = event.prompt_tokens
        if event.acceptance is not None:
            self.acceptance = event.acceptance

    def _refuse(self, reason: str, what: str) -> NoReturn:
        asked_tokens = self.most_tokens - _MORE_TOKENS
        message = f"{what} in an answer that was to have {asked_tokens} tokens at most"
        raise InvalidMeasurementError(reason, message)


@dataclass(slots=True, kw_only=True)
class ChatClient:
    """Asks one endpoint as one case says.

    Attributes:
        end: is told of each request that ends.
        alive_ns: when the server last showed life on what has ended, by a token or by an end before
            its time was up; moved on by the time in which nothing was on its way.
        idle_ns: since when nothing is, where nothing is.
    """

    case: Case
    endpoint: Endpoint
    http: "httpx.AsyncClient"
    clock: Clock
    end: Record
    running: dict[_StreamState, asyncio.Timeout] = field(default_factory=dict)
    alive_ns: int = 0
    idle_ns: int = 0

    async def watch(self) -> None:
        """End the streams that have been silent for too long.

        Raises:
            HungError: for 60 s of requests on their way the server showed no life.
        """
        while True:
            await asyncio.sleep(_WATCH_S)
            if not self.running:
                continue
            tokens_ns = [one.chunks[-1].at_ns for one in self.running if one.chunks]
            now_ns = self.clock()
            if now_ns - max([self.alive_ns, *tokens_ns]) > _SILENCE_S * _NS_PER_S:
                raise HungError(_SILENCE_S)
            for gathered, timeout in self.running.items():
                if now_ns - gathered.heard_ns > _SILENCE_S * _NS_PER_S and not timeout.expired():
                    gathered.error = f"nothing came for {_SILENCE_S:g} s"
                    timeout.reschedule(asyncio.get_running_loop().time())

    def _end(self, gathered: _StreamState) -> None:
        self.running.pop(gathered)
        now_ns = self.clock()
        if not gathered.late:
            self.alive_ns = now_ns
        elif gathered.chunks:
            self.alive_ns = max(self.alive_ns, gathered.chunks[-1].at_ns)
        if not self.running:
            self.idle_ns = now_ns

    async def replay(self, place: int, prompt: Prompt, planned_ns: int) -> None:
        """One conversation, each turn with the model's own replies before it."""
        said: tuple[Message, ...] = ()
        empty_replies = 0
        for turn, text in enumerate(prompt.turns[: self.case.turns] or ("",), 1):
            said = (*said, Message("user", text))
            finished = await self._ask(place, prompt, turn, said, planned_ns)
            if empty_replies:
                trace = msgspec.structs.replace(finished.trace, empty_replies=empty_replies)
                finished = msgspec.structs.replace(finished, trace=trace)
            self.end(finished)
            if finished.trace.error is not None:
                return
            reply = REPLIES[self.case.history_reply](finished.text)
            empty_replies += not reply.strip()
            said = (*said, Message("assistant", reply))
            planned_ns = self.clock()

    async def _ask(
        self, place: int, prompt: Prompt, turn: int, said: tuple[Message, ...], planned_ns: int
    ) -> FinishedRequest:
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
            seed=_seed_of(prompt, turn) if case.paired_seeds else None,
        )
        import aiohttp  # noqa: PLC0415 - imported by then, see new_client
        import httpx  # noqa: PLC0415 - the same

        wire_format = ENGINES[self.endpoint.engine].wire_format
        path, body = wire_format.path(ask), msgspec.json.encode(wire_format.body(ask))
        sent_ns = self.clock()
        most_tokens = case.output_cap_tokens + _MORE_TOKENS
        gathered = _StreamState(sent_ns=sent_ns, heard_ns=sent_ns, most_tokens=most_tokens)
        try:
            async with asyncio.timeout(case.request_timeout_s) as timeout:
                if not self.running:
                    self.alive_ns += sent_ns - self.idle_ns
                self.running[gathered] = timeout
                await self._stream(path, body, gathered, wire_format.new_parser(ask))
        # The transport passes on some errors of aiohttp, as for an answer that isn't HTTP.
        except (httpx.HTTPError, aiohttp.ClientError) as failure:
            gathered.error = ": ".join(filter(None, (type(failure).__name__, shortly(failure))))
            gathered.late = isinstance(failure, httpx.TimeoutException | TimeoutError)
        except TimeoutError:
            message = f"no end within request_timeout_s = {case.request_timeout_s:g}"
            gathered.error, gathered.late = gathered.error or message, True
        except InvalidMeasurementError as failure:
            gathered.error = str(failure)
        finally:
            self._end(gathered)
        chunks, answer = gathered.chunks, gathered.answer
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
            answer_sha256=answer.sha256(gathered.tokens),
            prompt_tokens=gathered.prompt_tokens,
            thought_chunk_sizes=chunk_sizes(gathered.thought_chunks),
            reply=answer.reply,
            loops=answer.loops,
        )
        return FinishedRequest(
            place=place,
            trace=trace,
            chunks=tuple(chunks),
            text=answer.text,
            thought=answer.thought,
            late=gathered.late,
        )

    async def _stream(
        self, path: str, body: bytes, gathered: _StreamState, parse_event: ParseEvent
    ) -> None:
        splitter, clock = EventSplitter(), self.clock
        parsed = None
        event = b""
        async with self.http.stream("POST", path, content=body, headers=HEADERS) as response:
            if response.status_code != HTTPStatus.OK:
                said = quote_answer(await _beginning(response))
                message = f"HTTP {response.status_code} from {path}: {said}"
                raise InvalidMeasurementError("HTTP_ERROR", message)
            # `aiter_raw` would count the bytes too, at two microseconds a chunk.
            async for piece in cast("httpx.AsyncByteStream", response.stream):
                gathered.heard_ns = at_ns = clock()
                for event in splitter.feed(piece):
                    if event != DONE:
                        parsed = parse_event(event)
                        gathered.take(parsed, at_ns)
        splitter.check_rest(is_finished=gathered.finish_reason is not None)
        if gathered.finish_reason is None and parsed == _SAYS_NOTHING:
            message = f"the stream ended without a finish reason, its last event is {quote(event)}"
            raise InvalidMeasurementError("EVENT_UNREADABLE", message)
        if gathered.is_counted_late and gathered.tokens:
            message = (
                "text came before any of its tokens was counted, so the server counts them at the"
                " end alone, and neither times nor steps can be told; take a version of the engine"
                " that counts with each chunk"
            )
            raise InvalidMeasurementError("USAGE_LATE", message)
        if gathered.answer.repeats_events:
            message = (
                "each event of the stream repeats the text before it, where specreg expects new"
                " text alone; switch that off, or take a version of the engine that specreg knows"
            )
            raise InvalidMeasurementError("STREAM_UNRECOGNISED", message)


def _seed_of(prompt: Prompt, turn: int) -> int:
    """The seed of a turn, the same on every server and whenever it is asked: 0 to 2³¹ - 1."""
    digest = hashlib.sha256(f"{prompt.id}/{turn}".encode()).digest()
    return int.from_bytes(digest[:4]) >> 1


async def _beginning(response: "httpx.Response") -> bytes:
    """The first bytes of an answer, however long it is."""
    content = b""
    async for piece in response.aiter_raw():
        content += piece
        if len(content) > _ERROR_BYTES:
            break
    return content[:_ERROR_BYTES]
