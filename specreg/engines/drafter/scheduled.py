"""A drafter for real vLLM of whose drafts exactly the scheduled number is accepted.

The first request with a prompt drafts nothing, and its answer is kept. Later requests draft that
answer, spoiled after the scheduled number of tokens. So the acceptance is known before it is
measured.
"""

import itertools
import os
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

_MAX_CYCLE_STEPS = 20
"""The most steps after which a schedule begins again."""


def schedule_of(length_tokens: float, draft_tokens: int) -> tuple[int, ...]:
    """Return how many drafts each step of a cycle accepts, as evenly as possible: 1, 2 for 2.5.

    Args:
        length_tokens: the acceptance length 1 + A / S, rounded to a fraction whose denominator is
            at most `_MAX_CYCLE_STEPS`.
        draft_tokens: how many tokens a step drafts.
    """
    accepted_tokens = min(length_tokens - 1, draft_tokens)
    accepted_a_step = Fraction(accepted_tokens).limit_denominator(_MAX_CYCLE_STEPS)
    steps = accepted_a_step.denominator
    accepted = accepted_a_step.numerator
    totals = [step * accepted // steps for step in range(steps + 1)]
    return tuple(after - before for before, after in itertools.pairwise(totals))


class ScheduledDrafter:
    """A custom drafter with the interface that vLLM expects.

    The environment variable `SCHEDULED_ACCEPTED` has the schedule, as `1,2`.
    """

    def __init__(self, vllm_config: Any) -> None:  # noqa: ANN401 - vLLM's own
        self._draft_tokens: int = vllm_config.speculative_config.num_speculative_tokens
        self._vocabulary: int = vllm_config.model_config.get_vocab_size()
        self._schedule = tuple(map(int, os.environ["SCHEDULED_ACCEPTED"].split(",")))
        # The answers so far by prompt, and the length of the prompt by prompt and answer so far.
        self._answers: dict[tuple[int, ...], list[int]] = {}
        self._prompt_tokens: dict[tuple[int, ...], int] = {}

    def load_model(self, *_: object, **__: object) -> None:
        """Load nothing, because there is no model."""

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: Sequence[int],
        token_ids_cpu: Any,  # noqa: ANN401 - an array of tokens, one row per request
        slot_mappings: object = None,
    ) -> list[list[int]]:
        """Return the drafts of each request of the batch.

        Args:
            sampled_token_ids: the tokens that each request has just got.
            num_tokens_no_spec: the tokens of each request's text, without drafts.
            token_ids_cpu: the texts.
            slot_mappings: not needed.
        """
        del slot_mappings
        drafts = []
        for row, sampled in enumerate(sampled_token_ids):
            text = token_ids_cpu[row, : num_tokens_no_spec[row]].tolist()
            drafts.append(self._drafts(text, len(sampled)))
        return drafts

    def _drafts(self, token_ids: Sequence[int], new_tokens: int) -> list[int]:
        """Return the drafts after a text whose last `new_tokens` are new."""
        if not new_tokens:  # the prompt hasn't been read to its end
            return []
        text = tuple(token_ids)
        text_before = text[:-new_tokens]
        # The length of the prompt is that of the same request a step before. A request that hasn't
        # been seen has generated nothing before. Greedy requests with equal texts are the same.
        prompt_tokens = self._prompt_tokens.get(text_before, len(text_before))
        self._prompt_tokens[text] = prompt_tokens
        answer = self._answers.setdefault(text[:prompt_tokens], [])
        emitted_tokens = len(text) - prompt_tokens
        if emitted_tokens > len(answer):
            answer[:] = text[prompt_tokens:]
        drafts = answer[emitted_tokens : emitted_tokens + self._draft_tokens]
        step = step_after(emitted_tokens, self._schedule)
        accepted = self._schedule[step % len(self._schedule)]
        spoiled = [(token_id + 1) % self._vocabulary for token_id in drafts[accepted:]]
        return [*drafts[:accepted], *spoiled]


def step_after(emitted_tokens: int, schedule: Sequence[int]) -> int:
    """Return after how many steps with drafts a request has emitted so many tokens, 1 or more."""
    steps = 0
    emitted = 1
    while emitted < emitted_tokens:
        emitted += schedule[steps % len(schedule)] + 1
        steps += 1
    return steps
