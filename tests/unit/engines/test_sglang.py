"""SGLang: what is installed and started."""

import dataclasses
from pathlib import Path

import pytest

from specreg.core.errors import UnsupportedError
from specreg.engines.engine import Memory
from specreg.engines.registry import engine_named
from specreg.engines.settings import Parallel
from tests.unit import builders

SGLANG = engine_named("sglang")
PYTHON = Path("/envs/sglang/bin/python")
SPECULATION = engine_named("sglang").methods["eagle3"].render("/models/head", 3)
OPTIONS = dataclasses.replace(builders.LAUNCH_OPTIONS, speculation=SPECULATION)


def flag(command: tuple[str, ...], name: str) -> str:
    """The argument after a flag."""
    return command[command.index(name) + 1]


def test_the_command_line_begins_with_the_module_and_what_to_serve() -> None:
    command = SGLANG.command(PYTHON, OPTIONS)
    assert command[:3] == (str(PYTHON), "-m", "sglang.launch_server")
    assert flag(command, "--model-path") == "some/target"
    assert flag(command, "--served-model-name") == "toy"
    assert (flag(command, "--host"), flag(command, "--port")) == ("127.0.0.1", "8123")
    assert flag(command, "--dtype") == "float32"
    assert flag(command, "--context-length") == "1024"
    assert flag(command, "--max-running-requests") == "8"
    assert command[-2:] == ("--seed", "7")


def test_k_drafts_are_k_steps_and_one_token_more_to_verify() -> None:
    command = SGLANG.command(PYTHON, OPTIONS)
    assert "--speculative-algorithm=EAGLE3" in command
    assert "--speculative-draft-model-path=/models/head" in command
    assert "--speculative-num-steps=3" in command
    assert "--speculative-num-draft-tokens=4" in command


def test_case_and_control_differ_in_the_speculation_alone() -> None:
    speculating = SGLANG.command(PYTHON, OPTIONS)
    plain = SGLANG.command(PYTHON, dataclasses.replace(OPTIONS, speculation={}))
    assert [word for word in speculating if not word.startswith("--speculative")] == list(plain)


def test_it_counts_and_a_repeated_prompt_costs_what_it_cost_the_first_time() -> None:
    command = SGLANG.command(PYTHON, OPTIONS)
    assert {"--enable-metrics", "--disable-radix-cache"} <= set(command)


@pytest.mark.parametrize(
    ("version", "exports"), [("0.5.11", True), ("0.5.18", True), ("0.5.19", False), ("", False)]
)
def test_a_version_whose_chats_do_not_tell_exports_where_nothing_stays(
    version: str, *, exports: bool
) -> None:
    command = SGLANG.command(PYTHON, dataclasses.replace(OPTIONS, version=version))
    assert ("--export-metrics-to-file" in command) == exports
    plain = SGLANG.command(PYTHON, dataclasses.replace(OPTIONS, version=version, speculation={}))
    assert "--export-metrics-to-file" not in plain
    if exports:
        assert flag(command, "--export-metrics-to-file-dir") == str(OPTIONS.private)
        assert not OPTIONS.private.is_relative_to(OPTIONS.folder)


def test_on_a_gpu_the_share_of_its_memory_is_given() -> None:
    on_gpu = dataclasses.replace(OPTIONS, on_gpu=True)
    command = SGLANG.command(PYTHON, on_gpu)
    assert flag(command, "--mem-fraction-static") == "0.4"
    assert "--device" not in command
    assert "SGLANG_USE_CPU_ENGINE" not in SGLANG.environment(on_gpu)


def test_on_a_gpu_it_takes_the_cache_that_it_is_given_whatever_one_beside_it_takes() -> None:
    given = Memory(cache_bytes=2**30, cache_tokens=9216, share_frac=0.03)
    on_gpu = dataclasses.replace(OPTIONS, on_gpu=True, memory=given)
    assert flag(SGLANG.command(PYTHON, on_gpu), "--max-total-tokens") == "9216"
    assert flag(SGLANG.command(PYTHON, on_gpu), "--mem-fraction-static") == "0.4300"


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("0.5.9", "--piecewise-cuda-graph-max-tokens"),
        ("0.5.13", "--piecewise-cuda-graph-max-tokens"),
        ("0.5.14", "--cuda-graph-max-bs-prefill"),
        ("", "--cuda-graph-max-bs-prefill"),
    ],
)
def test_on_a_gpu_graphs_of_prefills_are_captured_up_to_the_longest_prompt(
    version: str, name: str
) -> None:
    on_gpu = dataclasses.replace(OPTIONS, on_gpu=True, version=version)
    assert flag(SGLANG.command(PYTHON, on_gpu), name) == str(OPTIONS.max_model_len_tokens)


@pytest.mark.parametrize(
    ("version", "taken", "given"),
    [
        ("0.5.9", "--piecewise-cuda-graph-max-tokens", True),
        ("0.5.9", "--cuda-graph-max-bs", False),
        ("0.5.30", "--cuda-graph-max-bs-prefill", True),
        ("0.5.30", "--cuda-graph-max-bs", False),
    ],
)
def test_on_a_gpu_a_version_without_a_flag_for_its_graphs_is_not_given_it(
    version: str, taken: str, *, given: bool
) -> None:
    on_gpu = dataclasses.replace(OPTIONS, on_gpu=True, version=version, flags=frozenset({taken}))
    command = SGLANG.command(PYTHON, on_gpu)
    assert any("cuda-graph" in word for word in command) == given
    assert flag(command, "--mem-fraction-static") == "0.4"


@pytest.mark.parametrize(
    ("version", "asked"),
    [("0.5.20", True), ("0.5.21", False), ("0.5.23", False), ("0.5.24", True), ("", False)],
)
def test_a_version_whose_flags_were_not_read_is_asked_for_them(
    version: str, *, asked: bool
) -> None:
    command = SGLANG.help_command(PYTHON, version)
    assert command == ((str(PYTHON), "-m", "sglang.launch_server", "--help") if asked else ())


def test_without_a_gpu_its_kernels_are_left_out() -> None:
    requirement = SGLANG.requirement(on_gpu=False)
    assert "sglang-kernel ; sys_platform == 'never'" in requirement.overrides
    assert requirement.local_torch in requirement.overrides
    assert SGLANG.requirement(on_gpu=True).overrides == ()
    assert flag(SGLANG.command(PYTHON, OPTIONS), "--device") == "cpu"
    assert SGLANG.environment(OPTIONS)["SGLANG_USE_CPU_ENGINE"] == "1"


def test_a_server_is_offline_where_nothing_needs_to_be_fetched() -> None:
    assert SGLANG.environment(dataclasses.replace(OPTIONS, offline=True))["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in SGLANG.environment(OPTIONS)


def test_a_model_is_spread_as_the_case_says() -> None:
    spread = Parallel(tensor=4, data=2, expert=True, draft_tensor=4)
    command = SGLANG.command(PYTHON, dataclasses.replace(OPTIONS, parallel=spread))
    assert flag(command, "--tp-size") == "4"
    assert flag(command, "--dp-size") == "2"
    assert flag(command, "--ep-size") == "4"


def test_a_draft_that_is_spread_otherwise_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="SGLang splits the draft as the target"):
        SGLANG.check_parallel(Parallel(tensor=2, draft_tensor=1))


@pytest.mark.parametrize(
    ("parallel", "words"),
    [
        (Parallel(tensor=2, pipeline=2), r"parallel\.pipeline = 2, ray = false: SGLang drafts"),
        (Parallel(tensor=2, ray=True), r"parallel\.pipeline = 1, ray = true: SGLang"),
    ],
)
def test_stages_and_ray_are_refused(parallel: Parallel, words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        SGLANG.check_parallel(parallel)


def test_the_version_is_read_or_unknown() -> None:
    assert SGLANG.parse_version(b'{"version": "0.5.23", "tp_size": 1}') == "0.5.23"
    assert SGLANG.parse_version(b"<html>") == "unknown"
