"""TensorRT-LLM: what is installed and started."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from specreg.core.errors import UnsupportedError
from specreg.engines.engine import LaunchOptions
from specreg.engines.methods import Spelling
from specreg.engines.registry import engine_named
from specreg.servers.provision import check_version
from tests.unit import builders

TENSORRT_LLM = engine_named("tensorrt_llm")
PYTHON = Path("/envs/tensorrt-llm/bin/python")
SPECULATION = TENSORRT_LLM.methods["draft_model"].render("/models/draft", 3)
OPTIONS = dataclasses.replace(builders.LAUNCH_OPTIONS, speculation=SPECULATION, on_gpu=True)


def has(method: str, version: str) -> bool:
    """Whether a version is let start with a method."""
    spec = dataclasses.replace(builders.SPEC, engine="tensorrt_llm", method=method)
    try:
        check_version(dataclasses.replace(builders.CASE, server=spec), version)
    except UnsupportedError:
        return False
    return True


READINGS: list[dict[str, Any]] = json.loads(
    (builders.ROOT / "fixtures/recordings/tensorrt_llm/llm_args.json").read_text()
)["readings"]
SPELT = [
    pytest.param(spelling, reading, id=f"{name}-{reading['version']}")
    for name, spelling in TENSORRT_LLM.methods.items()
    for reading in READINGS
    if spelling.settings
    if has(name, reading["version"])
]


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
            "speculative_model_dir": "/models/draft",
        },
    }


@pytest.mark.parametrize(("spelling", "reading"), SPELT)
def test_a_row_is_spelt_as_the_argument_classes_of_that_time(
    spelling: Spelling, reading: dict[str, Any]
) -> None:
    """They refuse what they don't know."""
    settings = spelling.render("/models/draft", 3, version=reading["version"])
    said = {
        path.removeprefix("speculative_config."): value
        for path, value in settings.items()
        if path.startswith("speculative_config.")
    }
    kind = said.pop("decoding_type")
    assert kind in reading["types"]
    assert set(said) <= {*reading["every"], *reading["types"][kind]}


def test_each_reading_has_the_methods_that_it_is_said_to_have() -> None:
    for name, kind in {"lookahead": "Lookahead", "dflash": "DFlash"}.items():
        read = {reading["version"]: kind in reading["types"] for reading in READINGS}
        assert set(read.values()) == {True, False}
        assert read == {version: has(name, version) for version in read}


def test_the_requests_are_counted_by_versions_that_count_them_right() -> None:
    newer, older = (dataclasses.replace(OPTIONS, version=v) for v in ("1.3.0rc29", "1.3.0rc28"))
    assert options_file(newer)["return_perf_metrics"] is True
    assert "return_perf_metrics" not in options_file(older)
    where = TENSORRT_LLM.wire_format.counters_path_of
    assert [where(version) for version in ("1.2.1", "1.3.0rc28")] == [None, None]
    assert [where(version) for version in ("1.3.0rc29", "1.4.0", "unknown")] == [
        "/prometheus/metrics"
    ] * 3


def test_without_speculation_there_is_no_section_of_it() -> None:
    plain = options_file(dataclasses.replace(OPTIONS, speculation={}))
    assert set(plain) == {"dtype", "kv_cache_config", "return_perf_metrics"}
