"""The JSON of the answers, key by key as recorded from vLLM 0.32. In: Steps. Out: bodies."""

import itertools
from dataclasses import dataclass
from typing import ClassVar

from .launch import Launch
from .steps import Chunk, Steps, likeliest, logprob, text_of

Json = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """The JSON of one answer.

    Attributes:
        key: the random part of its id.
        created_s: seconds since the epoch.
        model: the served name.
        prompt_ids: the prompt's tokens.
        with_ids: whether the request wants `return_token_ids`.
        scored: how many log-probabilities it wants of each token, None for none.
        scored_by_id: whether their tokens are to be named by id.
    """

    key: str
    created_s: int
    model: str
    prompt_ids: tuple[int, ...]
    with_ids: bool
    scored: int | None = None
    scored_by_id: bool = False

    id_prefix: ClassVar[str]
    whole_object: ClassVar[str]
    event_object: ClassVar[str]
    tail: ClassVar[bytes] = b"\n\n"
    """What ends an event."""
    done: ClassVar[tuple[bytes, ...]] = (b"[DONE]",)
    """What ends a stream."""

    def opening(self) -> list[Json]:
        """The events before the first token."""
        return []

    def event(self, chunk: Chunk, steps: Steps, *, first: bool, last: bool) -> Json:
        """The event of one chunk."""
        raise NotImplementedError

    def closing(self, steps: Steps, metrics: Json | None) -> list[Json]:
        """The events after the last token, where the request wants usage."""
        return [self.final_event(steps, metrics)]

    def message(self, steps: Steps) -> Json:
        """The choice of an answer that isn't streamed, without what all choices have."""
        raise NotImplementedError

    def after(self) -> Json:
        """What follows the usage of an answer that isn't streamed."""
        raise NotImplementedError

    def final_event(self, steps: Steps, metrics: Json | None) -> Json:
        """The event with the usage."""
        spoken = {"metrics": metrics} if metrics else {}
        head = self.head(self.event_object)
        return head | {"choices": []} | self._usage(steps) | _FINGERPRINT | spoken

    def whole(self, steps: Steps, metrics: Json | None) -> Json:
        """The answer that isn't streamed."""
        scores = {"logprobs": self.logprobs(steps.token_ids)}
        ends: Json = {"finish_reason": steps.finish_reason, "stop_reason": None}
        ids = {"token_ids": self.ids(steps.token_ids), "routed_experts": None}
        choice = {"index": 0} | self.message(steps) | scores | ends | ids
        usage = self._usage(steps, prompt_tokens_details=None, completion_tokens_details=None)
        head = self.head(self.whole_object) | {"choices": [choice], "service_tier": None}
        return head | _FINGERPRINT | usage | self.after() | {"metrics": metrics}

    def head(self, kind: str) -> Json:
        """What every body begins with."""
        return {
            "id": f"{self.id_prefix}-{self.key}",
            "object": kind,
            "created": self.created_s,
            "model": self.model,
        }

    def ids(self, token_ids: tuple[int, ...]) -> tuple[int, ...] | None:
        """The ids, where the request wants them."""
        return token_ids if self.with_ids else None

    def logprobs(self, token_ids: tuple[int, ...]) -> Json | None:
        """How likely each token was, and the likeliest there, as `/v1/completions` says it."""
        if self.scored is None:
            return None
        names = [self._name(token) for token in token_ids]
        return {
            "text_offset": list(itertools.accumulate(map(len, names[:-1]), initial=0)),
            "token_logprobs": [logprob(0)] * len(names),
            "tokens": names,
            "top_logprobs": [self._likeliest(token, self.scored) for token in token_ids],
        }

    def _likeliest(self, token: int, count: int) -> Json:
        ranked = enumerate(likeliest(token)[:count])
        return {self._name(other): logprob(rank) for rank, other in ranked}

    def _name(self, token: int) -> str:
        return f"token_id:{token}" if self.scored_by_id else text_of((token,))

    def _usage(self, steps: Steps, **details: None) -> Json:
        prompt, completion = len(self.prompt_ids), steps.completion_tokens
        tokens = {"prompt_tokens": prompt, "total_tokens": prompt + completion}
        return {"usage": tokens | {"completion_tokens": completion} | details}


class ChatWire(Wire):
    """The JSON of `/v1/chat/completions`."""

    __slots__ = ()
    id_prefix = "chatcmpl"
    whole_object = "chat.completion"
    event_object = "chat.completion.chunk"

    def opening(self) -> list[Json]:
        """An empty chunk that names the role and, where wanted, the prompt's tokens."""
        delta = {"role": "assistant", "content": ""}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        prompt = {"prompt_token_ids": self.ids(self.prompt_ids), "prompt_text": None}
        return [self.head(self.event_object) | {"choices": [choice]} | prompt]

    def event(self, chunk: Chunk, steps: Steps, *, first: bool, last: bool) -> Json:  # noqa: ARG002
        """A content delta; the last one says why it ends."""
        choice: Json = {"index": 0, "delta": {"content": chunk.text}, "logprobs": None}
        ends: Json = {"finish_reason": None}
        if last:
            ends = {"finish_reason": steps.finish_reason, "stop_reason": None}
        ids = {"token_ids": self.ids(chunk.token_ids)}
        return self.head(self.event_object) | {"choices": [choice | ends | ids]}

    def message(self, steps: Steps) -> Json:
        """The assistant's message."""
        absent = ("refusal", "annotations", "audio", "function_call", "reasoning")
        message = {"role": "assistant", "content": steps.text} | dict.fromkeys(absent)
        return {"message": message}

    def after(self) -> Json:
        """The prompt's tokens, where wanted."""
        absent = ("prompt_logprobs", "prompt_token_ids", "prompt_text", *_TRANSFERS)
        return dict.fromkeys(absent) | {"prompt_token_ids": self.ids(self.prompt_ids)}


class CompletionWire(Wire):
    """The JSON of `/v1/completions`."""

    __slots__ = ()
    id_prefix = "cmpl"
    whole_object = "text_completion"
    event_object = "text_completion"

    def event(self, chunk: Chunk, steps: Steps, *, first: bool, last: bool) -> Json:
        """A piece of text; the first one holds the prompt's tokens, the last why it ends."""
        choice = {
            "index": 0,
            "text": chunk.text,
            "logprobs": None,
            "finish_reason": steps.finish_reason if last else None,
            "stop_reason": None,
            "prompt_token_ids": self.ids(self.prompt_ids) if first else None,
            "token_ids": self.ids(chunk.token_ids),
        }
        return self.head(self.event_object) | {"choices": [choice]}

    def message(self, steps: Steps) -> Json:
        """The text and the prompt's tokens."""
        prompt = self.ids(self.prompt_ids)
        return {"text": steps.text, "prompt_logprobs": None, "prompt_token_ids": prompt}

    def after(self) -> Json:
        """Nothing of its own."""
        return dict.fromkeys(_TRANSFERS)


_TRANSFERS = ("kv_transfer_params", "ec_transfer_params")
_FINGERPRINT: Json = {"system_fingerprint": "vllm-99.0+scripted"}


def metrics_of(steps: Steps, launch: Launch) -> Json | None:
    """The object `metrics` of an answer; as in vLLM, 0 steps give 1.0 and 0.0."""
    if not launch.counts:
        return None
    unused = (0,) * (launch.draft_tokens - steps.draft_tokens)
    record = {
        "mean_acceptance_length": steps.acceptance_length if steps.accepted else 1.0,
        "draft_acceptance_rate": steps.acceptance_rate if steps.accepted else 0.0,
        "acceptance_histogram": steps.histogram + unused,
        "num_spec_steps": steps.verify_steps,
        "num_accepted_draft_tokens": steps.accepted_tokens,
        "num_draft_tokens": steps.drafted_tokens,
        "num_spec_tokens": launch.draft_tokens,
    }
    return {"speculative_decoding": record}
