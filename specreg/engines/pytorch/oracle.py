"""The oracle: what a target and its drafter would have said at each place of some texts.

    python -m specreg.engines.pytorch.oracle [DEVICE] < question.json > answer.json

A draft counts as long as all before it were the text, and up to there the drafter has seen the
text: one pass over it tells what would have been proposed at each of its places, as far as that
matters. Runs in the reference engine's environment, on its device.
"""

import itertools
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from specreg.core.errors import ModelError, SpecregError
from specreg.engines.pytorch.eagle3 import Eagle3Head, HeadSize, Model, ObservedTarget
from specreg.engines.pytorch.models import (
    check_context,
    check_draft,
    context_of,
    devices_there,
    load_config,
    load_model,
    load_tokenizer,
)
from specreg.engines.pytorch.options import choose_devices
from specreg.engines.pytorch.oracle_questions import REFUSED, OracleAnswer, Question, Text

Rights = Sequence[Sequence[bool]]
"""By place in a text, whether each draft of a step that begins there is the text."""
Read = Callable[[torch.Tensor], tuple[torch.Tensor, Rights]]
"""A text's ids `[1, tokens]` in; the target's logits `[1, tokens, V]` and the rights out."""


def answer_question(question: Question, device: str) -> OracleAnswer:
    """Answer a question.

    Args:
        question: one text at least.
        device: where to compute, as PyTorch calls it.

    Raises:
        ModelError: a model isn't there, isn't of the architecture that the method needs, or
            doesn't fit the texts or the target.
    """
    longest = max(len(text.ids) for text in question.texts)
    config = load_config(question.target)
    check_context("target", question.target, context_of(config), longest)
    read = _READS.get(question.method, _of_nothing)(question, device, longest)
    accepted, gaps_nats = [], []
    for text in question.texts:
        with torch.inference_mode():
            logits, rights = read(torch.tensor([text.ids], device=device))
            gaps_nats.append(_gap_nats(logits[0], text))
        accepted.append(tuple(map(_leading, rights)))
    return OracleAnswer(accepted=tuple(accepted), gaps_nats=tuple(gaps_nats))


def _gap_nats(logits: torch.Tensor, text: Text) -> float:
    """How much less likely than the target's own choice the answer's least fitting token is."""
    first, end = text.prompt_tokens, text.prompt_tokens + text.output_tokens
    said = logits[first - 1 : end - 1].double()
    chosen = torch.tensor(text.ids[first:end], device=logits.device)
    gaps = said.max(-1).values - said.gather(-1, chosen[:, None])[:, 0]
    return float(gaps.max()) if len(chosen) else 0.0


def _target(question: Question, device: str) -> Model:
    return load_model(question.target, question.dtype, {"": device})


def _of_nothing(question: Question, device: str, longest: int) -> Read:
    del longest
    target = _target(question, device)
    return lambda ids: (target(input_ids=ids).logits, ())


def _of_draft_model(question: Question, device: str, longest: int) -> Read:
    tokenizer = load_tokenizer(question.target)
    check_draft(question.draft, load_config(question.target), tokenizer, longest)
    target = _target(question, device)
    model = load_model(question.draft, question.dtype, {"": device})
    first = question.unseen_tokens

    def read(ids: torch.Tensor) -> tuple[torch.Tensor, Rights]:
        likeliest = model(input_ids=ids[:, first:]).logits.argmax(-1)
        # What it says after a token is its draft for the next place, in whichever step that is.
        hits = [False] * (first + 1)
        hits += (likeliest[0, :-1] == ids[0, first + 1 :]).tolist()
        rights = [hits[place : place + question.draft_tokens] for place in range(len(hits))]
        return target(input_ids=ids).logits, rights

    return read


def _of_head(question: Question, device: str, longest: int) -> Read:
    model = _target(question, device)
    loaded = load_head(question.draft, model, longest)
    target = ObservedTarget(model, loaded.layers)

    def read(ids: torch.Tensor) -> tuple[torch.Tensor, Rights]:
        logits, embeddings, streams = target.observe(ids)
        # A step at a place hangs on the token two before it: its state and the token after it
        # make the first draft.
        anchors = ids.shape[1] - question.draft_tokens - 1
        drafts = loaded.head.unroll(streams[:, :anchors], embeddings[:, 1:], question.draft_tokens)
        by_step = [
            (drafted[0].argmax(-1) == ids[0, 2 + step : 2 + step + anchors]).tolist()
            for step, drafted in enumerate(drafts)
        ]
        return logits, [[], [], *zip(*by_step, strict=True)]

    return read


_READS = {"draft_model": _of_draft_model, "eagle3": _of_head}


def _leading(right: Sequence[bool]) -> int:
    """How many drafts are right before the first that isn't."""
    return sum(itertools.takewhile(bool, right))


def main() -> None:
    """Answer the question in a line of the standard input, in a line of the standard output.

    What others print there goes to the standard error.
    """
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        device, *_ = choose_devices(sys.argv[1:], devices_there())
        answer = answer_question(
            msgspec.json.decode(sys.stdin.buffer.readline(), type=Question), device
        )
    except SpecregError as error:
        print(error, file=sys.stderr)  # noqa: T201 - a program's own words
        raise SystemExit(REFUSED) from error
    with answers:
        answers.write(msgspec.json.encode(answer) + b"\n")


if __name__ == "__main__":
    main()


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
