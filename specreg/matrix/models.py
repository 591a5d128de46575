"""Model folders and hub ids: found, weighed and told apart by checksum."""

import contextlib
import functools
import hashlib
import json
import re
from pathlib import Path
from typing import Any

from specreg.core.errors import ModelError
from specreg.core.files import cache_dir, file_sha256
from specreg.datasets.hub import fetch_model_file, why_unfetchable
from specreg.matrix.case import ServerSpec

CONFIG = "config.json"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
)
UNFIT = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What is raised of JSON that is none, or not of the form that it should have."""
_GIB, _KIB = 2**30, 2**10
_HUB_SETTING = re.compile(r"-*download[-_]dir|HF_|HUGGING_?FACE_|.*_USE_MODELSCOPE")
_WIDENED = re.compile(r".+-wide-\w+-([0-9a-f]{64})")
"""The folder of a widened model, by its name: it ends with what it is made from."""


def resolve_model(root: Path, reference: str) -> str:
    """A model's folder, or a hub id as it is; a relative one is looked up in the repository's root.

    Raises:
        ModelError: the folder is missing or incomplete.
    """
    if is_hub_id(reference):
        return reference
    folder = (root / reference).resolve()
    for pattern in (CONFIG, "*.safetensors"):
        if not any(folder.glob(pattern)):
            message = f"model folder '{folder}': {pattern} is missing; check the path in the matrix"
            raise ModelError(message)
    return str(folder)


def is_hub_id(reference: str) -> bool:
    """Whether a model is named by the hub's id, not by its folder."""
    return not reference.startswith((".", "/", "fixtures/"))


def why_no_models(spec: ServerSpec) -> str:
    """Why the hub doesn't give a server's models, empty where they are at hand or it would.

    Left to the engine, and so empty, where the case has it look elsewhere than we would.
    """
    settings = (*spec.engine_args, *(name for name, _ in spec.engine_env))
    if any(map(_HUB_SETTING.match, settings)):
        return ""
    models = [name for name in (spec.target, spec.draft) if name and "/" in name]
    return next(filter(None, map(why_unfetchable, filter(is_hub_id, models))), "")


def model_file(reference: str, name: str) -> Path:
    """A file of a model folder, or of a hub id: from the hub's cache, or fetched.

    Raises:
        ModelError: it isn't there, or can't be fetched.
    """
    folder = Path(reference)
    if not folder.is_dir():
        return fetch_model_file(reference, name)
    if not (folder / name).is_file():
        message = f"model folder '{folder}': {name} is missing; name a folder that has it"
        raise ModelError(message)
    return folder / name


def vocabulary_of(reference: str) -> int:
    """How many token ids a model knows.

    Raises:
        ModelError: its configuration isn't at hand, or doesn't say.
    """
    path = model_file(reference, CONFIG)
    try:
        config = json.loads(path.read_bytes())
        return int(config.get("text_config", config)["vocab_size"])
    except (*UNFIT, OSError) as error:
        message = f"model '{reference}': no vocab_size in its {CONFIG} ({error}); name a folder"
        raise ModelError(f"{message} that has one") from error


def folder_sizes(folder: Path, dtype: str) -> tuple[float, float]:
    """What a model takes as it is served: GiB of weights, and KiB of KV cache by token.

    A token's keys and values: 2 × layers × KV heads × head size × bytes of a value. 0 where the
    configuration doesn't say, or says that they are kept compressed. `dtype` is the engine's name
    of the number format; "auto" for the model's own.
    """
    files = [*folder.glob("*.safetensors")] or [*folder.glob("*.bin")]
    weights_bytes = float(sum(path.stat().st_size for path in files))
    config: dict[str, Any] = {}
    with contextlib.suppress(OSError, *UNFIT):
        found = json.loads((folder / CONFIG).read_bytes())
        config = {**found, **found.get("text_config", {})}
    own = str(config.get("dtype") or config.get("torch_dtype") or "")
    value_bytes = _value_bytes(own if dtype == "auto" else dtype)
    if "quantization_config" not in config:
        weights_bytes *= value_bytes / _value_bytes(own)
    token_bytes = 0.0
    with contextlib.suppress(*UNFIT):
        heads = config["num_attention_heads"]
        size = config.get("head_dim") or config["hidden_size"] / heads
        kept = config["num_hidden_layers"] * (config.get("num_key_value_heads") or heads) * size
        token_bytes = 0.0 if config.get("kv_lora_rank") else 2.0 * kept * value_bytes
    return weights_bytes / _GIB, token_bytes / _KIB


def _value_bytes(dtype: str) -> int:
    """Of one number; no engine computes in a larger format than the widest here."""
    return 4 if dtype in {"float32", "float"} else 2


@functools.cache
def model_sha256(reference: str) -> str:
    """A checksum of a model folder's weights and configuration; empty for a hub id.

    Read once per run: a model that is served must not change. That of a widened model is
    of what it is made from: it is known before it is made, and 17 GB aren't read for it.
    """
    folder = Path(reference)
    widened = _WIDENED.fullmatch(folder.name)
    if widened and folder.parent == models_dir():
        return widened[1]
    if not folder.is_dir():
        return ""
    digest = hashlib.sha256()
    digest.update(hashlib.sha256((folder / CONFIG).read_bytes()).digest())
    for path in sorted(folder.glob("*.safetensors")):
        digest.update(bytes.fromhex(file_sha256(path)))
    return digest.hexdigest()


def models_dir() -> Path:
    """The folder of padded and widened models."""
    return cache_dir() / "models"
