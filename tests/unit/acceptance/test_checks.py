"""The checks of DEFINITIONS.md: each is silent on sound counts and names the broken one."""

import dataclasses
import gzip
from typing import Any

import msgspec
import pytest

from specreg.acceptance import checks
from specreg.acceptance.record import NO_STEPS, Counters, Source, StepCounts
from specreg.acceptance.trace import RequestTrace, have_split_steps
from specreg.core.errors import InvalidMeasurementError
from tests.unit import builders

COUNTS = builders.counts(8, 0, 6, 6)
FINISHED = builders.trace(builders.chunk(1), builders.chunk(2, tokens=4))


def test_failed_requests_are_counted_and_the_first_is_explained() -> None:
    gone = msgspec.structs.replace(FINISHED, prompt_id="gone", error="ReadError: gone")
    late = msgspec.structs.replace(FINISHED, prompt_id="late", error="no end within 2 s")
    with pytest.raises(InvalidMeasurementError) as error:
        checks.check_requests([FINISHED, gone, FINISHED, late])
    assert str(error.value) == (
        "REQUEST_FAILED: 2 of 4 requests failed, the first on prompt 'gone': ReadError: gone;"
        " look at the server's log"
    )


@pytest.mark.parametrize(
    ("changes", "reason", "words"),
    [
        ({"finish_reason": None}, "REQUEST_FAILED", "without a finish reason"),
        ({"usage_tokens": None}, "USAGE_MISSING", "sent no usage"),
        ({"usage_tokens": 6}, "TOKENS_DISAGREE", "chunks carried 5 tokens, the server counted 6"),
    ],
    ids=["unfinished", "no-usage", "lost-chunk"],
)
def test_one_broken_request_breaks_the_measurement(
    changes: dict[str, object], reason: str, words: str
) -> None:
    checks.check_requests([FINISHED, FINISHED])
    broken = msgspec.structs.replace(FINISHED, **changes)
    with builders.invalid(reason, f"prompt 'chat-0': .*{words}"):
        checks.check_requests([FINISHED, broken, FINISHED])


@pytest.mark.parametrize(
    ("idle", "words"),
    [
        (NO_STEPS, "0, 0, 0"),
        (StepCounts.from_histogram((5, 0, 0, 0), proposed=0), "5, 0, 0"),
        (StepCounts.from_histogram((9, 0, 0, 0), proposed=None), "9, 0, unknown"),
    ],
)
def test_a_drafter_that_is_off_is_invalid_and_not_a_low_acceptance(
    idle: StepCounts, words: str
) -> None:
    with builders.invalid("SPEC_DISABLED", f"yet steps, accepted, drafted = {words};"):
        checks.check_acceptance(builders.acceptance(idle), draft_tokens=3)
    unknown = dataclasses.replace(COUNTS, proposed=None)
    checks.check_acceptance(builders.acceptance(unknown), draft_tokens=3)


@pytest.mark.parametrize("draft_tokens", [2, 4])
def test_draft_lengths_that_differ_from_the_case_are_refused(draft_tokens: int) -> None:
    checks.check_acceptance(builders.acceptance(COUNTS), draft_tokens=3)
    with builders.invalid("SETTINGS_DIFFER", f"the case asks for {draft_tokens}"):
        checks.check_acceptance(builders.acceptance(COUNTS), draft_tokens=draft_tokens)


@pytest.mark.parametrize(
    "changes",
    [
        {"accepted": 29},
        {"accepted": 29, "position_counts": (20, 20, -11)},
        {"position_counts": (10, 14, 6)},
        {"position_counts": (21, 9, 0)},
        {"proposed": 29},
        {"proposed": 61},
    ],
    ids=["sum", "negative", "later-above-earlier", "above-the-steps", "too-few", "too-many"],
)
def test_counts_that_contradict_one_another_are_refused(changes: dict[str, Any]) -> None:
    broken = dataclasses.replace(COUNTS, **changes)
    with builders.invalid("COUNTS_INCONSISTENT", "all requests: steps, accepted, drafted = "):
        checks.check_acceptance(builders.acceptance(broken), draft_tokens=3)


def test_a_length_beyond_all_drafts_and_the_bonus_is_impossible() -> None:
    """k = 3 and 20 steps: 60 drafts accepted are an AL of 4, 61 are more."""
    all_accepted = builders.counts(0, 0, 0, 20)
    checks.check_acceptance(builders.acceptance(all_accepted), draft_tokens=3)
    beyond = dataclasses.replace(all_accepted, accepted=61, position_counts=(21, 20, 20))
    with builders.invalid("LENGTH_IMPOSSIBLE", r"; 20 steps accept 60 at most"):
        checks.check_acceptance(builders.acceptance(beyond), draft_tokens=3)


def branching(*histogram: int) -> StepCounts:
    """The counts of trees of six drafts."""
    return StepCounts.from_histogram(histogram, proposed=6 * sum(histogram))


@pytest.mark.parametrize("histogram", [(2, 0, 1, 4), (2, 0, 1), (2,)])
def test_a_tree_drafts_more_than_a_step_can_accept(histogram: tuple[int, ...]) -> None:
    record = builders.acceptance(branching(*histogram))
    checks.check_acceptance(record, draft_tokens=3, drafted_tokens=6)
    with builders.invalid("SETTINGS_DIFFER", "the case asks for 3, up to 3"):
        checks.check_acceptance(record, draft_tokens=3)


@pytest.mark.parametrize(
    ("counts", "drafted_tokens", "words"),
    [
        (branching(2, 0, 1), 7, "up to 6 tokens per step, .* asks for 7"),
        (branching(2, 0, 1), 5, "up to 6 tokens per step, .* asks for 5"),
        (branching(2, 0, 1, 0, 1), 6, "up to 4 of them accepted"),
    ],
)
def test_a_tree_that_differs_from_the_case_is_refused(
    counts: StepCounts, drafted_tokens: int, words: str
) -> None:
    with builders.invalid("SETTINGS_DIFFER", words):
        checks.check_acceptance(
            builders.acceptance(counts), draft_tokens=3, drafted_tokens=drafted_tokens
        )


def test_a_step_drafts_no_more_than_its_tree() -> None:
    beyond = dataclasses.replace(branching(2, 0, 1), proposed=19)
    with builders.invalid("COUNTS_INCONSISTENT"):
        checks.check_acceptance(builders.acceptance(beyond), draft_tokens=3, drafted_tokens=6)


def test_a_contradiction_within_one_prompt_is_found() -> None:
    wrong = dataclasses.replace(COUNTS, accepted=29)
    record = dataclasses.replace(builders.acceptance(wrong), total=COUNTS)
    with builders.invalid("COUNTS_INCONSISTENT", "prompt 'chat-0': .* = 20, 29, 60"):
        checks.check_acceptance(record, draft_tokens=3)


@pytest.mark.parametrize(
    ("accepted", "steps", "length_tokens", "in_flight"),
    [(1510, 1000, 2.5, 1), (1560, 1000, 2.5, 1), (1600, 1000, 2.5, 8), (2015, 1000, 3.0, 8)],
)
def test_a_pinned_length_may_differ_by_the_error_of_its_draws(
    accepted: int, steps: int, length_tokens: float, in_flight: int
) -> None:
    counts = StepCounts(steps=steps, accepted=accepted, proposed=None, position_counts=())
    record = builders.acceptance(counts)
    checks.check_pinned_length(record, length_tokens, in_flight)
    measured_tokens = 1 + accepted / steps
    deviation = f"{measured_tokens:.3f}, but the case pins it to 2 ± 0.02"
    with builders.invalid("NOT_PINNED", deviation):
        checks.check_pinned_length(record, 2.0, in_flight)
    with builders.invalid("NOT_PINNED", f"pins it to {length_tokens + 0.2:g} ±"):
        checks.check_pinned_length(record, length_tokens + 0.2, 1)


def test_no_more_is_delivered_than_the_steps_emitted() -> None:
    """Proposed [5, 4], accepted [3, 2]: 8 were emitted. Less is fine, the last step may be cut."""
    counts = StepCounts.from_histogram((0, 0, 1, 1, 0, 0), proposed=9)
    record = builders.acceptance_of([builders.prompt_acceptance(counts)])
    for last_tokens in (1, 3):
        checks.check_emitted(record, [of_sizes(1, 4, last_tokens)], draft_tokens=5)
    beyond = "'chat-0': 9 tokens were delivered, but the prefill and 2 steps emit 8 at most"
    with builders.invalid("TOKENS_IMPOSSIBLE", beyond):
        checks.check_emitted(record, [of_sizes(1, 4, 4)], draft_tokens=5)


def of_sizes(*tokens: int) -> RequestTrace:
    """A request whose chunks carried so many tokens."""
    return builders.trace(*(builders.chunk(at, size) for at, size in enumerate(tokens, 1)))


DRAFTED = StepCounts.from_histogram((0, 1, 0, 1), proposed=6)
"""Two steps of three drafts each; they accept one and three, so they emit two and four tokens."""


@pytest.mark.parametrize(
    ("tokens", "undrafted"),
    [
        ((1, 2, 4), 0),
        ((1, 2, 3), 0),
        ((1, 2, 1, 4, 1), 2),
        ((1, 2, 1, 4, 1, 1, 1), 4),
        # The same tokens, each in a chunk of its own, or several steps in one.
        (8 * (1,), 1),
        ((1, 7), 1),
        ((1, 1, 1, 6, 1), 3),
        ((1, 3, 4, 1), 2),
        ((3, 1, 4, 1), 2),
        # As many tokens as the two steps emit, however they come.
        (7 * (1,), 0),
        ((1, 3, 3), 0),
        ((7,), 0),
        # A step without a draft, and a token that the end cut off.
        ((1, 1, 2, 3), 0),
    ],
)
def test_steps_without_a_draft_are_the_tokens_that_the_others_cannot_emit(
    tokens: tuple[int, ...], undrafted: int
) -> None:
    assert DRAFTED.undrafted_steps(of_sizes(*tokens).tokens - 1) == undrafted


LONG = StepCounts.from_histogram((0, 0, 0, 4), proposed=12)
"""Four steps that emit four tokens each."""


@pytest.mark.parametrize(
    ("tokens", "counts", "is_split"),
    [
        ((1, 4, 4, 4, 4), LONG, False),
        ((1, 4, 4, 4, 2), LONG, False),
        ((1, 8, 8), LONG, False),
        ((1, 1, 4, 4, 1, 4, 1, 4), LONG, False),
        (17 * (1,), LONG, True),
        ((1, 2, 2, 2, 2, 2, 2, 2, 2), LONG, True),
        # Three of the four steps came token by token.
        ((*(13 * (1,)), 4), LONG, True),
        # No draft was accepted, or so few that the end may have cut them off.
        (5 * (1,), builders.counts(4, 0, 0, 0), False),
        ((1, 1), builders.counts(0, 1, 0, 0), False),
    ],
)
def test_more_chunks_than_the_counted_steps_allow_are_parts_of_steps(
    tokens: tuple[int, ...], counts: StepCounts, *, is_split: bool
) -> None:
    assert have_split_steps([of_sizes(*tokens)], counts, 3) is is_split


@pytest.mark.parametrize(
    "tokens",
    [
        (1, 2, 1, 4, 1),
        (1, 1, 2, 3),
        # A chunk of more than four tokens is more than one step.
        (1, 1, 1, 6, 1),
        (1, 2, 1, 1, 5),
        (2, 1, 4, 1, 1),
    ],
)
def test_steps_without_a_draft_emit_a_token_each(tokens: tuple[int, ...]) -> None:
    request = of_sizes(*tokens)
    by_prompt = builders.acceptance_of([builders.prompt_acceptance(DRAFTED)])
    by_sum = dataclasses.replace(by_prompt, prompts=())
    for record in (by_prompt, by_sum):
        checks.check_emitted(record, [request], draft_tokens=3)


@pytest.mark.parametrize(
    "tokens",
    [
        # More drafts than the server says must have been accepted.
        (1, 2, 1, 4, 2),
        (1, 4, 4, 4),
        (1, 2, 4, 2, 1, 1),
        # No more chunks than steps: no step without a draft was seen.
        (1, 3, 4),
        (1, 7),
        (8,),
    ],
)
def test_steps_without_a_draft_do_not_explain_missing_drafts(tokens: tuple[int, ...]) -> None:
    request = of_sizes(*tokens)
    by_prompt = builders.acceptance_of([builders.prompt_acceptance(DRAFTED)])
    for record in (by_prompt, dataclasses.replace(by_prompt, prompts=())):
        with builders.invalid("TOKENS_IMPOSSIBLE", "but the prefill and [23456] steps emit"):
            checks.check_emitted(record, [request], draft_tokens=3)


def test_a_draft_length_that_varies_is_not_another_setting() -> None:
    """SGLang's histogram ends at the most that was accepted, so its counts show no most."""
    first, second = (
        StepCounts.from_histogram((1, 2, 1), proposed=proposed) for proposed in (8, 14)
    )
    changing = builders.acceptance_of(
        [builders.prompt_acceptance(first), builders.prompt_acceptance(second, prompt_id="b")],
        Source.SGLANG_REQUEST,
    )
    checks.check_acceptance(changing, draft_tokens=5)
    uneven = builders.acceptance(dataclasses.replace(first, proposed=9), Source.SGLANG_REQUEST)
    checks.check_acceptance(uneven, draft_tokens=5)
    for record in (builders.acceptance(first, Source.SGLANG_REQUEST), builders.acceptance(first)):
        with builders.invalid("SETTINGS_DIFFER", "drafts up to 2 tokens per step"):
            checks.check_acceptance(record, draft_tokens=5)
    with builders.invalid("SETTINGS_DIFFER"):
        checks.check_acceptance(changing, draft_tokens=1)


def page(counts: StepCounts) -> Counters:
    """The counters of a server that says all there is to know."""
    return Counters(steps=counts.steps, counts=counts)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (page(builders.counts(5, 5, 5, 5)), page(builders.counts(5, 5, 5, 5) + COUNTS)),
        (page(COUNTS), page(COUNTS)),
        (Counters(steps=4, requests=2), Counters(steps=24, requests=5)),
    ],
    ids=["detail", "still", "steps-alone"],
)
def test_counters_move_by_what_happened_in_between(before: Counters, after: Counters) -> None:
    moved = checks.check_counters(before, after)
    assert moved.steps == after.steps - before.steps
    assert moved.requests == (3 if after.requests else None)
    if after.counts and before.counts:
        assert moved.counts == after.counts - before.counts


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (page(COUNTS), page(dataclasses.replace(COUNTS, steps=19))),
        (page(COUNTS), page(dataclasses.replace(COUNTS, accepted=29))),
        (page(COUNTS), page(dataclasses.replace(COUNTS, proposed=59))),
        (page(COUNTS), page(dataclasses.replace(COUNTS, position_counts=(12, 12, 5)))),
        (Counters(steps=20), Counters(steps=19)),
        (Counters(steps=20, requests=2), Counters(steps=20, requests=1)),
        (Counters(steps=20, further={"queue_s": 2.5}), Counters(steps=20, further={"queue_s": 2})),
        (Counters(steps=20, further={"queue_s": 2.5}), Counters(steps=20)),
    ],
)
def test_a_counter_that_fell_means_a_restart(before: Counters, after: Counters) -> None:
    with builders.invalid("COUNTERS_FELL", "restarted meanwhile"):
        checks.check_counters(before, after)


def test_a_counter_that_appears_in_between_began_at_nothing() -> None:
    moved = checks.check_counters(Counters(steps=1), Counters(steps=2, further={"queue_s": 0.5}))
    assert moved.further == {"queue_s": 0.5}


@pytest.mark.parametrize(
    ("counters", "reason"),
    [
        (page(COUNTS + builders.counts(1, 0, 0, 0)), "FOREIGN_TRAFFIC"),
        (page(COUNTS - builders.counts(1, 0, 0, 0)), "COUNTS_DISAGREE"),
        (page(dataclasses.replace(COUNTS, accepted=31)), "COUNTS_DISAGREE"),
        (page(dataclasses.replace(COUNTS, position_counts=(12, 11, 7))), "COUNTS_DISAGREE"),
        (Counters(steps=21), "FOREIGN_TRAFFIC"),
        (Counters(steps=19), "COUNTS_DISAGREE"),
    ],
    ids=["more", "fewer", "accepted", "positions", "more-steps-alone", "fewer-steps-alone"],
)
def test_counters_that_disagree_with_the_requests_are_refused(
    counters: Counters, reason: str
) -> None:
    checks.check_reconciled(COUNTS, page(COUNTS))
    checks.check_reconciled(COUNTS, Counters(steps=COUNTS.steps))
    with builders.invalid(reason, "our requests: steps, accepted, drafted 20, 30, 60"):
        checks.check_reconciled(COUNTS, counters)


@pytest.mark.parametrize(
    ("counters", "code", "words"),
    [
        (page(COUNTS + COUNTS), "STEPS_REPEATED", "each of our steps 2 times"),
        (page(COUNTS + COUNTS + COUNTS), "STEPS_REPEATED", "each of our steps 3 times"),
        (
            dataclasses.replace(page(COUNTS + builders.counts(1, 0, 0, 0)), requests=3),
            "STEPS_UNREPORTED",
            "",
        ),
    ],
)
def test_steps_of_our_own_requests_are_nobody_elses(
    counters: Counters, code: str, words: str
) -> None:
    with builders.invalid(code, words):
        checks.check_reconciled(COUNTS, counters, ended=3)


def test_steps_that_emit_far_more_than_was_delivered_are_refused() -> None:
    request = builders.trace(builders.chunk(1), *(builders.chunk(2, tokens=3) for _ in range(20)))
    counts = builders.counts(0, 0, 20)
    checks.check_delivered(counts, [request], draft_tokens=2)

    # A server that counts each step twice, and its accepted drafts once.
    doubled = dataclasses.replace(counts, steps=40)
    with builders.invalid("STEPS_UNDELIVERED", emitted_tokens=80, later_tokens=60):
        checks.check_delivered(doubled, [request], draft_tokens=2)


def test_delivered_tokens_are_checked_against_a_sum_too() -> None:
    record = dataclasses.replace(builders.acceptance(COUNTS), prompts=())
    request = builders.trace(builders.chunk(1), builders.chunk(2, tokens=50))
    checks.check_emitted(record, [request], draft_tokens=3)
    request = builders.trace(builders.chunk(1, tokens=52))
    excess = "all requests: 52 tokens were delivered, but the prefill and 20 steps"
    with builders.invalid("TOKENS_IMPOSSIBLE", excess):
        checks.check_emitted(record, [request], draft_tokens=3)


@pytest.mark.parametrize(
    ("tokens", "drafts_every_step", "expected"),
    [
        ((1, 4, 1, 3), True, (3, 5, 9)),
        ((1, 4, 1), False, (2, 3, None)),
        ((1,), True, (0, 0, 0)),
        ((), True, (0, 0, 0)),
        *((tokens, True, None) for tokens in ((1, 5), (2, 4), (1, 4, 1, 8))),
    ],
)
def test_a_chunk_is_what_a_step_accepted_and_one_more(
    tokens: tuple[int, ...],
    expected: tuple[int, int, int | None] | None,
    *,
    drafts_every_step: bool,
) -> None:
    request = builders.trace(*(builders.chunk(at, size) for at, size in enumerate(tokens, 1)))
    if expected is None:
        with builders.invalid("CHUNKS_MERGED", "a step emits 4 at most"):
            request.counts_of_chunks(draft_tokens=3, drafts_every_step=drafts_every_step)
        return
    counts = request.counts_of_chunks(draft_tokens=3, drafts_every_step=drafts_every_step)
    assert (counts.steps, counts.accepted, counts.proposed) == expected
    assert len(counts.position_counts) == 3


H100 = builders.ROOT / "fixtures/recordings/h100/requests_c16_two_launches.jsonl.gz"


def recorded_requests(launch: int, *, extended: bool) -> list[RequestTrace]:
    """The requests of EAGLE-3 in a launch's first round, and those of its extension."""
    rows = [msgspec.json.decode(line) for line in gzip.decompress(H100.read_bytes()).splitlines()]
    arm_rows = [row for row in rows if row["launch"] == launch and row["arm"] == "eagle3"]
    first_round = {row["prompt"] for row in arm_rows if row["round"] == 0}
    rows_taken = [
        row
        for row in arm_rows
        if row["round"] == 0 or (extended and row["prompt"] not in first_round)
    ]
    return [
        msgspec.structs.replace(
            FINISHED, prompt_id=row["prompt"], first_chunk_tokens=1, chunk_sizes=row["chunk_sizes"]
        )
        for row in rows_taken
    ]


@pytest.mark.parametrize(
    ("launch", "extended", "steps", "accepted", "cut_off"),
    [(0, True, 4_321, 9_817, 199), (1, False, 2_163, 4_891, 106)],
)
def test_sixteen_streams_of_an_h100_carry_a_step_in_each_chunk(
    launch: int, steps: int, accepted: int, cut_off: int, *, extended: bool
) -> None:
    """What the cap cut off was accepted, and counts in the view of the verifier alone."""
    requests = recorded_requests(launch, extended=extended)
    counts = [
        request.counts_of_chunks(draft_tokens=3, drafts_every_step=True) for request in requests
    ]
    emitted = sum(counts, NO_STEPS)
    assert (emitted.steps, emitted.accepted) == (steps, accepted - cut_off)
    later_tokens = sum(request.tokens - 1 for request in requests)
    assert emitted.undrafted_steps(later_tokens) == 0
    assert not have_split_steps(requests, emitted, 3)
