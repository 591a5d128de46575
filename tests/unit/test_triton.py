"""Triton with the vLLM backend: what is written and started."""

import dataclasses
import json
from pathlib import Path

from specreg.engines import Parallel, engine_named
from specreg.engines._engine import LaunchOptions
from specreg.methods import METHODS
from tests.unit import builders

TRITON = engine_named("triton")
SPECULATION = METHODS["eagle3"].settings("vllm", "/models/head", 3)
OPTIONS = dataclasses.replace(builders.LAUNCH_OPTIONS, speculation=SPECULATION)


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
    assert command[-2:] == ("--seed", "7")


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
        "speculative_config": {"method": "eagle3", "model": "/models/head"}
        | {"num_speculative_tokens": 3},
    }


def test_a_model_is_spread_as_the_case_says() -> None:
    spread = Parallel(tensor=2, data=3, expert=True, draft_tensor=1)
    options = dataclasses.replace(OPTIONS, on_gpu=True, parallel=spread)
    found = engine_arguments(options)
    assert found["gpu_memory_utilization"] == 0.4
    assert (found["tensor_parallel_size"], found["data_parallel_size"]) == (2, 3)
    assert found["enable_expert_parallel"] is True
    assert found["speculative_config"] == {**SPECULATION, "draft_tensor_parallel_size": 1}


def test_without_speculation_there_is_no_section_of_it() -> None:
    plain = engine_arguments(dataclasses.replace(OPTIONS, speculation={}))
    assert "speculative_config" not in plain


def test_the_version_is_read_or_unknown() -> None:
    assert TRITON.parse_version(b'{"name": "triton", "version": "2.60.0"}') == "2.60.0"
    assert TRITON.parse_version(b"<html>") == "unknown"
