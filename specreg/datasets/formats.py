"""The formats in which prompt files are published, and reading such files.

A file holds JSON lines, one JSON array, or Parquet; a format says what a row of it spells. Columns
that a row's type doesn't name are passed over.
"""

import codecs
import functools
import importlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from specreg.core.commands import install_command
from specreg.core.errors import DatasetError
from specreg.core.files import UNREADABLE
from specreg.datasets.prompts import Prompt, check_ids, check_prompt


class QuestionRow(msgspec.Struct, frozen=True, kw_only=True, rename={"texts": "prompt"}):
    """A question, under FastChat's names or under HuggingFaceH4's: `prompt_id` and `prompt`."""

    category: str
    question_id: int | str | None = None
    prompt_id: int | str | None = None
    turns: tuple[str, ...] | None = None
    texts: tuple[str, ...] | None = None


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a chat."""

    role: str
    content: str


class SpeedRow(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt of SPEED-Bench; `messages` are its turns as NeMo-Skills writes them."""

    question_id: str
    category: str
    turns: tuple[str, ...] | None = None
    messages: tuple[Message, ...] | None = None
    source: str = ""


class HumanEvalRow(msgspec.Struct, frozen=True, kw_only=True, rename={"text": "prompt"}):
    """A function's head and docstring, to be completed."""

    task_id: str
    text: str


class Gsm8kRow(msgspec.Struct, frozen=True, kw_only=True):
    """A sum in words."""

    question: str


class SharegptTurn(msgspec.Struct, frozen=True, kw_only=True, rename={"who": "from"}):
    """A turn of a conversation; `who`: human, gpt or others."""

    who: str
    value: str


class SharegptRow(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation. Its id is optional in such files, and not read."""

    conversations: tuple[SharegptTurn, ...]


class GenaiPerfRow(msgspec.Struct, frozen=True, kw_only=True):
    """A request of genai-perf, or of aiperf's `single_turn`."""

    text: str


def _question(row: QuestionRow, _: int) -> Prompt:
    name = row.question_id if row.question_id is not None else row.prompt_id
    turns = row.turns if row.turns is not None else row.texts
    if name is None or turns is None:
        raise _missing("question_id" if name is None else "turns", "questions")
    return Prompt(id=str(name), category=row.category, turns=turns)


def _conversation(row: SharegptRow, number: int) -> Prompt | None:
    turns = tuple(one.value for one in row.conversations if one.who in {"human", "user"})
    if not turns or not all(map(str.strip, turns)):
        return None
    return Prompt(id=f"sharegpt-{number}", category="chat", turns=turns)


# Half of SPEED-Bench's published rows are references to their sources. Such a row begins with a
# placeholder, alone or followed by a template that the source fills; the script of NeMo-Skills does
# (https://github.com/NVIDIA-NeMo/Skills, nemo_skills/dataset/speed-bench/prepare.py).
_PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"
_REMEDY = (
    "NVIDIA publishes the row as a reference; fill it with the script of docs/datasets.md and"
    " give what that writes with --from"
)
_TEMPLATES = {
    "cnn_dailymail": ("{article}",),
    "livecodebench": ("{question}", "{starter_code}"),
    "code_contests": ("{question}",),
    "opus-100": ("{question}",),
    "RoleBench": ("{role_name}", "{role_description_and_catchphrases}"),
    # These are written anew as a whole; braces in them are their own.
    **dict.fromkeys(("BAMBOO", "hle", "mt-bench-101", "ChatRAG", "MMLU-Pro", "CoSER"), ()),
    **dict.fromkeys(("stackselect", "textsort"), ()),
}
"""What a source fills into the templates of its rows, by a part of the row's `source`."""
_ANY_FIELD = tuple(dict.fromkeys(itertools.chain(*_TEMPLATES.values())))


def _speed(row: SpeedRow, _: int) -> Prompt:
    turns = row.turns
    if row.messages is not None:
        turns = tuple(one.content for one in row.messages if one.role == "user")
    if turns is None:
        raise _missing("turns", "speed-bench")
    sources = (part for part in _TEMPLATES if part.lower() in row.source.lower())
    fields = _TEMPLATES.get(next(sources, ""), _ANY_FIELD)
    for place, turn in enumerate(turns, 1):
        subject = f"prompt '{row.question_id}', turn {place}"
        if turn.lstrip().startswith(_PLACEHOLDER):
            raise DatasetError(f"{subject}: a placeholder ('{_PLACEHOLDER} …'); {_REMEDY}")
        for field in fields:
            if field in turn:
                message = f"{subject}: the template's {field} was never filled; {_REMEDY}"
                raise DatasetError(message)
    return Prompt(id=row.question_id, category=row.category, turns=turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A format of prompt files.

    Attributes:
        name: what users write.
        row: the type of its rows.
        needs: what a row must have, in words.
        prompt: what a row asks, None where that is nothing; takes the row and its number from 0.
            Raises a DatasetError, which names the field, of one that can't be asked as it is.
    """

    name: str
    row: type[msgspec.Struct]
    needs: str
    prompt: Callable[[Any, int], Prompt | None]

    def load(self, path: Path) -> tuple[tuple[Prompt, ...], int]:
        """The prompts of a file in the order of its rows, and how many rows ask nothing.

        Raises:
            DatasetError: the file can't be read, is empty, or a row is wrong; names file, row and
                field, and says what to do.
        """
        advice = f"a row of '{self.name}' needs {self.needs}"
        prompts, left_out_rows = [], 0
        for number, (place, row) in enumerate(_read_rows(path, self.row, advice)):
            try:
                prompt = self.prompt(row, number)
                if prompt is None:
                    left_out_rows += 1
                    continue
                check_prompt(prompt)
            except DatasetError as error:
                raise DatasetError(f"{place}: {error}") from error
            prompts.append(prompt)
        if not prompts:
            raise DatasetError(f"prompt file '{path}': asks nothing; {advice}")
        check_ids(prompts, f"prompt file '{path}'")
        return tuple(prompts), left_out_rows


def _numbered(name: str, category: str, field: str) -> Callable[[Any, int], Prompt]:
    """Makes prompts of one turn, of rows without an id."""
    return lambda row, number: Prompt(
        id=f"{name}-{number}", category=category, turns=(getattr(row, field),)
    )


_TURNS = "category and turns (a list of texts)"
_FORMATS = (
    Format(
        name="specreg",
        row=Prompt,
        needs=f"id, {_TURNS} or token_ids",
        prompt=lambda row, _: row,
    ),
    Format(name="questions", row=QuestionRow, needs=f"question_id, {_TURNS}", prompt=_question),
    Format(
        name="speed-bench",
        row=SpeedRow,
        needs=f"question_id, {_TURNS} or messages (of role and content)",
        prompt=_speed,
    ),
    Format(
        name="humaneval",
        row=HumanEvalRow,
        needs="task_id and prompt (a text)",
        prompt=lambda row, _: Prompt(id=row.task_id, category="coding", turns=(row.text,)),
    ),
    Format(
        name="gsm8k",
        row=Gsm8kRow,
        needs="question (a text)",
        prompt=_numbered("gsm8k", "math", "question"),
    ),
    Format(
        name="sharegpt",
        row=SharegptRow,
        needs="conversations (a list of objects with from and value)",
        prompt=_conversation,
    ),
    Format(
        name="genai-perf",
        row=GenaiPerfRow,
        needs="text (a text)",
        prompt=_numbered("genai-perf", "own", "text"),
    ),
)
FORMATS: Mapping[str, Format] = MappingProxyType({one.name: one for one in _FORMATS})


def _missing(field: str, name: str) -> DatasetError:
    return DatasetError(f"{field} is missing; a row of '{name}' needs {FORMATS[name].needs}")


def _read_rows(path: Path, row: type[msgspec.Struct], advice: str) -> Iterator[tuple[str, Any]]:
    """The rows of a file, each with its place, `prompts.jsonl:3` for instance.

    What ends in `.parquet` is that, all else JSON: an array where it begins with one, lines
    otherwise.
    """
    subject, again = f"prompt file '{path}'", "fetch it again, or name another"
    rows: Any
    decode: Callable[[Any], Any] = msgspec.json.Decoder(row).decode
    try:
        if path.suffix == ".parquet":
            rows = _parquet_rows(path, {field.encode_name for field in msgspec.structs.fields(row)})
            decode = functools.partial(msgspec.convert, type=row)
        else:
            content = path.read_bytes().removeprefix(codecs.BOM_UTF8).rstrip()
            rows = content.splitlines()
    except (OSError, ValueError) as error:  # Arrow's error of a broken file is a ValueError
        raise DatasetError(f"{subject}: {error}; {again}") from error
    if not rows:
        raise DatasetError(f"{subject}: is empty; {again}")
    if path.suffix != ".parquet" and content.lstrip().startswith(b"["):
        try:
            rows = msgspec.json.decode(content, type=list[msgspec.Raw])
        except UNREADABLE as error:
            raise DatasetError(f"{subject}: {error}; {advice}") from error
    for number, one in enumerate(rows, 1):
        place = f"{path}:{number}"
        try:
            yield place, decode(one)
        except UNREADABLE as error:
            raise DatasetError(f"{place}: {error}; {advice}") from error


def _parquet_rows(path: Path, columns: set[str]) -> list[dict[str, object]]:
    """The rows of a Parquet file, of the columns named; a column without a value isn't there."""
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        message = (
            f"prompt file '{path}': reading Parquet takes pyarrow, which isn't installed;"
            f" {install_command('datasets')}"
        )
        raise DatasetError(message) from error
    file = parquet.ParquetFile(path)
    names = [name for name in file.schema_arrow.names if name in columns]
    rows = file.read(columns=names).to_pylist()
    return [{name: value for name, value in row.items() if value is not None} for row in rows]
