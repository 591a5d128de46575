import dataclasses

import pytest

from specreg.compare.gate.launched import Arm
from specreg.compare.gate.overriding import Override, parse_override
from specreg.compare.gate.plan import Pair, drafts_of, pairs_of, shared_launches, subject_of
from specreg.core.errors import UnknownNameError, UnsupportedError
from specreg.matrix.case import Case
from specreg.matrix.tier import load_tier
from tests.unit import builders

TIER = load_tier(builders.ROOT / "fixtures/matrix", "cpu")
OF_A_LAUNCH = {"acceptance_length_tokens", "step_p50_ms", "ttft_p50_ms", "throughput_tokens_per_s"}


def pairs(*case_ids: str, b: str = "", prompts: int | None = None) -> tuple[Pair, ...]:
    overrides: list[Override] = [parse_override(b)] if b else []
    said: list[str] = []
    return pairs_of(TIER, case_ids, ((), overrides), prompts=prompts, show=said.append)


def with_server(**changes: object) -> Case:
    server = dataclasses.replace(builders.SPEC, **changes)  # type: ignore[arg-type]
    return dataclasses.replace(builders.CASE, server=server)


def test_without_a_choice_all_cases_of_the_tier_are_compared() -> None:
    assert [pair.id for pair in pairs()] == [case.id for case in TIER.cases]


def test_no_control_runs_beside_a_side() -> None:
    assert {side.control for pair in pairs() for side in (pair.a, pair.b)} == {None}


def test_an_override_is_of_one_side() -> None:
    [pair] = pairs("vllm-eagle3-tiny-toy-c1", b="draft_tokens=5")
    assert (pair.a.server.draft_tokens, pair.b.server.draft_tokens) == (3, 5)
    assert pair.id == "vllm-eagle3-tiny-toy-c1 > vllm-eagle3-tiny-k5-toy-c1"


def test_prompts_are_those_that_are_asked_for() -> None:
    [pair] = pairs("vllm-eagle3-tiny-toy-c1", prompts=7)
    assert (pair.a.prompts, pair.b.prompts) == (7, 7)


def test_an_unknown_case_is_named_with_those_that_there_are() -> None:
    with pytest.raises(UnknownNameError, match="tier 'cpu': unknown case 'vllm-eagle-tiny-toy-c1'"):
        pairs("vllm-eagle-tiny-toy-c1")


def test_drafts_are_those_that_the_tier_names_for_the_models() -> None:
    assert set(drafts_of(TIER, TIER.cases[0])) == {"draft_model", "eagle3"}


def test_sides_that_draft_alike_are_held_to_all_that_they_do() -> None:
    subject = subject_of(Pair(a=builders.CASE, b=builders.CASE), of_server=True)
    assert subject.deciding == OF_A_LAUNCH
    assert {one.name for one in subject.quantities} == OF_A_LAUNCH | {"ready_s", "memory_bytes"}


def test_sides_that_draft_otherwise_are_held_to_their_output() -> None:
    pair = Pair(a=builders.CASE, b=with_server(draft_tokens=5))
    subject = subject_of(pair, of_server=False)
    assert subject.deciding == {"ttft_p50_ms", "throughput_tokens_per_s"}
    assert {one.name for one in subject.quantities} == OF_A_LAUNCH


def test_another_head_is_held_to_its_acceptance_where_nothing_has_a_speed() -> None:
    a = dataclasses.replace(builders.CASE, speed=False)
    b = dataclasses.replace(with_server(draft="other/head"), speed=False)
    assert subject_of(Pair(a=a, b=b), of_server=False).deciding == {"acceptance_length_tokens"}


@pytest.mark.parametrize(("prompts", "told"), [(4, True), (5, False)])
def test_too_few_prompts_for_an_acceptance_are_said(prompts: int, told: bool) -> None:  # noqa: FBT001 - a parameter
    said: list[str] = []
    chosen = ("vllm-eagle3-tiny-toy-c1", "vllm-none-tiny-toy-c1")
    pairs_of(TIER, chosen, ((), ()), prompts=prompts, show=said.append)
    words = (
        "vllm-eagle3-tiny-toy-c1: acceptance is decided by 5 prompts at least, so with 4 it will"
        " stay undecided; give --prompts 5 or more"
    )
    assert said == [words] * told


def test_nothing_to_compare_is_said() -> None:
    tier = dataclasses.replace(TIER, cases=(dataclasses.replace(builders.PLAIN_CASE, speed=False),))
    said: list[str] = []
    with pytest.raises(UnsupportedError, match="none of 1 cases can be compared"):
        pairs_of(tier, (), ((), ()), prompts=None, show=said.append)
    assert said == ["left out: vllm-none-toy-toy-c2 says nothing that could be compared"]


def test_loads_of_a_server_share_its_launches_and_the_control_is_the_plain_one() -> None:
    found = shared_launches(pairs(), with_control=True, together=False)
    named = {
        shared.group.name: [pair.a.load.concurrency for pair in shared.pairs] for shared in found
    }
    assert named["vllm-none-tiny"] == [1, 4]
    with_control = [
        shared.group.name
        for shared in found
        if any(subject.other is Arm.A2 for subject in shared.group.subjects)
    ]
    assert with_control == ["vllm-none-tiny"]


def test_a_server_is_told_of_once() -> None:
    shared = next(one for one in shared_launches(pairs(), with_control=False, together=False))
    told = [sum(one.of_server for one in subject.quantities) for subject in shared.group.subjects]
    assert told == [2, 0]


def test_a_drafter_that_learns_has_its_launches_alone() -> None:
    learning = [
        dataclasses.replace(
            with_server(method="suffix", draft=None),
            load=dataclasses.replace(builders.CASE.load, concurrency=n),
        )
        for n in (1, 2)
    ]
    found = shared_launches(
        [Pair(a=one, b=one) for one in learning], with_control=False, together=False
    )
    assert [len(shared.pairs) for shared in found] == [1, 1]
