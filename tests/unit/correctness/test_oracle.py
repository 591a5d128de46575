"""The oracle: an answer's steps, walked again along its text."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specreg.acceptance.record import NO_STEPS, StepCounts
from specreg.correctness.oracle_client import Drafted, DraftsAt, common, drafts_of_lookup, walk
from specreg.engines.pytorch.speculation import LookupRule
from tests.unit import builders


def always(proposed: int, accepted: int) -> DraftsAt:
    """The same wherever a step begins."""
    return lambda _: Drafted(proposed=proposed, accepted=accepted)


@pytest.mark.parametrize(
    ("accepted", "histogram"),
    [
        # Ten tokens: the prefill's, and nine of steps that emit 1, 2, 3 or 4.
        pytest.param(0, (9, 0, 0, 0), id="none"),
        pytest.param(1, (0, 5, 0, 0), id="one-and-the-last-step-cut"),
        pytest.param(2, (0, 0, 3, 0), id="two"),
        pytest.param(3, (0, 0, 0, 3), id="all-and-the-last-step-cut"),
    ],
)
def test_each_step_emits_what_it_accepts_and_one_more(
    accepted: int, histogram: tuple[int, ...]
) -> None:
    """Drafts beyond the end count as well: the verifier's view."""
    found = walk(always(3, accepted), prompt_tokens=4, output_tokens=10, width=3)
    assert found == builders.counts(*histogram)


def test_a_step_begins_where_the_one_before_ended() -> None:
    """A prompt of four: steps begin at 5, 5 + 2 + 1 = 8, and 8 + 0 + 1 = 9; the text ends at 10."""
    begun: list[int] = []

    def drafts_at(place: int) -> Drafted:
        begun.append(place)
        return Drafted(proposed=3, accepted={5: 2, 8: 0, 9: 3}[place])

    found = walk(drafts_at, prompt_tokens=4, output_tokens=6, width=3)

    assert begun == [5, 8, 9]
    assert found == StepCounts(steps=3, accepted=5, proposed=9, position_counts=(2, 2, 1))


def test_a_step_that_drafts_nothing_counts_for_nothing_and_emits_one_token() -> None:
    """Of the places 5, 6, 7 and 8 only 7 drafts, and there one token, which is wrong."""
    found = walk(
        lambda place: Drafted(proposed=int(place == 7), accepted=0),
        prompt_tokens=4,
        output_tokens=5,
        width=3,
    )
    assert found == StepCounts(steps=1, accepted=0, proposed=1, position_counts=(0, 0, 0))


def test_lookup_drafts_what_followed_before_and_is_right_as_far_as_the_text_goes_on() -> None:
    """After 1 2 came 3 4 5 once; now comes 3 4 9, and at the end nobody has been yet."""
    drafts_at = drafts_of_lookup((1, 2, 3, 4, 5, 1, 2, 3, 4, 9), LookupRule(), 3)

    assert drafts_at(7) == Drafted(proposed=3, accepted=2)
    assert drafts_at(2) == Drafted(proposed=0, accepted=0)


def test_lookup_sees_nothing_from_its_place_on() -> None:
    """1 2 stands there once before place 4; that it comes again behind it is the future."""
    assert drafts_of_lookup((1, 2, 1, 2, 1, 2), LookupRule(), 3)(2) == Drafted(
        proposed=0, accepted=0
    )


def test_lookup_drafts_fewer_where_the_text_before_ends() -> None:
    """5 5 5: the run of two stands at the beginning too, and one token follows it."""
    drafts_at = drafts_of_lookup((5, 5, 5, 5, 5, 5), LookupRule(), 3)
    assert drafts_at(3) == Drafted(proposed=1, accepted=1)


def said_by(rule: Sequence[int], text: Sequence[int]) -> int:
    """A toy model's greedy token: its last two decide."""
    last, before = text[-1], text[-2] if len(text) > 1 else 0
    return rule[(4 * before + last) % len(rule)]


RULES = st.lists(st.integers(0, 3), min_size=16, max_size=16)


@given(
    target=RULES,
    drafter=RULES,
    prompt=st.lists(st.integers(0, 3), min_size=1, max_size=5),
    width=st.integers(1, 4),
    cap=st.integers(1, 20),
)
def test_the_walk_finds_the_steps_that_were_taken(
    target: list[int], drafter: list[int], prompt: list[int], width: int, cap: int
) -> None:
    """Speculative decoding forward, with verification against the target, and the walk after it."""
    text = [*prompt, said_by(target, prompt)]
    taken = NO_STEPS
    while len(text) < len(prompt) + cap:
        drafts: list[int] = []
        for _ in range(width):
            drafts.append(said_by(drafter, [*text, *drafts]))
        right = 0
        while right < width and drafts[right] == said_by(target, [*text, *drafts[:right]]):
            right += 1
        taken += builders.counts(*(int(right == one) for one in range(width + 1)))
        text += drafts[:right]
        text.append(said_by(target, text))

    whole = text[: len(prompt) + cap]
    for _ in range(width + 1):  # as the engine is asked for what comes after its answer
        whole.append(said_by(target, whole))

    def drafts_at(place: int) -> Drafted:
        drafts: list[int] = []
        for _ in range(width):
            drafts.append(said_by(drafter, [*whole[:place], *drafts]))
        return Drafted(proposed=width, accepted=common(drafts, whole[place:]))

    found = walk(drafts_at, prompt_tokens=len(prompt), output_tokens=cap, width=width)
    assert found == taken
