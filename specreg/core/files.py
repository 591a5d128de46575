"""Write files that are the old or the new one at any moment, and say where specreg keeps its own.

What is written here has no known secret in it; see `specreg.core.redaction`. What was left by
writers that were killed goes when the same is written again. Checksums are kept in the user's
cache, so that a file that stays as it is is read once.
"""

import contextlib
import hashlib
import os
import platform
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec
import platformdirs

from specreg.core.redaction import hide_bytes

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What a decoder raises of bytes that it can't read; the last of what is nested too deeply."""

_PART = ".part"
_SETTLED_NS = 2 * 10**9
"""Longer than the ticks of a file system's clock: two changes within one look like none."""


def cache_dir() -> Path:
    """The folder of environments and of models made larger; shared by all checkouts of a user."""
    given = os.environ.get("SPECREG_CACHE")
    return Path(given) if given else Path(platformdirs.user_cache_dir("specreg"))


def data_dir() -> Path:
    """The folder of the prompt sets that `specreg prepare` wrote; shared as the cache is."""
    given = os.environ.get("SPECREG_DATA")
    return Path(given) if given else cache_dir() / "datasets"


def replace_file(path: Path, content: bytes) -> None:
    """Write a file, and make its folder; what was there stays until all of this is on the disk.

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
    """Add lines to a file, and make its folder: all of them, or none where the disk refuses.

    Raises:
        OSError: the disk refuses; the file is as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b", buffering=0) as file:
        write_lines(file, content)


def append_piece(path: Path, content: bytes) -> None:
    """Add part of a file that comes in pieces, and make its folder.

    Raises:
        OSError: the disk refuses.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(hide_bytes(content))


def write_lines(file: BinaryIO, content: bytes) -> None:
    """Add lines to a file that is open, unbuffered, for reading and appending.

    A line in which a writer was cut off before is ended first, so that ours begin anew.
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


class _Stamp(msgspec.Struct, frozen=True, kw_only=True):
    """What a file system says of a file; it changes with the content.

    The last time it was changed (ctime) is among it, as that can't be set back.
    """

    path: str
    size_bytes: int
    mtime_ns: int
    ctime_ns: int
    inode: int


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A sum, and of which file."""

    stamp: _Stamp
    sha256: str


def file_sha256(path: Path, now_ns: Callable[[], int] = time.time_ns) -> str:
    """The SHA-256 of a file, in hex; from the cache where the file is as it was then.

    Weights have many gigabytes, and each worker asks for their sum.

    Args:
        path: of the file.
        now_ns: nanoseconds since the epoch; who changed within the last moment isn't kept.

    Raises:
        OSError: it can't be read.
    """
    path = path.resolve()
    name = hashlib.sha256(os.fsencode(path)).hexdigest()
    kept_path = cache_dir() / "sums" / f"{name}.json"
    stamp = _stamp(path)
    with contextlib.suppress(OSError, msgspec.DecodeError):  # none, or none that means anything
        kept = msgspec.json.decode(kept_path.read_bytes(), type=_Kept)
        if kept.stamp == stamp:
            return kept.sha256
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if _stamp(path) == stamp and now_ns() - stamp.ctime_ns > _SETTLED_NS:
        with contextlib.suppress(OSError):  # who can't keep it reads it again
            replace_file(kept_path, msgspec.json.encode(_Kept(stamp=stamp, sha256=found)))
    return found


def _stamp(path: Path) -> _Stamp:
    said = path.stat()
    return _Stamp(
        path=str(path),
        size_bytes=said.st_size,
        mtime_ns=said.st_mtime_ns,
        ctime_ns=said.st_ctime_ns,
        inode=said.st_ino,
    )
