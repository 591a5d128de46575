"""Define the question to the oracle, `python -m specreg.engines.pytorch.oracle`, and its answer.

This module needs no PyTorch.
"""

import msgspec


class TokenizedText(msgspec.Struct, frozen=True, kw_only=True):
    """A text in token ids: a prompt, its answer, and a few tokens that a server adds after them.

    Those further tokens are needed because the last step may draft beyond the answer's end.

    Attributes:
        ids: all tokens.
        prompt_tokens: the number of tokens of the prompt, which comes first.
        output_tokens: the number of tokens of the answer, which comes next.
    """

    ids: tuple[int, ...]
    prompt_tokens: int
    output_tokens: int


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A request to the oracle: how likely are the texts, and which drafts would be accepted?

    Attributes:
        method: the name of the method, such as "draft_model" or "eagle3_tree". Drafts are computed
            only for methods with a draft model or a head that the oracle has; for any other method,
            only the target is run.
        target: a folder or a hub id.
        draft: a folder or a hub id; empty if the method has no draft.
        draft_tokens: how many tokens a step drafts; the depth of a tree.
        branches: the branches of a tree, as in `Tree`.
        drafted_tokens: the drafted tokens of a tree, as in `Tree`.
        dtype: the weights' number format.
        unseen_tokens: the number of a text's first tokens that the draft model never reads.
        normed: True if an MTP layer reads the target's last state after its norm.
        texts: at least one, each with as many tokens after the answer as a step drafts.
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
    texts: tuple[TokenizedText, ...]


class OracleAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The oracle's answer, with one entry per text.

    Attributes:
        accepted: for each position of the text, how many drafts of a step that begins at that
            position would be accepted, 0..draft_tokens. At the last positions, where the text is
            too short to tell, entries are missing or too low. The list is empty for a method whose
            drafts the oracle doesn't compute. For a tree, a position at which no step of the answer
            begins has 0.
        gaps_nats: the largest gap over the tokens of the answer; 0 if each is the target's
            likeliest one. A gap is the log-probability of the likeliest token minus the
            log-probability of the answer's token.
        refusal: the reason why the models can't be run; empty if they were.
    """

    accepted: tuple[tuple[int, ...], ...] = ()
    gaps_nats: tuple[float, ...] = ()
    refusal: str = ""
