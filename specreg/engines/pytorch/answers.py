"""Answers: the JSON of events and of whole answers, as vLLM has it, made of the steps of a job."""

import time
import uuid
from collections.abc import Mapping

from specreg.engines.pytorch.requests import Body, ChatBody, Job, Step, Tokenizer

Json = dict[str, object]
_UNFINISHED = "\ufffd"
"""What a tokenizer says of bytes that are no character yet."""


class Answer:
    """An answer that grows step by step.

    Args:
        body: what was asked.
        job: what became of it.
        tokenizer: the model's.
        served: the model's name.
        draft_tokens: the most tokens drafted per step, 0 without speculation.
    """

    def __init__(
        self, body: Body, job: Job, tokenizer: Tokenizer, served: str, draft_tokens: int
    ) -> None:
        self._body, self._job, self._tokenizer = body, job, tokenizer
        self._is_chat = isinstance(body, ChatBody)
        self._head: Json = {
            "id": f"{'chatcmpl' if self._is_chat else 'cmpl'}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": served,
        }
        self._draft_tokens = draft_tokens
        self._steps: list[Step] = []
        self._ids: list[int] = []
        self._text = ""

    @property
    def wants_usage(self) -> bool:
        """Whether a closing event is wanted."""
        return self._body.stream_options.include_usage

    def opening(self) -> list[Json]:
        """The events before the first token."""
        if not self._is_chat:
            return []
        delta = {"role": "assistant", "content": ""}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        return [self._event(choice) | self._prompt_ids()]

    def add(self, step: Step) -> Json:
        """The event of a step."""
        first = not self._steps
        text = self._take(step)
        said: Json = {"delta": {"content": text}} if self._is_chat else {"text": text}
        prompt = self._prompt_ids() if first and not self._is_chat else {}
        ids: Json = {"token_ids": step.token_ids} if self._body.return_token_ids else {}
        ends: Json = {"finish_reason": step.finish_reason}
        logprobs = {"logprobs": self._logprobs([step])}
        return self._event({"index": 0} | said | logprobs | ends | prompt | ids)

    def closing(self) -> Json:
        """The event with the usage and the counts."""
        return self._named("chat.completion.chunk") | {"choices": []} | self._counts()

    def whole(self) -> Json:
        """The answer that isn't streamed."""
        message = {"role": "assistant", "content": self._text}
        said: Json = {"message": message} if self._is_chat else {"text": self._text}
        ids: Json = {"token_ids": self._ids} if self._body.return_token_ids else {}
        ends: Json = {"finish_reason": self._steps[-1].finish_reason}
        own = {} if self._is_chat else self._prompt_ids()
        choice = {"index": 0} | said | {"logprobs": self._logprobs(self._steps)} | ends | ids | own
        root = self._prompt_ids() if self._is_chat else {}
        return self._named("chat.completion") | {"choices": [choice]} | root | self._counts()

    def _take(self, step: Step) -> str:
        """What a step adds to the text; bytes that are no character yet wait for the next."""
        self._steps.append(step)
        self._ids.extend(step.token_ids)
        text = self._tokenizer.decode(self._ids, skip_special_tokens=True)
        if step.finish_reason is None and text.endswith(_UNFINISHED):
            return ""
        added: str = text[len(self._text) :]
        self._text = text
        return added

    def _named(self, chat: str) -> Json:
        return self._head | {"object": chat if self._is_chat else "text_completion"}

    def _event(self, choice: Json) -> Json:
        return self._named("chat.completion.chunk") | {"choices": [choice]}

    def _prompt_ids(self) -> Json:
        return {"prompt_token_ids": list(self._job.prompt)} if self._body.return_token_ids else {}

    def _counts(self) -> Json:
        prompt, completion = len(self._job.prompt), len(self._ids)
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }
        spoken = speculation_of(self._steps, self._draft_tokens) if self._draft_tokens else None
        return {"usage": usage, "metrics": {"speculative_decoding": spoken}}

    def _logprobs(self, steps: list[Step]) -> Json | None:
        """OpenAI's form for completions; tokens are named by their ids, which are unique."""
        if self._job.top is None:
            return None
        ids = [token_id for step in steps for token_id in step.token_ids]
        told = [_by_name(one) for step in steps for one in step.logprobs]
        names = [f"token_id:{token_id}" for token_id in ids]
        return {
            "tokens": names,
            "token_logprobs": [one[name] for one, name in zip(told, names, strict=True)],
            "top_logprobs": told,
        }


def speculation_of(steps: list[Step], draft_tokens: int) -> Json:
    """The counts of the steps in which something was drafted."""
    drafting = [step for step in steps if step.drafted]
    accepted = sum(step.accepted for step in drafting)
    proposed = sum(step.drafted for step in drafting)
    histogram = [0] * (draft_tokens + 1)
    for step in drafting:
        histogram[step.accepted] += 1
    return {
        "mean_acceptance_length": 1 + accepted / len(drafting) if drafting else 1.0,
        "draft_acceptance_rate": accepted / proposed if proposed else 0.0,
        "acceptance_histogram": histogram,
        "num_spec_steps": len(drafting),
        "num_accepted_draft_tokens": accepted,
        "num_draft_tokens": proposed,
        "num_spec_tokens": draft_tokens,
        "per_step_accepted": [step.accepted for step in drafting],
        "per_step_drafted": [step.drafted for step in drafting],
    }


def _by_name(logprobs: Mapping[int, float]) -> Mapping[str, float]:
    return {f"token_id:{token_id}": value for token_id, value in logprobs.items()}
