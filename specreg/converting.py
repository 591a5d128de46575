"""Prompts in one form in, the same prompts in another out, for other clients to replay."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import msgspec

from specreg.forms import Loaded, RowForm
from specreg.prompts import Prompt


def convert(
    source: Path, target: Path, *, source_form: RowForm, target_form: RowForm, turns: int | None
) -> Loaded:
    """Writes the prompts of a file in another form.

    Args:
        source: what to read.
        target: what to write, `.jsonl` or `.json`.
        source_form: the form of the one.
        target_form: the form of the other.
        turns: the most turns of a conversation to keep, None for all.

    Returns:
        What was read.

    Raises:
        DatasetError: the source can't be read, or the target's form can't hold a prompt.
    """
    loaded = source_form.load(source)
    target_form.record(target, _cut(loaded.prompts, turns))
    return loaded


def _cut(prompts: tuple[Prompt, ...], turns: int | None) -> Iterator[Prompt]:
    for prompt in prompts:
        kept = tuple(itertools.islice(prompt.turns, turns))
        yield msgspec.structs.replace(prompt, turns=kept)
