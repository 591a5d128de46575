"""What a launch ran with, as the engines tell it, and what changed between two launches."""

import json

import pytest

from specreg.core.errors import InvalidMeasurementError
from specreg.engines.launch_facts import NOTHING_KNOWN, LaunchFacts, changed_facts
from specreg.engines.registry import ENGINES
from tests.unit import builders

RECORDINGS = builders.ROOT / "fixtures/recordings/vllm"
LINE = "(EngineCore pid=7) INFO 11-26 14:05:35 "


def nothing_asked(method: str, path: str) -> bytes:
    pytest.fail(f"{method} {path}: the log is enough")


@pytest.mark.parametrize(
    ("log", "runner"),
    [
        ("0.26.0/log_none.txt", "v2"),
        ("0.26.0/log_eagle3.txt", "v2"),
        ("0.26.0/log_eagle3_v1.txt", "v1"),  # V1 names itself by its module alone
        ("0.26.0/log_ngram.txt", "v1"),
        ("0.26.0/log_draft_model.txt", "v1"),
        ("0.33.0/log_eagle3.txt", "v2"),
        ("0.33.0/log_draft_model.txt", "v2"),
        ("0.33.0/log_ngram.txt", "v2"),
        ("0.33.0/log_ngram_v1.txt", "v1"),
    ],
)
def test_vllm_names_its_runner_and_its_attention_backend_in_its_log(log: str, runner: str) -> None:
    expected = LaunchFacts(model_runner=runner, attention_backend="FLASH_ATTN")
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


def test_what_a_log_does_not_name_is_unknown() -> None:
    assert ENGINES["vllm"].launch_facts("", nothing_asked) == NOTHING_KNOWN


def test_sglang_reports_its_attention_backend() -> None:
    def fetch(method: str, path: str) -> bytes:
        assert (method, path) == ("GET", "/server_info")
        return json.dumps({"attention_backend": "fa3", "tp_size": 1}).encode()

    assert ENGINES["sglang"].launch_facts("", fetch) == LaunchFacts(attention_backend="fa3")


def test_sglangs_attention_backend_must_be_a_single_word() -> None:
    with pytest.raises(InvalidMeasurementError):
        ENGINES["sglang"].launch_facts("", lambda _, __: b'{"attention_backend": 7}')


def test_a_change_is_named_if_both_launches_know_the_fact() -> None:
    before = LaunchFacts(model_runner="v1", flashinfer="none", cuda_toolkit="13.0")
    facts = LaunchFacts(model_runner="v2", flashinfer="0.7.2", attention_backend="FLASH_ATTN")
    changes = ["model runner v1 -> v2", "FlashInfer none -> 0.7.2"]
    assert list(changed_facts(before, facts)) == changes
    assert list(changed_facts(before, before)) == []
