"""What the engines speak, against recordings of real servers."""

import dataclasses
import itertools
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specreg.acceptance.record import NO_STEPS, StepCounts
from specreg.acceptance.trace import StreamEvent
from specreg.core.http import MAX_ANSWER_BYTES
from specreg.engines.registry import ENGINES
from specreg.engines.sglang import SglangWireFormat
from specreg.engines.vllm import VllmWireFormat
from specreg.engines.wire_format import (
    DONE_EVENT,
    AnswerSettings,
    Ask,
    EventSplitter,
    Form,
    Message,
    TokenApi,
)
from tests.unit import builders

HELLO = (Message("user", "Hello"),)
CHAT = Ask(
    model="toy",
    messages=HELLO,
    output_cap_tokens=7,
    temperature=0.0,
    chat_template_args=(("enable_thinking", False),),
)
TEXT = dataclasses.replace(CHAT, form=Form.COMPLETIONS, ignore_eos=True, chat_template_args=())
IDS = dataclasses.replace(TEXT, messages=(), token_ids=(5, 6))
VLLM_STREAMS = ("chat_stream.txt", "chat_stream_usage.txt", "comp_stream.txt", "ids_stream.txt")
REFERENCE_STREAMS = ("chat_stream.txt", "ids_stream.txt")
VLLM_WITHOUT_COUNTS = ("0.26.0", "0.27.1")
"""The versions whose answers don't carry their own counts; 0.26.0 was recorded on an H100."""
VLLM_WITH_COUNTS = ("0.29.0", "0.31.0", "0.32.0", "0.33.0")
"""Those whose answers do; 0.33.0 was recorded on an H200."""
VLLM_VERSIONS = (*VLLM_WITHOUT_COUNTS, *VLLM_WITH_COUNTS)
STREAMS = [
    *(("vllm", version, name, CHAT) for version in VLLM_VERSIONS for name in VLLM_STREAMS),
    *(("reference", "5.19.0", name, CHAT) for name in REFERENCE_STREAMS),
    ("sglang", "0.5.23", "chat_stream.txt", CHAT),
    ("sglang", "0.5.23", "generate_stream.txt", TEXT),
    ("triton", "2.51.0", "generate_stream.txt", TEXT),
]
TALKING = [
    *((engine, ask) for engine in ("vllm", "sglang") for ask in (CHAT, TEXT)),
    *(("reference", CHAT), ("tensorrt_llm", CHAT), ("triton", TEXT)),
]


VLLM = VllmWireFormat()
SGLANG = SglangWireFormat()
APIS: dict[str, TokenApi] = {
    name: engine.token_api for name, engine in ENGINES.items() if engine.token_api
}
GREEDY = AnswerSettings(output_cap_tokens=3)
DRAWN = AnswerSettings(output_cap_tokens=3, temperature=0.7, ignore_eos=True, seed=11)


def recording(engine: str, version: str) -> Path:
    """The folder of a version."""
    return builders.ROOT / "fixtures/recordings" / engine / version


def raw_events(engine: str, version: str, name: str) -> list[bytes]:
    """The data of a recorded stream's events."""
    stream = (recording(engine, version) / name).read_bytes()
    return [event for event in EventSplitter().feed(stream) if event != DONE_EVENT]


def parsed(engine: str, *events: bytes, ask: Ask = CHAT) -> list[StreamEvent]:
    """Events decoded as one answer."""
    return list(map(ENGINES[engine].wire_format.new_parser(ask), events))


@pytest.mark.parametrize(("engine", "version", "name", "ask"), STREAMS)
def test_a_recorded_stream_adds_up(engine: str, version: str, name: str, ask: Ask) -> None:
    events = parsed(engine, *raw_events(engine, version, name), ask=ask)
    sizes = [event.tokens for event in events if event.tokens]
    assert events[-1].usage_tokens == sum(sizes) > 0
    assert len([event.finish_reason for event in events if event.finish_reason]) == 1
    records = [event.acceptance for event in events if event.acceptance]
    assert len(records) == (engine != "triton" and version not in VLLM_WITHOUT_COUNTS)
    if engine in {"sglang", "reference"}:
        (counts,) = records
        # One request at a time: each chunk after the first is a step, and only the last is cut.
        assert len(sizes) - 1 == counts.steps
        assert 0 <= counts.accepted - sum(size - 1 for size in sizes[1:]) <= 3


@pytest.mark.parametrize("version", VLLM_VERSIONS)
@pytest.mark.parametrize("name", VLLM_STREAMS)
def test_each_event_of_vllm_is_understood_and_the_last_one_tells_its_steps(
    version: str, name: str
) -> None:
    for event in raw_events("vllm", version, name):
        raw = json.loads(event)
        choice = raw["choices"][0] if raw["choices"] else {"delta": {}}
        text = choice["delta"].get("content") if "delta" in choice else choice["text"]
        (understood,) = parsed("vllm", event)
        assert understood.tokens == len(choice.get("token_ids") or [])
        assert understood.text == (text or "")
        assert understood.finish_reason == choice.get("finish_reason")
        assert understood.usage_tokens == (raw.get("usage") or {}).get("completion_tokens")
    counts = understood.acceptance
    assert (counts is None) == (version in VLLM_WITHOUT_COUNTS)
    if counts is not None:
        own_counts = raw["metrics"]["speculative_decoding"]
        assert counts.steps == own_counts["num_spec_steps"]
        assert counts.accepted == own_counts["num_accepted_draft_tokens"]
        assert counts.proposed == own_counts["num_draft_tokens"]
        assert counts.histogram == tuple(own_counts["acceptance_histogram"])
        # Of no steps vLLM says 1.0 and 0.0 where we say nothing.
        assert (counts.acceptance_length or 1.0) == own_counts["mean_acceptance_length"]
        assert (counts.acceptance_rate or 0.0) == own_counts["draft_acceptance_rate"]


@pytest.mark.parametrize("version", VLLM_WITHOUT_COUNTS)
def test_the_counters_moved_by_a_step_for_each_chunk(version: str) -> None:
    """A chat was asked whole and streamed twice, a completion whole and streamed once: greedy."""
    before, after = (
        ENGINES["vllm"].wire_format.parse_counters((recording("vllm", version) / name).read_text())
        for name in ("metrics_before.txt", "metrics.txt")
    )
    chat, usage, completion, ids = (
        sum(event.tokens > 0 for event in parsed("vllm", *raw_events("vllm", version, name))) - 1
        for name in VLLM_STREAMS
    )
    assert chat == usage
    assert after.steps - before.steps == 3 * chat + 2 * completion + ids


@pytest.mark.parametrize("version", VLLM_WITH_COUNTS)
def test_the_counters_moved_by_what_the_recorded_answers_say(version: str) -> None:
    folder = recording("vllm", version)
    before, after = (
        ENGINES["vllm"].wire_format.parse_counters((folder / name).read_text()).counts
        for name in ("metrics_before.txt", "metrics.txt")
    )
    assert before is not None
    assert after is not None
    streamed = [
        parsed("vllm", raw_events("vllm", version, name)[-1])[0].acceptance for name in VLLM_STREAMS
    ]
    moved_totals = [
        StepCounts.from_histogram(counts["acceptance_histogram"], counts["num_draft_tokens"])
        for name in ("chat.json", "completion.json")
        for counts in [json.loads((folder / name).read_text())["metrics"]["speculative_decoding"]]
    ]
    assert after - before == sum(
        (counts or NO_STEPS for counts in (*streamed, *moved_totals)), NO_STEPS
    )
    assert (after - before).steps > 0


@pytest.mark.parametrize(
    ("name", "ask", "expected"),
    [
        ("chat_stream.txt", CHAT, (18, 32, 54, (5, 2, 3, 8))),
        ("generate_stream.txt", TEXT, (14, 7, 42, (9, 3, 2))),
    ],
)
def test_sglang_tells_its_steps(
    name: str, ask: Ask, expected: tuple[int, int, int, tuple[int, ...]]
) -> None:
    events = parsed("sglang", *raw_events("sglang", "0.5.23", name), ask=ask)
    (counts,) = [event.acceptance for event in events if event.acceptance]
    assert (counts.steps, counts.accepted, counts.proposed, counts.histogram) == expected


@pytest.mark.parametrize(
    "fields",
    [
        # With the bonus token, for one, they are more than the histogram adds up to.
        {"spec_num_correct_drafts": 8},
        {"spec_num_proposed_drafts": None},
    ],
    ids=["accepted", "proposed"],
)
def test_a_name_of_sglang_that_means_something_else_is_refused(fields: dict[str, Any]) -> None:
    def counts_of(meta: dict[str, Any]) -> StepCounts | None:
        event = json.dumps({"text": "a", "meta_info": {"completion_tokens": 9, **meta}})
        return parsed("sglang", event.encode(), ask=TEXT)[0].acceptance

    meta: dict[str, Any] = {"spec_num_correct_drafts": 4, "spec_num_proposed_drafts": 8}
    assert counts_of(meta | {"spec_correct_drafts_histogram": []}) is None
    meta |= {"spec_correct_drafts_histogram": [1, 2, 1]}
    assert counts_of(meta) == builders.counts(1, 2, 1)
    with builders.invalid("HISTOGRAM_DISAGREES"):
        counts_of(meta | fields)


def test_sglang_repeats_a_text_in_each_event() -> None:
    events = raw_events("sglang", "0.5.23", "generate_stream.txt")
    text = "".join(event.text for event in parsed("sglang", *events, ask=TEXT))
    assert text == json.loads(events[-1])["text"]


@pytest.mark.parametrize(
    ("engine", "version", "words"),
    [
        *(("vllm", version, "`another` does not exist") for version in VLLM_VERSIONS),
        ("reference", "5.19.0", "model 'another': isn't served here"),
        ("triton", "2.51.0", "unknown model: 'another'"),
    ],
)
def test_a_recorded_refusal_is_an_error_of_the_server(
    engine: str, version: str, words: str
) -> None:
    event = (recording(engine, version) / "error.json").read_bytes()
    with builders.invalid("SERVER_ERROR", words):
        parsed(engine, event)


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(b'{"choices": [{', id="cut-off"),
        pytest.param(
            b'{"error": null, "id": 3, "choices": 3, "text": 3, "text_output": 3}', id="shape"
        ),
        pytest.param(b'{"choices": 3, "text": "\xff", "text_output": "\xff"}', id="not-utf8"),
    ],
)
@pytest.mark.parametrize(("engine", "ask"), TALKING)
def test_an_event_that_cannot_be_read_is_quoted(engine: str, ask: Ask, event: bytes) -> None:
    words = re.escape(event.decode(errors="replace"))
    with builders.invalid("EVENT_UNREADABLE", words):
        parsed(engine, event, ask=ask)
    with builders.invalid("SERVER_ERROR", r"too long"):
        parsed(engine, b'{"error": {"message": "too long"}}', ask=ask)


@pytest.mark.parametrize(
    ("event", "understood"),
    [
        (b'{"id": "chatcmpl-1"}', StreamEvent()),
        (b'{"choices": [], "error": null}', StreamEvent()),
        (
            b'{"usage": {"completion_tokens": 3}, "metrics": {"queue_time_ms": 1}}',
            StreamEvent(usage_tokens=3),
        ),
    ],
)
def test_an_event_of_vllm_may_say_little(event: bytes, understood: StreamEvent) -> None:
    assert parsed("vllm", event) == [understood]


@pytest.mark.parametrize(
    ("engine", "key"), [("vllm", "reasoning"), ("sglang", "reasoning_content")]
)
def test_a_thought_that_the_server_tells_apart_counts_and_is_no_text(engine: str, key: str) -> None:
    """With `--reasoning-parser` it stands where `delta.content` is without."""
    version = {"vllm": "0.32.0", "sglang": "0.5.23"}[engine]
    raw = [json.loads(event) for event in raw_events(engine, version, "chat_stream.txt")]
    for raw_event in raw:
        for choice in raw_event["choices"]:
            choice["delta"][key] = choice["delta"].pop("content", None)
    events = parsed(engine, *(json.dumps(event).encode() for event in raw))
    assert sum(event.tokens for event in events) == events[-1].usage_tokens
    assert "".join(event.text for event in events) == ""


TURNS = (*HELLO, Message("assistant", " two"), Message("user", " 3"))
NEUTRAL = {
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
OTHER_NEUTRAL = NEUTRAL | {"top_k": -1}
SAMPLING = {"max_new_tokens": 7, "temperature": 0.0, "ignore_eos": True} | OTHER_NEUTRAL
OPENAI = {"model": "toy", "max_tokens": 7, "temperature": 0.0, "stream": True} | NEUTRAL
OF_CHAT = {"messages": HELLO, "chat_template_kwargs": {"enable_thinking": False}}
TO_THE_CAP = {"ignore_eos": True}
WITH_IDS = {"stream_options": {"include_usage": True}, "return_token_ids": True}
WITH_USAGE = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
GENERATE = {"sampling_params": SAMPLING, "stream": True}
OF_TRITON = {
    "stream": True,
    "exclude_input_in_output": True,
    "return_finish_reason": True,
    "return_num_output_tokens": True,
    "parameters": {"max_tokens": 7, "temperature": 0.0, "ignore_eos": True} | OTHER_NEUTRAL,
}


@pytest.mark.parametrize(
    ("engine", "ask", "path", "body"),
    [
        ("vllm", CHAT, "/v1/chat/completions", OPENAI | OF_CHAT | WITH_IDS),
        (
            *("vllm", dataclasses.replace(TEXT, messages=TURNS), "/v1/completions"),
            OPENAI | {"prompt": "Hello two 3"} | TO_THE_CAP | WITH_IDS,
        ),
        (
            *("sglang", CHAT, "/v1/chat/completions"),
            OPENAI | OF_CHAT | WITH_USAGE | OTHER_NEUTRAL | {"return_spec_tokens_details": True},
        ),
        ("sglang", TEXT, "/generate", {"text": "Hello"} | GENERATE),
        ("sglang", IDS, "/generate", {"input_ids": (5, 6)} | GENERATE),
        ("tensorrt_llm", CHAT, "/v1/chat/completions", OPENAI | OF_CHAT | WITH_USAGE),
        (
            *("tensorrt_llm", IDS, "/v1/completions"),
            OPENAI | {"prompt": (5, 6)} | TO_THE_CAP | WITH_USAGE,
        ),
        ("triton", TEXT, "/v2/models/toy/generate_stream", {"text_input": "Hello"} | OF_TRITON),
    ],
    ids=[
        *("vllm-chat", "vllm-text", "sglang-chat", "sglang-text", "sglang-ids", "trtllm-chat"),
        *("trtllm-ids", "triton"),
    ],
)
def test_a_request_asks_for_tokens_usage_and_acceptance(
    engine: str, ask: Ask, path: str, body: dict[str, object]
) -> None:
    wire_format = ENGINES[engine].wire_format
    assert (wire_format.path(ask), wire_format.body(ask)) == (path, body)


@pytest.mark.parametrize(("kind", "ask"), [("chat", CHAT), ("completions", IDS)])
def test_tensorrt_llm_is_asked_for_what_it_takes(kind: str, ask: Ask) -> None:
    """Its requests refuse a field that they don't know."""
    read = json.loads(recording("tensorrt_llm", "serve.json").read_text())
    assert set(ENGINES["tensorrt_llm"].wire_format.body(ask)) <= set(read[kind])


def vllm_page(**scores: float) -> bytes:
    """An answer with the likeliest tokens, `t5` being token 5."""
    top = {f"token_id:{token[1:]}": score for token, score in scores.items()}
    return json.dumps({"choices": [{"logprobs": {"top_logprobs": [top]}}]}).encode()


def sglang_page(*scores: tuple[float, int, None]) -> bytes:
    """An answer with the log-probabilities of its one token's candidates."""
    meta = {"output_token_ids_logprobs": [scores]} if scores else {}
    return json.dumps({"output_ids": [5], "meta_info": meta}).encode()


def test_an_engine_with_ids_has_the_token_api_of_its_name() -> None:
    assert sorted(APIS) == ["reference", "sglang", "vllm"]


def test_answers_tell_their_ids_and_steps_as_recorded() -> None:
    """[9, 3, 2, 0]: S 14, A 3 + 2 · 2 = 7, D 42; SGLang's ends at the most that a step accepted."""
    recorded = (builders.RECORDINGS / "completion.json").read_bytes()
    asked_for_ids = recorded.replace(b'"token_ids":null', b'"token_ids":[310,0]')
    vllm = VLLM.complete("toy", [1, 2], GREEDY).parse(asked_for_ids)
    assert vllm.counts == StepCounts(steps=14, accepted=7, proposed=42, position_counts=(5, 2, 0))
    assert (vllm.prompt, vllm.output) == ((1, 2), (310, 0))

    recorded = (recording("sglang", "0.5.23") / "generate.json").read_bytes()
    sglang = SGLANG.complete("toy", [1, 2], GREEDY).parse(recorded)
    assert sglang.counts == StepCounts(steps=14, accepted=7, proposed=42, position_counts=(5, 2))
    assert (sglang.prompt, len(sglang.output), sglang.output[-1]) == ((1, 2), 22, 0)


@pytest.mark.parametrize(
    ("api", "ask", "path", "answer"),
    [
        (VLLM, CHAT, "/v1/chat/completions", b'{"choices": [{}], "prompt_token_ids": [1, 2]}'),
        (VLLM, TEXT, "/v1/completions", b'{"choices": [{"prompt_token_ids": [1, 2]}]}'),
        *((SGLANG, ask, "/v1/tokenize", b'{"tokens": [1, 2]}') for ask in (CHAT, TEXT)),
    ],
    ids=["vllm-chat", "vllm-text", "sglang-chat", "sglang-text"],
)
def test_the_ids_of_a_chat_and_of_a_text_are_asked_for(
    api: TokenApi, ask: Ask, path: str, answer: bytes
) -> None:
    call = api.encode(ask)
    assert (call.path, call.parse(answer)) == (path, (1, 2))
    assert ask.openai_prompt.items() <= call.body.items()


def test_a_completion_is_requested_with_its_settings() -> None:
    vllm = VLLM.complete("toy", [1, 2], DRAWN)
    sglang = SGLANG.complete("toy", [1, 2], DRAWN)
    body = {"prompt": [1, 2], "max_tokens": 3, "temperature": 0.7, "ignore_eos": True, "seed": 11}
    assert body.items() <= vllm.body.items()
    sampling = {"max_new_tokens": 3, "temperature": 0.7, "ignore_eos": True, "sampling_seed": 11}
    assert sglang.body == {"input_ids": [1, 2], "sampling_params": sampling | OTHER_NEUTRAL}
    for api in (VLLM, SGLANG):
        assert "seed" not in str(api.complete("toy", [1], GREEDY).body)


def test_an_answer_ends_at_the_texts_that_its_request_names() -> None:
    stopped = dataclasses.replace(TEXT, stops=("Question:", "</s>"))
    for wire_format in (VLLM, ENGINES["tensorrt_llm"].wire_format):
        assert wire_format.body(stopped)["stop"] == ("Question:", "</s>")
        assert "stop" not in wire_format.body(TEXT)
    sampling: Any = SGLANG.body(stopped)["sampling_params"]
    assert sampling["stop"] == ("Question:", "</s>")


def test_a_request_for_a_token_leaves_no_parameter_to_the_defaults_of_the_server() -> None:
    for call in (VLLM.encode(CHAT), VLLM.encode(TEXT), VLLM.score("toy", [1], [2])):
        assert NEUTRAL.items() <= call.body.items()
    scoring = SGLANG.score("toy", [1], [2]).body["sampling_params"]
    assert isinstance(scoring, dict)
    assert OTHER_NEUTRAL.items() <= scoring.items()


@pytest.mark.parametrize(
    ("api", "page", "candidates", "scores"),
    [
        pytest.param(VLLM, vllm_page(t5=-0.1, t6=-2.5), (6, 5), (-2.5, -0.1), id="vllm"),
        pytest.param(
            VLLM, vllm_page(t5=-0.1, t6=-2.5, t7=-9.0), (5, 99), (-0.1, -9.0), id="vllm-unlikely"
        ),
        pytest.param(
            # It says token 87; 0 isn't among the twenty, the least likely of which is 10.
            VLLM,
            (builders.RECORDINGS / "scores.json").read_bytes(),
            (761, 87, 0),
            (-7.6507, -0.0015, -12.1253),
            id="vllm-recorded",
        ),
        pytest.param(
            *(SGLANG, sglang_page((-0.1, 5, None), (-2.5, 6, None)), (6, 5), (-2.5, -0.1)),
            id="sglang",
        ),
    ],
)
def test_candidates_are_scored_by_id_in_the_order_asked(
    api: TokenApi, page: bytes, candidates: tuple[int, ...], scores: tuple[float, ...]
) -> None:
    candidate_scores = api.score("toy", [1], candidates).parse(page)
    assert candidate_scores == pytest.approx(scores, abs=1e-4)


@pytest.mark.parametrize(
    ("api", "page", "words"),
    [
        (VLLM, b'{"choices": [{}]}', "no log-probabilities"),
        (VLLM, b'{"choices": [{"logprobs": {"top_logprobs": []}}]}', "no log-probabilities"),
        (VLLM, vllm_page(), "no log-probabilities"),
        # Two that are as likely as the last one would be called rounding.
        (VLLM, vllm_page(t7=-0.1, t8=-3.0), "none of the candidates"),
        (SGLANG, sglang_page(), "of token 5"),
        (SGLANG, sglang_page((-0.1, 5, None)), "of token 6"),
    ],
)
def test_missing_scores_are_an_error(api: TokenApi, page: bytes, words: str) -> None:
    with builders.invalid("ANSWER_UNREADABLE", words):
        api.score("toy", [1], (5, 6)).parse(page)


@pytest.mark.parametrize(
    "answer",
    [
        *(b"<html>", b"{}", b'{"choices": []}', b"\xff"),
        # As of a server that knows no `return_token_ids`: two without ids would be called equal.
        b'{"choices": [{"prompt_token_ids": null}]}',
        b'{"choices": [{"token_ids": null}]}',
    ],
)
@pytest.mark.parametrize("api", APIS.values(), ids=APIS)
def test_an_answer_without_ids_is_an_error(api: TokenApi, answer: bytes) -> None:
    for call in (api.encode(TEXT), api.complete("toy", [1], GREEDY), api.score("toy", [1], (1,))):
        with builders.invalid("ANSWER_UNREADABLE"):
            call.parse(answer)


def fed(*pieces: bytes) -> list[bytes]:
    """The events of the pieces, in order."""
    splitter = EventSplitter()
    return [event for piece in pieces for event in splitter.feed(piece)]


@settings(deadline=None)
@given(
    st.lists(st.from_regex(rb"\{[ -z\x80-\xff]*\}", fullmatch=True)),
    st.lists(st.integers(0, 200), max_size=12),
)
def test_events_come_back_however_the_network_cut_the_bytes(
    events: list[bytes], cuts: list[int]
) -> None:
    stream = b"".join(b"data: " + event + b"\n\n" for event in (*events, DONE_EVENT))
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    assert fed(*(stream[a:b] for a, b in itertools.pairwise(edges))) == [*events, DONE_EVENT]


def test_an_event_comes_as_soon_as_its_line_ends() -> None:
    splitter = EventSplitter()
    assert list(splitter.feed(b"data: a")) == []
    assert list(splitter.feed(b"b\n")) == [b"ab"]


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        pytest.param(b"data:one\r\n\r\ndata: two\r\n\r\n", [b"one", b"two"], id="windows"),
        pytest.param(b": ping\nevent: x\nid: 1\ndata: one\n\n", [b"one"], id="other-fields"),
        pytest.param(b"data: one\n\ndata: tw", [b"one"], id="never-ended"),
    ],
)
def test_a_line_of_data_that_ends_is_an_event(stream: bytes, events: list[bytes]) -> None:
    assert fed(stream) == events


def test_a_line_without_an_end_is_refused() -> None:
    splitter = EventSplitter()
    pieces = [b"x" * 1_024] * (MAX_ANSWER_BYTES // 1_024)
    begun_s = time.process_time()
    for piece in pieces:
        assert list(splitter.feed(piece)) == []
    fed_s = time.process_time() - begun_s
    with builders.invalid("EVENT_UNREADABLE", "after 16777216 bytes"):
        list(splitter.feed(b"x"))

    joined = bytearray()
    begun_s = time.process_time()
    for piece in pieces:
        joined += piece
    assert fed_s < 50 * (time.process_time() - begun_s), "each piece is touched once"
