"""EAGLE-3 heads in folders: a name and the target in, a head that fits it out."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
from safetensors import SafetensorError
from safetensors.torch import load_file

from specreg.core.errors import ModelError
from specreg.engines.pytorch.eagle3 import Eagle3Head, HeadSize, Model
from specreg.engines.pytorch.models import check_context


@dataclass(frozen=True)
class LoadedHead:
    """A head, and the layers of the target after which it listens, as vLLM counts them."""

    head: Eagle3Head
    layers: tuple[int, ...]


def load_head(name: str, target: Model, needed_tokens: int) -> LoadedHead:
    """A head from a folder, where the target is and in its number format.

    Args:
        name: the folder.
        target: whose head it is.
        needed_tokens: the longest text that is to be read.

    Raises:
        ModelError: it isn't there, is built otherwise than `Eagle3Head`, or isn't this target's.
    """
    config = _load_config(name)
    _check_fit(name, config, target.config)
    check_context("head", name, config.max_position_embeddings, needed_tokens)
    head = Eagle3Head(
        HeadSize(
            hidden_channels=config.hidden_size,
            mlp_channels=config.intermediate_size,
            heads=config.num_attention_heads,
            head_channels=config.head_dim,
            vocabulary_tokens=config.vocab_size,
            norm_epsilon=config.rms_norm_eps,
            rope_base=config.rope_parameters.rope_theta,
        )
    )
    _load_weights(name, head)
    head.to(target.device, target.dtype)
    return LoadedHead(head=head.eval(), layers=config.eagle_aux_hidden_state_layer_ids)


class _Rope(msgspec.Struct, frozen=True):
    rope_theta: float
    rope_type: Literal["default"] = "default"


class _Config(msgspec.Struct, frozen=True, kw_only=True):
    """What of a head's configuration says how it is built."""

    model_type: Literal["llama"] = "llama"
    hidden_act: Literal["silu"] = "silu"
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    rope_parameters: _Rope
    eagle_aux_hidden_state_layer_ids: tuple[int, int, int]
    max_position_embeddings: int | None = None
    norm_before_residual: bool = False


def _load_config(name: str) -> _Config:
    path = Path(name) / "config.json"
    try:
        config = msgspec.json.decode(path.read_bytes(), type=_Config)
    except OSError as error:
        message = f"head '{name}': can't be read, {error}; the oracle knows heads in folders alone"
        raise ModelError(message) from error
    except msgspec.DecodeError as error:
        message = (
            f"head '{name}': its config.json isn't one that the oracle can replay, {error}; choose"
            " a head that says all of fixtures/models/tiny/eagle3/config.json, or no oracle"
        )
        raise ModelError(message) from error
    if config.norm_before_residual:
        message = (
            f"head '{name}': adds what is normed (norm_before_residual), which the oracle doesn't"
            " replay; choose a head that doesn't, or no oracle"
        )
        raise ModelError(message)
    return config


def _check_fit(name: str, config: _Config, target: Model) -> None:
    own = target.get_text_config(decoder=True)
    for what, has, needed in (
        ("hidden_size", config.hidden_size, own.hidden_size),
        ("vocab_size", config.vocab_size, own.vocab_size),
    ):
        if has != needed:
            message = f"head '{name}': its {what} is {has}, the target's {needed}"
            raise ModelError(f"{message}; choose a head that was trained for this target")
    layers = config.eagle_aux_hidden_state_layer_ids
    if not all(0 <= one <= own.num_hidden_layers for one in layers):
        message = (
            f"head '{name}': listens after layers {', '.join(map(str, layers))}, the target has"
            f" {own.num_hidden_layers}; choose a head that was trained for this target"
        )
        raise ModelError(message)


def _load_weights(name: str, head: Eagle3Head) -> None:
    try:
        head.load_state_dict(load_file(Path(name) / "model.safetensors"))
    except (OSError, SafetensorError) as error:
        message = f"head '{name}': its model.safetensors can't be read, {error}; fetch it anew"
        raise ModelError(message) from error
    except RuntimeError as error:
        message = (
            f"head '{name}': has other tensors than a Llama head with the target's vocabulary and"
            f" as many keys as queries, {' '.join(str(error).split())[:200]}; the oracle can't"
            " replay it, choose another"
        )
        raise ModelError(message) from error
