"""Counts of steps, and acceptance records made of them."""

from collections.abc import Sequence

from specreg.acceptance.record import (
    NO_STEPS,
    AcceptanceRecord,
    PromptAcceptance,
    Source,
    StepCounts,
    View,
)
from specreg.baselines.schema import StoredAcceptance, stored_acceptance

PROMPTS_MEASURED = 6
"""In the measurements and baselines below: enough to be judged."""


def counts(*histogram: int) -> StepCounts:
    """The counts of a histogram whose steps all drafted k."""
    draft_tokens = len(histogram) - 1
    return StepCounts.from_histogram(histogram, proposed=sum(histogram) * draft_tokens)


def prompt_acceptance(
    of: StepCounts, *, cut_tokens: int = 0, prompt_id: str = "chat-0"
) -> PromptAcceptance:
    """A prompt that delivered all that its steps emitted, less what was cut off."""
    return PromptAcceptance(
        prompt_id=prompt_id,
        category="chat",
        counts=of,
        completion_tokens=1 + of.accepted + of.steps - cut_tokens,
    )


def acceptance(
    of: StepCounts, source: Source = Source.VLLM_REQUEST, *, prompts: int = 1
) -> AcceptanceRecord:
    """The record of some prompts that all did the same."""
    prompt_records = [
        prompt_acceptance(of, prompt_id=f"chat-{number}") for number in range(prompts)
    ]
    return acceptance_of(prompt_records, source)


def acceptance_of(
    prompts: Sequence[PromptAcceptance], source: Source = Source.VLLM_REQUEST
) -> AcceptanceRecord:
    return AcceptanceRecord(
        source=source,
        view=View.VERIFIER,
        total=sum((prompt.counts for prompt in prompts), NO_STEPS),
        prompts=tuple(prompts),
    )


def stored(
    of: StepCounts, source: Source = Source.VLLM_REQUEST, *, prompts: int = PROMPTS_MEASURED
) -> StoredAcceptance:
    """The record of some prompts that all did the same, in the form for disk."""
    record = stored_acceptance(acceptance(of, source, prompts=prompts))
    assert record is not None
    return record
