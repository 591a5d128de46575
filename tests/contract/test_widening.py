"""Widened models in real vLLM and in torch: what they say and accept is what the tiny ones do.

Starts four servers, one after another: two minutes. `nox -s contract` runs it.
"""

import dataclasses
import json
import subprocess
from pathlib import Path

import pytest

from specreg.acceptance.record import StepCounts
from specreg.engines.registry import engine_named
from specreg.matrix.case import Case
from specreg.matrix.prompts import load_case_prompts
from specreg.matrix.schema import Width
from specreg.matrix.tier import load_tier
from specreg.matrix.widening import served_models, widen_models
from specreg.servers.environments import EngineEnvironment, engine_environment
from specreg.servers.start import ServerStart
from tests.unit import builders
from tests.unit.builders import measure_alone

ROOT = builders.ROOT
CASES = {case.id: case for case in load_tier(ROOT / "fixtures/matrix", "cpu").cases}
IDS = [5, 17, 300, 44, 9, 700, 12, 33, 250, 601]


@pytest.fixture(scope="module")
def environment() -> EngineEnvironment:
    return engine_environment(engine_named("vllm").requirement(on_gpu=False), show=print)


def widened(case: Case) -> Case:
    """The same case on the same models, widened."""
    server = dataclasses.replace(case.server, padding_layers=0, widen=Width.THIRTY_MILLION)
    return dataclasses.replace(case, server=server)


def accepted(case: Case, environment: EngineEnvironment, log_path: Path) -> StepCounts:
    """The steps of a case's prompts on a real server."""
    prompts = load_case_prompts(ROOT, case)[: case.prompts]
    with ServerStart(
        spec=case.server,
        environment=environment,
        root=ROOT,
        log_path=log_path,
        on_gpu=False,
        ready_within_s=600,
        show=print,
    ).running() as server:
        measurement = measure_alone(case, server, prompts)
    assert measurement.acceptance is not None, measurement.invalid
    return measurement.acceptance.total


@pytest.mark.vllm
@pytest.mark.parametrize("method", ["draft_model", "eagle3"])
def test_a_widened_pair_accepts_what_the_tiny_one_does(
    method: str, environment: EngineEnvironment, tmp_path: Path
) -> None:
    case = dataclasses.replace(CASES[f"vllm-{method}-tiny-toy-c1"], control=None)
    narrow = accepted(case, environment, tmp_path / "narrow.log")
    assert accepted(widened(case), environment, tmp_path / "wide.log") == narrow
    assert narrow.steps > 0


@pytest.mark.parametrize("name", ["target", "draft"])
def test_torch_computes_the_same_logits(name: str, environment: EngineEnvironment) -> None:
    spec = widened(CASES["vllm-draft_model-tiny-toy-c1"]).server
    widen_models(ROOT, spec, show=print)
    target, draft = served_models(ROOT, spec)
    narrow, wide = (spec.target, target) if name == "target" else (spec.draft, draft)
    done = subprocess.run(
        (
            environment.python,
            str(Path(__file__).with_name("logits.py")),
            *(str(ROOT / str(narrow)), str(wide), json.dumps(IDS)),
        ),
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    apart, largest = json.loads(done.stdout.splitlines()[-1])
    assert apart < 2e-6 * largest
    assert largest > 5
