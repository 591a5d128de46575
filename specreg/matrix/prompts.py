"""Load the prompts that a case replays, and check that they fit into its context."""

import contextlib
import functools
import importlib
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from specreg.core.commands import install_command
from specreg.core.counted import counted
from specreg.core.errors import DatasetError, ModelError
from specreg.datasets.prepare import load_prompts
from specreg.datasets.prompts import Prompt, prompts_sha256
from specreg.datasets.table import dataset_named
from specreg.engines.registry import engine_named
from specreg.engines.server_spec import ServerSpec
from specreg.engines.wire_format import Form
from specreg.matrix.case import Case
from specreg.matrix.models import config_of, model_file, model_sha256, resolve_model, vocabulary_of
from specreg.matrix.weights import CONFIG


def load_case_prompts(root: Path, case: Case) -> tuple[Prompt, ...]:
    """Return the prompts of a case's dataset, of which the case replays the first ones.

    Args:
        root: the root of the repository, which relative paths start from.

    Raises:
        UnknownNameError: there is no such dataset.
        DatasetError: the dataset can't be read, has fewer prompts than the case or its drafter
            needs, or has token ids for a chat or for an engine that takes only text.
        ModelError: the target isn't available, or has no vocabulary to draw from.
    """
    target = resolve_model(root, case.server.target)
    dataset = dataset_named(case.request.dataset)

    # Only random prompts are drawn from the target's vocabulary, so it is read on demand.
    prompts = load_prompts(dataset, root=root, vocabulary=lambda: vocabulary_of(target))
    needed_prompts = case.request.prompts
    reason = ""
    if case.needs_fresh_server:
        # The prompts of the case, as many for an extension (if the case's own don't decide its
        # acceptance), and at least one that isn't measured.
        needed_prompts = 2 * case.request.prompts + 1
        reason = ": its drafter learns, so its warm-up needs prompts that aren't measured"

    if len(prompts) < needed_prompts:
        raise DatasetError(
            f"dataset '{case.request.dataset}': has {counted(len(prompts), 'prompt')}, '{case.id}'"
            f" needs {needed_prompts}{reason}; lower prompts in the tier, or ask for fewer"
        )

    check_form(case, prompts)
    return prompts


def files_sha256(root: Path, case: Case) -> str:
    """Return the checksums of a case's prompts and of the files of its models.

    Raises:
        SpecregError: the models or the prompts of the case can't be read.
    """
    spec = case.server
    models = [resolve_model(root, name) for name in (spec.target, spec.draft) if name]
    prompts = load_case_prompts(root, case)
    return " ".join((prompts_sha256(prompts), *map(model_sha256, models)))


def check_form(case: Case, prompts: Iterable[Prompt]) -> None:
    """Check that a case can send its prompts, if they are token ids or texts to continue.

    Raises:
        DatasetError: the case is a chat, or its engine takes only text, or can't end an answer at
            the texts of the dataset.
    """
    if dataset_named(case.request.dataset).stops:
        _check_can_stop(case)
    if not any(prompt.token_ids for prompt in prompts):
        return
    subject = f"dataset '{case.request.dataset}': its prompts are token ids, which"
    if engine_named(case.server.engine).wire_format.accepts_only_text:
        message = f"{subject} '{case.server.engine}' doesn't take; give '{case.id}' a dataset of"
        raise DatasetError(f"{message} texts in the tier")
    if case.request.form is Form.CHAT:
        message = f"{subject} aren't a chat; set form = \"completions\" for '{case.id}' in the tier"
        raise DatasetError(message)


def _check_can_stop(case: Case) -> None:
    """Check that a case can continue texts whose continuation ends at certain texts."""
    subject = f"dataset '{case.request.dataset}': its prompts are texts to continue, which"
    if case.request.form is Form.CHAT:
        message = f"{subject} aren't a chat; set form = \"completions\" for '{case.id}' in the tier"
        raise DatasetError(message)
    if not engine_named(case.server.engine).wire_format.ends_at_texts:
        message = f"{subject} '{case.server.engine}' can't end at a text; give '{case.id}' another"
        raise DatasetError(f"{message} dataset in the tier")


def check_contexts(root: Path, cases: Iterable[Case]) -> None:
    """Check that the prompts of each case fit into its context, with replies up to the cap.

    The tokens that the chat template adds aren't counted: some ten for each turn. If the model or
    the tokenizer of a case isn't available, the case isn't checked, and its server refuses what is
    too long.

    Raises:
        UnknownNameError: a case has a dataset that doesn't exist.
        DatasetError: a prompt doesn't fit, or the prompts of a case can't be replayed.
    """
    for case in cases:
        # A model that isn't available is reported by the tests of the case.
        with contextlib.suppress(ModelError):
            _check_context(root, case)


def check_drafts(root: Path, cases: Iterable[Case]) -> None:
    """Check that the engine of each case takes its draft, by the draft's configuration.

    If that isn't available, the draft isn't checked, and its server refuses what it can't take.

    Raises:
        UnsupportedError: an engine would refuse a draft.
    """
    for spec in dict.fromkeys(case.server for case in cases if case.server.draft is not None):
        read_config = functools.partial(_draft_config, root, spec)
        engine_named(spec.engine).check_draft(spec, read_config)


def _draft_config(root: Path, spec: ServerSpec) -> Mapping[str, Any]:
    """Return the configuration of a server's draft; empty if it isn't available."""
    try:
        draft = resolve_model(root, spec.draft or "")
        folder = model_file(draft, CONFIG).parent
    except ModelError:
        return {}
    return config_of(str(folder), spec.draft_revision, os.environ)


def _check_context(root: Path, case: Case) -> None:
    """Check that the prompts of one case fit into its context; see `check_contexts`."""
    target = resolve_model(root, case.server.target)

    def count_bytes(text: str) -> int:
        return len(text.encode())

    def count_target_tokens(text: str) -> int:
        return count_tokens(target, text)

    # The prompts of the case, and those of an extension.
    prompts = load_case_prompts(root, case)[: 2 * case.request.prompts]

    # A text has at most as many tokens as bytes, so most prompts needn't be tokenized.
    doubtful_prompts = _overlong(case, prompts, count_bytes)
    overlong_prompts = _overlong(case, doubtful_prompts, count_target_tokens)
    if overlong_prompts:
        prompt, needed_tokens = next(iter(overlong_prompts.items()))
        raise DatasetError(
            f"dataset '{case.request.dataset}': prompt '{prompt.id}' needs {needed_tokens} tokens"
            f" with its replies, '{case.id}' has {case.server.max_model_len_tokens}, and"
            f" {len(overlong_prompts)} of its prompts don't fit; raise max_model_len_tokens to"
            f" {max(overlong_prompts.values())}, or lower output_cap_tokens or turns"
        )


def _overlong(
    case: Case, prompts: Iterable[Prompt], count: Callable[[str], int]
) -> dict[Prompt, int]:
    """Return the prompts that don't fit into a case's context.

    Args:
        prompts: the prompts to check.
        count: counts the tokens of a text.

    Returns:
        By prompt, the tokens that it needs with all its replies.
    """
    overlong_prompts = {}
    for prompt in prompts:
        turns = prompt.turns[: case.request.turns]
        needed_tokens = sum(count(text) + case.request.output_cap_tokens for text in turns)
        if not needed_tokens:
            # The prompt has token ids instead of turns.
            needed_tokens = len(prompt.token_ids) + case.request.output_cap_tokens
        if needed_tokens > case.server.max_model_len_tokens:
            overlong_prompts[prompt] = needed_tokens

    return overlong_prompts


# Cached, because the cases of a tier share their prompts.
@functools.cache
def count_tokens(target: str, text: str) -> int:
    """Return how many tokens the target's tokenizer makes of a text.

    Raises:
        ModelError: the library of tokenizers is missing, or the target's tokenizer can't be read.
    """
    return len(_tokenizer(target).encode(text, add_special_tokens=False).ids)


@functools.cache
def _tokenizer(target: str) -> Any:  # noqa: ANN401 - of a library that may be missing
    """Return a target's tokenizer, set to cut nothing off; errors as in `count_tokens`."""
    try:
        library = importlib.import_module("tokenizers")
    except ImportError as error:
        message = f"counting needs tokenizers, which isn't installed; {install_command('datasets')}"
        raise ModelError(message) from error

    path = model_file(target, "tokenizer.json")
    try:
        tokenizer = library.Tokenizer.from_file(str(path))
    except Exception as error:  # The library raises nothing more specific.
        raise ModelError(f"tokenizer '{path}': {error}; restore it") from error

    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
