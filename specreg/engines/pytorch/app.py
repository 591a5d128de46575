"""The HTTP of the reference engine: OpenAI's endpoints, with what vLLM says beside them."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator

import msgspec
import transformers
from aiohttp import web

from specreg.core.errors import ServerError, ServerRefusedError
from specreg.engines.pytorch.answering import Answer, Json
from specreg.engines.pytorch.asking import Body, ChatBody, CompletionBody, parse_body
from specreg.engines.pytorch.counters import Counters
from specreg.engines.pytorch.jobs import Step
from specreg.engines.pytorch.models import Loaded
from specreg.engines.pytorch.options import Options
from specreg.engines.pytorch.queueing import Queue

Steps = AsyncGenerator[Step, None]


class App:
    """What answers. `loaded`: what decodes; `options`: what was asked for."""

    def __init__(self, loaded: Loaded, options: Options) -> None:
        self._loaded, self._options = loaded, options
        self._draft_tokens = 0 if options.method == "none" else options.draft_tokens
        self._counters = Counters(self._draft_tokens)
        self._queue = Queue(loaded.models, options.max_sequences, self._counters.count)

    def application(self) -> web.Application:
        """The endpoints."""
        app = web.Application()
        app.router.add_get("/health", self._health)
        app.router.add_get("/version", self._version)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/completions", self._completion)
        app.cleanup_ctx.append(self._working)
        return app

    async def _working(self, _: web.Application) -> AsyncIterator[None]:
        task = asyncio.create_task(self._queue.work())
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _version(self, _: web.Request) -> web.Response:
        return _json({"version": transformers.__version__})

    async def _models(self, _: web.Request) -> web.Response:
        card: Json = {
            "id": self._options.served_model_name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "reference",
            "root": self._options.model,
            "max_model_len": self._options.context_tokens,
        }
        return _json({"object": "list", "data": [card]})

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(text=self._counters.page(), content_type="text/plain")

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, ChatBody)

    async def _completion(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, CompletionBody)

    async def _answer(self, request: web.Request, kind: type[Body]) -> web.StreamResponse:
        served = self._options.served_model_name
        try:
            body = parse_body(await request.read(), kind, served)
            job = body.job(self._loaded.tokenizer, self._options.context_tokens)
        except ServerRefusedError as error:
            return _json(_error(str(error)), 400)
        answer = Answer(body, job, self._loaded.tokenizer, served, self._draft_tokens)
        async with contextlib.aclosing(self._queue.steps(job)) as steps:
            return await (_stream(request, answer, steps) if body.stream else _whole(answer, steps))


async def _whole(answer: Answer, steps: Steps) -> web.Response:
    try:
        async for step in steps:
            answer.add(step)
    except ServerError as error:
        return _json(_error(str(error)), 500)
    return _json(answer.whole())


async def _stream(request: web.Request, answer: Answer, steps: Steps) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    try:
        async for event in _events(answer, steps):
            await response.write(b"data: " + msgspec.json.encode(event) + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
    except ConnectionResetError:
        pass  # whoever asked is gone
    return response


async def _events(answer: Answer, steps: Steps) -> AsyncIterator[Json]:
    for event in answer.opening():
        yield event
    try:
        async for step in steps:
            yield answer.add(step)
    except ServerError as error:
        yield _error(str(error))
        return
    if answer.wants_usage:
        yield answer.closing()


def _error(message: str) -> Json:
    return {"error": {"message": message}}


def _json(body: Json, status: int = 200) -> web.Response:
    encoded = msgspec.json.encode(body)
    return web.Response(body=encoded, status=status, content_type="application/json")
