"""What Triton speaks with the vLLM backend, as documented and as recorded."""

import dataclasses

import pytest

from specreg.acceptance.trace import StreamEvent
from specreg.core.errors import InvalidMeasurementError, UnsupportedError
from specreg.engines.registry import ENGINES
from specreg.engines.wire_format import Ask, EventSplitter, Form, Message, Role
from tests.unit import builders

TRITON = ENGINES["triton"].wire_format
RECORDING = builders.ROOT / "fixtures/recordings/triton/2.51.0"
TEXT = Ask(
    model="toy",
    form=Form.COMPLETIONS,
    messages=(Message(Role.USER, "Hello"),),
    output_cap_tokens=7,
    temperature=0.0,
)


def test_a_response_says_how_many_tokens_it_holds() -> None:
    decoder = TRITON.new_decoder(TEXT)
    events = [
        decoder.parse_event(event)
        for event in (
            b'{"text_output": "a", "num_output_tokens": 1, "finish_reason": "None"}',
            b'{"text_output": "bcd", "num_output_tokens": 3, "finish_reason": "length"}',
        )
    ]
    assert events == [
        StreamEvent(tokens=1, text="a", usage_tokens=1),
        StreamEvent(tokens=3, text="bcd", usage_tokens=4, finish_reason="length"),
    ]


def test_a_recorded_stream_adds_up_to_what_is_said_at_once() -> None:
    decoder = TRITON.new_decoder(TEXT)
    stream = (RECORDING / "generate_stream.txt").read_bytes()
    events = [decoder.parse_event(event) for event in EventSplitter().feed(stream)]
    whole = TRITON.new_decoder(TEXT).parse_event((RECORDING / "generate.json").read_bytes())
    assert whole.tokens == whole.usage_tokens == events[-1].usage_tokens == 22
    assert "".join(event.text for event in events) == whole.text
    assert [event.finish_reason for event in events if event.finish_reason] == ["stop"]
    assert [event.tokens for event in events if event.tokens][:4] == [1, 3, 1, 1]


def test_a_recorded_refusal_is_an_error_of_the_server() -> None:
    with pytest.raises(InvalidMeasurementError, match="unknown model: 'another'"):
        TRITON.new_decoder(TEXT).parse_event((RECORDING / "error.json").read_bytes())


def test_a_request_asks_for_the_outputs_that_count() -> None:
    assert TRITON.path(TEXT) == "/v2/models/toy/generate_stream"
    body = TRITON.body(TEXT)
    assert (body["text_input"], body["return_num_output_tokens"]) == ("Hello", True)
    assert body["parameters"] == {"max_tokens": 7, "temperature": 0.0, "ignore_eos": False}


def test_an_answer_at_once_is_asked_for_elsewhere_in_the_same_words() -> None:
    whole = dataclasses.replace(TEXT, stream=False)
    assert TRITON.path(whole) == "/v2/models/toy/generate"
    assert TRITON.body(whole) == {**TRITON.body(TEXT), "stream": False}


@pytest.mark.parametrize(
    "ask",
    [
        dataclasses.replace(TEXT, form=Form.CHAT),
        dataclasses.replace(TEXT, messages=(), token_ids=(5, 6)),
    ],
    ids=["chat", "ids"],
)
def test_what_it_cannot_take_is_refused_with_the_way_out(ask: Ask) -> None:
    with pytest.raises(UnsupportedError, match='form = "completions" in the matrix'):
        TRITON.body(ask)


def test_an_error_is_no_text() -> None:
    with pytest.raises(InvalidMeasurementError, match=r"SERVER_ERROR.*no model"):
        TRITON.new_decoder(TEXT).parse_event(b'{"error": "no model"}')


def test_who_has_no_counters_is_not_read_as_zero() -> None:
    assert TRITON.counters_path_of("2.51") is None
    with pytest.raises(InvalidMeasurementError, match="METRICS_MISSING"):
        TRITON.parse_counters("")
