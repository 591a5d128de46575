"""The meter takes the best source there is, and refuses what doesn't fit together."""

import dataclasses
from typing import ClassVar

import msgspec
import pytest

from specreg.acceptance.record import NO_STEPS, AcceptanceRecord, Counters, Source, StepCounts, View
from specreg.acceptance.trace import RequestTrace
from specreg.engines.methods import Tree
from specreg.engines.registry import ENGINES
from specreg.engines.server_spec import ServerSpec
from specreg.engines.vllm import VllmWireFormat
from specreg.engines.wire_format import SpecTokensDetails, WireFormat
from specreg.measurement.arm import read_acceptance
from tests.unit import builders

VLLM = ENGINES["vllm"].wire_format
ONE = builders.counts(1, 0, 1, 0)
OTHER = builders.counts(0, 0, 0, 2)
BOTH = ONE + OTHER
NOTHING = Counters(steps=0, counts=NO_STEPS)


class Silent(VllmWireFormat):
    """A wire_format whose answers and counters say nothing of acceptance."""

    request_source: ClassVar[Source | None] = None
    counters_source: ClassVar[Source | None] = None
    counters_path: ClassVar[str | None] = None


def request(counts: StepCounts | None, *tokens: int) -> RequestTrace:
    trace = builders.trace(*(builders.chunk(at, size) for at, size in enumerate(tokens, 1)))
    return msgspec.structs.replace(trace, acceptance=counts)


SPOKEN = (request(ONE, 1, 1, 3), request(OTHER, 1, 4, 4))
MUTE = tuple(msgspec.structs.replace(trace, acceptance=None) for trace in SPOKEN)


def read(
    traces: tuple[RequestTrace, ...],
    moved: Counters | None,
    wire_format: WireFormat = VLLM,
    spec: ServerSpec = builders.SPEC,
) -> AcceptanceRecord:
    """The acceptance of requests during which the counters moved from 0."""
    before = moved and dataclasses.replace(
        NOTHING, requests=0, running_requests=0, counts=moved.counts and NO_STEPS
    )
    record = read_acceptance(spec, wire_format, traces, before, moved)
    assert record is not None
    return record


def page(counts: StepCounts) -> Counters:
    """The counters of a server that says all there is to know."""
    return Counters(steps=counts.steps, counts=counts)


AGREEING = page(BOTH)


@pytest.mark.parametrize(
    ("drafted_tokens", "tree"), [(3, None), (6, Tree(branches=2, drafted_tokens=6))]
)
def test_a_histogram_that_ends_early_is_as_long_as_the_case_can_accept(
    drafted_tokens: int, tree: Tree | None
) -> None:
    """SGLang ends it at the most that a step accepted."""
    details = SpecTokensDetails(
        spec_correct_drafts_histogram=(2, 0, 1),
        spec_num_correct_drafts=2,
        spec_num_proposed_drafts=3 * drafted_tokens,
    ).counts
    spec = dataclasses.replace(builders.SPEC, tree=tree)
    requests = (request(details, 1, 1, 1, 3),)
    sglang = ENGINES["sglang"].wire_format
    record = read(requests, Counters(steps=3), sglang, spec)
    assert record.total.histogram == record.prompts[0].counts.histogram == (2, 0, 1, 0)
    assert record.total.proposed == 3 * drafted_tokens


TOO_LONG = StepCounts(steps=2, accepted=7, proposed=6, position_counts=(3, 2, 2))
CONTRADICTING = dataclasses.replace(BOTH, accepted=BOTH.accepted - 1)


@pytest.mark.parametrize(
    ("reason", "traces", "before", "after"),
    [
        ("COUNTS_INCONSISTENT", MUTE, NOTHING, page(CONTRADICTING)),
        ("TOKENS_IMPOSSIBLE", (request(ONE, 1, 1, 4),), NOTHING, page(ONE)),
        ("FOREIGN_TRAFFIC", SPOKEN, NOTHING, page(BOTH + ONE)),
        ("COUNTERS_FELL", SPOKEN, page(BOTH), page(ONE)),
        ("LENGTH_IMPOSSIBLE", (request(TOO_LONG, 1, 4, 4),), NOTHING, page(TOO_LONG)),
        ("SPEC_DISABLED", MUTE, NOTHING, NOTHING),
    ],
)
def test_each_check_that_breaks_has_a_reason_of_its_own(
    reason: str, traces: tuple[RequestTrace, ...], before: Counters, after: Counters
) -> None:
    with builders.invalid(reason):
        read_acceptance(builders.SPEC, VLLM, traces, before, after)


def test_counts_in_answers_are_believed_if_the_counters_agree() -> None:
    """Each keeps its turn and its category."""
    second = msgspec.structs.replace(SPOKEN[1], turn=2, category="math")
    record = read((SPOKEN[0], second), AGREEING)
    assert (record.source, record.view) == (Source.VLLM_REQUEST, View.VERIFIER)
    assert record.total == BOTH
    assert [prompt.completion_tokens for prompt in record.prompts] == [5, 9]
    assert [part.total for part in record.by_turn.values()] == [ONE, OTHER]
    assert [*record.by_category] == ["chat", "math"]


def test_counters_replace_answers_without_counts() -> None:
    record = read(MUTE, AGREEING)
    assert (record.source, record.view) == (Source.VLLM_COUNTERS, View.VERIFIER)
    assert (record.total, record.prompts) == (BOTH, ())


def test_only_our_requests_may_end_if_steps_count_at_the_end() -> None:
    tensorrt_llm = ENGINES["tensorrt_llm"].wire_format
    record = read(MUTE, dataclasses.replace(AGREEING, requests=2), tensorrt_llm)
    assert (record.source, record.total) == (Source.TRTLLM_COUNTERS, BOTH)
    for ended, reason in ((3, "FOREIGN_TRAFFIC"), (1, "COUNTS_DISAGREE")):
        with builders.invalid(reason):
            read(MUTE, dataclasses.replace(AGREEING, requests=ended), tensorrt_llm)


def test_a_request_that_runs_through_the_whole_window_is_foreign() -> None:
    """It ends neither before nor within it, so that no count of those that ended shows it."""
    before = dataclasses.replace(NOTHING, requests=4, running_requests=1)
    after = dataclasses.replace(AGREEING, requests=6, running_requests=1)
    with builders.invalid("FOREIGN_TRAFFIC", ours="none running", counted="1 running"):
        read_acceptance(builders.SPEC, VLLM, MUTE, before, after)
    idle = [dataclasses.replace(state, running_requests=0) for state in (before, after)]
    assert read_acceptance(builders.SPEC, VLLM, MUTE, *idle)


def test_chunks_are_the_last_resort() -> None:
    record = read(MUTE, None, Silent())
    assert (record.source, record.view) == (Source.STREAM_CHUNKS, View.EMITTED)
    assert record.total == BOTH


@pytest.mark.parametrize("wire_format", ["triton", "tensorrt_llm"])
def test_a_drafter_that_is_off_is_recognised_by_chunks_alone(wire_format: str) -> None:
    """Nine chunks of one token: the 27 drafts that they would stand for, nobody has seen."""
    spec = dataclasses.replace(builders.SPEC, method="eagle3")
    traces = (request(None, *(1,) * 10),)
    with builders.invalid("CHUNKS_OF_ONE"):
        read_acceptance(spec, ENGINES[wire_format].wire_format, traces, None, None)


def test_chunks_do_not_replace_counts_that_answers_should_have() -> None:
    """An older SGLang, say: its figures would look like those of a newer one."""
    with builders.invalid("ACCEPTANCE_MISSING", sources="the answers and the counters"):
        read(MUTE, Counters(steps=4), VLLM)


def test_one_answer_without_its_counts_makes_acceptance_invalid() -> None:
    with builders.invalid("ACCEPTANCE_PARTIAL"):
        read((SPOKEN[0], MUTE[1]), AGREEING)


def test_an_answer_of_one_token_needs_no_record() -> None:
    record = read((SPOKEN[0], request(None, 1)), Counters(steps=2, counts=ONE))
    assert [prompt.counts for prompt in record.prompts] == [ONE, NO_STEPS]


def test_merged_chunks_are_refused_if_they_are_the_only_source() -> None:
    with builders.invalid("CHUNKS_MERGED"):
        read((request(None, 1, 8),), None, Silent())
    assert read((request(OTHER, 1, 8),), Counters(steps=2, counts=OTHER)).total == OTHER


def test_a_plain_server_has_no_acceptance() -> None:
    assert read_acceptance(builders.PLAIN_SPEC, VLLM, MUTE, None, None) is None


def test_steps_without_a_draft_may_deliver_more_than_the_counted_ones_emit() -> None:
    """From chunks alone nobody knows what such a step would have drafted."""
    ngram = dataclasses.replace(builders.SPEC, method="ngram", draft=None)
    assert read((request(ONE, 1, 1, 3, 1, 1),), page(ONE), VLLM, ngram).total == ONE
    record = read(MUTE, None, Silent(), ngram)
    assert (record.total.accepted, record.total.proposed) == (BOTH.accepted, None)


def test_merged_steps_without_a_draft_are_no_missing_drafts() -> None:
    """Two steps in one chunk, of a server that goes without a draft where the case asks for it."""
    counts = StepCounts.from_histogram((0, 0, 0, 1), 3)
    traces = (request(counts, 1, 1, 2, 4),)
    key = "num_speculative_tokens_per_batch_size"
    for drafts_of_many in (1, 2):
        schedule = ((1, 3, 3), (4, 8, drafts_of_many))
        always = dataclasses.replace(builders.SPEC, speculation=((key, schedule),))
        excess = "8 tokens were delivered, but the prefill and 3 steps emit 7"
        with builders.invalid("TOKENS_IMPOSSIBLE", excess):
            read(traces, page(counts), spec=always)
    schedule = ((1, 3, 3), (4, 8, 0))
    dynamic = dataclasses.replace(builders.SPEC, speculation=((key, schedule),))
    record = read(traces, page(counts), spec=dynamic)
    assert record.total == counts
    assert record.undrafted_steps == 3
