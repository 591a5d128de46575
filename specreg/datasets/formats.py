"""Read prompt files: specreg's own, and those of published sets.

A file holds JSON lines, one JSON array, or Parquet.
"""

import codecs
import collections
import functools
import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from specreg.core.commands import install_command
from specreg.core.errors import DatasetError
from specreg.core.files import UNREADABLE
from specreg.datasets.prompts import Prompt
from specreg.datasets.table import FILLING, PromptSet

_ID_CHARACTERS = 200
_ADVICE = "a row needs its prompt, under turns, prompt, messages, conversations, question or text"
# Half of SPEED-Bench's published rows are references to their sources, and begin so.
_PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"
_REMEDY = (
    f"NVIDIA publishes the row as a reference; fill it with {FILLING} and give what that writes"
    " with --from"
)


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

    A DatasetError where the file can't be read, is empty, or a row is wrong; names file, row and
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
