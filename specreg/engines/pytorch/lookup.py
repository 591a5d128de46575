"""N-gram lookup: token ids in, drafted token ids out. No model, so that anybody can repeat it.

Prompt lookup decoding, as vLLM's `ngram` and the reference engine do it: what followed the text's
last tokens when they stood there before is what will follow them now.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Occurrence(StrEnum):
    """Which of several earlier places is taken."""

    FIRST = "first"
    LAST = "last"


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupRule:
    """How to look up; the defaults are what `METHODS` asks of vLLM, and what vLLM does.

    Attributes:
        longest_tokens, shortest_tokens: how many of the last tokens to look for: the longest that
            stood there before are taken. 1 ≤ shortest ≤ longest.
        occurrence: which place, where there are several (vLLM's NgramProposer: the first).
    """

    longest_tokens: int = 4
    shortest_tokens: int = 2
    occurrence: Occurrence = Occurrence.FIRST


def propose(context: Sequence[int], rule: LookupRule, draft_tokens: int) -> tuple[int, ...]:
    """What to draft after a text.

    Args:
        context: the ids of all tokens so far, prompt and answer; each below 0x110000.
        rule: how to look up.
        draft_tokens: the most to draft.

    Returns:
        At most `draft_tokens` ids: fewer where the text ends before, none where nothing was found.
    """
    # As a text, because str has a fast search; an id is a code point.
    text = "".join(map(chr, context))
    find = text.find if rule.occurrence is Occurrence.FIRST else text.rfind
    for tokens in range(min(rule.longest_tokens, len(text) - 1), rule.shortest_tokens - 1, -1):
        # Up to the last token: the text's own end is no earlier place, but may overlap with one.
        place = find(text[-tokens:], 0, len(text) - 1)
        if place >= 0:
            start = place + tokens
            return tuple(context[start : start + draft_tokens])
    return ()
