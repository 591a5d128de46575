import dataclasses

import pytest

from specreg.compare.pairs import COMPARED, CONTROL, Pair, Side, groups_of, pairs_of, slots_of
from specreg.core.errors import UnsupportedError
from specreg.matrix.overrides import Override, parse_override
from specreg.matrix.tier import load_tier
from tests.unit import builders

TIER = load_tier(builders.ROOT / "fixtures/matrix", "cpu")
OF_A_LAUNCH = {"acceptance_length_tokens", "step_p50_ms", "ttft_p50_ms", "throughput_tokens_per_s"}


def pairs(*case_ids: str, b: str = "", prompts: int | None = None) -> tuple[Pair, ...]:
    overrides: list[Override] = [parse_override(b)] if b else []
    said: list[str] = []
    chosen = [case for case in TIER.cases if not case_ids or case.id in case_ids]
    return pairs_of(TIER, chosen, ((), overrides), prompts=prompts, show=said.append)


def test_cases_are_compared_as_each_side_is_asked() -> None:
    """All of the tier without a choice; nothing runs beside a side; an override is of one side."""
    assert [pair.id for pair in pairs()] == [case.id for case in TIER.cases]
    assert {side.control for pair in pairs() for side in (pair.a, pair.b)} == {None}
    [pair] = pairs("vllm-eagle3-tiny-toy-c1", b="draft_tokens=5", prompts=7)
    assert (pair.a.server.draft_tokens, pair.b.server.draft_tokens) == (3, 5)
    assert pair.id == "vllm-eagle3-tiny-toy-c1 > vllm-eagle3-tiny-k5-toy-c1"
    assert (pair.a.prompts, pair.b.prompts) == (7, 7)


@pytest.mark.parametrize(
    ("changes", "speed", "deciding"),
    [
        ({}, True, OF_A_LAUNCH),
        ({"draft_tokens": 5}, True, {"ttft_p50_ms", "throughput_tokens_per_s"}),
        ({"draft": "other/head"}, False, {"acceptance_length_tokens"}),
    ],
    ids=["drafts alike", "drafts otherwise", "another head without a speed"],
)
def test_sides_are_held_to_what_they_share(
    changes: dict[str, object],
    speed: bool,  # noqa: FBT001 - a parameter
    deciding: set[str],
) -> None:
    a, b = (
        dataclasses.replace(one, speed=speed)
        for one in (builders.CASE, builders.on_server(**changes))
    )
    pair = Pair(a=a, b=b)
    assert pair.deciding == deciding
    assert {one.name for one in pair.metrics} == (OF_A_LAUNCH if speed else deciding)


def test_nothing_to_compare_is_said() -> None:
    tier = dataclasses.replace(TIER, cases=(dataclasses.replace(builders.PLAIN_CASE, speed=False),))
    said: list[str] = []
    with pytest.raises(UnsupportedError, match="none of 1 cases can be compared"):
        pairs_of(tier, tier.cases, ((), ()), prompts=None, show=said.append)
    assert said == ["left out: vllm-none-toy-toy-c2 says nothing that could be compared"]


def test_loads_of_a_server_share_its_launches() -> None:
    loads = {
        group[0].a.server.id: [pair.a.load.concurrency for pair in group]
        for group in groups_of(pairs())
    }
    assert loads["vllm-none-tiny"] == [1, 4]


def test_a_drafter_that_learns_has_its_launches_alone() -> None:
    suffix = builders.on_server(method="suffix", draft=None)
    learning = [builders.with_concurrency(n, suffix) for n in (1, 2)]
    found = groups_of([Pair(a=one, b=one) for one in learning])
    assert [len(group) for group in found] == [1, 1]


@pytest.mark.parametrize(
    ("sides", "together", "order"),
    [
        (COMPARED, True, ["A B", "B A", "A B", "B A"]),
        (COMPARED, False, ["A", "B", "B", "A", "A", "B", "B", "A"]),
        (CONTROL, True, ["A1 A2", "A2 A1", "A1 A2", "A2 A1"]),
    ],
)
def test_the_sides_take_turns_at_being_first(
    sides: tuple[Side, Side],
    together: bool,  # noqa: FBT001 - a parameter
    order: list[str],
) -> None:
    slots = [slot for n in range(1, 5) for slot in slots_of(n, sides, together=together)]
    assert [" ".join(slot) for slot in slots] == order
