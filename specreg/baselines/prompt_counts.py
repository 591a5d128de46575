"""Tabulate what each prompt did, so that two sides can be compared prompt by prompt."""

import itertools
import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from specreg.acceptance.record import NO_STEPS, Counts, PromptAcceptance, StepCounts
from specreg.stats.intervals import Column


@dataclass(frozen=True, slots=True, kw_only=True)
class CountsTable(Counts[Column]):
    """The counts of each prompt: for each of its turns the mean over its answers, added up.

    Prompts are independent draws; their turns, and the answers of several launches, are not. Means
    are taken so that a prompt that was answered more often weighs no more than the others.

    All columns have the shape (n,), and `prompt_ids` has n different ids.

    Attributes:
        answer_tokens: how many tokens the answers have.
    """

    prompt_ids: tuple[str, ...]
    answer_tokens: Column

    def without(self, prompt_ids: Container[str]) -> "CountsTable":
        """Return the table without some prompts."""
        kept = np.array([prompt_id not in prompt_ids for prompt_id in self.prompt_ids], np.bool_)
        return CountsTable(
            prompt_ids=tuple(itertools.compress(self.prompt_ids, kept)),
            answer_tokens=self.answer_tokens[kept],
            steps=self.steps[kept],
            accepted=self.accepted[kept],
            proposed=None if self.proposed is None else self.proposed[kept],
            position_counts=tuple(column[kept] for column in self.position_counts),
        )


@dataclass(slots=True)
class _TurnAnswers:
    """The answers to one turn of a prompt: the sums over them, and how many there are."""

    counts: StepCounts = NO_STEPS
    tokens: int = 0
    answers: int = 0


_TurnsByPrompt = Mapping[str, Mapping[int, _TurnAnswers]]


def common_tables(*sides: Iterable[PromptAcceptance]) -> Sequence[CountsTable]:
    """Tabulate the prompts that all sides have, in the order of the first side.

    Args:
        sides: the answers of each side, in all its launches.

    Returns:
        One table for each side.
    """
    turns_by_side = [_turns_by_prompt(answers) for answers in sides]
    if not turns_by_side:
        return []
    common_ids = tuple(
        prompt_id
        for prompt_id in turns_by_side[0]
        if all(prompt_id in turns_by_prompt for turns_by_prompt in turns_by_side)
    )
    return [_table(common_ids, turns_by_prompt) for turns_by_prompt in turns_by_side]


def _turns_by_prompt(answers: Iterable[PromptAcceptance]) -> _TurnsByPrompt:
    turns_by_prompt: dict[str, dict[int, _TurnAnswers]] = {}
    for answer in answers:
        turns = turns_by_prompt.setdefault(answer.prompt_id, {})
        turn = turns.setdefault(answer.turn, _TurnAnswers())
        turn.counts += answer.counts
        turn.tokens += answer.completion_tokens
        turn.answers += 1
    return turns_by_prompt


def _table(prompt_ids: tuple[str, ...], turns_by_prompt: _TurnsByPrompt) -> CountsTable:
    rows = [tuple(turns_by_prompt[prompt_id].values()) for prompt_id in prompt_ids]
    turns = [turn for row in rows for turn in row]
    depth = max((len(turn.counts.position_counts) for turn in turns), default=0)

    def column(sum_of: Callable[[_TurnAnswers], int]) -> Column:
        means = [math.fsum(sum_of(turn) / turn.answers for turn in row) for row in rows]
        return np.array(means, np.float64)

    def position_column(index: int) -> Column:
        return column(lambda turn: sum(turn.counts.position_counts[index : index + 1]))

    proposed: Column | None = None
    if all(turn.counts.proposed is not None for turn in turns):
        proposed = column(lambda turn: turn.counts.proposed or 0)
    return CountsTable(
        prompt_ids=prompt_ids,
        answer_tokens=column(lambda turn: turn.tokens),
        steps=column(lambda turn: turn.counts.steps),
        accepted=column(lambda turn: turn.counts.accepted),
        proposed=proposed,
        position_counts=tuple(map(position_column, range(depth))),
    )
