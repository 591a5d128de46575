"""Files: content in, a file that is the old or the new one at any moment, never a torn one.

Whatever is written here has no known secret in it; see `specreg.redaction`.
"""

import contextlib
import os
import re
from pathlib import Path
from typing import BinaryIO

from specreg.redaction import hide_bytes

_PART = ".part"


def replace_file(path: Path, content: bytes, *, overwrites: bool = True) -> None:
    """Writes a file, and makes its folder; what was there stays until all of this is on the disk.

    Args:
        path: of the file.
        content: all of it.
        overwrites: whether a file that is there already gives way.

    Raises:
        FileExistsError: it is there and doesn't.
        OSError: the disk refuses; the old file is as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_parts(path)
    part = path.with_name(f".{path.name}.{os.getpid()}{_PART}")
    try:
        with part.open("wb") as file:
            file.write(hide_bytes(content))
            file.flush()
            os.fsync(file.fileno())
        if overwrites:
            part.replace(path)
        else:
            path.hardlink_to(part)  # unlike a rename, it never overwrites
    finally:
        part.unlink(missing_ok=True)


def append_lines(path: Path, content: bytes) -> None:
    """Adds lines to a file, and makes its folder: all of them, or none where the disk refuses.

    Raises:
        OSError: the disk refuses; the file is as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b", buffering=0) as file:
        write_lines(file, content)


def append_piece(path: Path, content: bytes) -> None:
    """Adds part of a file that comes in pieces, and makes its folder.

    Raises:
        OSError: the disk refuses.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(hide_bytes(content))


def write_lines(file: BinaryIO, content: bytes) -> None:
    """The same to a file that is open, unbuffered, for reading and appending.

    A line in which somebody was cut off before is ended first, so that ours begin anew.
    """
    before_bytes = file.seek(0, os.SEEK_END)
    left = memoryview(hide_bytes(_end_of_torn_line(file) + content))
    try:
        while left:  # a disk that is almost full takes a part, and refuses the next time
            left = left[file.write(left) :]
    except OSError:
        with contextlib.suppress(OSError):
            file.truncate(before_bytes)
        raise


def _end_of_torn_line(file: BinaryIO) -> bytes:
    if not file.tell():
        return b""
    file.seek(-1, os.SEEK_END)
    return b"" if file.read(1) == b"\n" else b"\n"


def _remove_parts(path: Path) -> None:
    """What others left who were killed while they wrote this file."""
    mine = re.compile(rf"\.{re.escape(path.name)}\.(\d+){re.escape(_PART)}")
    for other in path.parent.iterdir():
        named = mine.fullmatch(other.name)
        if named and not Path(f"/proc/{named[1]}").exists():
            other.unlink(missing_ok=True)
