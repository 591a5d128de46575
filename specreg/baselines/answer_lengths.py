"""Find the prompts whose answers became much longer or shorter.

Such an answer has a different text. If it repeats itself, it is long and nearly all of its drafts
are accepted, so a few such answers outweigh a loss in all other prompts.
"""

from dataclasses import dataclass

from specreg.baselines.prompt_counts import CountsTable

_MAX_CHANGE_FRAC = 0.5
"""A length has changed if it differs by more than this share of the earlier length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthChange:
    """A prompt whose answer changed in length.

    Attributes:
        before_tokens: the mean length of its earlier answers, in tokens.
        now_tokens: the mean length of its present answers, in tokens.
    """

    prompt_id: str
    before_tokens: float
    now_tokens: float

    def __str__(self) -> str:
        return (
            f"{self.prompt_id}: {self.before_tokens:.0f} tokens before, {self.now_tokens:.0f} now"
        )


def changed_lengths(measured: CountsTable, reference: CountsTable) -> tuple[LengthChange, ...]:
    """Return the prompts whose answers changed in length by more than half.

    Args:
        measured: the counts of the present answers.
        reference: the counts of the earlier answers, for the same prompts in the same order.
    """
    rows = zip(
        measured.prompt_ids,
        reference.answer_tokens.tolist(),
        measured.answer_tokens.tolist(),
        strict=True,
    )
    changes = []
    for prompt_id, before_tokens, now_tokens in rows:
        if abs(now_tokens - before_tokens) > _MAX_CHANGE_FRAC * before_tokens:
            change = LengthChange(
                prompt_id=prompt_id, before_tokens=before_tokens, now_tokens=now_tokens
            )
            changes.append(change)

    return tuple(changes)
