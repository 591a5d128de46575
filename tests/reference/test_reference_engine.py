"""The reference engine as it is started: its decoding, its HTTP, and what it refuses.

These need its environment, which is made once. `nox -s reference` runs them.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from specreg.engines.registry import engine_named
from specreg.servers.provision import engine_environment
from tests.unit import builders

ROOT = builders.ROOT
TINY = ROOT / "fixtures/models/tiny"
DRAFT = f"--draft-model={TINY / 'draft'}"
TEXTS = [
    json.loads(line)["turns"][0]
    for line in (ROOT / "fixtures/prompts/toy.jsonl").read_text().splitlines()[:12]
]

Answer = Mapping[str, Any]


def interpreter() -> str:
    """That of the engine's environment, which is made if it isn't there."""
    requirement = engine_named("reference").requirement(on_gpu=False)
    return engine_environment(requirement, show=print)


def variables() -> dict[str, str]:
    """What the engine finds: specreg, and no network."""
    return os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """A command that has ended, with what it said."""
    return subprocess.run(
        command, check=False, cwd=ROOT, env=variables(), capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def server() -> Iterator[httpx.Client]:
    """A server of the tiny target with the draft model, asked by a client."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = (
        *(interpreter(), "-m", "specreg.engines.pytorch", "--model", str(TINY / "target")),
        *("--device=cpu", "--dtype=float32", f"--port={port}", "--method=draft_model"),
        DRAFT,
    )
    with subprocess.Popen(command, env=variables()) as process:
        try:
            with httpx.Client(
                base_url=f"http://127.0.0.1:{port}",
                timeout=60,
                transport=httpx.HTTPTransport(retries=8, trust_env=False),  # until it listens
            ) as client:
                yield client
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=10) == 0


def ask(client: httpx.Client, text: str, **fields: object) -> httpx.Response:
    """A greedy answer."""
    messages = [{"role": "user", "content": text}]
    body = {"messages": messages, "temperature": 0, "max_tokens": 48, **fields}
    response = client.post("/v1/chat/completions", json=body)
    assert response.status_code == httpx.codes.OK, response.text
    return response


def events(client: httpx.Client, text: str) -> list[Answer]:
    """The same, as the events of a stream."""
    streamed = ask(client, text, stream=True, stream_options={"include_usage": True}).text
    lines = [line.removeprefix("data: ") for line in streamed.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def ids(answer: Answer) -> list[int]:
    """The tokens of a whole answer."""
    token_ids: list[int] = answer["choices"][0]["token_ids"]
    return token_ids


@pytest.mark.parametrize("checks", ["check_decoding.py", "check_oracle.py"])
def test_what_needs_torch_is_right(checks: str) -> None:
    done = run(interpreter(), "-m", "unittest", str(Path(__file__).with_name(checks)))
    assert done.returncode == 0, done.stderr
    assert "Ran 0 tests" not in done.stderr


def test_a_stream_says_what_the_whole_answer_says(server: httpx.Client) -> None:
    for prompt in TEXTS[:4]:
        answer = ask(server, prompt).json()
        stream = events(server, prompt)
        choices = [event["choices"][0] for event in stream[:-1]]
        assert [i for choice in choices for i in choice["token_ids"]] == ids(answer)
        text = "".join(choice["delta"]["content"] for choice in choices)
        assert text == answer["choices"][0]["message"]["content"]
        assert stream[-1]["usage"] == answer["usage"]
        assert stream[-1]["usage"]["completion_tokens"] == len(ids(answer))
        assert stream[-1]["metrics"] == answer["metrics"]
        # A chunk is a step; the first one drafts nothing.
        counts = answer["metrics"]["speculative_decoding"]
        assert len(choices) - 1 == sum(counts["acceptance_histogram"])


def test_requests_that_come_at_once_get_the_answers_that_they_get_alone(
    server: httpx.Client,
) -> None:
    alone = [ask(server, text).json() for text in TEXTS]
    with ThreadPoolExecutor(len(TEXTS)) as pool:
        together = list(pool.map(lambda text: ask(server, text).json(), TEXTS))
    assert [ids(answer) for answer in together] == [ids(answer) for answer in alone]
    assert [answer["metrics"] for answer in together] == [answer["metrics"] for answer in alone]


def test_a_completion_tells_log_probabilities_by_id(server: httpx.Client) -> None:
    body = {"prompt": [5, 6, 7], "max_tokens": 6, "temperature": 0, "logprobs": 2}
    (choice,) = server.post("/v1/completions", json=body).json()["choices"]
    top = choice["logprobs"]["top_logprobs"]
    assert [max(logprobs, key=logprobs.get) for logprobs in top] == [
        f"token_id:{i}" for i in choice["token_ids"]
    ]
    assert {len(logprobs) for logprobs in top} == {2}
    assert choice["prompt_token_ids"] == [5, 6, 7]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"prompt": []}, "prompt: is empty"),
        ({"prompt": [768]}, "prompt: has the unknown id 768"),
        ({"prompt": [5] * 1000, "max_tokens": 25}, "has 1000 tokens and its answer up to 25"),
        ({"prompt": "Hello", "min_p": 0.5}, "unknown field `min_p`; the reference engine takes"),
        ({"prompt": "Hello", "model": "gpt"}, "model 'gpt': isn't served here; ask for 'reference"),
        ({"prompt": "Hello", "temperature": -1}, "temperature"),
        ({}, "required field `prompt`"),
    ],
)
def test_what_it_cannot_answer_is_refused_by_name(
    server: httpx.Client, body: Mapping[str, object], words: str
) -> None:
    response = server.post("/v1/completions", json=body)
    assert response.status_code == httpx.codes.BAD_REQUEST
    assert words in response.json()["error"]["message"]


@pytest.mark.parametrize("temperature", ["0", "0.7"])
def test_its_table_has_each_method_alone_and_in_a_batch(tmp_path: Path, temperature: str) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps({"turns": [text]}) for text in TEXTS))
    done = run(
        *(interpreter(), "-m", "specreg.engines.pytorch.benchmark"),
        *("--model", str(TINY / "target"), "--draft-model", str(TINY / "draft"), "--device=cpu"),
        *("--dtype=float32", "--prompts", str(prompts), "--temperature", temperature),
    )
    assert done.returncode == 0, done.stderr
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines()[2:10]]
    assert [row[:2] for row in rows] == [
        [f"`{method}`", batch]
        for method in ("none", "ngram", "ngram_adaptive", "draft_model")
        for batch in ("1", "8")
    ]
    # What doesn't learn accepts the same in a batch as alone, by its seed.
    for alone, batch in ((0, 1), (2, 3), (6, 7)):
        assert rows[alone][5:7] == rows[batch][5:7]
    assert all("–" not in row[2:5] + row[7:9] for row in rows)


@pytest.mark.parametrize(
    ("python", "arguments", "words"),
    [
        ("", ("--method=draft_model", "--draft-model=/nowhere"), "model '/nowhere': has no config"),
        ("", ("--placement=separate", "--method=draft_model", DRAFT), "needs two devices, got"),
        ("", ("--context-tokens=4096",), "its context is 2048 tokens, 4096 are to be read; lower"),
        (sys.executable, (), "install specreg[reference], or let the suite make its environment"),
    ],
    ids=["no-draft", "one-device", "context", "no-packages"],
)
def test_what_it_cannot_serve_is_refused_by_name(
    python: str, arguments: Sequence[str], words: str
) -> None:
    module = (python or interpreter(), "-m", "specreg.engines.pytorch")
    done = run(*module, "--model", str(TINY / "target"), *arguments)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert words in done.stderr.splitlines()[-1]
