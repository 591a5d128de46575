"""Turn the counts of prompts into arrays to calculate with."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specreg.acceptance.record import NO_STEPS, Counts, PromptAcceptance, StepCounts

Column = NDArray[np.float64]
"""Of shape (prompts,): one count for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountsTable(Counts[Column]):
    """The counts of each prompt, turns added up: prompts are independent draws, turns aren't.

    Attributes:
        prompt_ids: n of them, each once; the columns are of shape (n,).
    """

    prompt_ids: tuple[str, ...]

    def only(self, prompt_ids: Iterable[str]) -> "CountsTable":
        """The rows of some of the prompts, in the order given."""
        wanted = tuple(prompt_ids)
        if wanted == self.prompt_ids:
            return self
        place = {prompt_id: row for row, prompt_id in enumerate(self.prompt_ids)}
        rows = np.array([place[prompt_id] for prompt_id in wanted], dtype=np.intp)
        return CountsTable(
            prompt_ids=wanted,
            steps=self.steps[rows],
            accepted=self.accepted[rows],
            proposed=None if self.proposed is None else self.proposed[rows],
            position_counts=tuple(column[rows] for column in self.position_counts),
        )


def counts_table(prompts: Iterable[PromptAcceptance]) -> CountsTable:
    """The table of some requests, in the order in which their prompts come up."""
    rows: dict[str, StepCounts] = {}
    for prompt in prompts:
        rows[prompt.prompt_id] = rows.get(prompt.prompt_id, NO_STEPS) + prompt.counts
    width = max((len(counts.position_counts) for counts in rows.values()), default=0)
    table = np.zeros((len(rows), 3 + width))
    for row, counts in zip(table, rows.values(), strict=True):
        drafts = (counts.accepted, counts.proposed or 0, *counts.position_counts)
        row[: 1 + len(drafts)] = (counts.steps, *drafts)
    steps, accepted, proposed, *position_counts = table.T
    known = all(counts.proposed is not None for counts in rows.values())
    return CountsTable(
        prompt_ids=tuple(rows),
        steps=steps,
        accepted=accepted,
        proposed=proposed if known else None,
        position_counts=tuple(position_counts),
    )
