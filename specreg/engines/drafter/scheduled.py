"""A drafter for real vLLM that is right for exactly as many tokens as its schedule says.

It knows what the target will say, from the first time that a prompt was asked, in which it drafts
nothing; and spoils its drafts after the scheduled number of tokens. So the acceptance is known
before it is measured.
"""

import os
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

_LONGEST_CYCLE = 20


def schedule_of(length_tokens: float, draft_tokens: int) -> tuple[int, ...]:
    """The drafts to accept in each step, over and over, as evenly as can be: 2.5 is 1, 2.

    Args:
        length_tokens: 1 + A / S, of which the nearest twentieth is taken or something better.
        draft_tokens: k.
    """
    share = Fraction(min(length_tokens - 1, draft_tokens)).limit_denominator(_LONGEST_CYCLE)
    above, below = share.numerator, share.denominator
    return tuple((step + 1) * above // below - step * above // below for step in range(below))


class Drafter:
    """vLLM's interface of a custom drafter; `SCHEDULED_ACCEPTED` is the schedule, as `1,2`."""

    def __init__(self, vllm_config: Any) -> None:  # noqa: ANN401 - vLLM's own
        self._draft_tokens: int = vllm_config.speculative_config.num_speculative_tokens
        self._vocabulary: int = vllm_config.model_config.get_vocab_size()
        self._schedule = tuple(map(int, os.environ["SCHEDULED_ACCEPTED"].split(",")))
        self._answers: dict[tuple[int, ...], list[int]] = {}  # by prompt
        self._prompt_tokens: dict[tuple[int, ...], int] = {}  # by prompt and answer so far

    def load_model(self, *_: object, **__: object) -> None:
        """Load nothing: there is no model."""

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: Sequence[int],
        token_ids_cpu: Any,  # noqa: ANN401 - an array of tokens, one row per request
        slot_mappings: object = None,
    ) -> list[list[int]]:
        """Drafts for each request that has just got tokens."""
        del slot_mappings
        return [
            self._drafts(token_ids_cpu[row, : num_tokens_no_spec[row]].tolist(), len(sampled))
            for row, sampled in enumerate(sampled_token_ids)
        ]

    def _drafts(self, tokens: Sequence[int], new_tokens: int) -> list[int]:
        if not new_tokens:  # the prompt hasn't been read to its end
            return []
        text = tuple(tokens)
        before = text[:-new_tokens]
        # Greedy requests that have said the same of the same prompt are alike.
        start = self._prompt_tokens[text] = self._prompt_tokens.get(before, len(before))
        answer, done = self._answers.setdefault(text[:start], []), len(text) - start
        if done > len(answer):
            answer[:] = text[start:]
        drafts = answer[done : done + self._draft_tokens]
        right = self._schedule[step_after(done, self._schedule) % len(self._schedule)]
        spoiled = [(token + 1) % self._vocabulary for token in drafts[right:]]
        return [*drafts[:right], *spoiled]


def step_after(emitted_tokens: int, schedule: Sequence[int]) -> int:
    """How many steps a request has behind it when it has emitted so many tokens, 1 or more."""
    steps, emitted = 0, 1
    while emitted < emitted_tokens:
        emitted += schedule[steps % len(schedule)] + 1
        steps += 1
    return steps
