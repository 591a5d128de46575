"""Exchange prompts and answers with a server in token ids. No request is timed."""

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
from specreg.engines.wire_format import (
    AnswerSettings,
    Ask,
    Call,
    Endpoint,
    Message,
    TokenApi,
    Transcript,
)
from specreg.matrix.case import Case

_TIMEOUT_S = 600.0
"""How long an answer may take. It comes in one piece, and may have to wait for other answers."""
AnswerT = TypeVar("AnswerT")


def token_api_of(endpoint: Endpoint) -> TokenApi:
    """Return the API of an endpoint that takes and returns token ids.

    Raises:
        UnsupportedError: the engine's answers have no ids.
    """
    api = ENGINES[endpoint.engine].token_api
    if api is None:
        supported = sorted(name for name, engine in ENGINES.items() if engine.token_api)
        raise UnsupportedError(
            f"engine '{endpoint.engine}': its answers have no token ids, so they can't be compared"
            f" token by token; use an engine that has them: {', '.join(supported)}"
        )

    return api


def encode_prompts(
    endpoint: Endpoint, case: Case, prompts: Sequence[Prompt]
) -> tuple[tuple[int, ...], ...]:
    """Return the token ids of the prompts' first turns, by the server's tokenizer and template.

    Raises:
        UnsupportedError: the engine's answers have no token ids.
        InvalidMeasurementError: `HTTP_ERROR`, `SERVER_ERROR` or `ANSWER_UNREADABLE`.
        HungError: no answer came in ten minutes.
    """
    chats = [(Message("user", prompt.turns[0]),) for prompt in prompts if not prompt.token_ids]
    encoded = iter(encode_chats(endpoint, case, chats))
    return tuple(prompt.token_ids or next(encoded) for prompt in prompts)


def encode_chats(
    endpoint: Endpoint, case: Case, chats: Sequence[tuple[Message, ...]]
) -> tuple[tuple[int, ...], ...]:
    """Return the token ids of each chat, by the server's own tokenizer and template.

    Args:
        endpoint: the server.
        case: the case, which says how prompts are sent.
        chats: the messages of each chat so far, the user's last.

    Raises:
        UnsupportedError, InvalidMeasurementError, HungError: as in `encode_prompts`.
    """
    api = token_api_of(endpoint)
    asks = [
        Ask(
            model=endpoint.model,
            form=case.request.form,
            messages=messages,
            output_cap_tokens=1,
            temperature=0.0,
            chat_template_args=case.request.template_args,
        )
        for messages in chats
    ]
    return _post_all(endpoint, list(map(api.encode, asks)), case.server.max_sequences)


def complete(
    endpoint: Endpoint,
    texts: Sequence[Sequence[int]],
    settings: Sequence[AnswerSettings],
    *,
    in_flight: int,
    within_s: float = _TIMEOUT_S,
) -> tuple[Transcript, ...]:
    """Return the continuation of each text.

    Args:
        endpoint: the server.
        texts: the texts, in token ids.
        settings: the length and the sampling of each continuation.
        in_flight: how many requests are in flight at once.
        within_s: how long an answer may take, in seconds.

    Raises:
        UnsupportedError: the engine's answers have no token ids.
        InvalidMeasurementError: as in `encode_prompts`.
        HungError: no answer came in `within_s`.
    """
    api = token_api_of(endpoint)
    calls = [
        api.complete(endpoint.model, token_ids, settings_of_text)
        for token_ids, settings_of_text in zip(texts, settings, strict=True)
    ]
    return _post_all(endpoint, calls, in_flight, within_s)


def score(
    endpoint: Endpoint, questions: Sequence[tuple[Sequence[int], Sequence[int]]]
) -> tuple[tuple[float, ...], ...]:
    """Return how likely candidates are to follow each text, see `TokenApi.score`.

    The texts are sent one at a time.

    Args:
        endpoint: the server.
        questions: each text and its candidates, in token ids.

    Raises:
        UnsupportedError: the engine's answers have no token ids.
        InvalidMeasurementError, HungError: as in `encode_prompts`.
    """
    api = token_api_of(endpoint)
    calls = [
        api.score(endpoint.model, token_ids, candidates) for token_ids, candidates in questions
    ]
    return _post_all(endpoint, calls, in_flight=1)


def _post_all(
    endpoint: Endpoint, calls: Sequence[Call[AnswerT]], in_flight: int, within_s: float = _TIMEOUT_S
) -> tuple[AnswerT, ...]:
    """Return the answers in the order of the calls.

    Raises:
        InvalidMeasurementError: `HTTP_ERROR`, `SERVER_ERROR` or `ANSWER_UNREADABLE`.
        HungError: no answer came in `within_s`.
    """
    import httpx  # noqa: PLC0415 - takes long, and few commands ask a server

    async def post_all() -> list[AnswerT]:
        slots = asyncio.Semaphore(in_flight)
        heard_s = time.monotonic()
        address = endpoint.address
        client = httpx.AsyncClient(
            base_url=address.url,
            headers=address.headers(),
            trust_env=False,
            verify=trusted_certificates(address),
        )
        async with client:

            async def post(call: Call[AnswerT]) -> AnswerT:
                nonlocal heard_s
                async with slots:
                    sent_s = time.monotonic()
                    body = msgspec.json.encode(endpoint.without_refused(call.body))
                    try:
                        answer = await read(client, "POST", call.path, within_s=within_s, body=body)
                    except AnswerError as error:
                        # If other answers came meanwhile, the server doesn't hang.
                        if error.late and heard_s <= sent_s:
                            raise HungError(within_s) from error
                        raise InvalidMeasurementError("HTTP_ERROR", answer=error) from error
                    heard_s = time.monotonic()
                    if answer.status != HTTPStatus.OK:
                        quoted = quote_answer(answer.content)
                        message = f"HTTP {answer.status} from {call.path}: {quoted}"
                        raise InvalidMeasurementError("HTTP_ERROR", answer=message)
                    return call.parse(answer.content)

            return await asyncio.gather(*map(post, calls))

    return tuple(asyncio.run(post_all()))
