"""Tiers as files, and tiers that are loaded."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from specreg.matrix.case import Tier
from specreg.matrix.tier import load_tier

PAIRS = """
[models.eight]
target = "some/target"
drafts = { eagle3 = "some/head", draft_model = "some/draft" }
target_gib = 16
drafts_gib = { eagle3 = 2 }
token_kib = 128
"""
TIER = """
needs_gpus = 1

[[cases]]
engine = "vllm"
methods = ["none", "ngram", "eagle3", "draft_model"]
models = "eight"
dataset = "toy"
concurrency = [4]
prompts = 16
output_cap_tokens = 64
max_model_len_tokens = 2048
gpu_memory_frac = 0.25
"""


def load(folder: Path, text: str = TIER) -> Tier:
    """The tier of a text, beside the shared pairs."""
    for path, content in (("models/pairs.toml", PAIRS), ("matrix/gpu.toml", text)):
        (folder / path).parent.mkdir(exist_ok=True, parents=True)
        (folder / path).write_text(content)
    return load_tier(folder / "matrix", "gpu")


def tiny_tier(
    *methods: str,
    drafts: Mapping[str, str],
    concurrency: Sequence[int] = (1,),
    padding_layers: int = 0,
    **settings: object,
) -> str:
    """Return a tier for a machine without a GPU: vLLM's methods on the tiny models.

    Args:
        methods: the methods of the cases.
        drafts: the folder of each draft, by method.
        concurrency: the requests in flight, a case for each number.
        padding_layers: how many identity layers the target is padded with.
        settings: further keys of the cases.
    """
    keys = {"methods": methods, "concurrency": concurrency, **settings}
    return "\n".join(
        (
            "needs_gpus = 0",
            "[models.tiny]",
            'target = "fixtures/models/tiny/target"',
            f"padding_layers = {padding_layers}",
            f"drafts = {_toml(drafts)}",
            "[[cases]]",
            'engine = "vllm"',
            'models = "tiny"',
            'dataset = "toy"',
            *(f"{key} = {_toml(value)}" for key, value in keys.items()),
            "",
        )
    )


def _toml(value: object) -> str:
    """Return a value in TOML. JSON is the same, except for tables."""
    if not isinstance(value, Mapping):
        return json.dumps(value)
    entries = [f"{key} = {_toml(entry)}" for key, entry in value.items()]
    return f"{{ {', '.join(entries)} }}"
