"""What the reference engine speaks, against a recording of it."""

import json

import pytest

from specreg.acceptance.record import NO_STEPS, StepCounts
from specreg.acceptance.trace import StreamEvent
from specreg.core.errors import InvalidMeasurementError
from specreg.engines.registry import ENGINES
from specreg.engines.wire_format import DONE, Ask, EventSplitter
from tests.unit import builders

REFERENCE = ENGINES["reference"].wire_format
RECORDING = builders.ROOT / "fixtures/recordings/reference/5.19.0"
STREAMS = ("chat_stream.txt", "ids_stream.txt")
ASK = Ask(model="toy", output_cap_tokens=1, temperature=0.0)


def understood(name: str) -> list[StreamEvent]:
    """The events of a recorded stream, decoded as one answer."""
    decoder = REFERENCE.new_decoder(ASK)
    stream = (RECORDING / name).read_bytes()
    return [decoder.parse_event(event) for event in EventSplitter().feed(stream) if event != DONE]


@pytest.mark.parametrize("name", STREAMS)
def test_a_recorded_stream_adds_up(name: str) -> None:
    events = understood(name)
    sizes = [event.tokens for event in events if event.tokens]
    assert events[-1].usage_tokens == sum(sizes) > 0
    assert [event.finish_reason for event in events if event.finish_reason]
    (counts,) = [event.acceptance for event in events if event.acceptance]
    # One request at a time: each chunk after the first is a step, and only the last is cut.
    assert len(sizes) - 1 == counts.steps
    assert 0 <= counts.accepted - sum(size - 1 for size in sizes[1:]) <= 3


def test_the_counters_moved_by_what_the_recorded_answers_say() -> None:
    pages = ((RECORDING / name).read_text() for name in ("metrics_before.txt", "metrics.txt"))
    before, after = (REFERENCE.parse_counters(page).counts for page in pages)
    assert before is not None
    assert after is not None
    streamed = [understood(name)[-1].acceptance for name in STREAMS]
    whole = [
        StepCounts.from_histogram(own["acceptance_histogram"], own["num_draft_tokens"])
        for name in ("chat.json", "completion.json")
        for own in [json.loads((RECORDING / name).read_text())["metrics"]["speculative_decoding"]]
    ]
    assert after - before == sum((counts or NO_STEPS for counts in (*streamed, *whole)), NO_STEPS)
    assert (after - before).steps > 0


def test_a_refusal_is_an_error_of_the_server() -> None:
    with pytest.raises(InvalidMeasurementError, match="model 'another': isn't served here"):
        REFERENCE.new_decoder(ASK).parse_event((RECORDING / "error.json").read_bytes())
