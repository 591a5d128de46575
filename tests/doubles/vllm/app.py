"""The HTTP of the scripted server. In: a Launch and a Script. Out: answers, as they say."""

import asyncio
import contextlib
import itertools
import os
import re
import time
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, aclosing
from typing import ClassVar

import msgspec

from .counters import OTHER_PREFIX, PREFIX, Counters, of_ranks
from .http import HttpServer, Request, Response, Routes
from .launch import Launch
from .request import Body, Job, job_of
from .script import MAX_MODEL_TOKENS, Fault, Script
from .steps import Chunk, Steps
from .wire import ChatWire, CompletionWire, Json, Wire, metrics_of

_REFUSALS = {
    Fault.HTTP_500: (500, "InternalServerError"),
    Fault.HTTP_429: (429, "TooManyRequestsError"),
}
_SILENCES = (Fault.HEALTHY_BUT_MUTE, Fault.NEVER_READY)
_SLOW_S = 60.0
_LINE = b"x" * 2**16
_FOREIGN = Body(prompt="a prompt of another client")


_OWN_WORDS = "scripted: the engine is dead"
_ERROR_EVENT: Json = {"object": "error", "message": _OWN_WORDS, "type": "InternalServerError"}


class EndlessLineError(Exception):
    """From here on a stream is one line."""


class ErrorEventError(Exception):
    """Here a stream ends with an event that is called an error."""


class ScriptedServer:
    """vLLM's endpoints with a known truth behind them.

    Attributes:
        remembers: whether what has ended is kept for its counters, so that its memory grows.
        ended: that.
    """

    remembers: ClassVar[bool] = False

    def __init__(self, launch: Launch, script: Script) -> None:
        self._launch = launch
        self._script = script
        self._numbers = itertools.count(1)
        self.ended: list[Steps] = []
        self._started_s = time.monotonic()
        # Random bytes, because the kernel gives no page to a block of zeros until it is written.
        self._held = [os.urandom(script.held_bytes)]
        self._counters = self._new_counters()

    def serve(self) -> None:
        """Listens until a signal comes."""
        ignores_signals = self._script.ignore_sigterm or self._script.ignore_sigint
        http = HttpServer(self.routes())
        http.run(self._launch.host, self._launch.port, is_ended_by_signals=not ignores_signals)

    def listening(self) -> AbstractAsyncContextManager[str]:
        """Serves in a test's own event loop; yields the base URL."""
        return HttpServer(self.routes()).listening()

    def routes(self) -> Routes:
        """The endpoints."""
        return {
            ("GET", "/health"): self._health,
            ("GET", "/version"): self._version,
            ("GET", "/v1/models"): self._models,
            ("GET", "/metrics"): self._metrics,
            ("POST", "/v1/chat/completions"): self._chat,
            ("POST", "/v1/completions"): self._completion,
        }

    async def _health(self, _: Request) -> Response:
        return Response(status=503 if self._script.fault is Fault.NEVER_READY else 200)

    async def _version(self, _: Request) -> Response:
        return json_response({"version": self._script.version})

    async def _models(self, _: Request) -> Response:
        card: Json = {
            "id": self._launch.name,
            "owned_by": "vllm",
            "root": self._launch.model,
            "max_model_len": MAX_MODEL_TOKENS,
        }
        return json_response({"object": "list", "data": [card]})

    async def _metrics(self, _: Request) -> Response:
        if self._script.fault is Fault.COUNTERS_MISSING:
            return _error(404, "NotFoundError", "Not Found")
        page = self._counters.exposition()
        if self._script.fault is Fault.COUNTERS_NAN:
            page = re.sub(rb"(_total\{.*\}) .*", rb"\1 NaN", page)
        return Response(body=of_ranks(page, self._script.ranks, self._script.counted_by_ranks))

    async def _chat(self, request: Request) -> Response | None:
        return await self.answer(request, ChatWire)

    async def _completion(self, request: Request) -> Response | None:
        return await self.answer(request, CompletionWire)

    async def answer(self, request: Request, shape: type[Wire]) -> Response | None:
        """Answers a generation request with JSON of a shape."""
        number = next(self._numbers)
        fault = self._script.fault_of(number)
        if fault in _SILENCES:
            await asyncio.Event().wait()
        if fault is Fault.ERROR_BODY:
            return json_response({"error": {"message": _OWN_WORDS, "code": 500}})
        if fault in _REFUSALS:
            return _error(*_REFUSALS[fault], f"scripted: {fault}")
        try:
            body = self.parse_body(request.body)
        except msgspec.DecodeError as problem:
            return _error(400, "BadRequestError", str(problem))
        if body.model not in {None, self._launch.name}:
            return _error(404, "NotFoundError", f"The model `{body.model}` does not exist.")
        given = msgspec.json.decode(request.body, type=dict[str, msgspec.Raw])
        script = self._script.aged(self._life_s)
        if not given.keys() >= set(script.sampling_defaults):
            script = msgspec.structs.replace(script, acceptance_probs=(1.0,))
        job = job_of(body, self._launch, script, shape=shape, fault=fault)
        job.stretch = script.stretch(number)
        if script.leak_bytes:
            self._held.append(os.urandom(script.leak_bytes))
        self._count_arrival(job)
        if job.body.stream:
            await self._stream(request, job)
            return None
        return await self._whole(request, job)

    def _count_arrival(self, job: Job) -> None:
        if job.fault is Fault.COUNTERS_RESET:
            self._counters = self._new_counters()
        if job.fault is Fault.COUNTERS_TOO_HIGH:
            foreign = _FOREIGN.steps(self._script, self._launch.draft_tokens)
            self._counters.count_tokens(foreign.completion_tokens, foreign.accepted)
            self._counters.count_finish(foreign.finish_reason)
        self._counters.count_prompt(len(job.wire.prompt_ids))

    def _new_counters(self) -> Counters:
        renamed = self._script.fault is Fault.COUNTERS_RENAMED
        prefix = OTHER_PREFIX if renamed else PREFIX
        queue_s = self._script.queue_ms / 1000
        return Counters(self._launch.name, self._launch.draft_tokens, prefix, queue_s)

    def parse_body(self, raw: bytes) -> Body:
        return msgspec.json.decode(raw, type=Body)

    async def _stream(self, request: Request, job: Job) -> None:
        await request.start_stream("text/event-stream; charset=utf-8")
        try:
            async with aclosing(self._events(job)) as events:
                async for event in events:
                    await request.write(b"data: " + event + job.wire.tail)
        except ConnectionResetError:
            self._abort(request)
        except ErrorEventError:
            event = msgspec.json.encode(_ERROR_EVENT)
            await request.write(b"event: error\ndata: " + event + b"\n\n")
        except EndlessLineError:
            with contextlib.suppress(ConnectionError):
                while True:
                    await request.write(_LINE)

    async def _whole(self, request: Request, job: Job) -> Response | None:
        try:
            async with aclosing(self._paced(job)) as chunks:
                async for _ in chunks:
                    pass
        except ConnectionResetError:
            self._abort(request)
            return None
        body = job.wire.whole(job.steps, metrics_of(job.steps, self._launch))
        if job.fault is Fault.NO_USAGE:
            body |= {"usage": None, "metrics": None}
        if job.fault is Fault.WRONG_JSON:
            return Response(body=b'{"id": "cmpl', content_type="application/json")
        return json_response(body)

    def _abort(self, request: Request) -> None:
        self._counters.count_finish("abort")
        request.disconnect()

    async def _events(self, job: Job) -> AsyncGenerator[bytes]:
        """The events of a stream, without their framing."""
        for opening in job.wire.opening():
            yield msgspec.json.encode(opening)
        last = len(job.chunks) - 1
        async with aclosing(self._paced(job)) as chunks:
            async for index, chunk in chunks:
                event = job.wire.event(chunk, job.steps, last=index == last)
                broken = job.fault is Fault.WRONG_JSON and index == (last + 1) // 2
                yield b'{"id": "cmpl' if broken else msgspec.json.encode(event)
        if job.wants_usage:
            for closing in job.wire.closing(job.steps, metrics_of(job.steps, self._launch)):
                yield msgspec.json.encode(closing)
        for done in job.wire.done:
            yield done

    async def _paced(self, job: Job) -> AsyncGenerator[tuple[int, Chunk]]:
        """Numbers the chunks, counts them and gives each at its time."""
        self._counters.running.inc()
        try:
            due_s = time.monotonic() + self._script.prefill_ms / 1e3
            due_s += _SLOW_S if job.fault is Fault.SLOW_FIRST_TOKEN else 0.0
            for index, chunk in enumerate(job.chunks):
                due_s += self._step_s() * job.stretch * chunk.forward_passes if index else 0
                await asyncio.sleep(due_s - time.monotonic())
                await self._break_off(job, index)
                self._counters.count_tokens(len(chunk.token_ids), chunk.accepted)
                yield index, chunk
            self._counters.count_finish(job.steps.finish_reason)
            if self.remembers:
                self.ended.append(job.steps)
        finally:
            self._counters.running.dec()

    @property
    def _life_s(self) -> float:
        return time.monotonic() - self._started_s

    def _step_s(self) -> float:
        return self._script.step_ms / 1e3 * (1 + self._script.slows_per_s_frac * self._life_s)

    async def _break_off(self, job: Job, index: int) -> None:
        """Halfway, ends the process or what can be read of it where the script says so."""
        if index != len(job.chunks) // 2:
            return
        if job.fault is Fault.CRASH_MID_RUN:
            os._exit(self._script.exit_status)
        if job.fault is Fault.TRUNCATED_STREAM:
            raise ConnectionResetError
        if job.fault is Fault.ENDLESS_LINE:
            raise EndlessLineError
        if job.fault is Fault.ERROR_EVENT:
            raise ErrorEventError
        if job.fault is Fault.HALF_OPEN:
            await asyncio.Event().wait()


def json_response(body: Json | list[Json], status: int = 200) -> Response:
    """Returns a response of JSON."""
    content = msgspec.json.encode(body)
    return Response(status=status, body=content, content_type="application/json")


def _error(status: int, kind: str, message: str) -> Response:
    error = {"message": message, "type": kind, "param": None, "code": status}
    return json_response({"error": error}, status)
