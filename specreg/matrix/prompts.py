"""The prompts that a case replays, and whether they fit into its context."""

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterable
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


def load_case_prompts(root: Path, case: Case) -> tuple[Prompt, ...]:
    """The prompts of a case's dataset; the case takes the first ones.

    Raises:
        UnknownNameError: there is no such dataset.
        DatasetError: it can't be read, or holds fewer prompts than the case asks for or its drafter
            needs, or token ids for a chat or for an engine that takes text alone.
        ModelError: the target can't be had, or has no vocabulary to draw from.
    """
    target = resolve_model(root, case.server.target)
    prompts = load_prompts(
        dataset_named(case.dataset), root=root, vocabulary=lambda: vocabulary_of(target)
    )
    needed, why = case.prompts, ""
    if case.needs_fresh_server:
        needed = 2 * case.prompts + 1
        why = ": its drafter learns, and warms up on prompts that are measured nowhere"
    if len(prompts) < needed:
        raise DatasetError(
            f"dataset '{case.dataset}': has {len(prompts)} prompts, '{case.id}' asks for {needed}"
            f"{why}; lower prompts in the matrix, or ask for fewer"
        )
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


def check_contexts(root: Path, cases: Iterable[Case]) -> None:
    """Check that all that a case may send fits into its context, each reply up to the cap.

    What the chat template adds isn't counted: some ten tokens for each turn. Without a tokenizer at
    hand the server is left to refuse what is too long.

    Raises:
        DatasetError: a prompt doesn't fit, or as of `load_case_prompts`.
    """
    for case in cases:
        with contextlib.suppress(ModelError):  # the case's own tests say so
            target = resolve_model(root, case.server.target)
            prompts = load_case_prompts(root, case)[: 2 * case.prompts]
            # No tokenizer makes more tokens of a text than it has bytes: most prompts need none.
            doubtful = _overlong(case, prompts, lambda text: len(text.encode()))
            overlong = _overlong(case, doubtful, functools.partial(count_tokens, target))
            if overlong:
                first, needed_tokens = next(iter(overlong.items()))
                raise DatasetError(
                    f"dataset '{case.dataset}': prompt '{first.id}' needs {needed_tokens} tokens"
                    f" with its replies, '{case.id}' has {case.server.max_model_len_tokens}, and"
                    f" {len(overlong)} of its prompts don't fit; raise max_model_len_tokens to"
                    f" {max(overlong.values())}, or lower output_cap_tokens or turns"
                )


def _overlong(
    case: Case, prompts: Iterable[Prompt], count: Callable[[str], int]
) -> dict[Prompt, int]:
    """The prompts that don't fit into a case's context, and what each needs with all replies."""
    needed_tokens = {
        one: sum(count(text) + case.output_cap_tokens for text in one.turns[: case.turns])
        or len(one.token_ids) + case.output_cap_tokens
        for one in prompts
    }
    limit_tokens = case.server.max_model_len_tokens
    return {one: tokens for one, tokens in needed_tokens.items() if tokens > limit_tokens}


@functools.cache  # the cases of a tier share their prompts
def count_tokens(target: str, text: str) -> int:
    """How many tokens a target's own tokenizer makes of a text, else a ModelError."""
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
        raise ModelError(f"tokenizer '{path}': {error}; restore it") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
