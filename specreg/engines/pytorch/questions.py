"""Questions to `python -m specreg.engines.pytorch.oracle` and its answers, as JSON."""

import msgspec


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
        method: "draft_model" or "eagle3"; of any other, the target alone is asked.
        target, draft: folders or hub ids; an empty one where the method has no draft.
        draft_tokens: how many tokens a step drafts.
        dtype: the weights' number format.
        unseen_tokens: how many of a text's first tokens the draft model is never shown.
        texts: one at least, each with as many tokens after the answer as a step drafts.
    """

    method: str
    target: str
    draft: str
    draft_tokens: int
    dtype: str
    unseen_tokens: int = 0
    texts: tuple[Text, ...]


class OracleAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer, text by text.

    Attributes:
        accepted: by place in the text, how many drafts of a step that begins there are right,
            0..draft_tokens; nothing where the text ends too soon to tell, or nothing was asked.
        gaps_nats: how much less likely than the target's own choice the least fitting token of the
            answer is, 0 for a greedy text.
        refusal: why the models can't be asked; empty where they were.
    """

    accepted: tuple[tuple[int, ...], ...] = ()
    gaps_nats: tuple[float, ...] = ()
    refusal: str = ""
