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
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from specreg.core.errors import ModelError, SpecregError
from specreg.engines.pytorch import heads
from specreg.engines.pytorch.heads import Head, LayerConfig, MedusaConfig, Model
from specreg.engines.pytorch.models import check_context, check_models, default_device, load_model
from specreg.engines.pytorch.requests import OracleAnswer, Question, Text

DraftOn = Callable[[Tensor, int], Tensor]
"""Texts' ids `[rows, tokens]`, and how many of their last are drafts, in; the drafter's logits for
the next token `[rows, V]` out."""
Read = Callable[[Text, Tensor], tuple[Tensor, tuple[int, ...]]]
"""A text and its ids `[1, tokens]` in; the target's logits `[1, tokens, V]` and, by place, how many
drafts of a step that begins there are right, out."""


def answer_question(question: Question, device: str) -> OracleAnswer:
    """Answer a question on a device, as PyTorch calls it.

    Raises:
        ModelError: a model isn't there, isn't of the architecture that the method needs, or
            doesn't fit the texts or the target.
    """
    longest = max(len(text.ids) for text in question.texts)
    method = question.method.removesuffix("_tree")
    # A head has the target's tokens.
    check_models(question.target, question.draft if method == "draft_model" else None, longest)
    target = load_model(question.target, question.dtype, device)
    readers = {
        "draft_model": _read_draft_model,
        **dict.fromkeys(("eagle", "eagle3", "medusa", "mtp", "dflash"), _read_head),
    }
    read = readers[method](question, target) if method in readers else None
    accepted, gaps_nats = [], []
    for text in question.texts:
        with torch.inference_mode():
            ids = torch.tensor([text.ids], device=device)
            logits, right = read(text, ids) if read else (target(input_ids=ids).logits, ())
            accepted.append(right)
            gaps_nats.append(_gap_nats(logits[0], text))
    return OracleAnswer(accepted=tuple(accepted), gaps_nats=tuple(gaps_nats))


def _gap_nats(logits: Tensor, text: Text) -> float:
    """How much less likely than the target's own choice the answer's least fitting token is."""
    first, end = text.prompt_tokens, text.prompt_tokens + text.output_tokens
    said = logits[first - 1 : end - 1].double()
    chosen = torch.tensor(text.ids[first:end], device=logits.device)
    gaps = said.max(-1).values - said.gather(-1, chosen[:, None])[:, 0]
    return float(gaps.max()) if len(chosen) else 0.0


def _read_draft_model(question: Question, target: Model) -> Read:
    draft = load_model(question.draft, question.dtype, str(target.device))
    first = question.unseen_tokens

    def draft_on(grown: Tensor, _: int) -> Tensor:
        return draft(input_ids=grown[:, first:]).logits[:, -1]

    def read(text: Text, ids: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        logits = target(input_ids=ids).logits
        if question.branches:
            return logits, _walk_trees(draft_on, ids, text, question)
        likeliest = draft(input_ids=ids[:, first:]).logits.argmax(-1)
        # What it says after a token is its draft for the next place, in whichever step that is.
        hits = [False] * (first + 1)
        hits += (likeliest[0, :-1] == ids[0, first + 1 :]).tolist()
        steps = (hits[place : place + question.draft_tokens] for place in range(len(hits)))
        return logits, tuple(map(_accepted, steps))

    return read


def _read_head(question: Question, target: Model) -> Read:
    head = load_head(question, target)
    output = torch.nn.Identity() if head.has_output else target.lm_head
    observed = heads.ObservedTarget(target, head.layers_read or (target.config.num_hidden_layers,))

    def read(text: Text, ids: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        logits, embeddings, hidden = observed.observe(ids)
        if head.normed or question.normed:
            hidden = target.model.norm(hidden)

        def draft_on(grown: Tensor, drafts: int) -> Tensor:
            states = hidden[:, : grown.shape[1] - drafts - 1].expand(len(grown), -1, -1)
            after = target.model.embed_tokens(grown[:, 1:])
            return output(head.unroll(states, after, drafts + 1)[-1][:, -1])

        if question.branches:
            return logits, _walk_trees(draft_on, ids, text, question)
        anchors = ids.shape[1] - question.draft_tokens - 1
        drafts = head.unroll(hidden[:, :anchors], embeddings[:, 1:], question.draft_tokens)
        # A step at a place hangs on the token two before it: its state and the token after it make
        # the first draft.
        hits = [
            (output(drafted)[0].argmax(-1) == ids[0, 2 + step : 2 + step + anchors]).tolist()
            for step, drafted in enumerate(drafts)
        ]
        return logits, (0, 0, *map(_accepted, zip(*hits, strict=True)))

    return read


def _accepted(hits: Sequence[bool]) -> int:
    """How many drafts of a step are the text before the first that isn't."""
    return sum(itertools.takewhile(bool, hits))


def _walk_trees(draft_on: DraftOn, ids: Tensor, text: Text, question: Question) -> tuple[int, ...]:
    """By place, how far the tree of an answer's step goes along the text; 0 between the steps."""
    accepted, place = [0] * len(text.ids), text.prompt_tokens + 1
    while place < text.prompt_tokens + text.output_tokens:
        drafted = _draft_tree(draft_on, ids[:, :place], question)
        coming = text.ids[place : place + question.draft_tokens]
        accepted[place] = sum(coming[:depth] in drafted for depth in range(1, len(coming) + 1))
        place += accepted[place] + 1
    return tuple(accepted)


def _draft_tree(draft_on: DraftOn, before: Tensor, question: Question) -> set[tuple[int, ...]]:
    """Return a tree's nodes, each as the drafts that lead to it, as SGLang chooses them."""
    live = seen = before[:, :0]
    scores = torch.ones(1, device=before.device)
    candidates: list[tuple[float, tuple[int, ...]]] = []
    for depth in range(question.draft_tokens):
        # SGLang 0.5.23 doesn't move keys and values when branches change places, so a draft model
        # reads what stood in its place before. A head is handed its branch's state, and reads that.
        read = seen if question.method == "draft_model_tree" else live
        grown = torch.cat([before.expand(len(live), -1), read], 1)
        found = draft_on(grown, depth).float().softmax(-1).topk(question.branches)
        scores = (scores[:, None] * found.values).flatten()
        parents = live.repeat_interleave(question.branches, 0)
        live = torch.cat([parents, found.indices.reshape(-1, 1)], 1)
        candidates += zip(scores.tolist(), map(tuple, live.tolist()), strict=True)
        best = scores.topk(question.branches).indices
        live, scores = live[best], scores[best]
        seen = torch.cat([seen.expand(len(live), -1), live[:, -1:]], 1)
    return {node for _, node in sorted(candidates, reverse=True)[: question.drafted_tokens]}


def load_head(question: Question, target: Model) -> Head:
    """Load a target's head from its folder, where the target is and in its number format.

    Raises:
        ModelError: it isn't there, is built otherwise than ours, or isn't this target's.
    """
    name, layers = question.draft or question.target, target.config.num_hidden_layers
    config, weights = _load_checkpoint(name, question, target)
    head: Head
    if isinstance(config, heads.HeadConfig):
        if max(config.eagle_aux_hidden_state_layer_ids) > layers or config.norm_before_residual:
            what = "its layers aren't the target's, or it adds what is normed"
            raise _unfit(name, f"{what} (norm_before_residual)")
        head = heads.Eagle3Head(config)
    elif isinstance(config, MedusaConfig):
        head = heads.MedusaHead(config.hidden_size, config.num_heads)
        output, own = weights.pop(heads.MEDUSA_OUTPUT, None), target.lm_head.weight.cpu()
        if output is None or not torch.equal(output.to(own.dtype), own):
            raise _unfit(name, "its output matrix isn't the target's")
    elif isinstance(config, heads.DFlashConfig):
        read = config.dflash_config
        if max(read.target_layer_ids) >= layers or read.mask_token_id >= config.vocab_size:
            raise _unfit(name, "its layers or its mask aren't the target's")
        head = heads.DFlashHead(config, target.model.embed_tokens.weight)
    elif question.method == "mtp":
        head = heads.MtpHead(config)
        weights = {key: one for key, one in weights.items() if key.startswith(heads.MTP_LAYER)}
    else:
        head = heads.EagleHead(config)
        if "fc.bias" in weights and not weights["fc.bias"].any():
            del weights["fc.bias"]  # SGLang's class has one, random where a file has none
    ours = {head.checkpoint_name(key): key for key in head.state_dict()}
    try:
        head.load_state_dict({ours.get(key, key): one for key, one in weights.items()})
    except RuntimeError as error:
        what = "has other tensors than one of this target with as many keys as queries,"
        raise _unfit(name, f"{what} {' '.join(str(error).split())[:200]}") from error
    head.to(target.device, target.dtype).eval()
    return head


def _load_checkpoint(
    name: str, question: Question, target: Model
) -> tuple[LayerConfig | MedusaConfig, dict[str, Tensor]]:
    """Load the configuration and the tensors of a head's folder, which must be of the target."""
    kinds: dict[str, type[LayerConfig | MedusaConfig]]
    kinds = {"eagle3": heads.HeadConfig, "medusa": MedusaConfig, "dflash": heads.DFlashConfig}
    kind = kinds.get(question.method.removesuffix("_tree"), LayerConfig)
    try:
        config = msgspec.json.decode((Path(name) / "config.json").read_bytes(), type=kind)
        weights = load_file(Path(name) / "model.safetensors")
    except (OSError, msgspec.DecodeError, SafetensorError) as error:
        message = (
            f"head '{name}': can't be replayed, {error}; choose a folder like those of"
            " fixtures/models/tiny, or no oracle"
        )
        raise ModelError(message) from error
    own = target.config.get_text_config(decoder=True)
    sizes, needed = (config.hidden_size, config.vocab_size), (own.hidden_size, own.vocab_size)
    if sizes != needed:
        what = f"its hidden and vocabulary sizes, {sizes}, aren't the target's, {needed}"
        raise _unfit(name, what)
    check_context(name, config, max(len(text.ids) for text in question.texts))
    return config, weights


def _unfit(name: str, what: str) -> ModelError:
    """The error of a head that isn't this target's."""
    return ModelError(f"head '{name}': {what}; choose one of this target, or no oracle")


def main() -> None:
    """Answer the question in a line of the standard input, in a line of the standard output."""
    # What others print there goes to the standard error.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    device = sys.argv[1] if len(sys.argv) > 1 else default_device()
    question = msgspec.json.decode(sys.stdin.buffer.readline(), type=Question)
    try:
        answer = answer_question(question, device)
    except SpecregError as error:
        answer = OracleAnswer(refusal=str(error))
    with answers:
        answers.write(msgspec.json.encode(answer) + b"\n")


if __name__ == "__main__":
    main()
