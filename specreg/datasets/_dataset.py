"""What a dataset is: a name, its configs, and a function that reads their prompts from disk."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from specreg.errors import DatasetError
from specreg.paths import data_dir


class Prompt(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """One conversation to replay.

    Attributes:
        id: unique within the dataset.
        category: what per-category figures are grouped by.
        turns: what the user says, in order; none empty.
        token_ids: the prompt as ids instead; either these or turns are given.
    """

    id: str
    category: str
    turns: tuple[str, ...] = ()
    token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is asked of a dataset.

    Attributes:
        root: the repository's.
        vocabulary: how many token ids the target knows; asked of by prompts of ids alone.
        data_dir: where prepared sets lie.
    """

    root: Path
    vocabulary: Callable[[], int]
    data_dir: Path = field(default_factory=data_dir)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """One or several named sets of prompts.

    Attributes:
        name: what users write, followed by `-` and a config where there are several.
        load: reads all prompts of the set of a full name. Their order is stable and interleaves
            the categories, so that any first n are spread over them.
        configs: what there is of it; empty where it is one set.
        takes_length: whether any length in tokens, 1 or more, is a config too.
    """

    name: str
    load: Callable[["PromptSet", Wanted], tuple[Prompt, ...]]
    configs: tuple[str, ...] = ()
    takes_length: bool = False

    @property
    def sets(self) -> tuple["PromptSet", ...]:
        """What can be listed of it: each config, or all there is."""
        return tuple(PromptSet(dataset=self, config=config) for config in self.configs or ("",))


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSet:
    """A dataset, and which of its configs; empty where it has none."""

    dataset: Dataset
    config: str = ""

    @property
    def name(self) -> str:
        """`speed-bench-qualitative`: the full name, part of a case's id."""
        return f"{self.dataset.name}-{self.config}" if self.config else self.dataset.name

    def load_prompts(self, wanted: Wanted) -> tuple[Prompt, ...]:
        """All prompts of the set.

        Raises:
            DatasetError: it wasn't prepared, or can't be read.
        """
        return self.dataset.load(self, wanted)


def load_prompt_lines(path: Path) -> tuple[Prompt, ...]:
    """The prompts of a file of JSON lines.

    Raises:
        DatasetError: the file is missing, or a row is wrong; names file, row and field.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        message = f"prompt file '{path}': {error.strerror}; restore it from the repository"
        raise DatasetError(message) from error
    prompts = tuple(_parse_prompt(line, f"{path}:{row}") for row, line in enumerate(lines, 1))
    if len({prompt.id for prompt in prompts}) != len(prompts):
        message = f"prompt file '{path}': two rows have the same id; give each its own"
        raise DatasetError(message)
    return prompts


def prompts_sha256(prompts: Sequence[Prompt]) -> str:
    """A checksum of the prompts and their order, 64 hexadecimal digits."""
    return hashlib.sha256(msgspec.json.encode(list(prompts))).hexdigest()


def _parse_prompt(line: bytes, place: str) -> Prompt:
    try:
        prompt = msgspec.json.decode(line, type=Prompt)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        message = (
            f"{place}: {error}; a row needs id, category and turns (a list of texts) or token_ids"
        )
        raise DatasetError(message) from error
    if not all(turn.strip() for turn in prompt.turns) or bool(prompt.turns) == bool(
        prompt.token_ids
    ):
        message = (
            f"{place}: prompt '{prompt.id}' has an empty turn, none at all, or turns and token_ids;"
            " remove the row or mend it"
        )
        raise DatasetError(message)
    return prompt
