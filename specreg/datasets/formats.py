"""The formats in which prompt files are published, and reading such files.

A file holds JSON lines, one JSON array, or Parquet; a format says what a row of it spells.
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
    """A question, under the names of FastChat or of HuggingFaceH4.

    Attributes:
        question_id, prompt_id: an identifier, under either name.
        turns, texts: what the user says; `texts` is `prompt` in the file.
    """

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
    """A prompt of SPEED-Bench.

    Attributes:
        category: one of eleven, or the entropy of its answers.
        turns: what the user says; messages: the same as NeMo-Skills writes it.
        source: the dataset that it is taken from, a hub id or an address.
    """

    question_id: str
    category: str
    turns: tuple[str, ...] | None = None
    messages: tuple[Message, ...] | None = None
    source: str = ""


class HumanEvalRow(msgspec.Struct, frozen=True, kw_only=True, rename={"text": "prompt"}):
    """A function's head and docstring, to be completed; `text` is `prompt` in the file."""

    task_id: str
    text: str


class Gsm8kRow(msgspec.Struct, frozen=True, kw_only=True):
    """A sum in words; its answer isn't read."""

    question: str


class SharegptTurn(msgspec.Struct, frozen=True, kw_only=True, rename={"who": "from"}):
    """A turn of a conversation; `who`: human, gpt or others, in the file `from`."""

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
    """What the user said; None where that is nothing, or a turn of it is."""
    turns = tuple(one.value for one in row.conversations if one.who in {"human", "user"})
    if not turns or not all(map(str.strip, turns)):
        return None
    return Prompt(id=f"sharegpt-{number}", category="chat", turns=turns)


def _own_turn(name: str, category: str, number: int, text: str) -> Prompt:
    """A prompt of one turn, of a row without an id."""
    return Prompt(id=f"{name}-{number}", category=category, turns=(text,))


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


def _speed(row: SpeedRow, _: int) -> Prompt:
    turns = row.turns
    if row.messages is not None:
        turns = tuple(one.content for one in row.messages if one.role == "user")
    if turns is None:
        raise _missing("turns", "speed-bench")
    for place, turn in enumerate(turns, 1):
        _check_turn(turn, f"prompt '{row.question_id}', turn {place}", row.source)
    return Prompt(id=row.question_id, category=row.category, turns=turns)


def _check_turn(turn: str, subject: str, source: str) -> None:
    if turn.lstrip().startswith(_PLACEHOLDER):
        raise DatasetError(f"{subject}: a placeholder ('{_PLACEHOLDER} …'); {_REMEDY}")
    left = next((field for field in _fields_of(source) if field in turn), None)
    if left is not None:
        raise DatasetError(f"{subject}: the template's {left} was never filled; {_REMEDY}")


def _fields_of(source: str) -> tuple[str, ...]:
    """What a row of a source must not hold; of a source that we don't know, nothing of any."""
    for part, fields in _TEMPLATES.items():
        if part.lower() in source.lower():
            return fields
    return tuple(dict.fromkeys(itertools.chain(*_TEMPLATES.values())))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPrompts:
    """What a file holds.

    Attributes:
        prompts: in the order of its rows.
        left_out_rows: how many rows ask nothing.
    """

    prompts: tuple[Prompt, ...]
    left_out_rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A format of prompt files.

    Attributes:
        name: what users write.
        row: the type of its rows; columns that it doesn't name are passed over.
        needs: what a row must have, in words.
        prompt: what a row asks, None where that is nothing; takes the row and its number from 0.
            Raises a DatasetError, which names the field, of one that can't be asked as it is.
    """

    name: str
    row: type[msgspec.Struct]
    needs: str
    prompt: Callable[[Any, int], Prompt | None]

    def load(self, path: Path) -> LoadedPrompts:
        """Load the prompts of a file of JSON lines, of one JSON array or of Parquet.

        Raises:
            DatasetError: the file can't be read, is empty, or a row is wrong; names file, row and
                field, and says what to do.
        """
        advice = f"a row of '{self.name}' needs {self.needs}"
        prompts, left_out_rows = [], 0
        for number, (place, row) in enumerate(_read_rows(path, self.row, advice)):
            try:
                prompt = self.prompt(row, number)
                if prompt is not None:
                    check_prompt(prompt)
            except DatasetError as error:
                raise DatasetError(f"{place}: {error}") from error
            if prompt is None:
                left_out_rows += 1
            else:
                prompts.append(prompt)
        if not prompts:
            raise DatasetError(f"prompt file '{path}': asks nothing; {advice}")
        check_ids(prompts, f"prompt file '{path}'")
        return LoadedPrompts(prompts=tuple(prompts), left_out_rows=left_out_rows)


_TURNS = "category and turns (a list of texts)"
FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        name: Format(name=name, row=row, needs=needs, prompt=prompt)
        for name, row, needs, prompt in (
            ("specreg", Prompt, f"id, {_TURNS} or token_ids", lambda row, _: row),
            ("questions", QuestionRow, f"question_id, {_TURNS}", _question),
            (
                "speed-bench",
                SpeedRow,
                f"question_id, {_TURNS} or messages (of role and content)",
                _speed,
            ),
            (
                "humaneval",
                HumanEvalRow,
                "task_id and prompt (a text)",
                lambda row, _: Prompt(id=row.task_id, category="coding", turns=(row.text,)),
            ),
            (
                "gsm8k",
                Gsm8kRow,
                "question (a text)",
                lambda row, number: _own_turn("gsm8k", "math", number, row.question),
            ),
            (
                "sharegpt",
                SharegptRow,
                "conversations (a list of objects with from and value)",
                _conversation,
            ),
            (
                "genai-perf",
                GenaiPerfRow,
                "text (a text)",
                lambda row, number: _own_turn("genai-perf", "own", number, row.text),
            ),
        )
    }
)


def _missing(field: str, name: str) -> DatasetError:
    return DatasetError(f"{field} is missing; a row of '{name}' needs {FORMATS[name].needs}")


def _read_rows(path: Path, row: type[msgspec.Struct], advice: str) -> Iterator[tuple[str, Any]]:
    """The rows of a file, each with its place, `prompts.jsonl:3` for instance.

    What ends in `.parquet` is that, all else JSON: an array where it begins with one, lines
    otherwise.
    """
    rows: Any
    decode: Callable[[Any], Any]
    if path.suffix == ".parquet":
        rows = _parquet_rows(path, {field.encode_name for field in msgspec.structs.fields(row)})
        decode = functools.partial(msgspec.convert, type=row)
    else:
        content = _content(path)
        is_array = content.lstrip()[:1] == b"["
        rows = _array(path, content, advice) if is_array else content.rstrip().splitlines()
        decode = msgspec.json.Decoder(row).decode
    for number, one in enumerate(rows, 1):
        place = f"{path}:{number}"
        try:
            yield place, decode(one)
        except UNREADABLE as error:
            raise DatasetError(f"{place}: {error}; {advice}") from error


def _content(path: Path) -> bytes:
    try:
        content = path.read_bytes().removeprefix(codecs.BOM_UTF8)
    except OSError as error:
        message = f"prompt file '{path}': {error.strerror}; name a file that is there"
        raise DatasetError(message) from error
    if not content.strip():
        raise DatasetError(f"prompt file '{path}': is empty; fetch it again, or name another")
    return content


def _array(path: Path, content: bytes, advice: str) -> list[msgspec.Raw]:
    try:
        return msgspec.json.decode(content, type=list[msgspec.Raw])
    except UNREADABLE as error:
        raise DatasetError(f"prompt file '{path}': {error}; {advice}") from error


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
    try:
        file = parquet.ParquetFile(path)
        names = [name for name in file.schema_arrow.names if name in columns]
        rows: list[dict[str, object]] = file.read(columns=names).to_pylist()
    except (OSError, ValueError) as error:  # ArrowInvalid is a ValueError
        message = f"prompt file '{path}': {error}; fetch it again, or name another"
        raise DatasetError(message) from error
    if not rows:
        raise DatasetError(f"prompt file '{path}': is empty; fetch it again, or name another")
    return [{name: value for name, value in row.items() if value is not None} for row in rows]
