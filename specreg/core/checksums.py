"""Sums: a file in, its checksum out; read once by all runs of a user while it stays as it is."""

import contextlib
import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from specreg.core.files import replace_file
from specreg.core.paths import cache_dir

_SETTLED_NS = 2 * 10**9
"""Longer than the ticks of a file system's clock: two changes within one look like none."""


class _Stamp(msgspec.Struct, frozen=True, kw_only=True):
    """What a file system says of a file; it changes with the content.

    The last time it was changed (ctime) is among it, as nobody can set that back.
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
