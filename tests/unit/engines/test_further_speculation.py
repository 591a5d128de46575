"""Further keys of an engine's speculative configuration, as a case passes them on."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from specreg.core.errors import UnsupportedError
from specreg.correctness.checks import checks_of
from specreg.correctness.oracle_client import has_oracle
from specreg.engines.methods import Setting
from specreg.engines.registry import ENGINES, engine_named
from specreg.engines.server_spec import ServerSpec
from specreg.matrix.case import Case
from tests.unit import builders

SCHEDULE = ((1, 4, 3), (5, 8, 0))


def spec_with(engine: str, **speculation: Setting) -> ServerSpec:
    pairs = tuple(speculation.items())
    return dataclasses.replace(builders.SPEC, engine=engine, method="eagle3", speculation=pairs)


def words_of(spec: ServerSpec) -> str:
    """The command line of a server, and the files beside it."""
    start = builders.start_of(spec)
    engine = engine_named(spec.engine)
    return " ".join((*engine.command(Path("python"), *start), *engine.files(*start).values()))


def test_vllm_gets_them_in_its_configuration_beside_the_methods_own() -> None:
    spec = spec_with("vllm", num_speculative_tokens_per_batch_size=SCHEDULE)
    words = words_of(spec)
    config = json.loads(words[words.index("{") : words.rindex("}") + 1])
    assert config == {
        "method": "eagle3",
        "model": "some/draft",
        "num_speculative_tokens": 3,
        "num_speculative_tokens_per_batch_size": [[1, 4, 3], [5, 8, 0]],
    }


def test_a_key_takes_the_place_of_a_value_that_the_method_would_have() -> None:
    spec = dataclasses.replace(spec_with("vllm", prompt_lookup_max=7), method="ngram")
    assert ENGINES["vllm"].rendered_speculation(spec, None)["prompt_lookup_max"] == 7


@pytest.mark.parametrize("key", ["speculative-adaptive", "speculative_adaptive"])
def test_sglang_gets_flags_and_one_that_is_true_stands_alone(key: str) -> None:
    spec = spec_with("sglang", **{key: True, "speculative-draft-window-size": 512})
    words = words_of(spec).split()
    assert "--speculative-adaptive" in words
    assert "--speculative-draft-window-size=512" in words


def test_tensorrt_llm_gets_them_in_the_section_of_its_file() -> None:
    words = words_of(spec_with("tensorrt_llm", acceptance_rate_window_size=100))
    options = json.loads(words[words.index("{") :])
    assert options["speculative_config"]["acceptance_rate_window_size"] == 100


@pytest.mark.parametrize("key", ["rejection_sample_method", "rejection-sample-method"])
def test_triton_gets_them_as_the_vllm_inside_it(key: str) -> None:
    words = words_of(spec_with("triton", **{key: "block"}))
    assert '"rejection_sample_method": "block"' in words


@pytest.mark.parametrize("engine", ["vllm", "triton"])
@pytest.mark.parametrize("key", ["per_batch_size", "per-batch-size"])
def test_a_schedule_of_drafts_may_turn_drafting_off(engine: str, key: str) -> None:
    name = f"num_speculative_tokens_{key}"
    assert ENGINES[engine].turns_drafting_off({name: SCHEDULE})
    assert not ENGINES[engine].turns_drafting_off({name: ((1, 8, 3),)})


@pytest.mark.parametrize(
    ("engine", "speculation", "words"),
    [
        ("vllm", {"method": "ngram"}, "speculation.method: in the tier this is set by methods"),
        ("vllm", {"num_speculative_tokens": 5}, "in the tier this is set by draft_tokens"),
        ("triton", {"model": "a/b"}, "in the tier this is set by the drafts of the model pair"),
        ("triton", {"num-speculative-tokens": 5}, "in the tier this is set by draft_tokens"),
        ("vllm", {"synthetic_acceptance_length": 2.5}, "this is set by pinned_length_tokens"),
        ("vllm", {"draft_tensor_parallel_size": 1}, "this is set by parallel.draft_tensor"),
        ("sglang", {"speculative_num_steps": 5}, "in the tier this is set by draft_tokens"),
        ("sglang", {"port": 1}, "isn't a flag of SGLang's speculation; put it into engine_args"),
        ("sglang", {"speculative-adaptive": False}, "takes one value, or true"),
        ("sglang", {"speculative-token-map": ("a",)}, "takes one value, or true"),
        ("sglang", {"speculative-accept-threshold-acc": "low"}, "is no number; correct it"),
        ("sglang", {"speculative_accept_threshold_single": True}, "is no number; correct it"),
        ("tensorrt_llm", {"max_draft_len": 5}, "in the tier this is set by draft_tokens"),
        ("reference", {"anything": 1}, "the reference engine has no further keys"),
    ],
)
def test_keys_of_other_settings_and_unknown_keys_are_refused(
    engine: str, speculation: Mapping[str, Setting], words: str
) -> None:
    with pytest.raises(UnsupportedError, match=words):
        ENGINES[engine].check(spec_with(engine, **speculation))


def case_with(engine: str, **speculation: Setting) -> Case:
    return dataclasses.replace(
        builders.CASE, server=spec_with(engine, **speculation), control=builders.PLAIN_SPEC
    )


LOSSY = [
    ("vllm", "rejection_sample_method", "fly"),
    ("vllm", "rejection-sample-method", "fly"),
    ("triton", "rejection_sample_method", "fly"),
    ("triton", "rejection-sample-method", "fly"),
    ("sglang", "speculative_accept_threshold_single", 0.9),
    ("sglang", "speculative-accept-threshold-acc", 0.5),
    ("tensorrt_llm", "use_relaxed_acceptance_for_thinking", True),
]


@pytest.mark.parametrize(("engine", "key", "value"), LOSSY)
def test_a_verifier_that_accepts_other_tokens_is_not_judged_lossless(
    engine: str, key: str, value: Setting
) -> None:
    case = case_with(engine, **{key: value})
    assert not engine_named(case.server.engine).is_lossless(case.server)
    assert checks_of(case, with_torch=True) == ()


@pytest.mark.parametrize(
    ("engine", "key", "value"),
    [
        ("vllm", "rejection_sample_method", "block"),
        ("sglang", "speculative-accept-threshold-single", 1.0),
        ("vllm", "disable_padded_drafter_batch", True),
    ],
)
def test_other_keys_keep_the_case_lossless(engine: str, key: str, value: Setting) -> None:
    case = case_with(engine, **{key: value})
    assert engine_named(case.server.engine).is_lossless(case.server)
    assert checks_of(case, with_torch=False)


def test_the_oracle_knows_no_drafts_under_keys_that_may_change_them() -> None:
    assert has_oracle(case_with("vllm"))
    assert has_oracle(case_with("vllm", rejection_sample_method="block"))
    assert not has_oracle(case_with("vllm", num_speculative_tokens_per_batch_size=SCHEDULE))


def test_a_control_has_neither_the_keys_nor_the_variant() -> None:
    spec = dataclasses.replace(spec_with("vllm", quantization="fp8"), variant="fp8")
    assert spec.id == "vllm-eagle3-toy-fp8"
    assert spec.without_speculation == dataclasses.replace(builders.PLAIN_SPEC)
