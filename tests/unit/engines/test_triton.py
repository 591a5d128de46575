"""Triton with the vLLM backend: what is written and started."""

import dataclasses
import json
from pathlib import Path

import pytest

from specreg.core.errors import UnsupportedError
from specreg.engines.engine import LaunchOptions
from specreg.engines.registry import engine_named
from specreg.engines.settings import Parallel
from tests.unit import builders

TRITON = engine_named("triton")
SPECULATION = engine_named("triton").methods["eagle3"].render("/models/head", 3)
OPTIONS = dataclasses.replace(
    builders.LAUNCH_OPTIONS, speculation=SPECULATION, engine_args=("seed=7",)
)


def engine_arguments(options: LaunchOptions) -> dict[str, object]:
    """What the backend hands to vLLM."""
    found: dict[str, object] = json.loads(TRITON.files(options)["toy/1/model.json"])
    return found


def test_the_repository_holds_one_model_of_the_backend() -> None:
    files = TRITON.files(OPTIONS)
    assert set(files) == {"toy/config.pbtxt", "toy/1/model.json"}
    assert 'backend: "vllm"' in files["toy/config.pbtxt"]
    assert "decoupled: true" in files["toy/config.pbtxt"]


def test_the_command_line_loads_that_model() -> None:
    command = TRITON.command(Path(), OPTIONS)
    assert command[:3] == ("tritonserver", "--model-repository", "/runs/logs/toy")
    words = " ".join(command)
    assert "--load-model toy --http-address 127.0.0.1 --http-port 8123" in words
    assert "seed" not in words


def test_vllm_is_told_what_it_would_be_told_alone() -> None:
    assert engine_arguments(OPTIONS) == {
        "model": "some/target",
        "dtype": "float32",
        "max_model_len": 1024,
        "max_num_seqs": 8,
        "enable_prefix_caching": False,
        "generation_config": "vllm",
        "enforce_eager": True,
        "distributed_executor_backend": "uni",
        "seed": 7,
        "speculative_config": {"method": "eagle3", "model": "/models/head"}
        | {"num_speculative_tokens": 3},
    }


def test_a_model_is_spread_as_the_case_says() -> None:
    spread = Parallel(tensor=2, data=3, expert=True, draft_tensor=1, pipeline=4)
    options = dataclasses.replace(OPTIONS, on_gpu=True, parallel=spread)
    found = engine_arguments(options)
    assert found["gpu_memory_utilization"] == 0.4
    assert (found["tensor_parallel_size"], found["data_parallel_size"]) == (2, 3)
    assert found["pipeline_parallel_size"] == 4
    assert found["enable_expert_parallel"] is True
    assert found["speculative_config"] == {**SPECULATION, "draft_tensor_parallel_size": 1}


def test_a_cases_arguments_are_vllms_by_name_and_have_the_last_word() -> None:
    args = ("kv_cache_dtype=fp8", "max_num_seqs=4", "enable_prefix_caching=true", "empty=")
    found = engine_arguments(dataclasses.replace(OPTIONS, engine_args=args))
    assert (found["kv_cache_dtype"], found["max_num_seqs"]) == ("fp8", 4)
    assert (found["enable_prefix_caching"], found["empty"]) == (True, "")


@pytest.mark.parametrize("argument", ["--seed", "--seed=7", "=7", ""])
def test_an_argument_without_a_name_is_refused(argument: str) -> None:
    with pytest.raises(UnsupportedError, match='write name=value, as in "seed=7"'):
        TRITON.files(dataclasses.replace(OPTIONS, engine_args=(argument,)))


def test_without_speculation_there_is_no_section_of_it() -> None:
    plain = engine_arguments(dataclasses.replace(OPTIONS, speculation={}))
    assert "speculative_config" not in plain


def test_the_version_is_read_or_unknown() -> None:
    assert TRITON.parse_version(b'{"name": "triton", "version": "2.60.0"}') == "2.60.0"
    assert TRITON.parse_version(b"<html>") == "unknown"
