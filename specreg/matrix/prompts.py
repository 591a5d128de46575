"""The prompts that a case replays, and whether they fit into its context."""

import functools
import importlib
import itertools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from specreg.core.commands import install_command
from specreg.core.errors import DatasetError, ModelError
from specreg.datasets.prepare import load_prompts
from specreg.datasets.prompts import Prompt
from specreg.datasets.table import dataset_named
from specreg.engines.registry import engine_named
from specreg.engines.wire_format import Form
from specreg.matrix.case import Case
from specreg.matrix.models import model_file, resolve_model, vocabulary_of

Count = Callable[[str], int]
"""A text in, its tokens out, or the most that they can be."""


def load_case_prompts(root: Path, case: Case) -> tuple[Prompt, ...]:
    """The prompts of a case's dataset; the case takes the first ones.

    Raises:
        DatasetError: the dataset can't be read, holds fewer than the case asks for or its
            drafter needs, or token ids for a chat.
    """
    target = resolve_model(root, case.server.target)
    prompts = load_prompts(
        dataset_named(case.dataset), root=root, vocabulary=lambda: vocabulary_of(target)
    )
    if len(prompts) < case.prompts:
        message = (
            f"dataset '{case.dataset}': has {len(prompts)} prompts, '{case.id}' asks for"
            f" {case.prompts}; lower prompts in the matrix, or ask for fewer"
        )
        raise DatasetError(message)
    if case.needs_fresh_server and len(prompts) <= 2 * case.prompts:
        message = (
            f"dataset '{case.dataset}': has {len(prompts)} prompts, '{case.id}' needs more than"
            f" {2 * case.prompts}: its drafter learns from what it serves, and warms up on prompts"
            " that are measured nowhere; lower prompts in the matrix"
        )
        raise DatasetError(message)
    check_form(case, prompts)
    return prompts


def check_form(case: Case, prompts: Iterable[Prompt]) -> None:
    """Raise a DatasetError of token ids in a chat, or for an engine that doesn't take them."""
    if not any(prompt.token_ids for prompt in prompts):
        return
    subject = f"dataset '{case.dataset}': its prompts are token ids, which"
    if engine_named(case.server.engine).wire_format.takes_text_alone:
        message = f"{subject} '{case.server.engine}' doesn't take; give '{case.id}' a dataset of"
        raise DatasetError(f"{message} texts in the matrix")
    if case.form is Form.CHAT:
        message = f"{subject} are no chat; set form = \"completions\" for '{case.id}' in the matrix"
        raise DatasetError(message)


def check_contexts(root: Path, cases: Iterable[Case]) -> tuple[str, ...]:
    """Check that all that a case may send fits into its context, each reply up to the cap.

    What the chat template adds isn't counted: some ten tokens for each turn.

    Returns:
        By dataset and target, in words, why there was no telling.

    Raises:
        DatasetError: a prompt doesn't fit; or the prompts can't be read, are too few, or aren't
            what the case or its engine takes.
    """
    unknown: dict[tuple[str, str], str] = {}
    for case in cases:
        try:
            target = resolve_model(root, case.server.target)
            prompts = load_case_prompts(root, case)[: 2 * case.prompts]
        except ModelError:  # the case's own tests say so
            continue
        if (case.dataset, target) in unknown:
            continue
        # No tokenizer makes more tokens of a text than it has bytes: most prompts need none.
        doubtful = _overlong(case, prompts, lambda text: len(text.encode()))
        try:
            overlong = _overlong(case, doubtful, functools.partial(count_tokens, target))
        except ModelError as error:
            unknown[case.dataset, target] = (
                f"dataset '{case.dataset}': whether its prompts fit into the context of"
                f" '{case.server.target}' isn't known: {error}"
            )
            continue
        if overlong:
            raise DatasetError(_refusal(case, overlong, functools.partial(count_tokens, target)))
    return tuple(unknown.values())


@functools.cache  # the cases of a tier share their prompts
def count_tokens(target: str, text: str) -> int:
    """How many tokens a target makes of a text, by its own tokenizer.

    Raises:
        ModelError: there is no tokenizer.json, or nothing that reads it.
    """
    return len(_tokenizer(target).encode(text, add_special_tokens=False).ids)


@functools.cache
def _tokenizer(target: str) -> Any:  # noqa: ANN401 - of a library that may be missing
    """A target's tokenizer, which cuts nothing off."""
    try:
        library = importlib.import_module("tokenizers")
    except ImportError as error:
        message = f"counting takes tokenizers, which isn't installed; {install_command('datasets')}"
        raise ModelError(message) from error
    path = model_file(target, "tokenizer.json")
    try:
        tokenizer = library.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more special
        message = f"tokenizer '{path}': {error}; restore it"
        raise ModelError(message) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _needed_tokens(case: Case, prompt: Prompt, count: Count) -> tuple[int, ...]:
    """What each turn needs: all turns up to it, and each reply up to the cap."""
    cap_tokens = case.output_cap_tokens
    if prompt.token_ids:
        return (len(prompt.token_ids) + cap_tokens,)
    texts = prompt.turns[: case.turns]
    return tuple(itertools.accumulate(count(text) + cap_tokens for text in texts))


def _overlong(case: Case, prompts: Sequence[Prompt], count: Count) -> list[Prompt]:
    """The prompts that don't fit into a case's context."""
    limit_tokens = case.server.max_model_len_tokens
    return [one for one in prompts if _needed_tokens(case, one, count)[-1] > limit_tokens]


def _refusal(case: Case, overlong: Sequence[Prompt], count: Count) -> str:
    """Name the first prompt and turn that don't fit, and what would help all of them."""
    limit_tokens = case.server.max_model_len_tokens
    first = _needed_tokens(case, overlong[0], count)
    turn, needed_tokens = next(
        (turn, tokens) for turn, tokens in enumerate(first, 1) if tokens > limit_tokens
    )
    most_tokens = max(_needed_tokens(case, one, count)[-1] for one in overlong)
    replies_tokens = turn * case.output_cap_tokens
    shorter = f", or set turns = {turn - 1}" if turn > 1 else ""
    return (
        f"dataset '{case.dataset}': prompt '{overlong[0].id}' needs {needed_tokens} tokens up to"
        f" turn {turn} ({needed_tokens - replies_tokens} of text, {replies_tokens} for replies),"
        f" '{case.id}' has {limit_tokens}, and {len(overlong)} of its prompts don't fit; raise"
        f" max_model_len_tokens to {most_tokens}, lower output_cap_tokens{shorter}"
    )
