"""Unpack the files of published sets: HumanEval is published as `HumanEval.jsonl.gz`."""

import bz2
import gzip
import importlib
import io
import lzma
import zipfile
import zlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import BinaryIO

from specreg.core.commands import install_command
from specreg.core.files import Readable, read_bounded, refusal

PACKED_FORMS = "gzip, bzip2, xz, Zstandard or ZIP"
_LONGEST_MARK_BYTES = 6
_EXCEL = "xl/workbook.xml"
"""A file that each table of Excel has, which is a ZIP archive."""
_MOST_TIMES = 2
"""How many times a file may be packed. A file can be made that unpacks to itself."""
_BROKEN = (
    EOFError,
    ValueError,
    zlib.error,
    lzma.LZMAError,
    zipfile.BadZipFile,
    RuntimeError,  # zipfile's for an encrypted file, and for a method that it lacks
)
"""What is raised for a broken file, beside OSError."""


def unpacked(file: BinaryIO, most_bytes: int) -> BinaryIO:
    """Return the content of a packed file, or the file itself if it isn't packed.

    What a file is packed with is read from its first bytes, because a name may say anything. A
    packed file may be packed again, as by a server that compresses what it sends.

    Args:
        file: the file, open at its beginning.
        most_bytes: the most bytes that it may unpack to.

    Raises:
        OSError: the file is broken, or unpacks to more bytes; or what unpacks it isn't installed.
    """
    for _ in range(_MOST_TIMES):
        mark = file.read(_LONGEST_MARK_BYTES)
        file.seek(0)
        unpack = next((_UNPACKERS[start] for start in _UNPACKERS if mark.startswith(start)), None)
        if unpack is None:
            break
        try:
            file = io.BytesIO(read_bounded(unpack(file), most_bytes))
        except _BROKEN as error:
            raise refusal(f"can't be unpacked: {error}") from error
    return file


def _unzipped(file: BinaryIO) -> Readable:
    """Open the only file of a ZIP archive.

    Raises:
        OSError: it holds no file, or several.
    """
    archive = zipfile.ZipFile(file)

    # macOS adds a folder with what its own file system knows of each file.
    names = [
        member.filename
        for member in archive.infolist()
        if not member.is_dir() and not member.filename.startswith("__MACOSX/")
    ]
    if len(names) != 1:
        kind = "a table of Excel" if _EXCEL in names else f"an archive of {len(names)} files"
        raise refusal(f"is {kind}, needed one file of JSON lines, a JSON array or Parquet")
    return archive.open(names[0])


def _unpacked_zstandard(file: BinaryIO) -> Readable:
    """Open a file that Zstandard packed. Python reads it itself only from 3.14 on.

    Raises:
        OSError: pyarrow isn't installed.
    """
    try:
        pyarrow = importlib.import_module("pyarrow")
    except ImportError as error:
        message = "is packed with Zstandard, whose reading needs pyarrow, which isn't installed"
        raise refusal(f"{message}: {install_command('datasets')}") from error
    stream: Readable = pyarrow.CompressedInputStream(pyarrow.PythonFile(file, mode="r"), "zstd")
    return stream


_UNPACKERS: Mapping[bytes, Callable[[BinaryIO], Readable]] = MappingProxyType(
    {
        b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file),
        b"BZh": bz2.BZ2File,
        b"\xfd7zXZ\x00": lzma.LZMAFile,
        b"\x28\xb5\x2f\xfd": _unpacked_zstandard,
        b"PK\x03\x04": _unzipped,
    }
)
"""What reads a packed file, by the bytes with which the file begins."""
