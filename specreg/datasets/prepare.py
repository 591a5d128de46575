"""Read prompt files, write published sets as cases replay them, and load the prompts of any set.

A file holds JSON lines, one JSON array, or Parquet: specreg's own prompts, or the rows of published
sets. A prepared set is two files: its prompts, and a record of what they are.
"""

import codecs
import collections
import functools
import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from specreg.core.commands import install_command, specreg_command
from specreg.core.errors import DatasetError
from specreg.core.files import UNREADABLE, file_sha256, replace_file, repository_path
from specreg.core.files import data_dir as usual_data_dir
from specreg.datasets.hub import fetch_dataset_file
from specreg.datasets.prompts import Prompt, interleaved
from specreg.datasets.table import FILLING, PromptSet

_TOYS = "fixtures/prompts"
"""Five categories in the tiny models' own language: single turns, and conversations of three."""
_MOST_RANDOM_PROMPTS, _MOST_RANDOM_TOKENS = 1024, 2**22
"""Of a length; those longer than 4,096 tokens are fewer."""
_ID_CHARACTERS = 200
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


class Message(msgspec.Struct, frozen=True, kw_only=True, rename={"who": "from"}):
    """A message of a chat: `role` and `content`, or ShareGPT's `from` and `value`."""

    role: str = ""
    content: str = ""
    who: str = ""
    value: str = ""


class PublishedRow(msgspec.Struct, frozen=True, kw_only=True):
    """The columns that published files have for a prompt; others are passed over.

    `question_id` and `turns` are FastChat's, `prompt_id` and `prompt` HuggingFaceH4's, `task_id`
    and `prompt` HumanEval's, `question` GSM8K's, `text` genai-perf's, `messages` NeMo-Skills' and
    `conversations` ShareGPT's, whose `id` is optional and not read.
    """

    question_id: int | str | None = None
    prompt_id: int | str | None = None
    task_id: str | None = None
    category: str | None = None
    turns: tuple[str, ...] | None = None
    prompt: str | tuple[str, ...] | None = None
    question: str | None = None
    text: str | None = None
    messages: tuple[Message, ...] | None = None
    conversations: tuple[Message, ...] | None = None

    def prompt_of(self, number: int, one: PromptSet) -> Prompt | None:
        """Convert the row to a prompt, None where it holds none; `number` is from 0."""
        names = (self.question_id, self.prompt_id, self.task_id, f"{one.dataset}-{number}")
        name = str(next(each for each in names if each is not None))
        category = self.category or one.category
        chat = self.conversations if self.messages is None else self.messages
        asked = (self.turns, self.prompt, self.question, self.text)
        turns = next((each for each in asked if each is not None), None)
        if chat is not None:
            users = [each for each in chat if {each.role, each.who} & {"user", "human"}]
            turns = tuple(each.content or each.value for each in users)
            if not turns or not all(map(str.strip, turns)):
                return None
        if turns is None or not category:
            missing = "turns" if turns is None else "category"
            raise DatasetError(f"prompt '{name}': {missing} is missing; {_ADVICE}")
        turns = (turns,) if isinstance(turns, str) else turns
        for place, turn in enumerate(turns, 1):
            if turn.lstrip().startswith(_PLACEHOLDER):
                subject = f"prompt '{name}', turn {place}"
                raise DatasetError(f"{subject}: a placeholder ('{_PLACEHOLDER} …'); {_REMEDY}")
        return Prompt(id=name, category=category, turns=turns)


def load_prompt_file(path: Path) -> tuple[Prompt, ...]:
    """The prompts of a file of specreg's own, as `load_published_rows` loads those of others."""
    return _load(path, Prompt, lambda row, _: row)[0]


def load_published_rows(path: Path, one: PromptSet) -> tuple[tuple[Prompt, ...], int]:
    """Load the prompts of a set's file in the order of its rows; count the rows without one.

    Raises:
        DatasetError: the file can't be read, is empty, or a row is wrong; it names file, row and
            field.
    """
    return _load(path, PublishedRow, lambda row, number: row.prompt_of(number, one))


def _load(
    path: Path, kind: type[msgspec.Struct], prompt_of: Callable[[Any, int], Prompt | None]
) -> tuple[tuple[Prompt, ...], int]:
    prompts, left_out_rows = [], 0
    for number, (place, row) in enumerate(_read_rows(path, kind)):
        try:
            prompt = prompt_of(row, number)
            if prompt is None:
                left_out_rows += 1
                continue
            _check_prompt(prompt)
        except DatasetError as error:
            raise DatasetError(f"{place}: {error}") from error
        prompts.append(prompt)
    if not prompts:
        raise DatasetError(f"prompt file '{path}': holds no prompts; {_ADVICE}")
    ((name, times),) = collections.Counter(prompt.id for prompt in prompts).most_common(1)
    if times > 1:
        message = f"prompt file '{path}': {times} prompts have the id '{name}'; give each its own"
        raise DatasetError(message)
    return tuple(prompts), left_out_rows


def _check_prompt(prompt: Prompt) -> None:
    if len(prompt.id) > _ID_CHARACTERS:
        name, characters = prompt.id[:_ID_CHARACTERS], len(prompt.id)
        message = f"prompt '{name}…' has an id of {characters} characters; give it a shorter one"
        raise DatasetError(message)
    if bool(prompt.turns) == bool(prompt.token_ids) or not all(map(str.strip, prompt.turns)):
        message = f"prompt '{prompt.id}' has an empty turn, none at all, or turns and token_ids"
        raise DatasetError(f"{message}; remove the row or mend it")


def _read_rows(path: Path, kind: type[msgspec.Struct]) -> Iterator[tuple[str, Any]]:
    """The rows of a file, each with its place, `prompts.jsonl:3` for instance."""
    subject = f"prompt file '{path}'"
    rows: Any
    decode: Callable[[Any], Any] = msgspec.json.Decoder(kind).decode
    try:
        if path.suffix == ".parquet":
            rows = _parquet_rows(path, set(kind.__struct_fields__))
            decode = functools.partial(msgspec.convert, type=kind)
        else:
            content = path.read_bytes().removeprefix(codecs.BOM_UTF8).strip()
            rows = content.splitlines()
            if content.startswith(b"["):
                rows = msgspec.json.decode(content, type=list[msgspec.Raw])
    except UNREADABLE as error:
        raise DatasetError(f"{subject}: {error}; {_ADVICE}") from error
    except (OSError, ValueError) as error:  # Arrow's error of a broken file is a ValueError
        raise DatasetError(f"{subject}: {error}; fetch it again, or name another") from error
    for number, row in enumerate(rows, 1):
        place = f"{path}:{number}"
        try:
            yield place, decode(row)
        except UNREADABLE as error:
            raise DatasetError(f"{place}: {error}; {_ADVICE}") from error


def _parquet_rows(path: Path, columns: set[str]) -> list[dict[str, object]]:
    """The rows of a Parquet file, of the columns named; a column without a value isn't there."""
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise DatasetError(
            f"prompt file '{path}': reading Parquet takes pyarrow, which isn't installed;"
            f" {install_command('datasets')}"
        ) from error
    file = parquet.ParquetFile(path)
    names = [name for name in file.schema_arrow.names if name in columns]
    rows = file.read(columns=names).to_pylist()
    return [{name: value for name, value in row.items() if value is not None} for row in rows]
