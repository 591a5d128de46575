"""A published set in, prompts that a case can replay out: checked, and with a record of them."""

import collections
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from specreg.core.commands import specreg_command
from specreg.core.errors import DatasetError
from specreg.core.files import replace_file
from specreg.datasets import Prompt, PromptSet, Source
from specreg.datasets._prepared import (
    Prepared,
    file_sha256,
    load_record,
    prompts_path,
    record_path,
)
from specreg.datasets.formats import Loaded
from specreg.datasets.hub import fetch_dataset_file
from specreg.datasets.prompts import interleaved

_ANY = "main"


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """What is asked of preparing a set.

    Attributes:
        data_dir: where it is written.
        given: the user's file, or a folder that holds it; None to fetch it.
        part: whether the file may hold other rows than were published.
        prompts: how many to keep, spread over the categories; None for all.
        revision: of the hub's dataset, a branch, a tag or a commit.
        show: told what happens, a line at a time.
    """

    data_dir: Path
    given: Path | None = None
    part: bool = False
    prompts: int | None = None
    revision: str = _ANY
    show: Callable[[str], None] = lambda _: None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Origin:
    """A file to read, and what to record of it."""

    path: Path
    source: str
    revision: str


def prepare(one: PromptSet, asked: Preparation) -> Prepared:
    """Writes a set's prompts and its record, unless both are there already.

    Raises:
        DatasetError: it can't be had, read or written, or isn't what was published.
    """
    source = one.source
    if source is None:
        message = f"dataset '{one.name}': nothing to prepare; a case can name it as it is"
        raise DatasetError(message)
    kept = _kept(one, asked)
    if kept is not None:
        return kept
    asked.show(f"{one.name}: {source.url}\nlicence: {source.licence}. {source.terms}")
    origin = _origin_of(one, source, asked)
    asked.show(f"reading {origin.path}")
    loaded = source.row_form.load(origin.path)
    if loaded.left_out_rows:
        asked.show(f"{loaded.left_out_rows} rows left out: they ask nothing")
    if not asked.part:
        _check_counts(one.name, source, loaded.prompts)
    return _write(one, source, asked, origin, loaded)


def _write(
    one: PromptSet, source: Source, asked: Preparation, origin: _Origin, loaded: Loaded
) -> Prepared:
    """Writes the prompts, then what is known of them: a set without a record is none."""
    prompts = interleaved(loaded.prompts)[: asked.prompts]
    path = prompts_path(asked.data_dir, one.name)
    _write_file(path, b"".join(msgspec.json.encode(prompt) + b"\n" for prompt in prompts))
    record = Prepared(
        dataset=one.name,
        source=origin.source,
        revision=origin.revision,
        licence=source.licence,
        rows=len(loaded.prompts) + loaded.left_out_rows,
        left_out=loaded.left_out_rows,
        prompts=len(prompts),
        asked=asked.prompts,
        part=asked.part,
        categories=dict(collections.Counter(prompt.category for prompt in prompts)),
        source_sha256=file_sha256(origin.path),
        sha256=file_sha256(path),
    )
    encoded = msgspec.json.format(msgspec.json.encode(record)) + b"\n"
    _write_file(record_path(asked.data_dir, one.name), encoded)
    asked.show(f"wrote {_summary(record)} to {path}")
    return record


def _write_file(path: Path, content: bytes) -> None:
    try:
        replace_file(path, content)
    except OSError as error:
        message = f"file '{path}': {error.strerror}; name a folder that can be written"
        raise DatasetError(message) from error


def _kept(one: PromptSet, asked: Preparation) -> Prepared | None:
    """The record of a set that is what is asked for, and says so; None where it must be written."""
    try:
        record = load_record(asked.data_dir, one.name)
    except DatasetError as error:
        asked.show(str(error))
        return None
    if record is None or not _as_asked(record, one, asked):
        return None
    path = record_path(asked.data_dir, one.name)
    asked.show(
        f"{one.name}: kept {_summary(record)}, of {record.source}; remove {path} to prepare it anew"
    )
    return record


def _as_asked(record: Prepared, one: PromptSet, asked: Preparation) -> bool:
    """Whether preparing the set would write what is there; of the hub, any revision is as good."""
    given = None if asked.given is None else file_sha256(_file_in(asked.given, one))
    return (
        (record.asked, record.part) == (asked.prompts, asked.part)
        and given in {None, record.source_sha256}
        and asked.revision in {_ANY, record.revision}
    )


def _origin_of(one: PromptSet, source: Source, asked: Preparation) -> _Origin:
    if asked.given is not None:
        path = _file_in(asked.given, one)
        return _Origin(path=path, source=path.name, revision="")
    if not source.repo:
        command = specreg_command("prepare", one.name, "--from", "FILE")
        message = f"dataset '{one.name}': isn't on the hub; get {source.url} and run {command}"
        raise DatasetError(message)
    asked.show(f"fetching {source.file} of {source.repo}")
    fetched = fetch_dataset_file(source.repo, source.file, asked.revision)
    return _Origin(path=fetched.path, source=source.repo, revision=fetched.commit)


def _file_in(given: Path, one: PromptSet) -> Path:
    """The user's file: what is given, or the set's usual file within that folder.

    Raises:
        DatasetError: there is none.
    """
    path = given / one.source.local if given.is_dir() and one.source else given
    if not path.is_file() or not os.access(path, os.R_OK):
        message = (
            f"dataset '{one.name}': '{path}' is no file that can be read; name one with --from"
        )
        raise DatasetError(message)
    return path


def _check_counts(name: str, source: Source, prompts: Sequence[Prompt]) -> None:
    """Silent where a set has as many rows and categories as were published.

    Raises:
        DatasetError: it hasn't.
    """
    categories = len({prompt.category for prompt in prompts})
    for noun, got, needed in (
        ("rows", len(prompts), source.rows),
        ("categories", categories, source.categories),
    ):
        if needed is not None and got != needed:
            message = (
                f"dataset '{name}': {got} {noun}, needed {needed}; get the whole file, or say"
                " --part if a part is what you want"
            )
            raise DatasetError(message)


def _summary(record: Prepared) -> str:
    return f"{record.prompts} prompts (categories: {len(record.categories)})"
