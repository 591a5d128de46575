"""Pinned pairs, and the drafter that is right for as many tokens as a schedule says."""

import dataclasses
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specreg.compare.answers import why_not_compared
from specreg.compare.pairs import Pair, pinned_case, pinned_pairs
from specreg.core.errors import MatrixError, UnsupportedError
from specreg.engines.drafter.scheduled import Drafter, schedule_of
from tests.unit import builders


@given(st.integers(0, 60), st.integers(3, 5))
def test_a_schedule_accepts_as_many_as_it_is_asked_for(twentieths: int, draft_tokens: int) -> None:
    length = 1 + Fraction(twentieths, 20)
    steps = schedule_of(float(length), draft_tokens)
    assert Fraction(sum(steps), len(steps)) == length - 1
    assert max(steps) - min(steps) <= 1
    assert max(steps) <= draft_tokens


def pair_of(**changes: object) -> Pair:
    """The usual case on both sides, with other settings of its requests."""
    case = dataclasses.replace(builders.CASE, **changes)  # type: ignore[arg-type]
    return Pair(a=case, b=case)


def test_where_the_engine_cant_pin_a_method_the_scheduled_drafter_stands_in() -> None:
    drawn = pair_of(temperature=0.7)
    (pinned,) = pinned_pairs([pair_of(), drawn], 2.5, on_gpu=False)
    assert pinned.id == "vllm-scheduled-toy-al2.5-toy-c2"
    assert (pinned.a.server.draft, pinned.a.turns, pinned.a.temperature) == (None, 1, 0.0)
    assert "pinned" in why_not_compared(pinned.a, pinned.b)


def test_where_it_can_the_case_keeps_its_drafter_and_what_it_asks() -> None:
    (pinned,) = pinned_pairs([pair_of(temperature=0.7)], 2.5, on_gpu=True)
    assert (pinned.a.server.draft, pinned.a.temperature) == (builders.SPEC.draft, 0.7)
    assert pinned.a.server.method == builders.SPEC.method
    on_sglang = builders.on_server(engine="sglang", method="eagle3")
    assert pinned_case(on_sglang, 2.5, on_gpu=False).server.method == "eagle3"


@pytest.mark.parametrize("length_tokens", [0.5, 4.5, float("nan"), float("inf")])
def test_a_length_that_no_step_has_is_said(length_tokens: float) -> None:
    with pytest.raises(MatrixError, match=r"^--pin .*: acceptance = .*; needed 1 to 4$"):
        pinned_pairs([pair_of()], length_tokens, on_gpu=False)


def test_nothing_to_pin_and_an_engine_that_cant_are_said() -> None:
    plain = Pair(a=builders.PLAIN_CASE, b=builders.PLAIN_CASE)
    with pytest.raises(UnsupportedError, match=r"--pin 2\.5: no case speculates"):
        pinned_pairs([plain], 2.5, on_gpu=False)
    reference = builders.on_server(engine="reference")
    with pytest.raises(MatrixError, match=r"engine 'reference' can't on a GPU; .*: none"):
        pinned_pairs([Pair(a=reference, b=reference)], 2.5, on_gpu=True)


def test_the_drafter_learns_an_answer_and_is_then_right_as_its_schedule_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SCHEDULED_ACCEPTED", "1,2")
    config = SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=3),
        model_config=SimpleNamespace(get_vocab_size=lambda: 1000),
    )
    drafter = Drafter(config)
    prompt, output = [1, 2], list(range(100, 120))

    def accepted(requests: int, until: int) -> list[int]:
        """The drafts that are right in each step of an answer of so many tokens."""
        steps, done, new = [], 1, 1
        while done < until:
            row = [*prompt, *output[:done]]
            tokens = np.array([row] * requests + [[0] * len(row)])
            sampled = [output[done - new : done]] * requests + [[]]
            *ours, unread = drafter.propose(sampled, [len(row)] * (requests + 1), tokens)
            assert unread == []
            assert ours == [ours[0]] * requests
            wrong = (i for i, token in enumerate(ours[0]) if token != output[done + i])
            steps.append(next(wrong, len(ours[0])))
            new = steps[-1] + 1
            done += new
        return steps

    assert accepted(1, until=16) == [0] * 15
    assert accepted(2, until=12) == [1, 2, 1, 2, 1]
