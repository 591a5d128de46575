"""Read prompt files, write published sets as cases replay them, and load the prompts of any set.

A file holds JSON lines, one JSON array, or Parquet: specreg's own prompts, or the rows of published
sets. A prepared set is two files: its prompts, and a record of what they are.
"""

import codecs
import collections
import functools
import importlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, TypeVar

import msgspec
import numpy as np

from specreg.core.commands import install_command, specreg_command
from specreg.core.errors import DatasetError
from specreg.core.files import (
    MIB,
    UNREADABLE,
    file_sha256,
    open_checked,
    read_bounded,
    read_regular,
    replace_file,
    repository_path,
)
from specreg.core.files import data_dir as usual_data_dir
from specreg.datasets.hub import fetch_dataset_file
from specreg.datasets.prompts import Prompt, interleaved
from specreg.datasets.table import FILLING, PromptSet

_T = TypeVar("_T")

_TOYS = "fixtures/prompts"
"""Five categories in the tiny models' own language: single turns, and conversations of three."""
_MOST_RANDOM_PROMPTS, _MOST_RANDOM_TOKENS = 1024, 2**22
"""Of a length; those longer than 4,096 tokens are fewer."""
_ID_CHARACTERS = 200
_MOST_ROWS = 1_000_000
"""The most rows of a file that are read; ShareGPT, the longest published set, has 94,145."""
_MOST_BYTES = 2**30
"""The most bytes of a file, or of what it unpacks to; ShareGPT has 673 MB."""
_BATCH_ROWS = 32
_ADVICE = "a row needs its prompt, under turns, prompt, messages, conversations, question or text"
# Half of SPEED-Bench's published rows are references to their sources, and begin so.
_PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"
_REMEDY = (
    f"NVIDIA publishes the row as a reference; fill it with {FILLING} and give what that writes"
    " with --from"
)


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
    Prepared sets lie in `data_dir`; None for SPECREG_DATA, else specreg's cache.

    Raises:
        DatasetError: it isn't prepared, isn't what was written, or can't be read.
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

    What is there already is kept, unless a file is given. `show` takes each line of progress.

    Raises:
        DatasetError: it can't be had, read or written.
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

    Raises:
        DatasetError: it can't be read, or the prompts are no longer what was written.
    """
    prompts, path = paths_of(folder, name)
    remedy = f"prepare it anew: {specreg_command('prepare', name)}"
    try:
        record = msgspec.json.decode(read_regular(path, MIB), type=PreparedSet)
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


class TextPart(msgspec.Struct, frozen=True, kw_only=True):
    """A text in a list of contents; parts of other types can't be replayed."""

    type: Literal["text", "input_text"] = "text"
    text: str


class Message(msgspec.Struct, frozen=True, kw_only=True, rename={"who": "from"}):
    """A message of a chat: `role` and `content`, or ShareGPT's `from` and `value`.

    Only the user's messages are replayed, so the content of any other may be anything: an agent's
    trace has null beside its tool calls.
    """

    role: str | None = None
    content: object = None
    who: str | None = None
    value: object = None

    @property
    def is_by_user(self) -> bool:
        """True if the user wrote the message."""
        return bool({self.role, self.who} & {"user", "human"})

    def text(self, place: str) -> str:
        """Return what the message says, with a line for each part, as vLLM joins them.

        Args:
            place: Where the message is, for errors: `$.messages[0]`.

        Raises:
            DatasetError: The content is neither null, a text, nor a list of texts.
        """
        field = "value" if self.content is None else "content"
        content = getattr(self, field)
        if content is None:
            return ""
        parts = content if isinstance(content, list) else [content]
        try:
            texts = msgspec.convert(parts, tuple[str | TextPart, ...])
        except msgspec.ValidationError as error:
            raise DatasetError(
                f"`{place}.{field}` is neither a text nor a list of texts: {error};"
                " remove the row, or leave only texts to the user's messages"
            ) from error
        return "\n".join(part.text if isinstance(part, TextPart) else part for part in texts)


_ID_COLUMNS = ("question_id", "prompt_id", "task_id")
_PROMPT_COLUMNS = ("messages", "conversations", "turns", "prompt", "question", "text")
_NO_ID = (b"null", b'""')


class PublishedRow(msgspec.Struct, frozen=True, kw_only=True):
    """The columns that published files have for a prompt.

    `question_id` and `turns` are FastChat's, `prompt_id` and `prompt` HuggingFaceH4's, `task_id`
    and `prompt` HumanEval's and MBPP's (its full form has `text`), `question` GSM8K's, `text`
    genai-perf's, `messages` NeMo-Skills' and `conversations` ShareGPT's, whose `id` is optional
    and not read.

    Of the ids and of the prompts a row is read by the first that it has; see `decode_row`.
    """

    question_id: int | float | str | None = None
    prompt_id: int | float | str | None = None
    task_id: int | float | str | None = None
    category: str | None = None
    turns: tuple[str, ...] | None = None
    prompt: str | tuple[str, ...] | None = None
    question: str | None = None
    text: str | None = None
    messages: tuple[Message, ...] | None = None
    conversations: tuple[Message, ...] | None = None

    def prompt_of(self, number: int, prompt_set: PromptSet) -> Prompt | None:
        """Convert the row to a prompt.

        Args:
            number: The row's number from 0, which is part of the id of a row without one.
            prompt_set: The set that the row is of.

        Returns:
            The prompt, or None if the row is a conversation in which the user says nothing.

        Raises:
            DatasetError: A column is missing, or holds what can't be replayed.
        """
        name = self._id or f"{prompt_set.dataset}-{number}"
        category = self.category or prompt_set.category
        try:
            turns = self._turns
        except DatasetError as error:
            raise DatasetError(f"prompt '{name}': {error}") from error
        if turns is None or not category:
            missing = "turns" if turns is None else "category"
            raise DatasetError(f"prompt '{name}': {missing} is missing; {_ADVICE}")
        is_chat = self.messages is not None or self.conversations is not None
        if is_chat and not (turns and all(map(str.strip, turns))):
            return None
        for place, turn in enumerate(turns, 1):
            if turn.lstrip().startswith(_PLACEHOLDER):
                subject = f"prompt '{name}', turn {place}"
                raise DatasetError(f"{subject}: a placeholder ('{_PLACEHOLDER} …'); {_REMEDY}")
        return Prompt(id=name, category=category, turns=turns)

    @property
    def _id(self) -> str:
        """The row's id; empty where it has none."""
        for column in _ID_COLUMNS:
            value = getattr(self, column)
            if isinstance(value, float):
                # A table that lacks some ids has all of them as floats, 11.0 for 11.
                if not value.is_integer():
                    message = f"Expected `int` or `str`, got {value} - at `$.{column}`"
                    raise DatasetError(f"{message}; give the row an id of its own")
                value = int(value)
            if value is not None:
                return str(value)
        return ""

    @property
    def _turns(self) -> tuple[str, ...] | None:
        """What the user says, turn by turn; None where the row has no column for it."""
        for column in _PROMPT_COLUMNS:
            value = getattr(self, column)
            if column in {"messages", "conversations"} and value is not None:
                return tuple(
                    message.text(f"$.{column}[{place}]")
                    for place, message in enumerate(value)
                    if message.is_by_user
                )
            if value is not None:
                return (value,) if isinstance(value, str) else value
        return None


def decode_row(content: bytes) -> PublishedRow:
    """Decode a row of a published file by the columns that its prompt is made of.

    What the other columns hold doesn't matter: not their types, and not whether they are null.
    """
    columns = decode_json(content, dict[str, msgspec.Raw])
    texts = {name: bytes(value) for name, value in columns.items()}
    ids = [name for name in _ID_COLUMNS if texts.get(name, b"null") not in _NO_ID]
    prompts = [name for name in _PROMPT_COLUMNS if texts.get(name, b"null") != b"null"]
    used = [*ids[:1], *prompts[:1], *(["category"] if "category" in columns else [])]
    return decode_json(msgspec.json.encode({name: columns[name] for name in used}), PublishedRow)


def decode_json(content: bytes, kind: type[_T]) -> _T:
    """Decode JSON in which numbers may be missing.

    pandas and Python's own json write a missing number as NaN, which isn't JSON. It is null here.

    Raises:
        msgspec.DecodeError: It isn't JSON, or not of that kind.
    """
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError as error:
        try:
            lenient = json.loads(content, parse_constant=lambda _: None)
            repaired = msgspec.json.encode(lenient)
        except (ValueError, RecursionError):
            raise error from None
        return msgspec.json.decode(repaired, type=kind)


def load_prompt_file(path: Path) -> tuple[Prompt, ...]:
    """The prompts of a file of specreg's own, as `load_published_rows` loads those of others."""

    def prompt_of(content: bytes, _: int) -> Prompt:
        return msgspec.json.decode(content, type=Prompt)

    return _load(path, Prompt, prompt_of)[0]


def load_published_rows(path: Path, one: PromptSet) -> tuple[tuple[Prompt, ...], int]:
    """Load the prompts of a set's file in the order of its rows; count the rows without one.

    Raises:
        DatasetError: the file can't be read, is empty, or a row is wrong; it names file, row and
            field.
    """

    def prompt_of(content: bytes, number: int) -> Prompt | None:
        return decode_row(content).prompt_of(number, one)

    return _load(path, PublishedRow, prompt_of)


def _load(
    path: Path, kind: type[msgspec.Struct], prompt_of: Callable[[bytes, int], Prompt | None]
) -> tuple[tuple[Prompt, ...], int]:
    """Load a file's prompts.

    Args:
        path: The file.
        kind: What a row is decoded to; its fields are the columns that are read of Parquet.
        prompt_of: Makes a prompt of a row's JSON and of its number from 0; None of a row without.

    Returns:
        The prompts, and the number of rows without one.

    Raises:
        DatasetError: The file can't be read, is empty, or a row is wrong.
    """
    prompts: list[Prompt] = []
    places: dict[str, str] = {}
    left_out_rows = 0
    for number, (place, content) in enumerate(_read_rows(path, kind.__struct_fields__)):
        try:
            prompt = prompt_of(content, number)
            if prompt is None:
                left_out_rows += 1
                continue
            _check_prompt(prompt)
        except UNREADABLE as error:
            raise DatasetError(f"{place}: {error}; {_ADVICE}") from error
        except DatasetError as error:
            raise DatasetError(f"{place}: {error}") from error
        if prompt.id in places:
            both = f"{places[prompt.id]} and {place}"
            message = f"2 prompts have the id '{prompt.id}'; give each its own"
            raise DatasetError(f"{both}: {message}")
        places[prompt.id] = place
        prompts.append(prompt)
    if not prompts:
        raise DatasetError(f"prompt file '{path}': holds no prompts; {_ADVICE}")
    return tuple(prompts), left_out_rows


def _check_prompt(prompt: Prompt) -> None:
    if len(prompt.id) > _ID_CHARACTERS:
        name, characters = prompt.id[:_ID_CHARACTERS], len(prompt.id)
        message = f"prompt '{name}…' has an id of {characters} characters; give it a shorter one"
        raise DatasetError(message)
    if bool(prompt.turns) == bool(prompt.token_ids) or not all(map(str.strip, prompt.turns)):
        message = f"prompt '{prompt.id}' has an empty turn, none at all, or turns and token_ids"
        raise DatasetError(f"{message}; remove the row or mend it")


def _read_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """Read the rows of a file as JSON, each with its place, `prompts.jsonl:3` for instance."""
    subject = f"prompt file '{path}'"
    try:
        if path.suffix == ".parquet":
            yield from _parquet_rows(path, set(columns))
        else:
            yield from _json_rows(path)
    except UNREADABLE as error:
        raise DatasetError(f"{subject}: {error}; {_ADVICE}") from error
    except (OSError, ValueError) as error:  # Arrow's error of a broken file is a ValueError
        raise DatasetError(f"{subject}: {error}; fetch it again, or name another") from error


def _check_size(path: Path, size: int, most: int, unit: str) -> None:
    """Refuse a file that has more than is read: its prompts would fill the memory."""
    if size > most:
        raise DatasetError(
            f"prompt file '{path}': has {size:,} {unit}, and {most:,} are read at most;"
            " give a file with the rows that are to be replayed"
        )


def _json_rows(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the rows of JSON lines or of a JSON array."""
    with open_checked(path) as file:
        _check_size(path, os.fstat(file.fileno()).st_size, _MOST_BYTES, "bytes")
        content = read_bounded(file, _MOST_BYTES).removeprefix(codecs.BOM_UTF8)
    text = content.strip()
    rows: Sequence[bytes | msgspec.Raw]
    if text.startswith(b"["):
        first = 1
        rows = decode_json(text, list[msgspec.Raw])
    else:
        first = 1 + len(content[: len(content) - len(content.lstrip())].splitlines())
        rows = text.splitlines()
    _check_size(path, len(rows), _MOST_ROWS, "rows")
    for number, row in enumerate(rows, first):
        yield f"{path}:{number}", bytes(row)


def _parquet_rows(path: Path, columns: set[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the rows of a Parquet file with the columns named, but for those without a value.

    Equal values are stored once, so a small file may hold millions of rows, or gigabytes of text.
    """
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise DatasetError(
            f"prompt file '{path}': reading Parquet takes pyarrow, which isn't installed;"
            f" {install_command('datasets')}"
        ) from error
    with open_checked(path) as source:
        file = parquet.ParquetFile(source)
        _check_size(path, file.metadata.num_rows, _MOST_ROWS, "rows")
        names = [name for name in file.schema_arrow.names if name in columns]
        number = 0
        read_bytes = 0
        for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=names):
            for row in batch.to_pylist():
                number += 1
                filled = {name: value for name, value in row.items() if value is not None}
                content = msgspec.json.encode(filled)
                read_bytes += len(content)
                _check_size(path, read_bytes, _MOST_BYTES, "bytes of text")
                yield f"{path}:{number}", content
