"""A real tritonserver, given the repository that specreg writes, with a real vLLM behind it.

The backend is `tests/doubles/triton_server/model.py`; the vendor's comes in its container only.
`nox -s triton` runs it: four servers, one after the other, in four minutes, with cores to spare.
"""

import dataclasses
import os
from pathlib import Path

import pytest

from specreg.acceptance.record import AcceptanceRecord, Source, View
from specreg.matrix.case import Case
from specreg.servers.provision import Provision
from tests.contract.engines import case_of, measure, start
from tests.doubles.triton_server.install import install_tritonserver


def case(engine: str, method: str) -> Case:
    """A case of the tier, or the same on vLLM alone."""
    triton_case = case_of("triton", f"triton-{method}-wide-30m-toy-c1")
    return dataclasses.replace(
        triton_case, server=dataclasses.replace(triton_case.server, engine=engine)
    )


@pytest.fixture
def provision(monkeypatch: pytest.MonkeyPatch) -> Provision:
    """A machine with a tritonserver."""
    folder = install_tritonserver(print)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return Provision(on_gpu=False, version=None, python=None, show=print)


def acceptance(case: Case, folder: Path) -> tuple[AcceptanceRecord, int]:
    """What a real server does with the case, and how many tokens it delivers."""
    with start(case, folder) as server:
        measurement, record = measure(case, server)
    assert measurement.replay is not None
    return record, sum(trace.tokens for trace in measurement.replay.traces)


@pytest.mark.parametrize("method", ["draft_model", "eagle3"])
def test_triton_does_what_its_vllm_does(tmp_path: Path, provision: Provision, method: str) -> None:
    triton = case("triton", method)
    vllm = case("vllm", method)
    server = dataclasses.replace(triton.server, engine_args=("seed=7",))
    triton = dataclasses.replace(triton, server=server)
    provision.check([triton])

    counted, tokens = acceptance(vllm, tmp_path)
    seen, same_tokens = acceptance(triton, tmp_path)

    assert (seen.source, seen.view) == (Source.STREAM_CHUNKS, View.EMITTED)
    assert same_tokens == tokens
    assert seen.total.steps == counted.total.steps
    # The verifier counts what the cap cut off, of one step per answer at most.
    cut = counted.total.accepted - seen.total.accepted
    assert 0 <= cut <= 3 * triton.request.prompts
    # vLLM says what it was told: the case's own arguments have reached it.
    assert "'seed': 7" in (tmp_path / f"{triton.server.id}.log").read_text()
    assert "'seed': 7" not in (tmp_path / f"{vllm.server.id}.log").read_text()
