"""What can't be measured as it is asked for is said before anything is."""

import dataclasses
import sys
from pathlib import Path

import pytest

from specreg.errors import SpecregError
from specreg.gate.opening import Request, open_gate
from specreg.matrix import load_tier
from tests.unit import builders

TIER = load_tier(builders.ROOT / "fixtures/matrix", "cpu")
CASE = "vllm-eagle3-tiny-toy-c1"


@pytest.fixture
def asked(tmp_path: Path) -> Request:
    """Two versions of vLLM, and a folder that isn't there yet."""
    return Request(
        a="vllm==0.31.0",
        b="vllm==0.32.0",
        tier=TIER,
        case_ids=(CASE,),
        root=builders.ROOT,
        out=tmp_path / "gate",
        show=lambda _: None,
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"a": "vllm==0.9.0"}, "side 'vllm==0.9.0': engine 'vllm' 0.9.0: needs 0.27 or newer"),
        ({"b": "sglang==0.5.23"}, f"side 'sglang==0.5.23': '{CASE}' is of engine 'vllm'"),
        ({"case_ids": ("nope",)}, "tier 'cpu': unknown case 'nope'"),
        ({"b_overrides": ("k=5",)}, "unknown setting 'k'"),
        ({"b_overrides": ("draft=./nowhere",)}, "model folder '.*nowhere': config.json is missing"),
        ({"launches": 5}, "--launches 5: a block of ABBA has two of each side; give an even"),
        ({"tolerances": ("speed=0.1",)}, "--tolerance speed=0.1: unknown quantity 'speed'"),
        ({"tolerances": ("step_p50_ms=3%",)}, "'3%' is no fraction between 0 and 1"),
        ({"pin_length_tokens": 9.0}, "--pin 9: with 3 draft tokens per step"),
        ({"prompts": 100_000}, "dataset 'toy': has .* prompts, .* asks for 100000"),
        ({"b": sys.executable}, "has no module 'vllm'; install vllm there"),
    ],
    ids=str,
)
def test_it_is_said(asked: Request, changes: dict[str, object], said: str) -> None:
    with pytest.raises(SpecregError, match=said):
        open_gate(dataclasses.replace(asked, **changes))  # type: ignore[arg-type]
    assert asked.out is not None
    assert not asked.out.exists()
