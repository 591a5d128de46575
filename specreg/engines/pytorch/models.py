"""Load the target, the draft and the tokenizer, and refuse those that don't fit together."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, DynamicCache
from transformers.cache_utils import DynamicLayer

from specreg.core.errors import ModelError, UnsupportedError
from specreg.engines.pytorch.decoding import (
    LookupDrafter,
    Model,
    ModelDrafter,
    Models,
    NewDrafter,
    NoDrafter,
)
from specreg.engines.pytorch.options import Options, Placement, choose_devices, place
from specreg.engines.pytorch.requests import Tokenizer
from specreg.engines.pytorch.speculation import LookupRule

_MOST_CHARACTERS = 200
Config = Any
"""A model's configuration, of transformers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """`models`: what decodes; `tokenizer`: the target's, of transformers."""

    models: Models
    tokenizer: Tokenizer


def load_models(options: Options) -> Loaded:
    """The models of a command line, ready to decode.

    Raises:
        ModelError: a model isn't there, or draft and target don't fit together.
        UnsupportedError: the devices that were asked for aren't there, or the model's cache can't
            be rolled back.
    """
    placement = place(options.placement, choose_devices(options.devices, devices_there()))
    config = load_config(options.model)
    check_context("target", options.model, context_of(config), options.context_tokens)
    tokenizer = load_tokenizer(options.model)
    if options.draft_model is not None:
        check_draft(options.draft_model, config, tokenizer, options.context_tokens)
    target = load_model(options.model, options.dtype, device_map(config, placement))
    return Loaded(
        tokenizer=tokenizer,
        models=Models(
            target=target,
            new_drafter=_new_drafter(options, placement),
            stop_ids=_stop_ids(target, tokenizer),
            context_tokens=options.context_tokens,
        ),
    )


def devices_there() -> tuple[str, ...]:
    """This machine's devices, as PyTorch calls them; the CPU is the last."""
    return (*(f"cuda:{index}" for index in range(torch.cuda.device_count())), "cpu")


def load_model(name: str, dtype: str, devices: Mapping[str, str]) -> Model:
    """A causal language model of transformers.

    Args:
        name: a folder or hub id.
        dtype: the weights' number format, or "auto" for their own.
        devices: where its parts go; an empty name stands for all.

    Raises:
        ModelError: it can't be loaded.
        UnsupportedError: its cache can't be rolled back, or a part of it has no device.
    """
    try:
        model, told = AutoModelForCausalLM.from_pretrained(
            name,
            dtype=dtype,
            device_map=dict(devices),
            # Else it says in a RuntimeError that it has said elsewhere which.
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            # Neither a pickle nor a model's own code: both run what a stranger wrote.
            use_safetensors=True,
            trust_remote_code=False,
        )
    except (OSError, ValueError, AttributeError, SafetensorError, StrictDataclassError) as error:
        message = f"model '{name}': can't be loaded, {_shortly(error)}; check name and dtype"
        raise ModelError(message) from error
    # They would be random numbers.
    made_up = sorted({*told["missing_keys"], *(key for key, *_ in told["mismatched_keys"])})
    if made_up:
        message = (
            f"model '{name}': {len(made_up)} of its weights are missing or of another shape than"
            f" its config.json says, '{made_up[0]}' for instance; fetch weights and"
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


def device_map(config: Config, placement: Placement) -> Mapping[str, str]:
    """Where the parts of the target go, in the form that transformers takes."""
    if len(placement.target) == 1:
        return {"": placement.target[0]}
    first, second = placement.target
    layers = config.get_text_config(decoder=True).num_hidden_layers
    on_first = round(layers * placement.first_frac)
    return {
        "model.embed_tokens": first,
        "model.rotary_emb": first,
        # With the embedding, whose weights it may share.
        "lm_head": first,
        "model.norm": second,
        **{f"model.layers.{layer}": first for layer in range(on_first)},
        **{f"model.layers.{layer}": second for layer in range(on_first, layers)},
    }


def context_of(config: Config) -> int | None:
    """How long a text a model can read, in tokens; None where it doesn't say."""
    return getattr(config.get_text_config(decoder=True), "max_position_embeddings", None)


def check_context(part: str, name: str, has_tokens: int | None, needed_tokens: int) -> None:
    """Silent where a model can read as long a text as it is to read.

    Raises:
        ModelError: it can't.
    """
    if has_tokens is not None and has_tokens < needed_tokens:
        message = (
            f"{part} '{name}': its context is {has_tokens} tokens, {needed_tokens} are to be read;"
            " lower max_model_len_tokens (--context-tokens) or output_cap_tokens in the matrix"
        )
        raise ModelError(message)


def check_draft(name: str, target: Config, tokenizer: Tokenizer, needed_tokens: int) -> None:
    """Silent where a draft speaks the target's tokens and can read as far.

    Args:
        name: the draft's, a folder or hub id.
        target: the target's configuration.
        tokenizer: the target's.
        needed_tokens: the longest text that is to be read.

    Raises:
        ModelError: it doesn't.
    """
    config = load_config(name)
    sizes = [one.get_text_config(decoder=True).vocab_size for one in (config, target)]
    if sizes[0] != sizes[1]:
        message = (
            f"draft '{name}': its vocabulary has {sizes[0]} entries, the target's"
            f" {sizes[1]}; choose a draft of the target's family"
        )
        raise ModelError(message)
    ours, theirs = load_tokenizer(name).get_vocab(), tokenizer.get_vocab()
    differing = sorted(
        token for token in ours.keys() | theirs if ours.get(token) != theirs.get(token)
    )
    if differing:
        message = (
            f"draft '{name}': its tokenizer isn't the target's, {len(differing)} tokens differ,"
            f" {differing[0]!r} for instance; choose a draft of the target's family"
        )
        raise ModelError(message)
    check_context("draft", name, context_of(config), needed_tokens)


def _new_drafter(options: Options, placement: Placement) -> NewDrafter:
    if options.method == "none":
        return lambda _: NoDrafter()
    if options.method == "ngram":
        rule = LookupRule(
            longest_tokens=options.longest_tokens, shortest_tokens=options.shortest_tokens
        )
        return lambda _: LookupDrafter(rule, options.draft_tokens)
    model = load_model(options.draft_model or "", options.dtype, {"": placement.draft})
    return functools.partial(ModelDrafter, model, options.draft_tokens)


def load_config(name: str) -> Config:
    """A model's configuration.

    Raises:
        ModelError: there is none.
    """
    try:
        return AutoConfig.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError, StrictDataclassError) as error:
        message = f"model '{name}': has no configuration, {_shortly(error)}; check its name"
        raise ModelError(message) from error


def load_tokenizer(name: str) -> Tokenizer:
    """A model's tokenizer.

    Raises:
        ModelError: there is none.
    """
    try:
        return AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError) as error:
        message = f"model '{name}': has no tokenizer, {_shortly(error)}; check the folder"
        raise ModelError(message) from error


def _stop_ids(model: Model, tokenizer: Tokenizer) -> frozenset[int]:
    """What the tokenizer or the generation config says ends a text; the latter may name several."""
    named = model.generation_config.eos_token_id
    several: Sequence[int | None] = named if isinstance(named, list) else (named,)
    return frozenset(one for one in (tokenizer.eos_token_id, *several) if one is not None)


def _shortly(error: Exception) -> str:
    """Its words in a line, without what transformers advises at length."""
    return " ".join(str(error).split())[:_MOST_CHARACTERS].rstrip(".") or type(error).__name__
