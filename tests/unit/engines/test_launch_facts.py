"""What a launch ran with, as the engines tell it, and what changed between two launches."""

import json

import msgspec
import pytest

from specreg.core.errors import InvalidMeasurementError
from specreg.engines.launch_facts import (
    NOTHING_KNOWN,
    LaunchFacts,
    changed_facts,
    inherited_variables,
    known_facts,
)
from specreg.engines.registry import ENGINES
from tests.unit import builders

RECORDINGS = builders.ROOT / "fixtures/recordings/vllm"
LINE = "(EngineCore pid=7) INFO 11-26 14:05:35 "


def nothing_asked(method: str, path: str) -> bytes:
    pytest.fail(f"{method} {path}: the log is enough")


@pytest.mark.parametrize(
    ("log", "runner", "async_scheduling", "cuda_graphs"),
    [
        ("0.26.0/log_none.txt", "v2", "on", "FULL_AND_PIECEWISE"),
        ("0.26.0/log_eagle3.txt", "v2", "on", "NONE"),
        ("0.26.0/log_eagle3_v1.txt", "v1", "on", "NONE"),  # V1 names itself by its module alone
        ("0.26.0/log_ngram.txt", "v1", "off", "NONE"),
        ("0.26.0/log_draft_model.txt", "v1", "off", "NONE"),
        ("0.33.0/log_eagle3.txt", "v2", "on", "NONE"),
        ("0.33.0/log_draft_model.txt", "v2", "on", "NONE"),
        ("0.33.0/log_ngram.txt", "v2", "on", "NONE"),
        ("0.33.0/log_ngram_v1.txt", "v1", "off", "NONE"),
    ],
)
def test_vllm_shows_in_its_log_what_it_computes_with(
    log: str, runner: str, async_scheduling: str, cuda_graphs: str
) -> None:
    expected = LaunchFacts(
        model_runner=runner,
        attention_backend="FLASH_ATTN",
        flashinfer_sampler="off",
        async_scheduling=async_scheduling,
        cuda_graphs=cuda_graphs,
    )
    for engine in ("vllm", "triton"):
        facts = ENGINES[engine].launch_facts((RECORDINGS / log).read_text(), nothing_asked)
        assert facts == expected


@pytest.mark.parametrize(
    ("line", "backend"),
    [
        ("[cuda.py:446] Using AttentionBackendEnum.TRITON_ATTN backend.", "TRITON_ATTN"),
        ("[rocm.py:750] Using ROCM_ATTN backend (selected via --attention-backend).", "ROCM_ATTN"),
        ("[rocm.py:850] Using TRITON_ATTN backend out of potential backends: [].", "TRITON_ATTN"),
        ("[cpu.py:175] Using CPU_MLA backend.", "CPU_MLA"),
        ("[cuda.py:547] Using backend FLASH_ATTN for vit attention", ""),
        ("[rocm.py:894] Using Flash Attention backend for ViT model.", ""),
    ],
)
def test_an_attention_backend_is_read_in_whatever_way_it_was_chosen(
    line: str, backend: str
) -> None:
    """The lines of vLLM 0.32.0's platforms."""
    facts = ENGINES["vllm"].launch_facts(f"{LINE}{line}\n", nothing_asked)
    assert facts.attention_backend == backend


ARGUMENTS = "[startup.py:96] non-default args: {'port': 1}"
CONFIG = (
    "[core.py:139] Initializing a V1 LLM engine (v0.33.0) with config: device_config=cuda,"
    " compilation_config={'cudagraph_mode': <CUDAGraphMode.FULL_AND_PIECEWISE: (2, 1)>, 'x': 0}"
)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ((ARGUMENTS, CONFIG), ("on", "FULL_AND_PIECEWISE")),
        ((CONFIG,), ("", "FULL_AND_PIECEWISE")),
        ((ARGUMENTS,), ("", "")),
        ((ARGUMENTS, CONFIG.replace("cuda,", "cpu,")), ("off", "FULL_AND_PIECEWISE")),
        (
            (ARGUMENTS.replace("}", ", 'async_scheduling': False}"), CONFIG),
            ("off", "FULL_AND_PIECEWISE"),
        ),
        (
            (
                (
                    "[vllm.py:1698] Async scheduling will be disabled because it is not supported"
                    " with the `ray` distributed executor backend. "
                ),
                ARGUMENTS,
                CONFIG,
            ),
            ("off", "FULL_AND_PIECEWISE"),
        ),
        (
            (
                ARGUMENTS,
                CONFIG,
                (
                    "[compilation.py:1467] CUDAGraphMode.FULL_AND_PIECEWISE is not supported with"
                    " spec-decode for attention backend FLASHINFER (support: UNIFORM_SINGLE_TOKEN_"
                    "DECODE); setting cudagraph_mode=PIECEWISE"
                ),
            ),
            ("on", "PIECEWISE"),
        ),
        (
            (
                ARGUMENTS,
                CONFIG,
                (
                    "[compilation.py:1474] Cudagraph mode FULL_AND_PIECEWISE requires piecewise"
                    " capture, but the loaded model provides neither a compiled submodule nor"
                    " breakable CUDA graphs. Overriding to FULL_DECODE_ONLY."
                ),
            ),
            ("on", "FULL_DECODE_ONLY"),
        ),
    ],
)
def test_what_vllm_changed_last_is_what_it_runs(
    lines: tuple[str, ...], expected: tuple[str, str]
) -> None:
    """The lines of vLLM 0.33.0's source."""
    log = "".join(f"{LINE}{line}\n" for line in lines)
    facts = ENGINES["vllm"].launch_facts(log, nothing_asked)
    assert (facts.async_scheduling, facts.cuda_graphs) == expected


@pytest.mark.parametrize(
    ("line", "flashinfer", "sampler"),
    [
        (
            (
                "[flashinfer.py:103] FlashInfer kernels are disabled: flashinfer-cubin is not"
                " installed and nvcc (CUDA_HOME, CUDA_PATH, PATH or /usr/local/cuda) or ninja"
                " (PATH) is missing."
            ),
            "disabled",
            "",
        ),
        ("[topk_topp_sampler.py:149] Using FlashInfer for top-p & top-k sampling.", "", "on"),
        (
            (
                "[topk_topp_sampler.py:121] FlashInfer top-p/top-k sampling disabled via"
                " VLLM_USE_FLASHINFER_SAMPLER=0."
            ),
            "",
            "off",
        ),
        (
            (
                "[topk_topp_sampler.py:156] FlashInfer top-p/top-k sampling unavailable:"
                " unsupported compute capability 7.0; falling back."
            ),
            "",
            "off",
        ),
    ],
)
def test_flashinfer_counts_only_if_vllm_uses_it(line: str, flashinfer: str, sampler: str) -> None:
    facts = ENGINES["vllm"].launch_facts(f"{LINE}{line}\n", nothing_asked)
    assert (facts.flashinfer, facts.flashinfer_sampler) == (flashinfer, sampler)


def test_what_a_log_does_not_name_is_unknown() -> None:
    assert ENGINES["vllm"].launch_facts("", nothing_asked) == NOTHING_KNOWN


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({"attention_backend": "fa3", "tp_size": 1}, LaunchFacts(attention_backend="fa3")),
        # What SGLang 0.5.23 reports without a GPU, and what it would report with one.
        (
            {
                "device": "cpu",
                "attention_backend": "torch_native",
                "prefill_attention_backend": "intel_amx",
                "decode_attention_backend": "intel_amx",
                "sampling_backend": "pytorch",
                "disable_overlap_schedule": True,
                "cuda_graph_config": {
                    "decode": {"backend": "full", "max_bs": 32},
                    "prefill": {"backend": "disabled"},
                },
            },
            LaunchFacts(
                attention_backend="intel_amx", flashinfer_sampler="off", async_scheduling="off"
            ),
        ),
        (
            {
                "device": "cuda",
                "attention_backend": "flashinfer",
                "prefill_attention_backend": None,
                "decode_attention_backend": "trtllm_mha",
                "sampling_backend": "flashinfer",
                "disable_overlap_schedule": False,
                "cuda_graph_config": {
                    "decode": {"backend": "full"},
                    "prefill": {"backend": "breakable"},
                },
            },
            LaunchFacts(
                attention_backend="prefill flashinfer, decode trtllm_mha",
                flashinfer_sampler="on",
                async_scheduling="on",
                cuda_graphs="prefill breakable, decode full",
            ),
        ),
    ],
)
def test_sglang_reports_what_it_computes_with(
    info: dict[str, object], expected: LaunchFacts
) -> None:
    def fetch(method: str, path: str) -> bytes:
        assert (method, path) == ("GET", "/server_info")
        return json.dumps(info).encode()

    assert ENGINES["sglang"].launch_facts("", fetch) == expected


def test_sglangs_attention_backend_must_be_a_single_word() -> None:
    with pytest.raises(InvalidMeasurementError):
        ENGINES["sglang"].launch_facts("", lambda _, __: b'{"attention_backend": 7}')


def test_a_change_is_named_if_both_launches_know_the_fact() -> None:
    before = LaunchFacts(model_runner="v1", flashinfer="none", cuda_toolkit="13.0")
    facts = LaunchFacts(model_runner="v2", flashinfer="0.7.2", attention_backend="FLASH_ATTN")
    changes = ["model runner v1 -> v2", "FlashInfer none -> 0.7.2"]
    assert list(changed_facts(before, facts)) == changes
    assert list(changed_facts(before, before)) == []


def test_another_digest_under_the_same_tag_is_named() -> None:
    before = LaunchFacts(image="team/engine:latest", image_digest="sha256:12")
    facts = LaunchFacts(image="team/engine:latest", image_digest="sha256:34")
    assert list(changed_facts(before, facts)) == ["digest of the image sha256:12 -> sha256:34"]


ORDINARY = {
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "CUDA_HOME": "/usr/local/cuda",
    "CUDA_PATH": "/usr/local/cuda",
    "CUDA_VERSION": "13.0.1",
    "CUDA_VISIBLE_DEVICES": "3",
    "FLASHINFER_WORKSPACE_BASE": "/cache",
    "HIP_VISIBLE_DEVICES": "0",
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "NCCL_VERSION": "2.27",
    "PATH": "/usr/bin",
    "PYTORCH_VERSION": "2.14.0",
    "TORCHINDUCTOR_CACHE_DIR": "/cache",
    "TORCH_HOME": "/cache",
    "TRITON_CACHE_DIR": "/cache",
    "VLLM_CACHE_ROOT": "/cache",
    "VLLM_HOST_IP": "10.0.0.1",
    "VLLM_lower": "1",
    "XDG_CACHE_HOME": "/cache",
}
"""What machines and images of containers set, and what doesn't change a measurement."""


def test_variables_that_change_what_is_measured_are_facts() -> None:
    inherited = {
        "CUDA_LAUNCH_BLOCKING": "1",
        "FLASHINFER_DISABLE_VERSION_CHECK": "1",
        "LD_PRELOAD": "/lib/libjemalloc.so",
        "MKL_NUM_THREADS": "4",
        "NCCL_P2P_DISABLE": "1",
        "NVIDIA_TF32_OVERRIDE": "0",
        "OMP_NUM_THREADS": "",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "SGLANG_SIMULATE_ACC_LEN": "3",
        "TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1",
        "TRITON_INTERPRET": "1",
        "TRTLLM_ENABLE_PDL": "1",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
    }
    own = {"VLLM_NO_USAGE_STATS": "1"}
    variables = {**ORDINARY, **own, **inherited}
    assert dict(inherited_variables(variables, own)) == inherited
    assert inherited_variables(ORDINARY, ()) == ()


def test_a_variables_secret_is_hidden_and_a_strange_value_fits_a_baseline() -> None:
    variables = {
        "VLLM_API_KEY": "k",
        "SGLANG_HUB": "https://ada:correct-horse@hub.example/x",
        "VLLM_LONG": "x" * 500,
        "VLLM_ODD": "a\nb\x1b[31mc",
    }
    inherited = inherited_variables(variables, ())
    facts = LaunchFacts(variables=inherited)
    assert msgspec.json.decode(msgspec.json.encode(facts), type=LaunchFacts) == facts
    shown = dict(inherited)
    assert shown["VLLM_API_KEY"] == "HIDDEN"
    assert "correct-horse" not in shown["SGLANG_HUB"]
    assert shown["VLLM_LONG"].startswith("xxx")


def test_a_changed_variable_is_named_if_both_launches_know_theirs() -> None:
    before = LaunchFacts(variables=(("NCCL_DEBUG", "INFO"), ("VLLM_A", "1"), ("VLLM_B", "1")))
    facts = LaunchFacts(variables=(("OMP_NUM_THREADS", ""), ("VLLM_A", "1"), ("VLLM_B", "2")))
    changes = ["NCCL_DEBUG INFO -> unset", "OMP_NUM_THREADS unset -> ''", "VLLM_B 1 -> 2"]
    assert list(changed_facts(before, facts)) == changes
    assert list(changed_facts(LaunchFacts(), facts)) == []
    assert list(changed_facts(facts, LaunchFacts())) == []
    assert ("VLLM_B", "2") in list(known_facts(facts))
