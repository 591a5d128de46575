"""The scripted server speaks vLLM's protocol and does what its truth says."""

import asyncio
import itertools
import json
import math
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from tests.doubles.vllm.app import ScriptedServer
from tests.doubles.vllm.launch import Launch, parse_launch
from tests.doubles.vllm.script import DEFAULTS, Fault, Script, chat_prompt, steps_of
from tests.doubles.vllm.steps import FinishReason, likeliest

RECORDINGS = Path(__file__).parents[3] / "fixtures/recordings/vllm/0.32.0"
MESSAGES = [{"role": "user", "content": "Write a class."}]
ASKED = {"model": "toy", "max_tokens": 20, "ignore_eos": True, "return_token_ids": True}
CHAT = ASKED | {"messages": MESSAGES}
COMPLETION = ASKED | {"prompt": "Once upon a time"}
SCORED = {"max_tokens": 1, "logprobs": 20, "return_tokens_as_token_ids": True}
STREAM = {"stream": True, "stream_options": {"include_usage": True}}
LAUNCH = Launch(model="folder", name="toy", draft_tokens=3, counts=True)
PLAIN = Launch(model="folder", name="toy")
TRUTH = steps_of(chat_prompt(MESSAGES), num_speculative_tokens=3, max_tokens=20, ignore_eos=True)

Json = dict[str, Any]


def asked(
    path: str, *bodies: Json | None, launch: Launch = LAUNCH, script: Script = DEFAULTS
) -> list[str]:
    """What a server answers to requests, one after another; without a body to a GET."""

    async def run() -> list[str]:
        answers = []
        async with (
            ScriptedServer(launch, script).listening() as base_url,
            httpx.AsyncClient(base_url=base_url, trust_env=False) as client,
        ):
            for body in bodies:
                method = "GET" if body is None else "POST"
                answers.append((await client.request(method, path, json=body)).text)
        return answers

    return asyncio.run(run())


def choices(path: str, *bodies: Json, launch: Launch = LAUNCH, script: Script = DEFAULTS) -> Any:  # noqa: ANN401 - JSON
    answers = map(json.loads, asked(path, *bodies, launch=launch, script=script))
    return [choice for answer in answers for choice in answer["choices"]]


def events_of(stream: str) -> list[Json]:
    """The events of a stream, which must end with [DONE]."""
    *events, done, _ = stream.split("\n\n")
    assert done == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events]


def is_part(part: object, recorded: object) -> bool:
    """Whether all keys of it were recorded, at every depth; a list is known by its first element.

    Numbers of tokens and positions are keys of their own, so of those the names alone count.
    """
    if isinstance(part, dict) and isinstance(recorded, dict):
        known = {key.partition(":")[0]: value for key, value in recorded.items()}
        pairs = [(value, known.get(key.partition(":")[0], key)) for key, value in part.items()]
        return {key.partition(":")[0] for key in part} <= known.keys() and all(
            is_part(*pair) for pair in pairs
        )
    if isinstance(part, list) and isinstance(recorded, list):
        return not part or (bool(recorded) and is_part(part[0], recorded[0]))
    return True


@pytest.mark.parametrize(
    ("path", "body", "recording"),
    [
        ("chat/completions", CHAT, "chat_stream.txt"),
        ("completions", COMPLETION, "comp_stream.txt"),
        ("chat/completions", CHAT, "chat.json"),
        ("completions", COMPLETION, "completion.json"),
        ("completions", COMPLETION | SCORED, "scores.json"),
    ],
)
def test_an_answer_says_nothing_that_was_not_recorded(
    path: str, body: Json, recording: str
) -> None:
    recorded = (RECORDINGS / recording).read_text()
    if recording.endswith(".txt"):
        answered = events_of(*asked(f"/v1/{path}", body | STREAM))
        known = events_of(recorded)
        assert all(any(is_part(event, recorded) for recorded in known) for event in answered)
        assert is_part(answered[-1], known[-1])
        assert answered[-1].keys() >= {"usage", "metrics"}
    else:
        (answer,) = asked(f"/v1/{path}", body)
        assert is_part(json.loads(answer), json.loads(recorded))


def test_the_counters_are_spelled_as_recorded() -> None:
    def spelled(text: str) -> list[str]:
        lines = [line for line in text.splitlines() if "spec_decode" in line]
        return [line.rsplit(" ", 1)[0] if line[0] != "#" else line for line in lines]

    recorded = (RECORDINGS / "metrics.txt").read_text().replace("tiny-target", "toy")
    assert spelled(*asked("/metrics", None)) == spelled(recorded)


@pytest.mark.parametrize("prompt", ["one", "two words", "three whole words"])
def test_the_text_is_the_same_with_and_without_speculation(prompt: str) -> None:
    body = {"model": "toy", "prompt": prompt, "max_tokens": 100}
    assert choices("/v1/completions", body) == choices("/v1/completions", body, launch=PLAIN)


def test_a_text_goes_on_alike_after_any_part_of_it() -> None:
    """As a model's: what is asked about a place in it is asked of the same text."""

    def said_after(*prompt: int, tokens: int) -> list[int]:
        body = COMPLETION | {"prompt": prompt, "max_tokens": tokens}
        (choice,) = choices("/v1/completions", body, launch=PLAIN)
        return list(choice["token_ids"])

    text = said_after(1, 7, tokens=9)
    assert [said_after(1, 7, *text[:part], tokens=9 - part) for part in range(1, 9)] == [
        text[part:] for part in range(1, 9)
    ]
    assert len(set(text)) > 3


def test_the_chosen_token_is_the_likeliest_and_no_other_is_as_likely() -> None:
    body = COMPLETION | SCORED | {"max_tokens": 3}
    (choice,) = choices("/v1/completions", body, launch=PLAIN)
    scores = choice["logprobs"]

    assert scores["tokens"] == [f"token_id:{token}" for token in choice["token_ids"]]
    rows = zip(scores["tokens"], scores["token_logprobs"], scores["top_logprobs"], strict=True)
    for name, nats, top in rows:
        ranked = sorted(top.values(), reverse=True)
        assert (len(top), top[name], ranked[0]) == (20, nats, nats)
        assert [upper - right for upper, right in itertools.pairwise(ranked)] == pytest.approx(
            [1.0] * 19
        )
        assert sum(map(math.exp, ranked)) == pytest.approx(1.0)


def test_a_record_without_speculation_is_refused_at_the_start() -> None:
    with pytest.raises(ValueError, match="--per-request-spec-decode-metrics requires speculative"):
        parse_launch(("--model", "folder", "--per-request-spec-decode-metrics", "summary"))


def test_the_last_step_is_cut_and_still_counted() -> None:
    script = Script(acceptance_probs=(1.0,))
    truth = steps_of("a", script, num_speculative_tokens=3, max_tokens=7, ignore_eos=True)
    assert truth.accepted == (3, 3)
    assert [len(chunk.token_ids) for chunk in truth.chunks] == [1, 4, 2]
    assert truth.completion_tokens == 7
    assert truth.histogram == (0, 0, 0, 2)


def test_an_answer_stops_at_its_own_length_unless_told_not_to() -> None:
    assert steps_of("a").finish_reason is FinishReason.STOP
    assert 24 <= steps_of("a").completion_tokens <= 64
    assert steps_of("a", max_tokens=5).finish_reason is FinishReason.LENGTH
    assert steps_of("a", max_tokens=90, ignore_eos=True).completion_tokens == 90


@pytest.mark.parametrize(("drafted", "differing"), [(3, [0, 1, 0]), (0, [0, 0, 0])])
def test_speculation_changes_one_token_of_one_answer_to_one_that_is_never_said(
    drafted: int, differing: list[int]
) -> None:
    script = Script(fault=Fault.CHANGED_TOKEN, fault_after_requests=1)
    launch = msgspec.structs.replace(PLAIN, draft_tokens=drafted)
    pairs_of_texts = []
    for choice in choices("/v1/chat/completions", *[CHAT] * 3, launch=launch, script=script):
        pairs = zip(TRUTH.token_ids, choice["token_ids"], strict=True)
        pairs_of_texts.append([pair for pair in pairs if len(set(pair)) > 1])
    assert list(map(len, pairs_of_texts)) == differing
    for plain, speculative in itertools.chain(*pairs_of_texts):
        assert speculative not in likeliest(plain)[:20]
