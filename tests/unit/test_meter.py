"""The meter takes the best source there is, and refuses what doesn't fit together."""

import dataclasses
from typing import ClassVar

import msgspec
import pytest

from specreg.acceptance.record import NO_STEPS, AcceptanceRecord, Counters, Source, StepCounts, View
from specreg.errors import InvalidMeasurementError
from specreg.meter import read_acceptance
from specreg.protocols import PROTOCOLS, Protocol
from specreg.protocols.vllm import VllmProtocol
from specreg.trace import RequestTrace
from tests.unit import builders

VLLM = PROTOCOLS["vllm"]
ONE, OTHER = builders.counts(1, 0, 1, 0), builders.counts(0, 0, 0, 2)
BOTH = ONE + OTHER
NOTHING = Counters(steps=0, counts=NO_STEPS)


class Silent(VllmProtocol):
    """A protocol whose answers and counters say nothing of acceptance."""

    request_source: ClassVar[Source | None] = None
    counters_source: ClassVar[Source | None] = None
    counters_path: ClassVar[str | None] = None


def request(counts: StepCounts | None, *tokens: int) -> RequestTrace:
    """A request with its own record and chunks of so many tokens."""
    trace = builders.trace(*(builders.chunk(at, size) for at, size in enumerate(tokens, 1)))
    return msgspec.structs.replace(trace, acceptance=counts)


SPOKEN = (request(ONE, 1, 1, 3), request(OTHER, 1, 4, 4))
MUTE = tuple(msgspec.structs.replace(trace, acceptance=None) for trace in SPOKEN)


def read(
    traces: tuple[RequestTrace, ...], moved: Counters | None, protocol: Protocol = VLLM
) -> AcceptanceRecord:
    """The acceptance of requests during which the counters moved."""
    before = (
        None if moved is None else dataclasses.replace(NOTHING, counts=moved.counts and NO_STEPS)
    )
    found = read_acceptance(builders.SPEC, protocol, traces, before, moved)
    assert found is not None
    return found


def test_requests_that_speak_for_themselves_are_believed_if_the_counters_agree() -> None:
    record = read(SPOKEN, Counters(steps=4, counts=BOTH))
    assert (record.source, record.view) == (Source.VLLM_REQUEST, View.VERIFIER)
    assert record.total == BOTH
    assert [prompt.counts for prompt in record.prompts] == [ONE, OTHER]
    assert [prompt.completion_tokens for prompt in record.prompts] == [5, 9]


def test_counters_speak_for_requests_that_say_nothing() -> None:
    record = read(MUTE, Counters(steps=4, counts=BOTH))
    assert (record.source, record.view) == (Source.VLLM_COUNTERS, View.VERIFIER)
    assert (record.total, record.prompts) == (BOTH, ())


@pytest.mark.parametrize(
    ("protocol", "moved"), [(Silent(), None), (VLLM, Counters(steps=4))], ids=["none", "steps-only"]
)
def test_chunks_are_the_last_resort(protocol: Protocol, moved: Counters | None) -> None:
    record = read(MUTE, moved, protocol)
    assert (record.source, record.view) == (Source.STREAM_CHUNKS, View.EMITTED)
    assert record.total == BOTH


def test_counters_of_steps_alone_are_held_against_the_requests() -> None:
    assert read(SPOKEN, Counters(steps=4)).total == BOTH
    with pytest.raises(InvalidMeasurementError, match="FOREIGN_TRAFFIC"):
        read(SPOKEN, Counters(steps=5))


def test_one_answer_without_its_record_is_no_mean_of_the_others() -> None:
    with pytest.raises(InvalidMeasurementError, match="sent no acceptance, to others it did") as e:
        read((SPOKEN[0], MUTE[1]), Counters(steps=4, counts=BOTH))
    assert e.value.reason == "ACCEPTANCE_MISSING"


def test_an_answer_of_one_token_needs_no_record() -> None:
    record = read((SPOKEN[0], request(None, 1)), Counters(steps=2, counts=ONE))
    assert [prompt.counts for prompt in record.prompts] == [ONE, NO_STEPS]


def test_merged_chunks_are_refused_where_they_are_all_there_is() -> None:
    with pytest.raises(InvalidMeasurementError, match="CHUNKS_MERGED"):
        read((request(None, 1, 8),), None, Silent())
    assert read((request(OTHER, 1, 8),), Counters(steps=2, counts=OTHER)).total == OTHER


def test_a_plain_server_has_no_acceptance() -> None:
    assert read_acceptance(builders.PLAIN_SPEC, VLLM, MUTE, None, None) is None
