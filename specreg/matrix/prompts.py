"""The prompts that a case replays."""

from collections.abc import Iterable
from pathlib import Path

from specreg.core.errors import DatasetError
from specreg.datasets.prepare import load_prompts
from specreg.datasets.prompts import Prompt
from specreg.datasets.table import dataset_named
from specreg.engines.protocols import Form
from specreg.engines.registry import engine_named
from specreg.matrix import Case
from specreg.matrix.models import resolve_model, vocabulary_of


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
    """Token ids are no chat, and not every engine takes them.

    Raises:
        DatasetError: the case puts them into a chat, or to an engine that doesn't.
    """
    protocol = engine_named(case.server.engine).protocol
    if not protocol.takes_token_ids and any(prompt.token_ids for prompt in prompts):
        message = (
            f"dataset '{case.dataset}': its prompts are token ids, which '{case.server.engine}'"
            f" doesn't take; give '{case.id}' a dataset of texts in the matrix"
        )
        raise DatasetError(message)
    if case.form is Form.CHAT and any(prompt.token_ids for prompt in prompts):
        message = (
            f"dataset '{case.dataset}': its prompts are token ids, which are no chat;"
            f" set form = \"completions\" for '{case.id}' in the matrix"
        )
        raise DatasetError(message)
