"""What is asked of `python -m specreg.reference.foreseeing`, and its answer: JSON both ways."""

import msgspec


class Text(msgspec.Struct, frozen=True, kw_only=True):
    """A text in ids: `prompt_tokens` of them are the prompt."""

    ids: tuple[int, ...]
    prompt_tokens: int


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What a greedy drafter would have got right.

    Attributes:
        method: "draft_model" or "eagle3".
        target, draft: folders or hub ids.
        draft_tokens: how many tokens a step drafts.
        dtype: the weights' number format.
        device: as PyTorch calls it.
        unseen_tokens: how many of a text's first tokens the draft model is never shown.
        texts: prompt, answer, and as many tokens more as a step drafts.
    """

    method: str
    target: str
    draft: str
    draft_tokens: int
    dtype: str
    device: str = "cpu"
    unseen_tokens: int = 0
    texts: tuple[Text, ...]


class Foreseen(msgspec.Struct, frozen=True, kw_only=True):
    """The answer. `accepted`: by text and place in it, how many drafts are right, 0..draft_tokens.

    A place is where the first drafted token goes; before the second token of the answer, and where
    the text ends too soon to tell, there is a 0.
    """

    accepted: tuple[tuple[int, ...], ...]
