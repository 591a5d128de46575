"""Sets that aren't committed: `specreg prepare` writes them, this reads them.

A set is two files: its prompts as rows of the form `specreg`, and a record of what they are.
"""

import functools
import hashlib
from pathlib import Path

import msgspec

from specreg.core.commands import specreg_command
from specreg.core.decoding import UNREADABLE
from specreg.core.errors import DatasetError
from specreg.datasets._dataset import Prompt, PromptSet, Wanted
from specreg.datasets.formats import form_named


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a prepared set.

    Attributes:
        dataset: its full name.
        source: the dataset of the hub, or the name of the user's file.
        revision: the hub's commit; empty for a user's file.
        licence: as its publishers call it.
        rows: how many the source has; left_out: those of them that ask nothing.
        prompts: how many were written; asked: how many were asked for, None for all.
        part: whether the source may hold other rows than were published.
        categories: how many prompts were written of each.
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


def prompts_path(folder: Path, name: str) -> Path:
    """Where the prompts of a set lie."""
    return folder / f"{name}.jsonl"


def record_path(folder: Path, name: str) -> Path:
    """Where the record of a set lies."""
    return folder / f"{name}.json"


def load_record(folder: Path, name: str) -> Prepared | None:
    """The record of a set whose prompts are still what was written; None where there is none.

    Raises:
        DatasetError: there is one that can't be read, or the prompts are others.
    """
    path, remedy = record_path(folder, name), f"prepare it anew: {specreg_command('prepare', name)}"
    try:
        record = msgspec.json.decode(path.read_bytes(), type=Prepared)
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


def load_prepared(one: PromptSet, wanted: Wanted) -> tuple[Prompt, ...]:
    """The prompts of a prepared set.

    Raises:
        DatasetError: nobody prepared it here, or its files are no longer what was written.
    """
    record = load_record(wanted.data_dir, one.name)
    if record is None:
        message = (
            f"dataset '{one.name}': not prepared on this machine; run"
            f" {specreg_command('prepare', one.name)}"
        )
        raise DatasetError(message)
    return _prompts_of(prompts_path(wanted.data_dir, one.name), record.sha256)


@functools.lru_cache(maxsize=4)  # a run asks again and again, and ShareGPT takes seconds
def _prompts_of(path: Path, sha256: str) -> tuple[Prompt, ...]:  # noqa: ARG001 - part of the key
    """The prompts of a file that has this checksum."""
    return form_named("specreg").load(path).prompts


def file_sha256(path: Path) -> str:
    """The checksum of a file, 64 hexadecimal digits.

    Raises:
        OSError: it can't be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
