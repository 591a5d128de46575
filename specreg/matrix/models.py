"""Model folders and hub ids: found, checked for code, and padded where a case asks for it."""

import dataclasses
import functools
import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock

from specreg.core.errors import ModelError, UnsupportedError
from specreg.core.files import cache_dir, file_sha256, passing_folder
from specreg.datasets.hub import (
    cached_model,
    check_access,
    fetch_model_file,
    is_installed,
    is_offline,
)
from specreg.engines.registry import engine_named
from specreg.matrix.case import ServerSpec

_WEIGHTS = "model.safetensors"
_OLDER_WEIGHTS = "pytorch_model.bin"
_CONFIG = "config.json"
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
)

_CODE_KEY = "auto_map"
"""Of a configuration: names Python that lies beside the weights or on the hub. An engine that is
told to trust it runs it with all our rights; of a hub id the engine itself refuses it else."""
_TRUST_FLAG = re.compile(r"-*trust[-_]remote[-_]code\b")
_GIB, _KIB = 2**30, 2**10

_UNFIT = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What is raised of JSON that is none, or not of the form that it should have."""
_HUB_SETTING = re.compile(r"-*download[-_]dir|HF_|HUGGING_?FACE_|.*_USE_MODELSCOPE")
_FIRST_LAYER = "model.layers.0."
BFLOAT16 = "BF16"
_WIDENED = re.compile(r".+-wide-\w+-([0-9a-f]{64})")
"""The folder of a widened model, by its name: it ends with what it is made from."""
# One and zero in bfloat16, little-endian: it is the upper half of a float32.
_ONE, _ZERO = b"\x80\x3f", b"\x00\x00"


def resolve_model(root: Path, reference: str, *, padding_layers: int = 0) -> str:
    """What to hand to an engine: a folder, padded if asked for, or a hub id as it is.

    A relative folder is looked up in the repository's root.

    Raises:
        ModelError: the folder is missing or incomplete, or padding was asked of a hub id.
    """
    if is_hub_id(reference):
        if padding_layers:
            message = f"model '{reference}': only a folder can be padded; set padding_layers = 0"
            raise ModelError(message)
        return reference
    folder = (root / reference).resolve()
    for pattern in (_CONFIG, "*.safetensors"):
        if not any(folder.glob(pattern)):
            message = f"model folder '{folder}': {pattern} is missing; check the path in the matrix"
            raise ModelError(message)
    if not padding_layers:
        return str(folder)
    padded = models_dir() / f"{folder.name}-{padding_layers}-{content_sha256(folder)[:16]}"
    make_folder(padded, lambda made: write_padded_model(folder, made, padding_layers))
    return str(padded)


def is_hub_id(reference: str) -> bool:
    """Whether a model is named by the hub's id, not by its folder."""
    return not reference.startswith((".", "/", "fixtures/"))


def missing_files(folder: Path) -> tuple[str, ...]:
    """What a folder lacks to be a whole model: its configuration, or files of its weights.

    Weights are one file, or those that an index lists; drafts are published as PyTorch's too. An
    index that can't be read is missing.
    """
    lacking = () if (folder / _CONFIG).is_file() else (_CONFIG,)
    for name in (_WEIGHTS, _OLDER_WEIGHTS):
        index = folder / f"{name}.index.json"
        if index.is_file():
            try:
                parts = set(json.loads(index.read_bytes())["weight_map"].values())
            except (*_UNFIT, OSError):
                return (*lacking, index.name)
            return (*lacking, *sorted(part for part in parts if not (folder / part).is_file()))
    alone = any(any(folder.glob(pattern)) for pattern in ("*.safetensors", _OLDER_WEIGHTS))
    return lacking if alone else (*lacking, _WEIGHTS)


def missing_of_hub(repo: str) -> tuple[str, ...]:
    """What of a hub's model isn't in its cache; none without huggingface_hub to look."""
    if not is_installed():
        return ()
    folder = cached_model(repo)
    return ("all of it",) if folder is None else missing_files(folder)


def why_unfetchable(spec: ServerSpec) -> str:
    """Why a server's models can't be had, empty where they are at hand or the hub would give them.

    Left to the engine, and so empty, where the case has it look elsewhere than we would.
    """
    settings = (*spec.engine_args, *(name for name, _ in spec.engine_env))
    if any(map(_HUB_SETTING.match, settings)):
        return ""
    models = [name for name in (spec.target, spec.draft) if name and "/" in name]
    lacking = [name for name in models if is_hub_id(name) and missing_of_hub(name)]
    if lacking and is_offline():
        return (
            f"hub model '{lacking[0]}': not in the hub's cache, and HF_HUB_OFFLINE is set; unset"
            " it, or fetch the model where there is a network"
        )
    return next(filter(None, map(_why_refused, lacking)), "")


@functools.cache  # the servers of a tier share their models
def _why_refused(repo: str) -> str:
    try:
        check_access(repo)
    except ModelError as error:
        return str(error)
    return ""


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
    path = model_file(reference, _CONFIG)
    try:
        config = json.loads(path.read_bytes())
        return int(config.get("text_config", config)["vocab_size"])
    except (*_UNFIT, OSError) as error:
        message = f"model '{reference}': no vocab_size in its {_CONFIG} ({error}); name a folder"
        raise ModelError(f"{message} that has one") from error


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
    digest.update(hashlib.sha256((folder / _CONFIG).read_bytes()).digest())
    for path in sorted(folder.glob("*.safetensors")):
        digest.update(bytes.fromhex(file_sha256(path)))
    return digest.hexdigest()


def models_dir() -> Path:
    """The folder of padded and widened models."""
    return cache_dir() / "models"


def content_sha256(folder: Path, *more: object) -> str:
    """A checksum of a model and its tokenizer, and of whatever else decides what is made of it."""
    content = hashlib.sha256(model_sha256(str(folder)).encode())
    for name in _TOKENIZER_FILES:
        if (folder / name).is_file():
            content.update((folder / name).read_bytes())
    for one in more:
        content.update(repr(one).encode())
    return content.hexdigest()


def make_folder(folder: Path, write: Callable[[Path], None]) -> None:
    """Make a folder of the cache once, whole or not at all, also where several processes want it.

    Raises:
        ModelError: the disk refuses; or as `write` says.
    """
    if folder.is_dir():
        return
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(folder.parent.with_suffix(".lock")):
            if not folder.is_dir():
                with passing_folder(folder) as made:
                    write(made)
                    made.rename(folder)
    except OSError as error:
        message = f"model folder '{folder}': can't be written, {error.strerror}; make room, or name"
        raise ModelError(f"{message} another cache with SPECREG_CACHE") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A tensor as a safetensors file has it: the name of its number format, and its bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes | memoryview


def write_padded_model(source: Path, target: Path, layers: int) -> None:
    """Write the model of `source` with `layers` identity layers appended into `target`.

    A layer whose projections are zero adds nothing to the residual stream: the language stays
    the same to the last bit, the cost of a step grows.

    Raises:
        ModelError: the weights aren't those of a dense bfloat16 Llama.
    """
    config, tensors = read_model(source, "padded; set padding_layers = 0")
    first = int(config["num_hidden_layers"])
    template = {
        name.removeprefix(_FIRST_LAYER): tensor
        for name, tensor in tensors.items()
        if name.startswith(_FIRST_LAYER)
    }
    if not template or any(tensor.dtype != BFLOAT16 for tensor in template.values()):
        message = f"model folder '{source}': only a dense bfloat16 Llama can be padded"
        raise ModelError(message)
    for layer in range(first, first + layers):
        for name, tensor in template.items():
            fill = _ONE if "norm" in name else _ZERO
            data = fill * (len(tensor.data) // len(fill))
            tensors[f"model.layers.{layer}.{name}"] = dataclasses.replace(tensor, data=data)
    write_tensors(tensors, target / _WEIGHTS)
    write_config(source, target, config | {"num_hidden_layers": first + layers})


def read_model(source: Path, use: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The configuration of a model folder, and its weights, of one file.

    `use` says what it can't be where the weights are several files, and what to do.

    Raises:
        ModelError: they aren't one file, or can't be read.
    """
    if not (source / _WEIGHTS).is_file():
        message = f"model folder '{source}': has no {_WEIGHTS}, a sharded one can't be {use}"
        raise ModelError(message)
    try:
        config = json.loads((source / _CONFIG).read_bytes())
        int(config["num_hidden_layers"])
        return config, read_tensors(source / _WEIGHTS)
    except _UNFIT as error:
        message = f"model folder '{source}': {type(error).__name__} in its files, {error}; fetch it"
        raise ModelError(f"{message} anew") from error


def write_config(source: Path, target: Path, config: Mapping[str, object]) -> None:
    """Write a configuration, and copy the tokenizer of `source` beside it."""
    (target / _CONFIG).write_text(json.dumps(config, indent=2))
    for name in _TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)


# The format: the header's length in 8 bytes, little-endian; a JSON header; the data
# (https://huggingface.co/docs/safetensors, "Format"). By hand, because the library's own
# interface without torch or numpy changed between 0.5 and 0.8.
_LENGTH_BYTES = 8


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, by name."""
    content = path.read_bytes()
    start = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "little")
    header = json.loads(content[_LENGTH_BYTES:start])
    header.pop("__metadata__", None)
    return {
        name: Tensor(
            dtype=entry["dtype"],
            shape=tuple(entry["shape"]),
            data=content[start + entry["data_offsets"][0] : start + entry["data_offsets"][1]],
        )
        for name, entry in header.items()
    }


def write_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write tensors into a file."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + len(tensor.data)
        header[name] = {
            "dtype": tensor.dtype,
            "shape": tensor.shape,
            "data_offsets": (offset, end),
        }
        offset = end
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % _LENGTH_BYTES)
    length = len(encoded).to_bytes(_LENGTH_BYTES, "little")
    with path.open("wb") as file:
        file.writelines((length, encoded, *(tensor.data for tensor in tensors.values())))


def check_model_code(root: Path, spec: ServerSpec) -> None:
    """Check that no model folder of a server brings code, or the case trusts what it brings.

    Raises:
        ModelError: a folder brings some, or has a configuration that can't be read.
        UnsupportedError: an argument says that code is trusted, which is a setting of the case, or
            the engine runs no such code.
    """
    argument = next(filter(_TRUST_FLAG.match, spec.engine_args), None)
    if argument is not None:
        message = (
            f"engine_args '{argument}': that is a setting of its own, which is part of the case;"
            " leave it out and set trust_remote_code = true in the matrix"
        )
        raise UnsupportedError(message)
    if spec.trust_remote_code:
        if not engine_named(spec.engine).runs_model_code:
            message = (
                f"trust_remote_code with engine '{spec.engine}': it runs no code of models; leave"
                " it out, or choose another engine"
            )
            raise UnsupportedError(message)
        return
    for reference in filter(None, (spec.target, spec.draft)):
        if not is_hub_id(reference):
            _check_folder((root / reference).resolve())


def _check_folder(folder: Path) -> None:
    for path in sorted(folder.glob("*config.json")):
        try:
            config = json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            message = f"model folder '{folder}': {path.name} can't be read, {error}; restore it"
            raise ModelError(message) from error
        for named in _code_in(config):
            message = (
                f"model folder '{folder}': {path.name} brings code of its own, {_CODE_KEY} ="
                f" {json.dumps(named)[:200]}; name another model, or read that code and set"
                " trust_remote_code = true in the matrix"
            )
            raise ModelError(message)


def _code_in(config: object) -> Iterator[object]:
    """What names code, however deep."""
    left = [config]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            if one.get(_CODE_KEY):
                yield one[_CODE_KEY]
            left.extend(one.values())
        elif isinstance(one, list):
            left.extend(one)
