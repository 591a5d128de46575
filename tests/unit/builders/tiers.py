"""Tiers as files, loaded."""

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
