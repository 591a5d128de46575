"""What two sides' answers come to, where each is asked of the other's tokens."""

import dataclasses
from collections.abc import Sequence

import pytest

from specreg.compare.gate.texts import TextsSaid, doubted_by_a, why_not_compared
from specreg.correctness.lossless import Losslessness, Parting
from specreg.datasets.prompts import Prompt
from specreg.matrix.case import Case
from tests.unit import builders

PROMPTS = tuple(Prompt(id=name, category="", turns=("Tell me.",)) for name in "xyz")
SAID = TextsSaid(
    case_id="case", prompts=((1, 2), (3,), (4,)), answers=((5, 6, 7), (8, 9), (10, 11))
)
FOUND = Losslessness(
    prompts=3,
    partings=(
        Parting(prompt_id="x", position=2, plain=70, other=7, gap_nats=0.1),
        Parting(prompt_id="y", position=1, plain=90, other=9, gap_nats=0.0),
        Parting(prompt_id="z", position=1, plain=None, other=11),
    ),
    noise=None,
    rounding_nats=0.25,
)


def test_what_b_calls_rounding_a_is_asked_of() -> None:
    """At the same place, of the same tokens; A is as sure of its own one as can be."""
    asked: list[tuple[Sequence[int], Sequence[int]]] = []

    def score(
        questions: Sequence[tuple[Sequence[int], Sequence[int]]],
    ) -> Sequence[Sequence[float]]:
        asked.extend(questions)
        return [(-0.7, -0.8), (-0.1, -3.1)]

    [doubted] = doubted_by_a(FOUND, SAID, PROMPTS, score)
    assert asked == [((1, 2, 5, 6), (7, 70)), ((3, 8), (9, 90))]
    assert doubted.prompt_id == "y"
    assert doubted.gap_nats == pytest.approx(3.0)


def test_a_token_of_b_that_a_finds_likelier_too_is_no_loss() -> None:
    assert not doubted_by_a(FOUND, SAID, PROMPTS, lambda _: [(-0.7, -0.8), (-3.1, -0.1)])


@pytest.mark.parametrize(
    ("b", "said"),
    [
        (builders.CASE, ""),
        (dataclasses.replace(builders.CASE, temperature=0.7), "drawn at a temperature"),
        (
            dataclasses.replace(
                builders.CASE, server=dataclasses.replace(builders.SPEC, dtype="bfloat16")
            ),
            "the targets of both sides differ",
        ),
        (dataclasses.replace(builders.CASE, prompts=3), "the sides are asked otherwise"),
    ],
    ids=["alike", "drawn", "of another format", "other prompts"],
)
def test_why_answers_arent_compared_is_told(b: Case, said: str) -> None:
    assert said in why_not_compared(builders.CASE, b)
    assert bool(why_not_compared(builders.CASE, b)) == bool(said)


def test_what_tells_no_ids_is_told_too() -> None:
    of_tensorrt = dataclasses.replace(builders.SPEC, engine="tensorrt_llm")
    case = dataclasses.replace(builders.CASE, server=of_tensorrt)
    assert "tells no token ids" in why_not_compared(case, case)
