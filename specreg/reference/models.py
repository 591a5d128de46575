"""The models: names and devices in, what decodes out; what doesn't fit together is refused."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, DynamicCache
from transformers.cache_utils import DynamicLayer

from specreg.errors import ModelError, UnsupportedError
from specreg.lookup import LookupRule
from specreg.reference.asking import Tokenizer
from specreg.reference.decoding import Models
from specreg.reference.drafting import LookupDrafter, ModelDrafter, NewDrafter, NoDrafter
from specreg.reference.options import Options
from specreg.reference.placement import Placement, choose_devices, place
from specreg.reference.reading import Model

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
    config = _config(options.model)
    check_context("target", options.model, config, options.context_tokens)
    tokenizer = _tokenizer(options.model)
    if options.draft_model is not None:
        check_draft(options, config, tokenizer)
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
        model = AutoModelForCausalLM.from_pretrained(name, dtype=dtype, device_map=dict(devices))
    except (OSError, ValueError) as error:
        message = f"model '{name}': can't be loaded, {_first_line(error)}; check name and --dtype"
        raise ModelError(message) from error
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


def check_context(part: str, name: str, config: Config, needed_tokens: int) -> None:
    """Silent where a model can read as long a text as is to be served.

    Raises:
        ModelError: it can't.
    """
    has = getattr(config.get_text_config(decoder=True), "max_position_embeddings", needed_tokens)
    if has < needed_tokens:
        message = (
            f"{part} '{name}': its context is {has} tokens, {needed_tokens} are to be served;"
            " lower max_model_len_tokens in the matrix (--context-tokens)"
        )
        raise ModelError(message)


def check_draft(options: Options, target: Config, tokenizer: Tokenizer) -> None:
    """Silent where a draft speaks the target's tokens and can read as far.

    Raises:
        ModelError: it doesn't.
    """
    name = options.draft_model or ""
    config = _config(name)
    sizes = [one.get_text_config(decoder=True).vocab_size for one in (config, target)]
    if sizes[0] != sizes[1]:
        message = (
            f"draft '{name}': its vocabulary has {sizes[0]} entries, the target's"
            f" {sizes[1]}; choose a draft of the target's family"
        )
        raise ModelError(message)
    ours, theirs = _tokenizer(name).get_vocab(), tokenizer.get_vocab()
    differing = sorted(
        token for token in ours.keys() | theirs if ours.get(token) != theirs.get(token)
    )
    if differing:
        message = (
            f"draft '{name}': its tokenizer isn't the target's, {len(differing)} tokens differ,"
            f" {differing[0]!r} for instance; choose a draft of the target's family"
        )
        raise ModelError(message)
    check_context("draft", name, config, options.context_tokens)


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


def _config(name: str) -> Config:
    try:
        return AutoConfig.from_pretrained(name)
    except (OSError, ValueError) as error:
        message = f"model '{name}': has no configuration, {_first_line(error)}; check the name"
        raise ModelError(message) from error


def _tokenizer(name: str) -> Tokenizer:
    try:
        return AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        message = f"model '{name}': has no tokenizer, {_first_line(error)}; check the folder"
        raise ModelError(message) from error


def _stop_ids(model: Model, tokenizer: Tokenizer) -> frozenset[int]:
    """What the tokenizer or the generation config says ends a text; the latter may name several."""
    named = model.generation_config.eos_token_id
    several: Sequence[int | None] = named if isinstance(named, list) else (named,)
    return frozenset(one for one in (tokenizer.eos_token_id, *several) if one is not None)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
