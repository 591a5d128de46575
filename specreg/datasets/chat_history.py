"""Replies: what a model said in, what of it enters the history of the next turn out."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

AS_IS = "as_is"
_BEGIN, _END = "<think>", "</think>"


def _without_thinking(reply: str) -> str:
    """What comes after the last thought; of a thought that the output cap cut off, nothing.

    Templates that put `<think>` before the reply leave no mark of a thought that was cut off: such
    a reply is taken for an answer.
    """
    _, ended, answer = reply.rpartition(_END)
    if ended:
        return answer.lstrip()
    return "" if reply.lstrip().startswith(_BEGIN) else reply


REPLIES: Mapping[str, Callable[[str], str]] = MappingProxyType(
    {AS_IS: lambda reply: reply, "without_thinking": _without_thinking, "stripped": str.strip}
)
"""By the name that a case gives as `history_reply`."""
