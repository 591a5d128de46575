"""The oracle: the tokens of an answer in, the steps that a method must have taken to it out.

What a greedy drafter would have proposed at any place of a text follows from the text alone, so
the steps of an answer can be walked again. That they are others says that the engine's drafter or
verifier is wrong, not that the text has changed: the walk is along the engine's own text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specreg.acceptance.record import NO_STEPS, StepCounts
from specreg.engines.pytorch.lookup import LookupRule, propose


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafted:
    """What a step would draft: how many tokens, and how many of them the text goes on with."""

    proposed: int
    accepted: int


DraftsAt = Callable[[int], Drafted]
"""The place in the text where a step begins, from 0 in; what it would draft there out."""


def walk(drafts_at: DraftsAt, *, prompt_tokens: int, output_tokens: int, width: int) -> StepCounts:
    """The steps of an answer, counted as the verifier does: drafts beyond its end count too.

    The prefill emits the first token; each step emits what it accepts and one more. A step in
    which nothing is drafted counts for nothing, and emits its one token.

    Args:
        drafts_at: what would be drafted.
        prompt_tokens: how long the prompt is.
        output_tokens: how long the answer is.
        width: the most tokens drafted per step.
    """
    counts, place, end = NO_STEPS, prompt_tokens + 1, prompt_tokens + output_tokens
    while place < end:
        drafted = drafts_at(place)
        if drafted.proposed:
            histogram = [int(drafted.accepted == one) for one in range(width + 1)]
            counts += StepCounts.from_histogram(histogram, drafted.proposed)
        place += drafted.accepted + 1
    return counts


def drafts_of_lookup(text: Sequence[int], rule: LookupRule, draft_tokens: int) -> DraftsAt:
    """What n-gram lookup drafts.

    Args:
        text: prompt and answer, and as many tokens more as a step drafts.
        rule: how to look up.
        draft_tokens: the most to draft.
    """

    def drafts_at(place: int) -> Drafted:
        drafts = propose(text[:place], rule, draft_tokens)
        return Drafted(proposed=len(drafts), accepted=common(drafts, text[place:]))

    return drafts_at


def drafts_of_model(accepted: Sequence[int], draft_tokens: int) -> DraftsAt:
    """What a drafting model drafts, which is always as many tokens.

    Args:
        accepted: by place in the text, how many of the drafts of a step that begins there are
            right, as `specreg.engines.pytorch.foreseeing` finds out.
        draft_tokens: how many are drafted.
    """
    return lambda place: Drafted(proposed=draft_tokens, accepted=accepted[place])


def common(drafts: Sequence[int], text: Sequence[int]) -> int:
    """How many tokens two texts have in common before they part."""
    for count, (draft, token) in enumerate(zip(drafts, text, strict=False)):
        if draft != token:
            return count
    return min(len(drafts), len(text))
