"""Another client on the same server and prompts: vLLM's own benchmark sees what specreg sees.

Starts a real server: about a minute and a half. `nox -s contract` runs it.
"""

import dataclasses
import json
import os
import subprocess
from pathlib import Path

import msgspec
import pytest

from specreg.matrix.prompts import load_case_prompts
from specreg.measurement.measure import Measurement
from specreg.servers.server import Server
from tests.contract.engines import case_of, interpreter_of, measure, start
from tests.unit import builders

ROOT = builders.ROOT
CASE = case_of("cpu", "vllm-draft_model-tiny-toy-c4")


class Theirs(msgspec.Struct, frozen=True):
    """What `vllm bench serve` says of a run."""

    completed: int
    failed: int
    total_output_tokens: int
    spec_decode_acceptance_length: float
    spec_decode_acceptance_rate: float
    spec_decode_num_drafts: int
    spec_decode_draft_tokens: int
    spec_decode_accepted_tokens: int


def run_bench_serve(server: Server, folder: Path) -> Theirs:
    """The benchmark, on the prompts that specreg replays."""
    prompts = load_case_prompts(ROOT, CASE)[: CASE.request.prompts]
    # Of the forms that it reads, this one needs no pandas; the second turn is never sent.
    conversations = [(prompt.turns[0], "an answer of some words") for prompt in prompts]
    rows = [{"conversations": [{"value": text} for text in turns]} for turns in conversations]
    (folder / "prompts.json").write_text(json.dumps(rows))
    done = subprocess.run(
        (
            *(interpreter_of("vllm"), str(ROOT / "tests/contract/bench_serve/bench_serve.py")),
            *("bench", "serve", "--backend", "openai-chat", "--endpoint", "/v1/chat/completions"),
            *("--base-url", server.address.url, "--model", server.model),
            *("--tokenizer", server.target, "--skip-chat-template", "--disable-shuffle"),
            *("--dataset-name", "sharegpt", "--dataset-path", str(folder / "prompts.json")),
            *("--sharegpt-output-len", str(CASE.request.output_cap_tokens), "--temperature", "0"),
            *("--num-prompts", str(len(prompts))),
            *("--max-concurrency", str(CASE.load.concurrency), "--disable-tqdm"),
            *("--save-result", "--result-dir", str(folder), "--result-filename", "theirs.json"),
        ),
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return msgspec.json.decode((folder / "theirs.json").read_bytes(), type=Theirs)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Measurement, Theirs]:
    """What specreg and what vLLM's benchmark measured, one after the other, on one server."""
    folder = tmp_path_factory.mktemp("cross")
    case = dataclasses.replace(CASE, server=dataclasses.replace(CASE.server, padding_layers=0))
    with start(case, folder) as server:
        measurement, _ = measure(case, server)
        return measurement, run_bench_serve(server, folder)


def test_both_count_the_same_steps_and_tokens(measured: tuple[Measurement, Theirs]) -> None:
    """Greedy and in float32 the answers are the same, so the counts are, to the last one."""
    measurement, benchmark = measured
    assert measurement.acceptance is not None
    assert measurement.replay is not None
    counts = measurement.acceptance.total
    assert (benchmark.completed, benchmark.failed) == (CASE.request.prompts, 0)
    assert benchmark.spec_decode_num_drafts == counts.steps
    assert benchmark.spec_decode_draft_tokens == counts.proposed
    assert benchmark.spec_decode_accepted_tokens == counts.accepted
    assert benchmark.spec_decode_acceptance_length == counts.acceptance_length
    # Theirs is in per cent.
    assert benchmark.spec_decode_acceptance_rate == pytest.approx(
        100 * (counts.acceptance_rate or 0)
    )
    delivered = sum(trace.tokens for trace in measurement.replay.traces)
    assert benchmark.total_output_tokens == delivered
