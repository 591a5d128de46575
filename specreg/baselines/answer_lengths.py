"""Find the prompts whose answers became much longer or shorter.

Such answers say something else than before. One that repeats itself is long, and nearly all of its
drafts are accepted, so that a few of them outweigh a loss in all others.
"""

from dataclasses import dataclass

from specreg.baselines.prompt_counts import CountsTable

_MAX_CHANGE_FRAC = 0.5
"""By how much of its length an answer may change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthChange:
    """A prompt whose answer is of another length, in mean tokens over its answers."""

    prompt_id: str
    before_tokens: float
    now_tokens: float

    def __str__(self) -> str:
        return (
            f"{self.prompt_id}: {self.before_tokens:.0f} tokens before, {self.now_tokens:.0f} now"
        )


def changed_lengths(now: CountsTable, before: CountsTable) -> tuple[LengthChange, ...]:
    """Return the prompts whose answers changed in length by more than half.

    Args:
        now: the prompts as they are answered now.
        before: the same prompts in the same order, as they were answered before.
    """
    changes = [
        LengthChange(prompt_id=prompt_id, before_tokens=before_tokens, now_tokens=now_tokens)
        for prompt_id, before_tokens, now_tokens in zip(
            now.prompt_ids, before.answer_tokens.tolist(), now.answer_tokens.tolist(), strict=True
        )
    ]
    return tuple(
        change
        for change in changes
        if abs(change.now_tokens - change.before_tokens) > _MAX_CHANGE_FRAC * change.before_tokens
    )
