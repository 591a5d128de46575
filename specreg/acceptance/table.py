"""Counts by prompt as arrays: what each prompt did in, columns to calculate with out."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from specreg.acceptance.record import PromptAcceptance

_CountT_co = TypeVar("_CountT_co", covariant=True)

Column = NDArray[np.float64]
"""Of shape (prompts,): one count for each."""


class Countable(Protocol[_CountT_co]):
    """Step counts: of one request or many as integers, or of each prompt as columns."""

    @property
    def steps(self) -> _CountT_co: ...  # noqa: D102 - see StepCounts
    @property
    def accepted(self) -> _CountT_co: ...  # noqa: D102
    @property
    def proposed(self) -> _CountT_co | None: ...  # noqa: D102
    @property
    def position_counts(self) -> tuple[_CountT_co, ...]: ...  # noqa: D102


@dataclass(frozen=True, slots=True, kw_only=True)
class CountsTable:
    """What each prompt did, its turns added up: a prompt is what is drawn anew, a turn isn't.

    Attributes:
        prompt_ids: n of them, each once.
        steps, accepted, proposed, position_counts: columns of shape (n,), see `StepCounts`.
    """

    prompt_ids: tuple[str, ...]
    steps: Column
    accepted: Column
    proposed: Column | None
    position_counts: tuple[Column, ...]

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
    return table_of((prompt.prompt_id, prompt.counts) for prompt in prompts)


def table_of(counted: Iterable[tuple[str, Countable[int]]]) -> CountsTable:
    """The table of some prompts' ids and counts; those of the same id are added up."""
    rows: dict[str, list[int]] = {}
    width, all_known = 0, True
    for prompt_id, counts in counted:
        row = [counts.steps, counts.accepted, counts.proposed or 0, *counts.position_counts]
        all_known = all_known and counts.proposed is not None
        width = max(width, len(row))
        earlier = rows.get(prompt_id)
        rows[prompt_id] = (
            row
            if earlier is None
            else [a + b for a, b in itertools.zip_longest(earlier, row, fillvalue=0)]
        )
    table = np.zeros((len(rows), max(width, 3)))
    for number, row in enumerate(rows.values()):
        table[number, : len(row)] = row
    return CountsTable(
        prompt_ids=tuple(rows),
        steps=table[:, 0],
        accepted=table[:, 1],
        proposed=table[:, 2] if all_known else None,
        position_counts=tuple(table[:, column] for column in range(3, width)),
    )
