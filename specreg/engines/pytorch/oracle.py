"""The oracle: compute the choices of a target and of its drafter at each position of texts.

    python -m specreg.engines.pytorch.oracle [DEVICE] < question.json > answer.json

A draft can only be accepted if all drafts before it in its step are equal to the text. Then the
drafter has read nothing but the text. So one pass of the drafter over the text computes every draft
that can be accepted. Trees are drafted step by step, because their branches aren't in the text.
The oracle runs in the environment of the reference engine.
"""

import functools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import msgspec
import torch
from torch import Tensor

from specreg.core.errors import ModelError, SpecregError
from specreg.engines.pytorch import head_files, heads
from specreg.engines.pytorch.head_files import Build, Config, load_head
from specreg.engines.pytorch.models import (
    Model,
    check_context,
    check_models,
    default_device,
    load_model,
    load_tokenizer,
)
from specreg.engines.pytorch.parallel import draft_in_parallel
from specreg.engines.pytorch.question import OracleAnswer, Question, TokenizedText
from specreg.engines.pytorch.vocabularies import SharedVocabulary

DraftNext = Callable[[Tensor, int], Tensor]
"""Takes the ids of texts, `[rows, tokens]`, and the number of drafts at their end. Returns the
drafter's logits for the next token, `[rows, V]`, where V is the size of the vocabulary."""
Read = Callable[[TokenizedText, Tensor], tuple[Tensor, tuple[int, ...]]]
"""Takes a text and its ids, `[1, tokens]`. Returns the target's logits, `[1, tokens, V]`, and the
number of right drafts of a step that begins at each position."""
DraftModel = Any
"""A draft model of transformers, a head, or None if the method drafts without a model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleMethod:
    """How the oracle computes the drafts of a method, with or without a tree.

    Attributes:
        load: loads the drafter of a question, given the target.
        reader: returns a function that reads texts with the target and the drafter.
        has_target_tokenizer: True if the draft is a model whose tokenizer must be the target's.
    """

    load: Callable[[Question, Model], DraftModel]
    reader: Callable[[DraftModel, Question, Model], Read]
    has_target_tokenizer: bool = False


def answer_question(question: Question, device: str) -> OracleAnswer:
    """Run the models of a question on its texts.

    Args:
        question: the models and the texts.
        device: the device by PyTorch's name.

    Raises:
        ModelError: a model isn't there, isn't of the architecture that the method needs, or
            doesn't fit the texts or the target.
        UnsupportedError: a model's cache can't be rolled back.
    """
    # Check and load the models.
    method = ORACLE_METHODS[question.method.removesuffix("_tree")]
    max_tokens = max(len(text.ids) for text in question.texts)
    draft = None
    if method.has_target_tokenizer:
        draft = question.draft
    check_models(question.target, draft, max_tokens)
    target = load_model(question.target, question.dtype, device)
    drafter = method.load(question, target)
    read = method.reader(drafter, question, target)

    # Read the texts.
    accepted = []
    gaps_nats = []
    for text in question.texts:
        with torch.inference_mode():
            logits, text_accepted = read(text, torch.tensor([text.ids], device=device))
            accepted.append(text_accepted)
            gaps_nats.append(_gap_nats(logits[0], text))

    return OracleAnswer(accepted=tuple(accepted), gaps_nats=tuple(gaps_nats))


def _gap_nats(logits: Tensor, text: TokenizedText) -> float:
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


def load_nothing(_: Question, __: Model) -> None:
    """Return None: the method has no model, because its drafts follow from the text alone."""


def load_draft(question: Question, target: Model) -> Model:
    """Load a draft model to the target's device.

    Raises:
        ModelError: the draft can't be loaded.
        UnsupportedError: its cache can't be rolled back.
    """
    return load_model(question.draft, question.dtype, str(target.device))


def target_reader(_: None, __: Question, target: Model) -> Read:
    """Return a function that reads a text with the target alone."""

    def read(_: TokenizedText, ids: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        return target(input_ids=ids).logits, ()

    return read


def model_reader(draft: Model, question: Question, target: Model) -> Read:
    """Return a function that reads a text with the target and a draft model."""
    first = question.unseen_tokens

    def draft_next(ids: Tensor, drafts: int) -> Tensor:
        del drafts
        return draft(input_ids=ids[:, first:]).logits[:, -1]

    def read(text: TokenizedText, ids: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        logits = target(input_ids=ids).logits
        if question.branches:
            return logits, _walk_trees(draft_next, ids, text, question)
        choices = draft(input_ids=ids[:, first:]).logits.argmax(-1)
        return logits, _accepted_of_chain(choices[0], ids[0], question.draft_tokens)

    return read


def other_vocabulary_reader(draft: Model, question: Question, target: Model) -> Read:
    """Return a function that reads a text with the target and a draft of another vocabulary.

    Raises:
        ModelError: the draft can't read the texts, or shares no tokens with the target.
    """
    longest_tokens = max(len(text.ids) for text in question.texts)
    check_context(question.draft, draft.config, longest_tokens)
    sizes = (target.config.vocab_size, draft.config.vocab_size)
    tokenizers = (load_tokenizer(question.target), load_tokenizer(question.draft))
    shared = SharedVocabulary(*tokenizers, sizes)

    def read(_: TokenizedText, ids: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        logits = target(input_ids=ids).logits
        draft_ids = shared.draft_ids.to(ids.device)[ids]
        choices = shared.choose(draft(input_ids=draft_ids).logits)
        return logits, _accepted_of_chain(choices[0], ids[0], question.draft_tokens)

    return read


def parallel_reader(draft: Model, question: Question, target: Model) -> Read:
    """Return a function that reads a text with the target and PARD's draft model.

    Raises:
        ModelError: the draft has no mask.
    """
    mask_id = getattr(draft.config, "pard_token", None)

    # In Python a boolean is an integer too.
    is_id = isinstance(mask_id, int) and not isinstance(mask_id, bool)
    if mask_id is None or not is_id or not 0 <= mask_id < draft.config.vocab_size:
        fault = f"pard_token in its config.json isn't a token of its vocabulary, got {mask_id}"
        raise ModelError(f"draft '{question.draft}': {fault}; choose one that PARD trained")

    def read(_: TokenizedText, ids: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        logits = target(input_ids=ids).logits
        anchors = ids.shape[1] - question.draft_tokens
        drafts = draft_in_parallel(draft, ids[:, :anchors], question.draft_tokens, mask_id)
        choices = [draft_logits[0].argmax(-1) for draft_logits in drafts]
        # The anchor of a step is the token before the position at which the step begins.
        return logits, _accepted(choices, ids[0], 1)

    return read


def head_reader(head: heads.Head, question: Question, target: Model) -> Read:
    """Return a function that reads a text with the target and a head."""
    output = torch.nn.Identity() if head.has_output else target.lm_head
    layers_read = head.layers_read or (target.config.num_hidden_layers,)
    observed = heads.ObservedTarget(target, layers_read)

    def read(text: TokenizedText, ids: Tensor) -> tuple[Tensor, tuple[int, ...]]:
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
        drafted_states = head.unroll(hidden[:, :anchors], embeddings[:, 1:], question.draft_tokens)
        choices = [output(states)[0].argmax(-1) for states in drafted_states]

        # The anchor of a step is two positions before the one at which the step begins, because a
        # head makes the first draft from the anchor's state and the token after the anchor.
        return logits, _accepted(choices, ids[0], 2)

    return read


def _accepted(choices: Sequence[Tensor], ids: Tensor, first: int) -> tuple[int, ...]:
    """Return the number of accepted drafts of a step that begins at each position of a text.

    Args:
        choices: for each drafted token of a step, the drafts of the steps at all positions,
            `[positions]`.
        ids: the text, `[tokens]`.
        first: the position at which the first of these steps begins. No step begins before it.
    """
    hits = []
    for depth, drafts in enumerate(choices, first):
        hits.append(drafts == ids[depth : depth + len(drafts)])
    # A draft is accepted if it and all drafts before it are right.
    accepted = torch.stack(hits).int().cumprod(0).sum(0)
    return (*[0] * first, *accepted.tolist())


def _accepted_of_chain(choices: Tensor, ids: Tensor, draft_tokens: int) -> tuple[int, ...]:
    """Return the accepted drafts by position, of a model that always drafts one token at a time.

    Args:
        choices: what the model drafts after each token of the text that it sees, `[seen tokens]`.
            It is the same in whichever step the token is drafted.
        ids: the text, `[tokens]`.
        draft_tokens: the number of tokens that a step drafts.
    """
    # The last positions are left out, because the text ends before their drafts do.
    windows = choices[:-1].unfold(0, draft_tokens, 1)
    unseen_tokens = len(ids) - len(choices)
    return _accepted(windows.unbind(1), ids, unseen_tokens + 1)


def _walk_trees(
    draft_next: DraftNext, ids: Tensor, text: TokenizedText, question: Question
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


def _head_method(config_type: type[Config], build: Build[Config]) -> OracleMethod:
    """Return the method of a head with such a `config.json`, which a function builds."""
    return OracleMethod(load=functools.partial(load_head, config_type, build), reader=head_reader)


ORACLE_METHODS: Mapping[str, OracleMethod] = MappingProxyType(
    {
        "none": OracleMethod(load=load_nothing, reader=target_reader),
        "ngram": OracleMethod(load=load_nothing, reader=target_reader),
        "draft_model": OracleMethod(
            load=load_draft, reader=model_reader, has_target_tokenizer=True
        ),
        "draft_model_tli": OracleMethod(load=load_draft, reader=other_vocabulary_reader),
        "pard": OracleMethod(load=load_draft, reader=parallel_reader, has_target_tokenizer=True),
        "eagle": _head_method(heads.LayerConfig, head_files.build_eagle),
        "eagle3": _head_method(heads.Eagle3Config, head_files.build_eagle3),
        "p_eagle": _head_method(heads.ParallelEagle3Config, head_files.build_p_eagle),
        "medusa": _head_method(heads.MedusaConfig, head_files.build_medusa),
        "mtp": _head_method(heads.LayerConfig, head_files.build_mtp),
        "dflash": _head_method(heads.DFlashConfig, head_files.build_dflash),
    }
)
"""The methods by name, without those of trees."""


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
