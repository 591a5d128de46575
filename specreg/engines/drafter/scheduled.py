"""A drafter for real vLLM that is right for exactly as many tokens as its schedule says.

It knows what the target will say, from a recording without speculation, and spoils its drafts
after the scheduled number of tokens: so the acceptance is known before it is measured.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SCHEDULE = (0, 1, 2, 3)
"""Drafts to be accepted in a request's first, second, … step, over and over; `SCHEDULED_ACCEPTED`
says another one, as `1,2`."""


class Drafter:
    """vLLM's interface of a custom drafter."""

    def __init__(self, vllm_config: Any) -> None:  # noqa: ANN401 - vLLM's own
        self._draft_tokens: int = vllm_config.speculative_config.num_speculative_tokens
        self._vocabulary: int = vllm_config.model_config.get_vocab_size()
        recorded = json.loads(Path(os.environ["SCHEDULED_RECORDING"]).read_text())
        self._outputs = {tuple(prompt): output for prompt, output in recorded}
        self._lengths = {len(prompt) for prompt in self._outputs}
        said = os.environ.get("SCHEDULED_ACCEPTED")
        self._schedule = tuple(map(int, said.split(","))) if said else SCHEDULE

    def load_model(self, *_: object, **__: object) -> None:
        """Load nothing: there is no model."""

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: Sequence[int],
        token_ids_cpu: Any,  # noqa: ANN401 - an array of tokens, one row per request
        slot_mappings: object = None,
    ) -> list[list[int]]:
        """Drafts for each request that has just got a token."""
        del slot_mappings
        return [
            self._drafts(token_ids_cpu[row, : num_tokens_no_spec[row]].tolist()) if sampled else []
            for row, sampled in enumerate(sampled_token_ids)
        ]

    def _drafts(self, context: list[int]) -> list[int]:
        for length in self._lengths:
            output = self._outputs.get(tuple(context[:length]))
            if output is not None:
                done = len(context) - length
                drafts = output[done : done + self._draft_tokens]
                step = step_after(done, self._schedule)
                right = self._schedule[step % len(self._schedule)]
                spoiled = [(token + 1) % self._vocabulary for token in drafts[right:]]
                return [*drafts[:right], *spoiled]
        return []


def step_after(emitted_tokens: int, schedule: Sequence[int] = SCHEDULE) -> int:
    """How many steps a request has behind it when it has emitted so many tokens, 1 or more."""
    steps, emitted = 0, 1
    while emitted < emitted_tokens:
        emitted += schedule[steps % len(schedule)] + 1
        steps += 1
    return steps
