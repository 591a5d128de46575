"""Define prompts, and the part of a reply that the next turn sends as history.

A prompt is a conversation to replay.
"""

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import msgspec

_START_OF_THOUGHT = "<think>"
END_OF_THOUGHT = "</think>"
"""The mark that ends a thought in the text of a server that doesn't separate thoughts."""
AS_IS = "as_is"
"""The name of the function of `REPLIES` that leaves a reply unchanged."""


class Prompt(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """One conversation to replay.

    Attributes:
        id: an id that is unique within the dataset.
        category: the category, by which reports group their figures.
        turns: what the user says, in order; none is empty.
        token_ids: the ids of the tokens of the prompt; a prompt has either these or turns.
    """

    id: str
    category: str
    turns: tuple[str, ...] = ()
    token_ids: tuple[int, ...] = ()


def interleaved(prompts: Iterable[Prompt]) -> tuple[Prompt, ...]:
    """Return the prompts with one of each category in turn, as long as the category has prompts.

    The first n prompts are then spread evenly over the categories. Categories are in the order in
    which they first appear, and the prompts of each category stay in their order.
    """
    by_category: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        by_category.setdefault(prompt.category, []).append(prompt)
    rounds: Iterator[tuple[Prompt | None, ...]] = itertools.zip_longest(*by_category.values())
    ordered = itertools.chain.from_iterable(rounds)
    return tuple(prompt for prompt in ordered if prompt is not None)


def prompts_sha256(prompts: Sequence[Prompt]) -> str:
    """Return a checksum of the prompts and their order, 64 hexadecimal digits."""
    return hashlib.sha256(msgspec.json.encode(list(prompts))).hexdigest()


def _without_thinking(reply: str) -> str:
    """Return the part of a reply after its last thought; empty if the thought was cut off.

    Some templates put `<think>` into the prompt, so that the reply has no mark of its thought but
    `</think>`. If the output cap cut such a thought off, the reply is taken for an answer.
    """
    _, end_of_thought, answer = reply.rpartition(END_OF_THOUGHT)
    if end_of_thought:
        return answer.lstrip()
    return "" if is_unfinished_thought(reply) else reply


def is_unfinished_thought(reply: str) -> bool:
    """Return True if a reply opens a thought in its text and never ends it."""
    return reply.lstrip().startswith(_START_OF_THOUGHT) and END_OF_THOUGHT not in reply


REPLIES: Mapping[str, Callable[[str], str]] = MappingProxyType(
    {AS_IS: lambda reply: reply, "without_thinking": _without_thinking, "stripped": str.strip}
)
"""The functions that turn a reply into history. A case names its function in `history_reply`."""


def cut_evenly(prompts: Sequence[Prompt], parts: int) -> tuple[Sequence[Prompt], ...]:
    """Cut prompts, in order, into at most `parts` parts of nearly equal size; none is empty."""
    if not prompts:
        return ()
    count = min(parts, len(prompts))
    ends = [len(prompts) * part // count for part in range(count + 1)]
    return tuple(prompts[start:end] for start, end in itertools.pairwise(ends))
