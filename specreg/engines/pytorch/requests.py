"""What is asked of the reference engine and its oracle, and answered; without PyTorch.

The body of a request becomes a job, which is answered in steps. A question goes to
`python -m specreg.engines.pytorch.oracle`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec

from specreg.core.errors import ServerRefusedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What to answer, and how: as in the body of a request, with the prompt's ids.

    Prompt and answer fit into the context; `top` log-probabilities are told of each token.
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
        logprobs: at each delivered token, where asked for, those of the likeliest by id, in nats,
            at temperature 1 whatever the job's.
        draft_ns, target_ns: how long drafting took, learning included, and the target's reading and
            verifying; of the whole batch.
    """

    token_ids: tuple[int, ...]
    drafted: int
    accepted: int
    finish_reason: str | None
    logprobs: tuple[Mapping[int, float], ...] = ()
    draft_ns: int = field(default=0, compare=False)
    target_ns: int = field(default=0, compare=False)


Tokenizer = Any
"""Of transformers."""


class _Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What both endpoints take. A field that isn't here is refused: it would be passed over."""

    model: str | None = None
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0)] = 1.0
    seed: Annotated[int, msgspec.Meta(ge=0)] | None = None
    ignore_eos: bool = False
    stream: bool = False
    stream_options: dict[Literal["include_usage"], Literal[True]] = {}  # always there
    return_token_ids: Literal[True] = True


class ChatBody(_Body, frozen=True, kw_only=True):
    """The body of `/v1/chat/completions`."""

    messages: list[dict[str, str]]
    chat_template_kwargs: dict[str, object] = {}


class CompletionBody(_Body, frozen=True, kw_only=True):
    """The body of `/v1/completions`: a text or ids; `logprobs` of so many at each place, by id."""

    prompt: str | list[int]
    logprobs: Annotated[int, msgspec.Meta(ge=0)] | None = None
    return_tokens_as_token_ids: Literal[True] = True


Body = ChatBody | CompletionBody


def parse_body(raw: bytes, kind: type[Body], served: str) -> Body:
    """Parse the body of a request.

    Raises:
        ServerRefusedError: it can't be read, has a field that isn't known, or asks for another
            model.
    """
    try:
        body = msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        message = f"body: {error}; the reference engine knows {kind.__struct_fields__}"
        raise ServerRefusedError(message) from error
    if body.model not in {None, served}:
        message = f"model '{body.model}': isn't served here; ask for '{served}'"
        raise ServerRefusedError(message)
    return body


def job_of(body: Body, tokenizer: Tokenizer, context_tokens: int) -> Job:
    """What to answer to a body.

    Raises:
        ServerRefusedError: the prompt is empty or has unknown ids, or doesn't fit into the context
            with the cap.
    """
    if isinstance(body, ChatBody):
        prompt = tokenizer.apply_chat_template(
            body.messages,
            add_generation_prompt=True,
            return_dict=False,
            **body.chat_template_kwargs,
        )
        cap_tokens, top = body.max_tokens or context_tokens - len(prompt), None
    else:
        prompt = tokenizer(body.prompt).input_ids if isinstance(body.prompt, str) else body.prompt
        cap_tokens, top = body.max_tokens or 16, body.logprobs  # 16 is OpenAI's default
    strange = [token_id for token_id in prompt if not 0 <= token_id < len(tokenizer)]
    if strange or not prompt:
        what = f"has the unknown id {strange[0]}" if strange else "is empty"
        raise ServerRefusedError(f"prompt: {what}; give tokens of this model")
    if cap_tokens < 1 or len(prompt) + cap_tokens > context_tokens:
        message = (
            f"prompt: it is {len(prompt)} tokens and its answer at most {max(cap_tokens, 1)}, the"
            f" context {context_tokens}; shorten it, or lower max_tokens"
        )
        raise ServerRefusedError(message)
    return Job(
        prompt=prompt,
        output_cap_tokens=cap_tokens,
        temperature=body.temperature,
        seed=body.seed,
        ignore_eos=body.ignore_eos,
        top=top,
    )


class Text(msgspec.Struct, frozen=True, kw_only=True):
    """A text in ids: prompt, answer, and what another server says after them.

    The first `prompt_tokens` are the prompt, the next `output_tokens` the answer.
    """

    ids: tuple[int, ...]
    prompt_tokens: int
    output_tokens: int


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What would the target have said, and a greedy drafter have got right?

    Attributes:
        method: "draft_model", "eagle", "eagle3", "medusa", "mtp" or "dflash", or one of the first
            three as a tree ("draft_model_tree"); of any other, the target alone is asked.
        target, draft: folders or hub ids; an empty one where the method has no draft.
        draft_tokens: how many tokens a step drafts; of a tree, its depth.
        branches, drafted_tokens: of a tree, as `Tree` has them.
        dtype: the weights' number format.
        unseen_tokens: how many of a text's first tokens the draft model is never shown.
        normed: whether an MTP layer reads the target's last state after its norm.
        texts: one at least, each with as many tokens after the answer as a step drafts.
    """

    method: str
    target: str
    draft: str
    draft_tokens: int
    branches: int = 0
    drafted_tokens: int = 0
    dtype: str
    unseen_tokens: int = 0
    normed: bool = False
    texts: tuple[Text, ...]


class OracleAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer, text by text.

    Attributes:
        accepted: by place in the text, how many drafts of a step that begins there are right,
            0..draft_tokens; nothing where the text ends too soon to tell, or nothing was asked. Of
            a tree, 0 where none of the answer's steps begins.
        gaps_nats: how much less likely than the target's own choice the least fitting token of the
            answer is, 0 for a greedy text.
        refusal: why the models can't be asked; empty where they were.
    """

    accepted: tuple[tuple[int, ...], ...] = ()
    gaps_nats: tuple[float, ...] = ()
    refusal: str = ""
