"""Model folders: found, refused, and padded without another word being said."""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from specreg.core.errors import ModelError
from specreg.matrix.models import model_sha256, resolve_model, served_models, vocabulary_of
from specreg.matrix.weights import Bits, read_tensors, write_padded_model, write_tensors
from tests.unit import builders
from tests.unit.builders.started_servers import at_most_cpu

TINY = builders.ROOT / "fixtures/models/tiny/target"
NO_COUNTS = ("null", "true", "7.5", '"7"', "0")
"""Values of JSON that aren't a number of something."""
LAYER = {"self_attn.q_proj.weight": (2, 2), "input_layernorm.weight": (2,)}


def bf16(*shape: int, fill: int = 0x1234) -> Bits:
    return np.full(shape, fill, np.uint16)


def write_model(folder: Path, tensors: dict[str, Bits]) -> Path:
    folder.mkdir()
    write_tensors(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text('{"num_hidden_layers": 1, "hidden_size": 2}')
    (folder / "tokenizer.json").write_text("{}")
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model of one layer."""
    layer = {f"model.layers.0.{name}": bf16(*shape) for name, shape in LAYER.items()}
    return write_model(tmp_path / "model", {"model.embed_tokens.weight": bf16(3, 2), **layer})


def test_a_model_that_a_repository_lacks_is_specregs_own_below_fixtures_alone(model: Path) -> None:
    tiny = "fixtures/models/tiny/target"
    assert resolve_model(model.parent, tiny) == str(builders.ROOT / tiny)
    with pytest.raises(ModelError, match=re.escape(str(model.parent / tiny))):
        resolve_model(model.parent, f"./{tiny}")
    (model.parent / tiny).parent.mkdir(parents=True)
    model.rename(model.parent / tiny)
    assert resolve_model(model.parent, tiny) == str(model.parent / tiny)


def test_an_incomplete_folder_is_refused(model: Path) -> None:
    for name, missing in (("model.safetensors", "*.safetensors"), ("config.json", "config.json")):
        (model / name).unlink()
        with pytest.raises(ModelError, match=re.escape(missing)) as refused:
            resolve_model(model.parent, "./model")
        assert str(model) in str(refused.value)


def gone(path: Path) -> None:
    path.symlink_to(path.with_name("pruned-blob"))


def loop(path: Path) -> None:
    path.symlink_to(path)


def link_to_folder(path: Path) -> None:
    path.symlink_to(path.parent)


@pytest.mark.parametrize("make", [gone, loop, link_to_folder, Path.mkdir, os.mkfifo])
@pytest.mark.parametrize("name", ["a.safetensors", "a.bin", "z.pt", "config.json"])
def test_weights_that_are_no_file_are_named(
    model: Path, make: Callable[[Path], None], name: str
) -> None:
    """A hub cache that was pruned leaves links to nothing."""
    path = model / name
    path.unlink(missing_ok=True)
    make(path)
    with at_most_cpu(5.0), pytest.raises(ModelError, match=re.escape(str(path))):
        model_sha256(str(model))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", "[]"),
        ("config.json", "{}"),
        ("config.json", "[" * 100_000),
        *(("config.json", f'{{"num_hidden_layers": {layers}}}') for layers in NO_COUNTS),
        ("model.safetensors", None),
        ("model.safetensors", ""),
        ("model.safetensors", "x" * 50),
        ("model.safetensors", "\x02" + "\x00" * 7 + "[]"),
        ("model.safetensors", "\x02" + "\x00" * 7 + "{}"),
        ("model.safetensors", "\x16" + "\x00" * 7 + '{"a": {"dtype": "F32"}}'),
    ],
)
def test_what_is_no_bfloat16_llama_cannot_be_padded(
    model: Path, tmp_path: Path, name: str, content: str | None
) -> None:
    (model / name).unlink()
    if content is not None:
        (model / name).write_text(content)
    words = re.escape(f"model folder '{model}': can't be made larger, ")
    with pytest.raises(ModelError, match=words + ".*; needed a dense bfloat16 Llama"):
        write_padded_model(model, tmp_path, 2)


def test_padding_adds_layers_of_zeros_and_leaves_what_was_there(
    model: Path, tmp_path: Path
) -> None:
    padded = tmp_path / "padded"
    padded.mkdir()
    write_padded_model(model, padded, 2)
    before = read_tensors(model / "model.safetensors")
    added = {
        f"model.layers.{layer}.{name}": bf16(*shape, fill=0x3F80 if "norm" in name else 0)
        for layer in (1, 2)  # 1.0 is the upper half of 0x3f800000
        for name, shape in LAYER.items()
    }
    tensors = read_tensors(padded / "model.safetensors")
    assert list(tensors) == [*before, *added]
    assert all(np.array_equal(tensors[name], bits) for name, bits in (before | added).items())
    assert int.from_bytes((padded / "model.safetensors").read_bytes()[:8], "little") % 8 == 0
    config = json.loads((padded / "config.json").read_text())
    assert config == {"num_hidden_layers": 3, "hidden_size": 2}


KILLED = """
import dataclasses, os, pathlib, signal, sys
from specreg.matrix import models, weights
from tests.unit import builders
weights.read_tensors = lambda _: os.kill(os.getpid(), signal.SIGKILL)
spec = dataclasses.replace(builders.PLAIN_SPEC, target=sys.argv[1], padding_layers=2)
models.served_models(pathlib.Path("/"), spec)
"""


def test_a_padded_model_is_made_once_and_what_a_killed_run_left_of_it_goes(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECREG_CACHE", str(tmp_path / "cache"))
    subprocess.run((sys.executable, "-c", KILLED, str(model)), cwd=builders.ROOT, check=False)
    (folder,) = (tmp_path / "cache/models").iterdir()
    spec = dataclasses.replace(builders.PLAIN_SPEC, target=str(model), padding_layers=2)
    padded = Path(served_models(builders.ROOT, spec)[0])
    assert padded != folder
    assert list((tmp_path / "cache/models").iterdir()) == [padded]
    assert len(read_tensors(padded / "model.safetensors")) == 7
    inode = padded.stat().st_ino
    assert served_models(builders.ROOT, spec)[0] == str(padded)
    assert padded.stat().st_ino == inode


def test_the_checksum_changes_with_config_and_with_all_weights(model: Path, tmp_path: Path) -> None:
    changed = Path(shutil.copytree(model, tmp_path / "changed"))
    sums = [model_sha256(str(model))]
    assert model_sha256(str(changed)) == sums[0]
    for name in (
        "config.json",
        "model.safetensors",
        "model-00002-of-00002.safetensors",
        "pytorch_model.bin",
    ):
        (changed / name).write_text("{}")
        model_sha256.cache_clear()
        sums.append(model_sha256(str(changed)))
    assert len(set(sums)) == 5


def test_a_folder_with_weights_in_another_format_is_a_model(model: Path) -> None:
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    assert resolve_model(model.parent, "./model") == str(model)


def test_a_model_says_how_many_token_ids_it_knows_and_is_named_if_it_does_not(model: Path) -> None:
    assert vocabulary_of(str(TINY)) == 768
    (model / "config.json").write_text('{"text_config": {"vocab_size": 7}}')
    assert vocabulary_of(str(model)) == 7
    for config in ("{", "{}", "[]", *(f'{{"vocab_size": {size}}}' for size in NO_COUNTS)):
        (model / "config.json").write_text(config)
        with pytest.raises(ModelError, match=r"no vocab_size in its config\.json"):
            vocabulary_of(str(model))
