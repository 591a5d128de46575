"""A real tritonserver, given the repository that specreg writes, with a real vLLM behind it.

The backend is `tests/doubles/triton_server/model.py`; the vendor's comes in its container only.
`nox -s triton` runs it: three servers, one after the other, in three minutes.
"""

import dataclasses
import os
from pathlib import Path

import pytest

from specreg.acceptance.record import AcceptanceRecord, Source, View
from specreg.engines.wire_format import Form
from specreg.matrix.case import Case
from specreg.matrix.prompts import load_case_prompts
from specreg.matrix.schema import Load
from specreg.servers.environments import EngineEnvironment
from specreg.servers.provision import Provision
from tests.contract.engines import case_of, environment_of, start
from tests.doubles.triton_server.install import install_tritonserver
from tests.unit import builders


def case(engine: str) -> Case:
    """The tiny target with its head, one request at a time: a chunk is a step then.

    Without its chat template the target would end its answer at once.
    """
    found = case_of("sglang_cpu", "vllm-eagle3-plain-toy-c4")
    server = dataclasses.replace(found.server, engine=engine)
    load = Load(concurrency=1)
    return dataclasses.replace(
        found, server=server, load=load, form=Form.COMPLETIONS, ignore_eos=True
    )


@pytest.fixture
def provision(monkeypatch: pytest.MonkeyPatch) -> Provision:
    """A machine with a tritonserver, whose backend finds vLLM."""
    folder = install_tritonserver(print)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SPECREG_VLLM_PYTHON", environment_of("vllm").python)
    return Provision(on_gpu=False, version=None, python=None, url=None, show=print)


def acceptance(
    one: Case, environment: EngineEnvironment, folder: Path
) -> tuple[AcceptanceRecord, int]:
    """What a real server does with the case, and how many tokens it delivers."""
    prompts = load_case_prompts(builders.ROOT, one)[: one.prompts]
    with start(one, folder, environment) as server:
        measurement = builders.measure_alone(one, server, prompts)
    assert not measurement.invalid
    assert measurement.acceptance is not None
    assert measurement.replay is not None
    tokens = sum(trace.tokens for part in measurement.replay.rounds for trace in part.traces)
    return measurement.acceptance, tokens


def test_triton_does_what_its_vllm_does(tmp_path: Path, provision: Provision) -> None:
    triton = case("triton")
    server = dataclasses.replace(triton.server, engine_args=("seed=7",))
    triton = dataclasses.replace(triton, server=server)
    provision.check([triton])

    counted, tokens = acceptance(case("vllm"), environment_of("vllm"), tmp_path)
    seen, same_tokens = acceptance(triton, provision.environment(triton.server), tmp_path)

    assert (seen.source, seen.view) == (Source.STREAM_CHUNKS, View.EMITTED)
    assert same_tokens == tokens
    assert seen.total.steps == counted.total.steps
    # The verifier counts what the cap cut off, of one step per answer at most.
    cut = counted.total.accepted - seen.total.accepted
    assert 0 <= cut <= 3 * triton.prompts
    # vLLM says what it was told: the case's own arguments have reached it.
    assert "'seed': 7" in (tmp_path / f"{triton.server.id}.log").read_text()
    assert "'seed': 7" not in (tmp_path / f"{case('vllm').server.id}.log").read_text()
