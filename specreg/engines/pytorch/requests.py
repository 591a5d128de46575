"""Requests: the body of one becomes a job, which is answered in steps."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec

from specreg.core.errors import ServerRefusedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What to answer, and how.

    Attributes:
        prompt: its ids, one at least; with the answer no more than the context.
        output_cap_tokens: the most tokens of the answer, 1 or more.
        temperature: 0 is greedy.
        seed: of its random numbers, whoever else is in the batch; None for another each time.
        ignore_eos: whether the answer goes on to the cap.
        top: how many log-probabilities to tell of each token; None for none.
    """

    prompt: Sequence[int]
    output_cap_tokens: int
    temperature: float = 0.0
    seed: int | None = None
    ignore_eos: bool = False
    top: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one step added to an answer.

    Attributes:
        token_ids: what is delivered: up to the end of the text, which is among them, or the cap.
        drafted, accepted: draft tokens; the verifier's count, so those beyond the end are in it.
        finish_reason: "stop" or "length" of the last step.
        logprobs: for each delivered token, where asked for, the natural logarithms of the
            likeliest tokens' probabilities and of its own, by id, likeliest first. Whatever the
            temperature is, they are those of temperature 1.
    """

    token_ids: tuple[int, ...]
    drafted: int
    accepted: int
    finish_reason: str | None
    logprobs: tuple[Mapping[int, float], ...] = ()


_COMPLETION_CAP_TOKENS = 16
"""OpenAI's default for completions; a chat goes on to the end of the context."""

_MOST_CHARACTERS = 200
Tokenizer = Any
"""Of transformers."""
_Positive = Annotated[int, msgspec.Meta(ge=1)]


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether an event with the usage ends the stream."""

    include_usage: bool = False


class _Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What both endpoints take. A field that isn't here is refused: it would be passed over."""

    model: str | None = None
    max_tokens: _Positive | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0)] = 1.0
    seed: Annotated[int, msgspec.Meta(ge=0)] | None = None
    ignore_eos: bool = False
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    return_token_ids: bool = False
    n: Literal[1] = 1


class Message(msgspec.Struct, frozen=True):
    """One turn of a chat."""

    role: str
    content: str


class ChatBody(_Body, frozen=True, kw_only=True):
    """The body of `/v1/chat/completions`."""

    messages: Annotated[list[Message], msgspec.Meta(min_length=1)]
    max_completion_tokens: _Positive | None = None
    chat_template_kwargs: dict[str, object] = {}

    def job(self, tokenizer: Tokenizer, context_tokens: int) -> Job:
        """What to answer.

        Raises:
            ServerRefusedError: the model's template can't make a prompt of it; or the prompt and
                the cap don't fit into the context.
        """
        prompt = self._prompt(tokenizer)
        cap = self.max_completion_tokens or self.max_tokens or context_tokens - len(prompt)
        return _job(self, prompt, cap, context_tokens, top=None)

    def _prompt(self, tokenizer: Tokenizer) -> Sequence[int]:
        render = tokenizer.apply_chat_template
        ours = sorted(self.chat_template_kwargs.keys() & inspect.signature(render).parameters)
        if ours:
            message = f"chat_template_kwargs: '{ours[0]}' is no word of a template; leave it out"
            raise ServerRefusedError(message)
        try:
            prompt: Sequence[int] = render(
                msgspec.to_builtins(self.messages),
                add_generation_prompt=True,
                return_dict=False,
                **self.chat_template_kwargs,
            )
        # A template is a program, which comes with the model and raises what it likes.
        except Exception as error:
            said = " ".join(str(error).split())[:_MOST_CHARACTERS].rstrip(".")
            message = (
                f"messages: the model's chat template makes no prompt of them,"
                f" {type(error).__name__}: {said}; change them or chat_template_kwargs, or ask"
                " /v1/completions"
            )
            raise ServerRefusedError(message) from error
        return prompt


class CompletionBody(_Body, frozen=True, kw_only=True):
    """The body of `/v1/completions`.

    Attributes:
        prompt: a text, or ids.
        logprobs: how many of the likeliest tokens to tell at each place, by id.
    """

    prompt: str | list[int]
    logprobs: Annotated[int, msgspec.Meta(ge=0)] | None = None
    return_tokens_as_token_ids: Literal[True] = True

    def job(self, tokenizer: Tokenizer, context_tokens: int) -> Job:
        """What to answer.

        Raises:
            ServerRefusedError: the prompt is empty or has unknown ids, or doesn't fit into the
                context with the cap.
        """
        prompt = tokenizer(self.prompt).input_ids if isinstance(self.prompt, str) else self.prompt
        known = len(tokenizer)
        strange = [token_id for token_id in prompt if not 0 <= token_id < known]
        if strange:
            message = f"prompt: has the id {strange[0]}, the vocabulary ends at {known - 1}"
            raise ServerRefusedError(f"{message}; ask with this model's tokens")
        cap = self.max_tokens or _COMPLETION_CAP_TOKENS
        return _job(self, prompt, cap, context_tokens, top=self.logprobs)


Body = ChatBody | CompletionBody


def parse_body(raw: bytes, kind: type[Body], served: str) -> Body:
    """The body of a request.

    Raises:
        ServerRefusedError: it can't be read, has a field that isn't known, or asks for another
            model.
    """
    try:
        body = msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        known = ", ".join(kind.__struct_fields__)
        message = f"body: {error}; the reference engine knows {known}"
        raise ServerRefusedError(message) from error
    if body.model not in {None, served}:
        message = f"model '{body.model}': isn't served here; ask for '{served}'"
        raise ServerRefusedError(message)
    return body


def _job(
    body: _Body, prompt: Sequence[int], cap_tokens: int, context_tokens: int, *, top: int | None
) -> Job:
    if not prompt or cap_tokens < 1 or len(prompt) + cap_tokens > context_tokens:
        message = (
            f"prompt: it is {len(prompt)} tokens and its answer at most {max(cap_tokens, 1)}, the"
            f" context {context_tokens}; shorten it, or lower max_tokens"
        )
        raise ServerRefusedError(message if prompt else "prompt: is empty; give a token at least")
    return Job(
        prompt=prompt,
        output_cap_tokens=cap_tokens,
        temperature=body.temperature,
        seed=body.seed,
        ignore_eos=body.ignore_eos,
        top=top,
    )
