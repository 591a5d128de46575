"""Read prompt files.

A prompt file holds JSON lines, one JSON array, or Parquet, and may be packed. Its rows are prompts
in specreg's own format, or the rows of a published set.
"""

import codecs
import contextlib
import importlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Literal, TypeVar

import msgspec

from specreg.core.commands import install_command
from specreg.core.errors import DatasetError
from specreg.core.files import UNREADABLE, cause_of, open_checked, read_bounded
from specreg.core.readable import is_plain, readable_line
from specreg.datasets.packed_files import PACKED_FORMS, unpacked
from specreg.datasets.prompts import Prompt
from specreg.datasets.table import FILLING, PromptSet
from specreg.datasets.worked_examples import example_text

_T = TypeVar("_T")

_MAX_ID_CHARACTERS = 200
_MAX_ROWS = 1_000_000
"""The most rows of a file; ShareGPT, the longest published set, has 94,145."""
_MAX_BYTES = 2**30
"""The most bytes of a file, or of what it unpacks to; ShareGPT has 673 MB."""
_PARQUET_MARK = b"PAR1"
_JSON_DECODER = json.JSONDecoder()
_JSON_SPACE = " \t\r\n"
_BETWEEN_ROWS = re.compile(r"[ \t\r\n]*(?:,[ \t\r\n]*|(?=\]))")
_BATCH_ROWS = 32
"""How many rows of Parquet are unpacked before their size is added up."""
_PROMPT_ADVICE = "a prompt needs an id, a category and either turns or token_ids"
"""What to do about a wrong row in specreg's own format."""
_ROW_ADVICE = (
    "a row needs its prompt, under turns, prompt, messages, conversations, question or text"
)
"""What to do about a wrong row of a published set."""
_EXAMPLE_ADVICE = "an example needs question and answer"
"""What to do about a wrong row of worked examples."""
_BROKEN_ADVICE = "correct the row, or remove it"
"""What to do about a row that can't be decoded."""
_NEEDED_FORMS = f"JSON lines, a JSON array or Parquet, also packed with {PACKED_FORMS}"
_MAX_UNUSED = 50
"""How many names of columns that aren't replayed are kept: those that most rows have."""
_SHOWN_CHARACTERS = 40
"""How much is shown of a name of others, and of the beginning of a file in an unknown form."""
# About half of the published rows of SPEED-Bench only refer to their source, and begin like this.
_PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"
_REMEDY = (
    f"NVIDIA publishes this row without its text; fill it with {FILLING}, and give its output file"
    " with --from"
)


class TextPart(msgspec.Struct, frozen=True, kw_only=True):
    """A text in a list of contents. Parts of other types can't be replayed."""

    type: Literal["text", "input_text"] = "text"
    text: str


class DatasetMessage(msgspec.Struct, frozen=True, kw_only=True, rename={"who": "from"}):
    """A message of a chat: `role` and `content`, or ShareGPT's `from` and `value`.

    Only the user's messages are replayed, so any other message may have any content. An agent's
    trace has null for messages with tool calls.
    """

    role: str | None = None
    content: object = None
    who: str | None = None
    value: object = None

    @property
    def is_by_user(self) -> bool:
        """True if the user wrote the message."""
        return bool({self.role, self.who} & {"user", "human"})

    @property
    def speaker(self) -> str:
        """Who wrote the message."""
        return self.role or self.who or "nobody"

    @property
    def says_something(self) -> bool:
        """True if the message has a content."""
        return bool(self.content) or bool(self.value)

    def text(self, path: str) -> str:
        """Return the text of the message, with a line for each part, as vLLM joins them.

        Args:
            path: the path of the message in its row, for errors: `$.messages[0]`.

        Raises:
            DatasetError: the content is neither null, a text, nor a list of texts.
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
                f"`{path}.{field}` is neither a text nor a list of texts: {error};"
                " remove the row, or keep only texts in the user's messages"
            ) from error

        return "\n".join(part.text if isinstance(part, TextPart) else part for part in texts)


_ID_COLUMNS = ("question_id", "prompt_id", "task_id")
_PROMPT_COLUMNS = ("messages", "conversations", "turns", "prompt", "question", "text")
_IDS = ("id", *_ID_COLUMNS)
"""The columns that only name a row, so that nothing is missing where they aren't replayed."""
_NO_ID = (b"null", b'""')
"""The values of a column that count as no id."""
_NO_VALUE = (*_NO_ID, b"[]", b"{}")
"""The values of a column that has nothing which could be replayed."""


class PublishedRow(msgspec.Struct, frozen=True, kw_only=True):
    """The columns that published files have for a prompt.

    They come from these sets and tools:

    - FastChat: `question_id` and `turns`
    - HuggingFaceH4: `prompt_id` and `prompt`
    - HumanEval and MBPP: `task_id` and `prompt`, but the full MBPP has `text` instead of `prompt`
    - GSM8K: `question`
    - genai-perf: `text`
    - NeMo-Skills: `messages`
    - ShareGPT: `conversations`. Its `id` is optional, so it isn't read.

    A row may have several columns with an id and several with a prompt. The first of each in the
    order of `_ID_COLUMNS` and `_PROMPT_COLUMNS` counts; see `decode_row`.
    """

    question_id: int | float | str | None = None
    prompt_id: int | float | str | None = None
    task_id: int | float | str | None = None
    category: str | None = None
    turns: tuple[str, ...] | None = None
    prompt: str | tuple[str, ...] | None = None
    question: str | None = None
    text: str | None = None
    messages: tuple[DatasetMessage, ...] | None = None
    conversations: tuple[DatasetMessage, ...] | None = None

    def prompt_of(self, number: int, prompt_set: PromptSet) -> Prompt | None:
        """Convert the row to a prompt.

        Args:
            number: the row's number from 0, which is part of the id of a row without one.
            prompt_set: the set to which the row belongs.

        Returns:
            The prompt, or None if the row is a conversation in which the user says nothing, or has
            an empty turn.

        Raises:
            DatasetError: a column is missing, or its value can't be replayed.
        """
        prompt_id = self._id or f"{prompt_set.dataset}-{number}"
        category = self.category or prompt_set.category

        try:
            turns = self._turns
        except DatasetError as error:
            raise DatasetError(f"prompt '{prompt_id}': {error}") from error

        if turns is None:
            raise DatasetError(f"prompt '{prompt_id}': turns is missing; {_ROW_ADVICE}")
        if not category:
            raise DatasetError(f"prompt '{prompt_id}': category is missing; give the row one")
        is_chat = self.messages is not None or self.conversations is not None

        # A conversation with an empty turn is left out. In other rows `_load` refuses such a turn.
        if is_chat and not (turns and all(map(str.strip, turns))):
            return None
        for turn_number, turn in enumerate(turns, 1):
            if turn.lstrip().startswith(_PLACEHOLDER):
                subject = f"prompt '{prompt_id}', turn {turn_number}"
                raise DatasetError(f"{subject}: a placeholder ('{_PLACEHOLDER} …'); {_REMEDY}")

        return Prompt(id=prompt_id, category=category, turns=turns)

    @property
    def other_speakers(self) -> frozenset[str]:
        """Who else says something in the conversation, such as `system`; none of it is replayed."""
        return frozenset(
            message.speaker
            for message in self.messages or self.conversations or ()
            if message.says_something and not message.is_by_user
        )

    @property
    def _id(self) -> str:
        """The id of the row; empty if it has none."""
        for column in _ID_COLUMNS:
            value = getattr(self, column)
            if isinstance(value, float):
                value = _whole_id(value, column)
            if value is not None:
                return str(value)
        return ""

    @property
    def _turns(self) -> tuple[str, ...] | None:
        """The user's text in each turn; None if the row has no column with a prompt."""
        for column in _PROMPT_COLUMNS:
            value = getattr(self, column)
            if value is None:
                continue
            if column in {"messages", "conversations"}:
                # The replies aren't replayed, because the server generates its own.
                return tuple(
                    message.text(f"$.{column}[{index}]")
                    for index, message in enumerate(value)
                    if message.is_by_user
                )
            turns: tuple[str, ...] = value
            if isinstance(value, str):
                turns = (value,)
            return turns
        return None


class _ExampleRow(msgspec.Struct, frozen=True, kw_only=True):
    """The columns of a worked example, as GSM8K has them."""

    question: str
    answer: str


def _whole_id(value: float, column: str) -> int:
    """Return the integer that an id was before it became a float.

    If some rows of a table have no id, the table stores all ids as floats: 11.0 for 11.

    Raises:
        DatasetError: the id isn't whole.
    """
    if not value.is_integer():
        message = f"Expected `int` or `str`, got {value} - at `$.{column}`"
        raise DatasetError(f"{message}; give the row an id of its own")
    return int(value)


def decode_row(content: bytes) -> tuple[PublishedRow, set[str]]:
    """Decode the columns of a published row from which its prompt is made.

    The other columns may have any type, and may be null.

    Returns:
        The row, and the names of its other columns that hold something.

    Raises:
        DatasetError: the row holds half of a surrogate pair.
        msgspec.DecodeError: the row isn't a JSON object, or one of these columns has another type.
    """
    columns = decode_json(content, dict[str, msgspec.Raw])

    # Decode only the first column with an id and the first one with a prompt.
    values = {name: bytes(value) for name, value in columns.items()}
    ids = [name for name in _ID_COLUMNS if values.get(name, b"null") not in _NO_ID]
    prompts = [name for name in _PROMPT_COLUMNS if values.get(name, b"null") != b"null"]
    used = [*ids[:1], *prompts[:1]]
    if "category" in columns:
        used.append("category")
    used_columns = {name: columns[name] for name in used}
    row = decode_json(msgspec.json.encode(used_columns), PublishedRow)

    unused = {name for name, value in values.items() if value not in _NO_VALUE}
    unused.difference_update(used, _IDS)
    return row, unused


def decode_json(content: bytes, kind: type[_T]) -> _T:
    """Decode JSON, with null for NaN and infinity.

    pandas and Python's own json write a missing number as NaN, which isn't JSON.

    Raises:
        DatasetError: a text holds half of a surrogate pair.
        msgspec.DecodeError: the content isn't JSON, or not of this type.
    """
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError as error:
        try:
            lenient = json.loads(content, parse_constant=lambda _: None)
            repaired = msgspec.json.encode(lenient)
        except UnicodeEncodeError as half:
            # Python reads such a half as a character of its own, which no server can be sent.
            written = ascii(half.object[half.start])
            message = f"holds {written}, which is half of a character"
            raise DatasetError(f"{message} (a surrogate pair); {_BROKEN_ADVICE}") from error
        except (ValueError, RecursionError):
            raise error from None
        return msgspec.json.decode(repaired, type=kind)


def load_prompt_file(path: Path) -> tuple[Prompt, ...]:
    """Load the prompts of a file in specreg's own format.

    Raises:
        DatasetError: the file can't be read, is empty, or a row is wrong.
    """

    def prompt_of(content: bytes, _: int) -> Prompt:
        return decode_json(content, Prompt)

    prompts, _ = _load(path, Prompt, prompt_of, _PROMPT_ADVICE)
    return prompts


class PublishedPrompts(msgspec.Struct, frozen=True, kw_only=True):
    """What the file of a published set holds.

    Attributes:
        prompts: the prompts, in the order of the rows.
        left_out_rows: the number of rows without a prompt.
        unused: what isn't replayed although rows have it, with the number of these rows: columns
            by their name, and the messages of anybody but the user as `messages by system`.
    """

    prompts: tuple[Prompt, ...]
    left_out_rows: int
    unused: dict[str, int]


def load_published_rows(path: Path, prompt_set: PromptSet) -> PublishedPrompts:
    """Load the prompts of the file of a published set in this process.

    A file from elsewhere may take all memory or crash a decoder. `read_published_file` reads such a
    file in a process of its own.

    Raises:
        DatasetError: the file can't be read, is empty, or a row is wrong. The message names the
            file, the row and the field.
    """
    unused = Counter[str]()

    def prompt_of(content: bytes, number: int) -> Prompt | None:
        row, unused_columns = decode_row(content)
        prompt = row.prompt_of(number, prompt_set)
        if prompt is not None:
            unused.update(unused_columns)
            unused.update(f"messages by {speaker}" for speaker in row.other_speakers)
        return prompt

    prompts, left_out_rows = _load(path, PublishedRow, prompt_of, _ROW_ADVICE)
    shown_unused = {
        readable_line(name, _SHOWN_CHARACTERS): rows
        for name, rows in unused.most_common(_MAX_UNUSED)
    }
    return PublishedPrompts(prompts=prompts, left_out_rows=left_out_rows, unused=shown_unused)


def load_examples(path: Path, prompt_set: PromptSet) -> PublishedPrompts:
    """Load the worked examples of a file in this process; errors as in `load_published_rows`."""

    def example_of(content: bytes, number: int) -> Prompt:
        row = decode_json(content, _ExampleRow)
        return Prompt(
            id=f"{prompt_set.name}-example-{number}",
            category=prompt_set.category,
            turns=(example_text(row.question, row.answer),),
        )

    examples, _ = _load(path, _ExampleRow, example_of, _EXAMPLE_ADVICE)
    return PublishedPrompts(prompts=examples, left_out_rows=0, unused={})


def _load(
    path: Path,
    kind: type[msgspec.Struct],
    prompt_of: Callable[[bytes, int], Prompt | None],
    advice: str,
) -> tuple[tuple[Prompt, ...], int]:
    """Load a file's prompts.

    Args:
        path: the file.
        kind: the type of a row; its fields are the columns to read from Parquet.
        prompt_of: converts a row's JSON and its number from 0 to a prompt; returns None for a row
            without one.
        advice: what to do about a wrong row.

    Returns:
        The prompts, and the number of rows without one.

    Raises:
        DatasetError: the file can't be read, is empty, or a row is wrong.
    """
    prompts: list[Prompt] = []

    # Where the row of each prompt is, by the id of the prompt.
    locations: dict[str, str] = {}
    left_out_rows = 0
    rows = _read_rows(path, kind.__struct_fields__)
    for number, (location, content) in enumerate(rows):
        try:
            prompt = prompt_of(content, number)
            if prompt is None:
                left_out_rows += 1
                continue
            _check_prompt(prompt)
        except msgspec.ValidationError as error:
            raise DatasetError(f"{location}: {error}; {advice}") from error
        except UNREADABLE as error:
            raise DatasetError(f"{location}: {error}; {_BROKEN_ADVICE}") from error
        except DatasetError as error:
            raise DatasetError(f"{location}: {error}") from error
        if prompt.id in locations:
            raise DatasetError(
                f"{locations[prompt.id]} and {location}: 2 prompts have the id '{prompt.id}'; give"
                " each its own"
            )
        locations[prompt.id] = location
        prompts.append(prompt)

    if not prompts:
        raise DatasetError(f"prompt file '{path}': holds no prompts; {advice}")
    return tuple(prompts), left_out_rows


def _check_prompt(prompt: Prompt) -> None:
    """Check the id and the category of a prompt, and that it has either turns or token ids.

    Raises:
        DatasetError: the id is too long, a name isn't plain text, a turn is empty, or the prompt
            has both turns and token ids or neither.
    """
    if len(prompt.id) > _MAX_ID_CHARACTERS:
        beginning = prompt.id[:_MAX_ID_CHARACTERS]
        raise DatasetError(
            f"prompt '{beginning}…' has an id of {len(prompt.id)} characters; give it a shorter one"
        )

    for field, name in (("id", prompt.id), ("category", prompt.category)):
        if not is_plain(name):
            raise DatasetError(f"{field} {name!a} isn't plain text; rename it")
    has_one_form = bool(prompt.turns) != bool(prompt.token_ids)
    if not has_one_form or not all(map(str.strip, prompt.turns)):
        message = (
            f"prompt '{prompt.id}' has an empty turn, no turn at all, or both turns and token_ids"
        )
        raise DatasetError(f"{message}; remove the row, or correct it")


def _read_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the location of each row of a file, such as `prompts.jsonl:3`, and the row as JSON.

    The number in the location is that of the line in JSON lines, and otherwise that of the row. It
    counts from 1.

    Raises:
        DatasetError: the file can't be read, or is too large.
    """
    try:
        with open_checked(path) as packed_file:
            _check_size(path, os.fstat(packed_file.fileno()).st_size, _MAX_BYTES, "bytes")
            file = unpacked(packed_file, _MAX_BYTES)
            # The file of a hub's cache may have a checksum for a name, so the content decides.
            is_parquet = file.read(len(_PARQUET_MARK)) == _PARQUET_MARK
            file.seek(0)
            if is_parquet:
                yield from _parquet_rows(path, file, set(columns))
            else:
                yield from _json_rows(path, file)
    except (OSError, ValueError, NotImplementedError) as error:
        # Arrow reports a broken file as a ValueError.
        message = f"prompt file '{path}': {cause_of(error)}"
        raise DatasetError(f"{message}; fetch it again, or name another") from error


def _check_size(path: Path, size: int, limit: int, unit: str) -> None:
    """Check that a file isn't so large that its prompts would fill the memory.

    Args:
        path: the file, for the message.
        size: the size of the file, or of what was read so far.
        limit: the largest size that is read.
        unit: what is counted: bytes or rows.

    Raises:
        DatasetError: the file is too large.
    """
    if size > limit:
        raise DatasetError(
            f"prompt file '{path}': has {size:,} {unit}, and at most {limit:,} are read;"
            " give a file with the rows that are to be replayed"
        )


def _json_rows(path: Path, file: BinaryIO) -> Iterator[tuple[str, bytes]]:
    """Yield the location and the content of each row of JSON lines or of a JSON array."""
    content = read_bounded(file, _MAX_BYTES).removeprefix(codecs.BOM_UTF8)
    text = content.strip()
    if text.startswith(b"["):
        first = 1
        rows = _rows_of_array(path, text)
    elif text.startswith(b"{") or not text:
        # A row is numbered like its line, so blank lines at the beginning count.
        blank_bytes = len(content) - len(content.lstrip())
        leading_blanks = content[:blank_bytes]
        first = 1 + len(leading_blanks.splitlines())
        rows = text.splitlines()
        if rows[:1] == [b"{"]:
            raise DatasetError(
                f"prompt file '{path}': begins a JSON object over several lines, needed"
                f" {_NEEDED_FORMS}; write each row as one line, or all rows as one array"
            )
    else:
        beginning = ascii(text[:_SHOWN_CHARACTERS].decode(errors="replace"))
        raise DatasetError(
            f"prompt file '{path}': begins with {beginning}, needed {_NEEDED_FORMS};"
            " convert it, or fetch it again"
        )

    _check_size(path, len(rows), _MAX_ROWS, "rows")
    for number, row in enumerate(rows, first):
        yield f"{path}:{number}", bytes(row)


def _rows_of_array(path: Path, text: bytes) -> Sequence[bytes | msgspec.Raw]:
    """Return the rows of a JSON array.

    Raises:
        DatasetError: a row isn't JSON, or something is wrong between two rows.
    """
    with contextlib.suppress(*UNREADABLE):
        return msgspec.json.decode(text, type=list[msgspec.Raw])

    # Find the row. Python's own decoder passes what `decode_json` repairs, or refuses by its row.
    scanned = text.decode(errors="surrogateescape")
    rows: list[bytes] = []
    position = len(scanned) - len(scanned[1:].lstrip(_JSON_SPACE))
    while not scanned.startswith("]", position):
        location = f"{path}:{len(rows) + 1}"
        try:
            _, end = _JSON_DECODER.raw_decode(scanned, position)
        except (ValueError, RecursionError) as error:
            raise DatasetError(f"{location}: {error}; {_BROKEN_ADVICE}") from error
        rows.append(scanned[position:end].encode(errors="surrogateescape"))
        between = _BETWEEN_ROWS.match(scanned, end)
        if between is None:
            raise DatasetError(f"{location}: no comma and no end follows it; {_BROKEN_ADVICE}")
        position = between.end()

    return rows


def _parquet_rows(path: Path, file: BinaryIO, columns: set[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the location and the content of each row of a Parquet file, as JSON.

    Parquet stores equal values once, so a small file may hold millions of rows, or gigabytes of
    text.

    Args:
        path: the path of the file, for locations and messages.
        file: the file, open at its beginning.
        columns: the columns to read. Any other column with a value has `true` instead.
    """
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise DatasetError(
            f"prompt file '{path}': reading Parquet needs pyarrow, which isn't installed;"
            f" {install_command('datasets')}"
        ) from error

    table = parquet.ParquetFile(file)
    _check_size(path, table.metadata.num_rows, _MAX_ROWS, "rows")
    number = 0
    read_bytes = 0
    for batch in table.iter_batches(batch_size=_BATCH_ROWS):
        # Of the other columns it only counts whether a row has a value.
        unused_columns = {
            name: column.is_valid().to_pylist()
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
            if name not in columns
        }
        used_names = [name for name in batch.schema.names if name in columns]
        for index, row in enumerate(batch.select(used_names).to_pylist()):
            number += 1
            filled = {name: value for name, value in row.items() if value is not None}
            filled |= {name: True for name, is_valid in unused_columns.items() if is_valid[index]}
            content = msgspec.json.encode(filled)
            read_bytes += len(content)
            _check_size(path, read_bytes, _MAX_BYTES, "bytes of text")
            yield f"{path}:{number}", content
