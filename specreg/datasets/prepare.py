"""Prepare published sets, and load the prompts of any set.

A prepared set consists of two files: its prompts in specreg's format, and a record that describes
them.
"""

import collections
import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from specreg.core.commands import specreg_command
from specreg.core.counted import counted
from specreg.core.errors import DatasetError
from specreg.core.files import (
    MIB,
    UNREADABLE,
    cause_of,
    check_can_write,
    file_sha256,
    read_regular,
    replace_file,
    repository_path,
)
from specreg.core.files import data_dir as usual_data_dir
from specreg.datasets.hub import fetch_dataset_file
from specreg.datasets.prompt_files import PublishedPrompts, load_prompt_file
from specreg.datasets.prompts import Prompt, interleaved
from specreg.datasets.published_file import read_published_file
from specreg.datasets.table import PromptSet
from specreg.datasets.worked_examples import with_examples

_TOYS = "fixtures/prompts"
"""The toy sets: single turns of five categories in the tiny models' language, and conversations."""
_MAX_RANDOM_PROMPTS = 1024
"""The most prompts of a set of random token ids."""
_MAX_RANDOM_TOKENS = 2**22
"""The most tokens that all prompts of such a set have together. So there are fewer prompts if they
have more than 4,096 tokens each."""


class PreparedSet(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a prepared set.

    Attributes:
        dataset: the full name of the set.
        source: the dataset of the hub, or the name of the user's file.
        revision: the hub's commit; empty for a user's file.
        licence: the licence of the set.
        rows: the number of rows of the source.
        left_out: the number of rows without a prompt.
        unused: see `PublishedPrompts`; empty if the set was prepared before this was recorded.
        prompts: the number of prompts.
        categories: the number of prompts of each category.
        source_sha256: the checksum of the source's file.
        sha256: the checksum of the file of prompts.
    """

    dataset: str
    source: str
    revision: str
    licence: str
    rows: int
    left_out: int
    prompts: int
    categories: dict[str, int]
    source_sha256: str
    sha256: str
    unused: dict[str, int] = {}

    def __str__(self) -> str:
        return f"{counted(self.prompts, 'prompt')} (categories: {len(self.categories)})"


def load_prompts(
    prompt_set: PromptSet,
    *,
    root: Path,
    vocabulary: Callable[[], int],
    data_dir: Path | None = None,
) -> tuple[Prompt, ...]:
    """Load all prompts of a set, in an order that mixes its categories evenly.

    Even if only the first n prompts are used, they are spread evenly over the categories.

    Args:
        root: the root of the repository, with the toy sets.
        vocabulary: returns how many token ids the target has; called only for random token ids.
        data_dir: the folder of the prepared sets; None for SPECREG_DATA, or else specreg's cache.

    Raises:
        DatasetError: the set isn't prepared, was changed since, or can't be read.
        ModelError: the vocabulary isn't known.
    """
    if prompt_set.tokens is not None:
        return _random_prompts(prompt_set.tokens, vocabulary())
    name = prompt_set.name

    # Only a set that needs to be prepared has a licence.
    if not prompt_set.licence:
        return load_prompt_file(repository_path(root, f"{_TOYS}/{name}.jsonl"))
    folder = data_dir or usual_data_dir()
    record = load_record(folder, prompt_set)
    if record is None:
        remedy = _how_to_prepare(prompt_set)
        raise DatasetError(f"dataset '{name}': not prepared on this machine; {remedy}")
    prompts_path, _ = paths_of(folder, name)
    return _prepared_prompts(prompts_path, record.sha256)


def prepare_command(prompt_set: PromptSet) -> str:
    """Return the command that prepares a set, from the user's file if the hub doesn't have it."""
    if prompt_set.repo:
        return specreg_command("prepare", prompt_set.name)
    return specreg_command("prepare", prompt_set.name, "--from", "FILE")


def _how_to_prepare(prompt_set: PromptSet) -> str:
    """Return what a user has to do so that a set is prepared."""
    command = prepare_command(prompt_set)
    if prompt_set.repo:
        return f"run {command}"
    return f"get {prompt_set.url} and run {command}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _SourceFile:
    """The file from which a set is prepared.

    Attributes:
        path: the file.
        source: see `PreparedSet`.
        revision: see `PreparedSet`.
    """

    path: Path
    source: str
    revision: str


def prepare(
    prompt_set: PromptSet,
    *,
    data_dir: Path,
    user_file: Path | None = None,
    show: Callable[[str], None] = lambda _: None,
) -> PreparedSet:
    """Write a set's prompts and its record, from the hub or from the user's file.

    A set that is prepared already is kept, unless a file is given.

    Args:
        data_dir: the folder of the prepared sets.
        user_file: the user's file; None to fetch the set from the hub.
        show: takes each line of progress.

    Returns:
        The record of the set, also if it was kept.

    Raises:
        DatasetError: the set needs no preparation, or can't be fetched, read or written.
    """
    name = prompt_set.name
    if not prompt_set.licence:
        raise DatasetError(f"dataset '{name}': needs no preparation; a case can name it directly")
    if user_file is None:
        kept_record = _kept_record(prompt_set, data_dir, show)
        if kept_record is not None:
            return kept_record

    prompts_path, _ = paths_of(data_dir, name)
    with _naming_file(prompts_path):
        # Fetching a set takes minutes, so the folder is tried before.
        check_can_write(data_dir)
    show(f"{name}: {prompt_set.url}\nlicence: {prompt_set.licence}")
    source_file = _source_file(prompt_set, user_file, show)
    show(f"reading {source_file.path}")
    published = read_published_file(source_file.path, prompt_set)
    if published.left_out_rows:
        show(f"{counted(published.left_out_rows, 'row')} without a prompt left out")
    if published.unused:
        columns = (f"{name} ({counted(rows, 'row')})" for name, rows in published.unused.items())
        show(f"only the user's prompts are replayed, without: {', '.join(columns)}")
    read_prompts = len(published.prompts)
    if prompt_set.rows not in {None, read_prompts}:
        show(f"{read_prompts} of {prompt_set.rows} published prompts: only these will be replayed")
    if prompt_set.examples_file:
        published = _with_examples(prompt_set, published, show)
    with _naming_file(prompts_path):
        record = _write(prompt_set, source_file, published, data_dir)
    show(f"wrote {record} to {prompts_path}")
    return record


@contextlib.contextmanager
def _naming_file(path: Path) -> Iterator[None]:
    """Raise an OSError of the context as a DatasetError that names the file to be written."""
    try:
        yield
    except OSError as error:
        remedy = "set SPECREG_DATA to a folder that can be written"
        raise DatasetError(f"file '{path}': {error.strerror}; {remedy}") from error


def _kept_record(
    prompt_set: PromptSet, data_dir: Path, show: Callable[[str], None]
) -> PreparedSet | None:
    """Return the record of a set that is prepared already; None if it has to be prepared."""
    name = prompt_set.name

    try:
        record = load_record(data_dir, prompt_set)
    except DatasetError as error:
        show(str(error))
        return None

    if record is not None:
        _, record_path = paths_of(data_dir, name)
        remedy = f"remove {record_path} to prepare it anew"
        show(f"{name}: kept {record} from {record.source}; {remedy}")

    return record


def _source_file(
    prompt_set: PromptSet, user_file: Path | None, show: Callable[[str], None]
) -> _SourceFile:
    """Return the user's file, or fetch the set's file from the hub.

    Raises:
        DatasetError: the set isn't on the hub, or can't be fetched.
    """
    if user_file is not None:
        return _SourceFile(path=user_file, source=user_file.name, revision="")
    if not prompt_set.repo:
        remedy = _how_to_prepare(prompt_set)
        raise DatasetError(f"dataset '{prompt_set.name}': isn't on the hub; {remedy}")
    show(f"fetching {prompt_set.file} of {prompt_set.repo}")
    path, revision = fetch_dataset_file(prompt_set.repo, prompt_set.file)
    return _SourceFile(path=path, source=prompt_set.repo, revision=revision)


def _with_examples(
    prompt_set: PromptSet, published: PublishedPrompts, show: Callable[[str], None]
) -> PublishedPrompts:
    """Return the prompts of a set, each after worked examples, which are fetched from the hub.

    Raises:
        DatasetError: the examples can't be fetched or read.
    """
    show(f"fetching {prompt_set.examples_file} of {prompt_set.repo}")
    path, _ = fetch_dataset_file(prompt_set.repo, prompt_set.examples_file)
    examples = read_published_file(path, prompt_set, has_examples=True)
    prompts = with_examples(published.prompts, examples.prompts)
    return msgspec.structs.replace(published, prompts=prompts)


def _write(
    prompt_set: PromptSet, source_file: _SourceFile, published: PublishedPrompts, data_dir: Path
) -> PreparedSet:
    """Write the prompts of a set, with the categories interleaved, and then its record.

    The record comes last, because a set without a record counts as not prepared.
    """
    prompts_path, record_path = paths_of(data_dir, prompt_set.name)
    ordered = interleaved(published.prompts)
    replace_file(prompts_path, b"".join(msgspec.json.encode(prompt) + b"\n" for prompt in ordered))
    record = PreparedSet(
        dataset=prompt_set.name,
        source=source_file.source,
        revision=source_file.revision,
        licence=prompt_set.licence,
        rows=len(ordered) + published.left_out_rows,
        left_out=published.left_out_rows,
        unused=published.unused,
        prompts=len(ordered),
        categories=dict(collections.Counter(prompt.category for prompt in ordered)),
        source_sha256=file_sha256(source_file.path),
        sha256=file_sha256(prompts_path),
    )
    replace_file(record_path, msgspec.json.format(msgspec.json.encode(record)) + b"\n")
    return record


def paths_of(folder: Path, name: str) -> tuple[Path, Path]:
    """Return the paths of a set's prompts and of its record."""
    return folder / f"{name}.jsonl", folder / f"{name}.json"


def load_record(folder: Path, prompt_set: PromptSet) -> PreparedSet | None:
    """Load the record of a prepared set; return None if the record or its prompts are missing.

    Raises:
        DatasetError: a file can't be read, or the prompts were changed since they were written.
    """
    name = prompt_set.name
    prompts_path, record_path = paths_of(folder, name)
    remedy = f"prepare it anew: {_how_to_prepare(prompt_set)}"
    try:
        record = msgspec.json.decode(read_regular(record_path, MIB), type=PreparedSet)
        sha256 = file_sha256(prompts_path)
    except FileNotFoundError:
        return None
    except (OSError, *UNREADABLE) as error:
        message = f"dataset '{name}': {record_path}: {cause_of(error)}"
        raise DatasetError(f"{message}; {remedy}") from error

    if sha256 != record.sha256:
        raise DatasetError(
            f"dataset '{name}': {prompts_path} is not what was prepared (SHA-256 {sha256[:12]}…,"
            f" needed {record.sha256[:12]}…); {remedy}"
        )

    return record


# A run loads the same sets again and again, and ShareGPT takes seconds.
@functools.lru_cache(maxsize=4)
def _prepared_prompts(path: Path, sha256: str) -> tuple[Prompt, ...]:  # noqa: ARG001 - part of the key
    """Load the prompts of a file, whose checksum is part of the key of the cache."""
    return load_prompt_file(path)


# Each case of a tier needs the same prompts.
@functools.lru_cache(maxsize=2)
def _random_prompts(length_tokens: int, vocabulary: int) -> tuple[Prompt, ...]:
    """Draw token ids at random, with NumPy's frozen generator and a seed for each prompt.

    These prompts overstate throughput with speculation, because a model soon repeats itself after
    nonsense. They are meant for prefill and for comparisons.
    """
    # The array holds one Python integer for each id, however often the id is drawn.
    ids = np.arange(vocabulary).astype(object)
    affordable_prompts = max(1, _MAX_RANDOM_TOKENS // length_tokens)
    prompts: list[Prompt] = []
    for number in range(min(_MAX_RANDOM_PROMPTS, affordable_prompts)):
        generator = np.random.RandomState([length_tokens, number])
        token_ids = tuple(ids[generator.randint(vocabulary, size=length_tokens)])
        prompts.append(Prompt(id=f"random-{number}", category="random", token_ids=token_ids))

    return tuple(prompts)
