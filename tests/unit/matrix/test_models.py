"""Model folders: found, refused, and padded without another word being said."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from specreg.core.errors import ModelError
from specreg.matrix.models import (
    Tensor,
    missing_files,
    model_sha256,
    read_tensors,
    resolve_model,
    vocabulary_of,
    write_padded_model,
    write_tensors,
)
from tests.unit import builders

TINY = builders.ROOT / "fixtures/models/tiny/target"
LAYER = {"self_attn.q_proj.weight": (2, 2), "input_layernorm.weight": (2,)}


def bf16(*shape: int, fill: bytes = b"\x12\x34") -> Tensor:
    """A tensor whose numbers are all the same."""
    numbers = 1
    for length in shape:
        numbers *= length
    return Tensor(dtype="BF16", shape=shape, data=fill * numbers)


def write_model(folder: Path, tensors: dict[str, Tensor]) -> Path:
    """A model folder of one layer."""
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


@pytest.fixture
def padded(model: Path, tmp_path: Path) -> Path:
    """The same with two layers more."""
    target = tmp_path / "padded"
    target.mkdir()
    write_padded_model(model, target, 2)
    return target


@pytest.mark.parametrize(
    ("name", "missing"), [("config.json", "config.json"), ("model.safetensors", "*.safetensors")]
)
def test_an_incomplete_folder_is_refused(model: Path, name: str, missing: str) -> None:
    (model / name).unlink()
    words = re.escape(f"model folder '{model}': {missing} is missing; check")
    with pytest.raises(ModelError, match=words):
        resolve_model(model.parent, "./model")


def test_what_a_model_lacks_is_named_by_its_index_too(model: Path, tmp_path: Path) -> None:
    """A download that broke off has its index, and some of the files."""
    assert missing_files(tmp_path / "nowhere") == ("config.json", "model.safetensors")
    assert missing_files(model) == ()
    parts = [f"model-0000{part}-of-00003.safetensors" for part in (1, 2, 3)]
    index = {"weight_map": {f"layer{row}": parts[row % 3] for row in range(6)}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    (model / "model.safetensors").rename(model / parts[1])
    assert missing_files(model) == (parts[0], parts[2])
    for part in parts:
        (model / part).touch()
    assert missing_files(model) == ()
    (model / "model.safetensors.index.json").write_text("{")
    assert missing_files(model) == ("model.safetensors.index.json",)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", "[]"),
        ("config.json", "{}"),
        ("config.json", "[" * 100_000),
        ("model.safetensors", ""),
        ("model.safetensors", "x" * 50),
        ("model.safetensors", "\x02" + "\x00" * 7 + "[]"),
    ],
)
def test_files_that_hold_no_model_cannot_be_padded(
    model: Path, tmp_path: Path, name: str, content: str
) -> None:
    (model / name).write_text(content)
    words = re.escape(f"model folder '{model}': ") + r"\w+ in its files, .*; fetch it anew"
    with pytest.raises(ModelError, match=words):
        write_padded_model(model, tmp_path, 2)


def test_padding_adds_layers_of_zeros_and_leaves_what_was_there(model: Path, padded: Path) -> None:
    before = read_tensors(model / "model.safetensors")
    added = {
        f"model.layers.{layer}.{name}": bf16(
            *shape, fill=b"\x80\x3f" if "norm" in name else b"\0\0"
        )
        for layer in (1, 2)  # 1.0 is the upper half of 0x3f800000
        for name, shape in LAYER.items()
    }
    assert read_tensors(padded / "model.safetensors") == before | added
    assert int.from_bytes((padded / "model.safetensors").read_bytes()[:8], "little") % 8 == 0
    config = json.loads((padded / "config.json").read_text())
    assert config == {"num_hidden_layers": 3, "hidden_size": 2}


@pytest.mark.parametrize(
    "tensors",
    [
        pytest.param({"transformer.h.0.weight": bf16(2)}, id="no-llama"),
        pytest.param(
            {"model.layers.0.weight": Tensor(dtype="F32", shape=(1,), data=b"\0" * 4)},
            id="float32",
        ),
    ],
)
def test_what_is_no_bfloat16_llama_cannot_be_padded(
    tmp_path: Path, tensors: dict[str, Tensor]
) -> None:
    model = write_model(tmp_path / "other", tensors)
    with pytest.raises(ModelError, match=f"'{model}': only a dense bfloat16 Llama can be padded"):
        write_padded_model(model, tmp_path, 1)


def pad(model: Path, cache: Path) -> Path:
    """The model with two layers more, out of a cache."""
    program = (
        "import sys, pathlib, specreg.matrix.models as m;"
        "print(m.resolve_model(pathlib.Path('/'), sys.argv[1], padding_layers=2))"
    )
    done = subprocess.run(
        (sys.executable, "-c", program, str(model)),
        env=os.environ | {"SPECREG_CACHE": str(cache)},
        cwd=builders.ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return Path(done.stdout.strip())


def test_a_padded_model_is_made_once_and_kept_in_the_cache(model: Path, tmp_path: Path) -> None:
    """In processes of their own, because the cache is named by an environment variable."""
    cache = tmp_path / "cache"
    found = []
    for _ in range(2):
        folder = pad(model, cache)
        found.append((folder, folder.stat().st_ino))
    assert found[0] == found[1]
    assert list((cache / "models").iterdir()) == [found[0][0]]
    assert len(read_tensors(found[0][0] / "model.safetensors")) == 7


KILLED = """
import os, pathlib, signal, sys
from specreg.matrix import models
models.read_tensors = lambda _: os.kill(os.getpid(), signal.SIGKILL)
models.resolve_model(pathlib.Path("/"), sys.argv[1], padding_layers=2)
"""


def test_what_a_killed_run_was_padding_goes(model: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    subprocess.run(
        (sys.executable, "-c", KILLED, str(model)),
        env=os.environ | {"SPECREG_CACHE": str(cache)},
        cwd=builders.ROOT,
        check=False,
    )
    (left,) = (cache / "models").iterdir()
    padded = pad(model, cache)
    assert padded != left
    assert list((cache / "models").iterdir()) == [padded]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", "{}"),
        ("model.safetensors", ""),
        ("model-00002-of-00002.safetensors", "more"),
    ],
)
def test_the_checksum_changes_with_config_and_with_all_weights(
    model: Path, tmp_path: Path, name: str, content: str
) -> None:
    changed = Path(shutil.copytree(model, tmp_path / "changed"))
    assert model_sha256(str(changed / ".")) == model_sha256(str(model))
    (changed / name).write_text(content)
    model_sha256.cache_clear()
    assert model_sha256(str(changed)) != model_sha256(str(model))


def test_a_model_says_how_many_token_ids_it_knows(model: Path) -> None:
    assert vocabulary_of(str(TINY)) == 768
    (model / "config.json").write_text('{"text_config": {"vocab_size": 7}}')
    assert vocabulary_of(str(model)) == 7


@pytest.mark.parametrize("config", ["{", "{}", "[]", '{"vocab_size": null}'])
def test_a_model_that_knows_no_vocabulary_is_named(model: Path, config: str) -> None:
    (model / "config.json").write_text(config)
    with pytest.raises(ModelError, match=r"no vocab_size in its config\.json"):
        vocabulary_of(str(model))


def of_hub(home: Path, reference: str) -> subprocess.CompletedProcess[str]:
    """What `vocabulary_of` says of a hub id, with a cache of the hub's own and no network."""
    code = f"from specreg.matrix.models import vocabulary_of; print(vocabulary_of({reference!r}))"
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=builders.ROOT,
        env={**os.environ, "HF_HOME": str(home), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_a_hub_id_says_how_many_token_ids_it_knows(tmp_path: Path) -> None:
    """In the layout that huggingface_hub documents for its cache."""
    cached = tmp_path / "hub/models--some--target"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs/main").write_text("c0ffee")
    (cached / "snapshots/c0ffee").mkdir(parents=True)
    (cached / "snapshots/c0ffee/config.json").write_text('{"vocab_size": 7}')
    assert of_hub(tmp_path, "some/target").stdout == "7\n"
