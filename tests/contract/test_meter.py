"""The meter against real vLLM: an acceptance that is known beforehand is read back exactly.

Starts real servers, one after another: two to three minutes. `nox -s contract` runs it.
"""

import dataclasses
import json
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import pytest

from specreg.datasets.prompts import Prompt
from specreg.engines.drafter import scheduled
from specreg.engines.drafter.scheduled import SCHEDULE
from specreg.engines.registry import engine_named
from specreg.matrix.case import Case
from specreg.matrix.prompts import load_case_prompts
from specreg.matrix.schema import Load
from specreg.matrix.tier import load_tier
from specreg.measurement.measure import Measurement
from specreg.servers.environments import EngineEnvironment, engine_environment
from specreg.servers.server import Server
from specreg.servers.start import ServerStart
from tests.unit.builders import measure_alone

ROOT = Path(__file__).parents[2]
PAST_THE_END = 8

Recording = dict[str, tuple[list[int], list[int], int]]
"""By prompt: its tokens, those of the greedy answer and a few past its end, and its length."""


def silent(_: str) -> None:
    """Shows nothing."""


@pytest.fixture(scope="module")
def environment() -> EngineEnvironment:
    return engine_environment(engine_named("vllm").requirement(on_gpu=False), show=silent)


@pytest.fixture(scope="module")
def plain_case() -> Case:
    cases = load_tier(ROOT / "fixtures/matrix", "cpu").cases
    return next(case for case in cases if case.id == "vllm-none-tiny-toy-c1")


@pytest.fixture(scope="module")
def prompts(plain_case: Case) -> tuple[Prompt, ...]:
    return load_case_prompts(ROOT, plain_case)[: plain_case.prompts]


def start(
    case: Case, environment: EngineEnvironment, folder: Path
) -> AbstractContextManager[Server]:
    return ServerStart(
        spec=case.server,
        environment=environment,
        root=ROOT,
        log_path=folder / "server.log",
        on_gpu=False,
        ready_within_s=600,
        show=silent,
    ).running()


@pytest.fixture(scope="module")
def recording(
    plain_case: Case,
    prompts: tuple[Prompt, ...],
    environment: EngineEnvironment,
    tmp_path_factory: pytest.TempPathFactory,
) -> Recording:
    folder = tmp_path_factory.mktemp("recording")
    with start(plain_case, environment, folder) as server:
        return {prompt.id: _record(server, prompt, plain_case) for prompt in prompts}


def _record(server: Server, prompt: Prompt, case: Case) -> tuple[list[int], list[int], int]:
    body = {
        "model": server.model,
        "messages": [{"role": "user", "content": prompt.turns[0]}],
        "temperature": 0.0,
        "return_token_ids": True,
        "max_tokens": case.output_cap_tokens,
    }
    longer = body | {"max_tokens": case.output_cap_tokens + PAST_THE_END, "ignore_eos": True}
    with httpx.Client(base_url=server.base_url, timeout=60, trust_env=False) as client:
        length = client.post("/v1/chat/completions", json=body).json()["usage"]
        answer = client.post("/v1/chat/completions", json=longer).json()
    output: list[int] = answer["choices"][0]["token_ids"]
    return answer["prompt_token_ids"], output, length["completion_tokens"]


def scheduled_case(plain_case: Case, recording: Recording, folder: Path, concurrency: int) -> Case:
    path = folder / "recording.json"
    pairs = [(ids, output) for ids, output, _ in recording.values()]
    path.write_text(json.dumps(pairs))
    server = dataclasses.replace(
        plain_case.server,
        method="custom_class",
        draft="scheduled.Drafter",
        draft_tokens=3,
        engine_env=(
            *plain_case.server.engine_env,
            ("PYTHONPATH", str(Path(scheduled.__file__).parent)),
            ("SCHEDULED_RECORDING", str(path)),
        ),
    )
    return dataclasses.replace(plain_case, server=server, load=Load(concurrency=concurrency))


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
    plain_case: Case,
    prompts: tuple[Prompt, ...],
    recording: Recording,
    environment: EngineEnvironment,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[int, Measurement]:
    """By concurrency: the scheduled drafter as the suite measures it."""
    folder = tmp_path_factory.mktemp("scheduled")
    cases = {n: scheduled_case(plain_case, recording, folder, n) for n in (1, 4)}
    with start(cases[1], environment, folder) as server:
        return {n: measure_alone(case, server, prompts) for n, case in cases.items()}


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_scheduled_acceptance_is_read_back_exactly(
    concurrency: int,
    measurements: dict[int, Measurement],
    recording: Recording,
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
