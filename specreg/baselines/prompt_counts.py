"""Tabulate what each prompt did, so that two sides can be compared prompt by prompt."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from specreg.acceptance.record import (
    NO_STEPS,
    AcceptanceRecord,
    Counts,
    PromptAcceptance,
    StepCounts,
)
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


def answers_in_common(
    *sides: Sequence[AcceptanceRecord],
) -> tuple[tuple[PromptAcceptance, ...], ...]:
    """Return the answers of each side, in the finest parts that are known of all sides.

    That is each request; but if a side knows only what the requests of a round did together, those
    of such a round stand as one answer on all sides, which is named after its prompts.

    Args:
        sides: the records of the launches of each side.
    """
    records = list(itertools.chain.from_iterable(sides))
    rounds = dict.fromkeys(
        round_acceptance.prompt_ids for record in records for round_acceptance in record.rounds
    )
    if not rounds:
        return tuple(
            tuple(itertools.chain.from_iterable(record.prompts for record in side))
            for side in sides
        )
    return tuple(
        tuple(itertools.chain.from_iterable(_in_rounds(record, rounds) for record in side))
        for side in sides
    )


def _in_rounds(
    record: AcceptanceRecord, rounds: Iterable[tuple[str, ...]]
) -> Iterator[PromptAcceptance]:
    """Yield the answers of a record under the names of rounds; those of single requests as turns.

    A round of which the record lacks a prompt is left out.
    """
    for round_acceptance in record.rounds:
        yield PromptAcceptance(
            prompt_id=_round_name(round_acceptance.prompt_ids),
            category="",
            counts=round_acceptance.counts,
            completion_tokens=round_acceptance.completion_tokens,
        )
    answers_by_prompt: dict[str, list[PromptAcceptance]] = {}
    for answer in record.prompts:
        answers_by_prompt.setdefault(answer.prompt_id, []).append(answer)
    for prompt_ids in rounds:
        if answers_by_prompt.keys() >= set(prompt_ids):
            for place, prompt_id in enumerate(prompt_ids, start=1):
                for answer in answers_by_prompt[prompt_id]:
                    turn = (answer.turn - 1) * len(prompt_ids) + place
                    name = _round_name(prompt_ids)
                    yield dataclasses.replace(answer, prompt_id=name, turn=turn)


def _round_name(prompt_ids: Sequence[str]) -> str:
    """Return the id of a single prompt, or the ids of the first and the last."""
    first, *others = prompt_ids
    return f"{first} to {others[-1]}" if others else first


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
