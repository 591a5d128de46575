"""What a dataset is: a name, its configs, where they are published, and how they are read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from specreg.core.paths import data_dir
from specreg.datasets.formats import RowForm, form_named
from specreg.datasets.prompts import Prompt, prompts_sha256

__all__ = ["Dataset", "Prompt", "PromptSet", "Source", "Wanted", "prompts_sha256"]


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
class Source:
    """Where a set is published, and what must be in it.

    Attributes:
        form: the name of the form of its rows.
        url: where a user gets it, or reads about it.
        licence: what its publishers call it.
        terms: what that means for a benchmark, a sentence or two.
        local: its file within a folder that a user has.
        repo, file: a dataset of the hub and a file in it; empty where it isn't on the hub.
        rows, categories: how many there are; None where that isn't known.
        turns: of a conversation on average, for an estimate before it is prepared.
    """

    form: str
    url: str
    licence: str
    terms: str
    local: str
    repo: str = ""
    file: str = ""
    rows: int | None = None
    categories: int | None = None
    turns: float = 1.0

    @property
    def row_form(self) -> RowForm:
        """The form of its rows."""
        return form_named(self.form)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """One or several named sets of prompts.

    Attributes:
        name: what users write, followed by `-` and a config where there are several.
        load: reads all prompts of one of its sets. Their order is stable and interleaves the
            categories, so that any first n are spread over them.
        sources: by config, empty where there is one set, where it is published; none where there
            is nothing to prepare.
        lengths: configs that are lengths in tokens; any other length, 1 or more, is one too.
    """

    name: str
    load: Callable[["PromptSet", Wanted], tuple[Prompt, ...]]
    sources: Mapping[str, Source] = field(default_factory=dict)
    lengths: tuple[str, ...] = ()

    @property
    def sets(self) -> tuple["PromptSet", ...]:
        """What can be listed of it: each config, or all there is."""
        configs = self.lengths or tuple(self.sources) or ("",)
        return tuple(PromptSet(dataset=self, config=config) for config in configs)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSet:
    """A dataset, and which of its configs; empty where it has none."""

    dataset: Dataset
    config: str = ""

    @property
    def name(self) -> str:
        """`speed-bench-qualitative`: the full name, part of a case's id."""
        return f"{self.dataset.name}-{self.config}" if self.config else self.dataset.name

    @property
    def source(self) -> Source | None:
        """Where it is published, None where there is nothing to prepare."""
        return self.dataset.sources.get(self.config)

    def load_prompts(self, wanted: Wanted) -> tuple[Prompt, ...]:
        """All prompts of the set.

        Raises:
            DatasetError: it wasn't prepared, or can't be read.
        """
        return self.dataset.load(self, wanted)
