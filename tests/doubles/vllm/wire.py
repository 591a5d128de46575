"""The JSON of the answers: of what vLLM 0.32 said when recorded, all that is read. In: Steps."""

from dataclasses import dataclass, field
from typing import ClassVar

from .launch import Launch
from .steps import Chunk, Steps, likeliest, logprob, text_of

Json = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """The JSON of one answer.

    Attributes:
        key: the random part of its id.
        with_ids: whether the request wants `return_token_ids`.
        thought_tokens: how many tokens of a chat's answer are its thought.
        loses_text: whether a chunk has the text of its last token only, as some parsers leave it.
        sent_ids: the tokens streamed so far.
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
    thought_tokens: int = 0
    loses_text: bool = False
    sent_ids: list[int] = field(default_factory=list)

    thought_key: ClassVar[str] = "reasoning"
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

    def event(self, chunk: Chunk, steps: Steps, *, last: bool) -> Json:
        """The event of one chunk; the last one says why it ends."""
        shown = chunk.token_ids[-1:] if self.loses_text else chunk.token_ids
        choice = self.choice(shown, "delta") | {"index": 0, "token_ids": None}
        self.sent_ids.extend(chunk.token_ids)
        if self.with_ids:
            choice["token_ids"] = chunk.token_ids
        ends = {"finish_reason": steps.finish_reason if last else None}
        return self.head(self.event_object) | {"choices": [choice | ends]}

    def closing(self, steps: Steps, metrics: Json | None) -> list[Json]:
        """The events after the last token, where the request wants usage."""
        spoken = {"metrics": metrics} if metrics else {}
        usage = self.usage(steps.completion_tokens)
        return [self.head(self.event_object) | {"choices": []} | usage | spoken]

    def choice(self, token_ids: tuple[int, ...], part: str) -> Json:
        """The text of tokens, which are a `part` of a chat."""
        raise NotImplementedError

    def whole(self, steps: Steps, metrics: Json | None) -> Json:
        choice = self.choice(steps.token_ids, "message") | {
            "index": 0,
            "logprobs": self.logprobs(steps.token_ids),
            "finish_reason": steps.finish_reason,
            "token_ids": steps.token_ids if self.with_ids else None,
        }
        head = self.head(self.whole_object) | {"choices": [choice]}
        return head | self.usage(steps.completion_tokens) | {"metrics": metrics}

    @property
    def prompt(self) -> Json:
        """The prompt's tokens, where the request wants them."""
        return {"prompt_token_ids": self.prompt_ids if self.with_ids else None}

    def head(self, kind: str) -> Json:
        return {
            "id": f"{self.id_prefix}-{self.key}",
            "object": kind,
            "created": self.created_s,
            "model": self.model,
        }

    def logprobs(self, token_ids: tuple[int, ...]) -> Json | None:
        """How likely each token was, and the likeliest there, as `/v1/completions` says it."""
        if self.scored is None:
            return None
        names = [self._name(token) for token in token_ids]
        return {
            "token_logprobs": [logprob(0)] * len(names),
            "tokens": names,
            "top_logprobs": [self._likeliest(token, self.scored) for token in token_ids],
        }

    def _likeliest(self, token: int, count: int) -> Json:
        ranked = enumerate(likeliest(token)[:count])
        return {self._name(word): logprob(rank) for rank, word in ranked}

    def _name(self, token: int) -> str:
        return f"token_id:{token}" if self.scored_by_id else text_of((token,))

    def usage(self, completion: int) -> Json:
        prompt = len(self.prompt_ids)
        tokens = {"prompt_tokens": prompt, "total_tokens": prompt + completion}
        return {"usage": tokens | {"completion_tokens": completion}}


class ChatWire(Wire):
    """The JSON of `/v1/chat/completions`."""

    __slots__ = ()
    id_prefix = "chatcmpl"
    whole_object = "chat.completion"
    event_object = "chat.completion.chunk"

    def opening(self) -> list[Json]:
        delta = {"role": "assistant", "content": ""}
        choice = {"index": 0, "delta": delta, "finish_reason": None}
        return [self.head(self.event_object) | {"choices": [choice]}]

    def choice(self, token_ids: tuple[int, ...], part: str) -> Json:
        """A delta, or the assistant's message."""
        return {part: self.texts(token_ids)}

    def texts(self, token_ids: tuple[int, ...]) -> Json:
        """The thought and the answer of the tokens that follow those said so far."""
        if not self.thought_tokens:
            return {"content": text_of(token_ids)}
        cut = max(self.thought_tokens - len(self.sent_ids), 0)
        return {self.thought_key: text_of(token_ids[:cut]), "content": text_of(token_ids[cut:])}

    def whole(self, steps: Steps, metrics: Json | None) -> Json:
        """The answer that isn't streamed, and the prompt's tokens beside it."""
        return super().whole(steps, metrics) | self.prompt


class CompletionWire(Wire):
    """The JSON of `/v1/completions`."""

    __slots__ = ()
    id_prefix = "cmpl"
    whole_object = "text_completion"
    event_object = "text_completion"

    def choice(self, token_ids: tuple[int, ...], part: str) -> Json:
        """A text, and the prompt's tokens with it."""
        del part
        return {"text": text_of(token_ids)} | self.prompt


def metrics_of(steps: Steps, launch: Launch) -> Json | None:
    if not launch.counts:
        return None
    unused = (0,) * (launch.draft_tokens - steps.draft_tokens)
    record = {
        "acceptance_histogram": steps.histogram + unused,
        "num_draft_tokens": steps.drafted_tokens,
    }
    return {"speculative_decoding": record}
