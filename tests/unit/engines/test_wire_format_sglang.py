"""What SGLang speaks, against recordings of the real 0.5.23."""

import json
from collections.abc import Mapping

import pytest

from specreg.acceptance.record import Counters, Gauges, StepCounts
from specreg.acceptance.trace import StreamEvent
from specreg.core.errors import InvalidMeasurementError
from specreg.engines.registry import ENGINES
from specreg.engines.wire_format import (
    DONE,
    Ask,
    EventSplitter,
    Form,
    Message,
    Role,
    SpecTokensDetails,
)
from tests.unit import builders

SGLANG = ENGINES["sglang"].wire_format
RECORDING = builders.ROOT / "fixtures/recordings/sglang/0.5.23"
CHAT = Ask(
    model="toy",
    messages=(Message(Role.USER, "Hello"),),
    output_cap_tokens=7,
    temperature=0.0,
    chat_template_args=(("enable_thinking", False),),
)
TEXT = Ask(
    model="toy",
    form=Form.COMPLETIONS,
    messages=CHAT.messages,
    output_cap_tokens=7,
    temperature=0.0,
    ignore_eos=True,
)


def understood(name: str, ask: Ask) -> list[StreamEvent]:
    """The events of a recorded stream, decoded as one answer."""
    decoder = SGLANG.new_decoder(ask)
    stream = (RECORDING / name).read_bytes()
    return [decoder.parse_event(event) for event in EventSplitter().feed(stream) if event != DONE]


@pytest.mark.parametrize(
    ("name", "ask", "tokens", "ended", "said"),
    [
        ("chat_stream.txt", CHAT, 48, "length", (18, 32, 54, (5, 2, 3, 8))),
        ("generate_stream.txt", TEXT, 22, "stop", (14, 7, 42, (9, 3, 2))),
    ],
)
def test_a_recorded_stream_adds_up(
    name: str, ask: Ask, tokens: int, ended: str, said: tuple[int, int, int, tuple[int, ...]]
) -> None:
    events = understood(name, ask)
    sizes = [event.tokens for event in events if event.tokens]
    assert events[-1].usage_tokens == sum(sizes) == tokens
    assert [event.finish_reason for event in events if event.finish_reason] == [ended]
    (counts,) = [event.acceptance for event in events if event.acceptance]
    assert (counts.steps, counts.accepted, counts.proposed, counts.histogram) == said
    # One request at a time: each chunk after the first is a step, and only the last is cut.
    assert len(sizes) - 1 == counts.steps
    assert 0 <= counts.accepted - sum(size - 1 for size in sizes[1:]) <= 3


def test_an_answer_without_steps_has_no_counts() -> None:
    assert SpecTokensDetails().counts is None


OF_0_5_9 = {
    "spec_accept_token_num": 4,
    "spec_draft_token_num": 12,
    "spec_accept_histogram": [1, 2, 1],
}
OF_0_5_11 = {
    "spec_accepted_drafts": 4,
    "spec_proposed_drafts": 12,
    "spec_accept_histogram": [1, 2, 1],
}
OF_0_5_21 = {
    "spec_num_correct_drafts": 4,
    "spec_num_proposed_drafts": 12,
    "spec_correct_drafts_histogram": [1, 2, 1],
}


def told(meta: Mapping[str, object]) -> StepCounts | None:
    """What the last event of `/generate` tells."""
    event = {"text": "a", "meta_info": {"completion_tokens": 9, "spec_verify_ct": 4} | dict(meta)}
    return SGLANG.new_decoder(TEXT).parse_event(json.dumps(event).encode()).acceptance


@pytest.mark.parametrize(
    "meta",
    [
        pytest.param(OF_0_5_9, id="0.5.9"),
        pytest.param(OF_0_5_11, id="0.5.11"),
        pytest.param(OF_0_5_11 | OF_0_5_21, id="0.5.13-0.5.19"),
        pytest.param(OF_0_5_21, id="0.5.21"),
    ],
)
def test_the_names_of_every_version_mean_the_same(meta: Mapping[str, object]) -> None:
    counts = told(meta)
    assert counts is not None
    assert (counts.steps, counts.accepted, counts.proposed) == (4, 4, 12)
    assert counts.histogram == (1, 2, 1)


def test_a_version_without_counts_tells_nothing() -> None:
    """0.5.4 gives its own length and rate; 0.5.11 no histogram where DFLASH drafts."""
    assert told({"spec_accept_length": 2.25, "spec_accept_rate": 0.3}) is None
    assert told({"spec_accepted_drafts": 4, "spec_proposed_drafts": 12}) is None


@pytest.mark.parametrize("meta", [OF_0_5_9, OF_0_5_11, OF_0_5_21], ids=["9", "11", "21"])
@pytest.mark.parametrize("which", [0, 1], ids=["accepted", "proposed"])
def test_a_name_that_means_something_else_is_refused(
    meta: Mapping[str, object], which: int
) -> None:
    """Accepted tokens with the bonus token, for one, are more than the histogram adds up to."""
    name = list(meta)[which]
    other = 8 if which == 0 else None
    with pytest.raises(InvalidMeasurementError, match="COUNTS_DISAGREE"):
        told({**meta, name: other})


def test_an_export_tells_of_each_request_what_an_answer_would() -> None:
    """A line may be torn; one of an answer without steps has no counts."""
    asked = {"request_parameters": '{"text": "private"}', "finish_reason": {"type": "stop"}}
    lines = [
        json.dumps({**asked, "id": name, **record}).encode()
        for name, record in (("a1", OF_0_5_11), ("b2", OF_0_5_21), ("c3", {}), ("d4", OF_0_5_11))
    ]
    found = SGLANG.parse_export([*lines[:3], lines[3][:-9], b"", b"\xff"])
    assert found.keys() == {"a1", "b2"}
    assert found["a1"] == found["b2"] == told(OF_0_5_21)


@pytest.mark.parametrize(
    ("version", "path"),
    [
        ("0.5.9", None),
        ("0.5.11", None),
        ("0.5.13", "/metrics"),
        ("0.5.23", "/metrics"),
        ("", "/metrics"),
    ],
)
def test_older_versions_count_no_steps(version: str, path: str | None) -> None:
    assert SGLANG.counters_path_of(version) == path


def test_a_text_that_is_repeated_is_told_once() -> None:
    last = [line for line in (RECORDING / "generate_stream.txt").read_text().splitlines() if line]
    whole = json.loads(last[-2].removeprefix("data: "))["text"]
    assert "".join(event.text for event in understood("generate_stream.txt", TEXT)) == whole


def test_the_verify_calls_of_a_recorded_page_are_read() -> None:
    counters = SGLANG.parse_counters((RECORDING / "metrics.txt").read_text())
    gauges = Gauges(acceptance_length_tokens=1.525, acceptance_rate_frac=0.175)
    assert counters == Counters(steps=96, gauges=gauges)


@pytest.mark.parametrize(
    ("lines", "gauges"),
    [
        pytest.param((), None, id="absent"),
        pytest.param(
            ('spec_accept_length{tp="0"} 0', 'spec_accept_rate{tp="0"} 0'), None, id="unset"
        ),
        pytest.param(("spec_accept_length NaN", "spec_accept_rate NaN"), None, id="no-number"),
        pytest.param(
            (
                *('spec_accept_length{tp="0"} 2', 'spec_accept_length{tp="1"} 3'),
                *('spec_accept_rate{tp="1"} 0.75', 'spec_accept_rate{tp="0"} 0.25'),
                *('spec_accept_length{tp="2"} 0', 'spec_accept_rate{tp="2"} 0'),
            ),
            Gauges(acceptance_length_tokens=2.5, acceptance_rate_frac=0.5),
            id="of-two-schedulers-and-an-idle-one",
        ),
        pytest.param(
            ("spec_accept_length 2.5",),
            Gauges(acceptance_length_tokens=2.5, acceptance_rate_frac=None),
            id="without-a-rate",
        ),
    ],
)
def test_gauges_are_read_where_there_are_any(lines: tuple[str, ...], gauges: Gauges | None) -> None:
    page = "".join(f"sglang:{line}\n" for line in ("spec_verify_calls_total 7", *lines))
    assert SGLANG.parse_counters(page) == Counters(steps=7, gauges=gauges)


def test_a_page_without_them_says_what_was_looked_for() -> None:
    with pytest.raises(InvalidMeasurementError, match="sglang:spec_verify_calls_total") as error:
        SGLANG.parse_counters("# nothing\n")
    assert error.value.reason == "METRICS_MISSING"
    with pytest.raises(InvalidMeasurementError, match="METRICS_UNREADABLE"):
        SGLANG.parse_counters("<html>{")
    for value in ("NaN", "+Inf"):
        with pytest.raises(InvalidMeasurementError, match="METRICS_UNREADABLE"):
            SGLANG.parse_counters(f"sglang:spec_verify_calls_total {value}\n")


@pytest.mark.parametrize("ask", [CHAT, TEXT], ids=["chat", "text"])
def test_what_cannot_be_understood_is_named(ask: Ask) -> None:
    with pytest.raises(InvalidMeasurementError, match="EVENT_UNREADABLE"):
        SGLANG.new_decoder(ask).parse_event(b'{"text": ')
    with pytest.raises(InvalidMeasurementError, match=r"SERVER_ERROR.*too long"):
        SGLANG.new_decoder(ask).parse_event(b'{"error": {"message": "too long"}}')


def test_a_chat_asks_for_its_acceptance_and_a_usage_in_each_chunk() -> None:
    body = SGLANG.body(CHAT)
    assert SGLANG.path(CHAT) == "/v1/chat/completions"
    assert body["return_spec_tokens_details"] is True
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert body["chat_template_kwargs"] == {"enable_thinking": False}


def test_a_text_or_ids_go_to_its_own_endpoint() -> None:
    assert SGLANG.path(TEXT) == "/generate"
    assert SGLANG.body(TEXT) == {
        "text": "Hello",
        "sampling_params": {"max_new_tokens": 7, "temperature": 0.0, "ignore_eos": True},
        "stream": True,
    }
    ids = Ask(
        model="toy",
        form=Form.COMPLETIONS,
        token_ids=(5, 6),
        output_cap_tokens=7,
        temperature=0.0,
    )
    assert SGLANG.body(ids)["input_ids"] == (5, 6)


def test_a_thought_that_the_server_tells_apart_counts_and_is_no_text() -> None:
    """With `--reasoning-parser`, `delta.reasoning_content` is what `delta.content` is without."""
    stream = EventSplitter().feed((RECORDING / "chat_stream.txt").read_bytes())
    raw = [json.loads(event) for event in stream if event != DONE]
    for one in raw:
        for choice in one["choices"]:
            choice["delta"]["reasoning_content"] = choice["delta"].pop("content", None)
    decoder = SGLANG.new_decoder(CHAT)
    events = [decoder.parse_event(json.dumps(one).encode()) for one in raw]
    assert sum(event.tokens for event in events) == events[-1].usage_tokens == 48
    assert "".join(event.text for event in events) == ""
