"""What is compared, and the drafter that is right for as many tokens as a schedule says."""

import dataclasses
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specreg.compare.answers import why_not_compared
from specreg.compare.pairs import (
    Override,
    Pair,
    groups_of,
    pairs_of,
    parse_override,
    pinned_case,
    pinned_pairs,
)
from specreg.core.errors import MatrixError, UnsupportedError
from specreg.engines.drafter.scheduled import ScheduledDrafter, schedule_of
from specreg.matrix.tier import load_tier
from tests.unit import builders

TIER = load_tier(builders.ROOT / "fixtures/matrix", "cpu")
OF_A_LAUNCH = {"acceptance_length_tokens", "step_p50_ms", "ttft_p50_ms", "throughput_tokens_per_s"}


def pairs(*case_ids: str, b: str = "", prompts: int | None = None) -> tuple[Pair, ...]:
    overrides: list[Override] = [parse_override(b)] if b else []
    chosen = [case for case in TIER.cases if not case_ids or case.id in case_ids]
    return pairs_of(TIER, chosen, ((), overrides), prompts=prompts, show=pytest.fail)


def test_cases_are_compared_as_each_side_is_asked() -> None:
    """All of the tier without a choice; nothing runs beside a side; an override is of one side."""
    assert [pair.id for pair in pairs()] == [case.id for case in TIER.cases]
    assert {side.control for pair in pairs() for side in (pair.a, pair.b)} == {None}
    [pair] = pairs("vllm-eagle3-tiny-toy-c1", b="draft_tokens=5", prompts=7)
    assert (pair.a.server.draft_tokens, pair.b.server.draft_tokens) == (3, 5)
    assert pair.id == "vllm-eagle3-tiny-toy-c1 > vllm-eagle3-tiny-k5-toy-c1"
    assert (pair.a.request.prompts, pair.b.request.prompts) == (7, 7)


@pytest.mark.parametrize(
    ("changes", "speed", "deciding"),
    [
        ({}, True, OF_A_LAUNCH - {"step_p50_ms"}),
        ({"draft_tokens": 5}, True, {"ttft_p50_ms", "throughput_tokens_per_s"}),
        ({"draft": "other/head"}, False, {"acceptance_length_tokens"}),
        ({"draft": "other/head"}, True, OF_A_LAUNCH - {"step_p50_ms"}),
    ],
    ids=["drafts alike", "drafts otherwise", "another head without a speed", "another head"],
)
def test_sides_are_held_to_what_they_share(
    changes: dict[str, object], *, speed: bool, deciding: set[str]
) -> None:
    both = builders.CASE, builders.on_server(**changes)
    a, b = (builders.with_judging(side, speed=speed) for side in both)
    pair = Pair(a=a, b=b)
    assert pair.deciding == deciding
    assert {metric.name for metric in pair.metrics} == (OF_A_LAUNCH if speed else deciding)


def test_sides_with_nothing_to_compare_are_refused() -> None:
    tier = dataclasses.replace(
        TIER, cases=(builders.with_judging(builders.PLAIN_CASE, speed=False),)
    )
    message: list[str] = []
    with pytest.raises(UnsupportedError, match="none of 1 cases can be compared"):
        pairs_of(tier, tier.cases, ((), ()), prompts=None, show=message.append)
    assert message == ["left out: vllm-none-toy-toy-c2 has no metric that could decide"]


def test_loads_of_a_server_share_its_launches() -> None:
    (plain,) = (group for group in groups_of(pairs()) if group[0].a.server.id == "vllm-none-tiny")
    assert [pair.a.load.concurrency for pair in plain] == [1, 4]


def test_a_drafter_that_learns_has_its_launches_alone() -> None:
    suffix = builders.on_server(method="suffix", draft=None)
    learning = [builders.with_concurrency(n, suffix) for n in (1, 2)]
    assert len(groups_of([Pair(a=case, b=case) for case in learning])) == 2


@given(st.integers(0, 60), st.integers(3, 5))
def test_a_schedule_accepts_as_many_drafts_as_its_length_says(
    twentieths: int, draft_tokens: int
) -> None:
    length = 1 + Fraction(twentieths, 20)
    steps = schedule_of(float(length), draft_tokens)
    assert Fraction(sum(steps), len(steps)) == length - 1
    assert max(steps) - min(steps) <= 1
    assert max(steps) <= draft_tokens


def pair_of(**changes: Any) -> Pair:  # noqa: ANN401 - of any field
    """The usual case on both sides, with other settings of its requests."""
    case = builders.with_request(**changes)
    return Pair(a=case, b=case)


def test_where_the_engine_cant_pin_a_method_the_scheduled_drafter_stands_in() -> None:
    drawn = pair_of(temperature=0.7)
    (pinned,) = pinned_pairs([pair_of(), drawn], 2.5, on_gpu=False)
    assert pinned.id == "vllm-scheduled-toy-al2.5-toy-c2"
    assert (pinned.a.server.draft, pinned.a.request.turns, pinned.a.request.temperature) == (
        None,
        1,
        0.0,
    )
    assert "pinned" in why_not_compared(pinned.a, pinned.b)


def test_an_engine_that_can_pin_keeps_the_drafter_and_the_temperature() -> None:
    (pinned,) = pinned_pairs([pair_of(temperature=0.7)], 2.5, on_gpu=True)
    assert (pinned.a.server.draft, pinned.a.request.temperature) == (builders.SPEC.draft, 0.7)
    assert pinned.a.server.method == builders.SPEC.method
    on_sglang = builders.on_server(engine="sglang", method="eagle3")
    assert pinned_case(on_sglang, 2.5, on_gpu=False).server.method == "eagle3"


@pytest.mark.parametrize("length_tokens", [0.5, 4.5, float("nan"), float("inf")])
def test_a_pinned_length_that_no_step_can_have_is_refused(length_tokens: float) -> None:
    with pytest.raises(MatrixError, match=r"^--pin .*: acceptance = .*; needed 1 to 4$"):
        pinned_pairs([pair_of()], length_tokens, on_gpu=False)


def test_a_pin_without_speculation_or_support_is_refused() -> None:
    plain = Pair(a=builders.PLAIN_CASE, b=builders.PLAIN_CASE)
    with pytest.raises(UnsupportedError, match=r"--pin 2\.5: no case speculates"):
        pinned_pairs([plain], 2.5, on_gpu=False)
    reference = builders.on_server(engine="reference")
    with pytest.raises(MatrixError, match=r"engine 'reference' can't pin it on a GPU; .*: none"):
        pinned_pairs([Pair(a=reference, b=reference)], 2.5, on_gpu=True)


def test_the_drafter_learns_an_answer_and_is_then_right_as_its_schedule_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SCHEDULED_ACCEPTED", "1,2")
    config = SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=3),
        model_config=SimpleNamespace(get_vocab_size=lambda: 1000),
    )
    drafter = ScheduledDrafter(config)
    prompt = [1, 2]
    output = list(range(100, 120))

    def accepted(requests: int, until: int) -> list[int]:
        """The drafts that are right in each step of an answer of so many tokens."""
        steps = []
        done = 1
        new = 1
        while done < until:
            row = [*prompt, *output[:done]]
            tokens = np.array([row] * requests + [[0] * len(row)])
            sampled = [output[done - new : done]] * requests + [[]]
            *drafts, unread = drafter.propose(sampled, [len(row)] * (requests + 1), tokens)
            assert unread == []
            assert drafts == [drafts[0]] * requests
            wrong = (i for i, token in enumerate(drafts[0]) if token != output[done + i])
            steps.append(next(wrong, len(drafts[0])))
            new = steps[-1] + 1
            done += new
        return steps

    assert accepted(1, until=16) == [0] * 15
    assert accepted(2, until=12) == [1, 2, 1, 2, 1]
