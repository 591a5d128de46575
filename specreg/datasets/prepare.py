"""Write published sets as cases replay them, and load the prompts of any set.

A prepared set is two files: its prompts in the format `specreg`, and a record of what they are.
"""

import collections
import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from specreg.core.commands import specreg_command
from specreg.core.errors import DatasetError
from specreg.core.files import UNREADABLE, file_sha256, replace_file
from specreg.core.files import data_dir as usual_data_dir
from specreg.datasets.formats import FORMATS
from specreg.datasets.hub import fetch_dataset_file
from specreg.datasets.prompts import Prompt, interleaved
from specreg.datasets.table import PromptSet

_ANY = "main"
_TOY = "fixtures/prompts/toy.jsonl"
"""Single turns of five categories, in the tiny models' own language."""
_MOST_RANDOM_PROMPTS, _MOST_RANDOM_TOKENS = 1024, 2**22
"""Of a length; those longer than 4,096 tokens are fewer."""


class PreparedSet(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a prepared set.

    Attributes:
        source: the dataset of the hub, or the name of the user's file.
        revision: the hub's commit; empty for a user's file.
        rows: how many the source has; left_out: those of them that ask nothing.
        prompts: how many were written; asked: how many were asked for, None for all.
        part: whether the source may hold other rows than were published.
        source_sha256, sha256: of the source's file, and of the prompts as they were written.
    """

    dataset: str
    source: str
    revision: str
    licence: str
    rows: int
    left_out: int
    prompts: int
    asked: int | None
    part: bool
    categories: dict[str, int]
    source_sha256: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """What is asked of preparing a set.

    Attributes:
        data_dir: where it is written.
        given: the user's file, or a folder that holds it; None to fetch it.
        part: whether the file may hold other rows than were published.
        prompts: how many to keep, spread over the categories; None for all.
        revision: of the hub's dataset, a branch, a tag or a commit.
        show: takes each line of progress.
    """

    data_dir: Path
    given: Path | None = None
    part: bool = False
    prompts: int | None = None
    revision: str = _ANY
    show: Callable[[str], None] = lambda _: None


def load_prompts(
    one: PromptSet, *, root: Path, vocabulary: Callable[[], int], data_dir: Path | None = None
) -> tuple[Prompt, ...]:
    """Load all prompts of a set; categories are interleaved, so that any first n are spread.

    Args:
        one: the set.
        root: the repository's.
        vocabulary: how many token ids the target knows; asked of by prompts of ids alone.
        data_dir: where prepared sets lie; None for SPECREG_DATA, else specreg's cache.

    Raises:
        DatasetError: it isn't prepared, its files are no longer what was written, or they can't be
            read.
    """
    if one.tokens is not None:
        return _random_prompts(one.tokens, vocabulary())
    if not one.form:
        return FORMATS["specreg"].load(root / _TOY)[0]
    folder = data_dir or usual_data_dir()
    record = load_record(folder, one.name)
    if record is None:
        message = (
            f"dataset '{one.name}': not prepared on this machine; run"
            f" {specreg_command('prepare', one.name)}"
        )
        raise DatasetError(message)
    return _prepared_prompts(prompts_path(folder, one.name), record.sha256)


def prepare(one: PromptSet, asked: Preparation) -> PreparedSet:
    """Write a set's prompts and its record, unless both are there already.

    Raises:
        DatasetError: it can't be had, read or written, or isn't what was published.
    """
    if not one.form:
        message = f"dataset '{one.name}': nothing to prepare; a case can name it as it is"
        raise DatasetError(message)
    kept = _kept(one, asked)
    if kept is not None:
        return kept
    asked.show(f"{one.name}: {one.url}\nlicence: {one.licence}. {one.terms}")
    path, source, revision = _origin_of(one, asked)
    asked.show(f"reading {path}")
    loaded, left_out_rows = FORMATS[one.form].load(path)
    if left_out_rows:
        asked.show(f"{left_out_rows} rows left out: they ask nothing")
    if not asked.part:
        _check_counts(one, loaded)
    prompts = interleaved(loaded)[: asked.prompts]
    written = prompts_path(asked.data_dir, one.name)
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
            asked=asked.prompts,
            part=asked.part,
            categories=dict(collections.Counter(prompt.category for prompt in prompts)),
            source_sha256=file_sha256(path),
            sha256=file_sha256(written),
        )
        encoded = msgspec.json.format(msgspec.json.encode(record)) + b"\n"
        replace_file(record_path(asked.data_dir, one.name), encoded)
    except OSError as error:
        message = f"file '{written}': {error.strerror}; name a folder that can be written"
        raise DatasetError(message) from error
    asked.show(f"wrote {_summary(record)} to {written}")
    return record


def prompts_path(folder: Path, name: str) -> Path:
    """Where the prompts of a set lie."""
    return folder / f"{name}.jsonl"


def record_path(folder: Path, name: str) -> Path:
    """Where the record of a set lies."""
    return folder / f"{name}.json"


def load_record(folder: Path, name: str) -> PreparedSet | None:
    """The record of a set whose prompts are still what was written; None where there is none.

    Raises:
        DatasetError: there is one that can't be read, or the prompts are others.
    """
    path, remedy = record_path(folder, name), f"prepare it anew: {specreg_command('prepare', name)}"
    try:
        record = msgspec.json.decode(path.read_bytes(), type=PreparedSet)
        got = file_sha256(prompts_path(folder, name))
    except FileNotFoundError:
        return None
    except (OSError, *UNREADABLE) as error:
        raise DatasetError(f"dataset '{name}': {path}: {error}; {remedy}") from error
    if got != record.sha256:
        message = (
            f"dataset '{name}': {prompts_path(folder, name)} is not what was prepared (SHA-256"
            f" {got[:12]}…, needed {record.sha256[:12]}…); {remedy}"
        )
        raise DatasetError(message)
    return record


@functools.lru_cache(maxsize=4)  # a run asks again and again, and ShareGPT takes seconds
def _prepared_prompts(path: Path, sha256: str) -> tuple[Prompt, ...]:  # noqa: ARG001 - part of the key
    """The prompts of a file that has this checksum."""
    return FORMATS["specreg"].load(path)[0]


@functools.lru_cache(maxsize=2)  # each case of a tier asks for the same
def _random_prompts(length_tokens: int, vocabulary: int) -> tuple[Prompt, ...]:
    """Token ids drawn at random, by NumPy's frozen generator.

    Each prompt has a seed of its own. They overstate throughput with speculation: a model that is
    asked nonsense soon repeats itself. Their figures are for prefill and for comparison.
    """
    ids = np.arange(vocabulary).astype(object)  # one Python integer each, however often it is drawn
    return tuple(
        Prompt(
            id=f"random-{number}",
            category="random",
            token_ids=tuple(
                ids[
                    np.random.RandomState([length_tokens, number]).randint(
                        vocabulary, size=length_tokens
                    )
                ]
            ),
        )
        for number in range(min(_MOST_RANDOM_PROMPTS, max(1, _MOST_RANDOM_TOKENS // length_tokens)))
    )


def _kept(one: PromptSet, asked: Preparation) -> PreparedSet | None:
    """The record of a set that is what is asked for, and says so; None where it must be written."""
    try:
        record = load_record(asked.data_dir, one.name)
    except DatasetError as error:
        asked.show(str(error))
        return None
    given = None if asked.given is None else file_sha256(_file_in(asked.given, one))
    if (
        record is None
        or (record.asked, record.part) != (asked.prompts, asked.part)
        or given not in {None, record.source_sha256}
        or asked.revision not in {_ANY, record.revision}
    ):
        return None
    path = record_path(asked.data_dir, one.name)
    asked.show(
        f"{one.name}: kept {_summary(record)}, of {record.source}; remove {path} to prepare it anew"
    )
    return record


def _origin_of(one: PromptSet, asked: Preparation) -> tuple[Path, str, str]:
    """The file to read, and the source and revision to record of it."""
    if asked.given is not None:
        path = _file_in(asked.given, one)
        return path, path.name, ""
    if not one.repo:
        command = specreg_command("prepare", one.name, "--from", "FILE")
        message = f"dataset '{one.name}': isn't on the hub; get {one.url} and run {command}"
        raise DatasetError(message)
    asked.show(f"fetching {one.file} of {one.repo}")
    path, commit = fetch_dataset_file(one.repo, one.file, asked.revision)
    return path, one.repo, commit


def _file_in(given: Path, one: PromptSet) -> Path:
    """The user's file: what is given, or the set's usual file within that folder."""
    path = given / (one.own_name or one.file) if given.is_dir() else given
    if not path.is_file() or not os.access(path, os.R_OK):
        message = (
            f"dataset '{one.name}': '{path}' is no file that can be read; name one with --from"
        )
        raise DatasetError(message)
    return path


def _check_counts(one: PromptSet, prompts: Sequence[Prompt]) -> None:
    """Check that a set has as many rows and categories as were published."""
    categories = len({prompt.category for prompt in prompts})
    for noun, got, needed in (
        ("rows", len(prompts), one.rows),
        ("categories", categories, one.categories),
    ):
        if needed not in {None, got}:
            message = (
                f"dataset '{one.name}': {got} {noun}, needed {needed}; get the whole file, or say"
                " --part if a part is what you want"
            )
            raise DatasetError(message)


def _summary(record: PreparedSet) -> str:
    return f"{record.prompts} prompts (categories: {len(record.categories)})"
