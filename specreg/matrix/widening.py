"""Make models that say what a tiny pair says and cost as much as a large one.

The residual stream's further dimensions stay zero. What multiplies zeros is random, as multiplying
zeros by zeros would draw less power. RMSNorm divides by the mean over all dimensions: its weights
are scaled by the root of narrow / wide, which is a power of two and so costs no bit, and its
epsilon by narrow / wide.
"""

import dataclasses
import functools
import json
import math
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from specreg.core.errors import ModelError
from specreg.matrix.case import ServerSpec
from specreg.matrix.models import (
    BFLOAT16,
    Tensor,
    content_sha256,
    make_folder,
    models_dir,
    read_model,
    resolve_model,
    write_config,
    write_tensors,
)
from specreg.matrix.schema import Width

_RECIPE = 1
"""What is written; another number makes all widened models anew."""
_TARGET = "target"
_GIB = 2**30
_BYTES = 2
"""Of a number in bfloat16."""
_NOISE_NUMBERS, _NOISE_SIGMA = 2**24, 0.02
"""Of the random weights: so many, over and over; and how far they lie from 0."""

_LAYER = re.compile(r"(?P<layer>model\.layers\.\d+\.|midlayer\.)(?P<rest>.+)")

_Bits = npt.NDArray[np.uint16]
"""Numbers in bfloat16: the upper half of a float32."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a model is made to; each number by the name that `config.json` has for it."""

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    num_hidden_layers: int = 1


SHAPES: Mapping[Width, Mapping[str, Shape]] = MappingProxyType(
    {
        Width.EIGHT_BILLION: {
            _TARGET: Shape(8192, 22016, 256, 64, 12),
            "eagle3": Shape(8192, 8192, 256, 64),
            "draft_model": Shape(1024, 3072, 32, 8, 16),
        },
        Width.ONE_BILLION: {
            _TARGET: Shape(2048, 5504, 64, 16, 24),
            "eagle3": Shape(2048, 5504, 64, 16),
            # Few layers: on a GPU each costs its kernels' launches, however small it is.
            "draft_model": Shape(256, 22016, 32, 8, 4),
        },
        Width.THIRTY_MILLION: {
            _TARGET: Shape(512, 1376, 16, 4, 11),
            "eagle3": Shape(512, 256, 16, 4),
            "draft_model": Shape(256, 2048, 8, 2),
        },
    }
)
"""By width, the target's shape and, by method, its draft's; docs/matrix.md has what a step costs.

The hidden size is a power of four times the narrow one's. The head has as many heads of the KV
cache as its target, whose blocks it shares.
"""


def served_models(root: Path, spec: ServerSpec) -> tuple[str, str | None]:
    """What a server is handed as target and draft: folders, or hub ids as they are.

    A padded target is made; a widened model needn't be there yet, see `widen_models`.

    Raises:
        ModelError: a folder is missing or incomplete, or isn't one that can be made larger.
    """
    if spec.widen is not None:
        target, *draft = (str(one.folder) for one in _widened(root, spec))
        return target, next(iter(draft), None)
    target = resolve_model(root, spec.target, padding_layers=spec.padding_layers)
    return target, resolve_model(root, spec.draft) if spec.draft is not None else None


def widen_models(root: Path, spec: ServerSpec, *, show: Callable[[str], None]) -> None:
    """Make a server's widened models where the cache hasn't got them.

    Raises:
        ModelError: see `served_models`; or the disk has no room.
    """
    check_room(root, [spec])
    for one in _widened(root, spec):
        if not one.folder.is_dir():
            show(f"widening {one.source.name} to {one.size_bytes / _BYTES:.2g} parameters (once)")
        make_folder(one.folder, one.write)


def check_room(root: Path, specs: Iterable[ServerSpec]) -> None:
    """Check that the cache has room for the widened models that servers need and it lacks.

    Raises:
        ModelError: it hasn't; or see `served_models`.
    """
    needed_bytes = lacking_bytes(root, specs)
    place = next(path for path in (models_dir(), *models_dir().parents) if path.exists())
    free_bytes = shutil.disk_usage(place).free
    if free_bytes < needed_bytes:
        message = (
            f"widened models: {free_bytes / _GIB:.1f} GiB are free in '{place}', needed"
            f" {needed_bytes / _GIB:.1f}; make room, name another cache with SPECREG_CACHE, or"
            " choose a pair of a smaller width"
        )
        raise ModelError(message)


def lacking_bytes(root: Path, specs: Iterable[ServerSpec]) -> int:
    """What the widened models take that servers need and the cache lacks.

    Raises:
        ModelError: see `served_models`.
    """
    found = {one.folder: one for spec in specs for one in _widened(root, spec)}
    return sum(one.size_bytes for folder, one in found.items() if not folder.is_dir())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axis:
    """The rows or columns of a widened tensor.

    Attributes:
        length: how many there are.
        real: the places of the narrow tensor's, in their order.
        reached: up to which of them what is real has an effect: heads of queries that are added
            share the narrow model's keys and values.
    """

    length: int
    real: npt.NDArray[np.int64]
    reached: int

    def repeated(self, times: int) -> "_Axis":
        """Several of them in a row, as the columns of a projection that reads several streams."""
        starts = range(0, times * self.length, self.length)
        real = np.concatenate([start + self.real for start in starts])
        return _Axis(length=times * self.length, real=real, reached=self.reached)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A widened tensor: of which kind, and the narrow one, None in a layer that adds nothing.

    `columns` is None for the weights of a norm.
    """

    kind: str
    rows: _Axis
    columns: _Axis | None
    narrow: _Bits | None

    @property
    def size_bytes(self) -> int:
        """What it takes."""
        return _BYTES * self.rows.length * (self.columns.length if self.columns else 1)

    def tensor(self) -> Tensor:
        """The tensor."""
        bits = self._norm() if self.columns is None else self._projection(self.rows, self.columns)
        data = bits.reshape(-1).view(np.uint8).data
        return Tensor(dtype=BFLOAT16, shape=bits.shape, data=data)

    def _norm(self) -> _Bits:
        weights = np.ones(self.rows.length, np.float32)
        if self.narrow is not None:
            real = (self.narrow.astype(np.uint32) << 16).view(np.float32)
            weights[self.rows.real] = real * math.sqrt(len(real) / len(weights))
        return (weights.view(np.uint32) >> 16).astype(np.uint16)

    def _projection(self, rows: _Axis, columns: _Axis) -> _Bits:
        bits = np.resize(_noise(), (rows.length, columns.length))
        if self.kind == "embed_tokens":
            bits[:] = 0
        elif self.kind in {"v_proj", "gate_proj"}:  # what they add is multiplied by these
            added = np.ones(rows.length, bool)
            added[rows.real if self.narrow is not None else []] = False
            bits[added] = 0
        elif self.kind == "fc":
            bits[:, columns.real] = 0
        elif self.kind in {"o_proj", "down_proj"} and self.narrow is not None:
            bits[:, : columns.reached] = 0
        if self.narrow is not None:
            bits[np.ix_(rows.real, columns.real)] = self.narrow
        return bits


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Widened:
    """A model of the cache, made or yet to be: of which folder, and in what shape."""

    source: Path
    shape: Shape
    folder: Path

    @property
    def size_bytes(self) -> int:
        """What its weights take."""
        return sum(part.size_bytes for parts in self._files() for part in parts.values())

    def write(self, folder: Path) -> None:
        """Write it: a file for each layer, so that no more than one is in memory."""
        files = self._files()
        names: dict[str, str] = {}
        for number, parts in enumerate(files, 1):
            name = f"model-{number:05}-of-{len(files):05}.safetensors"
            write_tensors({key: part.tensor() for key, part in parts.items()}, folder / name)
            names |= dict.fromkeys(parts, name)
        index = {"metadata": {"total_size": self.size_bytes}, "weight_map": names}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
        config, _ = self._read()
        epsilon = config["rms_norm_eps"] * config["hidden_size"] / self.shape.hidden_size
        shape = dataclasses.asdict(self.shape)
        write_config(self.source, folder, config | shape | {"rms_norm_eps": epsilon})

    def _read(self) -> tuple[dict[str, Any], Mapping[str, _Bits]]:
        """The configuration and the weights of the model that is widened.

        Raises:
            ModelError: they can't be read, or aren't those of a model that can be widened.
        """
        config, tensors = read_model(self.source, "widened; leave widen out")
        fits = all(
            tensor.dtype == BFLOAT16 and (len(tensor.shape) == 1 or name.split(".")[-2] in _AXES)
            for name, tensor in tensors.items()
        )
        if not fits or not self._holds(config):
            message = (
                f"model folder '{self.source}': can't be widened to {self.shape}; needed is a dense"
                " bfloat16 Llama with as many heads of keys as of queries, no larger than that,"
                " whose hidden size is that over 1, 4, 16 or another power of 4; leave widen out"
            )
            raise ModelError(message)
        return config, {
            name: np.frombuffer(tensor.data, np.uint16).reshape(tensor.shape)
            for name, tensor in tensors.items()
        }

    def _holds(self, config: Mapping[str, Any]) -> bool:
        """Whether a model of such a configuration fits in."""
        try:
            grown = [size / config[name] for name, size in dataclasses.asdict(self.shape).items()]
            return (
                min(grown) >= 1
                and (math.log2(grown[0]) / 2).is_integer()
                and config["num_attention_heads"] == config["num_key_value_heads"]
                and config["head_dim"] > 0
                and config["rms_norm_eps"] > 0
            )
        except (LookupError, TypeError, ZeroDivisionError):
            return False

    def _files(self) -> list[dict[str, _Part]]:
        """By file, its tensors: those of each layer, and all others."""
        config, narrow = self._read()
        head, heads = config["head_dim"], config["num_attention_heads"]
        shape = self.shape
        group = shape.num_attention_heads // shape.num_key_value_heads
        # The narrow model's heads of queries are the first of the groups that share their keys.
        queries = np.arange(heads * group * head).reshape(heads, group, head)[:, 0].reshape(-1)
        keys, inner, hidden = (
            np.arange(count)
            for count in (heads * head, config["intermediate_size"], config["hidden_size"])
        )
        axes = {
            "hidden": _Axis(length=shape.hidden_size, real=hidden, reached=len(hidden)),
            "intermediate": _Axis(length=shape.intermediate_size, real=inner, reached=len(inner)),
            "queries": _Axis(
                length=shape.num_attention_heads * head,
                real=queries,
                reached=heads * group * head,
            ),
            "keys": _Axis(length=shape.num_key_value_heads * head, real=keys, reached=heads * head),
        }

        def part(name: str, like: _Bits) -> _Part:
            kind, bits = name.split(".")[-2], narrow.get(name)
            if like.ndim == 1:
                return _Part(kind=kind, rows=axes["hidden"], columns=None, narrow=bits)
            every = np.arange(len(like))
            row, column = _AXES[kind]
            rows = axes.get(row, _Axis(length=len(like), real=every, reached=len(like)))
            columns = axes[column].repeated(like.shape[1] // len(axes[column].real))
            return _Part(kind=kind, rows=rows, columns=columns, narrow=bits)

        named = {name: found for name in narrow if (found := _LAYER.fullmatch(name))}
        first = min(found["layer"] for found in named.values())
        count = shape.num_hidden_layers if first.startswith("model.") else 1
        files = [
            {
                (name := re.sub(r"\d+", str(layer), first) + found["rest"]): part(
                    name, narrow[like]
                )
                for like, found in named.items()
                if found["layer"] == first
            }
            for layer in range(count)
        ]
        return [
            *files,
            {name: part(name, bits) for name, bits in narrow.items() if name not in named},
        ]


def _widened(root: Path, spec: ServerSpec) -> Iterator[_Widened]:
    """The target of a server whose models are widened, and its draft if it has one."""
    if spec.widen is None:
        return
    shapes = SHAPES[spec.widen]
    models = {_TARGET: spec.target, **({spec.method: spec.draft} if spec.draft else {})}
    for role, reference in models.items():
        shape, source = shapes.get(role), Path(resolve_model(root, reference))
        if shape is None or not source.is_dir():
            drafting = " or ".join(sorted(shapes.keys() - {_TARGET}))
            message = (
                f"model '{reference}' of pair '{spec.models}': only the folder of a target, or of a"
                f" draft for {drafting}, can be widened; leave widen out"
            )
            raise ModelError(message)
        made_of = content_sha256(source, shape, _RECIPE)
        folder = models_dir() / f"{source.name}-wide-{spec.widen}-{made_of}"
        yield _Widened(source=source, shape=shape, folder=folder)


@functools.cache
def _noise() -> _Bits:
    """Random numbers, the same each time."""
    numbers = np.random.default_rng(0).normal(scale=_NOISE_SIGMA, size=_NOISE_NUMBERS)
    return (numbers.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
