"""The checks of DEFINITIONS.md: each is silent on sound counts and names the broken one."""

import dataclasses

import msgspec
import pytest

from specreg.acceptance.checks import (
    check_acceptance,
    check_counters,
    check_counts,
    check_emitted,
    check_reconciled,
    check_requests,
)
from specreg.acceptance.record import NO_STEPS, AcceptanceRecord, Counters, StepCounts
from specreg.acceptance.trace import RequestTrace
from specreg.core.errors import InvalidMeasurementError
from tests.unit import builders

COUNTS = builders.counts(8, 0, 6, 6)
FINISHED = builders.trace(builders.chunk(1), builders.chunk(2, tokens=4))


def test_requests_that_failed_are_counted_and_the_first_is_told() -> None:
    gone = msgspec.structs.replace(FINISHED, prompt_id="gone", error="ReadError: gone")
    late = msgspec.structs.replace(FINISHED, prompt_id="late", error="no end within 2 s")
    with pytest.raises(InvalidMeasurementError) as error:
        check_requests([FINISHED, gone, FINISHED, late])
    assert str(error.value) == (
        "REQUEST_FAILED: 2 of 4 requests failed, first prompt 'gone': ReadError: gone;"
        " look at the server's log"
    )


def test_a_long_list_of_counts_is_told_by_its_beginning() -> None:
    counts = builders.counts(1, 1)
    many = dataclasses.replace(counts, position_counts=(1,) * 5_000)
    with pytest.raises(InvalidMeasurementError, match=r"\[(1, ){15}1, …\]") as error:
        check_counts(many, "all")
    assert len(str(error.value)) < 300


def test_requests_that_finished_with_their_usage_pass() -> None:
    check_requests([FINISHED, FINISHED])


@pytest.mark.parametrize(
    ("broken", "reason", "words"),
    [
        pytest.param(
            msgspec.structs.replace(FINISHED, error="ReadError: gone"),
            "REQUEST_FAILED",
            "ReadError: gone",
            id="error",
        ),
        pytest.param(
            msgspec.structs.replace(FINISHED, finish_reason=None),
            "REQUEST_FAILED",
            "without a finish reason",
            id="unfinished",
        ),
        pytest.param(
            msgspec.structs.replace(FINISHED, usage_tokens=None),
            "USAGE_MISSING",
            "sent no usage",
            id="no-usage",
        ),
        pytest.param(
            msgspec.structs.replace(FINISHED, usage_tokens=6),
            "TOKENS_DISAGREE",
            "its chunks carried 5 tokens, the server counted 6",
            id="lost-chunk",
        ),
    ],
)
def test_one_broken_request_breaks_the_measurement(
    broken: RequestTrace, reason: str, words: str
) -> None:
    with pytest.raises(
        InvalidMeasurementError, match=f"{reason}: .*prompt 'chat-0': .*{words}"
    ) as e:
        check_requests([FINISHED, broken, FINISHED])
    assert e.value.reason == reason


def test_sound_counts_pass() -> None:
    check_acceptance(builders.acceptance(COUNTS), draft_tokens=3)


@pytest.mark.parametrize(
    "idle",
    [
        pytest.param(NO_STEPS, id="no-steps"),
        pytest.param(builders.counts(0, 0, 0, 0), id="all-zero"),
        pytest.param(StepCounts.from_histogram((5, 0, 0, 0), proposed=0), id="no-drafts"),
    ],
)
def test_a_drafter_that_is_off_is_no_low_acceptance(idle: StepCounts) -> None:
    with pytest.raises(InvalidMeasurementError, match="speculation is configured, yet") as error:
        check_acceptance(builders.acceptance(idle), draft_tokens=3)
    assert error.value.reason == "SPEC_DISABLED"


@pytest.mark.parametrize("draft_tokens", [2, 4])
def test_other_draft_lengths_than_asked_for_are_refused(draft_tokens: int) -> None:
    with pytest.raises(InvalidMeasurementError, match=f"the case asks for {draft_tokens}") as error:
        check_acceptance(builders.acceptance(COUNTS), draft_tokens=draft_tokens)
    assert error.value.reason == "SETTINGS_DIFFER"


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(dataclasses.replace(COUNTS, accepted=29), id="marginals-miss-the-length"),
        pytest.param(
            dataclasses.replace(COUNTS, accepted=29, position_counts=(20, 20, -11)), id="negative"
        ),
        pytest.param(
            dataclasses.replace(COUNTS, position_counts=(10, 14, 6)), id="later-above-earlier"
        ),
        pytest.param(dataclasses.replace(COUNTS, position_counts=(21, 9, 0)), id="above-the-steps"),
        pytest.param(dataclasses.replace(COUNTS, proposed=29), id="accepted-above-drafted"),
        pytest.param(dataclasses.replace(COUNTS, proposed=61), id="drafted-above-k-per-step"),
    ],
)
def test_counts_that_contradict_one_another_are_refused(broken: StepCounts) -> None:
    with pytest.raises(InvalidMeasurementError, match="all requests: S, A, D = ") as error:
        check_acceptance(builders.acceptance(broken), draft_tokens=3)
    assert error.value.reason == "COUNTS_INCONSISTENT"


def test_a_length_beyond_all_drafts_and_the_bonus_is_impossible() -> None:
    """k = 3 and 20 steps: 60 drafts accepted are an AL of 4, 61 are more."""
    all_accepted = builders.counts(0, 0, 0, 20)
    check_acceptance(builders.acceptance(all_accepted), draft_tokens=3)
    beyond = dataclasses.replace(all_accepted, accepted=61, position_counts=(21, 20, 20))
    with pytest.raises(InvalidMeasurementError, match=r"; 20 steps accept 60 at most") as error:
        check_acceptance(builders.acceptance(beyond), draft_tokens=3)
    assert error.value.reason == "LENGTH_IMPOSSIBLE"


def branching(*histogram: int) -> StepCounts:
    """The counts of trees of six drafts."""
    return StepCounts.from_histogram(histogram, proposed=6 * sum(histogram))


@pytest.mark.parametrize("histogram", [(2, 0, 1, 4), (2, 0, 1), (2,)])
def test_a_tree_drafts_more_than_a_step_can_accept(histogram: tuple[int, ...]) -> None:
    record = builders.acceptance(branching(*histogram))
    check_acceptance(record, draft_tokens=3, drafted_tokens=6)
    with pytest.raises(InvalidMeasurementError, match="the case asks for 3, up to 3") as error:
        check_acceptance(record, draft_tokens=3)
    assert error.value.reason == "SETTINGS_DIFFER"


@pytest.mark.parametrize(
    ("counts", "drafted_tokens", "words"),
    [
        pytest.param(branching(2, 0, 1), 7, "up to 6 tokens per step, .* asks for 7", id="smaller"),
        pytest.param(branching(2, 0, 1), 5, "up to 6 tokens per step, .* asks for 5", id="larger"),
        pytest.param(branching(2, 0, 1, 0, 1), 6, "up to 4 of them accepted", id="deeper"),
    ],
)
def test_another_tree_than_asked_for_is_refused(
    counts: StepCounts, drafted_tokens: int, words: str
) -> None:
    with pytest.raises(InvalidMeasurementError, match=f"SETTINGS_DIFFER: .*{words}"):
        check_acceptance(builders.acceptance(counts), draft_tokens=3, drafted_tokens=drafted_tokens)


def test_a_step_drafts_no_more_than_its_tree() -> None:
    beyond = dataclasses.replace(branching(2, 0, 1), proposed=19)
    with pytest.raises(InvalidMeasurementError, match="COUNTS_INCONSISTENT"):
        check_acceptance(builders.acceptance(beyond), draft_tokens=3, drafted_tokens=6)


def test_a_contradiction_says_whose_it_is() -> None:
    check_counts(COUNTS, "somebody")
    check_counts(NO_STEPS, "nobody")
    with pytest.raises(InvalidMeasurementError, match="somebody: S, A, D = 20, 29, 60"):
        check_counts(dataclasses.replace(COUNTS, accepted=29), "somebody")


def test_a_contradiction_within_one_prompt_is_found() -> None:
    wrong = dataclasses.replace(COUNTS, accepted=29)
    record = dataclasses.replace(builders.acceptance(wrong), total=COUNTS)
    with pytest.raises(InvalidMeasurementError, match="prompt 'chat-0': S, A, D = 20, 29, 60"):
        check_acceptance(record, draft_tokens=3)


def worked_example(delivered_tokens: int) -> AcceptanceRecord:
    """The worked example of DEFINITIONS.md, with so many tokens delivered."""
    counts = StepCounts.from_histogram((0, 0, 1, 1, 0, 0), proposed=9)
    prompt = dataclasses.replace(
        builders.prompt_acceptance(counts), completion_tokens=delivered_tokens
    )
    return dataclasses.replace(builders.acceptance(counts), prompts=(prompt,))


def emitting(cut_tokens: int) -> AcceptanceRecord:
    """The record of a prompt that delivered less than its steps emitted, or more."""
    prompt = builders.prompt_acceptance(COUNTS, cut_tokens=cut_tokens)
    return dataclasses.replace(builders.acceptance(COUNTS), prompts=(prompt,))


@pytest.mark.parametrize("cut_tokens", [0, 2])
def test_what_its_steps_emitted_may_be_cut_off(cut_tokens: int) -> None:
    check_emitted(emitting(cut_tokens), [])


@pytest.mark.parametrize("delivered_tokens", [6, 8])
def test_the_worked_example_may_deliver_all_that_it_emitted(delivered_tokens: int) -> None:
    """Proposed [5, 4], accepted [3, 2]: 8 were emitted, 6 of them delivered."""
    check_emitted(worked_example(delivered_tokens), [])


def test_the_worked_example_cannot_deliver_a_ninth_token() -> None:
    with pytest.raises(InvalidMeasurementError, match="9 tokens delivered, its steps emitted 8"):
        check_emitted(worked_example(9), [])


def test_more_tokens_than_were_emitted_are_impossible() -> None:
    with pytest.raises(InvalidMeasurementError, match="52 tokens delivered, its steps") as error:
        check_emitted(emitting(cut_tokens=-1), [])
    assert error.value.reason == "TOKENS_IMPOSSIBLE"


def page(counts: StepCounts) -> Counters:
    """The counters of a server that says all there is to know."""
    return Counters(steps=counts.steps, counts=counts)


def test_counters_move_by_what_happened_in_between() -> None:
    before = builders.counts(5, 5, 5, 5)
    assert check_counters(page(before), page(before + COUNTS)) == page(COUNTS)


def test_counters_may_stand_still() -> None:
    assert check_counters(page(COUNTS), page(COUNTS)) == page(COUNTS - COUNTS)


def test_counters_of_steps_alone_move_too() -> None:
    assert check_counters(Counters(steps=4), Counters(steps=24)) == Counters(steps=20)


@pytest.mark.parametrize("field", ["steps", "accepted", "proposed"])
def test_a_counter_that_fell_means_a_restart(field: str) -> None:
    after = dataclasses.replace(COUNTS, **{field: getattr(COUNTS, field) - 1})
    with pytest.raises(InvalidMeasurementError, match="restarted inside the window") as error:
        check_counters(page(COUNTS), page(after))
    assert error.value.reason == "COUNTERS_FELL"


def test_one_position_that_fell_means_a_restart() -> None:
    after = dataclasses.replace(COUNTS, position_counts=(12, 12, 5))
    with pytest.raises(InvalidMeasurementError, match="COUNTERS_FELL"):
        check_counters(page(COUNTS), page(after))


def test_steps_that_fell_mean_a_restart_where_nothing_else_is_known() -> None:
    with pytest.raises(InvalidMeasurementError, match="COUNTERS_FELL: S moved by -1; the server"):
        check_counters(Counters(steps=20), Counters(steps=19))


def test_requests_that_add_up_to_the_counters_pass() -> None:
    check_reconciled(COUNTS, page(COUNTS))
    check_reconciled(COUNTS, Counters(steps=COUNTS.steps))


@pytest.mark.parametrize(
    ("counters", "reason"),
    [
        pytest.param(
            page(COUNTS + builders.counts(1, 0, 0, 0)), "FOREIGN_TRAFFIC", id="more-steps"
        ),
        pytest.param(
            page(COUNTS - builders.counts(1, 0, 0, 0)), "COUNTS_DISAGREE", id="fewer-steps"
        ),
        pytest.param(
            page(dataclasses.replace(COUNTS, accepted=31)), "COUNTS_DISAGREE", id="accepted"
        ),
        pytest.param(
            page(dataclasses.replace(COUNTS, position_counts=(12, 11, 7))),
            "COUNTS_DISAGREE",
            id="positions",
        ),
        pytest.param(Counters(steps=21), "FOREIGN_TRAFFIC", id="more-steps-alone"),
        pytest.param(Counters(steps=19), "COUNTS_DISAGREE", id="fewer-steps-alone"),
    ],
)
def test_counters_that_moved_otherwise_are_refused(counters: Counters, reason: str) -> None:
    with pytest.raises(InvalidMeasurementError, match="our requests: S, A, D 20, 30, 60") as error:
        check_reconciled(COUNTS, counters)
    assert error.value.reason == reason


def test_where_nobody_says_what_was_drafted_nothing_accepted_means_the_drafter_is_off() -> None:
    idle = dataclasses.replace(builders.counts(9, 0, 0, 0), proposed=None)
    with pytest.raises(InvalidMeasurementError, match="S, A, D = 9, 0, unknown") as error:
        check_acceptance(builders.acceptance(idle), draft_tokens=3)
    assert error.value.reason == "SPEC_DISABLED"
    check_acceptance(
        builders.acceptance(dataclasses.replace(COUNTS, proposed=None)), draft_tokens=3
    )


def test_all_that_was_delivered_is_held_against_a_sum_too() -> None:
    record = dataclasses.replace(builders.acceptance(COUNTS), prompts=())
    request = builders.trace(builders.chunk(1), builders.chunk(2, tokens=50))
    check_emitted(record, [request])
    with pytest.raises(InvalidMeasurementError, match="all: 52 tokens delivered, its steps"):
        check_emitted(record, [builders.trace(builders.chunk(1, tokens=52))])
