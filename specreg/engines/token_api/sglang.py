"""How SGLang is asked in ids: `/v1/tokenize` and `/generate`."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec

from specreg.core.http import Count
from specreg.engines.protocols import Ask, Form
from specreg.engines.protocols._openai import SpecTokensDetails
from specreg.engines.token_api._dialect import (
    Call,
    Dialect,
    Transcript,
    Wanted,
    decode_answer,
    unreadable,
)

_GENERATE = "/generate"


class _Tokens(msgspec.Struct, frozen=True):
    tokens: tuple[Count, ...]


class _MetaInfo(SpecTokensDetails, frozen=True):
    output_token_ids_logprobs: tuple[tuple[tuple[float, Count, str | None], ...], ...] = ()


class _Answer(msgspec.Struct, frozen=True):
    output_ids: Annotated[tuple[Count, ...], msgspec.Meta(min_length=1)]
    meta_info: _MetaInfo


class SglangDialect(Dialect):
    """SGLang, 0.5.13 or newer."""

    name: ClassVar = "sglang"

    def encode(self, ask: Ask) -> Call:
        """A chat through the model's template, or a text as it is."""
        template = {"chat_template_kwargs": dict(ask.chat_template_args)}
        said = {"messages": ask.messages, **(template if ask.chat_template_args else {})}
        return Call(
            path="/v1/tokenize",
            body={"model": ask.model, **(said if ask.form is Form.CHAT else {"prompt": ask.text})},
        )

    def parse_ids(self, answer: bytes) -> tuple[int, ...]:
        """All of them."""
        return decode_answer(answer, _Tokens).tokens

    def complete(self, model: str, ids: Sequence[int], wanted: Wanted) -> Call:
        """Its own endpoint, which knows one model."""
        del model
        return Call(
            path=_GENERATE,
            body={
                "input_ids": ids,
                "sampling_params": {
                    "max_new_tokens": wanted.output_cap_tokens,
                    "temperature": wanted.temperature,
                    "ignore_eos": wanted.ignore_eos,
                    **({} if wanted.seed is None else {"sampling_seed": wanted.seed}),
                },
            },
        )

    def parse_transcript(self, answer: bytes, prompt: Sequence[int]) -> Transcript:
        """The ids, and the record of the answer."""
        parsed = decode_answer(answer, _Answer)
        return Transcript(
            prompt=tuple(prompt), output=parsed.output_ids, counts=parsed.meta_info.counts
        )

    def score(self, model: str, ids: Sequence[int], candidates: Sequence[int]) -> Call:
        """The candidates themselves."""
        del model
        return Call(
            path=_GENERATE,
            body={
                "input_ids": ids,
                "sampling_params": {"max_new_tokens": 1, "temperature": 0.0},
                "return_logprob": True,
                "token_ids_logprob": candidates,
            },
        )

    def parse_scores(self, answer: bytes, candidates: Sequence[int]) -> tuple[float, ...]:
        """By candidate."""
        found = decode_answer(answer, _Answer).meta_info.output_token_ids_logprobs
        scores = {token: score for score, token, _ in found[0]} if found else {}
        for candidate in candidates:
            if candidate not in scores:
                raise unreadable(f"no log-probability of token {candidate}", answer)
        return tuple(scores[candidate] for candidate in candidates)


DIALECT = SglangDialect()
