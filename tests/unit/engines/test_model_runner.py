"""Which of vLLM's model runners a server has, and what it means for the server beside it."""

import dataclasses

import pytest

from specreg.core.errors import UnsupportedError
from specreg.engines.registry import ENGINES
from specreg.engines.server_spec import ModelRunner
from tests.unit import builders

VLLM = ENGINES["vllm"]
TOLD = "VLLM_USE_V2_MODEL_RUNNER"


@pytest.mark.parametrize(
    ("method", "version", "runner"),
    [
        ("eagle3", "0.26.0", None),  # as seen on an H100: both take V2
        ("ngram", "0.26.0", "v1"),
        ("draft_model", "0.26.0", "v1"),
        ("draft_model", "0.30.0", "v1"),
        ("draft_model", "0.31.0", None),
        ("ngram", "0.31.0", "v1"),
        ("ngram", "0.32.0", None),
        ("ngram", "0.32.0rc1", "v1"),
        ("medusa", "0.32.0", "v1"),
        ("suffix", "0.33.0", "v1"),
        ("custom_class", "0.40.0", "v1"),
        ("suffix", "", "v1"),
        ("ngram", "", None),
    ],
)
def test_a_control_gets_the_runner_that_its_version_uses_for_the_method(
    method: str, version: str, runner: ModelRunner | None
) -> None:
    assert VLLM.shared_runner(method, version) == runner


@pytest.mark.parametrize(("method", "runner"), [("suffix", "v1"), ("pard", "v1"), ("ngram", None)])
def test_triton_shares_the_runner_that_its_vllm_uses_in_every_version(
    method: str, runner: ModelRunner | None
) -> None:
    assert ENGINES["triton"].shared_runner(method, "2.51") == runner


def test_no_other_engine_has_a_runner_to_share() -> None:
    for name in ("sglang", "tensorrt_llm", "reference", "triton"):
        assert ENGINES[name].shared_runner("ngram", "1.0") is None


@pytest.mark.parametrize(("runner", "value"), [("v1", "0"), ("v2", "1"), (None, None)])
def test_a_server_gets_its_runner_by_a_variable(
    runner: ModelRunner | None, value: str | None
) -> None:
    start = builders.start_of(on_gpu=True, model_runner=runner, engine_args=())
    assert VLLM.environment(*start).get(TOLD) == value
    assert ENGINES["triton"].environment(*start).get(TOLD) == value


def test_a_runner_is_refused_for_an_engine_that_has_only_one() -> None:
    settings, _ = builders.start_of(model_runner="v1")
    with pytest.raises(UnsupportedError, match=r"model_runner = v1: engine 'sglang' has only one"):
        ENGINES["sglang"].check(settings)


def test_a_runner_that_is_named_is_part_of_the_servers_id() -> None:
    assert dataclasses.replace(builders.SPEC, model_runner="v1").id == f"{builders.SPEC.id}-v1"
