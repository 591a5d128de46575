"""Model folders and hub ids: found, weighed and told apart by checksum."""

import functools
import hashlib
import json
import re
from pathlib import Path

from specreg.core.errors import ModelError
from specreg.core.files import cache_dir, file_sha256, repository_path
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
"""What is raised for a file that isn't JSON, or not of the expected form."""
_HUB_SETTING = re.compile(r"-*download[-_]dir|HF_|HUGGING_?FACE_|.*_USE_MODELSCOPE")
_WIDENED = re.compile(r".+-wide-\w+-([0-9a-f]{64})")
"""The folder of a widened model, by its name: it ends with what it is made from."""


def resolve_model(root: Path, reference: str) -> str:
    """A model's folder, or a hub id as it is; a relative one is looked up in the repository's root.

    One of `fixtures/` that isn't there is specreg's own: the tiny models of its wheel. A ModelError
    of a folder that is missing or incomplete.
    """
    if is_hub_id(reference):
        return reference
    folder = repository_path(root, reference).resolve()
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
    """A file of a model folder, or of a hub id from its cache, or fetched; else a ModelError."""
    folder = Path(reference)
    if not folder.is_dir():
        return fetch_model_file(reference, name)
    if not (folder / name).is_file():
        raise ModelError(f"model folder '{folder}': {name} is missing; name a folder that has it")
    return folder / name


def vocabulary_of(reference: str) -> int:
    """How many token ids a model knows; a ModelError where its configuration doesn't say."""
    path = model_file(reference, CONFIG)
    try:
        config = json.loads(path.read_bytes())
        return int(config.get("text_config", config)["vocab_size"])
    except (*UNFIT, OSError) as error:
        message = f"model '{reference}': no vocab_size in its {CONFIG} ({error}); name a folder"
        raise ModelError(f"{message} that has one") from error


@functools.cache
def model_sha256(reference: str) -> str:
    """A checksum of a model folder's weights and configuration; empty for a hub id.

    Read once per run: a model that is served must not change. That of a widened model is
    of what it is made from: it is known before it is made, and 17 GB aren't read for it.
    """
    folder = Path(reference)
    widened = _WIDENED.fullmatch(folder.name)
    if widened and folder.parent == cache_dir() / "models":
        return widened[1]
    if not folder.is_dir():
        return ""
    digest = hashlib.sha256()
    for path in (folder / CONFIG, *sorted(folder.glob("*.safetensors"))):
        digest.update(bytes.fromhex(file_sha256(path)))
    return digest.hexdigest()
