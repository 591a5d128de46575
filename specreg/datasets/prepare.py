"""Write published sets as cases replay them, and load the prompts of any set.

A prepared set is two files: its prompts, and a record of what they are.
"""

import collections
import functools
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np

from specreg.core.commands import specreg_command
from specreg.core.errors import DatasetError
from specreg.core.files import UNREADABLE, file_sha256, replace_file, repository_path
from specreg.core.files import data_dir as usual_data_dir
from specreg.datasets.formats import load_prompt_file, load_published_rows
from specreg.datasets.hub import fetch_dataset_file
from specreg.datasets.prompts import Prompt, interleaved
from specreg.datasets.table import PromptSet

_TOYS = "fixtures/prompts"
"""Five categories in the tiny models' own language: single turns, and conversations of three."""
_MOST_RANDOM_PROMPTS, _MOST_RANDOM_TOKENS = 1024, 2**22
"""Of a length; those longer than 4,096 tokens are fewer."""


class PreparedSet(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a prepared set.

    Attributes:
        source: the dataset of the hub, or the name of the user's file.
        revision: the hub's commit; empty for a user's file.
        rows: how many the source has; left_out: those of them without a prompt.
        source_sha256, sha256: of the source's file, and of the prompts as they were written.
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

    def __str__(self) -> str:
        return f"{self.prompts} prompts (categories: {len(self.categories)})"


def load_prompts(
    one: PromptSet, *, root: Path, vocabulary: Callable[[], int], data_dir: Path | None = None
) -> tuple[Prompt, ...]:
    """Load all prompts of a set; categories are interleaved, so that any first n are spread.

    `vocabulary` tells how many token ids the target knows, and is called for random ids alone.
    Prepared sets lie in `data_dir`; None for SPECREG_DATA, else specreg's cache. A DatasetError of
    one that isn't prepared, isn't what was written, or can't be read.
    """
    if one.tokens is not None:
        return _random_prompts(one.tokens, vocabulary())
    if not one.licence:
        return load_prompt_file(repository_path(root, f"{_TOYS}/{one.name}.jsonl"))
    folder = data_dir or usual_data_dir()
    record = load_record(folder, one.name)
    if record is None:
        raise DatasetError(
            f"dataset '{one.name}': not prepared on this machine; run"
            f" {specreg_command('prepare', one.name)}"
        )
    return _prepared_prompts(paths_of(folder, one.name)[0], record.sha256)


def prepare(
    one: PromptSet,
    *,
    data_dir: Path,
    given: Path | None = None,
    show: Callable[[str], None] = lambda _: None,
) -> PreparedSet:
    """Write a set's prompts and its record, from the hub or from the user's file.

    What is there already is kept, unless a file is given. `show` takes each line of progress. A
    DatasetError where it can't be had, read or written.
    """
    if not one.licence:
        raise DatasetError(f"dataset '{one.name}': nothing to prepare; a case can name it as it is")
    written, record_file = paths_of(data_dir, one.name)
    if given is None:
        try:
            if kept := load_record(data_dir, one.name):
                also = f"remove {record_file} to prepare it anew"
                show(f"{one.name}: kept {kept}, of {kept.source}; {also}")
                return kept
        except DatasetError as error:
            show(str(error))
    show(f"{one.name}: {one.url}\nlicence: {one.licence}")
    if given is not None:
        path, source, revision = given, given.name, ""
    elif one.repo:
        show(f"fetching {one.file} of {one.repo}")
        source = one.repo
        path, revision = fetch_dataset_file(one.repo, one.file)
    else:
        command = specreg_command("prepare", one.name, "--from", "FILE")
        message = f"dataset '{one.name}': isn't on the hub; get {one.url} and run {command}"
        raise DatasetError(message)
    show(f"reading {path}")
    loaded, left_out_rows = load_published_rows(path, one)
    if left_out_rows:
        show(f"{left_out_rows} rows left out: they hold no prompt")
    if one.rows not in {None, len(loaded)}:
        show(f"{len(loaded)} prompts, published are {one.rows}: a part is what will be replayed")
    prompts = interleaved(loaded)
    # The prompts, then what is known of them: a set without a record is none.
    try:
        replace_file(written, b"".join(msgspec.json.encode(one) + b"\n" for one in prompts))
        record = PreparedSet(
            dataset=one.name,
            source=source,
            revision=revision,
            licence=one.licence,
            rows=len(loaded) + left_out_rows,
            left_out=left_out_rows,
            prompts=len(prompts),
            categories=dict(collections.Counter(prompt.category for prompt in prompts)),
            source_sha256=file_sha256(path),
            sha256=file_sha256(written),
        )
        encoded = msgspec.json.format(msgspec.json.encode(record)) + b"\n"
        replace_file(record_file, encoded)
    except OSError as error:
        message = f"file '{written}': {error.strerror}; name a folder that can be written"
        raise DatasetError(f"{message} with SPECREG_DATA") from error
    show(f"wrote {record} to {written}")
    return record


def paths_of(folder: Path, name: str) -> tuple[Path, Path]:
    """Return the paths of a set's prompts and of its record."""
    return folder / f"{name}.jsonl", folder / f"{name}.json"


def load_record(folder: Path, name: str) -> PreparedSet | None:
    """The record of a set, None where there is none.

    A DatasetError where it can't be read, or the prompts are no longer what was written.
    """
    prompts, path = paths_of(folder, name)
    remedy = f"prepare it anew: {specreg_command('prepare', name)}"
    try:
        record = msgspec.json.decode(path.read_bytes(), type=PreparedSet)
        got = file_sha256(prompts)
    except FileNotFoundError:
        return None
    except (OSError, *UNREADABLE) as error:
        raise DatasetError(f"dataset '{name}': {path}: {error}; {remedy}") from error
    if got != record.sha256:
        raise DatasetError(
            f"dataset '{name}': {prompts} is not what was prepared (SHA-256 {got[:12]}…, needed"
            f" {record.sha256[:12]}…); {remedy}"
        )
    return record


@functools.lru_cache(maxsize=4)  # a run asks again and again, and ShareGPT takes seconds
def _prepared_prompts(path: Path, sha256: str) -> tuple[Prompt, ...]:  # noqa: ARG001 - part of the key
    """The prompts of a file that has this checksum."""
    return load_prompt_file(path)


@functools.lru_cache(maxsize=2)  # each case of a tier asks for the same
def _random_prompts(length_tokens: int, vocabulary: int) -> tuple[Prompt, ...]:
    """Token ids drawn at random, by NumPy's frozen generator.

    Each prompt has a seed of its own. They overstate throughput with speculation: a model that is
    asked nonsense soon repeats itself. Their figures are for prefill and for comparison.
    """
    ids = np.arange(vocabulary).astype(object)  # one Python integer each, however often it is drawn
    prompts = []
    for number in range(min(_MOST_RANDOM_PROMPTS, max(1, _MOST_RANDOM_TOKENS // length_tokens))):
        seeded = np.random.RandomState([length_tokens, number])
        drawn = tuple(ids[seeded.randint(vocabulary, size=length_tokens)])
        prompts.append(Prompt(id=f"random-{number}", category="random", token_ids=drawn))
    return tuple(prompts)
