"""TensorRT-LLM: what is installed and started."""

import dataclasses
import json
from typing import Any

import pytest

from specreg.engines.engine import LaunchOptions
from specreg.engines.registry import engine_named
from tests.unit import builders

TENSORRT_LLM = engine_named("tensorrt_llm")
SPECULATION = TENSORRT_LLM.methods["draft_model"].render("/models/draft", 3)
OPTIONS = dataclasses.replace(builders.LAUNCH_OPTIONS, speculation=SPECULATION, on_gpu=True)


READING: dict[str, Any] = json.loads(
    (builders.ROOT / "fixtures/recordings/tensorrt_llm/llm_args.json").read_text()
)


def options_file(options: LaunchOptions = OPTIONS) -> dict[str, object]:
    """What the file of options says."""
    said: dict[str, object] = json.loads(TENSORRT_LLM.files(options)["options.yaml"])
    return said


def test_a_setting_stands_where_its_path_says() -> None:
    assert options_file() == {
        "dtype": "float32",
        "return_perf_metrics": True,
        "disable_overlap_scheduler": True,
        "kv_cache_config": {"enable_block_reuse": False, "free_gpu_memory_fraction": 0.4},
        "speculative_config": {
            "decoding_type": "Draft_Target",
            "max_draft_len": 3,
            "speculative_model": "/models/draft",
        },
    }


@pytest.mark.parametrize("method", sorted(TENSORRT_LLM.methods.keys() - {"none"}))
def test_a_row_is_spelt_as_the_argument_classes(method: str) -> None:
    """They refuse what they don't know."""
    settings = TENSORRT_LLM.methods[method].render("/models/draft", 3)
    said = {
        path.removeprefix("speculative_config."): value
        for path, value in settings.items()
        if path.startswith("speculative_config.")
    }
    kind = said.pop("decoding_type")
    assert set(said) <= {*READING["every"], *READING["types"][kind]}


def test_without_speculation_there_is_no_section_of_it() -> None:
    plain = options_file(dataclasses.replace(OPTIONS, speculation={}))
    assert set(plain) == {"dtype", "kv_cache_config", "return_perf_metrics"}
