"""The oracle: compute the choices of a target and of its drafter at each position of texts.

    python -m specreg.engines.pytorch.oracle [DEVICE] < question.json > answer.json

A draft can only be accepted if all drafts before it in its step are equal to the text. Then the
drafter has read nothing but the text. So one pass of the drafter over the text computes every draft
that can be accepted. Trees are drafted step by step, because their branches aren't in the text.
The oracle runs in the environment of the reference engine.
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
from specreg.engines.pytorch.heads import Head, LayerConfig, MedusaConfig
from specreg.engines.pytorch.models import (
    Model,
    check_context,
    check_models,
    default_device,
    load_model,
    load_tokenizer,
)
from specreg.engines.pytorch.parallel import draft_in_parallel
from specreg.engines.pytorch.question import OracleAnswer, Question, Text
from specreg.engines.pytorch.vocabularies import SharedVocabulary

DraftNext = Callable[[Tensor, int], Tensor]
"""Takes the ids of texts, `[rows, tokens]`, and the number of drafts at their end. Returns the
drafter's logits for the next token, `[rows, V]`, where V is the size of the vocabulary."""
Read = Callable[[Text, Tensor], tuple[Tensor, tuple[int, ...]]]
"""Takes a text and its ids, `[1, tokens]`. Returns the target's logits, `[1, tokens, V]`, and the
number of right drafts of a step that begins at each position."""

_HEADS = frozenset({"eagle", "eagle3", "p_eagle", "medusa", "mtp", "dflash"})
_DRAFT_MODELS = frozenset({"draft_model", "pard"})
_ERROR_CHARACTERS = 200
"""The length to which torch's message about tensors that don't fit is cut. It names them all."""


def answer_question(question: Question, device: str) -> OracleAnswer:
    """Run the models of a question on its texts.

    Args:
        question: The models and the texts.
        device: The device by PyTorch's name.

    Raises:
        ModelError: A model isn't there, isn't of the architecture that the method needs, or
            doesn't fit the texts or the target.
        UnsupportedError: A model's cache can't be rolled back.
    """
    # Check and load the models.
    max_tokens = max(len(text.ids) for text in question.texts)
    method = question.method.removesuffix("_tree")
    draft = None
    if method in _DRAFT_MODELS:
        # A head has the target's tokenizer, so only a draft model's tokenizer is compared with it.
        draft = question.draft
    check_models(question.target, draft, max_tokens)
    target = load_model(question.target, question.dtype, device)
    if method == "draft_model":
        read = _draft_model_reader(question, target)
    elif method == "draft_model_tli":
        read = _other_vocabulary_reader(question, target)
    elif method == "pard":
        read = _parallel_model_reader(question, target)
    elif method in _HEADS:
        read = _head_reader(question, target)
    else:
        read = _target_reader(target)
    # Read the texts.
    accepted = []
    gaps_nats = []
    for text in question.texts:
        with torch.inference_mode():
            logits, text_accepted = read(text, torch.tensor([text.ids], device=device))
            accepted.append(text_accepted)
            gaps_nats.append(_gap_nats(logits[0], text))
    return OracleAnswer(accepted=tuple(accepted), gaps_nats=tuple(gaps_nats))


def _gap_nats(logits: Tensor, text: Text) -> float:
    """Return the largest gap between the target's choice and a token of the answer.

    The gap is the difference of their log-probabilities at the token's position.
    """
    answer_start = text.prompt_tokens
    answer_end = text.prompt_tokens + text.output_tokens
    answer = torch.tensor(text.ids[answer_start:answer_end], device=logits.device)
    if not len(answer):
        return 0.0
    # The logits at a position are those for the token at the next position.
    answer_logits = logits[answer_start - 1 : answer_end - 1].double()
    best_logits = answer_logits.max(-1).values
    answered_logits = answer_logits.gather(-1, answer[:, None])[:, 0]
    # At one position two log-probabilities differ as much as their logits: the same number, the
    # logarithm of the sum, is subtracted from both.
    gaps = best_logits - answered_logits
    return float(gaps.max())


def _target_reader(target: Model) -> Read:
    """Return a function that reads a text with the target alone."""

    def read(text: Text, ids: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        del text
        return target(input_ids=ids).logits, ()

    return read


def _draft_model_reader(question: Question, target: Model) -> Read:
    """Return a function that reads a text with the target and a draft model.

    Raises:
        ModelError: The draft can't be loaded.
        UnsupportedError: Its cache can't be rolled back.
    """
    draft = load_model(question.draft, question.dtype, str(target.device))
    first = question.unseen_tokens

    def draft_next(ids: Tensor, drafts: int) -> Tensor:
        del drafts
        return draft(input_ids=ids[:, first:]).logits[:, -1]

    def read(text: Text, ids: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        logits = target(input_ids=ids).logits
        if question.branches:
            return logits, _walk_trees(draft_next, ids, text, question)
        # After a token the model always drafts the same next token, in whichever step that is.
        choices = draft(input_ids=ids[:, first:]).logits.argmax(-1)
        is_right = choices[0, :-1] == ids[0, first + 1 :]
        # Nothing is drafted for the tokens that the draft model never reads, and nothing for the
        # first token that it reads.
        hits = [False] * (first + 1)
        hits += is_right.tolist()
        return logits, _accepted_by_position(hits, question.draft_tokens)

    return read


def _other_vocabulary_reader(question: Question, target: Model) -> Read:
    """Return a function that reads a text with the target and a draft of another vocabulary.

    Raises:
        ModelError: The draft can't be loaded, can't read the texts, or shares no tokens with the
            target.
        UnsupportedError: Its cache can't be rolled back.
    """
    draft = load_model(question.draft, question.dtype, str(target.device))
    longest_tokens = max(len(text.ids) for text in question.texts)
    check_context(question.draft, draft.config, longest_tokens)
    sizes = (target.config.vocab_size, draft.config.vocab_size)
    tokenizers = (load_tokenizer(question.target), load_tokenizer(question.draft))
    shared = SharedVocabulary(*tokenizers, sizes)

    def read(_: Text, ids: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        logits = target(input_ids=ids).logits
        draft_ids = shared.draft_ids.to(ids.device)[ids]
        choices = shared.choose(draft(input_ids=draft_ids).logits)
        is_right = choices[0, :-1] == ids[0, 1:]
        hits = [False, *is_right.tolist()]
        return logits, _accepted_by_position(hits, question.draft_tokens)

    return read


def _parallel_model_reader(question: Question, target: Model) -> Read:
    """Return a function that reads a text with the target and PARD's draft model.

    Raises:
        ModelError: The draft can't be loaded, or has no mask.
        UnsupportedError: Its cache can't be rolled back.
    """
    draft = load_model(question.draft, question.dtype, str(target.device))
    mask_id = getattr(draft.config, "pard_token", None)

    # In Python a boolean is an integer too.
    is_id = isinstance(mask_id, int) and not isinstance(mask_id, bool)
    if mask_id is None or not is_id or not 0 <= mask_id < draft.config.vocab_size:
        fault = f"pard_token in its config.json isn't a token of its vocabulary, got {mask_id}"
        raise ModelError(f"draft '{question.draft}': {fault}; choose one that PARD trained")

    def read(_: Text, ids: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        logits = target(input_ids=ids).logits
        anchors = ids.shape[1] - question.draft_tokens
        drafts = draft_in_parallel(draft, ids[:, :anchors], question.draft_tokens, mask_id)
        hits = []
        for depth, draft_logits in enumerate(drafts):
            choices = draft_logits[0].argmax(-1)
            first = 1 + depth
            is_right = choices == ids[0, first : first + anchors]
            hits.append(is_right.tolist())
        # The anchor of a step is the token before the position at which the step begins.
        accepted = map(_accepted_drafts, zip(*hits, strict=True))
        return logits, (0, *accepted)

    return read


def _head_reader(question: Question, target: Model) -> Read:
    """Return a function that reads a text with the target and a head.

    Raises:
        ModelError: The head can't be loaded, or isn't this target's.
    """
    head = load_head(question, target)
    output = torch.nn.Identity() if head.has_output else target.lm_head
    layers_read = head.layers_read or (target.config.num_hidden_layers,)
    observed = heads.ObservedTarget(target, layers_read)

    def read(text: Text, ids: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        logits, embeddings, hidden = observed.observe(ids)
        if head.normed or question.normed:
            hidden = target.model.norm(hidden)

        def draft_next(branches: Tensor, drafts: int) -> Tensor:
            text_tokens = branches.shape[1] - drafts
            states = hidden[:, : text_tokens - 1].expand(len(branches), -1, -1)
            next_embeddings = target.model.embed_tokens(branches[:, 1:])
            drafted_states = head.unroll(states, next_embeddings, drafts + 1)
            return output(drafted_states[-1][:, -1])

        if question.branches:
            return logits, _walk_trees(draft_next, ids, text, question)
        # The last anchors are left out, because the text ends before their drafts do.
        anchors = ids.shape[1] - question.draft_tokens - 1
        anchor_states = hidden[:, :anchors]
        next_embeddings = embeddings[:, 1:]
        drafted_states = head.unroll(anchor_states, next_embeddings, question.draft_tokens)
        # The anchor of a step is two positions before the one at which the step begins, because a
        # head makes the first draft from the anchor's state and the token after the anchor.
        hits = []
        for depth, states in enumerate(drafted_states):
            drafts = output(states)[0].argmax(-1)
            first = 2 + depth
            is_right = drafts == ids[0, first : first + anchors]
            hits.append(is_right.tolist())
        accepted = map(_accepted_drafts, zip(*hits, strict=True))
        return logits, (0, 0, *accepted)

    return read


def _accepted_drafts(hits: Sequence[bool]) -> int:
    """Return the number of accepted drafts of a step: all before the first that isn't right."""
    return sum(itertools.takewhile(bool, hits))


def _accepted_by_position(hits: Sequence[bool], draft_tokens: int) -> tuple[int, ...]:
    """Return the number of accepted drafts of a step that begins at each position.

    Args:
        hits: For each position of the text, whether the draft for it is right, in whichever step it
            is drafted.
        draft_tokens: The number of tokens that a step drafts.
    """
    accepted = []
    for start in range(len(hits)):
        hits_of_step = hits[start : start + draft_tokens]
        accepted.append(_accepted_drafts(hits_of_step))
    return tuple(accepted)


def _walk_trees(
    draft_next: DraftNext, ids: Tensor, text: Text, question: Question
) -> tuple[int, ...]:
    """Follow the steps of an answer that is drafted by trees.

    Returns:
        For each position of the text, how many drafts of a step that begins at that position are
        right; 0 if no step of the answer begins there.
    """
    accepted = [0] * len(text.ids)
    # The prefill emits the first token of the answer, without drafts.
    position = text.prompt_tokens + 1
    answer_end = text.prompt_tokens + text.output_tokens
    while position < answer_end:
        nodes = _draft_tree(draft_next, ids[:, :position], question)
        coming = text.ids[position : position + question.draft_tokens]
        # The parent of a node is a node too, so the right nodes are the paths up to some depth.
        paths = [coming[:depth] for depth in range(1, len(coming) + 1)]
        right_drafts = sum(path in nodes for path in paths)
        accepted[position] = right_drafts
        # The target adds a token of its own after the accepted drafts.
        position += right_drafts + 1
    return tuple(accepted)


def _draft_tree(
    draft_next: DraftNext, ids_before: Tensor, question: Question
) -> set[tuple[int, ...]]:
    """Draft a tree as SGLang does, and return its nodes, each as the drafts that lead to it."""
    branches = ids_before[:, :0]
    stale_branches = branches
    scores = torch.ones(1, device=ids_before.device)
    candidates: list[tuple[float, tuple[int, ...]]] = []
    for depth in range(question.draft_tokens):
        drafts_before = branches
        if question.method == "draft_model_tree":
            # SGLang 0.5.23 doesn't move keys and values when branches change their order. So in a
            # draft model, a branch reads the drafts of the branch that was in its place before. A
            # head gets the state of its own branch, and reads that.
            drafts_before = stale_branches
        rows = torch.cat([ids_before.expand(len(branches), -1), drafts_before], 1)
        probabilities = draft_next(rows, depth).float().softmax(-1)
        likeliest = probabilities.topk(question.branches)
        # Each branch grows by its likeliest tokens, and the likeliest of all branches stay.
        scores = (scores[:, None] * likeliest.values).flatten()
        parents = branches.repeat_interleave(question.branches, 0)
        new_tokens = likeliest.indices.reshape(-1, 1)
        branches = torch.cat([parents, new_tokens], 1)
        nodes = map(tuple, branches.tolist())
        # Candidates that don't survive stay in this list: the tree is chosen from all of them.
        candidates += zip(scores.tolist(), nodes, strict=True)
        best = scores.topk(question.branches).indices
        branches = branches[best]
        scores = scores[best]
        stale_parents = stale_branches.expand(len(branches), -1)
        stale_branches = torch.cat([stale_parents, branches[:, -1:]], 1)
    best_candidates = sorted(candidates, reverse=True)[: question.drafted_tokens]
    return {node for _, node in best_candidates}


def load_head(question: Question, target: Model) -> Head:
    """Load the head of a target from its folder, to the target's device and number format.

    Raises:
        ModelError: It isn't there, isn't built as the heads of `heads.py`, or isn't this target's.
    """
    name = question.draft or question.target
    config, weights = _load_checkpoint(name, question, target)
    head = _build_head(name, question, target, config, weights)
    # The tensors may have other names in a checkpoint than in the module.
    module_names = {head.checkpoint_name(name): name for name in head.state_dict()}
    renamed = {module_names.get(key, key): tensor for key, tensor in weights.items()}
    try:
        head.load_state_dict(renamed)
    except RuntimeError as error:
        fault = "its tensors don't fit a head of this target with a key head for each query head:"
        details = " ".join(str(error).split())[:_ERROR_CHARACTERS]
        raise _misfit(name, f"{fault} {details}") from error
    head.to(target.device, target.dtype).eval()
    return head


def _build_head(
    name: str,
    question: Question,
    target: Model,
    config: LayerConfig | MedusaConfig,
    weights: dict[str, Tensor],
) -> Head:
    """Build a head without its weights, and drop the file's weights that the head doesn't have.

    Raises:
        ModelError: It isn't this target's, or isn't built as the heads of `heads.py`.
    """
    layers = target.config.num_hidden_layers
    if isinstance(config, heads.Eagle3Config):
        return _build_eagle3_head(name, config, target)
    if isinstance(config, MedusaConfig):
        # The heads use the target's output matrix, so a head trained with another one can't run.
        target_output = target.lm_head.weight.cpu()
        output = weights.pop(heads.MEDUSA_OUTPUT, None)
        if output is None or not torch.equal(output.to(target_output.dtype), target_output):
            raise _misfit(name, "its output matrix isn't the target's")
        return heads.MedusaHead(config.hidden_size, config.num_heads)
    if isinstance(config, heads.DFlashConfig):
        block = config.dflash_config
        if max(block.target_layer_ids) >= layers or block.mask_token_id >= config.vocab_size:
            raise _misfit(name, "the target doesn't have its mask or the layers that it reads")
        return heads.DFlashHead(config, target.model.embed_tokens.weight)
    if question.method == "mtp":
        # The layer is in the target's own file, beside the target's weights.
        targets_keys = [key for key in weights if not key.startswith(heads.MTP_LAYER)]
        for key in targets_keys:
            del weights[key]
        return heads.MtpHead(config)
    if "fc.bias" in weights and not weights["fc.bias"].any():
        # SGLang's class has a bias, which is random if a file has none. So a file may have zeros.
        del weights["fc.bias"]
    return heads.EagleHead(config)


def _build_eagle3_head(name: str, config: heads.Eagle3Config, target: Model) -> Head:
    """Build an EAGLE-3 head that drafts one token after another, or all of a step at once.

    Raises:
        ModelError: It isn't this target's, or isn't built as the heads of `heads.py`.
    """
    if max(config.eagle_aux_hidden_state_layer_ids) > target.config.num_hidden_layers:
        raise _misfit(name, "it reads layers that the target doesn't have")
    if config.norm_before_residual:
        raise _misfit(name, "it has norm_before_residual, which the oracle doesn't compute")
    if not isinstance(config, heads.ParallelEagle3Config):
        return heads.Eagle3Head(config)
    if not 0 <= config.ptd_token_id < config.vocab_size:
        raise _misfit(name, "its mask isn't among the target's tokens (ptd_token_id)")
    return heads.ParallelEagle3Head(config, target.model.embed_tokens.weight)


def _load_checkpoint(
    name: str, question: Question, target: Model
) -> tuple[LayerConfig | MedusaConfig, dict[str, Tensor]]:
    """Load the configuration and the tensors of a head's folder.

    Raises:
        ModelError: The folder can't be read, the sizes aren't the target's, or the context is too
            small for the texts.
    """
    configs: dict[str, type[LayerConfig | MedusaConfig]] = {
        "eagle3": heads.Eagle3Config,
        "p_eagle": heads.ParallelEagle3Config,
        "medusa": MedusaConfig,
        "dflash": heads.DFlashConfig,
    }
    method = question.method.removesuffix("_tree")
    kind = configs.get(method, LayerConfig)
    folder = Path(name)
    try:
        raw_config = (folder / "config.json").read_bytes()
        config = msgspec.json.decode(raw_config, type=kind)
        weights = load_file(folder / "model.safetensors")
    except (OSError, msgspec.DecodeError, SafetensorError) as error:
        message = (
            f"head '{name}': can't be read by the oracle, {error}; choose a folder like those of"
            " fixtures/models/tiny, or run without the oracle"
        )
        raise ModelError(message) from error
    # A head multiplies the target's states, so it only works with a target of its own sizes.
    target_config = target.config.get_text_config(decoder=True)
    sizes = (config.hidden_size, config.vocab_size)
    target_sizes = (target_config.hidden_size, target_config.vocab_size)
    if sizes != target_sizes:
        fault = f"its hidden and vocabulary sizes, {sizes}, aren't the target's, {target_sizes}"
        raise _misfit(name, fault)
    longest_tokens = max(len(text.ids) for text in question.texts)
    check_context(name, config, longest_tokens)
    return config, weights


def _misfit(name: str, fault: str) -> ModelError:
    """Return the error of a head that isn't this target's."""
    advice = "choose a head of this target, or run without the oracle"
    return ModelError(f"head '{name}': {fault}; {advice}")


def main() -> None:
    """Read a question from a line of standard input and write its answer to standard output."""
    # What libraries print goes to standard error, so that standard output has the answer alone.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    device = default_device()
    if len(sys.argv) > 1:
        device = sys.argv[1]
    question = msgspec.json.decode(sys.stdin.buffer.readline(), type=Question)
    try:
        answer = answer_question(question, device)
    except SpecregError as error:
        answer = OracleAnswer(refusal=str(error))
    with answers:
        answers.write(msgspec.json.encode(answer) + b"\n")


if __name__ == "__main__":
    main()
