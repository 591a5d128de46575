"""The meter against real vLLM: an acceptance that is known beforehand is read back exactly.

Starts real servers, one after another: two to three minutes. `nox -s contract` runs it.
"""

import dataclasses
import json
from pathlib import Path

import httpx
import pytest

from specreg.datasets.prompts import Prompt
from specreg.engines.drafter import scheduled
from specreg.engines.drafter.scheduled import SCHEDULE
from specreg.matrix.case import Case
from specreg.matrix.prompts import load_case_prompts
from specreg.matrix.schema import Load
from specreg.measurement.measure import Measurement
from specreg.servers.server import Server
from tests.contract.engines import case_of, start
from tests.unit import builders

PLAIN = case_of("cpu", "vllm-none-tiny-toy-c1")
PROMPTS = load_case_prompts(builders.ROOT, PLAIN)[: PLAIN.prompts]
PAST_THE_END = 8

Recording = dict[str, tuple[list[int], list[int], int]]
"""By prompt: its tokens, those of the greedy answer and a few past its end, and its length."""


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    with start(PLAIN, tmp_path_factory.mktemp("recording")) as server:
        return {prompt.id: _record(server, prompt) for prompt in PROMPTS}


def _record(server: Server, prompt: Prompt) -> tuple[list[int], list[int], int]:
    body = {
        "model": server.model,
        "messages": [{"role": "user", "content": prompt.turns[0]}],
        "temperature": 0.0,
        "return_token_ids": True,
        "max_tokens": PLAIN.output_cap_tokens,
    }
    longer = body | {"max_tokens": PLAIN.output_cap_tokens + PAST_THE_END, "ignore_eos": True}
    with httpx.Client(base_url=server.base_url, timeout=60, trust_env=False) as client:
        length = client.post("/v1/chat/completions", json=body).json()["usage"]
        answer = client.post("/v1/chat/completions", json=longer).json()
    output: list[int] = answer["choices"][0]["token_ids"]
    return answer["prompt_token_ids"], output, length["completion_tokens"]


def scheduled_case(recording: Recording, folder: Path, concurrency: int) -> Case:
    path = folder / "recording.json"
    pairs = [(ids, output) for ids, output, _ in recording.values()]
    path.write_text(json.dumps(pairs))
    server = dataclasses.replace(
        PLAIN.server,
        method="custom_class",
        draft="scheduled.Drafter",
        draft_tokens=3,
        engine_env=(
            *PLAIN.server.engine_env,
            ("PYTHONPATH", str(Path(scheduled.__file__).parent)),
            ("SCHEDULED_RECORDING", str(path)),
        ),
    )
    return dataclasses.replace(PLAIN, server=server, load=Load(concurrency=concurrency))


def scheduled_steps(completion_tokens: int) -> list[int]:
    """The drafts accepted in each step of a request that delivers so many tokens."""
    steps: list[int] = []
    emitted = 1
    while emitted < completion_tokens:
        steps.append(SCHEDULE[len(steps) % len(SCHEDULE)])
        emitted += steps[-1] + 1
    return steps


@pytest.fixture(scope="module")
def measurements(
    recording: Recording, tmp_path_factory: pytest.TempPathFactory
) -> dict[int, Measurement]:
    """By concurrency: the scheduled drafter as the suite measures it."""
    folder = tmp_path_factory.mktemp("scheduled")
    cases = {n: scheduled_case(recording, folder, n) for n in (1, 4)}
    with start(cases[1], folder) as server:
        return {n: builders.measure_alone(case, server, PROMPTS) for n, case in cases.items()}


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_scheduled_acceptance_is_read_back_exactly(
    concurrency: int, measurements: dict[int, Measurement], recording: Recording
) -> None:
    measurement = measurements[concurrency]
    assert not measurement.invalid
    assert measurement.acceptance is not None
    for prompt in measurement.acceptance.prompts:
        steps = scheduled_steps(recording[prompt.prompt_id][2])
        assert prompt.completion_tokens == recording[prompt.prompt_id][2]
        assert prompt.counts.steps == len(steps)
        assert prompt.counts.accepted == sum(steps)
        assert prompt.counts.proposed == 3 * len(steps)
        assert prompt.counts.histogram == tuple(steps.count(j) for j in range(4))
