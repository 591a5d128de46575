"""Files of rows: JSON lines, one JSON array or Parquet in, typed rows with their places out."""

import codecs
import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from specreg.core.commands import install_command
from specreg.core.decoding import UNREADABLE
from specreg.core.errors import DatasetError

RowT = TypeVar("RowT", bound=msgspec.Struct)


def read_rows(path: Path, row: type[RowT], advice: str) -> Iterator[tuple[str, RowT]]:
    """The rows of a file, each with its place, `prompts.jsonl:3` for instance.

    Args:
        path: what ends in `.parquet` is that, all else JSON: an array where it begins with one,
            lines otherwise.
        row: their type.
        advice: what a row needs, for the message of an error.

    Raises:
        DatasetError: the file or a row can't be read.
    """
    if path.suffix == ".parquet":
        yield from _parquet_rows(path, row, advice)
        return
    content = _content(path)
    if content.lstrip()[:1] == b"[":
        raw: Sequence[bytes | msgspec.Raw] = _array(path, content, advice)
    else:
        raw = content.rstrip().splitlines()
    decoder = msgspec.json.Decoder(row)
    for number, line in enumerate(raw, 1):
        place = f"{path}:{number}"
        try:
            yield place, decoder.decode(line)
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


def _parquet_rows(path: Path, row: type[RowT], advice: str) -> Iterator[tuple[str, RowT]]:
    columns = {field.encode_name for field in msgspec.structs.fields(row)}
    for number, values in enumerate(_parquet_values(path, columns), 1):
        place = f"{path}:{number}"
        try:
            yield place, msgspec.convert(values, row)
        except msgspec.ValidationError as error:
            raise DatasetError(f"{place}: {error}; {advice}") from error


def _parquet_values(path: Path, columns: set[str]) -> list[dict[str, object]]:
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
