"""A drafter for vLLM that makes the acceptance of each step known in advance.

The first request with a prompt drafts nothing, and its answer is kept. Later requests with the same
prompt draft that answer, with wrong tokens after a scheduled number of right ones. So the target
accepts exactly the scheduled number of drafts.
"""

import itertools
import os
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

_MAX_CYCLE_STEPS = 20
"""The largest number of steps in a schedule. After its last step, a schedule starts again."""


def schedule_of(length_tokens: float, draft_tokens: int) -> tuple[int, ...]:
    """Return the number of accepted drafts in each step of a cycle, as evenly as possible.

    For an acceptance length of 2.5, the numbers are 1 and 2.

    Args:
        length_tokens: the acceptance length, which is 1 more than the mean number of accepted
            drafts. It is rounded to a fraction whose denominator is at most `_MAX_CYCLE_STEPS`.
        draft_tokens: the number of tokens that a step drafts.
    """
    # AL counts the target's own token of each step, which isn't drafted.
    accepted_tokens = min(length_tokens - 1, draft_tokens)
    accepted_per_step = Fraction(accepted_tokens).limit_denominator(_MAX_CYCLE_STEPS)
    steps = accepted_per_step.denominator
    accepted = accepted_per_step.numerator
    # Rounding the sum down at each step spreads the accepted drafts evenly over the cycle.
    totals = [step * accepted // steps for step in range(steps + 1)]
    return tuple(after - before for before, after in itertools.pairwise(totals))


class ScheduledDrafter:
    """A custom drafter with the interface that vLLM expects.

    The environment variable `SCHEDULED_ACCEPTED` has the schedule, as `1,2`.
    """

    def __init__(self, vllm_config: Any) -> None:  # noqa: ANN401 - vLLM's own
        self._draft_tokens: int = vllm_config.speculative_config.num_speculative_tokens
        self._vocabulary: int = vllm_config.model_config.get_vocab_size()

        schedule = os.environ["SCHEDULED_ACCEPTED"].split(",")
        self._schedule = tuple(map(int, schedule))

        # The longest answer so far, by the ids of its prompt.
        self._answers: dict[tuple[int, ...], list[int]] = {}

        # The length of the prompt, by the ids of the whole text so far: the prompt and its answer.
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
            sampled_token_ids: the tokens that the last step has added to each request.
            num_tokens_no_spec: the number of tokens of each request's text, without drafts.
            token_ids_cpu: the texts.
            slot_mappings: vLLM passes it, and it isn't needed.
        """
        del slot_mappings
        drafts = []
        for row, sampled in enumerate(sampled_token_ids):
            text = token_ids_cpu[row, : num_tokens_no_spec[row]].tolist()
            drafts.append(self._drafts(text, len(sampled)))
        return drafts

    def _drafts(self, token_ids: Sequence[int], new_tokens: int) -> list[int]:
        """Return the drafts after a text whose last `new_tokens` are new."""
        if not new_tokens:
            # A part of the prompt hasn't been read yet.
            return []

        # Find out how long the prompt is. vLLM doesn't say which request a text belongs to, so the
        # text of the step before is looked up. If it isn't known, it is the prompt itself. Two
        # greedy requests with the same text get the same answer and needn't be told apart.
        text = tuple(token_ids)
        text_before = text[:-new_tokens]
        prompt_tokens = self._prompt_tokens.get(text_before, len(text_before))
        self._prompt_tokens[text] = prompt_tokens

        # Keep the longest answer to the prompt.
        answer = self._answers.setdefault(text[:prompt_tokens], [])
        emitted_tokens = len(text) - prompt_tokens
        if emitted_tokens > len(answer):
            answer[:] = text[prompt_tokens:]

        # Draft how the answer goes on, with wrong tokens after those that should be accepted.
        end = emitted_tokens + self._draft_tokens
        drafts = answer[emitted_tokens:end]
        step = step_after(emitted_tokens, self._schedule)
        accepted = self._schedule[step % len(self._schedule)]

        # The next id is certainly another token than the target's own.
        spoiled = [(token_id + 1) % self._vocabulary for token_id in drafts[accepted:]]
        return [*drafts[:accepted], *spoiled]


def step_after(emitted_tokens: int, schedule: Sequence[int]) -> int:
    """Return how many steps with drafts a request takes to emit a number of tokens.

    Args:
        emitted_tokens: the number of tokens, 1 or more. The prefill emits the first one.
        schedule: the number of accepted drafts in each step of a cycle.
    """
    steps = 0
    emitted = 1
    while emitted < emitted_tokens:
        emitted += schedule[steps % len(schedule)] + 1
        steps += 1
    return steps
