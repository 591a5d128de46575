"""Sides that know their acceptance by request or by round are compared in the parts of both."""

import dataclasses
from collections.abc import Sequence

import pytest

from specreg.acceptance.record import AcceptanceRecord, RoundAcceptance, Source
from specreg.baselines.prompt_counts import answers_in_common, common_tables
from tests.unit import builders

FEW = builders.counts(4, 4, 2, 0)
MANY = builders.counts(2, 2, 2, 4)


def by_request(*prompt_ids: str) -> AcceptanceRecord:
    """A record of prompts that accepted 8 drafts in 10 steps each."""
    return builders.acceptance_of(
        [builders.prompt_acceptance(FEW, prompt_id=prompt_id) for prompt_id in prompt_ids]
    )


def by_round(*rounds: Sequence[str]) -> AcceptanceRecord:
    """A record of rounds that accepted 18 drafts in 10 steps each."""
    record = builders.acceptance(MANY, Source.VLLM_COUNTERS)
    counted = tuple(
        RoundAcceptance(prompt_ids=tuple(prompt_ids), counts=MANY, completion_tokens=29, requests=1)
        for prompt_ids in rounds
    )
    return dataclasses.replace(record, prompts=(), rounds=counted)


def test_rounds_of_one_prompt_are_compared_prompt_by_prompt() -> None:
    requests, rounds = common_tables(
        *answers_in_common([by_request("a", "b", "c")], [by_round(["a"], ["c"])])
    )
    assert requests.prompt_ids == rounds.prompt_ids == ("a", "c")
    assert requests.accepted.tolist() == [8, 8]
    assert rounds.accepted.tolist() == [18, 18]


def test_the_requests_of_a_round_are_added_up_where_the_other_side_has_its_sum() -> None:
    rounds, requests = common_tables(
        *answers_in_common([by_round(["a", "b"], ["c", "d"])], [by_request("a", "b", "c")])
    )
    assert rounds.prompt_ids == requests.prompt_ids == ("a to b",)
    assert rounds.accepted.tolist() == [18]
    assert requests.accepted.tolist() == [8 + 8]
    assert requests.answer_tokens.tolist() == [2 * (1 + 8 + 10)]


def test_launches_and_turns_of_a_round_weigh_as_those_of_a_prompt() -> None:
    """Two launches by request are a mean; two turns of a prompt are a sum."""
    turns = [
        dataclasses.replace(builders.prompt_acceptance(FEW, prompt_id="a"), turn=turn)
        for turn in (1, 2)
    ]
    conversation = builders.acceptance_of([*turns, *by_request("b").prompts])
    requests, rounds = common_tables(
        *answers_in_common([conversation, conversation], [by_round(["a", "b"])])
    )
    assert requests.accepted.tolist() == [3 * 8]
    assert rounds.accepted.tolist() == [18]


@pytest.mark.parametrize("launches", [1, 3])
def test_two_sides_of_rounds_are_compared_by_the_rounds_of_both(launches: int) -> None:
    first = by_round(["a", "b"], ["c", "d"])
    tables = common_tables(*answers_in_common([first] * launches, [by_round(["c", "d"], ["e"])]))
    assert [table.prompt_ids for table in tables] == [("c to d",)] * 2
    assert [table.accepted.tolist() for table in tables] == [[18], [18]]
