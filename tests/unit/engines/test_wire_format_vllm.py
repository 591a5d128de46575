"""What vLLM speaks, against recordings of four real versions."""

import json
import re
from pathlib import Path

import pytest

from specreg.acceptance.record import NO_STEPS, StepCounts
from specreg.acceptance.trace import StreamEvent
from specreg.core.errors import InvalidMeasurementError
from specreg.engines.registry import ENGINES
from specreg.engines.wire_format import DONE, Ask, EventSplitter, Form, Message, Role
from tests.unit import builders

VLLM = ENGINES["vllm"].wire_format
VERSIONS = ("0.27.1", "0.29.0", "0.31.0", "0.32.0")
STREAMS = ("chat_stream.txt", "chat_stream_usage.txt", "comp_stream.txt", "ids_stream.txt")


def recording(version: str) -> Path:
    """The folder of a version."""
    return builders.ROOT / "fixtures/recordings/vllm" / version


def events(version: str, name: str) -> tuple[bytes, ...]:
    """The data of a recorded stream's events."""
    stream = (recording(version) / name).read_bytes()
    return tuple(event for event in EventSplitter().feed(stream) if event != DONE)


def parsed(event: bytes) -> StreamEvent:
    """An event as vLLM's decoder understands it."""
    ask = Ask(model="toy", output_cap_tokens=1, temperature=0.0)
    return VLLM.new_decoder(ask).parse_event(event)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", STREAMS)
def test_each_recorded_event_is_understood(version: str, name: str) -> None:
    for event in events(version, name):
        raw = json.loads(event)
        choice = raw["choices"][0] if raw["choices"] else {"delta": {}}
        text = choice["delta"].get("content") if "delta" in choice else choice["text"]
        usage = raw.get("usage") or {}
        understood = parsed(event)
        assert understood.tokens == len(choice.get("token_ids") or [])
        assert understood.text == (text or "")
        assert understood.finish_reason == choice.get("finish_reason")
        assert understood.usage_tokens == usage.get("completion_tokens")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", STREAMS)
def test_a_recorded_stream_adds_up(version: str, name: str) -> None:
    understood = [parsed(event) for event in events(version, name)]
    assert sum(event.tokens for event in understood) == understood[-1].usage_tokens
    assert [event.finish_reason for event in understood if event.finish_reason]
    counts = understood[-1].acceptance
    assert (counts is None) == (version == "0.27.1")
    if counts is not None:
        raw = json.loads(events(version, name)[-1])["metrics"]["speculative_decoding"]
        assert counts.steps == raw["num_spec_steps"]
        assert counts.accepted == raw["num_accepted_draft_tokens"]
        assert counts.proposed == raw["num_draft_tokens"]
        assert counts.histogram == tuple(raw["acceptance_histogram"])
        # Of no steps vLLM says 1.0 and 0.0 where we say nothing.
        assert (counts.acceptance_length or 1.0) == raw["mean_acceptance_length"]
        assert (counts.acceptance_rate or 0.0) == raw["draft_acceptance_rate"]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_counters_moved_by_what_the_recorded_answers_say(version: str) -> None:
    before = VLLM.parse_counters((recording(version) / "metrics_before.txt").read_text()).counts
    after = VLLM.parse_counters((recording(version) / "metrics.txt").read_text()).counts
    assert before is not None
    assert after is not None
    moved = after - before
    assert moved.steps > 0
    if version == "0.27.1":  # its answers say nothing of themselves
        return
    streamed = [parsed(events(version, name)[-1]).acceptance for name in STREAMS]
    whole = [
        StepCounts.from_histogram(own["acceptance_histogram"], own["num_draft_tokens"])
        for name in ("chat.json", "completion.json")
        for own in [
            json.loads((recording(version) / name).read_text())["metrics"]["speculative_decoding"]
        ]
    ]
    assert moved == sum((counts or NO_STEPS for counts in (*streamed, *whole)), NO_STEPS)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_requests_that_ended_are_counted_whatever_for(version: str) -> None:
    """The recorder's probe before, its six questions that are answered after; none runs on."""
    before, after = (
        VLLM.parse_counters((recording(version) / name).read_text())
        for name in ("metrics_before.txt", "metrics.txt")
    )
    assert (before.requests, after.requests) == (1, 7)
    assert (before.running_requests, after.running_requests) == (0, 0)


def test_whose_request_ended_is_not_asked() -> None:
    page = (recording("0.32.0") / "metrics.txt").read_text()
    aborted = 'finished_reason="abort",model_name="tiny-target"}'
    page = page.replace(f"{aborted} 0.0", f"{aborted} 2.0")
    running = 'vllm:num_requests_running{engine="0",model_name="tiny-target"}'
    second = f"{running.replace('0', '1')} 3.0"
    counters = VLLM.parse_counters(page.replace(f"{running} 0.0", f"{running} 1.0\n{second}"))
    assert (counters.requests, counters.running_requests) == (9, 4)


@pytest.mark.parametrize("name", ["vllm:request_success_total", "vllm:num_requests_running"])
def test_a_page_that_counts_no_requests_would_hide_those_of_others(name: str) -> None:
    page = (recording("0.32.0") / "metrics.txt").read_text().replace(name, "vllm:else")
    with pytest.raises(InvalidMeasurementError, match=f"looked for {name}") as error:
        VLLM.parse_counters(page)
    assert error.value.reason == "METRICS_MISSING"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_refusal_is_an_error_of_the_server(version: str) -> None:
    event = (recording(version) / "error.json").read_bytes()
    with pytest.raises(InvalidMeasurementError, match=r"server says .*`another` does not exist"):
        parsed(event)


def test_the_opening_event_carries_no_token() -> None:
    assert parsed(events("0.32.0", "chat_stream.txt")[0]) == StreamEvent()


def test_a_final_event_without_speculation_has_no_acceptance() -> None:
    metrics = b'{"choices": [], "usage": {"completion_tokens": 3}, "metrics": {"queue_time_ms": 1}}'
    assert parsed(metrics) == StreamEvent(usage_tokens=3)


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(b'{"choices": [{', id="cut-off"),
        pytest.param(b'{"choices": 3}', id="of-another-shape"),
        pytest.param(b'{"choices": [{"delta": {"content": "\xff"}}]}', id="not-utf8"),
    ],
)
def test_an_event_that_cannot_be_read_is_quoted(event: bytes) -> None:
    words = re.escape(event.decode(errors="replace"))
    with pytest.raises(InvalidMeasurementError, match=words) as error:
        parsed(event)
    assert error.value.reason == "EVENT_UNREADABLE"


def test_no_error_is_none() -> None:
    assert parsed(b'{"choices": [], "error": null}') == StreamEvent()


def test_an_event_without_choices_says_nothing() -> None:
    assert parsed(b'{"id": "chatcmpl-1"}') == StreamEvent()


def test_a_chat_asks_for_token_ids_and_usage() -> None:
    ask = Ask(
        model="toy",
        messages=(Message(Role.USER, "Hello"),),
        output_cap_tokens=7,
        temperature=0.5,
    )
    assert VLLM.path(ask) == "/v1/chat/completions"
    assert VLLM.body(ask) == {
        "model": "toy",
        "messages": (Message(Role.USER, "Hello"),),
        "max_tokens": 7,
        "temperature": 0.5,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }


def test_arguments_of_the_chat_template_go_along() -> None:
    ask = Ask(
        model="toy",
        messages=(Message(Role.USER, "Hello"),),
        output_cap_tokens=7,
        temperature=0.0,
        chat_template_args=(("enable_thinking", False),),
    )
    assert VLLM.body(ask)["chat_template_kwargs"] == {"enable_thinking": False}


def test_what_was_said_is_completed_without_a_template() -> None:
    said = (
        Message(Role.USER, "One"),
        Message(Role.ASSISTANT, " two"),
        Message(Role.USER, " three"),
    )
    ask = Ask(
        model="toy",
        form=Form.COMPLETIONS,
        messages=said,
        output_cap_tokens=7,
        temperature=0.0,
        ignore_eos=True,
    )
    assert VLLM.path(ask) == "/v1/completions"
    assert VLLM.body(ask)["prompt"] == "One two three"
    assert VLLM.body(ask)["ignore_eos"] is True


def test_token_ids_are_completed_as_they_are() -> None:
    ask = Ask(
        model="toy",
        form=Form.COMPLETIONS,
        token_ids=(5, 6, 7),
        output_cap_tokens=7,
        temperature=0.0,
    )
    assert VLLM.body(ask)["prompt"] == (5, 6, 7)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_thought_that_the_server_tells_apart_counts_and_is_no_text(version: str) -> None:
    """With `--reasoning-parser`, `delta.reasoning` is what `delta.content` is without."""
    raw = json.loads(next(one for one in events(version, "chat_stream.txt") if parsed(one).text))
    delta = raw["choices"][0]["delta"]
    delta["reasoning"] = delta.pop("content")
    understood = parsed(json.dumps(raw).encode())
    assert understood.tokens == len(raw["choices"][0]["token_ids"]) > 0
    assert understood.text == ""
