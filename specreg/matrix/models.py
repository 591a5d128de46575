"""Model folders and hub ids: found, told apart by checksum, and made larger at set-up.

Larger are models that say what a tiny pair says and cost more: padded with layers, or widened. An
identity layer's projections are zero: it adds nothing to the residual stream, and the language
stays the same to the last bit.

In a widened model the residual stream's further dimensions stay zero. What multiplies zeros is
random, as multiplying zeros by zeros would draw less power. RMSNorm divides by the mean over all
dimensions: its weights are scaled by the root of narrow / wide, which is a power of two and so
costs no bit, and its epsilon by narrow / wide.
"""

import dataclasses
import functools
import hashlib
import json
import math
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import filelock
import numpy as np
import numpy.typing as npt

from specreg.core.errors import ModelError
from specreg.core.files import (
    MIB,
    cache_dir,
    file_sha256,
    open_checked,
    passing_folder,
    read_regular,
    repository_path,
)
from specreg.datasets.hub import fetch_model_file, why_unfetchable
from specreg.matrix.case import ServerSpec, Width

_CONFIG = "config.json"
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
)
_UNFIT = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What is raised for a file that isn't JSON, or not of the expected form."""
_HUB_SETTING = re.compile(r"-*download[-_]dir|HF_|HUGGING_?FACE_|.*_USE_MODELSCOPE")
_WIDENED = re.compile(r".+-wide-\w+-([0-9a-f]{64})")
"""The folder of a widened model, by its name: it ends with what it is made from."""
_WEIGHTS = "model.safetensors"
_RECIPE = 1
"""The version of what is written; another number makes all widened models anew."""
_TARGET = "target"
_NOISE_NUMBERS, _NOISE_SIGMA = 2**24, 0.02
"""How many random weights there are, used over and over, and their standard deviation."""
_FIRST_LAYER = "model.layers.0."
_LAYER = re.compile(r"(?P<layer>model\.layers\.\d+\.|midlayer\.)(?P<rest>.+)")

Bits = npt.NDArray[np.uint16]
"""Numbers in bfloat16: the upper half of a float32."""
_ONE = 0x3F80


@dataclass(frozen=True, slots=True)
class Shape:
    """The size that a model is widened to, by the names of `config.json`."""

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    num_hidden_layers: int = 1


SHAPES: Mapping[Width, Mapping[str, Shape]] = MappingProxyType(
    {
        "8b": {
            _TARGET: Shape(8192, 22016, 256, 64, 12),
            "eagle3": Shape(8192, 8192, 256, 64),
            "draft_model": Shape(1024, 3072, 32, 8, 16),
        },
        "1b": {
            _TARGET: Shape(2048, 5504, 64, 16, 24),
            "eagle3": Shape(2048, 5504, 64, 16),
            # Few layers: on a GPU each costs its kernels' launches, however small it is.
            "draft_model": Shape(256, 22016, 32, 8, 4),
        },
        "30m": {
            _TARGET: Shape(512, 1376, 16, 4, 11),
            "eagle3": Shape(512, 256, 16, 4),
            "draft_model": Shape(256, 2048, 8, 2),
        },
    }
)
"""By width, the target's shape and, by method, its draft's; see docs/how-to/choose-what-runs.md.

The hidden size is a power of four times the narrow one's. The head has as many heads of the KV
cache as its target, whose blocks it shares.
"""


def resolve_model(root: Path, reference: str) -> str:
    """A model's folder, or a hub id as it is; a relative one is looked up in the repository's root.

    One of `fixtures/` that isn't there is specreg's own: the tiny models of its wheel.

    Raises:
        ModelError: the folder is missing or incomplete.
    """
    if is_hub_id(reference):
        return reference
    folder = repository_path(root, reference).resolve()
    for pattern in (_CONFIG, "*.safetensors"):
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
    path = model_file(reference, _CONFIG)
    try:
        config = json.loads(read_regular(path, MIB))
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
    if widened and folder.parent == cache_dir() / "models":
        return widened[1]
    if not folder.is_dir():
        return ""
    digest = hashlib.sha256()
    for path in (folder / _CONFIG, *sorted(folder.glob("*.safetensors"))):
        digest.update(bytes.fromhex(file_sha256(path)))
    return digest.hexdigest()


def served_models(root: Path, spec: ServerSpec) -> tuple[str, str | None]:
    """Return a server's target and draft as it gets them: folders, or hub ids as they are.

    A padded target is made; a widened model needn't be there yet, see `widen_models`.

    Raises:
        ModelError: a folder is missing or incomplete, or can't be made larger.
    """
    if spec.widen is not None:
        target, *drafts = (str(folder) for _, _, folder in _widened(root, spec))
        return target, next(iter(drafts), None)
    target = resolve_model(root, spec.target)
    if layers := spec.padding_layers:
        if is_hub_id(target):
            message = f"model '{target}': only a folder can be padded; set padding_layers = 0"
            raise ModelError(message)
        source = Path(target)
        padded = cache_dir() / "models" / f"{source.name}-{layers}-{_content_sha256(source)[:16]}"
        _make_folder(padded, lambda made: write_padded_model(source, made, layers))
        target = str(padded)
    return target, resolve_model(root, spec.draft) if spec.draft is not None else None


def widen_models(root: Path, spec: ServerSpec, *, show: Callable[[str], None]) -> None:
    """Make a server's widened models that aren't in the cache yet; raises as `served_models`."""
    for source, shape, folder in _widened(root, spec):
        if not folder.is_dir():
            show(f"widening {source.name} to {spec.widen}, once")
        _make_folder(folder, functools.partial(_write_widened_model, source, shape))


def write_padded_model(source: Path, target: Path, layers: int) -> None:
    """Write the model of `source`, a dense bfloat16 Llama, with identity layers appended."""
    config, tensors = _read_model(source)
    try:
        first = int(config["num_hidden_layers"])
    except _UNFIT as error:
        raise _unfit(source, error) from error
    template = {
        name.removeprefix(_FIRST_LAYER): tensor
        for name, tensor in tensors.items()
        if name.startswith(_FIRST_LAYER)
    }
    if not template:
        raise _unfit(source, f"no {_FIRST_LAYER} in its weights")
    for layer in range(first, first + layers):
        for name, tensor in template.items():
            fill = _ONE if "norm" in name else 0
            tensors[f"model.layers.{layer}.{name}"] = np.full_like(tensor, fill)
    write_tensors(tensors, target / _WEIGHTS)
    _write_config(source, target, config | {"num_hidden_layers": first + layers})


def _unfit(source: Path, why: object) -> ModelError:
    return ModelError(
        f"model folder '{source}': can't be made larger, {why}; needed is a dense bfloat16 Llama in"
        f" one {_WEIGHTS}: name another folder, or leave padding_layers and widen out"
    )


def _read_model(source: Path) -> tuple[dict[str, Any], dict[str, Bits]]:
    """The configuration of a model folder, and its weights, of one file in bfloat16."""
    try:
        config = json.loads(read_regular(source / _CONFIG, MIB))
        if not isinstance(config, dict):
            raise TypeError(f"{_CONFIG} is no object")
        return config, read_tensors(source / _WEIGHTS)
    except (OSError, *_UNFIT) as error:
        raise _unfit(source, f"{type(error).__name__}: {error}") from error


# The format: the header's length in 8 bytes, little-endian; a JSON header; the data
# (https://huggingface.co/docs/safetensors, "Format"). By hand, because the library knows bfloat16
# by torch alone, and the bytes of what is written are part of a baseline.
_LENGTH_BYTES = 8


def read_tensors(path: Path) -> dict[str, Bits]:
    """The tensors of a file, by name; an OSError or one of `_UNFIT` unless it is in bfloat16."""
    with open_checked(path) as file:
        content = file.read()
    start = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "little")
    header = json.loads(content[_LENGTH_BYTES:start])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        if entry["dtype"] != "BF16":
            raise ValueError(f"{name} is in {entry['dtype']}")
        begin, end = entry["data_offsets"]
        bits = np.frombuffer(content[start + begin : start + end], np.uint16)
        tensors[name] = bits.reshape(entry["shape"])
    return tensors


def write_tensors(tensors: Mapping[str, Bits], path: Path) -> None:
    """Write tensors into a file."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + tensor.nbytes
        header[name] = {"dtype": "BF16", "shape": tensor.shape, "data_offsets": (offset, end)}
        offset = end
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % _LENGTH_BYTES)
    length = len(encoded).to_bytes(_LENGTH_BYTES, "little")
    with path.open("wb") as file:
        file.writelines((length, encoded, *(tensor.tobytes() for tensor in tensors.values())))


def _write_config(source: Path, target: Path, config: Mapping[str, object]) -> None:
    """Write a configuration, and copy the tokenizer of `source` beside it."""
    (target / _CONFIG).write_text(json.dumps(config, indent=2))
    for name in _TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)


def _content_sha256(folder: Path, *more: object) -> str:
    """A checksum of a model, its tokenizer, and all else that decides what is made of it."""
    content = hashlib.sha256(model_sha256(str(folder)).encode())
    for name in _TOKENIZER_FILES:
        if (folder / name).is_file():
            content.update((folder / name).read_bytes())
    for one in more:
        content.update(repr(one).encode())
    return content.hexdigest()


def _make_folder(folder: Path, write: Callable[[Path], None]) -> None:
    """Make a folder of the cache once, whole or not at all, also for several processes."""
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
class _Axis:
    """The rows or columns of a widened tensor, `length` many."""

    length: int
    real: npt.NDArray[np.int64]
    """The places of the narrow tensor's, in their order."""
    reached: int
    """Up to which place what is real has an effect: heads of queries that are added share the
    narrow model's keys and values."""

    @classmethod
    def of_first(cls, length: int, real: int) -> "_Axis":
        """An axis whose first places are the narrow tensor's."""
        return cls(length=length, real=np.arange(real), reached=real)

    def repeated(self, times: int) -> "_Axis":
        """Several of them in a row, as the columns of a projection that reads several streams."""
        starts = range(0, times * self.length, self.length)
        real = np.concatenate([start + self.real for start in starts])
        return _Axis(length=times * self.length, real=real, reached=self.reached)


_AXES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "q_proj": ("queries", "hidden"),
        "k_proj": ("keys", "hidden"),
        "v_proj": ("keys", "hidden"),
        "o_proj": ("hidden", "queries"),
        "gate_proj": ("intermediate", "hidden"),
        "up_proj": ("intermediate", "hidden"),
        "down_proj": ("hidden", "intermediate"),
        "fc": ("hidden", "hidden"),
        "lm_head": ("vocabulary", "hidden"),
        "embed_tokens": ("vocabulary", "hidden"),
    }
)
"""By projection, what its rows and columns are."""


def _axes_of(
    config: Mapping[str, Any], narrow: Mapping[str, Bits], shape: Shape
) -> Mapping[str, _Axis]:
    """The axes of a narrow model that is widened to a shape; what can't be raises."""
    grown = [size / config[name] for name, size in dataclasses.asdict(shape).items()]
    kinds = {name.split(".")[-2] for name, bits in narrow.items() if bits.ndim > 1}
    if not (
        min(grown) >= 1
        and (math.log2(grown[0]) / 2).is_integer()
        and config["num_attention_heads"] == config["num_key_value_heads"]
        and config["head_dim"] > 0
        and config["rms_norm_eps"] > 0
        and kinds <= _AXES.keys()
    ):
        raise ValueError(
            f"to {shape} from one with as many heads of keys as of queries, no larger than that,"
            " whose hidden size is that over 1, 4, 16 or another power of 4"
        )
    head, heads = config["head_dim"], config["num_attention_heads"]
    group = shape.num_attention_heads // shape.num_key_value_heads
    # The narrow model's heads of queries are the first of the groups that share their keys.
    queries = np.arange(heads * group * head).reshape(heads, group, head)[:, 0].reshape(-1)
    return {
        "hidden": _Axis.of_first(shape.hidden_size, config["hidden_size"]),
        "intermediate": _Axis.of_first(shape.intermediate_size, config["intermediate_size"]),
        "queries": _Axis(
            length=shape.num_attention_heads * head, real=queries, reached=heads * group * head
        ),
        "keys": _Axis.of_first(shape.num_key_value_heads * head, heads * head),
    }


def _tensor(kind: str, like: Bits, narrow: Bits | None, axes: Mapping[str, _Axis]) -> Bits:
    """A widened tensor in place of one like that; `narrow` is None in a layer that adds nothing."""
    if like.ndim == 1:  # of a norm
        weights = np.ones(axes["hidden"].length, np.float32)
        if narrow is not None:
            real = (narrow.astype(np.uint32) << 16).view(np.float32)
            weights[: len(real)] = real * math.sqrt(len(real) / len(weights))
        return (weights.view(np.uint32) >> 16).astype(np.uint16)
    row, column = _AXES[kind]
    rows = axes.get(row) or _Axis.of_first(len(like), len(like))
    columns = axes[column].repeated(like.shape[1] // len(axes[column].real))
    bits = np.resize(_noise(), (rows.length, columns.length))
    if kind == "embed_tokens":
        bits[:] = 0
    elif kind in {"v_proj", "gate_proj"}:  # what they add is multiplied by these
        added = np.ones(rows.length, bool)
        added[rows.real if narrow is not None else []] = False
        bits[added] = 0
    elif kind == "fc":
        bits[:, columns.real] = 0
    elif kind in {"o_proj", "down_proj"} and narrow is not None:
        bits[:, : columns.reached] = 0
    if narrow is not None:
        bits[np.ix_(rows.real, columns.real)] = narrow
    return bits


def _write_widened_model(source: Path, shape: Shape, folder: Path) -> None:
    """Write the model of `source` in a shape: a file a layer, so that one alone is in memory."""
    config, narrow = _read_model(source)
    named = {name: found for name in narrow if (found := _LAYER.fullmatch(name))}
    try:
        axes = _axes_of(config, narrow, shape)
        first = min(found["layer"] for found in named.values())
    except (*_UNFIT, ZeroDivisionError) as error:
        raise _unfit(source, f"{type(error).__name__}: {error}") from error
    layers = shape.num_hidden_layers if first.startswith("model.") else 1
    # By file, the names of its tensors, and of the narrow tensors that these are like.
    files = [
        {
            re.sub(r"\d+", str(layer), first) + found["rest"]: like
            for like, found in named.items()
            if found["layer"] == first
        }
        for layer in range(layers)
    ]
    files.append({name: name for name in narrow if name not in named})
    weight_map: dict[str, str] = {}
    size_bytes = 0
    for number, names in enumerate(files, 1):
        file = f"model-{number:05}-of-{len(files):05}.safetensors"
        tensors = {
            name: _tensor(name.split(".")[-2], narrow[like], narrow.get(name), axes)
            for name, like in names.items()
        }
        write_tensors(tensors, folder / file)
        weight_map |= dict.fromkeys(tensors, file)
        size_bytes += sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": size_bytes}, "weight_map": weight_map}
    (folder / f"{_WEIGHTS}.index.json").write_text(json.dumps(index, indent=1))
    epsilon = config["rms_norm_eps"] * config["hidden_size"] / shape.hidden_size
    _write_config(source, folder, config | dataclasses.asdict(shape) | {"rms_norm_eps": epsilon})


def _widened(root: Path, spec: ServerSpec) -> Iterator[tuple[Path, Shape, Path]]:
    """Source, shape and folder of a server's widened target, and of its draft if it has one."""
    if spec.widen is None:
        return
    shapes = SHAPES[spec.widen]
    pair = {_TARGET: spec.target, **({spec.method: spec.draft} if spec.draft else {})}
    for role, reference in pair.items():
        shape, source = shapes.get(role), Path(resolve_model(root, reference))
        if shape is None or not source.is_dir():
            drafting = " or ".join(sorted(shapes.keys() - {_TARGET}))
            raise ModelError(
                f"model '{reference}' of pair '{spec.models}': only the folder of a target, or of a"
                f" draft for {drafting}, can be widened; leave widen out"
            )
        made_of = _content_sha256(source, shape, _RECIPE)
        folder = cache_dir() / "models" / f"{source.name}-wide-{spec.widen}-{made_of}"
        yield source, shape, folder


@functools.cache
def _noise() -> Bits:
    """Random numbers, the same each time."""
    numbers = np.random.default_rng(0).normal(scale=_NOISE_SIGMA, size=_NOISE_NUMBERS)
    return (numbers.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
