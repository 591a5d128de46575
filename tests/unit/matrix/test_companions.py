"""Cases that differ in their speculation alone may be measured side by side, beside one control."""

import dataclasses
from collections.abc import Callable

from specreg.matrix.case import Case, companions_of
from tests.unit import builders

PLAIN = builders.PLAIN_CASE
DRAFTING, EAGLE, NGRAM = (
    dataclasses.replace(builders.on_server(method=name), control=builders.PLAIN_SPEC)
    for name in ("draft_model", "eagle3", "ngram")
)
LEARNING = dataclasses.replace(builders.on_server(method="suffix"), control=builders.PLAIN_SPEC)
SINGLE_EAGLE = builders.with_concurrency(1, EAGLE)
ALL = (PLAIN, DRAFTING, EAGLE, NGRAM)


def joined(
    *later_cases: Case,
    case: Case = PLAIN,
    may_join: Callable[[Case], bool] = lambda _: True,
    most: int = 10,
) -> list[Case]:
    """The companions of a case where memory holds so many servers."""
    return companions_of(case, later_cases, may_join=may_join, fit=lambda specs: len(specs) <= most)


def test_cases_that_differ_in_their_speculation_alone_are_companions() -> None:
    assert joined(DRAFTING, SINGLE_EAGLE, EAGLE, LEARNING, NGRAM) == [DRAFTING, EAGLE, NGRAM]
    assert joined(EAGLE, PLAIN, case=DRAFTING) == [EAGLE, PLAIN]
    other_prompts = builders.with_request(EAGLE, prompts=3)
    assert joined(other_prompts) == []
    alone, other_alone = (dataclasses.replace(case, control=None) for case in (DRAFTING, EAGLE))
    assert joined(other_alone, case=alone) == []
    assert joined(EAGLE, case=LEARNING) == []


def test_companions_are_what_memory_holds_and_what_is_to_be_measured() -> None:
    assert joined(DRAFTING, EAGLE, NGRAM, most=3) == [DRAFTING, EAGLE]
    assert joined(DRAFTING, EAGLE, case=NGRAM, most=3) == [DRAFTING]
    assert joined(PLAIN, EAGLE, case=NGRAM, most=2) == [PLAIN], "the control is there already"
    assert joined(DRAFTING, EAGLE, may_join=lambda case: case == EAGLE) == [EAGLE]


def test_a_case_of_another_control_ends_the_companions() -> None:
    other_spec = dataclasses.replace(builders.PLAIN_SPEC, models="other")
    between = dataclasses.replace(builders.PLAIN_CASE, server=other_spec)
    assert joined(DRAFTING, between, EAGLE) == [DRAFTING]
