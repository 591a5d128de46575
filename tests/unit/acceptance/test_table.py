"""Tables of counts: a row for each prompt, of the sums of its turns."""

from hypothesis import given, settings
from hypothesis import strategies as st

from specreg.acceptance.record import NO_STEPS, PromptAcceptance, StepCounts
from specreg.acceptance.table import counts_table
from tests.unit import builders

HISTOGRAMS = st.lists(st.integers(0, 50), min_size=1, max_size=5)
COUNTS = st.builds(StepCounts.from_histogram, HISTOGRAMS, st.none() | st.integers(0, 500))
REQUESTS = st.lists(
    st.builds(builders.prompt_acceptance, COUNTS, prompt_id=st.sampled_from("abcdef")), max_size=20
)


@settings(max_examples=100, deadline=None)
@given(REQUESTS)
def test_a_row_is_what_its_prompt_did(requests: list[PromptAcceptance]) -> None:
    table = counts_table(requests)
    assert table.prompt_ids == tuple(dict.fromkeys(one.prompt_id for one in requests))
    unknown = any(one.counts.proposed is None for one in requests)
    assert (table.proposed is None) == unknown, "one hides them all"
    for row, prompt_id in enumerate(table.prompt_ids):
        own = sum((one.counts for one in requests if one.prompt_id == prompt_id), NO_STEPS)
        assert (table.steps[row], table.accepted[row]) == (own.steps, own.accepted)
        assert table.proposed is None or table.proposed[row] == own.proposed
        reached = [column[row] for column in table.position_counts]
        assert reached[: len(own.position_counts)] == list(own.position_counts)
        assert not any(reached[len(own.position_counts) :])


def test_only_some_rows_are_picked_in_the_order_asked_for() -> None:
    requests = [
        builders.prompt_acceptance(builders.counts(0, 0, n), prompt_id=name)
        for n, name in enumerate("abc", start=1)
    ]
    table = counts_table(requests).only(("c", "a"))
    assert table.prompt_ids == ("c", "a")
    assert table.steps.tolist() == [3, 1]
    assert table.accepted.tolist() == [6, 2]
    assert table.proposed is not None
    assert table.proposed.tolist() == [6, 2]
    assert [column.tolist() for column in table.position_counts] == [[3, 1], [3, 1]]


def test_picking_keeps_unknown_drafts_unknown_and_everything_as_it_is() -> None:
    unknown = StepCounts.from_histogram((2, 1), proposed=None)
    table = counts_table([builders.prompt_acceptance(unknown, prompt_id=name) for name in "ab"])
    assert table.only(("b",)).proposed is None
    assert table.only(("b", "a")).prompt_ids == ("b", "a")
    assert table.only(table.prompt_ids) is table
    assert table.only(()).steps.shape == (0,)
