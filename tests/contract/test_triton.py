"""A real tritonserver, given the repository that specreg writes, with a real vLLM behind it.

The backend is `tests/triton_server/model.py`; the vendor's comes in its container only.
`nox -s triton` runs it: two servers, one after the other, in two minutes.
"""

import dataclasses
import os
from pathlib import Path

import pytest

from specreg.acceptance.record import AcceptanceRecord, Source, View
from specreg.arrivals import Load
from specreg.engines import engine_named
from specreg.environments import EngineEnvironment, engine_environment
from specreg.expectation import load_case_prompts
from specreg.matrix import Case, load_tier
from specreg.measurement import measure
from specreg.protocols import Form
from specreg.provision import Provision
from specreg.server import start_server
from tests.triton_server.install import install_tritonserver
from tests.unit import builders

ROOT = builders.ROOT


def case(engine: str) -> Case:
    """The tiny target with its head, one request at a time: a chunk is a step then.

    Without its chat template the target would end its answer at once.
    """
    cases = load_tier(ROOT / "fixtures/matrix", "sglang_cpu").cases
    found = next(one for one in cases if one.id == "vllm-eagle3-plain-toy-c4")
    server = dataclasses.replace(found.server, engine=engine)
    load = Load(concurrency=1)
    return dataclasses.replace(
        found, server=server, load=load, form=Form.COMPLETIONS, ignore_eos=True
    )


def acceptance(
    one: Case, environment: EngineEnvironment, folder: Path
) -> tuple[AcceptanceRecord, int]:
    """What a real server does with the case, and how many tokens it delivers."""
    prompts = load_case_prompts(ROOT, one)[: one.prompts]
    with start_server(
        one.server,
        environment,
        root=ROOT,
        log_path=folder / f"{one.server.engine}.log",
        on_gpu=False,
        ready_within_s=300,
        show=print,
    ) as server:
        measurement = measure(one, server, None, prompts, show=lambda _: None)
    assert measurement.invalid is None
    assert measurement.acceptance is not None
    assert measurement.replay is not None
    tokens = sum(trace.tokens for part in measurement.replay.rounds for trace in part.traces)
    return measurement.acceptance, tokens


def test_triton_does_what_its_vllm_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vllm = engine_environment(engine_named("vllm").requirement(on_gpu=False), show=print)
    folder = install_tritonserver(print)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SPECREG_VLLM_PYTHON", vllm.python)
    provision = Provision(on_gpu=False, version=None, python=None, url=None, show=print)
    triton = case("triton")
    provision.check([triton])

    counted, tokens = acceptance(case("vllm"), vllm, tmp_path)
    seen, same_tokens = acceptance(triton, provision.environment(triton.server), tmp_path)

    assert (seen.source, seen.view) == (Source.STREAM_CHUNKS, View.EMITTED)
    assert same_tokens == tokens
    assert seen.total.steps == counted.total.steps
    # The verifier counts what the cap cut off, of one step per answer at most.
    cut = counted.total.accepted - seen.total.accepted
    assert 0 <= cut <= 3 * triton.prompts
