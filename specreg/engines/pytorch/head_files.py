"""Load the heads of `heads.py` from their folders, and refuse those that aren't a target's.

A function `build_…` builds a head without its weights, given its configuration, the tensors of its
file, and the target. It drops the tensors that the head doesn't have, and raises ModelError with
what is wrong if the head isn't the target's; `load_head` adds whose fault it is.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from specreg.core.errors import ModelError
from specreg.engines.pytorch import heads
from specreg.engines.pytorch.heads import Head, LayerConfig, MedusaConfig
from specreg.engines.pytorch.models import Model, check_context
from specreg.engines.pytorch.question import Question

Config = TypeVar("Config", bound=LayerConfig | MedusaConfig)
Weights = dict[str, Tensor]
Build = Callable[[Config, Weights, Model], Head]

_ERROR_CHARACTERS = 200
"""The length to which torch's message about tensors that don't fit is cut. It names them all."""


def load_head(
    config_type: type[Config], build: Build[Config], question: Question, target: Model
) -> Head:
    """Load the head of a question from its folder, to the target's device and number format.

    Raises:
        ModelError: it isn't there, isn't built as the heads of `heads.py`, isn't this target's, or
            can't read the texts.
    """
    name = question.draft or question.target
    config, weights = _read_files(name, config_type)
    try:
        _check_sizes(config, target)
        head = build(config, weights, target)
        _fill(head, weights)
    except ModelError as error:
        advice = "choose a head of this target, or run without the oracle"
        raise ModelError(f"head '{name}': {error}; {advice}") from error

    longest_tokens = max(len(text.ids) for text in question.texts)
    check_context(name, config, longest_tokens)
    head.to(target.device, target.dtype).eval()
    return head


def _read_files(name: str, config_type: type[Config]) -> tuple[Config, Weights]:
    """Read the configuration and the tensors of a head's folder.

    Raises:
        ModelError: they aren't there or can't be read.
    """
    folder = Path(name)
    try:
        raw_config = (folder / "config.json").read_bytes()
        config = msgspec.json.decode(raw_config, type=config_type)
        return config, load_file(folder / "model.safetensors")
    except (OSError, msgspec.DecodeError, SafetensorError) as error:
        message = (
            f"head '{name}': can't be read by the oracle, {error}; choose a folder like those of"
            " fixtures/models/tiny, or run without the oracle"
        )
        raise ModelError(message) from error


def _check_sizes(config: LayerConfig | MedusaConfig, target: Model) -> None:
    """Check the sizes of a head. It multiplies the target's states, so they must be the target's.

    Raises:
        ModelError: they aren't.
    """
    target_config = target.config.get_text_config(decoder=True)
    sizes = (config.hidden_size, config.vocab_size)
    target_sizes = (target_config.hidden_size, target_config.vocab_size)
    if sizes != target_sizes:
        fault = f"its hidden and vocabulary sizes, {sizes}, aren't the target's, {target_sizes}"
        raise ModelError(fault)


def _fill(head: Head, weights: Weights) -> None:
    """Fill a head with its weights.

    Raises:
        ModelError: they aren't the head's.
    """
    # The tensors may have other names in a checkpoint than in the module.
    module_names = {head.checkpoint_name(name): name for name in head.state_dict()}
    renamed = {module_names.get(key, key): tensor for key, tensor in weights.items()}
    try:
        head.load_state_dict(renamed)
    except RuntimeError as error:
        fault = "its tensors don't fit a head of this target with a key head for each query head:"
        details = " ".join(str(error).split())[:_ERROR_CHARACTERS]
        raise ModelError(f"{fault} {details}") from error


def build_eagle(config: LayerConfig, weights: Weights, _: Model) -> Head:
    """Build an EAGLE head."""
    # SGLang's class has a bias, which is random if a file has none. So a file may have zeros.
    if "fc.bias" in weights and not weights["fc.bias"].any():
        del weights["fc.bias"]
    return heads.EagleHead(config)


def build_eagle3(config: heads.Eagle3Config, _: Weights, target: Model) -> Head:
    """Build an EAGLE-3 head that drafts one token after another."""
    _check_eagle3(config, target)
    return heads.Eagle3Head(config)


def build_p_eagle(config: heads.ParallelEagle3Config, _: Weights, target: Model) -> Head:
    """Build an EAGLE-3 head that drafts all tokens of a step at once."""
    _check_eagle3(config, target)
    if not 0 <= config.ptd_token_id < config.vocab_size:
        raise ModelError("its mask isn't among the target's tokens (ptd_token_id)")
    return heads.ParallelEagle3Head(config, target.model.embed_tokens.weight)


def _check_eagle3(config: heads.Eagle3Config, target: Model) -> None:
    """Check that an EAGLE-3 head is this target's, and built as the heads of `heads.py`."""
    if max(config.eagle_aux_hidden_state_layer_ids) > target.config.num_hidden_layers:
        raise ModelError("it reads layers that the target doesn't have")
    if config.norm_before_residual:
        raise ModelError("it has norm_before_residual, which the oracle doesn't compute")


def build_medusa(config: MedusaConfig, weights: Weights, target: Model) -> Head:
    """Build the heads of Medusa."""
    # The heads use the target's output matrix, so a head trained with another one can't run.
    target_output = target.lm_head.weight.cpu()
    output = weights.pop(heads.MEDUSA_OUTPUT, None)
    if output is None or not torch.equal(output.to(target_output.dtype), target_output):
        raise ModelError("its output matrix isn't the target's")
    return heads.MedusaHead(config.hidden_size, config.num_heads)


def build_mtp(config: LayerConfig, weights: Weights, _: Model) -> Head:
    """Build the layer that is in the target's own file, beside the target's weights."""
    targets_keys = [key for key in weights if not key.startswith(heads.MTP_LAYER)]
    for key in targets_keys:
        del weights[key]
    return heads.MtpHead(config)


def build_dflash(config: heads.DFlashConfig, _: Weights, target: Model) -> Head:
    """Build a DFlash head."""
    block = config.dflash_config
    has_layers = max(block.target_layer_ids) < target.config.num_hidden_layers
    if not has_layers or block.mask_token_id >= config.vocab_size:
        raise ModelError("the target doesn't have its mask or the layers that it reads")
    return heads.DFlashHead(config, target.model.embed_tokens.weight)
