"""Load the target, the draft and the tokenizer, and refuse those that don't fit together."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, DynamicCache
from transformers.cache_utils import DynamicLayer

from specreg.core.errors import ModelError, UnsupportedError
from specreg.engines.pytorch.__main__ import place
from specreg.engines.pytorch.decoding import (
    AdaptiveDrafter,
    Drafter,
    LookupDrafter,
    Model,
    ModelDrafter,
    Models,
)
from specreg.engines.pytorch.requests import Tokenizer
from specreg.engines.pytorch.speculation import NGramStore

_UNREADABLE = (OSError, ValueError, AttributeError, SafetensorError, StrictDataclassError)


def load_models(options: argparse.Namespace) -> Models:
    """Load the models of a command line, ready to decode; errors as of what it calls."""
    name = options.draft_model
    tokenizer = check_models(options.model, name, options.context_tokens)
    devices = draft_devices = options.device or (default_device(),)
    if name is not None:
        devices, draft_devices = place(
            devices,
            options.placement,
            options.gpu_ratio,
            lambda: (parameters(options.model), parameters(name)),
        )
    target = load_model(options.model, options.dtype, *devices)
    # The generation config may name several.
    named = target.generation_config.eos_token_id
    stop_ids: Sequence[int | None] = named if isinstance(named, list) else (named,)
    draft = None if name is None else load_model(name, options.dtype, *draft_devices)
    store = NGramStore()  # of the server: each batch adds to it
    drafters: Mapping[str, Callable[[int], Drafter]] = {
        "none": lambda _: Drafter(),
        "ngram": lambda _: LookupDrafter(),
        "ngram_adaptive": lambda rows: AdaptiveDrafter(store, rows),
        "draft_model": lambda rows: ModelDrafter(draft, rows),
    }
    return Models(
        target=target,
        tokenizer=tokenizer,
        new_drafter=drafters[options.method],
        draft_tokens=0 if options.method == "none" else options.draft_tokens,
        stop_ids=frozenset(one for one in (tokenizer.eos_token_id, *stop_ids) if one is not None),
        context_tokens=options.context_tokens,
    )


def default_device() -> str:
    """The first GPU, or else the CPU, as PyTorch calls it."""
    return "cuda:0" if torch.cuda.is_available() else "cpu"


def parameters(name: str) -> int:
    """How many parameters a model has, by its configuration."""
    config = AutoConfig.from_pretrained(name, trust_remote_code=False)
    with torch.device("meta"):
        return int(AutoModelForCausalLM.from_config(config).num_parameters())


def load_model(name: str, dtype: str, *devices: str) -> Model:
    """Load a causal language model of transformers, in a number format or, by "auto", its own.

    Its layers are spread over several GPUs as `accelerate` balances them.

    Raises:
        ModelError: it can't be loaded.
        UnsupportedError: its cache can't be rolled back.
    """
    try:
        model, loading = AutoModelForCausalLM.from_pretrained(
            name,
            dtype=dtype,
            device_map="balanced" if len(devices) > 1 else {"": devices[0]},
            max_memory={torch.device(one).index: torch.cuda.mem_get_info(one)[0] for one in devices}
            if len(devices) > 1
            else None,
            # Else it says in a RuntimeError that it has said elsewhere which.
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            # Neither a pickle nor a model's own code: both run what a stranger wrote.
            use_safetensors=True,
            trust_remote_code=False,
        )
    except _UNREADABLE as error:
        message = f"model '{name}': can't be loaded, {_shortly(error)}; check name and dtype"
        raise ModelError(message) from error
    random = sorted({*loading["missing_keys"], *(key for key, *_ in loading["mismatched_keys"])})
    if random:
        message = (
            f"model '{name}': {len(random)} of its weights are missing or of another shape than"
            f" its config.json says, '{random[0]}' for instance; fetch weights and"
            " configuration of one model"
        )
        raise ModelError(message)
    if any(type(layer) is not DynamicLayer for layer in DynamicCache(config=model.config).layers):
        message = (
            f"model '{name}': keeps something else than the keys and values of all tokens (a"
            " sliding window, a state), which can't be rolled back; choose another model"
        )
        raise UnsupportedError(message)
    return model.eval()


def check_models(target: str, draft: str | None, needed_tokens: int) -> Tokenizer:
    """Check that models can read so long a text, and that a draft has the target's tokens.

    Returns:
        The target's tokenizer.

    Raises:
        ModelError: they can't, or it hasn't.
    """
    config, tokenizer = _load_part(AutoConfig, target), _load_part(AutoTokenizer, target)
    check_context(target, config, needed_tokens)
    if draft is not None:
        own = _load_part(AutoConfig, draft)
        if own.vocab_size != config.vocab_size or (
            _load_part(AutoTokenizer, draft).get_vocab() != tokenizer.get_vocab()
        ):
            message = (
                f"draft '{draft}': its tokens ({own.vocab_size}) aren't the target's"
                f" ({config.vocab_size}), by number or text; choose a draft of the target's family"
            )
            raise ModelError(message)
        check_context(draft, own, needed_tokens)
    return tokenizer


def check_context(name: str, config: object, needed_tokens: int) -> None:
    """Raise a ModelError where a model says that it can't read so long a text."""
    has_tokens = getattr(config, "max_position_embeddings", None)
    if has_tokens is not None and has_tokens < needed_tokens:
        message = (
            f"model '{name}': its context is {has_tokens} tokens, {needed_tokens} are to be read;"
            " lower max_model_len_tokens (--context-tokens) or output_cap_tokens in the matrix"
        )
        raise ModelError(message)


def _load_part(kind: Any, name: str) -> Any:  # noqa: ANN401 - transformers has no types
    """Load what a model's configuration says of its decoder, or its tokenizer."""
    try:
        part = kind.from_pretrained(name, trust_remote_code=False)
    except _UNREADABLE as error:
        what = "configuration" if kind is AutoConfig else "tokenizer"
        message = f"model '{name}': has no {what}, {_shortly(error)}; check its name"
        raise ModelError(message) from error
    return part.get_text_config(decoder=True) if kind is AutoConfig else part


def _shortly(error: Exception) -> str:
    """Its words in a line, without what transformers advises at length."""
    return " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__
