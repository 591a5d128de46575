"""Answers whose length changed by more than half, prompt by prompt."""

import dataclasses
from collections.abc import Sequence

import pytest

from specreg.acceptance.record import PromptAcceptance
from specreg.baselines.answer_lengths import LengthChange, changed_lengths
from specreg.baselines.prompt_counts import common_tables
from tests.unit import builders


def answers(*tokens: int, turn: int = 1) -> list[PromptAcceptance]:
    """An answer to each of some prompts, of so many tokens."""
    of_prompts = [
        builders.prompt_acceptance(builders.counts(4, 2), prompt_id=f"chat-{number}")
        for number in range(len(tokens))
    ]
    return [
        dataclasses.replace(answer, completion_tokens=length, turn=turn)
        for answer, length in zip(of_prompts, tokens, strict=True)
    ]


def changed(
    now: Sequence[PromptAcceptance], before: Sequence[PromptAcceptance]
) -> tuple[LengthChange, ...]:
    tables = common_tables(now, before)
    return changed_lengths(tables[0], tables[1])


@pytest.mark.parametrize(
    ("now_tokens", "is_changed"), [(96, False), (97, True), (32, False), (31, True)]
)
def test_a_length_may_change_by_half(now_tokens: int, *, is_changed: bool) -> None:
    expected = (LengthChange(prompt_id="chat-0", before_tokens=64, now_tokens=now_tokens),)
    assert changed(answers(now_tokens), answers(64)) == (expected if is_changed else ())


def test_the_length_of_several_launches_is_their_mean() -> None:
    before = answers(40) + answers(88)
    assert not changed(answers(96), before)
    assert changed(answers(97), before)


def test_the_turns_of_a_conversation_count_together() -> None:
    before = answers(64) + answers(64, turn=2)
    assert not changed(answers(64) + answers(128, turn=2), before)
    assert changed(answers(65) + answers(128, turn=2), before)


def test_a_table_without_some_prompts_has_the_rows_of_the_others() -> None:
    (table,) = common_tables(answers(10, 20, 30))
    remaining = table.without({"chat-1"})
    assert remaining.prompt_ids == ("chat-0", "chat-2")
    assert remaining.answer_tokens.tolist() == [10, 30]
    assert remaining.steps.tolist() == [6, 6]
    assert [column.tolist() for column in remaining.position_counts] == [[2, 2]]
