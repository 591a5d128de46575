"""Ask a server for prompts and answers in token ids; nothing here is timed."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from typing import TypeVar

import msgspec

from specreg.core.errors import AnswerError, HungError, InvalidMeasurementError, UnsupportedError
from specreg.core.http import Answer, read
from specreg.datasets.prompts import Prompt
from specreg.engines.registry import ENGINES
from specreg.engines.token_api import Call, TokenApi, Transcript, Wanted
from specreg.engines.wire_format import Ask, Endpoint, Message, Role
from specreg.matrix.case import Case

_TIMEOUT_S = 600.0
"""How long an answer may take. It comes whole, and may wait until others are there."""
_ANSWER_CHARACTERS = 300
AnswerT = TypeVar("AnswerT")


def token_api_of(endpoint: Endpoint) -> TokenApi:
    """How to ask an endpoint in ids.

    Raises:
        UnsupportedError: it knows no ids.
    """
    api = ENGINES[endpoint.engine].token_api
    if api is None:
        having = sorted(name for name, engine in ENGINES.items() if engine.token_api)
        message = (
            f"engine '{endpoint.engine}': its answers are no token ids, so nothing can be said"
            f" of their tokens; these have them: {', '.join(having)}"
        )
        raise UnsupportedError(message)
    return api


def encode_prompts(
    endpoint: Endpoint, case: Case, prompts: Sequence[Prompt]
) -> tuple[tuple[int, ...], ...]:
    """The ids of the prompts' first turns, as the server's own tokenizer and template have them.

    Raises:
        UnsupportedError: it knows no ids.
        InvalidMeasurementError: `HTTP_ERROR`, `ANSWER_UNREADABLE`.
    """
    api = token_api_of(endpoint)

    async def encode(prompt: Prompt, post: _Post) -> tuple[int, ...]:
        if prompt.token_ids:
            return prompt.token_ids
        ask = Ask(
            model=endpoint.model,
            form=case.form,
            messages=(Message(Role.USER, prompt.turns[0]),),
            output_cap_tokens=1,
            temperature=0.0,
            chat_template_args=case.chat_template_args,
        )
        return api.parse_ids(await post(api.encode(ask)))

    return _ask_all(endpoint, prompts, encode, case.server.max_sequences)


def transcribe(
    endpoint: Endpoint,
    texts: Sequence[Sequence[int]],
    wanted: Sequence[Wanted],
    *,
    in_flight: int,
    within_s: float = _TIMEOUT_S,
) -> tuple[Transcript, ...]:
    """The continuation of each text.

    Args:
        endpoint: whom to ask.
        texts: in ids, one at least.
        wanted: of each text.
        in_flight: how many at once.
        within_s: how long an answer may take.

    Raises:
        UnsupportedError: it knows no ids.
        HungError: no answer came in that time.
        InvalidMeasurementError: `HTTP_ERROR`, `ANSWER_UNREADABLE`.
    """
    api = token_api_of(endpoint)

    async def complete(one: tuple[Sequence[int], Wanted], post: _Post) -> Transcript:
        answer = await post(api.complete(endpoint.model, *one))
        return api.parse_transcript(answer, one[0])

    questions = tuple(zip(texts, wanted, strict=True))
    return _ask_all(endpoint, questions, complete, in_flight, within_s=within_s)


def score(
    endpoint: Endpoint, questions: Sequence[tuple[Sequence[int], Sequence[int]]]
) -> tuple[tuple[float, ...], ...]:
    """How likely candidates are to follow a text, one text at a time.

    Args:
        endpoint: whom to ask.
        questions: a text in ids, and candidates.

    Returns:
        The candidates' log-probabilities in nats; of one that the server doesn't tell, the most
        that it can be.

    Raises:
        UnsupportedError: it knows no ids.
        InvalidMeasurementError: `HTTP_ERROR`, `ANSWER_UNREADABLE`.
    """
    api = token_api_of(endpoint)

    async def ask(one: tuple[Sequence[int], Sequence[int]], post: _Post) -> tuple[float, ...]:
        answer = await post(api.score(endpoint.model, *one))
        return api.parse_scores(answer, one[1])

    return _ask_all(endpoint, questions, ask, 1)


_Post = Callable[[Call], Awaitable[bytes]]
_OneT = TypeVar("_OneT")


def _ask_all(
    endpoint: Endpoint,
    questions: Sequence[_OneT],
    ask: Callable[[_OneT, _Post], Awaitable[AnswerT]],
    in_flight: int,
    *,
    within_s: float = _TIMEOUT_S,
) -> tuple[AnswerT, ...]:
    """The answers in the order of the questions."""

    async def all_of_them() -> list[AnswerT]:
        free, heard_s = asyncio.Semaphore(in_flight), time.monotonic()
        import httpx  # noqa: PLC0415 - takes long, and few commands ask a server

        async with httpx.AsyncClient(base_url=endpoint.base_url, trust_env=False) as client:

            async def post(call: Call) -> bytes:
                nonlocal heard_s
                sent_s, body = time.monotonic(), msgspec.json.encode(call.body)
                try:
                    answer = await read(client, "POST", call.path, within_s=within_s, body=body)
                except AnswerError as error:
                    # If others came meanwhile, it is this one alone.
                    if error.late and heard_s <= sent_s:
                        raise HungError(within_s) from error
                    message = f"{error}; look at the server's log"
                    raise InvalidMeasurementError("HTTP_ERROR", message) from error
                heard_s = time.monotonic()
                return _content(answer, call)

            async def one(question: _OneT) -> AnswerT:
                async with free:
                    return await ask(question, post)

            return await asyncio.gather(*map(one, questions))

    return tuple(asyncio.run(all_of_them()))


def _content(answer: Answer, call: Call) -> bytes:
    if answer.status != HTTPStatus.OK:
        said = answer.text[:_ANSWER_CHARACTERS]
        message = f"HTTP {answer.status} from {call.path}: {said}"
        raise InvalidMeasurementError("HTTP_ERROR", message)
    return answer.content
