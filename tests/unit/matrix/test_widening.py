"""Widened models: they say what the narrow ones say at another cost, and are made once."""

import dataclasses
import json
import shutil
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from specreg.baselines.store import load_settings
from specreg.core.errors import ModelError
from specreg.engines.server_spec import ServerSpec, Width
from specreg.matrix.models import model_sha256, served_models, widen_models
from specreg.matrix.weights import SHAPES, read_tensors
from tests.unit import builders

TINY = builders.ROOT / "fixtures/models/tiny"
PAIRS = tomllib.loads((builders.ROOT / "fixtures/models/pairs.toml").read_text())["models"]
Numbers = npt.NDArray[np.float64]
GIB = 2**30


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECREG_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def spec(method: str = "eagle3", width: Width | None = "30m") -> ServerSpec:
    drafts = {"eagle3": str(TINY / "eagle3"), "draft_model": str(TINY / "draft")}
    target = str(TINY / "target")
    draft = drafts.get(method)
    return dataclasses.replace(
        builders.SPEC, method=method, target=target, draft=draft, widen=width
    )


def widened(method: str = "eagle3") -> tuple[Path, Path]:
    widen_models(builders.ROOT, spec(method), show=lambda _: None)
    target, draft = served_models(builders.ROOT, spec(method))
    return Path(target), Path(str(draft))


class Llama:
    """A model folder, computed in float64 with NumPy: a Llama, or the layer of an EAGLE-3 head."""

    def __init__(self, folder: Path) -> None:
        self.config = json.loads((folder / "config.json").read_text())
        self.weights: dict[str, Numbers] = {}
        for path in folder.glob("*.safetensors"):
            for name, bits in read_tensors(path).items():
                self.weights[name] = (bits.astype(np.uint32) << 16).view(np.float32).astype(float)

    def times(self, name: str, states: Numbers) -> Numbers:
        times: Numbers = states @ self.weights[f"{name}.weight"].T
        return times

    def normed(self, name: str, states: Numbers) -> Numbers:
        mean = (states**2).mean(-1, keepdims=True) + self.config["rms_norm_eps"]
        normed: Numbers = states / np.sqrt(mean) * self.weights[f"{name}.weight"]
        return normed

    def by_head(self, states: Numbers, *, turned: bool) -> Numbers:
        size = self.config["head_dim"]
        heads: Numbers = states.reshape(len(states), -1, size).swapaxes(0, 1)
        if not turned:
            return heads
        angles = np.arange(len(states))[:, None] / 1e4 ** (np.arange(0, size, 2) / size)
        angles = np.tile(angles, 2)
        rotated = np.concatenate((-heads[..., size // 2 :], heads[..., : size // 2]), -1)
        turning: Numbers = heads * np.cos(angles) + rotated * np.sin(angles)
        return turning

    def layer(self, name: str, states: Numbers, read: Numbers) -> Numbers:
        query = self.by_head(self.times(f"{name}.self_attn.q_proj", read), turned=True)
        group = self.config["num_attention_heads"] // self.config["num_key_value_heads"]
        key, value = (
            self.by_head(self.times(f"{name}.self_attn.{kind}_proj", read), turned=kind == "k")
            for kind in "kv"
        )
        key = np.repeat(key, group, axis=0)
        value = np.repeat(value, group, axis=0)
        scores = query @ key.swapaxes(1, 2) / np.sqrt(self.config["head_dim"])
        scores = np.where(np.tri(len(states)) > 0, scores, -np.inf)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        attended = (shares @ value).swapaxes(0, 1).reshape(len(states), -1)
        states = states + self.times(f"{name}.self_attn.o_proj", attended)
        read = self.normed(f"{name}.post_attention_layernorm", states)
        gate = self.times(f"{name}.mlp.gate_proj", read)
        inner = gate / (1 + np.exp(-gate)) * self.times(f"{name}.mlp.up_proj", read)
        return states + self.times(f"{name}.mlp.down_proj", inner)

    def logits(self, ids: list[int]) -> tuple[Numbers, list[Numbers]]:
        """Logits, and the residual streams before each layer and after the last."""
        streams = [self.weights["model.embed_tokens.weight"][ids]]
        for number in range(self.config["num_hidden_layers"]):
            name = f"model.layers.{number}"
            read = self.normed(f"{name}.input_layernorm", streams[-1])
            streams.append(self.layer(name, streams[-1], read))
        return self.times("model.embed_tokens", self.normed("model.norm", streams[-1])), streams

    def drafted(self, target: "Llama", ids: list[int]) -> Numbers:
        """Logits of the head's first draft after each token but the last."""
        _, streams = target.logits(ids)
        hidden = self.times("fc", np.concatenate([streams[layer] for layer in (1, 2, 4)], -1)[:-1])
        seen = target.weights["model.embed_tokens.weight"][ids[1:]]
        read = self.normed("midlayer.input_layernorm", seen)
        both = np.concatenate((read, self.normed("midlayer.hidden_norm", hidden)), -1)
        hidden = self.layer("midlayer", hidden, both)
        return self.times("lm_head", self.normed("norm", hidden))


IDS = [5, 17, 300, 44, 9, 700, 12, 33, 250, 601]


def apart(first: Numbers, second: Numbers) -> float:
    """How far logits lie apart, as a share of the largest."""
    return float(np.abs(first - second).max() / np.abs(first).max())


def test_a_widened_target_its_draft_and_its_head_say_what_the_narrow_ones_say() -> None:
    target, head = map(Llama, widened("eagle3"))
    _, draft = map(Llama, widened("draft_model"))
    narrow = Llama(TINY / "target")
    assert apart(narrow.logits(IDS)[0], target.logits(IDS)[0]) < 1e-12
    assert apart(Llama(TINY / "draft").logits(IDS)[0], draft.logits(IDS)[0]) < 1e-12
    of_narrow = Llama(TINY / "eagle3").drafted(narrow, IDS)
    assert apart(of_narrow, head.drafted(target, IDS)) < 1e-12


def test_most_of_what_is_added_to_the_weights_is_not_zero() -> None:
    """A GPU draws less for zeros than for numbers."""
    for model in map(Llama, widened()):
        numbers = sum(weights.size for weights in model.weights.values())
        assert sum(map(np.count_nonzero, model.weights.values())) > 0.6 * numbers


def test_a_widened_folder_is_a_whole_model_with_its_tokenizer() -> None:
    target, head = widened()
    shape = dataclasses.asdict(SHAPES["30m"]["target"])
    config = json.loads((target / "config.json").read_text())
    narrow = json.loads((TINY / "target/config.json").read_text())
    assert config == narrow | shape | {"rms_norm_eps": narrow["rms_norm_eps"] / 4}
    for folder in (target, head):
        index = json.loads((folder / "model.safetensors.index.json").read_text())
        parts = set(index["weight_map"].values())
        assert {path.name for path in folder.glob("*.safetensors")} == parts
    assert (target / "tokenizer.json").read_bytes() == (TINY / "target/tokenizer.json").read_bytes()


def test_what_a_widened_model_is_made_of_is_its_checksum_before_it_is_made(tmp_path: Path) -> None:
    changed = tmp_path / "target"
    shutil.copytree(TINY / "target", changed)
    (changed / "tokenizer.json").write_text("{}")
    changed_spec = dataclasses.replace(spec(), target=str(changed))
    specs = [spec(), spec(width="1b"), spec(width=None), changed_spec]
    sums = [model_sha256(served_models(builders.ROOT, spec)[0]) for spec in specs]
    assert all(sums)
    assert len(set(sums)) == len(sums)
    case = dataclasses.replace(builders.CASE, server=spec())
    assert load_settings(builders.ROOT, case).target_sha256 == sums[0]
    widened()
    assert model_sha256(served_models(builders.ROOT, spec())[0]) == sums[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"target": "Qwen/Qwen3-8B"}, "model 'Qwen/Qwen3-8B' of pair 'toy': only the folder of"),
        ({"method": "mtp"}, "for draft_model or eagle3, can be widened; leave widen out"),
        ({"draft": "fixtures/nowhere"}, "config.json is missing"),
        ({"target": "a/b", "widen": None, "padding_layers": 2}, "only a folder can be padded; set"),
    ],
)
def test_what_is_no_folder_of_a_known_kind_cannot_be_widened(
    change: Mapping[str, Any], words: str
) -> None:
    with pytest.raises(ModelError) as error:
        served_models(builders.ROOT, dataclasses.replace(spec(), **change))
    assert words in str(error.value)


def test_a_model_of_another_form_cannot_be_widened(tmp_path: Path) -> None:
    target = tmp_path / "target"
    shutil.copytree(TINY / "target", target)
    config = json.loads((target / "config.json").read_text())
    other_form = dataclasses.replace(spec(), target=str(target))
    for change in (
        *({"hidden_size": 256}, {"num_key_value_heads": 2}, {"num_hidden_layers": 99}),
        *({"intermediate_size": "x"}, {"rms_norm_eps": None}, {"rms_norm_eps": True}),
    ):
        (target / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(ModelError, match=r"can't be made larger, .*leave padding_layers and w"):
            widen_models(builders.ROOT, other_form, show=lambda _: None)


def parameters(width: Width) -> Mapping[str, int]:
    """By role, what the shapes come to, with the 768 tokens of the tiny vocabulary."""
    sizes = {}
    for role, shape in SHAPES[width].items():
        hidden = shape.hidden_size
        heads = shape.num_attention_heads * 32
        keys = shape.num_key_value_heads * 32
        streams = 2 if role == "eagle3" else 1
        layer = hidden * (heads * (1 + streams) + 2 * keys * streams)
        layer += 3 * hidden * shape.intermediate_size
        norms = (3 if role == "eagle3" else 2) * shape.num_hidden_layers + 1
        fused = 3 * hidden**2 if role == "eagle3" else 0
        others_size = 768 * hidden + norms * hidden + fused
        sizes[role] = shape.num_hidden_layers * layer + others_size
    return sizes


@pytest.mark.parametrize("width", SHAPES)
def test_a_pair_says_the_sizes_of_its_shapes(width: Width) -> None:
    pair = PAIRS[f"wide-{width}"]
    sizes_gib = {role: 2 * count / GIB for role, count in parameters(width).items()}
    stated_gib = {"target": pair["target_gib"], **pair["drafts_gib"]}
    assert stated_gib.keys() == sizes_gib.keys()
    for role, size_gib in sizes_gib.items():
        assert 0 <= stated_gib[role] - size_gib < 0.1, role
    shape = SHAPES[width]["target"]
    cache_bytes = shape.num_hidden_layers * 2 * shape.num_key_value_heads * 32 * 2
    assert pair["token_kib"] == cache_bytes / 1024
    assert pair["widen"] == width
