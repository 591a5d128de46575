"""How vLLM is asked in ids: `return_token_ids`, and log-probabilities by id."""

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

import msgspec

from specreg.acceptance.record import StepCounts
from specreg.core.http import Count, Histogram
from specreg.engines.protocols import Ask, Form
from specreg.engines.token_api._dialect import (
    Call,
    Dialect,
    Transcript,
    Wanted,
    decode_answer,
    unreadable,
)

_CANDIDATES = 20
"""The most log-probabilities that vLLM gives unless it is told otherwise (`--max-logprobs`)."""
_COMPLETIONS = "/v1/completions"


class _Logprobs(msgspec.Struct, frozen=True):
    top_logprobs: tuple[Mapping[str, float], ...] = ()


class _Choice(msgspec.Struct, frozen=True):
    token_ids: tuple[Count, ...] | None = None
    prompt_token_ids: tuple[Count, ...] | None = None
    logprobs: _Logprobs | None = None


class _Speculation(msgspec.Struct, frozen=True):
    acceptance_histogram: Histogram
    num_draft_tokens: Count


class _Metrics(msgspec.Struct, frozen=True):
    speculative_decoding: _Speculation | None = None


class _Answer(msgspec.Struct, frozen=True):
    choices: Annotated[tuple[_Choice, ...], msgspec.Meta(min_length=1)]
    prompt_token_ids: tuple[Count, ...] | None = None
    metrics: _Metrics | None = None


class VllmDialect(Dialect):
    """vLLM, from 0.26 on."""

    name: ClassVar = "vllm"

    def encode(self, ask: Ask) -> Call:
        """Asks for a token and looks at what was asked: the reference engine has no more."""
        chat = ask.form is Form.CHAT
        template = {"chat_template_kwargs": dict(ask.chat_template_args)}
        return Call(
            path="/v1/chat/completions" if chat else _COMPLETIONS,
            body={
                "model": ask.model,
                "max_tokens": 1,
                "return_token_ids": True,
                **({"messages": ask.messages} if chat else {"prompt": ask.prompt}),
                **(template if chat and ask.chat_template_args else {}),
            },
        )

    def parse_ids(self, answer: bytes) -> tuple[int, ...]:
        """A chat says them beside its choices, a completion in them."""
        parsed = decode_answer(answer, _Answer)
        found = parsed.prompt_token_ids or parsed.choices[0].prompt_token_ids
        if not found:
            raise unreadable("no prompt_token_ids; the server must know return_token_ids", answer)
        return found

    def complete(self, model: str, ids: Sequence[int], wanted: Wanted) -> Call:
        """A completion of the ids."""
        return Call(
            path=_COMPLETIONS,
            body={
                "model": model,
                "prompt": ids,
                "max_tokens": wanted.output_cap_tokens,
                "temperature": wanted.temperature,
                "ignore_eos": wanted.ignore_eos,
                "return_token_ids": True,
                **({} if wanted.seed is None else {"seed": wanted.seed}),
            },
        )

    def parse_transcript(self, answer: bytes, prompt: Sequence[int]) -> Transcript:
        """The first choice, and the record of the answer."""
        parsed = decode_answer(answer, _Answer)
        output = parsed.choices[0].token_ids
        if not output:
            raise unreadable("no token_ids; the server must know return_token_ids", answer)
        own = parsed.metrics.speculative_decoding if parsed.metrics else None
        return Transcript(
            prompt=tuple(prompt),
            output=output,
            counts=StepCounts.from_histogram(own.acceptance_histogram, own.num_draft_tokens)
            if own
            else None,
        )

    def score(self, model: str, ids: Sequence[int], candidates: Sequence[int]) -> Call:
        """The likeliest next tokens; it can't be asked for certain ones."""
        del candidates
        return Call(
            path=_COMPLETIONS,
            body={
                "model": model,
                "prompt": ids,
                "max_tokens": 1,
                "temperature": 0.0,
                "logprobs": _CANDIDATES,
                "return_tokens_as_token_ids": True,
            },
        )

    def parse_scores(self, answer: bytes, candidates: Sequence[int]) -> tuple[float, ...]:
        """One that isn't among the likeliest is no likelier than the last of them."""
        logprobs = decode_answer(answer, _Answer).choices[0].logprobs or _Logprobs()
        top = {key: value for found in logprobs.top_logprobs[:1] for key, value in found.items()}
        if not top:
            raise unreadable("no log-probabilities; the server must know logprobs", answer)
        if not any(f"token_id:{candidate}" in top for candidate in candidates):
            raise unreadable("none of the candidates is among the likeliest", answer)
        least = min(top.values())
        return tuple(top.get(f"token_id:{candidate}", least) for candidate in candidates)


DIALECT = VllmDialect()
