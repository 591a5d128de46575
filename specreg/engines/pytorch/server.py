"""The HTTP server: OpenAI's endpoints, vLLM's counters, and the queue of jobs between them."""

import asyncio
import contextlib
import time
import traceback
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence

import msgspec
import transformers
from aiohttp import web

from specreg.core.errors import ServerError, ServerRefusedError
from specreg.engines.pytorch.answers import Answer, Json
from specreg.engines.pytorch.decoding import Models, decode
from specreg.engines.pytorch.models import Loaded
from specreg.engines.pytorch.options import Options
from specreg.engines.pytorch.requests import Body, ChatBody, CompletionBody, Job, Step, parse_body

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


class _Waiting:
    """A job, and its steps as they come; None after the last, or the error that ended it."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.steps: asyncio.Queue[Step | ServerError] = asyncio.Queue()
        self.wanted = True


class Queue:
    """Answers jobs, at most `max_sequences` at once; `count` is told of each step."""

    def __init__(self, models: Models, max_sequences: int, count: Callable[[Step], None]) -> None:
        self._models, self._max_sequences, self._count = models, max_sequences, count
        self._jobs: asyncio.Queue[_Waiting] = asyncio.Queue()

    async def steps(self, job: Job) -> AsyncGenerator[Step, None]:
        """The steps of a job. Whoever stops to listen takes it out of its batch.

        Raises:
            ServerError: its batch could not be answered.
        """
        waiting = _Waiting(job)
        self._jobs.put_nowait(waiting)
        try:
            while True:
                step = await waiting.steps.get()
                if isinstance(step, ServerError):
                    raise step
                yield step
                if step.finish_reason is not None:
                    return
        finally:
            waiting.wanted = False

    async def work(self) -> None:
        """Answers batch after batch, until it is cancelled."""
        while True:
            batch = [await self._jobs.get()]
            while len(batch) < self._max_sequences and not self._jobs.empty():
                batch.append(self._jobs.get_nowait())
            try:
                await self._answer([waiting for waiting in batch if waiting.wanted])
            except Exception as error:  # noqa: BLE001 - its requests are told, others go on
                traceback.print_exception(error)
                message = f"batch of {len(batch)}: {error!r}; look at the log of the server"
                for waiting in batch:
                    waiting.steps.put_nowait(ServerError(message))

    async def _answer(self, batch: Sequence[_Waiting]) -> None:
        if not batch:
            return
        jobs = [waiting.job for waiting in batch]
        batches = decode(self._models, jobs, wanted=lambda place: batch[place].wanted)
        # In a thread, so that the server goes on listening.
        while steps := await asyncio.to_thread(next, batches, None):
            for place, step in steps.items():
                self._count(step)
                batch[place].steps.put_nowait(step)


PREFIX = "reference:"


class Counters:
    """Counts since the start. `draft_tokens`: the most drafted per step, 0 without speculation."""

    def __init__(self, draft_tokens: int) -> None:
        self._speculates = draft_tokens > 0
        self._generation_tokens = 0
        self._drafts = self._draft_tokens = self._accepted_tokens = 0
        self._by_position = [0] * draft_tokens

    def count(self, step: Step) -> None:
        """Adds a step; those in which nothing was drafted aren't among the drafts."""
        self._generation_tokens += len(step.token_ids)
        self._drafts += step.drafted > 0
        self._draft_tokens += step.drafted
        self._accepted_tokens += step.accepted
        for position in range(step.accepted):
            self._by_position[position] += 1

    def page(self) -> str:
        """The page; like vLLM's, it has no speculation counters without speculation."""
        lines = _family("generation_tokens", {"": self._generation_tokens})
        if self._speculates:
            positions = {
                f'{{position="{position}"}}': count
                for position, count in enumerate(self._by_position)
            }
            lines += _family("spec_decode_num_drafts", {"": self._drafts})
            lines += _family("spec_decode_num_draft_tokens", {"": self._draft_tokens})
            lines += _family("spec_decode_num_accepted_tokens", {"": self._accepted_tokens})
            lines += _family("spec_decode_num_accepted_tokens_per_pos", positions)
        return "\n".join(lines) + "\n"


def _family(name: str, samples: dict[str, int]) -> list[str]:
    values = [f"{PREFIX}{name}_total{labels} {count}" for labels, count in samples.items()]
    return [f"# TYPE {PREFIX}{name} counter", *values]
