"""Prompts, conversations to replay in texts or token ids, and what of a reply becomes history."""

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import msgspec

AS_IS = "as_is"


class Prompt(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """One conversation to replay.

    Attributes:
        id: unique within the dataset.
        turns: what the user says, in order; none empty.
        token_ids: the prompt as ids instead; either these or turns are given.
    """

    id: str
    category: str
    turns: tuple[str, ...] = ()
    token_ids: tuple[int, ...] = ()


def interleaved(prompts: Iterable[Prompt]) -> tuple[Prompt, ...]:
    """Return the prompts with their categories taken in turn, as long as each has any.

    Categories come as they first appear, and prompts of one keep their order: any first n are
    spread evenly.
    """
    by_category: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        by_category.setdefault(prompt.category, []).append(prompt)
    rounds: Iterator[tuple[Prompt | None, ...]] = itertools.zip_longest(*by_category.values())
    return tuple(prompt for one in rounds for prompt in one if prompt is not None)


def prompts_sha256(prompts: Sequence[Prompt]) -> str:
    """A checksum of the prompts and their order, 64 hexadecimal digits."""
    return hashlib.sha256(msgspec.json.encode(list(prompts))).hexdigest()


def _without_thinking(reply: str) -> str:
    """Return what comes after the last thought; nothing if the output cap cut a thought off.

    Templates that put `<think>` before the reply leave no mark of a thought that was cut off: such
    a reply is taken for an answer.
    """
    _, ended, answer = reply.rpartition("</think>")
    if ended:
        return answer.lstrip()
    return "" if is_unfinished_thought(reply) else reply


def is_unfinished_thought(reply: str) -> bool:
    """Whether a reply opens a thought and never ends it, where it comes with the text."""
    return reply.lstrip().startswith("<think>") and "</think>" not in reply


REPLIES: Mapping[str, Callable[[str], str]] = MappingProxyType(
    {AS_IS: lambda reply: reply, "without_thinking": _without_thinking, "stripped": str.strip}
)
"""By the name that a case gives as `history_reply`."""
