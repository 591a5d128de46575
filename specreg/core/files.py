"""Files: content in, a file that is the old or the new one at any moment, never a torn one.

Whatever is written here has no known secret in it; see `specreg.core.redaction`. What was left by
writers that were killed goes when the same is written again.
"""

import contextlib
import os
import platform
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from specreg.core.redaction import hide_bytes

_PART = ".part"


def replace_file(path: Path, content: bytes) -> None:
    """Writes a file, and makes its folder; what was there stays until all of this is on the disk.

    Args:
        path: of the file.
        content: all of it.

    Raises:
        OSError: the disk refuses; the old file is as it was.
    """
    part = _new_part(path)
    try:
        with part.open("wb") as file:
            file.write(hide_bytes(content))
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def passing_folder(path: Path) -> Iterator[Path]:
    """A folder beside a path for as long as the context lasts: to make in it what is moved there.

    Raises:
        OSError: the disk refuses.
    """
    part = _new_part(path)
    part.mkdir()
    try:
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)


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


def _new_part(path: Path) -> Path:
    """Where to make what is to be at a path; what others left there who were killed goes.

    Of this machine, that is: a number says nothing of the processes of another that shares a disk.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    ours = f".{path.name}.{platform.node()}."
    part = re.compile(rf"{re.escape(ours)}(\d+){re.escape(_PART)}")
    for other in path.parent.iterdir():
        named = part.fullmatch(other.name)
        if named and (int(named[1]) == os.getpid() or not Path(f"/proc/{named[1]}").exists()):
            _remove(other)
    return path.with_name(f"{ours}{os.getpid()}{_PART}")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
