"""Define the requests to the reference engine.

The body of a request becomes a job, which is answered in steps. This module needs no PyTorch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec

from specreg.core.errors import ServerRefusedError
from specreg.engines.pytorch.speculation import GREEDY, Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A request whose prompt is in token ids. Prompt and answer fit into the context.

    Attributes:
        prompt: token ids, at least one.
        output_cap_tokens: the most tokens of the answer.
        sampling: how its tokens are drawn; greedily by default.
        seed: the seed of the random numbers; None for another seed each time.
        ignore_eos: True to go on after a token that ends a text.
        top_logprobs: the number of likeliest tokens to report for each delivered token; None for no
            log-probabilities.
    """

    prompt: Sequence[int]
    output_cap_tokens: int
    sampling: Sampling = GREEDY
    seed: int | None = None
    ignore_eos: bool = False
    top_logprobs: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedStep:
    """What one step of decoding added to an answer.

    Attributes:
        token_ids: the delivered tokens, up to the one that ends the text or to the cap.
        drafted: how many tokens were drafted.
        accepted: how many of them the verifier accepted, including those beyond the text's end.
        finish_reason: "stop" or "length" in the last step, otherwise None.
        logprobs: for each delivered token, if the job asks for them, the log-probabilities of the
            likeliest tokens by id, in nats, at temperature 1 whatever the job's temperature is.
        draft_ns: the time that drafting and learning took for the whole batch.
        target_ns: the time that the target's pass and verifying took for the whole batch.
    """

    token_ids: tuple[int, ...]
    drafted: int
    accepted: int
    finish_reason: str | None
    logprobs: tuple[Mapping[int, float], ...] = ()
    draft_ns: int = field(default=0, compare=False)
    target_ns: int = field(default=0, compare=False)


Tokenizer = Any
"""A tokenizer of transformers."""


class _Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields that both endpoints take. Any other field is refused instead of being ignored."""

    model: str | None = None
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0)] = 1.0
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    top_k: Annotated[int, msgspec.Meta(ge=1)] | None = None
    seed: Annotated[int, msgspec.Meta(ge=0)] | None = None
    ignore_eos: bool = False
    stream: bool = False
    # The usage is always sent, so this option has no effect.
    stream_options: dict[Literal["include_usage"], Literal[True]] = {}
    return_token_ids: Literal[True] = True


class ChatBody(_Body, frozen=True, kw_only=True):
    """The body of `/v1/chat/completions`."""

    messages: list[dict[str, str]]
    chat_template_kwargs: dict[str, object] = {}


class CompletionBody(_Body, frozen=True, kw_only=True):
    """The body of `/v1/completions`.

    Attributes:
        prompt: a text or token ids.
        logprobs: the number of likeliest tokens to report for each token, by id.
    """

    prompt: str | list[int]
    logprobs: Annotated[int, msgspec.Meta(ge=0)] | None = None
    return_tokens_as_token_ids: Literal[True] = True


RequestBody = ChatBody | CompletionBody
_COMPLETION_CAP_TOKENS = 16
"""The default of `max_tokens` in OpenAI's `/v1/completions`."""


def parse_body(raw: bytes, kind: type[RequestBody], served: str) -> RequestBody:
    """Parse the body of a request, and check that it asks for the served model.

    Raises:
        ServerRefusedError: it can't be read, has an unknown field, or asks for another model.
    """
    try:
        body = msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        fields = ", ".join(kind.__struct_fields__)
        message = f"body: {error}; the reference engine takes the fields {fields}"
        raise ServerRefusedError(message) from error

    if body.model not in {None, served}:
        message = f"model '{body.model}': isn't served here; ask for '{served}'"
        raise ServerRefusedError(message)
    return body


def build_job(body: RequestBody, tokenizer: Tokenizer, context_tokens: int) -> Job:
    """Build the job that a body asks for.

    Raises:
        ServerRefusedError: the prompt is empty or has unknown ids, or prompt and answer don't fit
            into the context.
    """
    # Turn the request into token ids, and find out how long its answer may be.
    top_logprobs = None
    if isinstance(body, ChatBody):
        prompt = tokenizer.apply_chat_template(
            body.messages,
            add_generation_prompt=True,
            return_dict=False,
            **body.chat_template_kwargs,
        )
        cap_tokens = body.max_tokens or context_tokens - len(prompt)
    else:
        prompt = body.prompt
        if isinstance(prompt, str):
            prompt = tokenizer(prompt).input_ids
        cap_tokens = body.max_tokens or _COMPLETION_CAP_TOKENS
        top_logprobs = body.logprobs

    # Refuse what the model couldn't decode, before it waits for a place in a batch.
    if not prompt:
        raise ServerRefusedError("prompt: is empty; give tokens of this model")
    unknown_ids = [token_id for token_id in prompt if not 0 <= token_id < len(tokenizer)]
    if unknown_ids:
        message = f"prompt: has the unknown id {unknown_ids[0]}; give tokens of this model"
        raise ServerRefusedError(message)
    if cap_tokens < 1 or len(prompt) + cap_tokens > context_tokens:
        message = (
            f"prompt: has {len(prompt)} tokens and its answer up to {max(cap_tokens, 1)}, but the"
            f" context has {context_tokens}; shorten the prompt, or lower max_tokens"
        )
        raise ServerRefusedError(message)

    return Job(
        prompt=prompt,
        output_cap_tokens=cap_tokens,
        sampling=Sampling(temperature=body.temperature, top_p=body.top_p, top_k=body.top_k),
        seed=body.seed,
        ignore_eos=body.ignore_eos,
        top_logprobs=top_logprobs,
    )
