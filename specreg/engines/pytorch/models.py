"""Load models and tokenizers, and refuse those that don't fit together.

The server and the oracle share this module and nothing else.
"""

from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, DynamicCache
from transformers.cache_utils import DynamicLayer

from specreg.core.errors import ModelError, UnsupportedError
from specreg.engines.pytorch.requests import Tokenizer

Model = Any
"""A causal language model of transformers."""
_UNREADABLE = (OSError, ValueError, AttributeError, SafetensorError, StrictDataclassError)
"""What transformers raises for a folder that isn't a model or is a broken one."""
_ERROR_CHARACTERS = 200
"""The length at which an error's text is cut, because transformers adds long advice."""


def default_device() -> str:
    """Return the first GPU, or the CPU if there is none, by PyTorch's name."""
    return "cuda:0" if torch.cuda.is_available() else "cpu"


def num_parameters(name: str) -> int:
    """Count the parameters of a model from its configuration, without loading weights."""
    config = AutoConfig.from_pretrained(name, trust_remote_code=False)
    with torch.device("meta"):
        return int(AutoModelForCausalLM.from_config(config).num_parameters())


def load_model(name: str, dtype: str, *devices: str) -> Model:
    """Load a causal language model of transformers.

    Args:
        name: a folder or a hub id.
        dtype: a number format, or "auto" for that of the weights.
        devices: one device, or several GPUs, over which `accelerate` spreads the layers evenly.

    Raises:
        ModelError: the model can't be loaded, or some of its weights are missing.
        UnsupportedError: its cache can't be rolled back.
    """
    device_map: str | dict[str, str] = {"": devices[0]}
    free_bytes = None
    if len(devices) > 1:
        device_map = "balanced"
        free_bytes = {
            torch.device(device).index: torch.cuda.mem_get_info(device)[0] for device in devices
        }

    try:
        model, loading = AutoModelForCausalLM.from_pretrained(
            name,
            dtype=dtype,
            device_map=device_map,
            max_memory=free_bytes,
            # Otherwise transformers raises a RuntimeError that doesn't name the weights.
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            # Neither a pickle nor a model's own code: both run what a stranger wrote.
            use_safetensors=True,
            trust_remote_code=False,
        )
    except _UNREADABLE as error:
        message = f"model '{name}': can't be loaded, {_in_one_line(error)}; check name and dtype"
        raise ModelError(message) from error

    # transformers fills missing weights with random numbers and goes on.
    mismatched_keys = {key for key, *_ in loading["mismatched_keys"]}
    uninitialized_keys = sorted(mismatched_keys.union(loading["missing_keys"]))
    if uninitialized_keys:
        message = (
            f"model '{name}': {len(uninitialized_keys)} of its weights are missing or of another"
            f" shape than its config.json says, '{uninitialized_keys[0]}' for instance; fetch"
            " weights and configuration of one model"
        )
        raise ModelError(message)

    if any(type(layer) is not DynamicLayer for layer in DynamicCache(config=model.config).layers):
        message = (
            f"model '{name}': its cache can't be rolled back, because it holds something else than"
            " the keys and values of all tokens (a sliding window, a state); choose another model"
        )
        raise UnsupportedError(message)

    return model.eval()


def check_models(target: str, draft: str | None, needed_tokens: int) -> Tokenizer:
    """Check that models can read texts of a length, and that the draft has the target's tokens.

    Returns:
        The target's tokenizer.

    Raises:
        ModelError: a configuration or a tokenizer can't be loaded, a context is too small, or the
            vocabularies differ.
    """
    config = _load_config(target)
    tokenizer = load_tokenizer(target)
    check_context(target, config, needed_tokens)
    if draft is None:
        return tokenizer
    draft_config = _load_config(draft)
    has_same_size = draft_config.vocab_size == config.vocab_size
    if not has_same_size or load_tokenizer(draft).get_vocab() != tokenizer.get_vocab():
        message = (
            f"draft '{draft}': its tokens ({draft_config.vocab_size}) aren't the target's"
            f" ({config.vocab_size}), their number or their texts differ; choose a draft of the"
            " target's family"
        )
        raise ModelError(message)

    check_context(draft, draft_config, needed_tokens)
    return tokenizer


def check_context(name: str, config: object, needed_tokens: int) -> None:
    """Check that a model's context is large enough. A model that states no context passes.

    Raises:
        ModelError: the context is smaller than `needed_tokens`.
    """
    context_tokens = getattr(config, "max_position_embeddings", None)
    if context_tokens is not None and context_tokens < needed_tokens:
        message = (
            f"model '{name}': its context is {context_tokens} tokens, {needed_tokens} are to be"
            " read; lower max_model_len_tokens (--context-tokens) or output_cap_tokens in the tier"
        )
        raise ModelError(message)


def _load_config(name: str) -> Any:  # noqa: ANN401 - transformers has no types
    """Load the configuration of a model's decoder.

    Raises:
        ModelError: it isn't there or can't be read.
    """
    try:
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)
    except _UNREADABLE as error:
        message = f"model '{name}': has no configuration, {_in_one_line(error)}; check its name"
        raise ModelError(message) from error
    return config.get_text_config(decoder=True)


def load_tokenizer(name: str) -> Tokenizer:
    """Load the tokenizer of a model.

    Raises:
        ModelError: it isn't there or can't be read.
    """
    try:
        return AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except _UNREADABLE as error:
        message = f"model '{name}': has no tokenizer, {_in_one_line(error)}; check its name"
        raise ModelError(message) from error


def _in_one_line(error: Exception) -> str:
    """Return the start of an error's message in one line; without a message, the error's type."""
    message = " ".join(str(error).split())[:_ERROR_CHARACTERS].rstrip(".")
    return message or type(error).__name__
