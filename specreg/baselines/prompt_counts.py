"""Tabulate the counts of each prompt, so that two sides can be compared prompt by prompt."""

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
    """The counts of each prompt. All columns have the shape (prompts,).

    The counts of a turn are averaged over its answers in all launches, and those of a prompt are
    the sum over its turns. Prompts are independent draws, but their turns and their answers in
    several launches are not. The mean prevents a prompt with more answers from having more weight.

    Attributes:
        prompt_ids: the id of each prompt; all are different.
        answer_tokens: the number of tokens in the answers to each prompt.
    """

    prompt_ids: tuple[str, ...]
    answer_tokens: Column

    def without(self, prompt_ids: Container[str]) -> "CountsTable":
        """Return the table without these prompts."""
        is_kept = [prompt_id not in prompt_ids for prompt_id in self.prompt_ids]
        rows = np.array(is_kept, np.bool_)
        proposed = None
        if self.proposed is not None:
            proposed = self.proposed[rows]
        position_counts = [column[rows] for column in self.position_counts]
        return CountsTable(
            prompt_ids=tuple(itertools.compress(self.prompt_ids, is_kept)),
            answer_tokens=self.answer_tokens[rows],
            steps=self.steps[rows],
            accepted=self.accepted[rows],
            proposed=proposed,
            position_counts=tuple(position_counts),
        )


@dataclass(slots=True)
class _TurnAnswers:
    """The answers to one turn of a prompt in all launches.

    Attributes:
        counts: the sum of their counts.
        tokens: the sum of their tokens.
        answers: the number of answers.
    """

    counts: StepCounts = NO_STEPS
    tokens: int = 0
    answers: int = 0


_TurnsByPrompt = Mapping[str, Mapping[int, _TurnAnswers]]


def answers_in_common(
    *sides: Sequence[AcceptanceRecord],
) -> tuple[tuple[PromptAcceptance, ...], ...]:
    """Return the answers of each side, in the smallest units for which all sides have counts.

    The unit is usually a single request. A side may have counts only for a whole round of requests.
    The requests of such a round then count as one prompt on all sides, named after the round.

    Args:
        sides: the records of the launches of each side.

    Returns:
        The answers of each side, in the order of the sides.
    """
    # A dictionary keeps the order of the rounds, which a set wouldn't.
    rounds: dict[tuple[str, ...], None] = {}
    for record in itertools.chain.from_iterable(sides):
        rounds |= dict.fromkeys(record_round.prompt_ids for record_round in record.rounds)
    answers_by_side = []
    for side in sides:
        answers: list[PromptAcceptance] = []
        for record in side:
            answers += _in_rounds(record, rounds) if rounds else record.prompts
        answers_by_side.append(tuple(answers))

    return tuple(answers_by_side)


def _in_rounds(
    record: AcceptanceRecord, rounds: Iterable[tuple[str, ...]]
) -> Iterator[PromptAcceptance]:
    """Yield the answers of a record under the names of their rounds.

    A round that was counted as a whole is one answer. In any other round each request is an answer,
    as if the round were a prompt, and its requests were the turns of this prompt. Such a round is
    left out if the record lacks one of its prompts.

    Args:
        record: the record, which has counts of rounds or of single requests.
        rounds: the prompt ids of each round.
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
        if not answers_by_prompt.keys() >= set(prompt_ids):
            continue
        name = _round_name(prompt_ids)
        for position, prompt_id in enumerate(prompt_ids, start=1):
            for answer in answers_by_prompt[prompt_id]:
                # Each pair of a prompt and a turn gets a number of its own.
                turn = (answer.turn - 1) * len(prompt_ids) + position
                yield dataclasses.replace(answer, prompt_id=name, turn=turn)


def _round_name(prompt_ids: Sequence[str]) -> str:
    """Return the name of a round: the id of its prompt, or the ids of the first and the last."""
    first = prompt_ids[0]
    if len(prompt_ids) == 1:
        return first
    last = prompt_ids[-1]
    return f"{first} to {last}"


def common_tables(*sides: Iterable[PromptAcceptance]) -> Sequence[CountsTable]:
    """Tabulate the prompts that all sides have, in the order of the first side.

    Args:
        sides: the answers of each side in all of its launches.

    Returns:
        One table for each side.
    """
    turns_by_side = [_turns_by_prompt(answers) for answers in sides]
    if not turns_by_side:
        return []
    first_side, *further_sides = turns_by_side
    common_ids = list(first_side)
    for turns_by_prompt in further_sides:
        common_ids = [prompt_id for prompt_id in common_ids if prompt_id in turns_by_prompt]
    return [_table(common_ids, turns_by_prompt) for turns_by_prompt in turns_by_side]


def _turns_by_prompt(answers: Iterable[PromptAcceptance]) -> _TurnsByPrompt:
    """Add up the answers to each turn of each prompt."""
    turns_by_prompt: dict[str, dict[int, _TurnAnswers]] = {}
    for answer in answers:
        turns = turns_by_prompt.setdefault(answer.prompt_id, {})
        turn = turns.setdefault(answer.turn, _TurnAnswers())
        turn.counts += answer.counts
        turn.tokens += answer.completion_tokens
        turn.answers += 1

    return turns_by_prompt


def _table(prompt_ids: Sequence[str], turns_by_prompt: _TurnsByPrompt) -> CountsTable:
    """Tabulate the prompts with these ids, up to the deepest draft position of any of them."""
    rows = [tuple(turns_by_prompt[prompt_id].values()) for prompt_id in prompt_ids]
    turns = list(itertools.chain.from_iterable(rows))
    depths = [len(turn.counts.position_counts) for turn in turns]
    depth = max(depths, default=0)

    def column(sum_of: Callable[[_TurnAnswers], int]) -> Column:
        # `fsum` rounds once, so that the order of the turns doesn't matter.
        means = [math.fsum(sum_of(turn) / turn.answers for turn in row) for row in rows]
        return np.array(means, np.float64)

    def position_column(index: int) -> Column:
        # A turn that drafted fewer tokens has no count at this position, so the slice is empty.
        return column(lambda turn: sum(turn.counts.position_counts[index : index + 1]))

    # A sum in which the drafts of some turns are missing would be too small.
    proposed: Column | None = None
    if all(turn.counts.proposed is not None for turn in turns):
        proposed = column(lambda turn: turn.counts.proposed or 0)
    return CountsTable(
        prompt_ids=tuple(prompt_ids),
        answer_tokens=column(lambda turn: turn.tokens),
        steps=column(lambda turn: turn.counts.steps),
        accepted=column(lambda turn: turn.counts.accepted),
        proposed=proposed,
        position_counts=tuple(map(position_column, range(depth))),
    )
