"""The scripted server speaks vLLM's protocol and does what its truth says."""

import asyncio
import itertools
import json
import math
import os
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from aiohttp.test_utils import TestClient, TestServer
from aiohttp.web import Application, Request

from tests.doubles.vllm.app import ScriptedServer
from tests.doubles.vllm.launch import Launch, Speculation
from tests.doubles.vllm.script import (
    DEFAULTS,
    Fault,
    Script,
    chat_prompt,
    record_script,
    steps_of,
)
from tests.doubles.vllm.steps import FinishReason, likeliest

RECORDINGS = Path(__file__).parents[3] / "fixtures/recordings/vllm/0.32.0"
SPECULATION = '{"method":"ngram","num_speculative_tokens":3}'
SPECULATING = [
    *("--speculative-config", SPECULATION),
    *("--per-request-spec-decode-metrics", "summary"),
    "--enforce-eager",
    *("--max-num-seqs", "8"),
]
MESSAGES = [{"role": "user", "content": "Write a class."}]
CHAT = {
    "model": "toy",
    "messages": MESSAGES,
    "max_tokens": 20,
    "ignore_eos": True,
    "return_token_ids": True,
}
COMPLETION = {
    "model": "toy",
    "prompt": "Once upon a time",
    "max_tokens": 20,
    "ignore_eos": True,
    "return_token_ids": True,
}
SCORED = {"max_tokens": 1, "logprobs": 20, "return_tokens_as_token_ids": True}
STREAM = {"stream": True, "stream_options": {"include_usage": True}}
LAUNCH = Launch(
    model="folder",
    name="toy",
    speculation=Speculation(num_speculative_tokens=3),
    counts=True,
)
TRUTH = steps_of(chat_prompt(MESSAGES), num_speculative_tokens=3, max_tokens=20, ignore_eos=True)

Json = dict[str, Any]
Client = TestClient[Request, Application]


@contextmanager
def started(folder: Path, *flags: str, script: Script = DEFAULTS) -> Iterator[httpx.Client]:
    """A client of a server that was started as specreg starts vLLM."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = launched(folder, "--port", str(port), *flags, script=script)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        try:
            yield client
        finally:
            process.terminate()
            process.communicate(timeout=5)


def launched(folder: Path, *flags: str, script: Script) -> subprocess.Popen[str]:
    """A process with vLLM's command line."""
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    model = ["--model", "folder", "--served-model-name", "toy", "--host", "127.0.0.1"]
    return subprocess.Popen(
        [*command, *model, *flags],
        env=os.environ | record_script(script, folder),
        stderr=subprocess.PIPE,
        text=True,
    )


def await_health(client: httpx.Client) -> None:
    """Waits for 200."""
    for _ in range(500):
        try:
            client.get("/health").raise_for_status()
        except httpx.TransportError:
            time.sleep(0.01)
        else:
            return
    pytest.fail("never listened")


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, ...]]:
    """A server that speculates and one that doesn't."""
    folder = tmp_path_factory.mktemp("scripts")
    with started(folder, *SPECULATING) as speculating, started(folder) as plain:
        await_health(speculating)
        await_health(plain)
        yield speculating, plain


@pytest.fixture
def speculating(servers: tuple[httpx.Client, ...]) -> httpx.Client:
    """The server that speculates."""
    return servers[0]


@pytest.fixture
def plain(servers: tuple[httpx.Client, ...]) -> httpx.Client:
    """The server that doesn't."""
    return servers[1]


def events_of(stream: str) -> list[Json]:
    """The events of a stream, which must end with [DONE]."""
    *events, done, _ = stream.split("\n\n")
    assert done == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events]


def is_part(said: object, recorded: object) -> bool:
    """Whether all keys of it were recorded, at every depth; a list is known by its first element.

    Numbers of tokens and positions are keys of their own, so of those the names alone count.
    """
    if isinstance(said, dict) and isinstance(recorded, dict):
        known = {key.partition(":")[0]: value for key, value in recorded.items()}
        pairs = [(value, known.get(key.partition(":")[0], key)) for key, value in said.items()]
        return {key.partition(":")[0] for key in said} <= known.keys() and all(
            is_part(*pair) for pair in pairs
        )
    if isinstance(said, list) and isinstance(recorded, list):
        return not said or (bool(recorded) and is_part(said[0], recorded[0]))
    return True


@pytest.mark.parametrize(
    ("path", "request_body", "recording"),
    [
        ("chat/completions", CHAT, "chat_stream.txt"),
        ("completions", COMPLETION, "comp_stream.txt"),
        ("chat/completions", CHAT, "chat.json"),
        ("completions", COMPLETION, "completion.json"),
        ("completions", COMPLETION | SCORED, "scores.json"),
    ],
)
def test_an_answer_says_nothing_that_was_not_recorded(
    speculating: httpx.Client, path: str, request_body: Json, recording: str
) -> None:
    recorded = (RECORDINGS / recording).read_text()
    if recording.endswith(".txt"):
        answered = events_of(speculating.post(f"/v1/{path}", json=request_body | STREAM).text)
        known = events_of(recorded)
        assert all(any(is_part(one, other) for other in known) for one in answered)
        assert is_part(answered[-1], known[-1])
        assert answered[-1].keys() >= {"usage", "metrics"}
    else:
        whole = speculating.post(f"/v1/{path}", json=request_body).json()
        assert is_part(whole, json.loads(recorded))


def test_the_counters_are_spelled_as_recorded(speculating: httpx.Client) -> None:
    def spelled(text: str) -> list[str]:
        lines = [line for line in text.splitlines() if "spec_decode" in line]
        return [line.rsplit(" ", 1)[0] if line[0] != "#" else line for line in lines]

    recorded = (RECORDINGS / "metrics.txt").read_text().replace("tiny-target", "toy")
    assert spelled(speculating.get("/metrics").text) == spelled(recorded)


@pytest.mark.parametrize("prompt", ["one", "two words", "three whole words"])
def test_the_text_is_the_same_with_and_without_speculation(
    servers: tuple[httpx.Client, ...], prompt: str
) -> None:
    body = {"model": "toy", "prompt": prompt, "max_tokens": 100}
    texts = [client.post("/v1/completions", json=body).json()["choices"] for client in servers]
    assert texts[0] == texts[1]


def test_a_text_goes_on_alike_after_any_part_of_it(plain: httpx.Client) -> None:
    """As a model's: what is asked about a place in it is asked of the same text."""

    def said_after(*prompt: int, tokens: int) -> list[int]:
        body = COMPLETION | {"prompt": prompt, "max_tokens": tokens}
        (choice,) = plain.post("/v1/completions", json=body).json()["choices"]
        return list(choice["token_ids"])

    whole = said_after(1, 7, tokens=9)
    assert [said_after(1, 7, *whole[:part], tokens=9 - part) for part in range(1, 9)] == [
        whole[part:] for part in range(1, 9)
    ]
    assert len(set(whole)) > 3


def test_the_token_that_is_said_is_the_likeliest_and_the_others_are_never_as_likely(
    plain: httpx.Client,
) -> None:
    body = COMPLETION | SCORED | {"max_tokens": 3}
    (choice,) = plain.post("/v1/completions", json=body).json()["choices"]
    scores = choice["logprobs"]

    assert scores["tokens"] == [f"token_id:{token}" for token in choice["token_ids"]]
    rows = zip(scores["tokens"], scores["token_logprobs"], scores["top_logprobs"], strict=True)
    for name, nats, top in rows:
        ranked = sorted(top.values(), reverse=True)
        assert (len(top), top[name], ranked[0]) == (20, nats, nats)
        assert [one - other for one, other in itertools.pairwise(ranked)] == pytest.approx(
            [1.0] * 19
        )
        assert sum(map(math.exp, ranked)) == pytest.approx(1.0)


def test_a_record_without_speculation_is_refused_at_the_start(tmp_path: Path) -> None:
    flags = ("--per-request-spec-decode-metrics", "summary")
    process = launched(tmp_path, *flags, script=DEFAULTS)
    _, log = process.communicate(timeout=5)
    assert process.returncode == 1
    assert "ValueError: --per-request-spec-decode-metrics requires speculative decoding" in log


def test_a_cycle_of_acceptance_gives_an_exact_length() -> None:
    script = Script(accepted_cycle=(0, 1, 2, 3))
    truth = steps_of("a", script, num_speculative_tokens=3, max_tokens=101, ignore_eos=True)
    assert truth.acceptance_length == 2.5
    assert truth.histogram == (10, 10, 10, 10)


def test_the_last_step_is_cut_and_still_counted() -> None:
    script = Script(accepted_cycle=(3,))
    truth = steps_of("a", script, num_speculative_tokens=3, max_tokens=7, ignore_eos=True)
    assert truth.accepted == (3, 3)
    assert [len(chunk.token_ids) for chunk in truth.chunks] == [1, 4, 2]
    assert truth.completion_tokens == 7


def test_an_answer_stops_at_its_own_length_unless_told_not_to() -> None:
    assert steps_of("a").finish_reason is FinishReason.STOP
    assert 24 <= steps_of("a").completion_tokens <= 64
    assert steps_of("a", max_tokens=5).finish_reason is FinishReason.LENGTH
    assert steps_of("a", max_tokens=90, ignore_eos=True).completion_tokens == 90


def in_process(
    script: Script, ask: Callable[[Client], Awaitable[object]], launch: Launch = LAUNCH
) -> None:
    """Asks a server in this process."""

    async def run() -> None:
        application = ScriptedServer(launch, script).application()
        async with TestClient(TestServer(application)) as client:
            await ask(client)

    asyncio.run(run())


@pytest.mark.parametrize(("drafted", "differing"), [(3, [0, 1, 0]), (0, [0, 0, 0])])
def test_speculation_changes_one_token_of_one_answer_to_one_that_is_never_said(
    drafted: int, differing: list[int]
) -> None:
    launch = msgspec.structs.replace(
        LAUNCH, speculation=Speculation(num_speculative_tokens=drafted), counts=False
    )

    async def ask(client: Client) -> None:
        found = []
        for _ in range(3):
            async with client.post("/v1/chat/completions", json=CHAT) as response:
                (choice,) = (await response.json())["choices"]
            pairs = zip(TRUTH.token_ids, choice["token_ids"], strict=True)
            found.append([pair for pair in pairs if len(set(pair)) > 1])
        assert list(map(len, found)) == differing
        for said, other in itertools.chain(*found):
            assert other not in likeliest(said)[:20]

    in_process(Script(fault=Fault.CHANGED_TOKEN, fault_after_requests=1), ask, launch)
