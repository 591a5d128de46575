"""Ask a server for prompts and answers in token ids; nothing here is timed."""

import asyncio
import time
from collections.abc import Sequence
from http import HTTPStatus
from typing import TypeVar

import msgspec

from specreg.core.certificates import trusted_certificates
from specreg.core.errors import AnswerError, HungError, InvalidMeasurementError, UnsupportedError
from specreg.core.http import read
from specreg.core.server_words import quote_answer
from specreg.datasets.prompts import Prompt
from specreg.engines.registry import ENGINES
from specreg.engines.wire_format import Ask, Call, Endpoint, Message, TokenApi, Transcript, Wanted
from specreg.matrix.case import Case

_TIMEOUT_S = 600.0
"""How long an answer may take: it comes whole, and may wait for others."""
AnswerT = TypeVar("AnswerT")


def token_api_of(endpoint: Endpoint) -> TokenApi:
    """How to ask an endpoint in ids, else an UnsupportedError."""
    api = ENGINES[endpoint.engine].token_api
    if api is None:
        having = sorted(name for name, engine in ENGINES.items() if engine.token_api)
        raise UnsupportedError(
            f"engine '{endpoint.engine}': its answers are no token ids, so nothing can be said"
            f" of their tokens; these have them: {', '.join(having)}"
        )
    return api


def encode_prompts(
    endpoint: Endpoint, case: Case, prompts: Sequence[Prompt]
) -> tuple[tuple[int, ...], ...]:
    """The ids of the prompts' first turns, as the server's own tokenizer and template have them.

    Raises:
        UnsupportedError: the engine's answers are no ids.
        InvalidMeasurementError: `HTTP_ERROR` or `ANSWER_UNREADABLE`.
        HungError: no answer came in ten minutes.
    """
    chats = [(Message("user", prompt.turns[0]),) for prompt in prompts if not prompt.token_ids]
    encoded = iter(encode_chats(endpoint, case, chats))
    return tuple(prompt.token_ids or next(encoded) for prompt in prompts)


def encode_chats(
    endpoint: Endpoint, case: Case, chats: Sequence[tuple[Message, ...]]
) -> tuple[tuple[int, ...], ...]:
    """The ids of what was said so far in each chat, the user's message last; as `encode_prompts`.

    Raises:
        UnsupportedError, InvalidMeasurementError, HungError: as of `encode_prompts`.
    """
    api = token_api_of(endpoint)
    asks = [
        Ask(
            model=endpoint.model,
            form=case.form,
            messages=messages,
            output_cap_tokens=1,
            temperature=0.0,
            chat_template_args=case.chat_template_args,
        )
        for messages in chats
    ]
    return _post_all(endpoint, list(map(api.encode, asks)), case.server.max_sequences)


def complete(
    endpoint: Endpoint,
    texts: Sequence[Sequence[int]],
    wanted: Sequence[Wanted],
    *,
    in_flight: int,
    within_s: float = _TIMEOUT_S,
) -> tuple[Transcript, ...]:
    """The continuation of each text, with so many requests `in_flight` at once.

    Raises:
        UnsupportedError: the engine's answers are no ids.
        InvalidMeasurementError: as of `encode_prompts`.
        HungError: no answer came in `within_s`.
    """
    api = token_api_of(endpoint)
    calls = [api.complete(endpoint.model, *one) for one in zip(texts, wanted, strict=True)]
    return _post_all(endpoint, calls, in_flight, within_s)


def score(
    endpoint: Endpoint, questions: Sequence[tuple[Sequence[int], Sequence[int]]]
) -> tuple[tuple[float, ...], ...]:
    """How likely candidates are to follow a text in ids, one text at a time; see `TokenApi.score`.

    Raises:
        UnsupportedError: the engine's answers are no ids.
        InvalidMeasurementError, HungError: as of `encode_prompts`.
    """
    api = token_api_of(endpoint)
    return _post_all(endpoint, [api.score(endpoint.model, *one) for one in questions], 1)


def _post_all(
    endpoint: Endpoint, calls: Sequence[Call[AnswerT]], in_flight: int, within_s: float = _TIMEOUT_S
) -> tuple[AnswerT, ...]:
    """The answers in the order of the calls."""

    async def post_all() -> list[AnswerT]:
        free, heard_s = asyncio.Semaphore(in_flight), time.monotonic()
        import httpx  # noqa: PLC0415 - takes long, and few commands ask a server

        url = endpoint.base_url
        trusted = trusted_certificates(url)
        async with httpx.AsyncClient(base_url=url, trust_env=False, verify=trusted) as client:

            async def post(call: Call[AnswerT]) -> AnswerT:
                nonlocal heard_s
                async with free:
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
                    if answer.status != HTTPStatus.OK:
                        said = quote_answer(answer.content)
                        message = f"HTTP {answer.status} from {call.path}: {said}"
                        raise InvalidMeasurementError("HTTP_ERROR", message)
                    return call.parse(answer.content)

            return await asyncio.gather(*map(post, calls))

    return tuple(asyncio.run(post_all()))
