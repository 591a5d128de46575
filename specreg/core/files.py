"""Write files that are the old or the new one at any moment, and say where specreg keeps its own.

Bytes are written as they are: whoever encodes a document hides the secrets in its values first,
see `specreg.core.values`. What killed writers left goes when the same is written again.
"""

import contextlib
import errno
import hashlib
import os
import platform
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import BinaryIO

import msgspec
import platformdirs

from specreg.core.errors import SpecregError

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What a decoder raises of bytes that it can't read; the last for too deep a nesting."""
MIB = 2**20
_KINDS = {
    stat.S_IFREG: "a regular file",
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_PACKAGE = Path(__file__).parents[1]
_IN_WHEEL = _PACKAGE / "repository"
OWN_REPOSITORY = _IN_WHEEL if _IN_WHEEL.is_dir() else _PACKAGE.parent
"""The repository of specreg that this is a checkout of, or what the wheel has of it."""


def repository_path(root: Path, path: str) -> Path:
    """Return a path in a repository.

    What a repository lacks below `fixtures/`, such as the tiny models, is taken from specreg's own.
    """
    path_here = root / path
    if path.startswith("fixtures/") and not path_here.exists():
        own_path = OWN_REPOSITORY / path
        if own_path.exists():
            return own_path
    return path_here


def cache_dir() -> Path:
    """Return the folder of environments and widened models, which a user's checkouts share."""
    return Path(os.environ.get("SPECREG_CACHE") or platformdirs.user_cache_dir("specreg"))


def check_cache() -> None:
    """Check, without changing anything, that files can be written to the cache.

    Raises:
        SpecregError: They can't.
    """
    cache = cache_dir().absolute()
    existing = next(path for path in (cache, *cache.parents) if os.path.lexists(path))
    with _naming_cache(cache):
        _check_writable(existing)


def cache_folder(name: str) -> Path:
    """Return a folder of the cache that files can be written to; make it if it isn't there.

    Raises:
        SpecregError: It can't be made, or no file can be written to it.
    """
    folder = cache_dir() / name
    with _naming_cache(cache_dir()):
        folder.mkdir(parents=True, exist_ok=True)
        _check_writable(folder)
    return folder


def _check_writable(folder: Path) -> None:
    number = 0
    if not folder.is_dir():
        number = errno.ENOTDIR
    elif not os.access(folder, os.W_OK | os.X_OK):
        number = errno.EACCES
    if number:
        raise OSError(number, os.strerror(number))


@contextlib.contextmanager
def _naming_cache(cache: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SpecregError(
            f"cache '{cache}': can't be written, {error.strerror}; mend its rights, or name another"
            " folder with SPECREG_CACHE"
        ) from error


def data_dir() -> Path:
    """Return the folder of the prompt sets that `specreg prepare` wrote, shared like the cache."""
    return Path(os.environ.get("SPECREG_DATA") or cache_dir() / "datasets")


def refusal(problem: str, named: PurePath | None = None) -> OSError:
    """Return an error whose `strerror` is a problem, after the name of the file if it is given."""
    if named is not None:
        problem = f"{str(named)!a} {problem}"
    return OSError(errno.EINVAL, problem)


def check_kind(status: os.stat_result, wanted: int, named: PurePath | None = None) -> None:
    """Check that what is in a folder is of a kind, `stat.S_IFREG` for instance; else an OSError."""
    kind = stat.S_IFMT(status.st_mode)
    if kind != wanted:
        raise refusal(f"is {_KINDS.get(kind, 'odd')}, needed {_KINDS[wanted]}", named)


@contextlib.contextmanager
def open_checked(name: str | Path, folder: int | None = None) -> Iterator[BinaryIO]:
    """Open a regular file to read it.

    Args:
        name: its path; or its name in a folder, and then a link isn't followed.
        folder: the descriptor of that folder.

    Raises:
        OSError: it can't be opened, or is no regular file. Reading a FIFO would wait for ever.
    """
    follows = folder is None
    # A device may act when it is opened, so it is looked at first, and once more when opened.
    check_kind(os.stat(name, dir_fd=folder, follow_symlinks=follows), stat.S_IFREG)
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follows else os.O_NOFOLLOW)
    with open(os.open(name, flags, dir_fd=folder), "rb") as file:  # noqa: PTH123 - has no dir_fd
        check_kind(os.fstat(file.fileno()), stat.S_IFREG)
        yield file


def read_bounded(file: BinaryIO, most_bytes: int) -> bytes:
    """Read all of an open file; an OSError where it is longer than `most_bytes`."""
    content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise refusal(f"is longer than {most_bytes / MIB:g} MiB")
    return content


def read_regular(path: Path, most_bytes: int) -> bytes:
    """Read a file of this machine; links are followed.

    Raises:
        OSError: it can't be read, is no regular file, or is longer than `most_bytes`.
    """
    with open_checked(path) as file:
        return read_bounded(file, most_bytes)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file, and make its folder; the old one stays until the new is on disk, or OSError."""
    part = _new_part(path)
    try:
        with part.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def passing_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside a path, to make in it what is moved there."""
    part = _new_part(path)
    part.mkdir()
    try:
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)


def append_lines(path: Path, content: bytes) -> None:
    """Add lines to a file, and make its folder: all of them, or OSError where the disk refuses.

    A line in which a writer was cut off before is ended first, so that ours begin anew.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b", buffering=0) as file:
        before_bytes = file.seek(0, os.SEEK_END)
        if before_bytes:
            file.seek(-1, os.SEEK_END)
            content = content if file.read(1) == b"\n" else b"\n" + content
        bytes_left = memoryview(content)
        try:
            while bytes_left:  # a disk that is almost full takes a part, and refuses the next time
                bytes_left = bytes_left[file.write(bytes_left) :]
        except OSError:
            with contextlib.suppress(OSError):
                file.truncate(before_bytes)
            raise


def _new_part(path: Path) -> Path:
    """Return a name to make a path under first; remove what killed processes left there.

    Of this machine, that is: a number says nothing of the processes of another that shares a disk.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    own_prefix = f".{path.name}.{platform.node()}."
    for neighbour in path.parent.iterdir():
        named = re.fullmatch(rf"{re.escape(own_prefix)}(\d+)\.part", neighbour.name)
        if named and (int(named[1]) == os.getpid() or not Path(f"/proc/{named[1]}").exists()):
            if neighbour.is_dir():
                shutil.rmtree(neighbour, ignore_errors=True)
            else:
                neighbour.unlink(missing_ok=True)
    return path.with_name(f"{own_prefix}{os.getpid()}.part")


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hex; from the cache while the file is unchanged.

    A sum is kept under a name made of what the file system says of the file; ctime, which can't be
    set back, is among it.
    """
    path = path.resolve()
    kept_path = _kept_path(path)
    with contextlib.suppress(OSError):
        if re.fullmatch(r"[0-9a-f]{64}", known := kept_path.read_text(errors="replace")):
            return known
    with open_checked(path) as file:
        checksum = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
    if _kept_path(path) == kept_path:
        with contextlib.suppress(OSError):  # where it can't be kept the file is read again
            replace_file(kept_path, checksum.encode())
    return checksum


def _kept_path(path: Path) -> Path:
    stat = path.stat()
    seen = (os.fsencode(path), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)
    return cache_dir() / "sums" / hashlib.sha256(repr(seen).encode()).hexdigest()
