"""Write models that generate the same text as a tiny model, but cost more to run.

A model is padded with identity layers, or widened. The projections of an identity layer are zero:
it adds nothing to the residual stream, so the text stays the same to the last bit.

In a widened model the added dimensions of the residual stream stay zero. The weights that multiply
these zeros are random, because multiplying zeros by zeros would draw less power. RMSNorm divides by
the root of the mean square over all dimensions. So its weights are scaled by the root of
narrow / wide, which is a power of two and so loses no bit, and its epsilon by narrow / wide.
"""

import dataclasses
import functools
import json
import math
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from specreg.core.errors import ModelError
from specreg.core.files import MIB, open_checked, read_regular
from specreg.engines.server_spec import Width

CONFIG = "config.json"
TARGET = "target"
"""The role of the model that generates the text. The role of a draft is its method."""
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
)
MALFORMED_FILE_ERRORS = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""The exceptions that a file raises if it isn't JSON, or not of the expected form."""
_WEIGHTS = "model.safetensors"
_NOISE_NUMBERS = 2**24
"""How many random weights are drawn. They are repeated to fill a larger tensor."""
_NOISE_SIGMA = 0.02
"""The standard deviation of the random weights."""

Bits = npt.NDArray[np.uint16]
"""Numbers in bfloat16: the upper half of a float32."""
_ONE = 0x3F80
"""1 in bfloat16."""
_FIRST_LAYER = "model.layers.0."
_LAYER = re.compile(r"(?P<layer>model\.layers\.\d+\.|midlayer\.)(?P<rest>.+)")
"""The name of a tensor of a layer: the layer, and which of its tensors."""


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
            TARGET: Shape(8192, 22016, 256, 64, 12),
            "eagle3": Shape(8192, 8192, 256, 64),
            "draft_model": Shape(1024, 3072, 32, 8, 16),
        },
        "1b": {
            TARGET: Shape(2048, 5504, 64, 16, 24),
            "eagle3": Shape(2048, 5504, 64, 16),
            # Few layers: on a GPU each costs its kernels' launches, however small it is.
            "draft_model": Shape(256, 22016, 32, 8, 4),
        },
        "30m": {
            TARGET: Shape(512, 1376, 16, 4, 11),
            "eagle3": Shape(512, 256, 16, 4),
            "draft_model": Shape(256, 2048, 8, 2),
        },
    }
)
"""The shapes of the target and, by method, of its draft, for each width.

docs/how-to/choose-what-runs.md says what the widths are for.
The hidden size is that of the narrow model times a power of four. A draft head has as many heads of
keys and values as its target, because it shares the blocks of the target's KV cache.
"""


def write_padded_model(source: Path, target: Path, layers: int) -> None:
    """Write a model with identity layers appended.

    Args:
        source: the folder of a dense bfloat16 Llama.
        target: the folder to write to.
        layers: how many layers to append.

    Raises:
        ModelError: the source isn't such a model.
        OSError: the files can't be written.
    """
    config, tensors = _read_model(source)
    try:
        first = count_in(config, "num_hidden_layers")
    except MALFORMED_FILE_ERRORS as error:
        raise _unfit(source, error) from error

    # The added layers have the tensors of the first one, whatever these are called.
    identity_layer = {}
    for name, tensor in tensors.items():
        if name.startswith(_FIRST_LAYER):
            name_in_layer = name.removeprefix(_FIRST_LAYER)
            identity_layer[name_in_layer] = _identity_tensor(name_in_layer, tensor)

    if not identity_layer:
        raise _unfit(source, f"no {_FIRST_LAYER} in its weights")
    for layer in range(first, first + layers):
        for name, tensor in identity_layer.items():
            tensors[f"model.layers.{layer}.{name}"] = tensor
    write_tensors(tensors, target / _WEIGHTS)
    _write_config(source, target, config | {"num_hidden_layers": first + layers})


def _identity_tensor(name: str, template: Bits) -> Bits:
    """Return the tensor of a layer that adds nothing to the residual stream.

    Args:
        name: which of a layer's tensors it is.
        template: the same tensor of another layer, which has its shape.
    """
    # The weights of a norm don't matter, because its output is multiplied by zeros. With ones it
    # only normalizes.
    if "norm" in name:
        return np.full_like(template, _ONE)
    return np.zeros_like(template)


def _unfit(source: Path, fault: object) -> ModelError:
    """Return the error of a model that can't be made larger."""
    return ModelError(
        f"model folder '{source}': can't be made larger, {fault}; needed a dense bfloat16 Llama"
        f" in one {_WEIGHTS}: name another folder, or leave padding_layers and widen out"
    )


def _read_model(source: Path) -> tuple[dict[str, Any], dict[str, Bits]]:
    """Read the configuration of a model folder, and its weights from one file in bfloat16.

    Raises:
        ModelError: it isn't such a folder.
    """
    try:
        config = json.loads(read_regular(source / CONFIG, MIB))
        if not isinstance(config, dict):
            raise TypeError(f"{CONFIG} isn't an object")
        return config, read_tensors(source / _WEIGHTS)
    except (OSError, *MALFORMED_FILE_ERRORS) as error:
        raise _unfit(source, f"{type(error).__name__}: {error}") from error


def count_in(config: Mapping[str, Any], name: str) -> int:
    """Return a number of a model's configuration that counts something.

    Raises:
        LookupError, TypeError, ValueError: It is missing, or isn't an integer from 1 on.
    """
    value = config[name]
    # In Python a boolean is an integer too.
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} is {value}, needed an integer from 1 on")
    return value


# A safetensors file has the header's length in 8 bytes, little-endian, then the header as JSON, and
# then the data (https://huggingface.co/docs/safetensors, "Format"). The library isn't used, because
# it needs torch for bfloat16, and because the written bytes are part of a baseline.
_LENGTH_BYTES = 8


def read_tensors(path: Path) -> dict[str, Bits]:
    """Read the tensors of a file, by name.

    Raises:
        OSError: the file can't be read.
        ValueError, LookupError, TypeError, AttributeError, RecursionError: It isn't of the format,
            or a tensor isn't in bfloat16.
    """
    with open_checked(path) as file:
        content = file.read()
    header_bytes = int.from_bytes(content[:_LENGTH_BYTES], "little")
    start = _LENGTH_BYTES + header_bytes
    header = json.loads(content[_LENGTH_BYTES:start])

    # All entries but this one are tensors.
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        if entry["dtype"] != "BF16":
            raise ValueError(f"{name} is in {entry['dtype']}")
        # The offsets count from the end of the header.
        begin, end = entry["data_offsets"]
        data = content[start + begin : start + end]
        bits = np.frombuffer(data, np.uint16)
        tensors[name] = bits.reshape(entry["shape"])

    return tensors


def write_tensors(tensors: Mapping[str, Bits], path: Path) -> None:
    """Write tensors in bfloat16 to a file.

    Raises:
        OSError: the file can't be written.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + tensor.nbytes
        header[name] = {"dtype": "BF16", "shape": tensor.shape, "data_offsets": (offset, end)}
        offset = end

    encoded = json.dumps(header).encode()

    # Readers map the file into memory, where the data should begin at a multiple of a word.
    encoded += b" " * (-len(encoded) % _LENGTH_BYTES)
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(_LENGTH_BYTES, "little"))
        file.write(encoded)
        for tensor in tensors.values():
            file.write(tensor.tobytes())


def _write_config(source: Path, target: Path, config: Mapping[str, object]) -> None:
    """Write a configuration to `target`, and copy the tokenizer of `source` to it."""
    text = json.dumps(config, indent=2)
    (target / CONFIG).write_text(text)
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axis:
    """The rows or the columns of a widened tensor.

    Attributes:
        length: how many rows or columns there are.
        real: the indices of the narrow tensor's rows or columns, in its order.
        reached: how many rows or columns, from the first on, have values that depend on those of
            the narrow model. For queries this is more than `real` has, because added heads of
            queries share the narrow model's keys and values.
    """

    length: int
    real: npt.NDArray[np.int64]
    reached: int

    @classmethod
    def of_first(cls, length: int, real: int) -> "_Axis":
        """Return an axis whose first indices are the narrow tensor's."""
        return cls(length=length, real=np.arange(real), reached=real)

    def repeated(self, times: int) -> "_Axis":
        """Return the axis of a projection that reads several streams, one after another.

        Only projections that read a single stream use `reached`, so it stays as it is.
        """
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
"""The kinds of a projection's rows and columns."""


def _axes_of(
    config: Mapping[str, Any], narrow: Mapping[str, Bits], shape: Shape
) -> Mapping[str, _Axis]:
    """Return the axes of a narrow model that is widened to a shape, by their kind.

    Raises:
        ValueError, LookupError, TypeError: As in `_check_widenable`.
    """
    _check_widenable(config, narrow, shape)
    head_dim = count_in(config, "head_dim")
    heads = count_in(config, "num_attention_heads")
    group = shape.num_attention_heads // shape.num_key_value_heads
    reached = heads * group * head_dim

    # Several heads of queries share a head of keys. The first head of each such group is the
    # narrow model's.
    rows_by_head = np.arange(reached).reshape(heads, group, head_dim)
    queries = _Axis(
        length=shape.num_attention_heads * head_dim,
        real=rows_by_head[:, 0].reshape(-1),
        reached=reached,
    )

    # The narrow model has as many heads of keys as of queries.
    keys = shape.num_key_value_heads * head_dim
    return {
        "hidden": _Axis.of_first(shape.hidden_size, config["hidden_size"]),
        "intermediate": _Axis.of_first(shape.intermediate_size, config["intermediate_size"]),
        "queries": queries,
        "keys": _Axis.of_first(keys, heads * head_dim),
    }


def _check_widenable(config: Mapping[str, Any], narrow: Mapping[str, Bits], shape: Shape) -> None:
    """Check that a model can be widened to a shape.

    Raises:
        ValueError: it can't.
        LookupError, TypeError: A number of the configuration is missing, or isn't a number.
    """
    growth = {
        name: size / count_in(config, name) for name, size in dataclasses.asdict(shape).items()
    }

    # Norms in bfloat16 are divided by the root of the hidden size's growth. That loses no bit if
    # the root is a power of two.
    powers_of_four = math.log2(growth["hidden_size"]) / 2

    # A matrix is named `….q_proj.weight`; norms have one dimension.
    projections = {name.split(".")[-2] for name, bits in narrow.items() if bits.ndim > 1}
    conditions = (
        min(growth.values()) >= 1,
        powers_of_four.is_integer(),
        config["num_attention_heads"] == config["num_key_value_heads"],
        isinstance(config["rms_norm_eps"], float) and config["rms_norm_eps"] > 0,
        projections <= _AXES.keys(),
    )
    if not all(conditions):
        raise ValueError(
            f"to become {shape}, a model must have as many heads of keys as of queries, no larger"
            " numbers than these, and a hidden size that is this one divided by a power of 4"
        )


def _widened_tensor(
    projection: str, template: Bits, narrow: Bits | None, axes: Mapping[str, _Axis]
) -> Bits:
    """Return a widened tensor.

    Args:
        projection: the projection whose tensor it is, such as `q_proj`.
        template: the narrow tensor whose axes are widened.
        narrow: the narrow tensor whose values the widened one contains; None in a layer that adds
            nothing.
        axes: the axes of the widened model.
    """
    if template.ndim == 1:
        return _widened_norm(narrow, axes["hidden"].length)
    row_axis, column_axis = _AXES[projection]

    # The vocabulary isn't widened.
    rows = axes.get(row_axis) or _Axis.of_first(len(template), len(template))

    # The projection of a draft head may read several streams of the target side by side.
    column = axes[column_axis]
    streams = template.shape[1] // len(column.real)
    columns = column.repeated(streams)

    # `resize` repeats the random numbers until the tensor is full.
    bits = np.resize(_noise(), (rows.length, columns.length))
    if projection == "embed_tokens":
        # The added dimensions of the residual stream begin with zeros.
        bits[:] = 0
    elif projection in {"v_proj", "gate_proj"}:
        # What a layer adds to the stream is multiplied by these, so added rows must give zero.
        is_added = np.ones(rows.length, bool)
        if narrow is not None:
            is_added[rows.real] = False
        bits[is_added] = 0
    elif projection == "fc":
        # Added rows must give zero too. Only their real columns read anything but zeros.
        bits[:, columns.real] = 0
    elif projection in {"o_proj", "down_proj"} and narrow is not None:
        # The columns that the narrow model reaches read its values, so only the narrow tensor may
        # have weights there. All later columns read what `v_proj` and `gate_proj` made zero.
        bits[:, : columns.reached] = 0

    if narrow is not None:
        bits[np.ix_(rows.real, columns.real)] = narrow
    return bits


def _widened_norm(narrow: Bits | None, length: int) -> Bits:
    """Return the weights of a norm over a wider stream, scaled so that its output stays the same.

    Args:
        narrow: the weights of the narrow norm; None in a layer that adds nothing.
        length: the width of the wider stream.
    """
    weights = np.ones(length, np.float32)
    if narrow is not None:
        real = (narrow.astype(np.uint32) << 16).view(np.float32)
        # The mean square becomes this share of what it was, because the added dimensions are zero.
        real_frac = len(real) / length
        weights[: len(real)] = real * math.sqrt(real_frac)
    return _rounded(weights)


def _rounded(numbers: npt.NDArray[np.float32]) -> Bits:
    """Return numbers in bfloat16, rounded towards zero: the upper halves of their bits."""
    upper_halves = numbers.view(np.uint32) >> 16
    return upper_halves.astype(np.uint16)


def write_widened_model(source: Path, shape: Shape, folder: Path) -> None:
    """Write a model in a wider shape, one layer per file, so that only one layer is in memory.

    Args:
        source: the folder of the narrow model.
        shape: the sizes to widen to.
        folder: the folder to write to.

    Raises:
        ModelError: the source can't be widened to that shape.
        OSError: the files can't be written.
    """
    config, narrow = _read_model(source)
    try:
        axes = _axes_of(config, narrow, shape)
        files = list(_names_by_file(narrow, shape))
    except MALFORMED_FILE_ERRORS as error:
        raise _unfit(source, f"{type(error).__name__}: {error}") from error

    weight_map: dict[str, str] = {}
    size_bytes = 0
    for number, names in enumerate(files, start=1):
        # Models in several files have these names, and an index that lists the files.
        file_name = f"model-{number:05}-of-{len(files):05}.safetensors"
        tensors = {}
        for name, template_name in names.items():
            projection = name.split(".")[-2]
            template = narrow[template_name]
            tensors[name] = _widened_tensor(projection, template, narrow.get(name), axes)
        write_tensors(tensors, folder / file_name)
        weight_map |= dict.fromkeys(tensors, file_name)
        size_bytes += sum(tensor.nbytes for tensor in tensors.values())

    index = {"metadata": {"total_size": size_bytes}, "weight_map": weight_map}
    index_text = json.dumps(index, indent=1)
    (folder / f"{_WEIGHTS}.index.json").write_text(index_text)

    # RMSNorm adds epsilon to the mean square. The added zeros multiply the mean square by narrow /
    # wide, so epsilon is multiplied by this factor too.
    epsilon = config["rms_norm_eps"] * config["hidden_size"] / shape.hidden_size
    wide_config = {**config, **dataclasses.asdict(shape), "rms_norm_eps": epsilon}
    _write_config(source, folder, wide_config)


def _names_by_file(narrow: Mapping[str, Bits], shape: Shape) -> Iterator[Mapping[str, str]]:
    """Yield, for each file, the names of its tensors, each with the name of its template.

    Each file has one layer, whose templates are the tensors of the narrow model's first layer. The
    last file has all other tensors.
    """
    matches = {name: _LAYER.fullmatch(name) for name in narrow}
    layer_tensors = {name: match for name, match in matches.items() if match is not None}
    first_layer = min(match["layer"] for match in layer_tensors.values())
    layers = 1

    # The single layer of a draft head has another name, and stays the only one.
    if first_layer.startswith("model."):
        layers = shape.num_hidden_layers
    for layer in range(layers):
        prefix = re.sub(r"\d+", str(layer), first_layer)
        yield {
            prefix + match["rest"]: template_name
            for template_name, match in layer_tensors.items()
            if match["layer"] == first_layer
        }

    yield {name: name for name in narrow if name not in layer_tensors}


@functools.cache
def _noise() -> Bits:
    """Return random weights, the same each time."""
    # The written bytes are part of a baseline, so the seed is fixed.
    random = np.random.default_rng(0)
    numbers = random.normal(scale=_NOISE_SIGMA, size=_NOISE_NUMBERS)
    return _rounded(numbers.astype(np.float32))
