"""An upgrade after which everything is slower: the recorded engine is measured in the same hour."""

import sys

import msgspec
import pytest

from specreg.report.document import ComparedReport
from specreg.report.files import FILE_NAME, load_report
from specreg.servers.provision import Provision
from specreg.suite.engine_check import ENGINES_FOLDER
from specreg.verdicts.verdict import Outcome, Verdict
from tests.doubles.vllm.script import Script
from tests.plugin.conftest import Suite
from tests.unit import builders

CASE_ID = "vllm-eagle3-tiny-toy-c4"
SPEED = "throughput_tokens_per_s"
SLOW = 25.0
"""Milliseconds of a step: three times as long as usual, which is clear on a busy machine too."""


@pytest.fixture
def upgraded(recorded_suite: Suite, monkeypatch: pytest.MonkeyPatch) -> Suite:
    """A suite whose baselines are of vLLM 99.0, and that measures vLLM 99.1."""
    cache = recorded_suite.folder / "cache"
    monkeypatch.setenv("SPECREG_CACHE", str(cache))
    recorded_suite.engine_option = "--specreg-engine-version=99.1"
    return recorded_suite


def install(version: str, script: Script) -> None:
    """Make a version of vLLM seem installed, with a server that does as a script says."""
    provision = Provision(on_gpu=False, show=lambda _: None, version=version)
    python = builders.seem_installed(provision.requirement(builders.SPEC))
    path = python.with_name("script.json")
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(script, version=version)))
    python.write_text(f'#!/bin/sh\nSCRIPTED_SERVER={path} exec {sys.executable} "$@"\n')


def verdict_on(suite: Suite, metric: str) -> Verdict:
    """The verdict of the last run on a metric of the case."""
    (verdict,) = [
        verdict
        for verdict in suite.verdict().verdicts
        if (verdict.case_id, verdict.metric) == (CASE_ID, metric)
    ]
    return verdict


def test_a_slower_engine_is_told_by_the_recorded_one(upgraded: Suite) -> None:
    """The control is slower too, so the run alone would take it for the machine."""
    install("99.0", Script())
    install("99.1", Script(step_ms=SLOW))

    done = upgraded.run("tests/perf", "-q", "-k", "c4 and throughput")

    verdict = verdict_on(upgraded, SPEED)
    assert verdict.outcome is Outcome.REGRESSED, done.stdout + done.stderr
    assert verdict.has_code("ENGINE_SLOWER")
    (run,) = upgraded.runs.iterdir()
    (folder,) = (run / ENGINES_FOLDER).iterdir()
    assert f"vllm 99.0 -> 99.1 on {folder.name} in the same hour" in verdict.explanation
    gate = load_report(folder / FILE_NAME)
    assert isinstance(gate, ComparedReport)
    assert [side.text for side in gate.sides] == ["vllm==99.0", "vllm==99.1"]
    assert str(folder / "report.html") in done.stdout
