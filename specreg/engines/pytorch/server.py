"""Serve OpenAI's endpoints over HTTP as vLLM has them, and decode the jobs batch by batch."""

import argparse
import asyncio
import contextlib
import functools
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
import transformers
from aiohttp import web

from specreg.core.errors import ServerError, ServerRefusedError
from specreg.engines.pytorch.decoding import Models, decode
from specreg.engines.pytorch.requests import (
    ChatBody,
    CompletionBody,
    DecodedStep,
    Job,
    RequestBody,
    build_job,
    parse_body,
)

Json = dict[str, object]
Steps = asyncio.Queue[DecodedStep | ServerError]
"""The steps of one job, up to its last, or the error that ended its batch."""


class App:
    """The endpoints of some models, which answer up to `max_sequences` jobs at once."""

    def __init__(self, models: Models, options: argparse.Namespace) -> None:
        self._models = models
        self._options = options
        self._waiting = asyncio.Queue[tuple[Job, Steps]]()

    def application(self) -> web.Application:
        """Return the application with its routes and its worker."""
        app = web.Application()
        card = {
            "id": self._options.served_model_name,
            "max_model_len": self._options.context_tokens,
            "root": self._options.model,
        }
        models: Json = {"object": "list", "data": [card]}
        app.router.add_get("/health", _always({}))
        app.router.add_get("/version", _always({"version": transformers.__version__}))
        app.router.add_get("/v1/models", _always(models))
        app.router.add_post("/v1/chat/completions", functools.partial(self._answer, ChatBody))
        app.router.add_post("/v1/completions", functools.partial(self._answer, CompletionBody))
        app.cleanup_ctx.append(self._run_worker)
        return app

    async def _run_worker(self, _: web.Application) -> AsyncIterator[None]:
        """Answer jobs in a task of its own while the application runs."""
        task = asyncio.create_task(self._work())
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def _answer(self, kind: type[RequestBody], request: web.Request) -> web.StreamResponse:
        """Answer a request, as a stream if its body asks for one."""
        try:
            body = parse_body(await request.read(), kind, self._options.served_model_name)
            job = build_job(body, self._models.tokenizer, self._models.context_tokens)
        except ServerRefusedError as error:
            return web.json_response(_error(error), status=400)

        answer = Answer(job, self._models, is_chat=kind is ChatBody)
        events = self._events(answer, job)
        if body.stream:
            return await _stream(request, events)
        try:
            async for _ in events:
                pass
        except ServerError as error:
            return web.json_response(_error(error), status=500)

        return web.json_response(answer.whole())

    async def _events(self, answer: "Answer", job: Job) -> AsyncIterator[Json]:
        """Queue a job and yield the events of its answer, the counts last.

        Raises:
            ServerError: its batch can't be answered.
        """
        steps = Steps()
        self._waiting.put_nowait((job, steps))
        is_finished = False
        while not is_finished:
            step = await steps.get()
            if isinstance(step, ServerError):
                raise step
            yield answer.add(step)
            is_finished = step.finish_reason is not None

        yield {"choices": []} | answer.counts()

    async def _work(self) -> None:
        """Answer batch after batch, until the task is cancelled."""
        while True:
            # A batch takes the jobs that already wait. A job that comes later isn't added to it,
            # but to the next batch.
            batch = [await self._waiting.get()]
            while len(batch) < self._options.max_sequences and not self._waiting.empty():
                batch.append(self._waiting.get_nowait())
            jobs = [job for job, _ in batch]
            decoded = decode(self._models, jobs)
            try:
                # Each step is decoded in a thread, so that the server goes on listening.
                while added := await asyncio.to_thread(next, decoded, None):
                    for index, step in added.items():
                        _, steps = batch[index]
                        steps.put_nowait(step)
            except Exception as error:  # noqa: BLE001 - its requests fail, others go on
                traceback.print_exception(error)
                message = f"batch of {len(batch)}: {error!r}; look at the log of the server"
                for _, steps in batch:
                    steps.put_nowait(ServerError(message))


async def _stream(request: web.Request, events: AsyncIterator[Json]) -> web.StreamResponse:
    """Send events as they come; an error becomes an event too, as in vLLM."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)

    try:
        async for event in events:
            await response.write(_event_bytes(event))
    except ServerError as error:
        # The status has been sent already, so it can't say that the answer failed.
        await response.write(_event_bytes(_error(error)))

    await response.write(b"data: [DONE]\n\n")
    return response


def _event_bytes(event: Json) -> bytes:
    """Return an event as a server sends it."""
    return b"data: " + msgspec.json.encode(event) + b"\n\n"


def _always(body: Json) -> Callable[[web.Request], Awaitable[web.Response]]:
    """Return a handler that gives every request the same answer."""

    async def answer(_: web.Request) -> web.Response:
        return web.json_response(body)

    return answer


def _error(error: ServerError) -> Json:
    """Return an error in the form of OpenAI's API."""
    return {"error": {"message": str(error)}}


class Answer:
    """An answer that grows step by step, in the form of a chat or of a completion."""

    def __init__(self, job: Job, models: Models, *, is_chat: bool) -> None:
        self._job = job
        self._models = models
        self._is_chat = is_chat
        self._steps: list[DecodedStep] = []
        self._ids: list[int] = []
        self._text = ""

    def add(self, step: DecodedStep) -> Json:
        """Add a step and return its event.

        Bytes that aren't a whole character yet (U+FFFD) wait for the next step.
        """
        self._steps.append(step)
        self._ids.extend(step.token_ids)

        # The whole answer is decoded each time, because the text of a token may depend on the
        # tokens before it.
        text = self._models.tokenizer.decode(self._ids, skip_special_tokens=True)
        added_text = ""
        if step.finish_reason is not None or not text.endswith("\ufffd"):
            added_text = text[len(self._text) :]
            self._text = text
        content: Json = {"delta": {"content": added_text}}
        if not self._is_chat:
            content = {"text": added_text}
        choice = {"token_ids": step.token_ids, "finish_reason": step.finish_reason}
        return {"choices": [{"index": 0} | content | choice]}

    def whole(self) -> Json:
        """Return the body of an answer that isn't streamed."""
        content: Json = {"message": {"role": "assistant", "content": self._text}}
        if not self._is_chat:
            content = {"text": self._text}
        choice = {
            "index": 0,
            "prompt_token_ids": self._job.prompt,
            "token_ids": self._ids,
            "finish_reason": self._steps[-1].finish_reason,
        }
        if self._job.top_logprobs is not None:
            top_logprobs = []
            for step in self._steps:
                for logprobs in step.logprobs:
                    # Tokens are named by their ids, because two tokens may have the same text.
                    by_name = {f"token_id:{token}": value for token, value in logprobs.items()}
                    top_logprobs.append(by_name)
            choice["logprobs"] = {"top_logprobs": top_logprobs}

        return {"choices": [content | choice]} | self.counts()

    def counts(self) -> Json:
        """Return the usage, and the counts of the steps in which something was drafted."""
        usage = {"prompt_tokens": len(self._job.prompt), "completion_tokens": len(self._ids)}
        if not self._models.draft_tokens:
            return {"usage": usage}
        histogram = [0] * (self._models.draft_tokens + 1)
        for step in self._steps:
            # As in vLLM, a step in which nothing was drafted isn't counted, such as the prefill.
            if step.drafted > 0:
                histogram[step.accepted] += 1

        drafted = sum(step.drafted for step in self._steps)
        counted = {"acceptance_histogram": histogram, "num_draft_tokens": drafted}
        return {"usage": usage, "metrics": {"speculative_decoding": counted}}
