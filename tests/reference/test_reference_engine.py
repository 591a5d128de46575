"""The reference engine as it is started: its decoding, its HTTP, what it refuses, planted faults.

These need its environment, which is made once. `nox -s reference` runs them.
"""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from specreg.engines.registry import ENGINES, engine_named
from specreg.servers.environments import engine_environment
from tests.unit import builders

ROOT = builders.ROOT
TINY = ROOT / "fixtures/models/tiny"
HERE = Path(__file__).parent
DRAFTING = ("--method=draft_model", f"--draft-model={TINY / 'draft'}")
TEXTS = [
    json.loads(line)["turns"][0]
    for line in (ROOT / "fixtures/prompts/toy.jsonl").read_text().splitlines()[:12]
]

Answer = Mapping[str, Any]


def interpreter() -> str:
    """That of the engine's environment, which is made if it isn't there."""
    requirement = engine_named("reference").requirement(on_gpu=False)
    return engine_environment(requirement, show=print).python


def variables(fault: str = "") -> dict[str, str]:
    """What the engine finds: specreg and the planted faults, and no network."""
    path = os.pathsep.join((str(HERE / "planted"), str(ROOT)))
    own = {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    return os.environ | own | {"PLANTED_FAULT": fault}


@contextlib.contextmanager
def running(*arguments: str, fault: str = "") -> Iterator[tuple[httpx.Client, int]]:
    """A server of the tiny target, asked by a client; and its process id."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = (
        *(interpreter(), "-m", "specreg.engines.pytorch", "--model", str(TINY / "target")),
        *("--devices=cpu", "--dtype=float32", f"--port={port}", *arguments),
    )
    with subprocess.Popen(command, env=variables(fault)) as process:
        try:
            base_url = f"http://127.0.0.1:{port}"
            with httpx.Client(base_url=base_url, timeout=60, trust_env=False) as client:
                wait_for(client, process)
                yield client, process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=10) == 0


def wait_for(client: httpx.Client, process: subprocess.Popen[bytes]) -> None:
    """Returns once the server answers."""
    for _ in range(600):
        assert process.poll() is None
        with contextlib.suppress(httpx.HTTPError):
            client.get("/health").raise_for_status()
            return
        time.sleep(0.1)
    raise AssertionError


@pytest.fixture(scope="module")
def server() -> Iterator[httpx.Client]:
    """A server with the draft model."""
    with running(*DRAFTING) as (client, _):
        yield client


def chat(client: httpx.Client, text: str, **more: object) -> Answer:
    """A greedy answer, whole."""
    messages = [{"role": "user", "content": text}]
    body = {"messages": messages, "temperature": 0, "max_tokens": 48, "return_token_ids": True}
    response = client.post("/v1/chat/completions", json=body | more)
    assert response.status_code == httpx.codes.OK, response.text
    answer: Answer = response.json()
    return answer


def events(client: httpx.Client, text: str) -> list[Answer]:
    """The same, as the events of a stream."""
    body = {"stream": True, "stream_options": {"include_usage": True}}
    messages = [{"role": "user", "content": text}]
    body |= {"messages": messages, "temperature": 0, "max_tokens": 48, "return_token_ids": True}
    response = client.post("/v1/chat/completions", json=body)
    said = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert said[-1] == "[DONE]"
    return [json.loads(one) for one in said[:-1]]


def ids(answer: Answer) -> list[int]:
    """The tokens of a whole answer."""
    found: list[int] = answer["choices"][0]["token_ids"]
    return found


def generated(client: httpx.Client) -> int:
    """How many tokens a server has delivered since its start."""
    found = re.search(r"(?m)^reference:generation_tokens_total (\d+)$", client.get("/metrics").text)
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize("checks", ["check_decoding.py", "check_oracle.py"])
def test_what_needs_torch_is_right(checks: str) -> None:
    done = subprocess.run(
        (interpreter(), "-m", "unittest", str(HERE / checks)),
        check=False,
        cwd=ROOT,
        env=variables(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "Ran 0 tests" not in done.stderr


def test_a_stream_says_what_the_whole_answer_says(server: httpx.Client) -> None:
    for text in TEXTS[:4]:
        whole, stream = chat(server, text), events(server, text)
        choices = [event["choices"][0] for event in stream[1:-1]]
        assert [i for choice in choices for i in choice["token_ids"]] == ids(whole)
        told = "".join(choice["delta"]["content"] for choice in choices)
        assert told == whole["choices"][0]["message"]["content"]
        assert stream[0]["prompt_token_ids"] == whole["prompt_token_ids"]
        assert stream[-1]["usage"] == whole["usage"]
        assert stream[-1]["usage"]["completion_tokens"] == len(ids(whole))
        assert stream[-1]["metrics"] == whole["metrics"]
        # A chunk is a step.
        assert len(choices) == 1 + whole["metrics"]["speculative_decoding"]["num_spec_steps"]


def test_the_counters_move_by_what_the_answers_say(server: httpx.Client) -> None:
    protocol = ENGINES["reference"].wire_format
    before = protocol.parse_counters(server.get("/metrics").text).counts
    spoken = [chat(server, text)["metrics"]["speculative_decoding"] for text in TEXTS[:4]]
    after = protocol.parse_counters(server.get("/metrics").text).counts
    assert before is not None
    assert after is not None
    moved = after - before
    assert moved.steps == sum(one["num_spec_steps"] for one in spoken)
    assert moved.accepted == sum(one["num_accepted_draft_tokens"] for one in spoken) > 0
    assert moved.proposed == sum(one["num_draft_tokens"] for one in spoken)
    histograms = zip(*(one["acceptance_histogram"] for one in spoken), strict=True)
    assert moved.histogram == tuple(map(sum, histograms))


def test_requests_that_come_at_once_get_the_answers_that_they_get_alone(
    server: httpx.Client,
) -> None:
    alone = [chat(server, text) for text in TEXTS]
    with ThreadPoolExecutor(len(TEXTS)) as pool:
        together = list(pool.map(lambda text: chat(server, text), TEXTS))
    assert [ids(answer) for answer in together] == [ids(answer) for answer in alone]
    assert [answer["metrics"] for answer in together] == [answer["metrics"] for answer in alone]


def test_whoever_goes_away_holds_nobody_up(server: httpx.Client) -> None:
    body = {"prompt": "Hello", "max_tokens": 1000, "ignore_eos": True, "stream": True}
    before = generated(server)
    with server.stream("POST", "/v1/completions", json=body) as response:
        next(response.iter_raw())
    chat(server, TEXTS[0])
    assert generated(server) - before < 1000


def test_a_completion_tells_log_probabilities_by_id(server: httpx.Client) -> None:
    body = {"prompt": [5, 6, 7], "max_tokens": 6, "temperature": 0, "logprobs": 2}
    answer = server.post("/v1/completions", json=body | {"return_token_ids": True}).json()
    told = answer["choices"][0]["logprobs"]
    assert told["tokens"] == [f"token_id:{token_id}" for token_id in ids(answer)]
    assert [max(one, key=one.get) for one in told["top_logprobs"]] == told["tokens"]
    assert [max(one.values()) for one in told["top_logprobs"]] == told["token_logprobs"]
    assert {len(one) for one in told["top_logprobs"]} == {2}
    assert answer["choices"][0]["prompt_token_ids"] == [5, 6, 7]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"prompt": []}, "prompt: is empty"),
        ({"prompt": [768]}, "prompt: has the id 768, the vocabulary ends at 767"),
        ({"prompt": [5] * 1000, "max_tokens": 25}, "it is 1000 tokens and its answer at most 25"),
        ({"prompt": "Hello", "top_p": 0.5}, "unknown field `top_p`; the reference engine knows"),
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


def test_a_chat_that_has_no_prompt_is_refused_not_broken(server: httpx.Client) -> None:
    body = {
        "messages": [{"role": "user", "content": "Hello"}],
        "chat_template_kwargs": {"return_dict": True},
    }
    response = server.post("/v1/chat/completions", json=body)
    assert response.status_code == httpx.codes.BAD_REQUEST
    said = response.json()["error"]["message"]
    assert said == "chat_template_kwargs: 'return_dict' is no word of a template; leave it out"


@pytest.mark.parametrize("fault", ["one_too_many", "no_correction", "wrong_rollback"])
def test_a_planted_fault_changes_its_answers(server: httpx.Client, fault: str) -> None:
    sound = [ids(chat(server, text)) for text in TEXTS[:6]]
    with running(*DRAFTING, fault=fault) as (client, _):
        assert [ids(chat(client, text)) for text in TEXTS[:6]] != sound


def refused(python: str, arguments: Sequence[str]) -> str:
    """The last words of a server that doesn't start."""
    target = ("--model", str(TINY / "target"))
    command = (python, "-m", "specreg.engines.pytorch", *target, *arguments)
    done = subprocess.run(
        command, check=False, cwd=ROOT, env=variables(), capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--draft-model=x",), "needs a draft, others none; give both or neither"),
        (("--longest-tokens=1",), "nothing can be found; raise the latter"),
        (("--method=draft_model", "--draft-model=/nowhere"), "model '/nowhere': has no config"),
        (("--context-tokens=4096",), "its context is 2048 tokens, 4096 are to be read; lower"),
        (("--devices=cpu", "--placement=separate"), "needs two devices, there is cpu; name two"),
        (("--placement=split=2",), "placement 'split=2': unknown; known: automatic, same"),
        (("--draft-tokens=0",), "argument --draft-tokens: 0 is below 1"),
    ],
)
def test_what_it_cannot_serve_is_refused_by_name(arguments: Sequence[str], words: str) -> None:
    assert words in refused(interpreter(), arguments)


def test_without_its_packages_it_says_what_to_install() -> None:
    said = refused(sys.executable, ())
    assert said.startswith("reference engine: needs '")
    assert "install specreg[reference]" in said


def test_a_second_server_on_a_port_says_so_without_a_traceback(server: httpx.Client) -> None:
    assert "in use" in refused(interpreter(), (f"--port={server.base_url.port}", "--devices=cpu"))
