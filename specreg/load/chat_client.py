"""Ask a server for each turn of a conversation, and time the chunks of its answer."""

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, NoReturn, cast

import msgspec

from specreg.acceptance.record import StepCounts
from specreg.acceptance.trace import Chunk, Reply, RequestTrace, StreamEvent, chunk_sizes
from specreg.core.certificates import trusted_certificates
from specreg.core.errors import HungError, InvalidMeasurementError
from specreg.core.http import HEADERS, short_message
from specreg.core.interrupts import check_signalled
from specreg.core.server_words import quote, quote_answer
from specreg.datasets.prompts import REPLIES, Prompt
from specreg.datasets.table import dataset_named
from specreg.engines.registry import ENGINES
from specreg.engines.wire_format import (
    DONE_EVENT,
    Ask,
    Endpoint,
    EventSplitter,
    Message,
    ParseEvent,
)
from specreg.load.answer import AnswerText
from specreg.matrix.case import Case

if TYPE_CHECKING:
    import httpx

_SILENCE_S = 60.0
"""A request fails if its stream is silent for so long. If no stream brings a token and no request
ends for so long, the server hangs."""
_WATCH_S = 1.0
"""How often the streams are checked for silence."""
_ERROR_BYTES = 16 * 2**10
"""How much is read of an answer whose status of HTTP is an error."""
_EMPTY_EVENT = StreamEvent()
_MORE_TOKENS = 1024
"""How many tokens beyond the cap an answer may have, because its last step may exceed the cap."""
_TOKEN_CHARACTERS = 1024
"""The most characters that a token stands for."""
_NS_PER_S = 10**9

Clock = Callable[[], int]


class FinishedRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request that has ended, with its answer.

    Attributes:
        conversation_index: the index of its conversation in the round, from 0.
        trace: its times and counts.
        chunks: the chunks with a token.
        text: the answer's text, with the thought if the server doesn't separate it.
        thought: the thought, if the server separates it from the text.
        late: whether the request timed out, or its stream was silent for too long, before its
            answer ended.
    """

    conversation_index: int
    trace: RequestTrace
    chunks: tuple[Chunk, ...]
    text: str
    thought: str = ""
    late: bool = False


Record = Callable[[FinishedRequest], None]


def new_client(endpoint: Endpoint, *, connections: int) -> "httpx.AsyncClient":
    """Return a client for one endpoint.

    It uses the aiohttp transport, which takes a third of the time of httpx's own.

    Args:
        endpoint: the server.
        connections: how many requests are in flight at most; 0 for any number.
    """
    import httpx  # noqa: PLC0415 - takes long, and few commands ask a server
    from httpx_aiohttp import HttpxAiohttpClient  # noqa: PLC0415 - the same

    max_connections = None
    if connections:
        # One connection more is for the page of counters.
        max_connections = connections + 1

    # Servers drop an idle connection after 5 s; reusing it at that moment would fail a request.
    limits = httpx.Limits(
        max_connections=max_connections, max_keepalive_connections=None, keepalive_expiry=2.0
    )

    # A read timeout would set a timer for every chunk, which is a tenth of a chunk's cost.
    timeout = httpx.Timeout(_SILENCE_S, read=None, pool=None)
    return HttpxAiohttpClient(
        base_url=endpoint.address.url,
        headers=endpoint.address.headers(),
        limits=limits,
        timeout=timeout,
        trust_env=False,
        verify=trusted_certificates(endpoint.address),
    )


@dataclass(slots=True, eq=False)
class _StreamState:
    """What has been received on one stream so far.

    Attributes:
        sent_ns: when the request was sent.
        heard_ns: when the last bytes arrived, even if they were only a part of an event.
        most_tokens: how many tokens the answer may have.
        tokens: how many tokens have come.
        characters: how many characters have come: of the text, the thought, and everything else.
        error: why the request failed; None if it didn't.
        timed_out: whether its time was up, or it was silent for too long. The end of such a stream
            is no sign that the server is alive.
        has_uncounted_text: whether text came before any token was counted.
        chunks: the chunks with a token.
        thought_chunks: the chunks that belong to a thought, without the answer's first chunk, if
            the server separates thoughts.
        answer: the answer's text and thought.
        finish_reason: why the answer ended; None before its end.
        usage_tokens: how many tokens the server says that the answer has.
        prompt_tokens: how many tokens the server says that the prompt has.
        acceptance: the steps that the server counted for the answer.
    """

    sent_ns: int
    heard_ns: int
    most_tokens: int
    tokens: int = 0
    characters: int = 0
    error: str | None = None
    timed_out: bool = False
    has_uncounted_text: bool = False
    chunks: list[Chunk] = field(default_factory=list)
    thought_chunks: list[Chunk] = field(default_factory=list)
    answer: AnswerText = field(default_factory=AnswerText)
    finish_reason: str | None = None
    usage_tokens: int | None = None
    prompt_tokens: int | None = None
    acceptance: StepCounts | None = None

    def take(self, event: StreamEvent, at_ns: int) -> None:
        """Add the text and the tokens of an event. A total in it replaces an earlier total.

        Raises:
            InvalidMeasurementError: `ANSWER_ENDLESS`.
        """
        # A server that ignores its cap would fill the memory, so its answer is refused on the way.
        self.characters += len(event.text)
        if event.thought or event.extra_json:
            self.characters += len(event.thought) + len(event.extra_json)
        if self.characters > self.most_tokens * _TOKEN_CHARACTERS:
            self._refuse(f"{self.characters} characters")
        self.answer.take(event)
        if event.tokens:
            self._take_tokens(event.tokens, at_ns)
        elif self.tokens == 0 and (event.text or event.thought):
            self.has_uncounted_text = True

        # Servers send the following fields on one of the last events, or on several events with the
        # totals so far.
        if event.finish_reason is not None:
            self.finish_reason = event.finish_reason
        if event.usage_tokens is not None:
            self.usage_tokens = event.usage_tokens
        if event.prompt_tokens is not None:
            self.prompt_tokens = event.prompt_tokens
        if event.acceptance is not None:
            self.acceptance = event.acceptance

    def _take_tokens(self, tokens: int, at_ns: int) -> None:
        """Add a chunk with tokens.

        Raises:
            InvalidMeasurementError: `ANSWER_ENDLESS`.
        """
        self.tokens += tokens
        if tokens < 0:
            self._refuse(f"a chunk of {tokens} tokens")
        if self.tokens > self.most_tokens:
            self._refuse(f"{self.tokens} tokens")
        chunk = Chunk(at_ns=at_ns, tokens=tokens)
        if self.chunks and self.answer.in_thought:
            self.thought_chunks.append(chunk)
        self.chunks.append(chunk)
        self.answer.end_chunk(len(self.chunks))

    def _refuse(self, amount: str) -> NoReturn:
        """Refuse an answer, because it has an impossible amount of something."""
        cap_tokens = self.most_tokens - _MORE_TOKENS
        raise InvalidMeasurementError("ANSWER_ENDLESS", amount=amount, cap_tokens=cap_tokens)


@dataclass(slots=True, kw_only=True)
class ChatClient:
    """Sends the requests of one case to an endpoint.

    Attributes:
        endpoint: the server.
        http: the HTTP client for the endpoint.
        clock: monotonic, in nanoseconds.
        on_finished: takes each request when it has ended.
        running: the streams that haven't ended, with their timeouts.
        alive_ns: the last sign of life in requests that have ended: a token, or an end before the
            timeout. Idle times are added to it, so that they don't count as silence.
        idle_ns: when the last running request ended, if none is running.
    """

    case: Case
    endpoint: Endpoint
    http: "httpx.AsyncClient"
    clock: Clock
    on_finished: Record
    running: dict[_StreamState, asyncio.Timeout] = field(default_factory=dict)
    alive_ns: int = 0
    idle_ns: int = 0

    async def watch(self) -> None:
        """End the streams that have been silent for too long, until this is cancelled.

        Raises:
            HungError: the server showed no life during 60 s in which requests were running.
            KeyboardInterrupt: a signal came, and the event loop swallowed its interrupt.
        """
        while True:
            await asyncio.sleep(_WATCH_S)
            check_signalled()
            if not self.running:
                continue
            # If no stream shows life, the server hangs.
            tokens_ns = [stream.chunks[-1].at_ns for stream in self.running if stream.chunks]
            last_alive_ns = max([self.alive_ns, *tokens_ns])
            now_ns = self.clock()
            if now_ns - last_alive_ns > _SILENCE_S * _NS_PER_S:
                raise HungError(_SILENCE_S)
            # If only some streams are silent, their requests fail.
            for stream, timeout in self.running.items():
                is_silent = now_ns - stream.heard_ns > _SILENCE_S * _NS_PER_S
                if is_silent and not timeout.expired():
                    stream.error = f"nothing came for {_SILENCE_S:g} s"
                    timeout.reschedule(asyncio.get_running_loop().time())

    def _end(self, stream: _StreamState) -> None:
        """Note that a stream has ended, and whether that shows that the server is alive."""
        self.running.pop(stream)
        now_ns = self.clock()
        if not stream.timed_out:
            self.alive_ns = now_ns
        elif stream.chunks:
            self.alive_ns = max(self.alive_ns, stream.chunks[-1].at_ns)

        if not self.running:
            self.idle_ns = now_ns

    async def replay(self, conversation_index: int, prompt: Prompt, planned_ns: int) -> None:
        """Replay one conversation. Each turn is sent together with the turns and replies before it.

        A request that fails ends the conversation.

        Args:
            conversation_index: the index of the conversation in the round, from 0.
            prompt: the conversation.
            planned_ns: when its first turn was due.
        """
        messages: tuple[Message, ...] = ()
        empty_replies = 0

        # A prompt in token ids has no texts, and is sent as one turn.
        texts = prompt.turns[: self.case.request.turns] or ("",)
        for turn, text in enumerate(texts, 1):
            messages = (*messages, Message("user", text))
            finished = await self._send(conversation_index, prompt, turn, messages, planned_ns)
            if empty_replies:
                trace = msgspec.structs.replace(finished.trace, empty_replies=empty_replies)
                finished = msgspec.structs.replace(finished, trace=trace)
            self.on_finished(finished)
            if finished.trace.error is not None:
                return
            reply = REPLIES[self.case.request.history_reply](finished.text)
            empty_replies += not reply.strip()
            messages = (*messages, Message("assistant", reply))
            planned_ns = self.clock()

    async def _send(
        self,
        conversation_index: int,
        prompt: Prompt,
        turn: int,
        messages: tuple[Message, ...],
        planned_ns: int,
    ) -> FinishedRequest:
        """Send the request of one turn, and return it when it has ended, in whichever way."""
        import aiohttp  # noqa: PLC0415 - imported by then, see new_client
        import httpx  # noqa: PLC0415 - the same

        ask = self._build_request(prompt, turn, messages)
        wire_format = ENGINES[self.endpoint.engine].wire_format
        path = wire_format.path(ask)
        body = msgspec.json.encode(self.endpoint.without_refused(wire_format.body(ask)))
        sent_ns = self.clock()
        most_tokens = self.case.request.output_cap_tokens + _MORE_TOKENS
        stream = _StreamState(sent_ns=sent_ns, heard_ns=sent_ns, most_tokens=most_tokens)
        try:
            async with asyncio.timeout(self.case.request.request_timeout_s) as timeout:
                if not self.running:
                    self.alive_ns += sent_ns - self.idle_ns
                self.running[stream] = timeout
                await self._stream(path, body, stream, wire_format.new_parser(ask))
        # The transport doesn't turn all errors of aiohttp into those of httpx. An answer that isn't
        # HTTP, for instance, raises an error of aiohttp.
        except (httpx.HTTPError, aiohttp.ClientError) as failure:
            # If Ctrl-C came inside a callback of the event loop, the loop may have swallowed it and
            # closed the connection, which shows only as this error.
            check_signalled()
            stream.error = _described(failure)
            stream.timed_out = isinstance(failure, httpx.TimeoutException | TimeoutError)
        except TimeoutError:
            # A stream that was ended because it was silent has its error already.
            if stream.error is None:
                limit_s = self.case.request.request_timeout_s
                stream.error = f"no end within request_timeout_s = {limit_s:g}"
            stream.timed_out = True
        except InvalidMeasurementError as failure:
            stream.error = str(failure)
        finally:
            self._end(stream)

        return FinishedRequest(
            conversation_index=conversation_index,
            trace=_trace_of(stream, prompt, turn, planned_ns),
            chunks=tuple(stream.chunks),
            text=stream.answer.text,
            thought=stream.answer.thought,
            late=stream.timed_out,
        )

    def _build_request(self, prompt: Prompt, turn: int, messages: tuple[Message, ...]) -> Ask:
        """Return the request of one turn."""
        case = self.case
        if prompt.token_ids:
            messages = ()
        seed = None
        if case.request.paired_seeds:
            # The turn has this seed on every server, so that case and control draw the same tokens.
            seed = _seed_of(prompt, turn)
        return Ask(
            model=self.endpoint.model,
            form=case.request.form,
            messages=messages,
            token_ids=prompt.token_ids,
            output_cap_tokens=case.request.output_cap_tokens,
            temperature=case.request.temperature,
            top_p=case.request.top_p,
            top_k=case.request.top_k,
            ignore_eos=case.request.ignore_eos,
            chat_template_args=case.request.template_args,
            seed=seed,
            stops=dataset_named(case.request.dataset).stops,
        )

    async def _stream(
        self, path: str, body: bytes, stream: _StreamState, parse_event: ParseEvent
    ) -> None:
        """Send a request, and take the events of its answer as they come.

        Raises:
            InvalidMeasurementError: the answer is an error, can't be read, is too long, or can't be
                measured.
        """
        import aiohttp  # noqa: PLC0415 - imported by then, see new_client
        import httpx  # noqa: PLC0415 - the same

        splitter = EventSplitter()
        clock = self.clock
        parsed = None
        event = b""
        async with self.http.stream("POST", path, content=body, headers=HEADERS) as response:
            if response.status_code != HTTPStatus.OK:
                answer = quote_answer(await _beginning(response))
                message = f"HTTP {response.status_code} from {path}: {answer}"
                raise InvalidMeasurementError("HTTP_ERROR", answer=message)
            try:
                # `aiter_raw` would count the bytes too, at two microseconds a chunk.
                async for piece in cast("httpx.AsyncByteStream", response.stream):
                    at_ns = clock()
                    stream.heard_ns = at_ns
                    for event in splitter.feed(piece):
                        if event != DONE_EVENT:
                            parsed = parse_event(event)
                            stream.take(parsed, at_ns)
            except (httpx.HTTPError, aiohttp.ClientError) as failure:
                # Ctrl-C may be the cause here too, see `_send`.
                check_signalled()
                # The server's last words may say more than how the connection ended.
                splitter.check_rest(is_finished=False, end=_described(failure))
                raise

        splitter.check_rest(is_finished=stream.finish_reason is not None)
        if stream.finish_reason is None and parsed == _EMPTY_EVENT:
            fault = f"the stream ended without a finish reason, its last event is {quote(event)}"
            raise InvalidMeasurementError("EVENT_UNREADABLE", fault=fault)
        _check_stream(stream)


def _described(failure: Exception) -> str:
    """Return the type of an error of the connection, and its message."""
    return ": ".join(filter(None, (type(failure).__name__, short_message(failure))))


def _check_stream(stream: _StreamState) -> None:
    """Check that tokens were counted as they came, and that each event brought only new text.

    Raises:
        InvalidMeasurementError: `USAGE_LATE` or `TEXT_REPEATED`.
    """
    if stream.has_uncounted_text and stream.tokens:
        raise InvalidMeasurementError("USAGE_LATE")
    if stream.answer.repeats_events:
        raise InvalidMeasurementError("TEXT_REPEATED")


def _trace_of(stream: _StreamState, prompt: Prompt, turn: int, planned_ns: int) -> RequestTrace:
    """Return the times and counts of a stream that has ended.

    For a failed request, they cover what arrived before the failure.
    """
    first_ns = None
    last_ns = None
    first_chunk_tokens = 0
    reply = stream.answer.reply

    # The answer may be a thought alone. Otherwise, the server separates the thought, or a mark in
    # the text shows where the thought ends, or there is no thought.
    if reply is Reply.UNFINISHED_THOUGHT:
        thought_chunks = stream.chunks[1:]
    elif stream.thought_chunks:
        thought_chunks = stream.thought_chunks
    else:
        thought_chunks = stream.chunks[1 : stream.answer.inline_thought_chunks]

    if stream.chunks:
        first_ns = stream.chunks[0].at_ns
        last_ns = stream.chunks[-1].at_ns
        first_chunk_tokens = stream.chunks[0].tokens

    return RequestTrace(
        prompt_id=prompt.id,
        category=prompt.category,
        turn=turn,
        planned_ns=planned_ns,
        sent_ns=stream.sent_ns,
        first_ns=first_ns,
        last_ns=last_ns,
        first_chunk_tokens=first_chunk_tokens,
        chunk_sizes=chunk_sizes(stream.chunks[1:]),
        usage_tokens=stream.usage_tokens,
        finish_reason=stream.finish_reason,
        acceptance=stream.acceptance,
        error=stream.error,
        answer_sha256=stream.answer.sha256(stream.tokens),
        ids_sha256=stream.answer.ids_sha256(stream.tokens),
        prompt_tokens=stream.prompt_tokens,
        thought_chunk_sizes=chunk_sizes(thought_chunks),
        reply=reply,
        loops=stream.answer.loops,
    )


def _seed_of(prompt: Prompt, turn: int) -> int:
    """Return the seed of a turn, 0 to 2³¹ - 1, which is the same on every server."""
    digest = hashlib.sha256(f"{prompt.id}/{turn}".encode()).digest()
    return int.from_bytes(digest[:4]) >> 1


async def _beginning(response: "httpx.Response") -> bytes:
    """Return the first bytes of an answer, however long it is."""
    content = b""
    async for piece in response.aiter_raw():
        content += piece
        if len(content) > _ERROR_BYTES:
            break
    return content[:_ERROR_BYTES]
